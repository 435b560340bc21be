/**
 * EngineCoreOutputs, the first frame of a message on an output socket. What a walk over it found: sums over the plain
 * rows, and the rows that have to be judged one by one. See proxy/wasm/output-walker.ts.
 */
import { LIST_FULL, largeWalker, MALFORMED, type SlotOwner, TRUNCATED, walker } from './output-walker.js';

/** Why a frame is not a batch. `invalid_shape`: whole MessagePack, but not what vLLM sends. */
export type DecodeFault = 'empty' | 'truncated' | 'malformed' | 'trailing_bytes' | 'invalid_shape';

/** As `computed`: no prefill stats in this output. */
export const NO_PREFILL_STATS = -1;
/** As `cached`: no num_cached_tokens, as from vLLM 0.20 on. */
export const NO_CACHED_COUNT = -1;

/** Larger frames hardly come. */
const MAX_SHARED_BYTES = 1024 ** 2;

const NOTHING: readonly string[] = [];

/** Holds until the next batch of any connection is read. */
export class OutputBatch {
  engineIndex = 0;
  /** Number of outputs. */
  length = 0;
  /** Of those, how many are listed: `row` gives them, in their order. */
  listed = 0;
  /** Tokens of the rows that are not listed: those of selected requests in flight. */
  plainTokens = 0;
  /** Rows that are not listed, of requests that are not selected. */
  plainUntracked = 0;
  hasSchedulerStats = false;
  finishedRequests: readonly string[] = NOTHING;
  /** Prefill counts that were no whole number from 0 to 2^53 and are taken as 0. */
  invalidCounts = 0;

  readonly #owner: SlotOwner | null;
  #walker = walker;
  #firstSlot = 0;

  /** `owner` knows the requests in flight; without one all rows are listed. */
  constructor(owner: SlotOwner | null = null) {
    this.#owner = owner;
  }

  /** Reads `bytes[start..end)`; null when it was read, else why not, and nothing else holds. */
  read(bytes: Buffer, start: number, end: number): DecodeFault | null {
    if (start === end) return 'empty';
    const frame = bytes.subarray(start, end);
    this.#walker = frame.length > MAX_SHARED_BYTES ? largeWalker() : walker;
    return this.#readFrame(frame);
  }

  /** The same for bytes that were loaded into the shared walker at `base`. */
  readLoaded(base: number, start: number, end: number): DecodeFault | null {
    if (start === end) return 'empty';
    this.#walker = walker;
    return this.#read(base + start, base + end);
  }

  /** Fills `row` with the listed row `index`. */
  row(index: number, row: ListedRow): void {
    const { words, doubles, rowsAt } = this.#walker;
    const at = rowsAt / 8 + index * 5;
    const wordAt = at * 2;
    row.slot = words[wordAt] as number;
    row.idStart = words[wordAt + 1] as number;
    row.idEnd = words[wordAt + 2] as number;
    row.tokens = words[wordAt + 3] as number;
    row.finished = words[wordAt + 4] === 1;
    row.computed = doubles[at + 3] as number;
    row.cached = doubles[at + 4] as number;
  }

  idOf({ idStart, idEnd }: ListedRow): string {
    return this.#walker.text(idStart, idEnd);
  }

  #readFrame(frame: Buffer): DecodeFault | null {
    const at = this.#walker.load(frame);
    return this.#read(at, at + frame.length);
  }

  #read(start: number, end: number): DecodeFault | null {
    const { resultAt } = this.#walker;
    const isShared = this.#walker === walker;
    const left = this.#walker.read(start, end, isShared ? this.#owner : null, isShared ? this.#firstSlot : 0);
    if (left === LIST_FULL) {
      this.#walker = largeWalker();
      return this.#readFrame(walker.bytes.subarray(start, end));
    }
    if (left < 0)
      return left === MALFORMED ? 'malformed' : left === TRUNCATED ? 'truncated' : 'invalid_shape';
    if (left > 0) return 'trailing_bytes';
    const { words, doubles } = this.#walker;
    const at = resultAt / 4;
    this.engineIndex = doubles[resultAt / 8] as number;
    this.plainTokens = doubles[resultAt / 8 + 1] as number;
    this.length = words[at + 4] as number;
    this.listed = words[at + 5] as number;
    this.plainUntracked = words[at + 6] as number;
    this.hasSchedulerStats = words[at + 7] !== 0;
    this.invalidCounts = words[at + 8] as number;
    const finished = words[at + 9] as number;
    this.finishedRequests =
      finished === 0 ? NOTHING : this.#walker.strings(words[at + 10] as number, end, finished);
    if (isShared) this.#firstSlot = words[at + 11] as number;
    return null;
  }
}

/** One output, as far as it is counted. */
export class ListedRow {
  /** Slot of its request; 0 when the id is not that of a request with a slot. */
  slot = 0;
  /** The id's place in the walker's memory. */
  idStart = 0;
  idEnd = 0;
  /** len(new_token_ids) */
  tokens = 0;
  /** Carries a finish_reason. */
  finished = false;
  /** prefill_stats.num_computed_tokens, or NO_PREFILL_STATS. */
  computed = NO_PREFILL_STATS;
  /** num_cached_tokens with 0 for a negative one, or NO_CACHED_COUNT. */
  cached = NO_CACHED_COUNT;
}
