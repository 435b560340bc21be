import { ExtData, encode } from '@msgpack/msgpack';
import test, { type ExecutionContext } from 'ava';
import fc from 'fast-check';
import { ListedRow, OutputBatch } from '../../proxy/vllm/output-batch.js';
import { walker } from '../../proxy/vllm/output-walker.js';
import * as mp from '../support/msgpack-encoder.js';
import { budget, isComplete, same } from './budget.js';
import { fraction, integer, text, value, width } from './msgpack-values.js';
import { expectedReading, walkerReading } from './output-batch-oracle.js';

// One batch for all frames, as in the relay: what an earlier frame left behind must not show.
const batch = new OutputBatch();

/** The frame as it lies in a chunk: other bytes before and behind it. */
function read(frame: Uint8Array, poison = 0x90) {
  const before = Buffer.alloc(5, poison);
  const bytes = Buffer.concat([before, frame, Buffer.alloc(40, poison)]);
  return walkerReading(batch, bytes, before.length, before.length + frame.length);
}

const nil = fc.constant(mp.NIL);
const tokens = fc
  .tuple(fc.array(integer, { maxLength: 20 }), width)
  .map(([items, bytes]) => mp.array(items, bytes));

const computedCount: fc.Arbitrary<Buffer> = fc.oneof(
  { weight: 3, arbitrary: fc.tuple(fc.nat(20_000), width).map(([count, bytes]) => mp.int(count, bytes)) },
  integer,
  fraction,
  fc.constantFrom(3, 0, -1, 2 ** 60, Number.NaN, Number.POSITIVE_INFINITY).map((count) => mp.float(count)),
  text(),
  value,
);

function statsMap(hasCount: boolean): fc.Arbitrary<Buffer> {
  const keys = ['num_prompt_tokens', 'num_cached_tokens', 'num_computed_token', 'num_computed_tokens_'];
  const others = fc.uniqueArray(fc.tuple(fc.constantFrom(...keys), width, value), {
    selector: ([key]) => key,
  });
  const count = fc.tuple(fc.constant('num_computed_tokens'), width, computedCount);
  return fc.tuple(others, count, fc.nat(4), width).map(([pairs, counted, place, bytes]) => {
    if (hasCount) pairs.splice(place, 0, counted);
    return mp.map(
      pairs.map(([key, keyWidth, of]) => [mp.str(key, keyWidth), of]),
      bytes,
    );
  });
}

const prefillStats = fc.oneof({ weight: 3, arbitrary: statsMap(true) }, statsMap(false));

/** Element `index` of an output: what some version has there, or anything. */
function element(index: number): fc.Arbitrary<Buffer> {
  if (index === 4 || index === 5)
    return fc.oneof(
      nil,
      nil,
      fc.nat(4).map((reason) => mp.int(reason)),
      integer,
      value,
    );
  if (index === 10 || index === 11) return fc.oneof(nil, prefillStats, prefillStats, integer, value);
  if (index === 8 || index === 9) return fc.oneof(nil, integer, prefillStats, value);
  return fc.oneof({ weight: 4, arbitrary: nil }, value);
}

const ELEMENTS = Array.from({ length: 20 }, (_, index) => element(index));

const output: fc.Arbitrary<Buffer> = fc
  .oneof(fc.integer({ min: 2, max: 20 }), fc.constantFrom(7, 9, 10, 11, 12, 13, 14, 16, 17, 18))
  .chain((length) => fc.tuple(text(), tokens, ...ELEMENTS.slice(2, length)))
  .chain((elements) => width.map((bytes) => mp.array(elements, bytes)));

const list = (item: fc.Arbitrary<Buffer>, maxLength: number) =>
  fc.tuple(fc.array(item, { maxLength }), width).map(([items, bytes]) => mp.array(items, bytes));

/** Mostly a batch that vLLM could send; sometimes with a reply, wave or wrong type where none belongs. */
const frame: fc.Arbitrary<Buffer> = fc
  .record({
    engine: fc.oneof(
      { weight: 5, arbitrary: fc.tuple(fc.nat(300), width).map(([index, bytes]) => mp.int(index, bytes)) },
      { weight: 1, arbitrary: value },
    ),
    outputs: fc.oneof({ weight: 12, arbitrary: list(output, 4) }, nil, list(value, 2), value),
    stats: fc.oneof(nil, statsMap(false), value),
    timestamp: fc.oneof(fraction, integer),
    utility: fc.oneof({ weight: 12, arbitrary: nil }, value),
    finished: fc.oneof({ weight: 6, arbitrary: nil }, { weight: 6, arbitrary: list(text(), 4) }, value),
    wave: fc.oneof({ weight: 12, arbitrary: nil }, integer),
    start: fc.oneof({ weight: 12, arbitrary: nil }, integer),
    more: fc.array(value, { maxLength: 3 }),
    fields: fc.oneof({ weight: 3, arbitrary: fc.constant(20) }, fc.nat(8)),
    size: width,
  })
  .map(({ more, fields, size, ...named }) =>
    mp.array([...Object.values<Buffer>(named), ...more].slice(0, fields), size),
  );

test('for any batch, in any layout and any width, walker and oracle read the same', (t) => {
  const read_ = { batches: 0, rows: 0, finished: 0, computed: 0, cached: 0, invalid: 0, faults: 0 };
  const details = fc.check(
    fc.property(frame, (bytes) => {
      const expected = expectedReading(bytes);
      if ('fault' in expected) {
        read_.faults++;
        if (expected.fault === 'unknown') return;
      } else {
        read_.batches++;
        read_.invalid += expected.invalidCounts;
        for (const row of expected.rows) {
          read_.rows++;
          if (row.finished) read_.finished++;
          if (row.computed !== null) read_.computed++;
          if (row.cached !== null) read_.cached++;
        }
      }
      same(t, read(bytes), expected);
    }),
    budget(5, 6_000),
  );
  if (!isComplete(details)) return;
  // The generator has to reach every branch for that to mean anything.
  for (const [what, count] of Object.entries(read_)) t.true(count > 20, `${what}: ${count}`);
});

test('a batch of more rows than ever before is read as a whole, and the next small one as well', (t) => {
  for (const rows of [65, 1_000, 3, 0, 1_500]) {
    const outputs = Array.from({ length: rows }, (_, row) => [
      `request-${row}`,
      [row, row],
      null,
      null,
      null,
      row % 2,
    ]);
    const bytes = encode([3, outputs, { step: 1 }, 1.5]);
    const reading = read(bytes);
    t.deepEqual(reading, expectedReading(bytes));
    t.is('fault' in reading ? -1 : reading.rows.length, rows);
  }
});

test('a batch of more than a mebibyte does not make the memory grow that stays', (t) => {
  const before = walker.bytes.length;
  const outputs = Array.from({ length: 20_000 }, (_, row) => [`${'x'.repeat(60)}-${row}`, [row, row]]);
  const bytes = Buffer.from(encode([3, outputs, { step: 1 }, 1.5, null, ['r1', 'r2']]));
  t.is(batch.read(bytes, 0, bytes.length), null);
  t.is(batch.listed, outputs.length);
  const row = new ListedRow();
  for (const [index, [id]] of outputs.entries()) {
    batch.row(index, row);
    if (batch.idOf(row) !== id || row.tokens !== 2) t.fail(`row ${index} is ${batch.idOf(row)}`);
  }
  t.like(batch, { engineIndex: 3, hasSchedulerStats: true, finishedRequests: ['r1', 'r2'] });
  t.is(walker.bytes.length, before);
  const small = Buffer.from(encode([1, [['r1', [1]]]]));
  t.is(batch.read(small, 0, small.length), null);
  t.like(batch, { engineIndex: 1, listed: 1 });
});

test('nor do hundreds of thousands of rows in a small frame', (t) => {
  const before = walker.bytes.length;
  const bytes = Buffer.from(encode([3, Array(300_000).fill(['', []])]));
  t.true(bytes.length < 1024 ** 2);
  t.is(batch.read(bytes, 0, bytes.length), null);
  t.is(batch.listed, 300_000);
  const row = new ListedRow();
  batch.row(299_999, row);
  t.like(row, { tokens: 0, finished: false });
  t.is(batch.idOf(row), '');
  t.true(walker.bytes.length - before < 4 * 1024 ** 2, `${walker.bytes.length - before} bytes`);
});

/** Scheduler stats are skipped where a frame ends like the last one: none ends like this. */
function forgetTail(): void {
  const fields = [0, [['r1', []]], {}, 1.5, ...Array(90).fill(null)];
  if ('fault' in read(encode(fields))) throw new Error('a batch of many fields is not read');
}

test('scheduler stats need not be walked, and what stands behind them is never missed', (t) => {
  const outputs = [['r1', [1]]];
  const tail = [1.5, null, null, null, null, 'default'];
  const batchOf = (stats: unknown, ...rest: unknown[]) => Buffer.from(encode([3, outputs, stats, ...rest]));
  const usual = batchOf({ waiting: 1, hits: [1, 2, 3] }, ...tail);
  const others = [
    usual,
    batchOf({ waiting: 2.5, more: { a: 'x'.repeat(300) } }, 77.25, ...tail.slice(1)),
    batchOf(null, ...tail),
    batchOf([1], ...tail),
    batchOf({}, ...tail),
    batchOf({ waiting: 1 }, 1.5, null, ['r1', 'r2'], null, null, 'default'),
    batchOf({ waiting: 1 }, 1.5, null, [], null, null, 'default'),
    batchOf({ waiting: 1 }, 1.5, null, null, null, null, 'defaulT'),
    batchOf({ waiting: 1 }, 1.5, null, null, null, null),
    batchOf({ waiting: 1 }, ...tail, null),
    batchOf({ waiting: 1 }, 1.5, null, null, 7, null, 'default'),
    batchOf({ waiting: 1 }, 1.5, null, null, null, 0xc0, 'default'),
    batchOf({ waiting: 1 }, 1.5, null, null, null, 0xc0c0, 'default'),
    Buffer.concat([usual, Buffer.of(0xc0)]),
    usual.subarray(0, -1),
    Buffer.from(encode([3, [], { waiting: 1 }, ...tail])),
    Buffer.from(encode([3, null, null, 1.5, ['call', 1, 'x'], null, null, null, 'default'])),
    Buffer.from(encode(usual)), // the same bytes, as a binary value
  ];
  for (const other of others) {
    forgetTail();
    const walked = read(other);
    same(t, walked, expectedReading(other));
    same(t, read(usual), expectedReading(usual));
    same(t, read(other), walked);
    same(t, read(other, 0xc0), walked);
  }
  // This is what is given up: stats that are no MessagePack are not noticed. vLLM's frontend ends over such a message.
  const damaged = Buffer.from(usual);
  damaged[usual.indexOf('waiting') - 1] = 0xc1;
  same(t, read(damaged), expectedReading(usual));
  forgetTail();
  same(t, read(damaged), { fault: 'malformed' });
});

/** Whatever the bytes, the answer is the same with other bytes around them. */
function readAnywhere(t: ExecutionContext, bytes: Uint8Array) {
  const [first, ...others] = [0x00, 0x90, 0xc0, 0xff].map((poison) => read(bytes, poison));
  for (const other of others) same(t, other, first);
  // At the end of what was loaded; behind it lies what was loaded before.
  same(t, walkerReading(batch, Buffer.from(bytes), 0, bytes.length), first);
  return first as ReturnType<typeof read>;
}

test('a batch cut anywhere is truncated, and nothing behind the cut is read', (t) => {
  fc.assert(
    fc.property(frame, fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }), (bytes, share) => {
      if ('fault' in expectedReading(bytes)) return;
      const length = Math.floor(bytes.length * share);
      same(t, readAnywhere(t, bytes.subarray(0, length)), { fault: length === 0 ? 'empty' : 'truncated' });
    }),
    budget(3),
  );
});

test('a batch with anything behind it has trailing bytes', (t) => {
  fc.assert(
    fc.property(frame, fc.uint8Array({ minLength: 1, maxLength: 5 }), (bytes, tail) => {
      if ('fault' in expectedReading(bytes)) return;
      same(t, readAnywhere(t, Buffer.concat([bytes, tail])), { fault: 'trailing_bytes' });
    }),
    budget(2),
  );
});

const damage = fc.array(fc.tuple(fc.nat(), fc.nat(255)), { minLength: 1, maxLength: 3 });

test('of a damaged batch the walker neither throws nor reads past the end, and never takes for whole what is not', (t) => {
  fc.assert(
    fc.property(frame, damage, (bytes, changes) => {
      const damaged = Buffer.from(bytes);
      for (const [at, byte] of changes) damaged[at % damaged.length] = byte;
      compareFaults(t, damaged);
    }),
    budget(3, 4_000),
  );
});

test('for any bytes the walker neither throws nor reads past the end', (t) => {
  const head = fc.constantFrom(
    [],
    [0x92, 0x00],
    [0x92, 0x00, 0x91],
    [0x92, 0x00, 0x91, 0x92, 0xa1, 0x61],
    [0xdd],
  );
  fc.assert(
    fc.property(head, fc.uint8Array({ maxLength: 60 }), (start, rest) => {
      compareFaults(t, Buffer.from([...start, ...rest]));
    }),
    budget(2, 10_000),
  );
});

/**
 * Bytes can be wrong in more ways than one, and the walker names the first it meets; but whether they are wrong
 * is not open, nor are the numbers where they are right.
 */
function compareFaults(t: ExecutionContext, bytes: Buffer): void {
  forgetTail();
  const reading = readAnywhere(t, bytes);
  const expected = expectedReading(bytes);
  if ('fault' in expected) {
    if (expected.fault === 'unknown') return;
    t.true('fault' in reading, `${bytes.toString('hex')} is ${expected.fault}`);
    if (expected.fault === 'invalid_shape' || expected.fault === 'empty') same(t, reading, expected);
    return;
  }
  // The oracle can't tell a float 3.0 from 3, nor do both make the same of bytes that are no UTF-8.
  const hasFloats = bytes.includes(0xca) || bytes.includes(0xcb);
  if (hasFloats || !isUtf8(bytes, reading)) return;
  same(t, reading, expected);
}

function isUtf8(bytes: Buffer, reading: ReturnType<typeof read>): boolean {
  if ('fault' in reading) return true;
  const ids = [...reading.rows.map(({ id }) => id), ...reading.finishedRequests];
  return ids.every((id) => bytes.includes(Buffer.from(id)) && !id.includes('\ufffd'));
}

test('T21: what is no batch has a fault of its own kind', (t) => {
  const cases: [string, Buffer][] = [
    ['invalid_shape', Buffer.from('ENGINE_CORE_DEAD').subarray(0, 1)],
    ['trailing_bytes', Buffer.concat([mp.array([mp.int(0)]), Buffer.of(0)])],
    ['truncated', Buffer.from(encode([0, [['r1', [1, 2, 3]]]])).subarray(0, -1)],
    ['empty', Buffer.alloc(0)],
    ['malformed', Buffer.of(0xc1)],
    ['truncated', Buffer.of(0xdc, 0xff, 0xff)],
    ['truncated', Buffer.of(0x92, 0x00, 0xdc, 0xff, 0xff)],
    ['truncated', Buffer.of(0x92, 0x00, 0xdd, 0xff, 0xff, 0xff, 0xff)],
    ['truncated', Buffer.of(0x92, 0x00, 0x91, 0x92, 0xdb, 0xff, 0xff, 0xff, 0xff)],
    ['truncated', Buffer.of(0x92, 0x00, 0x91, 0x92, 0xa1, 0x61, 0xdf, 0xff, 0xff, 0xff, 0xff)],
    ['truncated', Buffer.from('920092' + '92a2616190' + 'dc', 'hex')],
    ['invalid_shape', mp.map([])],
    ['invalid_shape', mp.array([])],
  ];
  for (const [fault, bytes] of cases)
    same(t, readAnywhere(t, bytes), { fault } as never, bytes.toString('hex'));
  t.true('fault' in read(Buffer.from('ENGINE_CORE_DEAD')));
});

test('a batch in the usual encodings cut anywhere is truncated', (t) => {
  const nils = Array(15).fill(null);
  const row = (id: string) => [id, [1, 200, 3_000, 70_000], ...nils];
  const bytes = Buffer.from(encode([0, [row('chatcmpl-1'), row('x'.repeat(40)), row('r3')], null, 1.5]));
  t.false('fault' in readAnywhere(t, bytes));
  for (let length = 1; length < bytes.length; length++) {
    same(t, readAnywhere(t, bytes.subarray(0, length)), { fault: 'truncated' });
  }
});

test('an output of one element does not take its tokens from the next one', (t) => {
  const rest = encode(['x'.repeat(100), [1]]);
  t.true('fault' in readAnywhere(t, Buffer.concat([encode([0, [['r1'], [5, 6]]]), rest])));
  t.deepEqual(readAnywhere(t, Buffer.from(encode([0, [['r1'], [5, 6]], 'x'.repeat(100)]))), {
    fault: 'invalid_shape',
  });
});

test('T20: outputs together with a utility reply or a wave are no batch; alone each of them is', (t) => {
  const outputs = [['r1', [1]]];
  for (const field of [4, 6, 7]) {
    const fields: unknown[] = [0, outputs, null, 1.5, null, null, null, null];
    fields[field] = 5;
    t.deepEqual(read(encode(fields)), { fault: 'invalid_shape' });
    fields[1] = [];
    t.like(read(encode(fields)), { rows: [] });
  }
});

/** One output of `length` elements with `set` in its places. */
function rowOf(length: number, set: Readonly<Record<number, unknown>>) {
  const elements = Array.from({ length }, (_, index) => set[index] ?? null);
  elements[0] = 'r1';
  elements[1] = [11, 12];
  const reading = read(encode([0, [elements], null, 1.5]));
  return 'fault' in reading ? reading.fault : reading.rows[0];
}

test('T23: each length of an output has its layout', (t) => {
  const stats = { num_prompt_tokens: 128, num_computed_tokens: 100, num_cached_tokens: 28 };
  const transfer = { remote_block_ids: [1, 2], num_computed: 7 };
  const plain = { id: 'r1', tokens: 2, finished: false, computed: null, cached: null };
  const cases: [number, Record<number, unknown>, object][] = [
    [2, {}, plain],
    [6, { 5: 0 }, { ...plain, finished: true }],
    [7, { 4: 0 }, { ...plain, finished: true }], // 0.8
    [9, { 4: 1, 8: 28 }, { ...plain, finished: true, cached: 28 }], // 0.9.0
    [9, { 8: -1 }, { ...plain, cached: 0 }],
    [10, { 4: 1, 9: 28 }, { ...plain, cached: 28 }], // 0.9.2: stop_reason has moved on, 4 is no reason
    [10, { 5: 0, 8: 5 }, { ...plain, finished: true }],
    [11, { 5: 2, 10: 28 }, { ...plain, finished: true, cached: 28 }],
    [12, { 10: 28 }, { ...plain, cached: 28 }],
    [13, { 10: 28 }, { ...plain, cached: 28 }], // 0.14
    [13, { 10: stats }, { ...plain, computed: 100 }], // 0.20
    [14, { 10: 28, 11: 3 }, { ...plain, cached: 28 }], // 0.16
    [14, { 10: transfer, 11: stats }, { ...plain, computed: 100 }], // 0.26
    [14, { 9: stats }, plain],
    [17, { 10: transfer, 11: stats, 5: 0 }, { ...plain, finished: true, computed: 100 }],
    [17, { 10: stats, 11: transfer }, { ...plain, computed: 100 }],
    [17, { 12: stats }, plain],
    [20, { 11: stats, 19: new ExtData(3, Uint8Array.of(1, 2)) }, { ...plain, computed: 100 }],
    [20, { 5: 'stop', 10: 'x', 11: [1] }, plain],
  ];
  for (const [length, set, expected] of cases) {
    t.deepEqual(rowOf(length, set), expected as never, `${length} ${JSON.stringify(set)}`);
  }
});

test('T24: a prefill count that is no count is taken as 0 and reported', (t) => {
  const cases: [Buffer | null, number | null, number][] = [
    [null, null, 0],
    [mp.int(0), 0, 0],
    [mp.int(-5), 0, 1],
    [mp.int(2 ** 53 - 1), 2 ** 53 - 1, 0],
    [mp.int(2n ** 53n + 1n), 0, 1],
    [mp.int(2n ** 64n - 1n), 0, 1],
    [mp.float(3), 3, 0],
    [mp.float(3, 4), 3, 0],
    [mp.float(3.5), 0, 1],
    [mp.float(Number.NaN), 0, 1],
    [mp.str('100'), 0, 1],
    [mp.NIL, 0, 1],
    [mp.bool(true), 0, 1],
    [mp.array([mp.int(100)]), 0, 1],
  ];
  for (const [count, computed, invalid] of cases) {
    const extra: [Buffer, Buffer][] = [
      [mp.str('new_key'), mp.map([[mp.str('num_computed_tokens'), mp.int(9)]])],
      [mp.int(4), mp.bin(Buffer.alloc(300), 2)],
    ];
    if (count !== null) extra.splice(1, 0, [mp.str('num_computed_tokens'), count]);
    const nils = Array.from({ length: 8 }, () => mp.NIL);
    const row = mp.array([mp.str('r1'), mp.array([]), ...nils, mp.map(extra)]);
    const reading = read(mp.array([mp.int(0), mp.array([row])]));
    t.like(reading, { invalidCounts: invalid, rows: [{ computed }] }, String(count?.toString('hex')));
  }
});
