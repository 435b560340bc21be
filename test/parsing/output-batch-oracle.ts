/**
 * EngineCoreOutputs read the plain way: decode all of it with @msgpack/msgpack, then go by the tables of
 * protocol.md ("Outputs") and semantics.md. Written apart from proxy/vllm/output-batch.ts, so that one does not
 * repeat the other's mistake.
 */
import { type DecodeFault, ListedRow, type OutputBatch } from '../../proxy/vllm/output-batch.js';
import { walker } from '../../proxy/vllm/output-walker.js';
import { decodeWhole, isInteger, isMap } from './msgpack-values.js';

export interface OutputRow {
  readonly id: string;
  readonly tokens: number;
  readonly finished: boolean;
  /** null: no prefill stats. */
  readonly computed: number | null;
  /** null: no num_cached_tokens. */
  readonly cached: number | null;
}

export interface Reading {
  readonly engineIndex: number;
  readonly hasSchedulerStats: boolean;
  readonly finishedRequests: readonly string[];
  readonly invalidCounts: number;
  readonly rows: readonly OutputRow[];
}

/** `unknown` where the oracle refuses to read. */
export function expectedReading(frame: Uint8Array): Reading | { readonly fault: DecodeFault | 'unknown' } {
  if (frame.length === 0) return { fault: 'empty' };
  const whole = decodeWhole(frame);
  if ('fault' in whole) return { fault: whole.fault === 'refused' ? 'unknown' : whole.fault };
  return interpret(whole.value) ?? { fault: 'invalid_shape' };
}

/** The same of what the walker has read. */
export function walkerReading(
  batch: OutputBatch,
  bytes: Buffer,
  start: number,
  end: number,
): Reading | { readonly fault: DecodeFault } {
  // As in the relay: with what comes before and behind it in the chunk.
  const fault = batch.readLoaded(walker.load(bytes), start, end);
  if (fault !== null) return { fault };
  const orNull = (value: number) => (value === -1 ? null : value);
  const row = new ListedRow();
  const rows = Array.from({ length: batch.listed }, (_, index) => {
    batch.row(index, row);
    return {
      id: batch.idOf(row),
      tokens: row.tokens,
      finished: row.finished,
      computed: orNull(row.computed),
      cached: orNull(row.cached),
    };
  });
  const { engineIndex, hasSchedulerStats, invalidCounts } = batch;
  return {
    engineIndex,
    hasSchedulerStats,
    finishedRequests: [...batch.finishedRequests],
    invalidCounts,
    rows,
  };
}

function interpret(batch: unknown): Reading | null {
  if (!Array.isArray(batch)) return null;
  const [engine, outputs, stats, , utility, finishedRequests, waveComplete, startWave] = batch;
  if (!isInteger(engine) || engine < 0) return null;
  if (!isListOrNil(outputs) || !isListOrNil(finishedRequests)) return null;
  if (finishedRequests?.some((id) => typeof id !== 'string')) return null;
  const rows = (outputs ?? []).map(interpretOutput);
  if (rows.some((row) => row === null)) return null;
  // S6
  const isReply = [utility, waveComplete, startWave].some((value) => (value ?? null) !== null);
  if (rows.length > 0 && isReply) return null;
  return {
    engineIndex: Number(engine),
    hasSchedulerStats: (stats ?? null) !== null,
    finishedRequests: (finishedRequests ?? []) as string[],
    invalidCounts: rows.filter((row) => row?.isInvalidCount).length,
    rows: rows.map((row) => {
      const { isInvalidCount: _, ...rest } = row as NonNullable<typeof row>;
      return rest;
    }),
  };
}

function interpretOutput(output: unknown): (OutputRow & { isInvalidCount: boolean }) | null {
  if (!Array.isArray(output)) return null;
  const [id, tokens] = output;
  if (typeof id !== 'string' || !Array.isArray(tokens)) return null;
  const { length } = output;

  // vLLM up to 0.9.1 has 7 or 9 elements and the reason at 4; a newer, shorter array has it at 5.
  const finished = isInteger(output[5]) || (length <= 9 && isInteger(output[4]));

  const cachedAt = new Map([
    [9, 8],
    [10, 9],
  ]).get(length);
  const cachedElement = length >= 9 ? output[cachedAt ?? 10] : undefined;
  const cached = isInteger(cachedElement) ? Math.max(Number(cachedElement), 0) : null;

  const stats = [output[10], output[11]].find(
    (element) => isMap(element) && Object.hasOwn(element, 'num_computed_tokens'),
  );
  const count: unknown = stats?.num_computed_tokens;
  const isCount =
    (typeof count === 'number' || typeof count === 'bigint') &&
    count >= 0 &&
    Number.isSafeInteger(Number(count)) &&
    BigInt(Math.trunc(Number(count))) === BigInt(typeof count === 'bigint' ? count : Math.trunc(count));
  const computed = stats === undefined ? null : isCount ? Number(count) : 0;
  return {
    id,
    tokens: tokens.length,
    finished,
    computed,
    cached,
    isInvalidCount: stats !== undefined && !isCount,
  };
}

function isListOrNil(value: unknown): value is unknown[] | null | undefined {
  return value === undefined || value === null || Array.isArray(value);
}
