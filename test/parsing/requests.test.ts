import { encode } from '@msgpack/msgpack';
import test, { type ExecutionContext } from 'ava';
import fc from 'fast-check';
import { ADD_PREFIX_BYTES, readAbort, readAdd } from '../../proxy/vllm/requests.js';
import * as mp from '../support/msgpack-encoder.js';
import { budget, isComplete, same } from './budget.js';
import { guardedBytes } from './guarded-bytes.js';
import { decodeWhole, integer, text, value, width } from './msgpack-values.js';

/** Reads `bytes` with other bytes around them; what these are must not show in the answer. */
function anywhere<T>(
  t: ExecutionContext,
  read: (bytes: Buffer, start: number, end: number) => T,
  bytes: Uint8Array,
): T {
  const [first, ...others] = [0x00, 0x90, 0xa1, 0xff].map((poison) => {
    const around = Buffer.alloc(20, poison);
    const end = 20 + bytes.length;
    return read(guardedBytes(Buffer.concat([around, bytes, around]), end), 20, end);
  });
  for (const other of others) same(t, other, first);
  return first as T;
}

/** The array's elements that are whole in the first `end` bytes decide; null where it is no ADD. */
function interpretAdd(payload: unknown): { id: string; promptLength: number } | null {
  if (!Array.isArray(payload) || payload.length < 2) return null;
  const [id, prompt] = payload;
  if (typeof id !== 'string' || !(prompt === null || Array.isArray(prompt))) return null;
  return { id, promptLength: prompt?.length ?? 0 };
}

const prompt = fc.oneof(
  {
    weight: 4,
    arbitrary: fc
      .tuple(fc.array(integer, { maxLength: 20 }), width)
      .map(([ids, bytes]) => mp.array(ids, bytes)),
  },
  { weight: 2, arbitrary: fc.constant(mp.NIL) },
  value,
);
const add = fc
  .tuple(
    fc.oneof({ weight: 8, arbitrary: text() }, value),
    prompt,
    fc.array(value, { maxLength: 14 }),
    width,
    fc.nat(16),
  )
  .map(([id, tokens, more, bytes, count]) => mp.array([id, tokens, ...more].slice(0, count + 1), bytes));

test('an ADD gives its id and the length of its prompt, in any width, whatever else it holds', (t) => {
  let added = 0;
  const details = fc.check(
    fc.property(add, (bytes) => {
      const whole = decodeWhole(bytes);
      if ('fault' in whole) return;
      const expected = interpretAdd(whole.value);
      if (expected !== null) added++;
      same(t, anywhere(t, readAdd, bytes), expected ?? 'invalid_shape');
    }),
    budget(2),
  );
  if (isComplete(details)) t.true(added > 100);
});

test('an ADD that is cut behind the head of its prompt reads as the whole one, cut before it is truncated', (t) => {
  fc.assert(
    fc.property(
      text(),
      width,
      fc.array(fc.nat(70_000), { maxLength: 40 }),
      width,
      fc.nat(),
      (id, outer, ids, inner, at) => {
        const tokens = mp.array(
          ids.map((token) => mp.int(token)),
          inner,
        );
        const head = mp.array([id, tokens, mp.NIL], outer).length - 1 - tokens.length;
        const tokensHead =
          tokens.length - mp.array(ids.map((token) => mp.int(token))).length + (ids.length < 16 ? 1 : 3);
        const bytes = mp.array([id, tokens, mp.NIL], outer);
        const length = 1 + (at % bytes.length);
        const reading = anywhere(t, readAdd, bytes.subarray(0, length));
        same(t, reading, length < head + tokensHead ? 'truncated' : readAdd(bytes, 0, bytes.length));
      },
    ),
    budget(2),
  );
});

test('the first 16 KiB are enough for a prompt of a million tokens', (t) => {
  const ids = Array.from({ length: 1_000_000 }, (_, index) => index % 200);
  const bytes = Buffer.from(encode(['chatcmpl-1', ids, null, 'more']));
  t.deepEqual(readAdd(bytes, 0, ADD_PREFIX_BYTES), { id: 'chatcmpl-1', promptLength: 1_000_000 });
});

test('an id that is longer than the prefix is reported as truncated, not as another id', (t) => {
  const bytes = Buffer.from(encode(['x'.repeat(ADD_PREFIX_BYTES), []]));
  t.is(readAdd(bytes, 0, ADD_PREFIX_BYTES), 'truncated');
});

const abort = fc
  .tuple(fc.array(fc.oneof({ weight: 20, arbitrary: text() }, value), { maxLength: 18 }), width)
  .map(([ids, bytes]) => mp.array(ids, bytes));

test('an ABORT gives its ids, in any width; anything but a list of strings is no ABORT', (t) => {
  fc.assert(
    fc.property(fc.oneof({ weight: 5, arbitrary: abort }, value), (bytes) => {
      const whole = decodeWhole(bytes);
      if ('fault' in whole) return;
      const ids = whole.value;
      const isAbort = Array.isArray(ids) && ids.every((id) => typeof id === 'string');
      same(t, anywhere(t, readAbort, bytes), isAbort ? ids : 'invalid_shape');
    }),
    budget(1),
  );
});

test('an ABORT cut anywhere is truncated, one with anything behind it has trailing bytes', (t) => {
  fc.assert(
    fc.property(abort, fc.nat(), fc.uint8Array({ minLength: 1, maxLength: 4 }), (bytes, at, tail) => {
      const length = at % bytes.length;
      same(t, anywhere(t, readAbort, bytes.subarray(0, length)), length === 0 ? 'empty' : 'truncated');
      same(t, anywhere(t, readAbort, Buffer.concat([bytes, tail])), 'trailing_bytes');
    }),
    budget(1),
  );
});

test('for any bytes neither reader throws or reads past the end', (t) => {
  const head = fc.constantFrom(
    [],
    [0x92],
    [0x92, 0xa1, 0x61],
    [0x91, 0xdb],
    [0xdd, 0xff],
    [0x92, 0xa1, 0x61, 0xdd],
  );
  fc.assert(
    fc.property(head, fc.uint8Array({ maxLength: 30 }), (start, rest) => {
      const bytes = Buffer.from([...start, ...rest]);
      const added = anywhere(t, readAdd, bytes);
      const aborted = anywhere(t, readAbort, bytes);
      const whole = decodeWhole(bytes);
      if (!('fault' in whole)) {
        t.is(typeof added === 'string', interpretAdd(whole.value) === null);
        t.is(
          typeof aborted === 'string',
          !Array.isArray(whole.value) || whole.value.some((id) => typeof id !== 'string'),
        );
      } else if (whole.fault !== 'refused') {
        t.is(typeof aborted, 'string', `${whole.fault}: ${bytes.toString('hex')}`);
      }
    }),
    budget(2, 10_000),
  );
});

test('T21: an empty payload, 0xc1 and a claimed count have faults of their own', (t) => {
  const empty = Buffer.alloc(0);
  t.is(readAdd(empty, 0, 0), 'empty');
  t.is(readAbort(empty, 0, 0), 'empty');
  const cases: [string, string, Buffer][] = [
    ['malformed', 'malformed', Buffer.of(0xc1)],
    ['truncated', 'truncated', Buffer.of(0xdd, 0xff, 0xff, 0xff, 0xff)],
    ['truncated', 'truncated', Buffer.of(0x92, 0xdb, 0xff, 0xff, 0xff, 0xff)],
    ['invalid_shape', 'invalid_shape', Buffer.of(0x80)],
    ['invalid_shape', 'invalid_shape', Buffer.of(0x92, 0x01, 0x90)],
  ];
  for (const [added, aborted, bytes] of cases) {
    t.deepEqual([anywhere(t, readAdd, bytes), anywhere(t, readAbort, bytes)], [added, aborted] as never);
  }
});
