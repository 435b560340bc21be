/** Cases T1 to T18 of the semantics: what a batch adds to the histogram, and when a request is no longer tracked. */
import test, { type ExecutionContext } from 'ava';
import type { BatchSpec, OutputSpec } from '../support/messages.js';
import { sameAsFrontend, startVllm, type Vllm } from '../support/vllm.js';

/** Opens `tracked`, sends one batch and expects one observation of `tokens`. */
async function oneBatch(
  t: ExecutionContext,
  tracked: readonly string[],
  outputs: readonly OutputSpec[],
  tokens: number,
  spec: BatchSpec = {},
): Promise<Vllm> {
  const vllm = await startVllm(t);
  await vllm.open(tracked);
  await vllm.step(outputs, spec);
  t.deepEqual(await vllm.observed(), { count: 1, sum: tokens });
  await sameAsFrontend(t, vllm);
  return vllm;
}

test('T1: new and computed tokens of a tracked request count, those of an untracked one and cached ones do not', async (t) => {
  const vllm = await oneBatch(
    t,
    ['r1'],
    [
      { id: 'r1', tokens: 3, computed: 100, cached: 28 },
      { id: 'r9', tokens: 5 },
    ],
    103,
  );
  t.is(await vllm.counter('untracked_outputs_total', { engine: '0' }), 1);
  t.is(await vllm.counter('untracked_batches_total', { engine: '0' }), 0);
});

test('T2: a prefill and a decode in one batch are one observation of their sum', async (t) => {
  await oneBatch(
    t,
    ['r1', 'r2'],
    [
      { id: 'r1', tokens: 3, computed: 100, cached: 28 },
      { id: 'r2', tokens: 1 },
    ],
    104,
  );
});

test('T3: speculative decoding counts every accepted token', async (t) => {
  await oneBatch(
    t,
    ['r1', 'r2', 'r3'],
    [
      { id: 'r1', tokens: 4 },
      { id: 'r2', tokens: 1 },
      { id: 'r3', tokens: 3 },
    ],
    8,
  );
});

test('T4: 256 requests of one token each are 256, in the bucket that ends there', async (t) => {
  const ids = Array.from({ length: 256 }, (_, index) => `cmpl-${index}`);
  const vllm = await oneBatch(
    t,
    ids,
    ids.map((id) => ({ id, tokens: 1 })),
    256,
  );
  t.is(await vllm.bucket('128.0'), 0);
  t.is(await vllm.bucket('256.0'), 1);
  t.is(await vllm.bucket('+Inf'), 1);
});

test('T6: messages with nothing but stats are no observation, those with outputs are', async (t) => {
  const vllm = await startVllm(t);
  await vllm.open(['r1']);
  await vllm.step([], { stats: true });
  await vllm.step([], { stats: true });
  t.deepEqual(await vllm.observed(), { count: 0, sum: 0 });
  await vllm.step([{ id: 'r1', tokens: 1, computed: 10 }]);
  t.deepEqual(await vllm.observed(), { count: 1, sum: 11 });
  await vllm.step([{ id: 'r1', tokens: 1, finish: 1 }]);
  t.deepEqual(await vllm.observed(), { count: 2, sum: 12 });
  await sameAsFrontend(t, vllm);
});

test('T7: eight samples of one prompt count what each of them computed', async (t) => {
  const ids = Array.from({ length: 8 }, (_, index) => `${index}_cmpl-1`);
  const outputs = ids.map((id, index) => ({ id, tokens: 1, computed: index === 0 ? 311 : 7, cached: 304 }));
  await oneBatch(t, ids, outputs, 368);
});

test('T8: a pooling request without new tokens counts its prompt and is then no longer tracked', async (t) => {
  const vllm = await oneBatch(t, ['p1'], [{ id: 'p1', tokens: 0, computed: 512, finish: 0 }], 512);
  t.is(await vllm.counter('tracked_requests', { client: '0' }), 0);
  await vllm.step([{ id: 'p1', tokens: 5 }]);
  t.deepEqual(await vllm.observed(), { count: 2, sum: 512 });
  await sameAsFrontend(t, vllm);
});

test('T10: an aborted request counts no more', async (t) => {
  const vllm = await startVllm(t);
  await vllm.open(['r1', 'r2']);
  const aborted = new Promise<void>((resolve) => {
    const [engine] = vllm.engines;
    if (engine !== undefined) engine.onInput = () => resolve();
  });
  await vllm.frontend.abort(['r1']);
  await aborted;
  t.is(await vllm.counter('tracked_requests', { client: '0' }), 1);
  await vllm.step([
    { id: 'r1', tokens: 4 },
    { id: 'r2', tokens: 1 },
  ]);
  t.deepEqual(await vllm.observed(), { count: 1, sum: 1 });
  await sameAsFrontend(t, vllm);
});

test('T12: a batch of untracked outputs only is one observation of 0', async (t) => {
  const vllm = await oneBatch(
    t,
    [],
    [
      { id: 'x', tokens: 7 },
      { id: 'y', tokens: 2, computed: 9 },
    ],
    0,
  );
  t.is(await vllm.bucket('1.0'), 1);
  t.is(await vllm.counter('untracked_outputs_total', { engine: '0' }), 2);
  t.is(await vllm.counter('untracked_batches_total', { engine: '0' }), 1);
});

test('T13: no outputs and scheduler stats are an engine step and no observation', async (t) => {
  const vllm = await startVllm(t);
  await vllm.step([], { stats: true });
  t.deepEqual(await vllm.observed(), { count: 0, sum: 0 });
  t.is(await vllm.counter('engine_steps_total', { engine: '0' }), 1);
  await sameAsFrontend(t, vllm);
});

test('T14: an id in finished_requests is no longer tracked, without an observation', async (t) => {
  const vllm = await startVllm(t);
  await vllm.open(['r1', 'r2']);
  await vllm.step([], { finished: ['r1'] });
  t.deepEqual(await vllm.observed(), { count: 0, sum: 0 });
  await vllm.step([
    { id: 'r1', tokens: 2 },
    { id: 'r2', tokens: 1 },
  ]);
  t.deepEqual(await vllm.observed(), { count: 1, sum: 1 });
  await sameAsFrontend(t, vllm);
});

test('T15: a second output of an id in one batch counts unless the first one finished it', async (t) => {
  const finishedFirst: OutputSpec[] = [
    { id: 'r1', tokens: 2, finish: 0 },
    { id: 'r1', tokens: 3 },
  ];
  await oneBatch(t, ['r1'], finishedFirst, 2);
  const finishedLast: OutputSpec[] = [
    { id: 'r1', tokens: 2 },
    { id: 'r1', tokens: 3, finish: 0 },
  ];
  await oneBatch(t, ['r1'], finishedLast, 5);
});

test('T16: finished_requests takes effect behind the outputs of its own message', async (t) => {
  const vllm = await oneBatch(t, ['r1'], [{ id: 'r1', tokens: 2 }], 2, { finished: ['r1'] });
  t.is(await vllm.counter('tracked_requests', { client: '0' }), 0);
  await vllm.step([{ id: 'r1', tokens: 9 }]);
  t.deepEqual(await vllm.observed(), { count: 2, sum: 2 });
  await sameAsFrontend(t, vllm);
});

test('T17: a batch of an engine that nobody knows makes no series, and still finishes its requests', async (t) => {
  const vllm = await startVllm(t, { engines: 2 });
  await vllm.open(['r1']);
  await vllm.step([{ id: 'r1', tokens: 2, finish: 0 }], { engine: 7 });
  t.deepEqual(await vllm.observed(0), { count: 0, sum: 0 });
  t.deepEqual(await vllm.observed(1), { count: 0, sum: 0 });
  t.is(await vllm.observed(7), undefined);
  t.is(await vllm.counter('unknown_engine_batches_total'), 1);
  t.is(await vllm.counter('tracked_requests', { client: '0' }), 0);
  await sameAsFrontend(t, vllm);
});

test('T18: each engine has a series of its own', async (t) => {
  const vllm = await startVllm(t, { engines: 2 });
  await vllm.open(['a'], { engine: 0 });
  await vllm.open(['b'], { engine: 1 });
  await vllm.step([{ id: 'a', tokens: 3 }], { engine: 0 });
  await vllm.step([{ id: 'b', tokens: 5 }], { engine: 1 });
  t.deepEqual(await vllm.observed(0), { count: 1, sum: 3 });
  t.deepEqual(await vllm.observed(1), { count: 1, sum: 5 });
  await sameAsFrontend(t, vllm);
});
