import {
  abortRequests,
  addRequest,
  outputBatch,
  requestId,
  type ScriptedMessage,
  stampFromEnd,
} from './messages.js';

export type Transport = 'unix' | 'tcp';

/**
 * What flows. `churn`: 256 outputs of 288 requests; each step one, anywhere in the batch, pauses and another comes in
 * last, so that ids move within the batch.
 */
export type Workload = '1' | '16' | '256' | '256-churn' | '256-logprobs' | 'add-20k';

/** One line-up that is run once per hop and round. */
export interface Case {
  readonly name: string;
  readonly transport: Transport;
  readonly engines: number;
  readonly workload: Workload;
  /** Messages per second to measure latency at, slowest first; throughput is always measured. */
  readonly rates: readonly number[];
  /** Whether /metrics is fetched each second meanwhile, in the other hops from an idle steptap beside them. */
  readonly scraped: boolean;
  /** Whether --quick runs it. */
  readonly quick: boolean;
}

/** What the two peers send in a case, and how to check the counts of it. */
export interface Traffic {
  /** ADDs that make all ids of `outputs` tracked, sent once. */
  readonly adds: readonly ScriptedMessage[];
  /** What is measured, round and round. */
  readonly measured: readonly ScriptedMessage[];
  readonly measuredFrom: 'engine' | 'frontend';
  /** Tokens in one measured message: with counting right, `_sum` grows by it. */
  readonly tokensPerMessage: number;
  /** Bytes before the end of frame 0 where the time of sending stands; 0: nowhere. */
  readonly stamp: number;
  /**
   * Where the measured messages are not counted themselves: ADDs sent at the end, and the batches that then show
   * that all before was read (64 standing requests, 64 tokens).
   */
  readonly proof?: { readonly adds: readonly ScriptedMessage[]; readonly batch: ScriptedMessage };
  /** Messages that make a first, untimed round. */
  readonly warmup: number;
}

const promptTokens = 15;
const longPromptTokens = 20_000;
/** Different messages before the same bytes come again. */
const variety = 32;
/** Requests ADDed before one ABORT removes them, in the workload of long prompts. */
const addsPerAbort = 64;

const latencyRates = [50, 1000, 10_000];

export const cases: readonly Case[] = (['unix', 'tcp'] as const).flatMap((transport) => [
  line(transport, 1, '1', { quick: transport === 'unix' }),
  line(transport, 1, '16', { rates: latencyRates, quick: true }),
  line(transport, 1, '256', { rates: [50, 1000], quick: transport === 'unix' }),
  line(transport, 1, '256-churn'),
  line(transport, 1, '256-logprobs'),
  line(transport, 1, 'add-20k', { quick: transport === 'unix' }),
  line(transport, 8, '1'),
  line(transport, 8, '16', { rates: latencyRates }),
  line(transport, 8, '256'),
  line(transport, 8, '16', { rates: [1000, 10_000], scraped: true, quick: transport === 'unix' }),
]);

function line(
  transport: Transport,
  engines: number,
  workload: Workload,
  { rates = [] as readonly number[], scraped = false, quick = false } = {},
): Case {
  const name = `${transport}/${engines}e/${workload}${scraped ? '/scraped' : ''}`;
  return { name, transport, engines, workload, rates, scraped, quick };
}

export function trafficOf({ workload, engines }: Case): Traffic {
  return workload === 'add-20k' ? longPrompts(engines) : batches(workload, engines);
}

function batches(workload: Exclude<Workload, 'add-20k'>, engines: number): Traffic {
  const size = Number.parseInt(workload, 10);
  const churn = workload === '256-churn';
  const poolSize = churn ? size + variety : size;
  const pools = range(engines).map((engine) => range(poolSize).map((index) => requestId(engine, index)));
  // 8 engines with 32 steps of 256 outputs would be 4 MB to walk through: fewer steps, the same mix.
  const steps = Math.max(4, Math.trunc(variety / engines));
  const measured = range(steps).flatMap((step) =>
    pools.map((pool, engine) =>
      outputBatch({
        ids: churn ? idsInFlight(pool, size, step) : pool,
        engine,
        step,
        withLogprobs: workload === '256-logprobs',
      }),
    ),
  );
  return {
    adds: pools.flatMap((pool, engine) => pool.map((id) => addRequest(id, engine, promptTokens))),
    measured,
    measuredFrom: 'engine',
    tokensPerMessage: size,
    stamp: stampFromEnd,
    warmup: Math.max(500, Math.trunc(10_000 / size)),
  };
}

/** The ids of a step: per step before it one has gone, anywhere, and another one has come last. */
function idsInFlight(pool: readonly string[], size: number, step: number): string[] {
  const ids = pool.slice(0, size);
  for (let past = 0; past < step; past++) {
    ids.splice((past * 101) % size, 1);
    ids.push(pool[size + past] ?? '');
  }
  return ids;
}

/** 64 ADDs, one ABORT of all of them, again. At the end 64 stand and are proved by a batch of one token each. */
function longPrompts(engines: number): Traffic {
  const ids = range(addsPerAbort).map((index) => requestId(0, index));
  const adds = ids.map((id, index) => addRequest(id, index % engines, longPromptTokens));
  return {
    adds: [],
    measured: [...adds, abortRequests(ids, 0)],
    measuredFrom: 'frontend',
    tokensPerMessage: 0,
    stamp: 0,
    proof: { adds, batch: outputBatch({ ids, engine: 0, step: 0, withLogprobs: false }) },
    warmup: addsPerAbort + 1,
  };
}

function range(length: number): number[] {
  return Array.from({ length }, (_, index) => index);
}
