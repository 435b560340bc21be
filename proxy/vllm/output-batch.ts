/**
 * Reads EngineCoreOutputs, the first frame of a message on an output socket, into columns that are used again for
 * every batch. Nothing is built but the ids in `finished_requests`; request ids stay byte ranges of the frame.
 *
 * Positions of fields, by version of vLLM: protocol.md, "Outputs". In short, for an EngineCoreOutput of n elements:
 *
 *     0 request_id   1 new_token_ids   5 finish_reason (4 before 0.9.2)
 *     num_cached_tokens  an integer at 8 (n = 9), 9 (n = 10) or 10 (n >= 11)      up to vLLM 0.19
 *     prefill_stats      the map at 10 or 11 that has the key num_computed_tokens  from vLLM 0.20
 */
import { Header, isInteger, isMap, MALFORMED, NIL, numberAt, skipValues } from './msgpack.js';

/** Why a frame is not a batch. `invalid_shape`: whole MessagePack, but not what vLLM sends. */
export type DecodeFault = 'empty' | 'truncated' | 'malformed' | 'trailing_bytes' | 'invalid_shape';

/** In the `computed` column: no prefill stats in this output. */
export const NO_PREFILL_STATS = -1;
/** In the `cached` column: no num_cached_tokens, as from vLLM 0.20 on. */
export const NO_CACHED_COUNT = -1;

const INITIAL_ROWS = 64;
/** Array and string header: what the usual way reads unchecked. */
const USUAL_HEAD_BYTES = 3 + 2;
/** Array header and 15 token ids of 5 bytes. */
const USUAL_TOKENS_BYTES = 1 + 15 * 5;
/** Position 0 is never that of an element. */
const UNUSUAL = 0;
const FOUR_NILS = 0xc0c0c0c0 | 0;
const INVALID_SHAPE = -3;
const COMPUTED_KEY = Buffer.from('num_computed_tokens', 'latin1');

export class OutputBatch {
  /** The frame that the id ranges point into. */
  bytes: Buffer = Buffer.alloc(0);
  /** The same bytes, to be read four at a time. */
  view: DataView = new DataView(new ArrayBuffer(0));
  engineIndex = 0;
  /** Number of outputs; the columns hold that many. */
  length = 0;
  hasSchedulerStats = false;
  finishedRequests: string[] = [];
  /** Prefill counts that were no whole number from 0 to 2^53 and are taken as 0. */
  invalidCounts = 0;

  idStart = new Uint32Array(INITIAL_ROWS);
  idEnd = new Uint32Array(INITIAL_ROWS);
  /** len(new_token_ids) */
  tokens = new Uint32Array(INITIAL_ROWS);
  /** 1 where the output carries a finish_reason. */
  finished = new Uint8Array(INITIAL_ROWS);
  /** prefill_stats.num_computed_tokens, or NO_PREFILL_STATS. */
  computed = new Float64Array(INITIAL_ROWS);
  /** num_cached_tokens with 0 for a negative one, or NO_CACHED_COUNT. */
  cached = new Float64Array(INITIAL_ROWS);

  readonly #header = new Header();
  /** Number of elements of the output being read. */
  #elements = 0;

  /** Fills this batch from `bytes[start..end)`; null when it was read, else why not (the columns are then void). */
  read(bytes: Buffer, start: number, end: number): DecodeFault | null {
    this.length = 0;
    this.hasSchedulerStats = false;
    this.invalidCounts = 0;
    if (this.bytes !== bytes) {
      this.bytes = bytes; // all frames of a chunk share it
      this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    }
    if (this.finishedRequests.length > 0) this.finishedRequests = [];
    if (start === end) return 'empty';
    const at = this.#readFields(bytes, start, end);
    if (at < 0) return faultOf(at);
    return at === end ? null : 'trailing_bytes';
  }

  #readFields(bytes: Buffer, start: number, end: number): number {
    const header = this.#header;
    if (!header.array(bytes, start, end)) return shapeFault(bytes, start, end);
    const fields = header.size;
    let at = header.at;
    if (fields === 0) return INVALID_SHAPE;
    let isUtilityOrWave = false;
    for (let field = 0; field < fields; field++) {
      const from = at;
      if (field === 1) {
        at = this.#readOutputs(bytes, from, end);
      } else {
        at = skipValues(bytes, from, end, 1);
        if (at < 0) return at;
        const byte = bytes[from] as number;
        if (field === 0) {
          const index = isInteger(byte) ? numberAt(bytes, from) : null;
          if (index === null || index < 0) return INVALID_SHAPE;
          this.engineIndex = index;
        } else if (byte !== NIL) {
          if (field === 2) this.hasSchedulerStats = true;
          else if (field === 5) at = this.#readFinishedRequests(bytes, from, end);
          else if (field === 4 || field === 6 || field === 7) isUtilityOrWave = true;
        }
      }
      if (at < 0) return at;
    }
    return isUtilityOrWave && this.length > 0 ? INVALID_SHAPE : at;
  }

  #readOutputs(bytes: Buffer, start: number, end: number): number {
    const header = this.#header;
    if (start < end && bytes[start] === NIL) return start + 1;
    if (!header.array(bytes, start, end)) return shapeFault(bytes, start, end);
    const count = header.size;
    let at = header.at;
    // An output is an array of a string and an array: three bytes at least.
    if (count * 3 > end - at) return shapeFault(bytes, start, end);
    if (count > this.idStart.length) this.#grow(count);
    for (let row = 0; row < count; row++) {
      at = this.#readOutput(bytes, at, end, row);
      if (at < 0) return at;
    }
    this.length = count;
    return at;
  }

  #readOutput(bytes: Buffer, start: number, end: number, row: number): number {
    let at = this.#readUsualHead(bytes, start, end, row);
    if (at === UNUSUAL) at = this.#readAnyHead(bytes, start, end, row);
    return at < 0 ? at : this.#readElements(bytes, at, end, row);
  }

  /**
   * Request id and tokens in the encodings that nearly all have: an id below 256 bytes, up to 15 positive token ids.
   * Halves the time of a batch against the general way, which this leaves the rest to. Returns the position of
   * element 2, or UNUSUAL.
   */
  #readUsualHead(bytes: Buffer, start: number, end: number, row: number): number {
    if (end - start < USUAL_HEAD_BYTES) return UNUSUAL;
    let at = start + 1;
    const head = bytes[start] as number;
    let elements = head & 0x0f;
    if (head === 0xdc) {
      elements = this.view.getUint16(at);
      at += 2;
    } else if ((head & 0xf0) !== 0x90) return UNUSUAL;
    const idHead = bytes[at++] as number;
    let idLength = idHead & 0x1f;
    if (idHead === 0xd9) idLength = bytes[at++] as number;
    else if ((idHead & 0xe0) !== 0xa0) return UNUSUAL;
    const idStart = at;
    at += idLength;
    if (elements < 2 || end - at < USUAL_TOKENS_BYTES) return UNUSUAL;
    const tokensHead = bytes[at++] as number;
    if ((tokensHead & 0xf0) !== 0x90) return UNUSUAL;
    const tokens = tokensHead & 0x0f;
    for (let token = 0; token < tokens; token++) {
      const byte = bytes[at] as number;
      if (byte < 0x80) at += 1;
      else if (byte === 0xcd) at += 3;
      else if (byte === 0xcc) at += 2;
      else if (byte === 0xce) at += 5;
      else return UNUSUAL;
    }
    this.idStart[row] = idStart;
    this.idEnd[row] = idStart + idLength;
    this.tokens[row] = tokens;
    this.#elements = elements;
    return at;
  }

  #readAnyHead(bytes: Buffer, start: number, end: number, row: number): number {
    const header = this.#header;
    if (!header.array(bytes, start, end)) return shapeFault(bytes, start, end);
    const elements = header.size;
    if (elements < 2) return shapeFault(bytes, start, end);
    this.#elements = elements;

    if (!header.string(bytes, header.at, end)) return shapeFault(bytes, start, end);
    const idStart = header.at;
    const idEnd = idStart + header.size;
    this.idStart[row] = idStart;
    this.idEnd[row] = idEnd;

    if (!header.array(bytes, idEnd, end)) return shapeFault(bytes, start, end);
    this.tokens[row] = header.size;
    return skipValues(bytes, header.at, end, header.size);
  }

  /** Everything from element 2 on. */
  #readElements(bytes: Buffer, start: number, end: number, row: number): number {
    const { view } = this;
    const elements = this.#elements;
    let at = start;
    this.finished[row] = 0;
    this.computed[row] = NO_PREFILL_STATS;
    this.cached[row] = NO_CACHED_COUNT;
    const finishAt = elements <= 9 ? 4 : 5;
    const cachedAt = elements <= 10 ? elements - 1 : 10;
    for (let element = 2; element < elements; element++) {
      if (at < end && bytes[at] === NIL) {
        // Most elements of most outputs, so four at once where there are four.
        const isRun = element + 4 <= elements && at + 4 <= end && view.getInt32(at) === FOUR_NILS;
        at += isRun ? 4 : 1;
        if (isRun) element += 3;
        continue;
      }
      const from = at;
      at = skipValues(bytes, from, end, 1);
      if (at < 0) return at;
      const byte = bytes[from] as number;
      // Five for a short array of a later version; no version has another integer there unless it is finished.
      if (element === finishAt || element === 5) {
        if (isInteger(byte)) this.finished[row] = 1;
      } else if (element >= 8 && element <= 11) {
        if (element === cachedAt && isInteger(byte)) {
          this.cached[row] = Math.max(numberAt(bytes, from) ?? 0, 0);
        } else if (element >= 10 && isMap(byte) && this.computed[row] === NO_PREFILL_STATS) {
          this.computed[row] = this.#readPrefillStats(bytes, from, end);
        }
      }
    }
    return at;
  }

  /** num_computed_tokens of the map at `start`, which is known to be whole; NO_PREFILL_STATS without that key. */
  #readPrefillStats(bytes: Buffer, start: number, end: number): number {
    const header = this.#header;
    header.map(bytes, start, end);
    let at = header.at;
    let computed = NO_PREFILL_STATS;
    for (let pairs = header.size; pairs > 0; pairs--) {
      const isString = header.string(bytes, at, end);
      const valueAt = isString ? header.at + header.size : skipValues(bytes, at, end, 1);
      if (isString && equalsAt(bytes, header.at, header.size, COMPUTED_KEY)) {
        computed = this.#tokenCount(numberAt(bytes, valueAt));
      }
      at = skipValues(bytes, valueAt, end, 1);
    }
    return computed;
  }

  #tokenCount(value: number | null): number {
    if (value !== null && value >= 0 && Number.isSafeInteger(value)) return value;
    this.invalidCounts++;
    return 0;
  }

  #readFinishedRequests(bytes: Buffer, start: number, end: number): number {
    const header = this.#header;
    if (!header.array(bytes, start, end)) return shapeFault(bytes, start, end);
    const count = header.size;
    let at = header.at;
    for (let i = 0; i < count; i++) {
      if (!header.string(bytes, at, end)) return INVALID_SHAPE;
      at = header.at + header.size;
      this.finishedRequests.push(bytes.toString('utf8', header.at, at));
    }
    return at;
  }

  /** Before the first row is written, so there is nothing to keep. */
  #grow(rows: number): void {
    const capacity = Math.max(rows, this.idStart.length * 2);
    this.idStart = new Uint32Array(capacity);
    this.idEnd = new Uint32Array(capacity);
    this.tokens = new Uint32Array(capacity);
    this.finished = new Uint8Array(capacity);
    this.computed = new Float64Array(capacity);
    this.cached = new Float64Array(capacity);
  }
}

/** Whole MessagePack of the wrong shape is a different fault from bytes that are no whole MessagePack. */
function shapeFault(bytes: Buffer, start: number, end: number): number {
  const after = skipValues(bytes, start, end, 1);
  return after < 0 ? after : INVALID_SHAPE;
}

function equalsAt(bytes: Buffer, at: number, length: number, expected: Buffer): boolean {
  if (length !== expected.length) return false;
  for (let i = 0; i < length; i++) if (bytes[at + i] !== expected[i]) return false;
  return true;
}

function faultOf(position: number): DecodeFault {
  if (position === INVALID_SHAPE) return 'invalid_shape';
  return position === MALFORMED ? 'malformed' : 'truncated';
}
