/** Cases T20 to T28 of the semantics: layouts, values and messages that are not as they should be, and large ones. */
import { randomBytes } from 'node:crypto';
import test from 'ava';
import { StandInEngine } from '../support/engine.js';
import { StandInFrontend } from '../support/frontend.js';
import { freePort } from '../support/in-process.js';
import { abortFrames, addFrames, batch, ENGINE_CORE_DEAD } from '../support/messages.js';
import { array, ext, float, int, map, NIL, str } from '../support/msgpack-encoder.js';
import { seriesKey } from '../support/prometheus-text.js';
import { startSidecar } from '../support/sidecar.js';
import { BY_HAND, sameAsFrontend, startVllm } from '../support/vllm.js';
import { waitFor } from '../support/wait.js';

const MIB = 1024 * 1024;

/** EngineCoreOutputs with one output, given element by element. */
function batchOf(row: readonly Buffer[]): Buffer {
  return array([int(0), array([array(row)]), NIL, float(0), NIL, NIL, NIL, NIL]);
}

/** An output of `length` elements: id, `tokens` ids, nil, but for what `elements` puts at an index. */
function row(
  id: string,
  tokens: number,
  length: number,
  elements: Readonly<Record<number, Buffer>> = {},
): Buffer[] {
  const head = [str(id), array(Array.from({ length: tokens }, (_, index) => int(index)))];
  return Array.from({ length }, (_, index) => head[index] ?? elements[index] ?? NIL);
}

function prefill(computed: Buffer): Buffer {
  return map([
    [str('num_prompt_tokens'), int(128)],
    [str('num_computed_tokens'), computed],
    [str('num_cached_tokens'), int(28)],
  ]);
}

test('T20: outputs beside a utility reply, a finished wave or a started one are no batch: passed on, not counted', async (t) => {
  const vllm = await startVllm(t);
  await vllm.open(['r1']);
  const outputs = [{ id: 'r1', tokens: 5 }];
  const invalid = [{ utility: [1, null, null] }, { wave: 1 }, { startWave: 2 }];
  for (const field of invalid) {
    const frames = [batch({ outputs, ...field })];
    t.deepEqual(
      await vllm.send(frames),
      frames.map((frame) => Buffer.from(frame)),
    );
  }
  t.deepEqual(await vllm.observed(), { count: 0, sum: 0 });
  const labels = { kind: 'outputs', reason: 'invalid_shape' };
  t.is(await vllm.counter('decode_errors_total', labels), 3);
  for (const field of invalid) await vllm.step([], field);
  t.is(await vllm.counter('decode_errors_total', labels), 3);
  await vllm.step(outputs);
  t.deepEqual(await vllm.observed(), { count: 1, sum: 5 });
  await sameAsFrontend(t, vllm);
});

test('T21: what is no batch is passed on as it is, counted as what it is, and the next batch counts', async (t) => {
  const vllm = await startVllm(t);
  await vllm.open(['r1']);
  await vllm.step([{ id: 'r1', tokens: 1 }]);
  const whole = Buffer.from(batch({ outputs: [{ id: 'r1', tokens: 3 }] }));
  const messages: [reason: string, Buffer][] = [
    ['truncated', whole.subarray(0, whole.length - 1)],
    ['truncated', whole.subarray(0, 12)],
    ['empty', Buffer.alloc(0)],
    ['malformed', Buffer.of(0xc1)],
    ['truncated', Buffer.of(0xdc, 0xff, 0xff)],
    ['truncated', Buffer.of(0x98, 0x00, 0xdc, 0xff, 0xff)],
    ['trailing_bytes', Buffer.concat([whole, Buffer.of(0)])],
    ['invalid_shape', Buffer.from('not MessagePack at all').subarray(0, 1)],
    ['invalid_shape', map([[str('outputs'), array([])]])],
    ['invalid_shape', array([str('0'), array([])])],
  ];
  const expected = new Map<string, number>();
  for (const [reason, frame] of messages) {
    t.deepEqual(await vllm.send([frame]), [frame], reason);
    expected.set(reason, (expected.get(reason) ?? 0) + 1);
  }
  for (const [reason, count] of expected) {
    t.is(await vllm.counter('decode_errors_total', { kind: 'outputs', reason }), count, reason);
  }
  t.deepEqual(await vllm.send([ENGINE_CORE_DEAD]), [ENGINE_CORE_DEAD]);
  t.is(await vllm.counter('engine_dead_total', { engine: '0' }), 1);
  const errors = [...expected.values()].reduce((sum, count) => sum + count, 0);
  const samples = [...(await vllm.sidecar.samples())];
  const all = samples.filter(([key]) => key.startsWith('steptap_decode_errors_total'));
  t.is(
    all.reduce((sum, [, count]) => sum + count, 0),
    errors,
  );
  t.true(vllm.sidecar.logged('error', 'ENGINE_CORE_DEAD').length > 0);
  await vllm.step([{ id: 'r1', tokens: 2 }]);
  t.deepEqual(await vllm.observed(), { count: 2, sum: 3 });
});

test('T21: an engine that dies before its first batch is counted without an index', async (t) => {
  const vllm = await startVllm(t);
  await vllm.send([ENGINE_CORE_DEAD]);
  t.is(await vllm.counter('engine_dead_total', { engine: 'unknown' }), 1);
  t.is(await vllm.counter('engine_dead_total', { engine: '0' }), 0);
});

test('a batch or an ABORT longer than decode.maxFrameBytes is relayed and not read', async (t) => {
  const vllm = await startVllm(t, { patch: { decode: { maxFrameBytes: 4096 } } });
  await vllm.open(['r1']);
  const filler = Array.from({ length: 400 }, (_, index) => ({ id: `unknown-${index}`, tokens: 1 }));
  await vllm.step([{ id: 'r1', tokens: 3 }, ...filler]);
  t.deepEqual(await vllm.observed(), { count: 0, sum: 0 });
  t.is(await vllm.counter('decode_errors_total', { kind: 'outputs', reason: 'frame_too_large' }), 1);
  const aborted = new Promise<void>((resolve) => {
    const [engine] = vllm.engines;
    if (engine !== undefined) engine.onInput = () => resolve();
  });
  await vllm.frontend.sendRaw(0, 0, abortFrames(['r1', ...filler.map(({ id }) => id)]));
  await aborted;
  t.is(await vllm.counter('decode_errors_total', { kind: 'requests', reason: 'frame_too_large' }), 1);
  t.is(await vllm.counter('tracked_requests', { client: '0' }), 1);
  await vllm.step([{ id: 'r1', tokens: 3 }]);
  t.deepEqual(await vllm.observed(), { count: 1, sum: 3 });
});

test('requests that are no requests are relayed, told, and track nothing', async (t) => {
  const vllm = await startVllm(t);
  const received: (readonly Buffer[])[] = [];
  const [engine] = vllm.engines;
  if (engine !== undefined) engine.onInput = (_client, frames) => received.push(frames);
  const [ADD, ABORT, UTILITY] = [Buffer.of(0), Buffer.of(1), Buffer.of(3)];
  const messages: [reason: string | null, frames: Buffer[]][] = [
    ['empty', [ADD, Buffer.alloc(0)]],
    ['malformed', [ADD, Buffer.of(0xc1)]],
    ['truncated', [ADD, Buffer.of(0x92, 0xa5, 0x61)]],
    ['invalid_shape', [ADD, array([int(7), array([])])]],
    ['invalid_shape', [ADD, array([str('r1'), str('no prompt')])]],
    ['invalid_shape', [ABORT, map([])]],
    ['malformed', [ABORT, Buffer.of(0x91, 0xc1)]],
    ['trailing_bytes', [ABORT, Buffer.concat([array([]), NIL])]],
    [null, [UTILITY, Buffer.of(0xc1)]],
    [null, [Buffer.of(0x7e), Buffer.of(0xc1)]],
    [null, [Buffer.from('not a type'), Buffer.of(0xc1)]],
    [null, [ADD]],
  ];
  const expected = new Map<string, number>();
  for (const [index, [reason, frames]] of messages.entries()) {
    await vllm.frontend.sendRaw(0, 0, frames);
    const arrived = await waitFor(() => received[index], { what: 'the message at the engine' });
    t.deepEqual(arrived.map(String), frames.map(String));
    if (reason !== null) expected.set(reason, (expected.get(reason) ?? 0) + 1);
  }
  for (const reason of ['empty', 'malformed', 'truncated', 'invalid_shape', 'trailing_bytes']) {
    t.is(
      await vllm.counter('decode_errors_total', { kind: 'requests', reason }),
      expected.get(reason),
      reason,
    );
  }
  t.is(await vllm.counter('tracked_requests', { client: '0' }), 0);
  await vllm.open(['r1']);
  t.is(await vllm.counter('tracked_requests', { client: '0' }), 1);
});

test('T22: a message with auxiliary tensors counts from its first frame, and all frames arrive as sent', async (t) => {
  const vllm = await startVllm(t);
  await vllm.open(['r1']);
  const frames = [
    Buffer.from(batch({ outputs: [{ id: 'r1', tokens: 3, computed: 100 }] })),
    randomBytes(70_000),
    Buffer.alloc(0),
    Buffer.from(batch({ outputs: [{ id: 'r1', tokens: 9 }] })),
    randomBytes(3),
  ];
  t.deepEqual(await vllm.send(frames), frames);
  t.deepEqual(await vllm.observed(), { count: 1, sum: 103 });
});

test('T23: outputs of 2 to 20 elements are read in the layout of their version', async (t) => {
  const vllm = await startVllm(t);
  const headers = map([[str('traceparent'), str('00-0af7651916cd43dd8448eb211c80319c-00')]]);
  const tensor = array([str('float32'), array([int(1)]), ext(3, Buffer.alloc(4))]);
  // The prompt has 128 tokens: 100 are computed where 28 are cached.
  const cases: [what: string, row: (id: string) => Buffer[], tokens: number, finishes?: boolean][] = [
    ['2 elements', (id) => row(id, 3, 2), 3],
    [
      '9 elements, integer at 8, finish_reason at 4',
      (id) => row(id, 1, 9, { 4: int(0), 8: int(28) }),
      101,
      true,
    ],
    ['10 elements, integer at 9', (id) => row(id, 1, 10, { 5: int(1), 9: int(28) }), 101, true],
    ['11 elements, integer at 10', (id) => row(id, 3, 11, { 10: int(28) }), 103],
    ['11 elements, integer at 10 in eight bytes', (id) => row(id, 3, 11, { 10: int(28, 8) }), 103],
    ['12 elements, integer at 10', (id) => row(id, 3, 12, { 9: headers, 10: int(28), 11: int(0) }), 103],
    ['13 elements, integer at 10', (id) => row(id, 3, 13, { 10: int(28), 11: tensor, 12: int(0) }), 103],
    ['13 elements, map at 10', (id) => row(id, 3, 13, { 10: prefill(int(100)), 12: int(0) }), 103],
    [
      '14 elements, map at 11 behind trace headers',
      (id) => row(id, 3, 14, { 10: headers, 11: prefill(int(100)) }),
      103,
    ],
    ['17 elements, map at 11', (id) => row(id, 3, 17, { 5: int(3), 11: prefill(int(100)) }), 103, true],
    ['20 elements, map at 11', (id) => row(id, 3, 20, { 11: prefill(int(100)), 19: headers }), 103],
    ['20 elements, map at 10', (id) => row(id, 3, 20, { 10: prefill(int(100)), 11: headers }), 103],
  ];
  let count = 0;
  let sum = 0;
  let tracked = 0;
  for (const [index, [what, rowOf, tokens, finishes = false]] of cases.entries()) {
    await vllm.open([`cmpl-${index}`]);
    await vllm.send([batchOf(rowOf(`cmpl-${index}`))]);
    count++;
    sum += tokens;
    if (!finishes) tracked++;
    t.deepEqual(await vllm.observed(), { count, sum }, what);
    t.is(await vllm.counter('tracked_requests', { client: '0' }), tracked, what);
  }
});

test('T24: a count of computed tokens that is none is taken as 0, and what is no whole number is told', async (t) => {
  const vllm = await startVllm(t);
  await vllm.open(['r1']);
  const cases: [what: string, stats: Buffer, tokens: number, anomalies: number][] = [
    ['missing', map([[str('num_prompt_tokens'), int(9)]]), 0, 0],
    ['an empty map', map([]), 0, 0],
    [
      'extra keys',
      map([
        [int(5), NIL],
        [str('num_computed_tokens'), int(7)],
        [str('later'), map([[str('num_computed_tokens'), int(1000)]])],
      ]),
      7,
      0,
    ],
    ['-5', prefill(int(-5)), 0, 1],
    ['2^53 + 1', prefill(int(2n ** 53n + 1n)), 0, 1],
    ['3.0', prefill(float(3)), 3, 0],
    ['3.0 in four bytes', prefill(float(3, 4)), 3, 0],
    ['3.5', prefill(float(3.5)), 0, 1],
    ['a string', prefill(str('12')), 0, 1],
    ['nil', prefill(NIL), 0, 1],
  ];
  let expected = { count: 0, sum: 0, anomalies: 0 };
  for (const [what, stats, tokens, anomalies] of cases) {
    await vllm.send([batchOf(row('r1', 1, 17, { 11: stats }))]);
    expected = {
      count: expected.count + 1,
      sum: expected.sum + 1 + tokens,
      anomalies: expected.anomalies + anomalies,
    };
    const { count, sum } = expected;
    t.deepEqual(await vllm.observed(), { count, sum }, what);
    const labels = { kind: 'outputs', reason: 'invalid_count' };
    t.is(await vllm.counter('decode_errors_total', labels), expected.anomalies, what);
  }
});

test('T26: a second ADD of a request in flight changes nothing', async (t) => {
  const vllm = await startVllm(t, { version: '0.12' });
  await vllm.open(['r1']);
  await vllm.step([{ id: 'r1', tokens: 1, cached: 28 }], { version: '0.12' });
  t.deepEqual(await vllm.observed(), { count: 1, sum: 101 });
  const again = new Promise<void>((resolve) => {
    const [engine] = vllm.engines;
    if (engine !== undefined) engine.onInput = () => resolve();
  });
  const add = { id: 'r1', promptTokens: Array<number>(900).fill(1), maxTokens: 5, version: '0.12' } as const;
  await vllm.frontend.sendRaw(0, 0, addFrames(add));
  await again;
  t.is(await vllm.counter('tracked_requests', { client: '0' }), 1);
  await vllm.step([{ id: 'r1', tokens: 1, cached: 0, finish: 1 }], { version: '0.12' });
  t.deepEqual(await vllm.observed(), { count: 2, sum: 102 });
  t.is(await vllm.counter('tracked_requests', { client: '0' }), 0);
  await sameAsFrontend(t, vllm);
});

test('T27: outputs count when the engine answers as soon as the ADD reaches it', async (t) => {
  const vllm = await startVllm(t, { engine: { chunk: 3, batchSize: 16 } });
  const requests = Array.from({ length: 300 }, (_, index) => ({ promptTokens: 1 + index, maxTokens: 3 }));
  await Promise.all(requests.map((request) => vllm.frontend.submit(request)));
  const observed = await vllm.observed();
  t.is(
    observed?.sum,
    requests.reduce((sum, { promptTokens }) => sum + promptTokens + 3, 0),
  );
  t.is(await vllm.counter('untracked_outputs_total', { engine: '0' }), 0);
  await sameAsFrontend(t, vllm);
});

test('T28: of an ADD with 50 MB of tensors only the id is read, and memory stays bounded', async (t) => {
  const frontend = await new StandInFrontend().start();
  t.teardown(() => frontend.stop());
  const entrance = `tcp://127.0.0.1:${await freePort()}`;
  const sidecar = await startSidecar({
    args: ['--frontend-handshake', frontend.handshakeAddress, '--engine-handshake', entrance],
    env: { STEPTAP_MODEL_NAME: 'stand-in' },
  });
  t.teardown(() => sidecar.stop());
  const engine = new StandInEngine(BY_HAND);
  t.teardown(() => engine.stop());
  await Promise.all([frontend.ready(), engine.start(entrance)]);
  const rss = async () => Number((await sidecar.metrics()).get('process_resident_memory_bytes'));
  const before = await rss();
  const auxiliary = [Buffer.alloc(20 * MIB, 1), Buffer.alloc(0), Buffer.alloc(30 * MIB, 2)];
  for (let index = 0; index < 5; index++) {
    const { id, done } = frontend.open({ promptTokens: 10, maxTokens: 9, auxiliary });
    done.catch(() => {});
    await waitFor(() => engine.running.includes(id), { what: 'the ADD at the engine' });
  }
  const samples = await sidecar.metrics();
  t.is(samples.get(seriesKey('steptap_tracked_requests', { client: '0' })), 5);
  const grown = (await rss()) - before;
  t.true(grown < 100 * MIB, `${Math.round(grown / MIB)} MiB more after 250 MB`);
  t.deepEqual(engine.errors, []);
});
