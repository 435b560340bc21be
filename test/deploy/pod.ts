/**
 * A pod without a cluster: its containers as processes, in Kubernetes' order and with what the rendered manifests say,
 * and a real Prometheus that scrapes them as the PodMonitor does. Checks by PromQL that the recording rules and alerts
 * say the right thing, for the validation workload and for an engine that breaks. Needs `kubectl` and `prometheus`.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Container, passes } from './container.js';
import { readPod } from './manifest.js';
import { Prometheus } from './prometheus.js';
import type { Misbehaviour } from './vllm-container.js';

interface Workload {
  readonly prompts: readonly number[];
  readonly outputs: readonly number[];
  readonly sum: number;
  readonly count: Readonly<Record<string, number>>;
}

const OURS = '{source="steptap"}';
const MISBEHAVIOURS: readonly (readonly [Misbehaviour, string])[] = [
  ['repeat prefill', 'SteptapRepeatedPrefillReports'],
  ['send garbage', 'SteptapDecodeErrors'],
  ['die', 'SteptapEngineDead'],
];
/** Queries of the dashboard that have nothing to show while all is well. */
const QUIET = /steptap_connection_failures_total|steptap_decode_errors_total.*> 0/;

const folder = mkdtempSync(join(tmpdir(), 'pod-'));
const [metricsPort = 0, vllmPort = 0, prometheusPort = 0] = await freePorts(3);
const pod = readPod(folder, metricsPort);
const started: Container[] = [];
try {
  const began = performance.now();
  const steptap = await startSteptap();
  const startup = Math.round(performance.now() - began);
  assert.ok(await passes(pod.sidecar.liveness), 'alive before there is a vLLM');
  assert.ok(!(await passes(pod.sidecar.readiness)), 'not ready before there is an engine');

  const vllm = container('vllm', ['dist/test/deploy/vllm-container.js', String(vllmPort)], pod.vllm.env);
  await vllm.untilPasses({ path: '/health', port: vllmPort, periodSeconds: 1, failureThreshold: 30 });
  await steptap.untilPasses(pod.sidecar.readiness);

  const prometheus = await Prometheus.start(folder, prometheusPort, [
    { job: 'test/steptap', port: metricsPort, relabelConfigs: pod.relabelConfigs },
    { job: 'test/vllm', port: vllmPort, relabelConfigs: [] },
  ]);
  started.push(prometheus.container);
  await checkWorkload(prometheus);
  await checkBrokenEngine(prometheus, vllm);

  // The kubelet restarts a sidecar in place. The stand-in is like the Python frontend, which never finds the way back.
  await steptap.end('SIGKILL', 5000);
  const again = await startSteptap();
  await saysWhere(prometheus, 'SteptapFrontendPathUnusable');
  assert.ok(!(await passes(pod.sidecar.readiness)), 'not ready while requests would hang');
  assert.ok(await passes(pod.sidecar.liveness), 'but not to be killed for it');

  assert.equal(await vllm.end('SIGTERM', 10_000), 0, 'vLLM ends first');
  assert.ok(again.running, 'steptap outlives vLLM');
  assert.equal(await again.end('SIGTERM', 10_000), 0, `steptap drains and ends:\n${again.output}`);
  await prometheus.untilFiring('SteptapDown');
  process.stdout.write(
    `pod: started in order (startup probe after ${startup} ms), rules and ${MISBEHAVIOURS.length + 2} alerts right, ended in order\n`,
  );
} catch (error) {
  for (const { name, output } of started) process.stderr.write(`--- ${name}\n${output}\n`);
  throw error;
} finally {
  for (const each of started) await each.end('SIGKILL', 5000);
  rmSync(folder, { recursive: true, force: true });
}

/** Fourteen requests, one token a step: the answers are worked out by hand from the 96 observations. */
async function checkWorkload(prometheus: Prometheus): Promise<void> {
  const workload = JSON.parse(readFileSync('test/fixtures/validation-workload.json', 'utf8')) as Workload;
  const steps = workload.count['1'] ?? 0;
  const metric = 'vllm:iteration_tokens_total';
  // Zeros on record first, in both series: a rate needs something to rise from.
  await prometheus.untilValue(`count(count_over_time(${metric}_count[1m]) >= 2)`, 2);
  for (const [index, prompt] of workload.prompts.entries())
    await complete(prompt, workload.outputs[index] ?? 0);

  await prometheus.untilValue(`${metric}_sum${OURS}`, workload.sum);
  await prometheus.untilValue(`${metric}_count${OURS}`, steps);
  await prometheus.untilValue(`${metric}_sum{source=""}`, workload.sum);
  await prometheus.untilValue(`sum(${metric}_sum)`, 2 * workload.sum);

  await prometheus.untilValue('steptap:step_tokens:mean5m', workload.sum / steps);
  // 82 steps made one token, 14 also prefilled.
  await prometheus.untilValue('steptap:steps:share5m{tokens="0-1"}', 82 / steps);
  await prometheus.untilValue('steptap:steps:share5m{tokens="16385-"}', 2 / steps);
  await prometheus.untilValue('sum(steptap:steps:share5m)', 1);
  await prometheus.untilValue('steptap:step_tokens:p50_5m', (0.5 * steps) / 82);
  // The 91st step lies at the end of (512, 1024], the 93rd at that of (2048, 4096].
  await prometheus.untilValue('steptap:step_tokens:p95_5m', 2048 + 2048 * ((0.95 * steps - 91) / 2));
  await prometheus.untilValue('steptap:tokens:rate5m / steptap:steps:rate5m', workload.sum / steps);
  await prometheus.untilValue('steptap:steps_untracked:share5m', 0);
  await prometheus.untilQuiet();

  const served = await (await fetch(`http://127.0.0.1:${metricsPort}/metrics`)).text();
  for (const name of metricsUsed())
    assert.ok(served.includes(`# TYPE ${name} `), `steptap serves no ${name}`);
  for (const expr of dashboardQueries()) {
    if (!QUIET.test(expr))
      assert.notEqual((await prometheus.query(expr)).length, 0, `the dashboard shows nothing for ${expr}`);
  }
}

async function checkBrokenEngine(prometheus: Prometheus, vllm: Container): Promise<void> {
  for (const [misbehaviour, name] of MISBEHAVIOURS) {
    vllm.tell(misbehaviour);
    if (misbehaviour === 'repeat prefill') await complete(10, 3);
    await saysWhere(prometheus, name);
  }
}

/** Waits for the alert, and reads its text as a person would who has to find the pod. */
async function saysWhere(prometheus: Prometheus, name: string): Promise<void> {
  const { annotations } = await prometheus.untilFiring(name);
  assert.match(annotations['summary'] ?? '', /test\/vllm-0/, `${name} says which pod`);
  assert.doesNotMatch(Object.values(annotations).join('\n'), /<no value>|\{\{/, `${name} has all its labels`);
}

async function startSteptap(): Promise<Container> {
  const steptap = container('steptap', ['dist/proxy/main.js', ...pod.sidecar.args], {
    ...pod.sidecar.env,
    STEPTAP_METRICS_HOST: '127.0.0.1',
    STEPTAP_METRICS_PORT: String(metricsPort),
    STEPTAP_FRONTEND_URL: `http://127.0.0.1:${vllmPort}`,
  });
  await steptap.untilPasses(pod.sidecar.startup);
  return steptap;
}

/** One completion; a prompt given as text counts a token for each byte. */
async function complete(promptTokens: number, outputTokens: number): Promise<void> {
  const response = await fetch(`http://127.0.0.1:${vllmPort}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt: 'x'.repeat(promptTokens), max_tokens: outputTokens }),
    signal: AbortSignal.timeout(20_000),
  });
  assert.equal(response.status, 200, await response.text());
}

function dashboardQueries(): readonly string[] {
  const dashboard = JSON.parse(readFileSync('deploy/grafana/dashboard.json', 'utf8')) as {
    panels: readonly { targets?: readonly { expr: string }[] }[];
  };
  return dashboard.panels
    .flatMap(({ targets = [] }) => targets.map(({ expr }) => expr))
    .map((expr) => expr.replaceAll('$__rate_interval', '5m').replaceAll(/\$\w+/g, '.*'));
}

/** Every metric of steptap's that a rule, an alert or the dashboard asks for. */
function metricsUsed(): ReadonlySet<string> {
  const files = [
    'prometheus/recording-rules.yaml',
    'prometheus/alerting-rules.yaml',
    'grafana/dashboard.json',
  ];
  const text = files.map((file) => readFileSync(join('deploy', file), 'utf8')).join('\n');
  return new Set(text.match(/\b(steptap|process|nodejs)_\w+(?=\{)/g));
}

function container(
  name: string,
  script: readonly string[],
  env: Readonly<Record<string, string>>,
): Container {
  const made = new Container(name, [process.execPath, ...script], env);
  started.push(made);
  return made;
}

async function freePorts(count: number): Promise<readonly number[]> {
  const servers = Array.from({ length: count }, () => createServer().listen(0, '127.0.0.1'));
  await Promise.all(servers.map((server) => once(server, 'listening')));
  const ports = servers.map((server) => (server.address() as AddressInfo).port);
  for (const server of servers) server.close();
  return ports;
}
