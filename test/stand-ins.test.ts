import { createHash, type Hash } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { request } from 'undici';
import { Child } from './support/child.js';
import { complete } from './support/completions.js';
import { type EngineOptions, StandInEngine } from './support/engine.js';
import { type FrontendOptions, StandInFrontend } from './support/frontend.js';
import { batch, GARBAGE, VLLM_VERSIONS } from './support/messages.js';
import { parsePrometheusText, seriesKey } from './support/prometheus-text.js';
import { waitFor } from './support/wait.js';
import { WORKLOAD, WORKLOAD_COUNTS, WORKLOAD_SUM } from './support/workload.js';

interface StandIns {
  readonly frontend: StandInFrontend;
  readonly engine: StandInEngine;
  readonly engines: readonly StandInEngine[];
}

async function start(
  t: ExecutionContext,
  options: FrontendOptions,
  engine: EngineOptions = {},
): Promise<StandIns> {
  const frontend = await new StandInFrontend(options).start();
  t.teardown(() => frontend.stop());
  const count = options.engines ?? 1;
  const version = options.version === undefined ? {} : { version: options.version };
  const engines = Array.from(
    { length: count },
    (_, index) => new StandInEngine({ ...engine, ...version, index }),
  );
  for (const each of engines) t.teardown(() => each.stop());
  await Promise.all(engines.map((each) => each.start(frontend.handshakeAddress)));
  await frontend.ready();
  const [first] = engines;
  if (first === undefined) throw new Error('no engine');
  return { frontend, engine: first, engines };
}

async function temporaryDirectory(t: ExecutionContext): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'st-'));
  t.teardown(() => rm(directory, { recursive: true, force: true }));
  return directory;
}

async function scrape(frontend: StandInFrontend): Promise<Map<string, number>> {
  return parsePrometheusText(await (await request(`${frontend.url}/metrics`)).body.text());
}

for (const mode of ['socket files', 'TCP'] as const) {
  for (const [chunk, count] of WORKLOAD_COUNTS) {
    test(`the validation workload over ${mode} in chunks of ${chunk} makes ${count} observations`, async (t) => {
      const options = mode === 'TCP' ? {} : { directory: await temporaryDirectory(t) };
      const { frontend, engine } = await start(t, options, { chunk });
      if (options.directory !== undefined) {
        const names = await readdir(options.directory);
        t.is(names.length, 3, 'handshake, requests, outputs');
        for (const name of names) t.regex(name, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
      }
      for (const each of WORKLOAD) t.is(await complete(frontend.url, each), each.outputTokens);
      t.deepEqual(frontend.histogram.totals(), { count, sum: WORKLOAD_SUM });
      const samples = await scrape(frontend);
      const labels = { engine: '0', model_name: 'stand-in' };
      t.is(samples.get(seriesKey('vllm:iteration_tokens_total_sum', labels)), WORKLOAD_SUM);
      t.is(samples.get(seriesKey('vllm:iteration_tokens_total_bucket', { ...labels, le: '+Inf' })), count);
      t.deepEqual([frontend.violations, engine.errors], [[], []]);
    });
  }
}

test('the embedded workload is the one of the fixture', async (t) => {
  const fixture = new URL('../../test/fixtures/validation-workload.json', import.meta.url);
  const { prompts, outputs, sum, count } = JSON.parse(await readFile(fixture, 'utf8'));
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

for (const version of VLLM_VERSIONS) {
  test(`in the layout of vLLM ${version} cached tokens do not count`, async (t) => {
    const { frontend, engine } = await start(t, { version }, { chunk: 3, cachedShare: 0.5 });
    const { tokens, finishReason } = await frontend.submit({ promptTokens: 100, maxTokens: 7 });
    t.deepEqual([tokens.length, finishReason], [7, 1]);
    t.deepEqual(frontend.histogram.totals(), { count: 3, sum: 57 });
    t.deepEqual([frontend.violations, engine.errors], [[], []]);
  });
}

test('outputs come on the socket of the client that asked, whichever engine answers', async (t) => {
  const { frontend, engines } = await start(t, { clients: 3, engines: 2 }, { batchSize: 8, chunk: 2 });
  const wrong: string[] = [];
  const ids = [0, 1, 2].map((client) => `for-${client}`);
  frontend.onOutput = (client, frames) => {
    for (const [other, id] of ids.entries()) {
      if (other !== client && Buffer.concat([...frames]).includes(id)) wrong.push(`${id} on ${client}`);
    }
  };
  await Promise.all(
    [0, 1].flatMap((engine) =>
      ids.map((id, client) =>
        frontend.submit({ promptTokens: 5, maxTokens: 40, client, engine, id: `${id}-${engine}` }),
      ),
    ),
  );
  t.deepEqual(wrong, []);
  for (const { index, steps } of engines) {
    const { count, sum } = frontend.histogram.totals(index);
    t.is(sum, 3 * 45);
    t.true(count >= 60 && steps <= count, `${count} messages in ${steps} steps`);
  }
  t.deepEqual(frontend.violations, []);
});

test('one step moves several requests of a client in one message', async (t) => {
  const { frontend, engine } = await start(t, {}, { batchSize: 4, stepsPerSecond: 50 });
  await Promise.all([1, 2, 3, 4].map(() => frontend.submit({ promptTokens: 10, maxTokens: 5 })));
  t.is(frontend.histogram.totals().sum, 4 * 15);
  t.true(engine.steps < 20);
});

test('an aborted request ends at the engine and is not counted any more', async (t) => {
  const { frontend, engine } = await start(t, {}, { stepsPerSecond: 100 });
  const { id, done } = frontend.open({ promptTokens: 1, maxTokens: 1_000_000 });
  await waitFor(() => frontend.histogram.totals().count > 3, { what: 'outputs' });
  await frontend.abort([id]);
  t.is((await done).finishReason, 2);
  const { sum } = frontend.histogram.totals();
  await waitFor(() => engine.running.length === 0, { what: 'the engine let go' });
  await frontend.submit({ promptTokens: 10, maxTokens: 1 });
  t.is(frontend.histogram.totals().sum, sum + 11);
});

test('a client that hangs up in the middle of a stream aborts its request', async (t) => {
  const { frontend, engine } = await start(t, {}, { stepsPerSecond: 100 });
  const hangUp = new AbortController();
  const endless = { promptTokens: 3, outputTokens: 1_000_000, stream: true };
  const call = complete(frontend.url, endless, { signal: hangUp.signal });
  await waitFor(() => frontend.histogram.totals().count > 3, { what: 'outputs' });
  hangUp.abort();
  await t.throwsAsync(call, { any: true, name: 'AbortError' });
  await waitFor(() => engine.running.length === 0, { what: 'the engine let go' });
});

test('a dead engine fails its requests and tells every client', async (t) => {
  const { frontend, engine } = await start(t, { clients: 2 }, { stepsPerSecond: 50 });
  const call = frontend.submit({ promptTokens: 1, maxTokens: 1_000_000 });
  await waitFor(() => frontend.histogram.totals().count > 0, { what: 'outputs' });
  await Promise.all([t.throwsAsync(call, { message: /dead/ }), engine.die()]);
  await waitFor(() => frontend.deaths.length === 2, { what: 'both clients know' });
});

test('garbage is no observation and the frontend goes on', async (t) => {
  const { frontend, engine } = await start(t, {});
  let seen = 0;
  frontend.onOutput = () => seen++;
  await engine.sendGarbage(0);
  await engine.sendRaw(0, [batch({ outputs: [{ id: 'x', tokens: 3 }], utility: [1n, null, [null, null]] })]);
  await waitFor(() => seen === GARBAGE.length + 1, { what: 'garbage arrived' });
  t.deepEqual(frontend.histogram.totals(), { count: 0, sum: 0 });
  await frontend.submit({ promptTokens: 1, maxTokens: 1 });
  t.deepEqual(frontend.histogram.totals(), { count: 1, sum: 2 });
});

test('an engine told to repeat its prefill stats is counted so', async (t) => {
  const { frontend } = await start(t, {}, { repeatPrefill: true });
  await frontend.submit({ promptTokens: 100, maxTokens: 3 });
  t.deepEqual(frontend.histogram.totals(), { count: 3, sum: 303 });
});

test('a utility call whose id exceeds 2^53 is answered and is no observation', async (t) => {
  const { frontend } = await start(t, {});
  t.deepEqual(await frontend.utility(0, 0, 'get_supported_tasks'), [null, ['generate']]);
  t.deepEqual(frontend.histogram.totals(), { count: 0, sum: 0 });
});

test('auxiliary frames arrive as they were sent', async (t) => {
  const { frontend, engine } = await start(t, {});
  const hashes = { sent: createHash('sha256'), received: createHash('sha256') };
  const add = (hash: Hash, frames: readonly Uint8Array[]): void => {
    for (const frame of frames) hash.update(`${frame.length}:`).update(frame);
  };
  frontend.onRequest = (_engine, _client, frames) => add(hashes.sent, frames);
  engine.onInput = (_client, frames) => add(hashes.received, frames);
  const auxiliary = [new Uint8Array(0), Buffer.alloc(5_000_000, 7)];
  await frontend.submit({ promptTokens: 1, maxTokens: 1, auxiliary });
  t.is(hashes.received.digest('hex'), hashes.sent.digest('hex'));
});

test('an engine that starts a second time is noted, since a real frontend would end', async (t) => {
  const frontend = await new StandInFrontend({ engines: 2, handover: true }).start();
  t.teardown(() => frontend.stop());
  for (let attempt = 0; attempt < 2; attempt++) {
    const engine = await new StandInEngine().start(frontend.handshakeAddress);
    t.teardown(() => engine.stop());
    await waitFor(() => frontend.readyEngines.length > 0, { what: 'READY' });
  }
  await waitFor(() => frontend.violations.length === 3, { what: 'violations' });
  t.deepEqual(
    [...frontend.violations].sort(),
    ['HELLO', 'READY', 'registration'].map((what) => `second ${what} of engine 0`),
  );
});

test('the API key is asked of /v1 and of nothing else', async (t) => {
  const { frontend } = await start(t, { apiKey: 'secret', modelName: 'tiny' });
  const models = `${frontend.url}/v1/models`;
  t.is((await request(models)).statusCode, 401);
  const { statusCode, body } = await request(models, { headers: { authorization: 'Bearer secret' } });
  t.is(statusCode, 200);
  t.like(await body.json(), { data: [{ id: 'tiny' }] });
  t.is((await request(`${frontend.url}/health`)).statusCode, 200);
});

test('a pod process keeps itself busy, over its own files, until SIGTERM', async (t) => {
  const directory = await temporaryDirectory(t);
  const options = JSON.stringify({ load: true, modelName: 'tiny', engines: 2 });
  const pod = new Child('the pod', 'stand-in-main.js', ['pod', options], { VLLM_RPC_BASE_PATH: directory });
  t.teardown(() => pod.kill());
  const { url } = await pod.line((line) => line['event'] === 'ready', 'it is ready');
  t.is((await readdir(directory)).length, 3);
  for (const engine of ['0', '1']) {
    const count = seriesKey('vllm:iteration_tokens_total_count', { engine, model_name: 'tiny' });
    await waitFor(
      async () => {
        const { body } = await request(`${url}/metrics`);
        return (parsePrometheusText(await body.text()).get(count) ?? 0) > 0;
      },
      { what: `observations of engine ${engine}` },
    );
  }
  t.is(await pod.stop(), 0);
});

test('a process that is told nothing sensible ends with 64', async (t) => {
  const child = new Child('a stand-in', 'stand-in-main.js', ['nonsense']);
  await t.throwsAsync(
    child.line(() => true, 'it says anything'),
    { message: /ended before.*usage/s },
  );
  t.is(await child.exited(), 64);
});
