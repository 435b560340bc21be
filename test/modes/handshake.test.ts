/** Handshake mode: when engines and frontends come, which addresses engines are told, and which ports these take. */
import test from 'ava';
import { parseAddress } from '../../proxy/address.js';
import { StandInEngine } from '../support/engine.js';
import { type FrontendOptions, StandInFrontend } from '../support/frontend.js';
import {
  freePort,
  freePorts,
  type InProcessSidecar,
  runSidecar,
  type SettingsPatch,
  temporaryDirectory,
} from '../support/in-process.js';
import { sameAsFrontend, startVllm, Vllm } from '../support/vllm.js';
import { waitFor } from '../support/wait.js';

function portsOf(engine: StandInEngine): number[] {
  return [...engine.addresses.inputs, ...engine.addresses.outputs].map((text) => {
    const address = parseAddress(text);
    return address !== null && 'port' in address ? address.port : 0;
  });
}

interface Stand {
  readonly sidecar: InProcessSidecar;
  readonly entrance: string;
  readonly handshake: string;
}

/** A sidecar in handshake mode, nobody at either end yet. */
async function runHandshake(
  t: Parameters<typeof runSidecar>[0],
  engine: SettingsPatch['engine'] = {},
): Promise<Stand> {
  const handshake = `tcp://127.0.0.1:${await freePort()}`;
  const entrance = `tcp://127.0.0.1:${await freePort()}`;
  const sidecar = await runSidecar(t, {
    frontend: { handshake },
    engine: { handshake: entrance, ...engine },
    model: { name: 'stand-in' },
  });
  return { sidecar, entrance, handshake };
}

async function startFrontend(
  t: Parameters<typeof runSidecar>[0],
  options: FrontendOptions,
): Promise<StandInFrontend> {
  const frontend = new StandInFrontend(options);
  t.teardown(() => frontend.stop());
  return frontend.start();
}

test('engines that come before the frontend listens get through when it does', async (t) => {
  const { sidecar, entrance, handshake } = await runHandshake(t);
  const engine = new StandInEngine({ chunk: 2 });
  t.teardown(() => engine.stop());
  const started = engine.start(entrance);
  const waiting = async () =>
    (await sidecar.get('/readyz')).text.includes(`frontend does not answer at ${handshake}`);
  await waitFor(waiting, { what: 'not ready, with the reason' });
  const frontend = await startFrontend(t, { handshake });
  await Promise.all([frontend.ready(), started]);
  await frontend.submit({ promptTokens: 5, maxTokens: 4 });
  await sameAsFrontend(t, new Vllm(frontend, [engine], sidecar));
  t.is((await sidecar.get('/readyz')).status, 200);
});

test('each data address of several frontend clients gets a listener of its own', async (t) => {
  const vllm = await startVllm(t, { mode: 'handshake', clients: 3, engines: 2, engine: { chunk: 2 } });
  const [first, second] = vllm.engines;
  const told = first === undefined ? [] : portsOf(first);
  t.is(new Set(told).size, 6);
  t.deepEqual(second?.addresses, first?.addresses);
  const clients = [0, 0, 1, 2, 2, 2];
  await Promise.all(clients.map((client) => vllm.frontend.submit({ promptTokens: 3, maxTokens: 5, client })));
  await sameAsFrontend(t, vllm);
  const { endpoints } = await vllm.sidecar.status();
  const kinds = endpoints.map(({ kind, client }) => `${kind} ${client}`).sort();
  t.deepEqual(kinds, [
    'handshake null',
    ...['outputs', 'requests'].flatMap((kind) => ['0', '1', '2'].map((client) => `${kind} ${client}`)),
  ]);
});

test('an engine that comes later is told the same addresses, and the first one is known in the meantime', async (t) => {
  const { sidecar, entrance, handshake } = await runHandshake(t);
  const frontend = await startFrontend(t, { handshake, engines: 2 });
  const engines = [0, 1].map((index) => new StandInEngine({ index, chunk: 2 }));
  for (const engine of engines) t.teardown(() => engine.stop());
  const [first, second] = engines as [StandInEngine, StandInEngine];
  const ready = frontend.ready();
  await first.start(entrance);
  const known = async () => (await sidecar.status()).engines.length === 1;
  await waitFor(known, { what: 'the first engine known' });
  await second.start(entrance);
  await ready;
  t.deepEqual(second.addresses, first.addresses);
  t.deepEqual(frontend.violations, []);
  await Promise.all([0, 1].map((engine) => frontend.submit({ promptTokens: 5, maxTokens: 4, engine })));
  await sameAsFrontend(t, new Vllm(frontend, engines, sidecar));
});

test('data listeners take their ports from the range that was given', async (t) => {
  const ports = await freePorts(4);
  const { sidecar, entrance, handshake } = await runHandshake(t, { ports });
  const frontend = await startFrontend(t, { handshake, clients: 2 });
  const engine = new StandInEngine({ chunk: 2 });
  t.teardown(() => engine.stop());
  await Promise.all([frontend.ready(), engine.start(entrance)]);
  const { first } = ports;
  t.deepEqual(portsOf(engine).sort(), [first, first + 1, first + 2, first + 3]);
  await frontend.submit({ promptTokens: 5, maxTokens: 4 });
  await sameAsFrontend(t, new Vllm(frontend, [engine], sidecar));
});

test('when the range has no port left INIT passes unchanged, engines go straight, and an error says so', async (t) => {
  const ports = await freePorts(3);
  const { sidecar, entrance, handshake } = await runHandshake(t, { ports });
  const frontend = await startFrontend(t, { handshake, clients: 2 });
  const engine = new StandInEngine({ chunk: 2 });
  t.teardown(() => engine.stop());
  await Promise.all([frontend.ready(), engine.start(entrance)]);
  t.deepEqual(engine.addresses, frontend.addresses);
  const { tokens } = await frontend.submit({ promptTokens: 5, maxTokens: 4 });
  t.is(tokens.length, 4);
  const [line] = sidecar.logged('error', 'INIT is passed on unchanged');
  t.regex(
    String(line?.['error']),
    new RegExp(`engine.ports ${ports.first}-${ports.last} has no free port left`),
  );
  t.is(await sidecar.sample('steptap_decode_errors_total', { kind: 'handshake', reason: 'init' }), 1);
});

test('a port of the range that someone else has is passed over', async (t) => {
  const ports = await freePorts(3);
  const other = new StandInFrontend({ handshake: `tcp://127.0.0.1:${ports.first + 1}` });
  t.teardown(() => other.stop());
  await other.start();
  const { entrance, handshake } = await runHandshake(t, { ports });
  const frontend = await startFrontend(t, { handshake });
  const engine = new StandInEngine();
  t.teardown(() => engine.stop());
  await Promise.all([frontend.ready(), engine.start(entrance)]);
  t.deepEqual(portsOf(engine).sort(), [ports.first, ports.last]);
});

test('a frontend that starts again with other addresses takes the ports of the one before', async (t) => {
  const ports = await freePorts(2);
  const { sidecar, entrance, handshake } = await runHandshake(t, { ports });
  const sums: number[] = [];
  for (const tokens of [3, 5]) {
    const frontend = await startFrontend(t, { handshake });
    const engine = new StandInEngine({ chunk: 8 });
    await Promise.all([frontend.ready(), engine.start(entrance)]);
    t.deepEqual(portsOf(engine).sort(), [ports.first, ports.last]);
    t.is(await sidecar.sample('steptap_frontend_path_usable'), 1);
    await frontend.submit({ promptTokens: 10, maxTokens: tokens });
    sums.push(frontend.histogram.totals().sum);
    await engine.stop();
    await frontend.stop();
    const gone = async () => (await sidecar.status()).engines.every(({ connections }) => connections === 0);
    await waitFor(gone, { what: 'all connections gone' });
  }
  t.deepEqual(sums, [13, 15]);
  const labels = { engine: '0', model_name: 'stand-in' };
  t.is(await sidecar.sample('vllm:iteration_tokens_total_sum', labels), 28);
  t.is(sidecar.logged('info', 'a new vLLM has started').length, 1);
});

test('engines are told the advertised host where steptap listens on all addresses', async (t) => {
  const handshake = `tcp://127.0.0.1:${await freePort()}`;
  const port = await freePort();
  const sidecar = await runSidecar(t, {
    frontend: { handshake },
    engine: { handshake: `tcp://0.0.0.0:${port}`, advertiseHost: 'localhost' },
    model: { name: 'stand-in' },
  });
  const frontend = await startFrontend(t, { handshake });
  const engine = new StandInEngine({ chunk: 2 });
  t.teardown(() => engine.stop());
  await Promise.all([frontend.ready(), engine.start(`tcp://127.0.0.1:${port}`)]);
  for (const address of [...engine.addresses.inputs, ...engine.addresses.outputs]) {
    t.regex(address, /^tcp:\/\/localhost:\d+$/);
  }
  await frontend.submit({ promptTokens: 5, maxTokens: 4 });
  await sameAsFrontend(t, new Vllm(frontend, [engine], sidecar));
});

test('an INIT with addresses that are not relayed, and one that is none, pass with an error in the log', async (t) => {
  const { sidecar, entrance, handshake } = await runHandshake(t);
  const elsewhere = temporaryDirectory(t);
  // A frontend whose data sockets are files in a directory that steptap does not watch.
  const frontend = await startFrontend(t, { handshake, directory: elsewhere });
  const engine = new StandInEngine({ chunk: 2 });
  t.teardown(() => engine.stop());
  await Promise.all([frontend.ready(), engine.start(entrance)]);
  t.deepEqual(engine.addresses, frontend.addresses);
  await frontend.submit({ promptTokens: 5, maxTokens: 4 });
  t.is(sidecar.logged('error', 'this socket is not relayed').length, 2);
});
