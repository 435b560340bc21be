/** ZMTP 3 byte streams put together frame by frame, and cut into chunks at will (RFC 23). */
import fc from 'fast-check';

export interface StreamFrame {
  readonly kind: 'message' | 'command';
  readonly body: Buffer;
  /** Written with the 9-byte header although 2 would do. */
  readonly long: boolean;
  readonly more: boolean;
}

export function greeting(mechanism = 'NULL', major = 3): Buffer {
  const bytes = Buffer.alloc(64);
  bytes.set([0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, major, 1]);
  bytes.write(mechanism, 12, 'latin1');
  return bytes;
}

export function frameBytes({ kind, body, long, more }: StreamFrame): Buffer {
  const isLong = long || body.length > 255;
  const head = Buffer.alloc(isLong ? 9 : 2);
  head[0] = (more ? 1 : 0) | (isLong ? 2 : 0) | (kind === 'command' ? 4 : 0);
  if (isLong) head.writeBigUInt64BE(BigInt(body.length), 1);
  else head[1] = body.length;
  return Buffer.concat([head, body]);
}

const body: fc.Arbitrary<Buffer> = fc
  .tuple(
    fc.oneof(
      { weight: 12, arbitrary: fc.nat(300) },
      { weight: 3, arbitrary: fc.constantFrom(0, 1, 254, 255, 256, 257) },
      { weight: 1, arbitrary: fc.constantFrom(4_095, 4_096, 4_097, 9_000, 30_000) },
    ),
    fc.nat(255),
  )
  .map(([length, seed]) =>
    Buffer.from(Array.from({ length }, (_, at) => (seed + at * 7 + (at >> 8)) & 0xff)),
  );

const message = fc.array(fc.tuple(body, fc.boolean()), { minLength: 1, maxLength: 5 }).map((frames) =>
  frames.map(
    ([bytes, long], index): StreamFrame => ({
      kind: 'message',
      body: bytes,
      long,
      more: index < frames.length - 1,
    }),
  ),
);
const command = fc
  .tuple(body, fc.boolean())
  .map(([bytes, long]): StreamFrame => ({ kind: 'command', body: bytes, long, more: false }));

/** Messages of one to five frames, commands between them and, now and then, between two frames of one. */
export const stream: fc.Arbitrary<StreamFrame[]> = fc
  .array(
    fc.oneof(
      { weight: 5, arbitrary: message },
      { weight: 2, arbitrary: command.map((frame) => [frame]) },
      {
        weight: 1,
        arbitrary: fc
          .tuple(message, command)
          .map(([[first, ...others], inside]) =>
            others.length > 0 ? [first as StreamFrame, inside, ...others] : [inside, first as StreamFrame],
          ),
      },
    ),
    { maxLength: 8 },
  )
  .map((parts) => parts.flat());

/** Sizes of chunks, used over and over until the bytes are gone; 0 is an empty chunk. */
export const chunkSizes: fc.Arbitrary<number[]> = fc.oneof(
  fc.array(fc.nat(12), { minLength: 1, maxLength: 20 }),
  fc.array(fc.oneof(fc.nat(12), fc.nat(400), fc.nat(5_000)), { minLength: 1, maxLength: 20 }),
  fc.constantFrom<number[]>([1], [2], [63, 1], [64], [1_000_000]),
);

export function chunksOf(bytes: Buffer, sizes: readonly number[]): Buffer[] {
  const chunks: Buffer[] = [];
  let at = 0;
  for (let i = 0; at < bytes.length; i++) {
    // All sizes may be 0.
    const size = i < bytes.length * 2 ? (sizes[i % sizes.length] as number) : bytes.length;
    chunks.push(bytes.subarray(at, at + size));
    at += size;
  }
  return chunks;
}
