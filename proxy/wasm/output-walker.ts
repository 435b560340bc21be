/**
 * Reads EngineCoreOutputs, the first frame of a message on an output socket, where it lies in this module's memory.
 * AssemblyScript: TypeScript's syntax, compiled to WebAssembly by `npm run build`. proxy/vllm/output-walker.ts loads
 * it, proxy/vllm/output-batch.ts says what the numbers mean, test/parsing holds them against @msgpack/msgpack.
 *
 * What passes all day is a *plain* row: an output of a request known here that has nothing to say but its tokens. Plain
 * rows are summed; all others are listed for JavaScript to judge. An engine's batches repeat their ids in order, one
 * after the other finished and new ones at the end, so each request remembers which one came behind it:
 *
 *     batch n      a → b → c → d
 *     batch n+1    a → b       d        b is followed by c: does not match, d is looked up, b → d from now on
 *
 * Engines that take turns between sets of requests (pipeline parallelism) cost one look-up a batch.
 *
 * Positions of fields, by version of vLLM: protocol.md, "Outputs". In short, for an EngineCoreOutput of n elements:
 *
 *     0 request_id   1 new_token_ids   5 finish_reason (4 before 0.9.2)
 *     num_cached_tokens  an integer at 8 (n = 9), 9 (n = 10) or 10 (n >= 11)      up to vLLM 0.19
 *     prefill_stats      the map at 10 or 11 that has the key num_computed_tokens  from vLLM 0.20
 *
 * Nothing at or past `end` decides anything. A look past it is allowed for PADDING bytes, which are in memory.
 */

/** The slot of the request in flight that this id names, 0 for none. Knows whose requests are meant. */
declare function slotOf(start: i32, end: i32): i32;

// Positions below zero are failures, so that a caller checks once at the end of a step.
/** The bytes end before the value does. */
const TRUNCATED: i32 = -1;
/** 0xc1, which MessagePack never uses. */
const MALFORMED: i32 = -2;
/** Whole MessagePack, but not what vLLM sends. */
const INVALID_SHAPE: i32 = -3;
/** More rows to list than there is room for: nothing is said about the frame. */
const LIST_FULL: i32 = -4;

/** Usual rows are read without a look at the end; they are shorter than this: headers, id of 255, 15 tokens of 5. */
const USUAL_ROW_BYTES: i32 = 3 + 2 + 255 + 1 + 15 * 5;
/** Position 0 is never that of an element. */
const UNUSUAL: i32 = 0;
const NIL: i32 = 0xc0;
const EIGHT_NILS: u64 = (u64(0xc0c0c0c0) << 32) | u64(0xc0c0c0c0);

// A request's slot. Its address names it.
const SLOT_KEY: usize = 0; // length of the id, and whose request it is << 8; 0: free
const SLOT_NEXT: usize = 4; // the slot that came behind this one's
const SLOT_FLAGS: usize = 8;
const SLOT_STAMP: usize = 12; // the reading that last listed this request
const SLOT_ID: usize = 16;
const SELECTED: i32 = 1;
const PROMPT_COUNTED: i32 = 2;

// A listed row.
const ROW_BYTES: usize = 40;
const ROW_SLOT: usize = 0;
const ROW_ID_START: usize = 4;
const ROW_ID_END: usize = 8;
const ROW_TOKENS: usize = 12;
const ROW_FINISHED: usize = 16;
const ROW_COMPUTED: usize = 24; // f64; -1: no prefill stats
const ROW_CACHED: usize = 32; // f64; -1: no num_cached_tokens

// What a reading found.
const RESULT: usize = memory.data(64, 8);
const RESULT_ENGINE: usize = 0; // f64
const RESULT_PLAIN_TOKENS: usize = 8; // f64
const RESULT_ROWS: usize = 16;
const RESULT_LISTED: usize = 20;
const RESULT_PLAIN_UNTRACKED: usize = 24;
const RESULT_HAS_STATS: usize = 28;
const RESULT_INVALID_COUNTS: usize = 32;
const RESULT_FINISHED_COUNT: usize = 36; // finished_requests
const RESULT_FINISHED_AT: usize = 40;
const RESULT_FIRST: usize = 44; // slot of the first row, for the next reading

// What stands behind the scheduler stats; see `learnTail`.
const MAX_TAIL_BYTES: i32 = 64;
const TAIL: usize = memory.data(64, 8);
const FLOAT64: i32 = 0xcb;
let tailLength: i32 = 0;
let tailFields: i32 = 0;

/** num_computed_tokens */
const COMPUTED_KEY: usize = memory.data<u8>([
  0x6e, 0x75, 0x6d, 0x5f, 0x63, 0x6f, 0x6d, 0x70, 0x75, 0x74, 0x65, 0x64, 0x5f, 0x74, 0x6f, 0x6b, 0x65, 0x6e,
  0x73,
]);
const COMPUTED_KEY_LENGTH: i32 = 19;

let stamp: i32 = 0;
let list: usize = 0;
let capacity: i32 = 0;
let listed: i32 = 0;
let plainTokens: f64 = 0;
let plainUntracked: i32 = 0;
let invalidCounts: i32 = 0;
let owner: i32 = 0;

// The chain of requests.
let first: usize = 0;
let expected: usize = 0;
let previous: usize = 0;
let previousFinished: bool = false;
/** The last request of this batch that is still in flight; finished ones leave the chain. */
let last: usize = 0;

// The row that is being read.
let rowElements: i32 = 0;
let rowIdStart: i32 = 0;
let rowIdEnd: i32 = 0;
let rowTokens: i32 = 0;

// The header that was read last: where its contents begin, and how many elements, pairs or bytes they are.
let headAt: i32 = 0;
let headSize: i64 = 0;

/** Address of the results. */
export function resultAt(): usize {
  return RESULT;
}

/**
 * Reads the frame at `start` up to `end`. `whose`: number of the frontend client, << 8. `firstSlot`: what the last
 * reading of the same connection left as first. Rows that are not plain go to `rows`, `room` of them at most.
 * Returns 0, or the failure; then nothing else holds.
 */
export function read(start: i32, end: i32, whose: i32, firstSlot: i32, rows: i32, room: i32): i32 {
  stamp++;
  owner = whose;
  list = rows;
  capacity = room;
  listed = 0;
  plainTokens = 0;
  plainUntracked = 0;
  invalidCounts = 0;
  expected = firstSlot;
  first = 0;
  previous = 0;
  last = 0;
  store<i32>(RESULT + RESULT_ROWS, 0);
  store<i32>(RESULT + RESULT_HAS_STATS, 0);
  store<i32>(RESULT + RESULT_FINISHED_COUNT, 0);
  const at = readFields(start, end);
  if (at < 0) return at;
  store<i32>(RESULT + RESULT_LISTED, listed);
  store<f64>(RESULT + RESULT_PLAIN_TOKENS, plainTokens);
  store<i32>(RESULT + RESULT_PLAIN_UNTRACKED, plainUntracked);
  store<i32>(RESULT + RESULT_INVALID_COUNTS, invalidCounts);
  store<i32>(RESULT + RESULT_FIRST, first);
  return end - at;
}

/** Length of the string at `at`, one of those in finished_requests; -1 when there is none. */
export function stringLength(at: i32, end: i32): i32 {
  return stringHeader(at, end) ? i32(headSize) : -1;
}

/** Where the string of the last `stringLength` begins. */
export function stringStart(): i32 {
  return headAt;
}

function readFields(start: i32, end: i32): i32 {
  if (!arrayHeader(start, end)) return shapeFault(start, end);
  const fields = headSize;
  let at = headAt;
  if (fields === 0) return INVALID_SHAPE;
  let isUtilityOrWave = false;
  let rows = 0;
  let statsEnd = 0;
  let isUsualTail = true;
  for (let field: i64 = 0; field < fields; field++) {
    const from = at;
    if (field === 1) {
      at = readOutputs(from, end);
      rows = load<i32>(RESULT + RESULT_ROWS);
    } else {
      if (field === 2 && rows > 0 && endsAsUsual(from, end, fields)) {
        store<i32>(RESULT + RESULT_HAS_STATS, 1);
        return end;
      }
      at = skipValues(from, end, 1);
      if (at < 0) return at;
      const byte = i32(load<u8>(from));
      if (field === 0) {
        const index = isInteger(byte) ? numberAt(from) : -1;
        if (index < 0) return INVALID_SHAPE;
        store<f64>(RESULT + RESULT_ENGINE, index);
      } else if (field === 2) {
        if (byte !== NIL) store<i32>(RESULT + RESULT_HAS_STATS, 1);
        isUsualTail = isMap(byte);
        statsEnd = at;
      } else if (field === 3) {
        isUsualTail = isUsualTail && byte === FLOAT64;
      } else if (byte !== NIL) {
        if (field < 8 || (byte & 0xe0) !== 0xa0) isUsualTail = false;
        if (field === 5) at = readFinishedRequests(from, end);
        else if (field === 4 || field === 6 || field === 7) isUtilityOrWave = true;
      }
    }
    if (at < 0) return at;
  }
  if (isUtilityOrWave && rows > 0) return INVALID_SHAPE;
  if (isUsualTail && fields >= 8 && fields < 0x80 && rows > 0) learnTail(statsEnd, at, i32(fields));
  return at;
}

/**
 * Scheduler stats are some 85 values of 550 bytes, in each batch, and nothing in them is counted. What stands behind
 * them hardly ever differs but for the timestamp:
 *
 *     timestamp            utility_output finished_requests wave_complete start_wave   later fields
 *     cb + 8 bytes         c0             c0                c0            c0           such as a7 "default"
 *
 * A frame whose last bytes are those of the last one, timestamp aside, can't be divided in another way: 0xc0 does not
 * occur in UTF-8, so that no string holds those bytes; four of them end no wave number below 3 · 10⁹; and a
 * timestamp is a float of 64 bits always. So the stats end before them, and needn't be walked.
 */
function learnTail(start: i32, end: i32, fields: i32): void {
  tailLength = 0;
  if (end - start > MAX_TAIL_BYTES) return;
  memory.copy(TAIL, start, end - start);
  tailLength = end - start;
  tailFields = fields;
}

function endsAsUsual(start: i32, end: i32, fields: i64): bool {
  const tail = end - tailLength;
  if (tailLength === 0 || fields !== i64(tailFields) || start >= tail) return false;
  if (!isMap(i32(load<u8>(start))) || i32(load<u8>(tail)) !== FLOAT64) return false;
  return equal(tail + 9, i32(TAIL) + 9, tailLength - 9);
}

function readOutputs(start: i32, end: i32): i32 {
  if (start < end && i32(load<u8>(start)) === NIL) return start + 1;
  if (!arrayHeader(start, end)) return shapeFault(start, end);
  const count = headSize;
  let at = headAt;
  // An output is an array of a string and an array: three bytes at least.
  if (count * 3 > i64(end - at)) return shapeFault(start, end);
  for (let row: i32 = 0; row < i32(count); row++) {
    const from = at;
    at = readUsualHead(from, end);
    if (at === UNUSUAL) at = readAnyHead(from, end);
    if (at < 0) return at;
    at = readElements(at, end);
    if (at < 0) return at;
  }
  store<i32>(RESULT + RESULT_ROWS, i32(count));
  return at;
}

/** Request id and tokens in the encodings that nearly all have. Position of element 2, or UNUSUAL. */
function readUsualHead(start: i32, end: i32): i32 {
  if (end - start < USUAL_ROW_BYTES) return UNUSUAL;
  let at = start + 1;
  const head = i32(load<u8>(start));
  let elements = head & 0x0f;
  if (head === 0xdc) {
    elements = i32(bswap<u16>(load<u16>(at)));
    at += 2;
  } else if ((head & 0xf0) !== 0x90) return UNUSUAL;
  if (elements < 2) return UNUSUAL;
  const idHead = i32(load<u8>(at++));
  let idLength = idHead & 0x1f;
  if (idHead === 0xd9) idLength = i32(load<u8>(at++));
  else if ((idHead & 0xe0) !== 0xa0) return UNUSUAL;
  rowIdStart = at;
  at += idLength;
  rowIdEnd = at;
  const tokensHead = i32(load<u8>(at++));
  if ((tokensHead & 0xf0) !== 0x90) return UNUSUAL;
  const tokens = tokensHead & 0x0f;
  for (let token = 0; token < tokens; token++) {
    const byte = i32(load<u8>(at));
    if (byte < 0x80) at += 1;
    else if (byte === 0xcd) at += 3;
    else if (byte === 0xcc) at += 2;
    else if (byte === 0xce) at += 5;
    else return UNUSUAL;
  }
  rowTokens = tokens;
  rowElements = elements;
  return at;
}

function readAnyHead(start: i32, end: i32): i32 {
  if (!arrayHeader(start, end)) return shapeFault(start, end);
  if (headSize < 2) return shapeFault(start, end);
  // No more elements than bytes, or the walk fails.
  rowElements = i32(min<i64>(headSize, i64(end)));
  if (!stringHeader(headAt, end)) return shapeFault(start, end);
  if (i64(headAt) + headSize > i64(end)) return TRUNCATED;
  rowIdStart = headAt;
  rowIdEnd = headAt + i32(headSize);
  if (!arrayHeader(rowIdEnd, end)) return shapeFault(start, end);
  if (headSize > i64(end)) return TRUNCATED;
  rowTokens = i32(headSize);
  return skipValues(headAt, end, headSize);
}

/** Everything from element 2 on, and the judgement of the row. */
function readElements(start: i32, end: i32): i32 {
  let at = start;
  let finished = false;
  let computed: f64 = -1;
  let cached: f64 = -1;
  const elements = rowElements;
  const finishAt = elements <= 9 ? 4 : 5;
  const cachedAt = elements <= 10 ? elements - 1 : 10;
  for (let element = 2; element < elements; ) {
    // Most elements of most outputs are nil: eight at a time.
    const others = load<u64>(at) ^ EIGHT_NILS;
    const run = min(others === 0 ? 8 : i32(ctz(others)) >> 3, min(elements - element, end - at));
    if (run > 0) {
      at += run;
      element += run;
      continue;
    }
    if (at >= end) return TRUNCATED;
    const from = at;
    const byte = i32(load<u8>(from));
    at = byte < 0x80 ? at + 1 : skipValues(from, end, 1);
    if (at < 0) return at;
    // Five for a short array of a later version; no version has another integer there unless it is finished.
    if (element === finishAt || element === 5) {
      if (isInteger(byte)) finished = true;
    } else if (element >= 8 && element <= 11) {
      if (element === cachedAt && isInteger(byte)) cached = max(numberAt(from), 0);
      else if (element >= 10 && isMap(byte) && computed === -1) computed = readPrefillStats(from, end);
    }
    element++;
  }
  const slot = findSlot();
  if (slot !== 0) {
    if (previous !== 0 && !previousFinished) last = previous;
    if (last === 0) first = slot;
    else store<u32>(last + SLOT_NEXT, u32(slot));
    previous = slot;
    previousFinished = finished;
    expected = load<u32>(slot + SLOT_NEXT);
    const flags = load<i32>(slot + SLOT_FLAGS);
    if (!finished && load<i32>(slot + SLOT_STAMP) !== stamp) {
      if ((flags & SELECTED) === 0) {
        plainUntracked++;
        return at;
      }
      if (computed === -1 && (cached === -1 || (flags & PROMPT_COUNTED) !== 0)) {
        plainTokens += f64(rowTokens);
        return at;
      }
    }
    // What JavaScript makes of this row is not known yet, so whatever follows for the same request goes there too.
    store<i32>(slot + SLOT_STAMP, stamp);
  }
  if (listed === capacity) return LIST_FULL;
  const row = list + usize(listed++) * ROW_BYTES;
  store<u32>(row + ROW_SLOT, u32(slot));
  store<i32>(row + ROW_ID_START, rowIdStart);
  store<i32>(row + ROW_ID_END, rowIdEnd);
  store<i32>(row + ROW_TOKENS, rowTokens);
  store<i32>(row + ROW_FINISHED, i32(finished));
  store<f64>(row + ROW_COMPUTED, computed);
  store<f64>(row + ROW_CACHED, cached);
  return at;
}

function findSlot(): usize {
  const length = rowIdEnd - rowIdStart;
  if (expected !== 0 && length < 0x100 && load<i32>(expected + SLOT_KEY) === (owner | length)) {
    if (equal(rowIdStart, i32(expected + SLOT_ID), length)) return expected;
  }
  return slotOf(rowIdStart, rowIdEnd);
}

/** num_computed_tokens of the map at `start`, which is known to be whole; -1 without that key. */
function readPrefillStats(start: i32, end: i32): f64 {
  readHeader(start, end, 0x80, 0x0f, 0xde, 0);
  let at = headAt;
  let computed: f64 = -1;
  for (let pairs = headSize; pairs > 0; pairs--) {
    let valueAt: i32;
    if (stringHeader(at, end)) {
      valueAt = headAt + i32(headSize);
      if (headSize === COMPUTED_KEY_LENGTH && equal(headAt, i32(COMPUTED_KEY), COMPUTED_KEY_LENGTH)) {
        computed = tokenCount(numberAt(valueAt));
      }
    } else {
      valueAt = skipValues(at, end, 1);
    }
    at = skipValues(valueAt, end, 1);
  }
  return computed;
}

/** A whole number from 0 to 2⁵³ - 1; anything else is taken as 0. */
function tokenCount(value: f64): f64 {
  if (value >= 0 && value <= 9007199254740991 && value === Math.floor(value)) return value;
  invalidCounts++;
  return 0;
}

function readFinishedRequests(start: i32, end: i32): i32 {
  if (!arrayHeader(start, end)) return shapeFault(start, end);
  const count = headSize;
  let at = headAt;
  store<i32>(RESULT + RESULT_FINISHED_COUNT, i32(count));
  store<i32>(RESULT + RESULT_FINISHED_AT, at);
  for (let i: i64 = 0; i < count; i++) {
    if (!stringHeader(at, end)) return INVALID_SHAPE;
    at = headAt + i32(headSize);
  }
  return at;
}

/** Whole MessagePack of the wrong shape is a different fault from bytes that are no whole MessagePack. */
function shapeFault(start: i32, end: i32): i32 {
  const after = skipValues(start, end, 1);
  return after < 0 ? after : INVALID_SHAPE;
}

function equal(a: i32, b: i32, length: i32): bool {
  if (length < 8) {
    for (let i = 0; i < length; i++) if (load<u8>(a + i) !== load<u8>(b + i)) return false;
    return true;
  }
  // From the end, where ids differ first; the last eight bytes may overlap those before them.
  const lastEight = length - 8;
  if (load<u64>(a + lastEight) !== load<u64>(b + lastEight)) return false;
  for (let i = 0; i < lastEight; i += 8) if (load<u64>(a + i) !== load<u64>(b + i)) return false;
  return true;
}

function isInteger(byte: i32): bool {
  return byte < 0x80 || byte >= 0xe0 || (byte >= 0xcc && byte <= 0xd3);
}

function isMap(byte: i32): bool {
  return (byte & 0xf0) === 0x80 || byte === 0xde || byte === 0xdf;
}

function arrayHeader(at: i32, end: i32): bool {
  return readHeader(at, end, 0x90, 0x0f, 0xdc, 0);
}

function stringHeader(at: i32, end: i32): bool {
  return readHeader(at, end, 0xa0, 0x1f, 0xda, 0xd9);
}

/** True when a value of the asked kind begins at `at`; then headAt and headSize hold. */
function readHeader(at: i32, end: i32, fix: i32, mask: i32, wide: i32, narrow: i32): bool {
  if (at >= end) return false;
  const byte = i32(load<u8>(at));
  if ((byte & ~mask) === fix) {
    headSize = i64(byte & mask);
    headAt = at + 1;
    return true;
  }
  const sizeBytes = byte === wide ? 2 : byte === wide + 1 ? 4 : narrow !== 0 && byte === narrow ? 1 : 0;
  if (sizeBytes === 0 || at + 1 + sizeBytes > end) return false;
  headSize = sizeAt(at + 1, sizeBytes);
  headAt = at + 1 + sizeBytes;
  return true;
}

function sizeAt(at: i32, bytes: i32): i64 {
  if (bytes === 1) return i64(load<u8>(at));
  if (bytes === 2) return i64(bswap<u16>(load<u16>(at)));
  return i64(bswap<u32>(load<u32>(at)));
}

// For first bytes 0xc0 … 0xdf.
const COUNTED: i32 = -1;
/** Bytes behind the first one; -1: as many as a count says, -2: never used. */
const FIXED_WIDTH: usize = memory.data<i8>([
  0, -2, 0, 0, -1, -1, -1, -1, -1, -1, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17, -1, -1, -1, -1, -1, -1,
  -1,
]);
/** Bytes of that count. */
const SIZE_BYTES: usize = memory.data<i8>([
  0, 0, 0, 0, 1, 2, 4, 1, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2, 4,
]);

/** Position behind `count` values that begin at `from`. Nesting costs no stack. */
function skipValues(from: i32, end: i32, count: i64): i32 {
  let at = from;
  let left = count;
  while (left > 0) {
    // A value is at least one byte long, so a count that can't fit is known before it is walked.
    if (left > i64(end - at)) return TRUNCATED;
    left--;
    const byte = i32(load<u8>(at++));
    if (byte < 0x80 || byte >= 0xe0) continue;
    if (byte < 0x90) left += i64((byte & 0x0f) * 2);
    else if (byte < 0xa0) left += i64(byte & 0x0f);
    else if (byte < 0xc0) at += byte & 0x1f;
    else {
      const width = i32(load<i8>(FIXED_WIDTH + usize(byte - 0xc0)));
      if (width >= 0) at += width;
      else if (width === COUNTED) {
        const sizeBytes = i32(load<i8>(SIZE_BYTES + usize(byte - 0xc0)));
        if (at + sizeBytes > end) return TRUNCATED;
        const size = sizeAt(at, sizeBytes);
        at += sizeBytes;
        if (byte >= 0xde) left += size * 2;
        else if (byte >= 0xdc) left += size;
        else {
          if (size >= i64(end)) return TRUNCATED;
          at += i32(size) + (byte >= 0xc7 && byte <= 0xc9 ? 1 : 0); // ext: a type byte before the data
        }
      } else return MALFORMED;
    }
  }
  return at <= end ? at : TRUNCATED;
}

/** The number at `at`, any integer or float width, known to be whole; NaN when something else stands there. */
function numberAt(at: i32): f64 {
  const byte = i32(load<u8>(at++));
  if (byte < 0x80) return f64(byte);
  if (byte >= 0xe0) return f64(byte - 0x100);
  switch (byte) {
    case 0xca:
      return f64(reinterpret<f32>(bswap<u32>(load<u32>(at))));
    case 0xcb:
      return reinterpret<f64>(bswap<u64>(load<u64>(at)));
    case 0xcc:
      return f64(load<u8>(at));
    case 0xcd:
      return f64(bswap<u16>(load<u16>(at)));
    case 0xce:
      return f64(bswap<u32>(load<u32>(at)));
    case 0xcf:
      return f64(bswap<u64>(load<u64>(at)));
    case 0xd0:
      return f64(load<i8>(at));
    case 0xd1:
      return f64(i16(bswap<u16>(load<u16>(at))));
    case 0xd2:
      return f64(i32(bswap<u32>(load<u32>(at))));
    case 0xd3:
      return f64(i64(bswap<u64>(load<u64>(at))));
    default:
      return NaN;
  }
}
