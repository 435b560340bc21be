/** fast-check arbitraries for MessagePack bytes in every width, and the oracle that reads them. */
import { Decoder, ExtData } from '@msgpack/msgpack';
import fc from 'fast-check';
import * as mp from '../support/msgpack-encoder.js';

export const width = fc.constantFrom<mp.Width>(0, 0, 0, 1, 2, 4, 8);

/** Integers around every limit of a width, 64 bits and more than 2^53 included. */
const integerValue: fc.Arbitrary<bigint> = fc.oneof(
  fc.integer({ min: -40, max: 300 }).map(BigInt),
  fc.bigInt({ min: -(1n << 63n), max: (1n << 64n) - 1n }),
  fc
    .tuple(fc.constantFrom(7n, 8n, 15n, 16n, 31n, 32n, 53n, 63n), fc.integer({ min: -2, max: 2 }))
    .map(([bits, off]) => (1n << bits) + BigInt(off)),
);

export const integer: fc.Arbitrary<Buffer> = fc
  .tuple(integerValue, width, fc.boolean())
  .map(([value, bytes, signed]) => mp.int(value, bytes, signed));

/** Never whole: the oracle can't tell 3.0 from 3. */
export const fraction: fc.Arbitrary<Buffer> = fc
  .tuple(fc.integer({ min: -1_000, max: 1_000 }), fc.constantFrom<4 | 8>(4, 8))
  .map(([value, bytes]) => mp.float(value + 0.5, bytes));

export function text(
  options: fc.StringConstraints = { maxLength: 40, unit: 'grapheme' },
): fc.Arbitrary<Buffer> {
  return fc.tuple(fc.string(options), width).map(([value, bytes]) => mp.str(value, bytes));
}

const blob = fc.uint8Array({ maxLength: 20 });
const leaf: fc.Arbitrary<Buffer> = fc.oneof(
  fc.constant(mp.NIL),
  fc.boolean().map(mp.bool),
  integer,
  fraction,
  text(),
  fc.tuple(blob, width).map(([bytes, size]) => mp.bin(bytes, size)),
  fc
    .tuple(fc.integer({ min: -128, max: 127 }), blob, width)
    .map(([type, bytes, size]) => mp.ext(type, bytes, size)),
);

/** Seldom more than the 15 elements whose number fits in a first byte. */
function several<T>(item: fc.Arbitrary<T>): fc.Arbitrary<T[]> {
  return fc.oneof(
    { weight: 20, arbitrary: fc.array(item, { maxLength: 4 }) },
    { weight: 1, arbitrary: fc.array(item, { minLength: 14, maxLength: 18 }) },
  );
}

/** Any value, nested up to three deep. Map keys are any leaf as well. */
export const value: fc.Arbitrary<Buffer> = fc.letrec<{ value: Buffer; array: Buffer; map: Buffer }>(
  (tie) => ({
    value: fc.oneof(
      { maxDepth: 3 },
      { weight: 8, arbitrary: leaf },
      { weight: 1, arbitrary: tie('array') },
      { weight: 1, arbitrary: tie('map') },
    ),
    array: fc.tuple(several(tie('value')), width).map(([items, size]) => mp.array(items, size)),
    map: fc.tuple(several(fc.tuple(leaf, tie('value'))), width).map(([pairs, size]) => mp.map(pairs, size)),
  }),
).value;

/** `refused`: @msgpack/msgpack takes no key `__proto__`, so it says nothing about these bytes. */
export type Whole =
  | { readonly value: unknown }
  | { readonly fault: 'truncated' | 'malformed' | 'trailing_bytes' | 'refused' };

/**
 * What @msgpack/msgpack makes of `bytes`: 64-bit integers as bigint, ext as ExtData, keys that are no strings in a
 * form that no string has.
 */
export function decodeWhole(bytes: Uint8Array): Whole {
  const most = bytes.length; // so that a claimed count makes no array of that size
  const decoder = new Decoder({
    useBigInt64: true,
    maxArrayLength: most,
    maxMapLength: most,
    extensionCodec: { tryToEncode: () => null, decode: (data, type) => new ExtData(type, data) },
    mapKeyConverter: (key) => (typeof key === 'string' ? key : `\0${typeof key} ${String(key)}`),
  });
  try {
    return { value: decoder.decode(bytes) };
  } catch (error) {
    const { message } = error as Error;
    if (message.startsWith('Extra ')) return { fault: 'trailing_bytes' };
    if (message.startsWith('Unrecognized type byte')) return { fault: 'malformed' };
    if (message.includes('__proto__')) return { fault: 'refused' };
    if (error instanceof RangeError || /^Max length exceeded/.test(message)) return { fault: 'truncated' };
    throw error;
  }
}

export function isInteger(value: unknown): value is number | bigint {
  return typeof value === 'bigint' || Number.isInteger(value);
}

export function isMap(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && Object.getPrototypeOf(value) === Object.prototype;
}
