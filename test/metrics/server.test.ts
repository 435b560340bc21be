import net from 'node:net';
import { gunzipSync } from 'node:zlib';
import test, { type ExecutionContext } from 'ava';
import { pino } from 'pino';
import { Agent, request } from 'undici';
import { IterationHistogram } from '../../metrics/iteration-histogram.js';
import { createRegistry, type MetricsRegistry } from '../../metrics/registry.js';
import { MetricsServer, type MetricsServerOptions } from '../../metrics/server.js';
import { SteptapError } from '../../proxy/errors.js';
import { Telemetry } from '../../proxy/telemetry.js';
import { parsePrometheusText } from '../support/prometheus-text.js';
import { waitFor } from '../support/wait.js';

const logger = pino({ level: 'silent' });

function registryWith(modelName: string | null): MetricsRegistry {
  const histogram = new IterationHistogram();
  histogram.modelName = modelName;
  histogram.addEngine(0);
  return createRegistry(new Telemetry(), histogram, { version: '0.0.0' });
}

const REGISTRY = registryWith('tiny');

/** A server on a free port of its own, closed with the test, and a client that opens a connection per request. */
async function setUp(t: ExecutionContext, options: Partial<MetricsServerOptions> = {}) {
  const server = new MetricsServer({
    registry: REGISTRY,
    host: '127.0.0.1',
    port: 0,
    health: { bound: () => true, unreadyReasons: () => [] },
    status: () => ({}),
    logger,
    ...options,
  });
  const { port } = await server.listen();
  const dispatcher = new Agent({ pipelining: 0 });
  t.teardown(async () => {
    await dispatcher.destroy();
    await server.close();
  });
  const ask = async (path: string, method = 'GET', headers: Record<string, string> = {}) => {
    const response = await request(`http://127.0.0.1:${port}${path}`, { dispatcher, method, headers });
    const bytes = Buffer.from(await response.body.arrayBuffer());
    return { status: response.statusCode, headers: response.headers, bytes, text: bytes.toString() };
  };
  return { server, port, ask };
}

/** What the server answers to `bytes`, until it closes. */
async function rawAnswer(port: number, bytes: string): Promise<string> {
  const socket = net.connect(port, '127.0.0.1', () => socket.write(bytes));
  socket.on('error', () => {}); // it may reset what it did not read
  let answer = '';
  socket.on('data', (chunk) => {
    answer += chunk;
  });
  await new Promise((resolve) => socket.once('close', resolve));
  return answer;
}

test('/metrics is Prometheus text, uncompressed unless asked', async (t) => {
  const { ask } = await setUp(t);
  const { status, headers, text } = await ask('/metrics?collect=all');
  t.is(status, 200);
  t.is(headers['content-type'], 'text/plain; version=0.0.4; charset=utf-8');
  t.is(headers['content-encoding'], undefined);
  t.is(headers['vary'], 'Accept, Accept-Encoding');
  t.is(headers['content-length'], String(Buffer.byteLength(text)));
  t.is(parsePrometheusText(text).get('vllm:iteration_tokens_total_count{engine="0",model_name="tiny"}'), 0);
});

test('/metrics escapes the model name on its way over HTTP', async (t) => {
  const { ask } = await setUp(t, { registry: registryWith('a"b\\c\nü模') });
  t.true((await ask('/metrics')).text.includes(String.raw`model_name="a\"b\\c\nü模",engine="0"`));
});

test('/metrics is OpenMetrics for who prefers it', async (t) => {
  const { ask } = await setUp(t);
  const cases: [accept: string, openMetrics: boolean][] = [
    // Prometheus 2 and 3 as they ask by default.
    [
      'application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1',
      true,
    ],
    [
      'application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1',
      true,
    ],
    ['Application/OpenMetrics-Text; version="1.0.0"', true],
    ['application/openmetrics-text', true],
    ['application/openmetrics-text;version=0.0.1', false],
    ['application/openmetrics-text;q=0', false],
    ['application/openmetrics-text;q=0.3,text/plain;q=0.8', false],
    ['application/openmetrics-text;q=much', false],
    ['text/html,*/*', false],
    ['application/json', false],
  ];
  for (const [accept, openMetrics] of cases) {
    const { status, headers, text } = await ask('/metrics', 'GET', { accept });
    t.is(status, 200);
    const type = openMetrics ? 'application/openmetrics-text; version=1.0.0' : 'text/plain; version=0.0.4';
    t.is(headers['content-type'], `${type}; charset=utf-8`, accept);
    t.is(text.endsWith('# EOF\n'), openMetrics, accept);
  }
});

test('/metrics is compressed where gzip is allowed, and not where it is refused', async (t) => {
  const { ask } = await setUp(t);
  const cases: [acceptEncoding: string, zipped: boolean][] = [
    ['gzip', true],
    ['deflate, GZIP;q=0.5', true],
    ['*', true],
    ['gzip;q=0', false],
    ['gzip; q=0.000, *', false],
    ['*;q=0', false],
    ['deflate, br', false],
    ['', false],
  ];
  for (const [acceptEncoding, zipped] of cases) {
    const { headers, bytes } = await ask('/metrics', 'GET', { 'accept-encoding': acceptEncoding });
    t.is(headers['content-encoding'], zipped ? 'gzip' : undefined, acceptEncoding);
    t.is(headers['content-length'], String(bytes.length));
    const probe = await ask('/livez', 'GET', { 'accept-encoding': acceptEncoding });
    t.is(probe.headers['content-encoding'], undefined, 'three bytes are not worth it');
    t.notThrows(() => parsePrometheusText((zipped ? gunzipSync(bytes) : bytes).toString()), acceptEncoding);
  }
});

test('/livez and /healthz are ok even where nothing is bound or ready', async (t) => {
  const { ask } = await setUp(t, { health: { bound: () => false, unreadyReasons: () => ['no'] } });
  for (const path of ['/livez', '/healthz']) t.like(await ask(path), { status: 200, text: 'ok\n' });
});

test('/startupz turns from 503 to 200 when everything is bound', async (t) => {
  let bound = false;
  const { ask } = await setUp(t, { health: { bound: () => bound, unreadyReasons: () => [] } });
  t.is((await ask('/startupz')).status, 503);
  bound = true;
  t.like(await ask('/startupz'), { status: 200, text: 'ok\n' });
});

test('/readyz is 503 with a reason a line, and ok without', async (t) => {
  let reasons = ['no engine connected', 'draining'];
  const { ask } = await setUp(t, { health: { bound: () => true, unreadyReasons: () => reasons } });
  t.like(await ask('/readyz'), { status: 503, text: 'no engine connected\ndraining\n' });
  reasons = [];
  t.like(await ask('/readyz'), { status: 200, text: 'ok\n' });
});

test('/status is what the sidecar says, as JSON', async (t) => {
  const { ask } = await setUp(t, { status: () => ({ engines: [{ index: 0 }] }) });
  const { status, headers, text } = await ask('/status');
  t.is(status, 200);
  t.is(headers['content-type'], 'application/json');
  t.deepEqual(JSON.parse(text), { engines: [{ index: 0 }] });
});

test('/ links to every route', async (t) => {
  const { ask } = await setUp(t);
  const { headers, text } = await ask('/');
  t.is(headers['content-type'], 'text/html; charset=utf-8');
  const links = [...text.matchAll(/href="([^"]+)"/g)].map(([, href]) => href as string);
  t.deepEqual(links.sort(), ['/healthz', '/livez', '/metrics', '/readyz', '/startupz', '/status']);
  for (const link of links) t.is((await ask(link)).status, 200, link);
});

test('HEAD has the headers of GET and no body', async (t) => {
  const { ask } = await setUp(t);
  for (const path of ['/livez', '/readyz', '/startupz', '/status', '/']) {
    const [get, head] = [await ask(path), await ask(path, 'HEAD')];
    t.is(head.status, get.status);
    t.is(head.bytes.length, 0);
    t.is(head.headers['content-length'], String(get.bytes.length), path);
    t.is(head.headers['content-type'], get.headers['content-type']);
  }
  const metrics = await ask('/metrics', 'HEAD', { 'accept-encoding': 'gzip' });
  t.is(metrics.bytes.length, 0);
  t.is(metrics.headers['content-encoding'], 'gzip');
  t.true(Number(metrics.headers['content-length']) > 500);
});

test('an unknown path is 404, another method on a known one 405 with Allow', async (t) => {
  const { ask } = await setUp(t);
  for (const path of ['/nothing', '/metrics/', '//metrics', '/constructor']) {
    t.is((await ask(path)).status, 404, path);
  }
  for (const method of ['POST', 'PUT', 'DELETE', 'OPTIONS', 'PATCH']) {
    const answer = await ask('/metrics', method);
    t.is(answer.status, 405, method);
    t.is(answer.headers['allow'], 'GET, HEAD');
  }
  t.is((await ask('/nothing', 'POST')).status, 404);
});

test('headers over 16 KiB are 431, what is not HTTP 400, and the server goes on', async (t) => {
  const { port, ask } = await setUp(t);
  const oversized = `GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: ${'a'.repeat(17 * 1024)}\r\n\r\n`;
  t.regex(await rawAnswer(port, oversized), /^HTTP\/1\.1 431 /);
  t.regex(await rawAnswer(port, '\xff\0\0\0 no HTTP\r\n\r\n'), /^HTTP\/1\.1 400 /);
  t.is((await ask('/livez')).status, 200);
});

test('an exception in a handler is a 500 and a log line, and the server goes on', async (t) => {
  const lines: string[] = [];
  const { ask } = await setUp(t, {
    logger: pino({ level: 'error' }, { write: (line: string) => void lines.push(line) }),
    status: () => {
      throw new Error('status is broken');
    },
  });
  const { status, text } = await ask('/status');
  t.is(status, 500);
  t.false(text.includes('broken'));
  t.is(lines.length, 1);
  t.like(JSON.parse(lines[0] as string), { level: 50, err: { message: 'status is broken' }, url: '/status' });
  t.is((await ask('/livez')).status, 200);
});

test('a rejected scrape is a 500 as well', async (t) => {
  const telemetry = new Telemetry();
  const registry = createRegistry(telemetry, new IterationHistogram(), { version: '0' });
  const { ask } = await setUp(t, { registry });
  const restore = telemetry.beforeRead(() => {
    throw new Error('fold is broken');
  });
  t.is((await ask('/metrics')).status, 500);
  restore();
  t.is((await ask('/metrics')).status, 200);
});

test('a port in use is one error that names address, port and setting', async (t) => {
  const { port } = await setUp(t);
  const second = new MetricsServer({
    registry: REGISTRY,
    host: '127.0.0.1',
    port,
    health: { bound: () => true, unreadyReasons: () => [] },
    status: () => ({}),
    logger,
  });
  const error = await t.throwsAsync(second.listen(), { instanceOf: SteptapError, code: 'METRICS_LISTEN' });
  t.is(
    error?.message,
    `cannot serve metrics on 127.0.0.1:${port}: the port is in use; set another with --metrics-port (STEPTAP_METRICS_PORT)`,
  );
  await t.notThrowsAsync(second.close());
});

test('an address that is not ours is an error that names the host setting', async (t) => {
  const cases: [host: string, message: RegExp][] = [
    [
      '192.0.2.1',
      /on 192\.0\.2\.1:0: the address is not one of this machine; .* --metrics-host \(STEPTAP_METRICS_HOST\)/,
    ],
    ['2001:db8::1', /on \[2001:db8::1\]:0: .*--metrics-host/],
    // A label over 63 characters: no resolver is asked.
    [`${'a'.repeat(64)}.invalid`, /the host name does not resolve.*--metrics-host/],
  ];
  for (const [host, message] of cases) {
    await t.throwsAsync(setUp(t, { host }), { instanceOf: SteptapError, message });
  }
});

test('close ends idle and half-sent connections, and frees the port', async (t) => {
  const { server, port, ask } = await setUp(t);
  const socket = net.connect(port, '127.0.0.1');
  socket.on('error', () => {});
  await new Promise((resolve) => socket.once('connect', resolve));
  socket.write('GET /livez HTTP/1.1\r\n');
  await ask('/livez');
  const closed = new Promise((resolve) => socket.once('close', resolve));
  await server.close();
  await closed;
  await setUp(t, { port });
  t.pass();
});

test('probes get in however many connections idle: the one that idled longest goes', async (t) => {
  const { port, ask } = await setUp(t);
  const idle = Array.from({ length: 200 }, () => net.connect(port, '127.0.0.1'));
  t.teardown(() => {
    for (const socket of idle) socket.destroy();
  });
  let closed = 0;
  for (const socket of idle) {
    socket.on('error', () => {});
    socket.on('close', () => closed++);
    socket.resume();
    socket.write('GET /livez HTTP/1.1\r\nHost: x\r\n\r\n');
  }
  for (let probe = 0; probe < 20; probe++) t.is((await ask('/livez')).status, 200);
  await waitFor(() => closed >= 200 - 128, { what: 'the surplus closed' });
  t.true(idle.some((socket) => !socket.closed));
});
