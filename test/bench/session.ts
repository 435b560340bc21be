import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Case, type Traffic, trafficOf } from './cases.js';
import { type Hop, type HopName, startHop } from './hops.js';
import { type ScriptedMessage, writeScript } from './messages.js';
import type { Peer, PeerKind, Received } from './peers.js';
import { cpuMicros, rssMegabytes } from './procfs.js';
import { measureScrape } from './sidecar-facts.js';
import { Sidecar } from './sidecar-process.js';

/** How long each phase is to last, in seconds. */
export interface Durations {
  readonly throughput: number;
  /** By rate in messages per second. */
  latency(rate: number): number;
}

/** One measured phase of one hop. */
export interface Phase {
  /** Messages per second asked for; 0 = saturated. */
  readonly rate: number;
  readonly received: Received;
  /** CPU time of the hop per message in microseconds, all its threads; absent without a hop. */
  readonly cpuPerMessage?: number;
  /** Highest resident set of the hop during the phase, in MB. */
  readonly peakRss?: number;
}

/** All phases of one case with one hop, and what steptap's own process showed. */
export interface Session {
  readonly phases: readonly Phase[];
  readonly sidecar?: {
    readonly startMillis: number;
    readonly idleRss: number;
    readonly scrapeMillis: number;
    readonly verified: string;
  };
}

/** A phase with fewer messages than this says nothing. */
const leastMessages = 100;

/** Runs one case with one hop: starts all processes, warms up, measures, checks the counts, ends all processes. */
export async function runSession(
  benchCase: Case,
  hopName: HopName,
  durations: Durations,
  peerKind: PeerKind,
): Promise<Session> {
  const folder = mkdtempSync(join(tmpdir(), 'steptap-bench-'));
  const sockets = mkdtempSync(join(tmpdir(), 'steptap-bench-'));
  let hop: Hop | undefined;
  let engine: Peer | undefined;
  let bystander: Sidecar | undefined;
  try {
    const { transport, engines } = benchCase;
    hop = await startHop(hopName, { transport, engines, peers: peerKind, folder: sockets });
    const idleRss = hop.pid === undefined ? 0 : rssMegabytes(hop.pid);
    const peers = await hop.frontend.join(benchCase.engines, hop.handshake, hop.init);
    engine = peers.engine;
    const run = new Run(trafficOf(benchCase), folder, hop, peers.frontend, peers.engine);
    // A scrape takes CPU time that the peers could use. Without a steptap in between, one that is idle is scraped.
    if (benchCase.scraped && hop.sidecar === undefined)
      bystander = await Sidecar.start(['--ipc-dir', folder]);
    const scraped = hop.sidecar ?? bystander;
    const scraper = benchCase.scraped ? setInterval(() => void scraped?.scrape(), 1000) : undefined;
    try {
      const phases = await run.measure(benchCase.rates, durations);
      clearInterval(scraper);
      if (hop.sidecar === undefined) return { phases };
      const verified = await run.verify();
      const scrapeMillis = await measureScrape(hop.sidecar);
      return { phases, sidecar: { startMillis: hop.sidecar.startMillis, idleRss, scrapeMillis, verified } };
    } finally {
      clearInterval(scraper);
    }
  } finally {
    await engine?.stop();
    await hop?.stop();
    await bystander?.stop();
    for (const path of [folder, sockets]) rmSync(path, { recursive: true, force: true });
  }
}

/** The phases of one session, with running totals of what must have been counted. */
class Run {
  #batches = 0;
  #tokens = 0;
  readonly #traffic: Traffic;
  readonly #folder: string;
  readonly #hop: Hop;
  readonly #sender: Peer;
  readonly #receiver: Peer;
  readonly #frontend: Peer;
  readonly #engine: Peer;

  constructor(traffic: Traffic, folder: string, hop: Hop, frontend: Peer, engine: Peer) {
    this.#traffic = traffic;
    this.#folder = folder;
    this.#hop = hop;
    this.#frontend = frontend;
    this.#engine = engine;
    const fromEngine = traffic.measuredFrom === 'engine';
    this.#sender = fromEngine ? engine : frontend;
    this.#receiver = fromEngine ? frontend : engine;
  }

  async measure(rates: readonly number[], durations: Durations): Promise<Phase[]> {
    const { adds, measured, warmup } = this.#traffic;
    if (adds.length > 0)
      await this.#transfer(this.#frontend, this.#engine, this.#script('adds', adds), adds.length);
    const script = this.#script('measured', measured);
    // Twice, since the first round pays for the compilation of hot functions and gives too low a rate.
    const first = await this.#phase(script, warmup, 0);
    const second = await this.#phase(script, messagesFor(first, durations.throughput / 2), 0);
    const phases = [await this.#phase(script, messagesFor(second, durations.throughput), 0)];
    for (const rate of rates) phases.push(await this.#phase(script, rate * durations.latency(rate), rate));
    return phases;
  }

  /** Compares what steptap counted with what was sent; returns a sentence, throws when they differ. */
  async verify(): Promise<string> {
    const { proof } = this.#traffic;
    if (proof !== undefined) {
      await this.#transfer(
        this.#frontend,
        this.#engine,
        this.#script('standing', proof.adds),
        proof.adds.length,
      );
      await this.#transfer(this.#engine, this.#frontend, this.#script('proof', [proof.batch]), 1);
      this.#batches += 1;
      this.#tokens += proof.adds.length;
    }
    const counted = await this.#hop.sidecar?.counted(this.#batches);
    const expected = `${this.#batches} batches, ${this.#tokens} tokens`;
    const actual = `${counted?.count} batches, ${counted?.sum} tokens`;
    if (actual !== expected) throw new Error(`steptap counted ${actual}; sent were ${expected}`);
    if (counted !== undefined && counted.faults.length > 0)
      throw new Error(`steptap: ${counted.faults.join(', ')}`);
    return expected;
  }

  async #phase(script: string, atLeast: number, rate: number): Promise<Phase> {
    const { measured, stamp, tokensPerMessage } = this.#traffic;
    // Whole rounds only: the load of long prompts must end with its ABORT.
    const count = Math.ceil(Math.max(atLeast, leastMessages) / measured.length) * measured.length;
    const { pid } = this.#hop;
    const before = pid === undefined ? 0 : cpuMicros(pid);
    let peakRss = 0;
    const sample = () => {
      if (pid !== undefined) peakRss = Math.max(peakRss, rssMegabytes(pid));
    };
    const sampler = setInterval(sample, 200);
    try {
      const received = await this.#transfer(
        this.#sender,
        this.#receiver,
        script,
        count,
        rate,
        rate > 0 ? stamp : 0,
      );
      sample();
      if (tokensPerMessage > 0) this.#batches += count;
      this.#tokens += count * tokensPerMessage;
      if (pid === undefined) return { rate, received };
      return { rate, received, peakRss, cpuPerMessage: (cpuMicros(pid) - before) / count };
    } finally {
      clearInterval(sampler);
    }
  }

  async #transfer(
    from: Peer,
    to: Peer,
    script: string,
    count: number,
    rate = 0,
    stamp = 0,
  ): Promise<Received> {
    const [received] = await Promise.all([to.expect(count, stamp), from.send(script, count, rate, stamp)]);
    return received;
  }

  #script(name: string, messages: readonly ScriptedMessage[]): string {
    const path = join(this.#folder, name);
    writeScript(path, messages);
    return path;
  }
}

/** Messages that fill this many seconds at the rate a phase reached. */
function messagesFor({ received }: Phase, seconds: number): number {
  return Math.ceil((received.messages / Math.max(received.seconds, 1e-6)) * seconds);
}
