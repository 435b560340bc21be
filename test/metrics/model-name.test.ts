import http from 'node:http';
import type { AddressInfo } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { pino } from 'pino';
import { ModelNameDiscovery, type ModelNameDiscoveryOptions } from '../../metrics/model-name.js';

const MODELS = JSON.stringify({ object: 'list', data: [{ id: 'tiny' }, { id: 'adapter' }] });
const DEADLINE_MS = 15_000;

type Respond = (response: http.ServerResponse, request: http.IncomingMessage) => void;

const answer =
  (status: number, body = ''): Respond =>
  (response) =>
    void response.writeHead(status).end(body);

/** A real HTTP server that gives `script` answers in turn and then the last for ever. */
async function frontend(t: ExecutionContext, script: readonly Respond[], port = 0) {
  const requests: http.IncomingMessage[] = [];
  const server = http.createServer((request, response) => {
    const respond = script[Math.min(requests.length, script.length - 1)] as Respond;
    requests.push(request);
    respond(response, request);
  });
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  t.teardown(() => {
    server.close();
    server.closeAllConnections();
  });
  return { server, requests, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` };
}

/** A discovery in a hurry, its log lines and the promise of its name; stopped with the test. */
function discover(t: ExecutionContext, url: string, options: Partial<ModelNameDiscoveryOptions> = {}) {
  const lines: { level: number; msg: string; reason?: string }[] = [];
  const names: string[] = [];
  let wake = () => {};
  const notice = () => wake();
  const logger = pino(
    { level: 'debug' },
    {
      write: (line: string) => {
        lines.push(JSON.parse(line));
        notice();
      },
    },
  );
  const discovery = new ModelNameDiscovery({
    url,
    apiKey: null,
    logger,
    initialDelayMs: 5,
    maxDelayMs: 20,
    ...options,
    onName: (name) => {
      names.push(name);
      notice();
    },
  });
  t.teardown(() => discovery.stop());
  discovery.start();
  /** Resolves once the condition holds; it is looked at after each log line and name. */
  const until = (condition: () => boolean) =>
    new Promise<void>((resolve, reject) => {
      const late = setTimeout(
        () => reject(new Error(`not in time; log: ${JSON.stringify(lines)}`)),
        DEADLINE_MS,
      );
      wake = () => {
        if (!condition()) return;
        clearTimeout(late);
        resolve();
      };
      wake();
    });
  const warnings = () => lines.filter(({ level }) => level === 40).map(({ msg }) => msg);
  return { discovery, lines, names, until, warnings };
}

test('asks through refusals and 503s until the frontend has loaded, then takes the first name, once', async (t) => {
  const probe = await frontend(t, [answer(200, MODELS)]);
  const { port } = probe.server.address() as AddressInfo;
  await new Promise((resolve) => probe.server.close(resolve));

  const { lines, names, until, warnings } = discover(t, `${probe.url}/`);
  await until(() => lines.some(({ reason }) => reason?.includes('ECONNREFUSED') ?? false));
  const loaded = await frontend(t, [answer(503), answer(503), answer(200, MODELS)], port);
  await until(() => names.length > 0);
  t.deepEqual(names, ['tiny']);
  t.deepEqual(warnings(), []);
  t.is(loaded.requests.length, 3);
  t.true(loaded.requests.every(({ url, headers }) => url === '/v1/models' && !headers.authorization));
});

test('starting twice asks once', async (t) => {
  const { url, requests } = await frontend(t, [answer(200, MODELS)]);
  const { discovery, names, until } = discover(t, url);
  discovery.start();
  await until(() => names.length > 0);
  await discovery.stop();
  await discovery.stop();
  t.is(requests.length, 1);
  t.deepEqual(names, ['tiny']);
});

test('sends the API key as bearer token and never logs it', async (t) => {
  const guarded: Respond = (response, { headers }) =>
    answer(headers.authorization === 'Bearer s3cret' ? 200 : 401, MODELS)(
      response,
      {} as http.IncomingMessage,
    );
  const { url } = await frontend(t, [answer(500), guarded]);
  const { lines, names, until } = discover(t, url, { apiKey: 's3cret' });
  await until(() => names.length > 0);
  t.false(JSON.stringify(lines).includes('s3cret'));
});

test('a refused key is one warning that names the setting, and asking goes on, slowly', async (t) => {
  for (const status of [401, 403]) {
    const { url, requests } = await frontend(t, [
      answer(status),
      answer(status),
      answer(status),
      answer(200, MODELS),
    ]);
    const started = performance.now();
    const { names, until, warnings } = discover(t, url, { initialDelayMs: 1, maxDelayMs: 200 });
    await until(() => names.length > 0);
    t.is(warnings().length, 1);
    t.true(warnings()[0]?.includes('frontend.apiKey (STEPTAP_FRONTEND_API_KEY)'));
    t.is(requests.length, 4);
    t.true(performance.now() - started >= 3 * 100); // half the longest delay at least, each time
  }
});

test('an answer that is no list of models is one warning, and asking goes on', async (t) => {
  const garbage = [
    'no JSON',
    'null',
    '[]',
    '{}',
    '{"data":{}}',
    '{"data":[]}',
    '{"data":[{"id":7}]}',
    '{"data":[{"id":""}]}',
  ];
  const script = [...garbage, MODELS].map((body) => answer(200, body));
  const { url } = await frontend(t, script);
  const { lines, names, until, warnings } = discover(t, url);
  await until(() => names.length > 0);
  t.is(lines.filter(({ reason }) => reason !== undefined).length, garbage.length);
  t.is(warnings().length, 1);
  t.true(warnings()[0]?.includes('frontend.url'));
});

test('a body without end is cut at 1 MiB', async (t) => {
  let sent = 0;
  let cut = false;
  const endless: Respond = (response) => {
    const chunk = 'x'.repeat(64 * 1024);
    const more = () => {
      while (!response.destroyed && response.write(chunk)) sent += chunk.length;
    };
    response.on('drain', more).on('close', () => {
      cut = true;
    });
    more();
  };
  const { url } = await frontend(t, [endless, answer(200, MODELS)]);
  const { lines, names, until } = discover(t, url);
  await until(() => names.length > 0);
  t.true(lines.some(({ reason }) => reason === 'more than 1048576 bytes'));
  t.true(cut);
  t.true(sent < 32 * 1024 * 1024);
});

test('silence, and an answer that trickles, are given up at the deadline', async (t) => {
  const silent: Respond = () => {};
  const trickle: Respond = (response) => {
    const timer = setInterval(() => response.write(' '), 20);
    response.on('close', () => clearInterval(timer));
  };
  const { url } = await frontend(t, [silent, trickle, answer(200, MODELS)]);
  const { names, lines, until } = discover(t, url, { attemptTimeoutMs: 150 });
  await until(() => names.length > 0);
  t.is(lines.filter(({ level }) => level === 20).length, 2);
});

test('a frontend that stays away is worth a warning now and then, not at each attempt', async (t) => {
  const { url } = await frontend(t, [answer(503)]);
  const { lines, until, warnings } = discover(t, url, { maxDelayMs: 5, warnIntervalMs: 500 });
  await until(() => warnings().length === 2);
  t.true(warnings()[0]?.includes('held back'));
  t.true(lines.filter(({ level }) => level === 20).length > warnings().length);
});

test('stop aborts what is in flight, and no name comes after it', async (t) => {
  let asked = () => {};
  const inFlight = new Promise<void>((resolve) => {
    asked = resolve;
  });
  let gone = () => {};
  const aborted = new Promise<void>((resolve) => {
    gone = resolve;
  });
  const hold: Respond = (response) => {
    response.on('close', gone);
    response.write(MODELS.slice(0, 10));
    asked();
  };
  const { url } = await frontend(t, [hold]);
  const { discovery, names, warnings } = discover(t, url, { attemptTimeoutMs: 60_000 });
  await inFlight;
  const before = performance.now();
  await discovery.stop();
  t.true(performance.now() - before < 5_000);
  await aborted;
  t.deepEqual(names, []);
  t.deepEqual(warnings(), []);
});

test('stop ends a pause between attempts at once', async (t) => {
  const { url } = await frontend(t, [answer(503)]);
  const { discovery, lines, until } = discover(t, url, { initialDelayMs: 60_000, maxDelayMs: 60_000 });
  await until(() => lines.length > 0);
  const before = performance.now();
  await discovery.stop();
  t.true(performance.now() - before < 5_000);
});

test('stop before start is fine', async (t) => {
  const discovery = new ModelNameDiscovery({
    url: 'http://127.0.0.1:1',
    apiKey: null,
    logger: pino({ level: 'silent' }),
    onName: () => t.fail(),
  });
  await t.notThrowsAsync(discovery.stop());
});
