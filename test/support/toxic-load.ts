/** Requests and batches in the layout of vLLM 0.32, with the numbers a test wants to find again. */
import { decode, encode } from '@msgpack/msgpack';

export interface Output {
  readonly id: string;
  /** New tokens. */
  readonly tokens: number;
  /** num_computed_tokens of prefill stats; left out: none. */
  readonly computed?: number;
  readonly isLast?: boolean;
}

/** The fields of an output behind request id and new tokens: 18 in all, finish_reason at 5, prefill_stats at 11. */
function fields({ id, tokens, computed, isLast }: Output): unknown[] {
  const output: unknown[] = [id, Array.from({ length: tokens }, (_, index) => 1000 + index)];
  while (output.length < 18) output.push(null);
  output[5] = isLast === true ? 1 : null;
  if (computed !== undefined)
    output[11] = { num_prompt_tokens: computed, num_computed_tokens: computed, num_cached_tokens: 0 };
  return output;
}

/** EngineCoreOutputs; `sequence` stands where the timestamp does, for the order to be seen at the other end. */
export function batch(engine: number, sequence: number, outputs: readonly Output[]): Uint8Array {
  const stats = { num_running_reqs: outputs.length, num_waiting_reqs: 0 };
  return encode([engine, outputs.map(fields), stats, sequence + 0.5, null, null, null, null, 'default']);
}

/** What `batch` put in. */
export function readBatch(payload: Uint8Array): { engine: number; sequence: number; outputs: Output[] } {
  const [engine, outputs, , time] = decode(payload) as [number, unknown[][], unknown, number];
  return {
    engine,
    sequence: time - 0.5,
    outputs: outputs.map((output) => ({
      id: output[0] as string,
      tokens: (output[1] as unknown[]).length,
      isLast: output[5] !== null,
    })),
  };
}

/** Frames of an ADD. */
export function addFrames(id: string, promptTokens: number): Uint8Array[] {
  const add: unknown[] = [id, Array.from({ length: promptTokens }, (_, index) => index % 50_000)];
  while (add.length < 22) add.push(null);
  return [Uint8Array.of(0), encode(add)];
}

/** Frames of an ABORT. */
export function abortFrames(ids: readonly string[]): Uint8Array[] {
  return [Uint8Array.of(1), encode(ids)];
}
