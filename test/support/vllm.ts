/**
 * A stand-in vLLM behind a real sidecar: frontend and engines with ZeroMQ sockets, the sidecar in this process. The
 * engines move nothing by themselves unless told to, so that a test sends the very batches of its case.
 */
import type { ExecutionContext } from 'ava';
import { type EngineOptions, StandInEngine } from './engine.js';
import { type FrontendOptions, type RequestSpec, StandInFrontend } from './frontend.js';
import {
  freePort,
  type InProcessSidecar,
  runSidecar,
  type SettingsPatch,
  temporaryDirectory,
} from './in-process.js';
import { type BatchSpec, batch, type OutputSpec } from './messages.js';
import { parsePrometheusText, seriesKey } from './prometheus-text.js';
import { waitFor } from './wait.js';

export type Mode = 'directory' | 'handshake';

/** An engine that answers only when the test sends something in its name. */
export const BY_HAND: EngineOptions = { batchSize: 0, stepsPerSecond: 50 };

/** Messages of 60 MB take their time on a machine that does other things too. */
const ARRIVAL_DEADLINE_MS = 40_000;

export interface VllmOptions extends Omit<FrontendOptions, 'engines'> {
  readonly mode?: Mode;
  readonly engines?: number;
  readonly engine?: EngineOptions;
  readonly patch?: SettingsPatch;
}

export interface Observed {
  readonly count: number;
  readonly sum: number;
}

export class Vllm {
  readonly frontend: StandInFrontend;
  readonly engines: readonly StandInEngine[];
  readonly sidecar: InProcessSidecar;
  /** Messages that arrived at the frontend, in that order. */
  readonly arrived: (readonly Buffer[])[] = [];
  #sent = 0;

  constructor(frontend: StandInFrontend, engines: readonly StandInEngine[], sidecar: InProcessSidecar) {
    this.frontend = frontend;
    this.engines = engines;
    this.sidecar = sidecar;
    frontend.onOutput = (_client, frames) => this.arrived.push(frames);
  }

  /** ADDs these requests; resolves when the engine has them. */
  async open(ids: readonly string[], spec: Partial<RequestSpec> = {}): Promise<void> {
    const { client = 0, engine = 0 } = spec;
    for (const id of ids) {
      const request = { id, promptTokens: 128, maxTokens: 1000, client, engine, ...spec };
      this.frontend.open(request).done.catch(() => {});
    }
    const running = () => ids.every((id) => this.engines[engine]?.running.includes(id));
    await waitFor(running, { what: 'the requests at their engine' });
  }

  /** An engine sends this batch; resolves when the frontend has it, and what passed in between is counted. */
  async step(
    outputs: readonly (OutputSpec | readonly unknown[])[],
    spec: BatchSpec & { client?: number } = {},
  ): Promise<void> {
    await this.send([batch({ outputs, ...spec })], spec);
  }

  /** The same for any frames; gives what the frontend received. */
  async send(
    frames: readonly Uint8Array[],
    { engine = 0, client = 0 }: { engine?: number; client?: number } = {},
  ): Promise<readonly Buffer[]> {
    const sent = ++this.#sent;
    await (this.engines[engine] ?? this.engines[0])?.sendRaw(client, frames);
    return waitFor(() => this.arrived[sent - 1], {
      what: 'the message at the frontend',
      deadlineMs: ARRIVAL_DEADLINE_MS,
    });
  }

  /** What the sidecar has observed of one engine; undefined while it has no such series. */
  async observed(engine = 0): Promise<Observed | undefined> {
    const samples = await this.sidecar.samples();
    const labels = { engine: String(engine), model_name: this.frontend.modelName };
    const count = samples.get(seriesKey('vllm:iteration_tokens_total_count', labels));
    const sum = samples.get(seriesKey('vllm:iteration_tokens_total_sum', labels));
    return count === undefined || sum === undefined ? undefined : { count, sum };
  }

  /** Cumulative count of one bucket of engine 0. */
  async bucket(le: string): Promise<number | undefined> {
    const labels = { engine: '0', le, model_name: this.frontend.modelName };
    return this.sidecar.sample('vllm:iteration_tokens_total_bucket', labels);
  }

  counter(name: string, labels: Readonly<Record<string, string>> = {}): Promise<number | undefined> {
    return this.sidecar.sample(`steptap_${name}`, labels);
  }
}

/** Starts all three; resolves when the frontend is ready. They end with the test. */
export async function startVllm(t: ExecutionContext, options: VllmOptions = {}): Promise<Vllm> {
  const { mode = 'directory', engines: engineCount = 1, engine = BY_HAND, patch = {}, ...rest } = options;
  const clients = rest.clients ?? 1;
  const dir = mode === 'directory' ? temporaryDirectory(t) : null;
  const frontend = new StandInFrontend({
    engines: engineCount,
    ...(dir === null ? {} : { directory: dir }),
    ...rest,
  });
  t.teardown(() => frontend.stop());
  await frontend.start();
  const entrance = dir === null ? `tcp://127.0.0.1:${await freePort()}` : frontend.handshakeAddress;
  const sidecar = await runSidecar(t, {
    model: { name: frontend.modelName },
    ...(dir === null
      ? { frontend: { handshake: frontend.handshakeAddress }, engine: { handshake: entrance } }
      : { ipc: { dir } }),
    ...patch,
  });
  if (dir !== null) {
    const taken = async () => (await sidecar.status()).endpoints.length === 1 + 2 * clients;
    await waitFor(taken, { what: 'all sockets taken over' });
  }
  const { version } = rest;
  const engines = Array.from({ length: engineCount }, (_, index) => {
    return new StandInEngine({ ...engine, index, ...(version === undefined ? {} : { version }) });
  });
  t.teardown(() => Promise.all(engines.map((each) => each.stop())));
  await Promise.all([frontend.ready(), ...engines.map((each) => each.start(entrance))]);
  t.deepEqual(frontend.violations, []);
  return new Vllm(frontend, engines, sidecar);
}

/** Every sample of the sidecar's histogram is the one that the frontend itself exports, and there are no others. */
export async function sameAsFrontend(t: ExecutionContext, vllm: Vllm, what = ''): Promise<void> {
  const own = histogramOf(parsePrometheusText(vllm.frontend.histogram.text()));
  t.deepEqual(histogramOf(await vllm.sidecar.samples()), own, what);
}

export function histogramOf(samples: ReadonlyMap<string, number>): Record<string, number> {
  const own = [...samples].filter(([key]) => key.startsWith('vllm:iteration_tokens_total'));
  return Object.fromEntries(own.sort(([a], [b]) => (a < b ? -1 : 1)));
}
