/**
 * Walks MessagePack in place: lengths and positions only, no value is built. For ADDs, which hold prompts, and INIT;
 * batches are read by proxy/wasm/output-walker.ts. Everything else is read with @msgpack/msgpack, which tests also
 * hold against these functions.
 *
 * A position below zero is a failure, so a caller checks once at the end of a step. Nothing is read at or past
 * `end`, whatever the bytes claim.
 *
 * Hot code: `bytes[at] as number` stands where a bounds check against `end` came before.
 */

/** The bytes end before the value does. */
const TRUNCATED = -1;
/** 0xc1, which MessagePack never uses. */
export const MALFORMED = -2;

export const NIL = 0xc0;

export function isArray(byte: number): boolean {
  return (byte >= 0x90 && byte < 0xa0) || byte === 0xdc || byte === 0xdd;
}

/** Position behind `count` values that begin at `from`. Nesting costs no stack. */
export function skipValues(bytes: Buffer, from: number, end: number, count: number): number {
  let at = from;
  let left = count;
  while (left > 0) {
    // A value is at least one byte long, so a count that can't fit is known before it is walked.
    if (left > end - at) return TRUNCATED;
    left--;
    const byte = bytes[at++] as number;
    if (byte < 0x80 || byte >= 0xe0) continue;
    if (byte < 0x90) left += (byte & 0x0f) * 2;
    else if (byte < 0xa0) left += byte & 0x0f;
    else if (byte < 0xc0) at += byte & 0x1f;
    else {
      const width = FIXED_WIDTH[byte - 0xc0] as number;
      if (width >= 0) at += width;
      else if (width === COUNTED) {
        const sizeBytes = SIZE_BYTES[byte - 0xc0] as number;
        if (at + sizeBytes > end) return TRUNCATED;
        const size = bytes.readUIntBE(at, sizeBytes);
        at += sizeBytes;
        if (byte >= 0xde) left += size * 2;
        else if (byte >= 0xdc) left += size;
        else at += size + (byte >= 0xc7 && byte <= 0xc9 ? 1 : 0); // ext: a type byte before the data
      } else return MALFORMED;
    }
  }
  return at <= end ? at : TRUNCATED;
}

const COUNTED = -1;
const UNUSED = -2;
/** Bytes behind the first one, for 0xc0 … 0xdf. */
const FIXED_WIDTH = Int8Array.of(
  ...[0, UNUSED, 0, 0], // nil, never used, false, true
  ...[COUNTED, COUNTED, COUNTED], // bin 8 16 32
  ...[COUNTED, COUNTED, COUNTED], // ext 8 16 32
  ...[4, 8], // float 32 64
  ...[1, 2, 4, 8], // uint 8 16 32 64
  ...[1, 2, 4, 8], // int 8 16 32 64
  ...[2, 3, 5, 9, 17], // fixext 1 2 4 8 16
  ...[COUNTED, COUNTED, COUNTED], // str 8 16 32
  ...[COUNTED, COUNTED], // array 16 32
  ...[COUNTED, COUNTED], // map 16 32
);
/** Bytes of the count or length behind the first byte, for 0xc0 … 0xdf. */
const SIZE_BYTES = Int8Array.of(
  ...[0, 0, 0, 0, 1, 2, 4, 1, 2, 4, 0, 0, 0, 0, 0, 0],
  ...[0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2, 4],
);

/**
 * Reads one header: how many elements an array has, pairs a map, bytes a string. Not thread of the data path's
 * values but of its structure, so it is a cursor: `at` moves behind the header, `size` holds the number.
 */
export class Header {
  at = 0;
  size = 0;

  /** True when the value at `at` is an array (map, string); then `size` is set and `at` stands behind the header. */
  array(bytes: Buffer, at: number, end: number): boolean {
    return this.#read(bytes, at, end, 0x90, 0x0f, 0xdc, 0);
  }

  map(bytes: Buffer, at: number, end: number): boolean {
    return this.#read(bytes, at, end, 0x80, 0x0f, 0xde, 0);
  }

  string(bytes: Buffer, at: number, end: number): boolean {
    return this.#read(bytes, at, end, 0xa0, 0x1f, 0xda, 0xd9);
  }

  #read(
    bytes: Buffer,
    at: number,
    end: number,
    fix: number,
    mask: number,
    wide: number,
    narrow: number,
  ): boolean {
    this.at = TRUNCATED;
    if (at >= end) return false;
    const byte = bytes[at] as number;
    if ((byte & ~mask & 0xff) === fix) {
      this.size = byte & mask;
      this.at = at + 1;
      return true;
    }
    const sizeBytes = byte === wide ? 2 : byte === wide + 1 ? 4 : narrow !== 0 && byte === narrow ? 1 : 0;
    if (sizeBytes === 0) {
      this.at = MALFORMED;
      return false;
    }
    if (at + 1 + sizeBytes > end) return false;
    this.size = bytes.readUIntBE(at + 1, sizeBytes);
    this.at = at + 1 + sizeBytes;
    return true;
  }
}
