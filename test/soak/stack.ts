/** A whole vLLM of stand-ins, each a process, with steptap in between; its load, and what both sides have counted. */
import { setTimeout as delay } from 'node:timers/promises';
import { request } from 'undici';
import type { Child } from '../support/child.js';
import { complete } from '../support/completions.js';
import { eventually } from '../support/in-process.js';
import { parsePrometheusText } from '../support/prometheus-text.js';
import type { Way } from '../support/toxic-rig.js';
import type { Scope } from '../support/toxic-scope.js';
import { type Plan, plan, spawnEngine, spawnFrontend } from '../support/toxic-stand-ins.js';
import { Victim } from '../support/toxic-victim.js';
import type { Random } from '../transparency/random.js';

const ENGINE = { chunk: 2, batchSize: 8, stepsPerSecond: 300, cachedShare: 0.3 } as const;
const WORKERS = 12;
const MAX_PROMPT = 2000;
const MAX_TOKENS = 400;
/** A request whose last output was inside a steptap that was killed never ends. */
const REQUEST_DEADLINE_MS = 20_000;
const AFTER_FAILURE_MS = 100;
const SETTLE_MS = 300;

/** V8 lets garbage of old objects lie while there is room; in little room what grows is a leak. */
const LITTLE_ROOM = { NODE_OPTIONS: '--max-old-space-size=48' } as const;

type Samples = ReadonlyMap<string, number>;

export class Stack {
  readonly way: Way;
  readonly #scope: Scope;
  readonly #plan: Plan;
  steptap: Victim;
  frontend: Child;
  engine: Child;
  #url = '';
  /** Where both began in this epoch: steptap's counters start anew when it is killed, the frontend's when it is. */
  #ours: Samples = new Map();
  #theirs: Samples = new Map();
  readonly requests = { finished: 0, failed: 0, unfinished: 0 };
  /** Series compared at the reconciliations. */
  compared = 0;

  private constructor(scope: Scope, planned: Plan, steptap: Victim, frontend: Child, engine: Child) {
    this.way = planned.way;
    this.#scope = scope;
    this.#plan = planned;
    this.steptap = steptap;
    this.frontend = frontend;
    this.engine = engine;
  }

  static async start(scope: Scope, way: Way): Promise<Stack> {
    const planned = await plan(scope, way, { handover: true });
    const steptap = await Victim.start(scope, planned.args, LITTLE_ROOM);
    const { frontend, engine, url } = await startVllm(scope, steptap, planned);
    const stack = new Stack(scope, planned, steptap, frontend, engine);
    stack.#url = url;
    return stack;
  }

  /** Runs requests of random sizes until `signal` aborts; resolves when the last of them has ended. */
  async load(random: Random, signal: AbortSignal): Promise<void> {
    const worker = async () => {
      while (!signal.aborted) await this.#request(random);
    };
    await Promise.all(Array.from({ length: WORKERS }, worker));
  }

  /** With no request in flight: what differs between steptap and the frontend since the epoch began. */
  async differences(): Promise<string[]> {
    const ours = await this.steptap.samples();
    const theirs = await this.#frontendSamples();
    const differing: string[] = [];
    for (const [series, value] of theirs) {
      this.compared++;
      const expected = value - (this.#theirs.get(series) ?? 0);
      const actual = (ours.get(series) ?? 0) - (this.#ours.get(series) ?? 0);
      if (actual !== expected) differing.push(`${series}: steptap ${actual}, frontend ${expected}`);
    }
    return differing;
  }

  /** kill -9, and the supervisor's new start after `downMs`. */
  async killSteptap(downMs: number): Promise<void> {
    await this.steptap.kill();
    await delay(SETTLE_MS + downMs);
    this.#theirs = await this.#frontendSamples();
    this.#ours = new Map();
    this.steptap = await Victim.start(this.#scope, this.#plan.args, LITTLE_ROOM);
    await eventually('the engine is back', async () =>
      (await this.steptap.status()).engines.some(({ connections }) => connections > 0),
    );
  }

  /** kill -9 of frontend and engine, and another vLLM in their place. */
  async restartVllm(): Promise<void> {
    await Promise.all([this.frontend.kill(), this.engine.kill()]);
    await eventually('connections gone', async () =>
      (await this.steptap.status()).endpoints.every(({ connections }) => connections === 0),
    );
    this.#ours = await this.steptap.samples();
    this.#theirs = new Map();
    const { frontend, engine, url } = await startVllm(this.#scope, this.steptap, this.#plan);
    this.frontend = frontend;
    this.engine = engine;
    this.#url = url;
  }

  async #request(random: Random): Promise<void> {
    const size = {
      promptTokens: 1 + random.integer(MAX_PROMPT),
      outputTokens: 1 + random.integer(MAX_TOKENS),
      stream: random.integer(2) === 0,
    };
    const begun = performance.now();
    try {
      await complete(this.#url, size, { signal: AbortSignal.timeout(REQUEST_DEADLINE_MS) });
      this.requests.finished++;
    } catch {
      if (performance.now() - begun >= REQUEST_DEADLINE_MS) this.requests.unfinished++;
      else this.requests.failed++;
      await delay(AFTER_FAILURE_MS);
    }
  }

  async #frontendSamples(): Promise<Samples> {
    return parsePrometheusText(await (await request(`${this.#url}/metrics`)).body.text());
  }
}

async function startVllm(
  scope: Scope,
  steptap: Victim,
  planned: Plan,
): Promise<{ frontend: Child; engine: Child; url: string }> {
  const { child, handshake, url } = await spawnFrontend(scope, steptap, planned);
  const engine = spawnEngine(scope, handshake, ENGINE);
  return { frontend: child, engine, url: await url() };
}
