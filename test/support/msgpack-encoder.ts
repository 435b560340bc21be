/**
 * MessagePack written value by value, each in a width of one's choice. Real encoders always take the shortest
 * form; a reader must take them all. Every function returns the bytes of one whole value.
 */

/** The least bytes an integer, length or count takes; 0: in the first byte, where the value fits there. */
export type Width = 0 | 1 | 2 | 4 | 8;

const WIDTHS = [1, 2, 4, 8] as const;

export const NIL: Buffer = Buffer.of(0xc0);

export function bool(value: boolean): Buffer {
  return Buffer.of(value ? 0xc3 : 0xc2);
}

/** -2^63 … 2^64-1. `signed` writes a value that is not negative as int 8 … 64 (where it fits). */
export function int(value: number | bigint, width: Width = 0, signed = false): Buffer {
  const wide = BigInt(value);
  if (width === 0 && wide >= -32n && wide < 128n) return Buffer.of(Number(wide & 0xffn));
  for (const bytes of WIDTHS) {
    if (bytes < width) continue;
    const bits = BigInt(bytes * 8);
    const step = Math.log2(bytes);
    const fitsSigned = wide >= -(1n << (bits - 1n)) && wide < 1n << (bits - 1n);
    if ((wide < 0n || signed) && fitsSigned)
      return number(0xd0 + step, BigInt.asUintN(bytes * 8, wide), bytes);
    if (wide >= 0n && !(signed && bytes < 8) && wide < 1n << bits) return number(0xcc + step, wide, bytes);
  }
  throw new RangeError(`${wide} is no 64-bit integer`);
}

export function float(value: number, width: 4 | 8 = 8): Buffer {
  const bytes = Buffer.alloc(1 + width);
  bytes[0] = width === 4 ? 0xca : 0xcb;
  if (width === 4) bytes.writeFloatBE(value, 1);
  else bytes.writeDoubleBE(value, 1);
  return bytes;
}

/** `text` as it is when it is bytes: they need not be UTF-8. */
export function str(text: string | Uint8Array, width: Width = 0): Buffer {
  const bytes = Buffer.from(text as string);
  return Buffer.concat([header(bytes.length, width, 0xa0, 32, [0xd9, 0xda, 0xdb]), bytes]);
}

export function bin(bytes: Uint8Array, width: Width = 1): Buffer {
  return Buffer.concat([header(bytes.length, width, 0, 0, [0xc4, 0xc5, 0xc6]), bytes]);
}

export function array(items: readonly Buffer[], width: Width = 0): Buffer {
  return Buffer.concat([header(items.length, width, 0x90, 16, [null, 0xdc, 0xdd]), ...items]);
}

export function map(pairs: readonly (readonly [key: Buffer, value: Buffer])[], width: Width = 0): Buffer {
  return Buffer.concat([header(pairs.length, width, 0x80, 16, [null, 0xde, 0xdf]), ...pairs.flat()]);
}

/** `type` -128 … 127. Width 0 gives fixext for 1, 2, 4, 8 and 16 bytes. */
export function ext(type: number, data: Uint8Array, width: Width = 0): Buffer {
  const fixed = [1, 2, 4, 8, 16].indexOf(data.length);
  const head =
    width === 0 && fixed >= 0
      ? Buffer.of(0xd4 + fixed)
      : header(data.length, width, 0, 0, [0xc7, 0xc8, 0xc9]);
  return Buffer.concat([head, Buffer.of(type & 0xff), data]);
}

/** The first byte alone when `size` is below `fixedLimit`, else one of `wide` (1, 2, 4 bytes) and the size. */
function header(
  size: number,
  width: Width,
  fixed: number,
  fixedLimit: number,
  wide: readonly (number | null)[],
): Buffer {
  if (width === 0 && size < fixedLimit) return Buffer.of(fixed | size);
  for (const [index, first] of wide.entries()) {
    const bytes = WIDTHS[index] as number;
    const isWidest = index === wide.length - 1;
    if (first === null || (!isWidest && (bytes < width || size >= 2 ** (bytes * 8)))) continue;
    return number(first, BigInt(size), bytes);
  }
  throw new RangeError(`${size} does not fit`);
}

function number(first: number, value: bigint, bytes: number): Buffer {
  return Buffer.from([first, ...Buffer.from(value.toString(16).padStart(bytes * 2, '0'), 'hex')]);
}
