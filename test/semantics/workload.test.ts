/** The validation workload, in both modes, against engines that send 1, 4 or 8 tokens in a message. */
import { readFileSync } from 'node:fs';
import test from 'ava';
import { complete } from '../support/completions.js';
import { StandInEngine } from '../support/engine.js';
import { StandInFrontend } from '../support/frontend.js';
import { freePort, temporaryDirectory } from '../support/in-process.js';
import { parsePrometheusText } from '../support/prometheus-text.js';
import { startSidecar } from '../support/sidecar.js';
import { histogramOf, type Mode, sameAsFrontend, startVllm } from '../support/vllm.js';
import { waitFor } from '../support/wait.js';
import { WORKLOAD, WORKLOAD_COUNTS, WORKLOAD_SUM } from '../support/workload.js';

interface Fixture {
  readonly prompts: number[];
  readonly outputs: number[];
  readonly sum: number;
  readonly count: Record<number, number>;
}

const MODES: readonly Mode[] = ['directory', 'handshake'];

for (const mode of MODES) {
  for (const [chunk, count] of WORKLOAD_COUNTS) {
    test(`${mode}, chunk ${chunk}: after each request every bucket is the frontend's own, at the end ${count} observations of ${WORKLOAD_SUM} tokens`, async (t) => {
      const vllm = await startVllm(t, { mode, engine: { chunk } });
      const before = histogramOf(await vllm.sidecar.samples());
      t.is(Object.keys(before).length, 16);
      t.true(Object.values(before).every((value) => value === 0));
      for (const [index, request] of WORKLOAD.entries()) {
        t.is(await complete(vllm.frontend.url, request), request.outputTokens);
        await sameAsFrontend(t, vllm, `request ${index}`);
      }
      t.deepEqual(await vllm.observed(), { count, sum: WORKLOAD_SUM });
      t.is(vllm.arrived.length, count);
    });
  }
}

test('the workload is the one that the fixtures describe', (t) => {
  const path = new URL('../../../test/fixtures/validation-workload.json', import.meta.url);
  const { prompts, outputs, sum, count } = JSON.parse(readFileSync(path, 'utf8')) as Fixture;
  t.deepEqual(
    WORKLOAD.map(({ promptTokens }) => promptTokens),
    prompts,
  );
  t.deepEqual(
    WORKLOAD.map(({ outputTokens }) => outputTokens),
    outputs,
  );
  t.is(WORKLOAD_SUM, sum);
  t.deepEqual(Object.fromEntries(WORKLOAD_COUNTS), count);
});

test('as processes, the name asked from the frontend: 21 observations of 52845 tokens', async (t) => {
  const directory = temporaryDirectory(t);
  const httpPort = await freePort();
  const sidecar = await startSidecar({
    args: ['--ipc-dir', directory],
    env: { STEPTAP_FRONTEND_URL: `http://127.0.0.1:${httpPort}` },
  });
  t.teardown(() => sidecar.stop());
  const frontend = await new StandInFrontend({ directory, httpPort }).start();
  t.teardown(() => frontend.stop());
  const endpoints = async () => ((await sidecar.status()) as { endpoints: unknown[] }).endpoints.length;
  await waitFor(async () => (await endpoints()) === 3, { what: 'all sockets taken over' });
  const engine = new StandInEngine({ chunk: 8 });
  t.teardown(() => engine.stop());
  await Promise.all([frontend.ready(), engine.start(frontend.handshakeAddress)]);
  for (const request of WORKLOAD) await complete(frontend.url, request);
  const own = histogramOf(parsePrometheusText(frontend.histogram.text()));
  const taps = async () => histogramOf(await sidecar.metrics());
  await waitFor(async () => Object.keys(await taps()).length > 0, { what: 'the model name' });
  t.deepEqual(await taps(), own);
  t.deepEqual(frontend.histogram.totals(), { count: 21, sum: WORKLOAD_SUM });
  t.is((await sidecar.readyz()).status, 200);
});
