import { spawn, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import test from 'ava';
import { IterationHistogram } from '../../metrics/iteration-histogram.js';
import { createRegistry } from '../../metrics/registry.js';
import { FAMILIES, type FamilyName, Telemetry } from '../../proxy/telemetry.js';
import { parsePrometheusText, seriesKey } from '../support/prometheus-text.js';

const NAMES = Object.keys(FAMILIES) as FamilyName[];

function setUp(engines = 1) {
  const telemetry = new Telemetry();
  const histogram = new IterationHistogram();
  histogram.modelName = 'tiny';
  for (let engine = 0; engine < engines; engine++) histogram.addEngine(engine);
  return { telemetry, histogram, registry: createRegistry(telemetry, histogram, { version: '1.2.3' }) };
}

/** Traffic of many engines and clients, as much as a large pod shows. */
function fill(telemetry: Telemetry, histogram: IterationHistogram, engines: number): void {
  for (let index = 0; index < engines; index++) {
    const engine = String(index);
    histogram.observe(index, 1000);
    for (const client of ['0', '1']) {
      for (const direction of ['to_engine', 'to_frontend']) {
        telemetry.add('bytes_total', { engine, client, direction }, 123_456_789);
        telemetry.add('messages_total', { engine, client, direction }, 4711);
      }
      telemetry.set('tracked_requests', { client }, 17);
    }
    telemetry.add('untracked_outputs_total', { engine });
    telemetry.add('engine_steps_total', { engine }, 4000);
  }
  for (const kind of ['handshake', 'requests', 'outputs', 'other']) {
    telemetry.add('connections_total', { kind });
    telemetry.set('connections', { kind }, 2);
    telemetry.add('connection_failures_total', { kind, reason: 'not_zmtp' });
  }
}

test('every family of the telemetry has HELP and TYPE, its value only once it has one', async (t) => {
  const { registry } = setUp();
  const text = await registry.render('text');
  const samples = parsePrometheusText(text);
  for (const name of NAMES) {
    const { kind, labels, help } = FAMILIES[name];
    t.true(text.includes(`# HELP steptap_${name} ${help}\n# TYPE steptap_${name} ${kind}\n`), name);
    const series = [...samples.keys()].filter((key) => key.split('{')[0] === `steptap_${name}`);
    t.deepEqual(series, labels.length === 0 ? [`steptap_${name}`] : [], name);
  }
  t.is(samples.get('steptap_unknown_engine_batches_total'), 0);
  t.is(samples.get('steptap_frontend_path_usable'), 1);
});

test('a scrape shows what the telemetry says then, and no series twice', async (t) => {
  const { telemetry, registry } = setUp();
  telemetry.add('bytes_total', { engine: '0', client: '1', direction: 'to_engine' }, 5);
  telemetry.set('connections', { kind: 'outputs' }, 2);
  telemetry.add('unknown_engine_batches_total', {});
  const bytes = seriesKey('steptap_bytes_total', { engine: '0', client: '1', direction: 'to_engine' });
  const first = parsePrometheusText(await registry.render('text'));
  t.is(first.get(bytes), 5);
  t.is(first.get('steptap_connections{kind="outputs"}'), 2);
  t.is(first.get('steptap_unknown_engine_batches_total'), 1);

  telemetry.add('bytes_total', { engine: '0', client: '1', direction: 'to_engine' }, 7);
  telemetry.set('connections', { kind: 'outputs' }, 0);
  const second = parsePrometheusText(await registry.render('text'));
  t.is(second.get(bytes), 12);
  t.is(second.get('steptap_connections{kind="outputs"}'), 0);
});

test('numbers kept elsewhere are brought in once per scrape, in either format', async (t) => {
  const { telemetry, registry } = setUp();
  let folds = 0;
  telemetry.beforeRead(() => {
    telemetry.set('tracked_requests', { client: '0' }, ++folds);
  });
  for (const format of ['text', 'openmetrics'] as const) {
    const before = folds;
    const samples = parsePrometheusText(await registry.render(format));
    t.is(folds, before + 1);
    t.is(samples.get('steptap_tracked_requests{client="0"}'), folds);
  }
});

test('tells its version, and whether the model name is known', async (t) => {
  const { histogram, registry } = setUp();
  const info = seriesKey('steptap_build_info', { version: '1.2.3', node: process.versions.node });
  const known = parsePrometheusText(await registry.render('text'));
  t.is(known.get(info), 1);
  t.is(known.get('steptap_model_name_known'), 1);
  t.is(known.get(seriesKey('vllm:iteration_tokens_total_count', { engine: '0', model_name: 'tiny' })), 0);

  histogram.modelName = null;
  const unknown = parsePrometheusText(await registry.render('text'));
  t.is(unknown.get('steptap_model_name_known'), 0);
  t.false([...unknown.keys()].some((key) => key.startsWith('vllm:')));
});

test('process and Node defaults are there, without a prefix', async (t) => {
  const samples = parsePrometheusText(await setUp().registry.render('text'));
  for (const name of ['process_cpu_seconds_total', 'process_resident_memory_bytes', 'process_open_fds']) {
    t.true((samples.get(name) ?? 0) > 0, name);
  }
  t.true(samples.has('nodejs_eventloop_lag_p99_seconds'));
});

test('OpenMetrics has the same series, families of counters without _total, and ends in EOF', async (t) => {
  const { telemetry, histogram, registry } = setUp(2);
  fill(telemetry, histogram, 2);
  // Each format twice and in turn: printing one must not change what the other prints.
  for (let round = 0; round < 2; round++) {
    const openMetrics = await registry.render('openmetrics');
    const text = await registry.render('text');
    const own = (body: string) =>
      new Map([...parsePrometheusText(body)].filter(([key]) => /^(steptap_|vllm:)/.test(key)));
    t.deepEqual(own(openMetrics), own(text));
    t.true(openMetrics.endsWith('\n# EOF\n'));
    t.false(openMetrics.includes('\n\n'));
    t.true(openMetrics.includes('# TYPE steptap_bytes counter\nsteptap_bytes_total{'));
    t.true(openMetrics.includes('# TYPE steptap_connections gauge\nsteptap_connections{'));
    t.true(openMetrics.includes('# TYPE steptap_connections_total unknown\nsteptap_connections_total{'));
    const families = [...openMetrics.matchAll(/^# TYPE (\S+)/gm)].map(([, family]) => family);
    t.is(new Set(families).size, families.length);
    t.true(openMetrics.includes('# TYPE vllm:iteration_tokens_total histogram\n'));
    t.true(text.includes('# TYPE steptap_bytes_total counter\nsteptap_bytes_total{'));
  }
  t.is(registry.contentType('text'), 'text/plain; version=0.0.4; charset=utf-8');
  t.is(registry.contentType('openmetrics'), 'application/openmetrics-text; version=1.0.0; charset=utf-8');
});

test('batches can pass in the middle of a scrape', async (t) => {
  const { telemetry, histogram, registry } = setUp(2000);
  fill(telemetry, histogram, 2000);
  let turns = 0;
  setImmediate(function turn() {
    turns++;
    setImmediate(turn).unref();
  }).unref();
  await registry.render('text');
  t.true(turns > 0);
});

test('neither the registry nor a scrape keeps the process alive', async (t) => {
  const script = `
    import { IterationHistogram } from './dist/metrics/iteration-histogram.js';
    import { createRegistry } from './dist/metrics/registry.js';
    import { Telemetry } from './dist/proxy/telemetry.js';
    await createRegistry(new Telemetry(), new IterationHistogram(), { version: '0' }).render('text');`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'ignore', 'inherit'],
    timeout: 20_000,
  });
  const code = await new Promise((resolve) => child.once('exit', resolve));
  t.is(code, 0);
});

test("promtool objects to nothing but vLLM's name", async (t) => {
  if (!existsSync('/usr/bin/promtool')) {
    t.log('skipped: no /usr/bin/promtool (Debian package prometheus)');
    t.pass();
    return;
  }
  const { telemetry, histogram, registry } = setUp(2);
  fill(telemetry, histogram, 2);
  const { stdout, stderr } = spawnSync('/usr/bin/promtool', ['check', 'metrics'], {
    input: await registry.render('text'),
    encoding: 'utf8',
    timeout: 20_000,
  });
  const complaints = `${stdout}${stderr}`.trim().split('\n').sort();
  t.deepEqual(complaints, [
    `vllm:iteration_tokens_total metric names should not contain ':'`,
    `vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix`,
  ]);
});
