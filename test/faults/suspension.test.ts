/** Any of the three stopped for some seconds under load: all arrives, in order, and all is counted. */
import { setTimeout as delay } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { request } from 'undici';
import { complete } from '../support/completions.js';
import { eventually } from '../support/in-process.js';
import { parsePrometheusText } from '../support/prometheus-text.js';
import { WAYS } from '../support/toxic-rig.js';
import { plan, spawnEngine, spawnFrontend, startStandIns, totals } from '../support/toxic-stand-ins.js';
import { Victim } from '../support/toxic-victim.js';

const STOPPED_MS = 2000;
const REQUESTS = 8;
const TOKENS = 1200;
const LOAD = { batchSize: REQUESTS, stepsPerSecond: 400 } as const;

for (const way of WAYS) {
  test(`steptap stopped for two seconds under load delays messages and loses, reorders, miscounts none (${way})`, async (t) => {
    const { frontend, engine, steptap } = await startStandIns(t, way, { engine: LOAD });
    const sent: string[] = [];
    const arrived: string[] = [];
    engine.onSend = (_, frames) => sent.push(hex(frames));
    frontend.onOutput = (_, frames) => arrived.push(hex(frames));
    const load = Array.from({ length: REQUESTS }, () =>
      frontend.submit({ promptTokens: 100, maxTokens: TOKENS }),
    );
    await eventually('load', () => arrived.length > 100);
    steptap.signal('SIGSTOP');
    await delay(STOPPED_MS);
    t.true(arrived.length < sent.length, 'held back while steptap stood still');
    steptap.signal('SIGCONT');
    for (const { tokens } of await Promise.all(load)) t.is(tokens.length, TOKENS);
    t.deepEqual(arrived, sent);
    t.deepEqual(totals(await steptap.samples()), frontend.histogram.totals());
  });
}

for (const stopped of ['frontend', 'engine'] as const) {
  test(`the ${stopped} stopped for two seconds under load: all requests finish and both count the same`, async (t) => {
    const planned = await plan(t, 'directory');
    const steptap = await Victim.start(t, planned.args);
    const frontend = await spawnFrontend(t, steptap, planned);
    const engine = spawnEngine(t, frontend.handshake, LOAD);
    const url = await frontend.url();
    const load = Array.from({ length: REQUESTS }, () =>
      complete(url, { promptTokens: 100, outputTokens: TOKENS, stream: false }),
    );
    await eventually('load', async () => totals(await steptap.samples()).count > 100);
    const target = stopped === 'frontend' ? frontend.child : engine;
    target.signal('SIGSTOP');
    await delay(STOPPED_MS);
    target.signal('SIGCONT');
    for (const tokens of await Promise.all(load)) t.is(tokens, TOKENS);
    await same(t, url, steptap);
  });
}

/** Every bucket, sum and count of the frontend's own histogram, as steptap has it. */
async function same(t: ExecutionContext, url: string, steptap: Victim): Promise<void> {
  const ours = await steptap.samples();
  const theirs = parsePrometheusText(await (await request(`${url}/metrics`)).body.text());
  t.true(theirs.size > 10);
  for (const [series, value] of theirs) t.is(ours.get(series), value, series);
}

function hex(frames: readonly Uint8Array[]): string {
  return frames.map((frame) => Buffer.from(frame).toString('base64')).join();
}
