/** Cases T29 to T33 of the semantics, and the rules S10 to S12 and tracking.requestIds. */
import test from 'ava';
import { freePort } from '../support/in-process.js';
import { VLLM_VERSIONS } from '../support/messages.js';
import { histogramOf, sameAsFrontend, startVllm } from '../support/vllm.js';
import { waitFor } from '../support/wait.js';

test('T29: before any traffic every known engine has its 16 samples, all zero', async (t) => {
  const vllm = await startVllm(t, { engines: 3 });
  const series = histogramOf(await vllm.sidecar.samples());
  t.is(Object.keys(series).length, 3 * 16);
  t.true(Object.values(series).every((value) => value === 0));
  await sameAsFrontend(t, vllm);
});

test('T30: a model name with quotes, backslashes, line ends and UTF-8 is asked from the frontend and escaped', async (t) => {
  const modelName = 'a "quoted" \\ name\nof two lines, 模型';
  const httpPort = await freePort();
  const patch = { model: { name: null }, frontend: { url: `http://127.0.0.1:${httpPort}` } };
  const vllm = await startVllm(t, { modelName, httpPort, patch });
  await vllm.open(['r1']);
  await vllm.step([{ id: 'r1', tokens: 3, computed: 9 }]);
  await waitFor(() => vllm.observed(), { what: 'the model name' });
  t.deepEqual(await vllm.observed(), { count: 1, sum: 12 });
  const { text } = await vllm.sidecar.get('/metrics');
  t.true(text.includes(String.raw`model_name="a \"quoted\" \\ name\nof two lines, 模型"`));
  await sameAsFrontend(t, vllm);
});

test('T33: one step that goes to two clients in two messages is two observations and one engine step', async (t) => {
  const vllm = await startVllm(t, { clients: 2 });
  await vllm.open(['a'], { client: 0 });
  await vllm.open(['b'], { client: 1 });
  await vllm.step([{ id: 'a', tokens: 1, computed: 5 }], { client: 0, stats: true });
  await vllm.step([{ id: 'b', tokens: 1, computed: 20 }], { client: 1 });
  t.deepEqual(await vllm.observed(), { count: 2, sum: 27 });
  t.is(await vllm.counter('engine_steps_total', { engine: '0' }), 1);
  await sameAsFrontend(t, vllm);
});

test('S3: a request is tracked for the client that sent it, not for another one', async (t) => {
  const vllm = await startVllm(t, { clients: 2 });
  await vllm.open(['a'], { client: 0 });
  await vllm.step([{ id: 'a', tokens: 4 }], { client: 1 });
  t.deepEqual(await vllm.observed(), { count: 1, sum: 0 });
  await vllm.step([{ id: 'a', tokens: 4 }], { client: 0 });
  t.deepEqual(await vllm.observed(), { count: 2, sum: 4 });
  await sameAsFrontend(t, vllm);
});

test('S10: prefill stats that come again count again, and say so', async (t) => {
  const vllm = await startVllm(t, { engine: { repeatPrefill: true } });
  await vllm.frontend.submit({ promptTokens: 10, maxTokens: 3 });
  t.deepEqual(await vllm.observed(), { count: 3, sum: 33 });
  t.is(await vllm.counter('repeated_prefill_reports_total', { engine: '0' }), 2);
  await sameAsFrontend(t, vllm);
});

for (const version of VLLM_VERSIONS) {
  test(`S11: vLLM ${version} counts the computed part of each prompt once`, async (t) => {
    const vllm = await startVllm(t, { version, engine: { chunk: 2, cachedShare: 0.25, batchSize: 4 } });
    const prompts = [1, 8, 100, 1000];
    await Promise.all(prompts.map((promptTokens) => vllm.frontend.submit({ promptTokens, maxTokens: 5 })));
    t.is((await vllm.observed())?.sum, 1 + 6 + 75 + 750 + 4 * 5);
    t.is(await vllm.counter('repeated_prefill_reports_total', { engine: '0' }), 0);
    await sameAsFrontend(t, vllm);
  });
}

test('S11: a negative number of cached tokens is none', async (t) => {
  const vllm = await startVllm(t, { version: '0.12' });
  await vllm.open(['r1']);
  await vllm.step([{ id: 'r1', tokens: 2, cached: -1 }], { version: '0.12' });
  t.deepEqual(await vllm.observed(), { count: 1, sum: 130 });
  await sameAsFrontend(t, vllm);
});

test('S12: the observations of several clients and engines add up to what the frontend exports', async (t) => {
  const engine = { chunk: 4, batchSize: 8, cachedShare: 0.5, finishedRequests: true };
  const vllm = await startVllm(t, { clients: 3, engines: 2, engine });
  const requests = Array.from({ length: 120 }, (_, index) => ({
    promptTokens: 1 + ((index * 97) % 700),
    maxTokens: 1 + (index % 13),
  }));
  await Promise.all(requests.map((request) => vllm.frontend.submit(request)));
  t.true(Number((await vllm.observed(0))?.count) > 0 && Number((await vllm.observed(1))?.count) > 0);
  for (const client of ['0', '1', '2']) t.is(await vllm.counter('tracked_requests', { client }), 0);
  await sameAsFrontend(t, vllm);
});

test('tracking.requestIds: only what it selects counts, its batches are observed all the same', async (t) => {
  const patch = { tracking: { requestIds: ['cmpl-*', '!cmpl-probe*'] } };
  const vllm = await startVllm(t, { patch });
  await vllm.open(['cmpl-1', 'cmpl-probe-1', 'embd-1', 'cmpl-a/b']);
  t.is(await vllm.counter('tracked_requests', { client: '0' }), 2);
  await vllm.step([
    { id: 'cmpl-1', tokens: 1, computed: 10 },
    { id: 'cmpl-probe-1', tokens: 100 },
    { id: 'embd-1', tokens: 1000 },
    { id: 'cmpl-a/b', tokens: 2 },
  ]);
  t.deepEqual(await vllm.observed(), { count: 1, sum: 13 });
  await vllm.step([{ id: 'embd-1', tokens: 7, finish: 1 }]);
  t.deepEqual(await vllm.observed(), { count: 2, sum: 13 });
  t.is(await vllm.counter('untracked_outputs_total', { engine: '0' }), 3);
  t.is(await vllm.counter('untracked_batches_total', { engine: '0' }), 1);
});
