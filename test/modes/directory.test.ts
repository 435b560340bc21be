/** The socket directory: what is taken over, what is handed back, what is left alone, and what is cleaned up. */
import { randomUUID } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { Pair, Publisher, Reply, Request, type Socket, Subscriber, XPublisher } from 'zeromq';
import { StandInEngine } from '../support/engine.js';
import { StandInFrontend } from '../support/frontend.js';
import { InProcessSidecar, runSidecar, temporaryDirectory } from '../support/in-process.js';
import { addFrames, batch } from '../support/messages.js';
import { BY_HAND, sameAsFrontend, startVllm, Vllm } from '../support/vllm.js';
import { waitFor } from '../support/wait.js';
import { RawListener, RawPeer } from '../transparency/raw-peer.js';
import { HELLO, initWith, joinPeers, openPath } from '../transparency/ways-in.js';
import { engineIdentity, greeting, message, ready } from '../transparency/zmtp-writer.js';

function closing<S extends Socket>(t: ExecutionContext, socket: S): S {
  t.teardown(() => socket.close());
  return socket;
}

/** Resolves once the sidecar has taken over, and not handed back, exactly these sockets. */
async function relays(sidecar: InProcessSidecar, uuids: readonly string[]): Promise<void> {
  const expected = [...uuids].sort().join();
  const relayed = async () => {
    const { endpoints } = await sidecar.status();
    const names = endpoints.map(({ upstream }) => upstream.replace(/^.*\/(.*)\.up$/, '$1'));
    return names.sort().join() === expected;
  };
  await waitFor(relayed, { what: `relays of ${expected}` });
}

/** The file of a socket whose process was killed. */
async function deadSocket(path: string): Promise<void> {
  const server = net.createServer().listen(`${path}~`);
  await new Promise((resolve) => server.once('listening', resolve));
  renameSync(`${path}~`, path); // Node would remove the name it bound
  await new Promise((resolve) => server.close(resolve));
}

test('sockets that are there before the start are taken over, and those that come later', async (t) => {
  const dir = temporaryDirectory(t);
  const before = randomUUID();
  await closing(t, new Pair()).bind(`ipc://${join(dir, before)}`);
  const sidecar = await runSidecar(t, { ipc: { dir } });
  await relays(sidecar, [before]);
  const later = randomUUID();
  await closing(t, new Pair()).bind(`ipc://${join(dir, later)}`);
  await relays(sidecar, [before, later]);
  t.true(existsSync(join(dir, `${before}.up`)) && existsSync(join(dir, before)));
});

test('a vLLM that starts after the sidecar is counted like one that was there', async (t) => {
  const dir = temporaryDirectory(t);
  const sidecar = await runSidecar(t, { ipc: { dir }, model: { name: 'stand-in' } });
  const frontend = await new StandInFrontend({ directory: dir }).start();
  t.teardown(() => frontend.stop());
  await waitFor(async () => (await sidecar.status()).endpoints.length === 3, { what: 'sockets taken over' });
  const engine = new StandInEngine({ chunk: 4 });
  t.teardown(() => engine.stop());
  await Promise.all([frontend.ready(), engine.start(frontend.handshakeAddress)]);
  await frontend.submit({ promptTokens: 10, maxTokens: 8 });
  const vllm = new Vllm(frontend, [engine], sidecar);
  t.deepEqual(await vllm.observed(), { count: 2, sum: 18 });
  await sameAsFrontend(t, vllm);
  const kinds = (await sidecar.status()).endpoints.map(({ kind, client }) => `${kind} ${client}`);
  // vLLM closes its handshake socket once all engines are ready, and then it is forgotten.
  t.deepEqual(kinds.filter((kind) => kind !== 'handshake null').sort(), ['outputs 0', 'requests 0']);
});

test('data sockets that are bound after INIT has named them (vLLM up to 0.15) are known when they come', async (t) => {
  const dir = temporaryDirectory(t);
  const [entrance, requests, outputs] = [randomUUID(), randomUUID(), randomUUID()].map((name) =>
    join(dir, name),
  );
  const handshake = await RawListener.listen(t, { path: entrance });
  handshake.opening = Buffer.concat([greeting(), ready('ROUTER', Buffer.alloc(0))]);
  const sidecar = await runSidecar(t, { ipc: { dir } });
  const { frontend } = await joinPeers(
    t,
    { path: String(entrance) },
    handshake,
    ready('DEALER', engineIdentity(0)),
    [message([HELLO])],
  );
  await frontend.send(message([initWith({ inputs: [`ipc://${requests}`], outputs: [`ipc://${outputs}`] })]));
  await waitFor(() => sidecar.logged('info', 'not there yet').length === 2, { what: 'INIT read' });
  t.false((await sidecar.get('/readyz')).text.includes('any more'), 'no engine could miss them yet');
  const late = [
    await RawListener.listen(t, { path: requests }),
    await RawListener.listen(t, { path: outputs }),
  ];
  for (const listener of late) listener.opening = Buffer.concat([greeting(), ready('ROUTER')]);
  const kinds = async () =>
    (await sidecar.status()).endpoints.map(({ kind, client }) => `${kind} ${client}`).sort();
  await waitFor(async () => (await kinds()).join() === 'handshake null,outputs 0,requests 0', {
    what: 'both known',
  });
});

test('data sockets of engines whose INIT went past the sidecar are known by what they do', async (t) => {
  const dir = temporaryDirectory(t);
  const [requests, outputs] = [randomUUID(), randomUUID()].map((name) => join(dir, name)) as [string, string];
  const router = await RawListener.listen(t, { path: requests });
  router.opening = Buffer.concat([greeting(), ready('ROUTER', Buffer.alloc(0))]);
  const pull = await RawListener.listen(t, { path: outputs });
  pull.opening = Buffer.concat([greeting(), ready('PULL')]);
  const sidecar = await runSidecar(t, { ipc: { dir } });
  const identity = ready('DEALER', engineIdentity(0));
  const { engine, frontend } = await joinPeers(t, { path: requests }, router, identity, [
    message([Buffer.alloc(0)]),
  ]);
  const push = await joinPeers(t, { path: outputs }, pull, ready('PUSH'), []);
  await frontend.send(
    message([...addFrames({ id: 'r1', promptTokens: [1, 2], maxTokens: 5 })].map(Buffer.from)),
  );
  await engine.receivesAtLeast(frontend.sentBytes);
  await push.engine.send(message([Buffer.from(batch({ outputs: [{ id: 'r1', tokens: 3, computed: 2 }] }))]));
  const sum = () => sidecar.sample('vllm:iteration_tokens_total_sum', { engine: '0', model_name: 'tiny' });
  await waitFor(async () => (await sum()) === 5, { what: 'the step counted' });
  t.is((await sidecar.get('/readyz')).status, 200);
  const kinds = (await sidecar.status()).endpoints.map(({ kind, client }) => `${kind} ${client}`).sort();
  t.deepEqual(kinds, ['outputs 0', 'requests 0']);
});

test('a data socket that goes while engines are connected to the other one makes it not ready, and says which', async (t) => {
  const { sidecar, outputs, sockets, named } = await openPath(t, 'directory');
  t.is((await sidecar.get('/readyz')).status, 200);
  sockets.outputs.server.close();
  outputs.frontend.socket.destroy();
  const { text } = await waitFor(
    async () => {
      const answer = await sidecar.get('/readyz');
      return answer.status === 503 && answer;
    },
    { what: 'not ready' },
  );
  t.true(text.includes(`frontend does not listen at ${named.outputs[0]} any more: restart vLLM`), text);
});

for (const [type, create] of [
  ['XPUB', () => new XPublisher({ linger: 0 })],
  ['PUB', () => new Publisher({ linger: 0 })],
] as const) {
  test(`a worker queue (${type}) is handed back: workers connect directly`, async (t) => {
    const dir = temporaryDirectory(t);
    const sidecar = await runSidecar(t, { ipc: { dir } });
    const uuid = randomUUID();
    const queue = closing(t, create());
    const path = join(dir, uuid);
    await queue.bind(`ipc://${path}`);
    const handedBack = () => sidecar.logged('info', 'handed back').find((line) => line['socket'] === path);
    t.is((await waitFor(handedBack, { what: 'handed back' }))['socketType'], type);
    t.true(existsSync(path));
    t.false(existsSync(`${path}.up`));
    const worker = closing(t, new Subscriber({ linger: 0 }));
    worker.subscribe('');
    worker.connect(`ipc://${path}`);
    const received = worker.receive();
    let isReceived = false;
    received.then(
      () => {
        isReceived = true;
      },
      () => {},
    );
    // A publisher drops what it sends before the subscription has arrived.
    const hasArrived = async () => {
      if (!isReceived) await queue.send('step');
      return isReceived;
    };
    await waitFor(hasArrived, { what: 'a message' });
    t.is(String((await received)[0]), 'step');
    t.is(await sidecar.sample('steptap_connections_total', { kind: 'other' }), undefined);
    // Whatever makes it look again, the queue is not taken a second time.
    await closing(t, new Pair()).bind(`ipc://${join(dir, randomUUID())}`);
    await waitFor(async () => (await sidecar.status()).endpoints.length === 1, {
      what: 'the next one taken',
    });
    t.false(existsSync(`${path}.up`));
  });
}

test('what is neither request, output nor handshake socket is relayed and never decoded', async (t) => {
  const dir = temporaryDirectory(t);
  const [reply, pair] = [closing(t, new Reply({ linger: 0 })), closing(t, new Pair({ linger: 0 }))];
  const uuids = [randomUUID(), randomUUID()] as const;
  await reply.bind(`ipc://${join(dir, uuids[0])}`);
  await pair.bind(`ipc://${join(dir, uuids[1])}`);
  const sidecar = await runSidecar(t, { ipc: { dir } });
  await relays(sidecar, uuids);
  const request = closing(t, new Request({ linger: 0 }));
  request.connect(`ipc://${join(dir, uuids[0])}`);
  const other = closing(t, new Pair({ linger: 0 }));
  other.connect(`ipc://${join(dir, uuids[1])}`);
  for (const text of ['one', 'two']) {
    await request.send([text, Buffer.of(0xc1)]);
    t.deepEqual((await reply.receive()).map(String)[0], text);
    await reply.send(`${text} answered`);
    t.is(String(await request.receive()), `${text} answered`);
    await other.send(['', text]);
    t.deepEqual((await pair.receive()).map(String), ['', text]);
  }
  t.is(await sidecar.sample('steptap_connections', { kind: 'other' }), 2);
  const wrong = [...(await sidecar.samples())].filter(
    ([key, value]) => /decode_errors|opaque/.test(key) && value > 0,
  );
  t.deepEqual(wrong, []);
});

test('names that are no UUID, and UUIDs that are no sockets, are left alone', async (t) => {
  const dir = temporaryDirectory(t);
  const uuid = randomUUID();
  const others = ['vllm.sock', `${uuid}.sock`, `${uuid.slice(0, -1)}`, `x${randomUUID()}`].map((name) =>
    join(dir, name),
  );
  for (const path of others) await closing(t, new Pair()).bind(`ipc://${path}`);
  const file = join(dir, randomUUID());
  const folder = join(dir, randomUUID());
  writeFileSync(file, 'no socket');
  mkdirSync(folder);
  const before = [...others, file, folder].map((path) => statSync(path).ino);
  const sidecar = await runSidecar(t, { ipc: { dir } });
  const taken = randomUUID();
  await closing(t, new Pair()).bind(`ipc://${join(dir, taken)}`);
  await relays(sidecar, [taken]);
  t.deepEqual(
    [...others, file, folder].map((path) => statSync(path).ino),
    before,
  );
  t.is(readdirSync(dir).filter((name) => name.endsWith('.up')).length, 1);
});

test('a pair whose vLLM is dead is removed, both names, and so is what a killed takeover left', async (t) => {
  const dir = temporaryDirectory(t);
  const uuid = randomUUID();
  await deadSocket(join(dir, uuid));
  await deadSocket(join(dir, `${uuid}.up`));
  await deadSocket(join(dir, `${randomUUID()}.in`));
  const sidecar = await runSidecar(t, { ipc: { dir } });
  await waitFor(() => sidecar.logged('info', 'stale pair removed').length === 1, {
    what: 'the pair removed',
  });
  t.deepEqual(
    readdirSync(dir).filter((name) => !name.startsWith('.')),
    [],
  );
});

test('when vLLM ends its sockets are forgotten, and the next vLLM in the directory continues the series', async (t) => {
  const vllm = await startVllm(t, { engine: { chunk: 2 } });
  const { sidecar } = vllm;
  await vllm.frontend.submit({ promptTokens: 5, maxTokens: 2 });
  for (const engine of vllm.engines) engine.options = BY_HAND;
  await vllm.open(['never-finished']);
  await Promise.all(vllm.engines.map((engine) => engine.stop()));
  await vllm.frontend.stop();
  const dir = vllm.frontend.options.directory ?? '';
  const left = () => readdirSync(dir).filter((name) => !name.startsWith('.'));
  await waitFor(async () => (await sidecar.status()).endpoints.length === 0, { what: 'all forgotten' });
  t.deepEqual(left(), []);
  t.is((await sidecar.get('/readyz')).status, 503);

  const frontend = await new StandInFrontend({ directory: dir }).start();
  t.teardown(() => frontend.stop());
  await waitFor(async () => (await sidecar.status()).endpoints.length === 3, { what: 'the new ones' });
  const engine = new StandInEngine({ chunk: 2 });
  t.teardown(() => engine.stop());
  await Promise.all([frontend.ready(), engine.start(frontend.handshakeAddress)]);
  t.is(await vllm.counter('tracked_requests', { client: '0' }), 0);
  t.is(await vllm.counter('frontend_path_usable'), 1);
  await frontend.submit({ promptTokens: 7, maxTokens: 2 });
  const before = vllm.frontend.histogram.totals();
  const after = frontend.histogram.totals();
  t.deepEqual(after, { count: 1, sum: 9 });
  t.deepEqual(await vllm.observed(), { count: before.count + after.count, sum: before.sum + after.sum });
  t.is((await sidecar.get('/readyz')).status, 200);
});

test('an engine that connects between bind and listen of the frontend waits, and gets through', async (t) => {
  const dir = temporaryDirectory(t);
  const uuid = randomUUID();
  const path = join(dir, uuid);
  await deadSocket(path); // refuses, as a bound socket does that does not listen yet
  const sidecar = await runSidecar(t, { ipc: { dir } });
  await relays(sidecar, [uuid]);
  const engine = await RawPeer.connect(t, { path });
  await engine.send(Buffer.concat([greeting(), ready('DEALER', engineIdentity(0))]));
  const dialling = async () => (await sidecar.get('/readyz')).text.includes('does not answer');
  await waitFor(dialling, { what: 'the refusal' });
  rmSync(`${path}.up`);
  const listener = await RawListener.listen(t, { path: `${path}.up` });
  const frontend = await listener.next();
  await waitFor(() => frontend.receivedBytes === engine.sentBytes, { what: 'the opening at the frontend' });
  t.deepEqual(frontend.received, engine.sent);
});

test('a socket file that someone removes is put there again while vLLM listens', async (t) => {
  const dir = temporaryDirectory(t);
  const uuid = randomUUID();
  const pair = closing(t, new Pair({ linger: 0 }));
  await pair.bind(`ipc://${join(dir, uuid)}`);
  const sidecar = await runSidecar(t, { ipc: { dir } });
  await relays(sidecar, [uuid]);
  rmSync(join(dir, uuid));
  await waitFor(() => existsSync(join(dir, uuid)), { what: 'the file again' });
  const other = closing(t, new Pair({ linger: 0 }));
  other.connect(`ipc://${join(dir, uuid)}`);
  await other.send('through');
  t.is(String(await pair.receive()), 'through');
  t.is(sidecar.logged('warn', 'socket file was removed').length, 1);
});

test('a directory that goes away makes it not ready, and is watched again when it comes back', async (t) => {
  const parent = temporaryDirectory(t);
  const dir = join(parent, 'sockets');
  mkdirSync(dir);
  const sidecar = await runSidecar(t, { ipc: { dir } });
  rmSync(dir, { recursive: true });
  const missing = async () =>
    (await sidecar.get('/readyz')).text.includes(`socket directory ${dir} is missing`);
  await waitFor(missing, { what: 'not ready, with the reason' });
  mkdirSync(dir);
  const uuid = randomUUID();
  await closing(t, new Pair({ linger: 0 })).bind(`ipc://${join(dir, uuid)}`);
  await relays(sidecar, [uuid]);
  t.false(await missing());
});

test('a second sidecar on the same directory is refused and changes nothing in it', async (t) => {
  const vllm = await startVllm(t);
  const dir = vllm.frontend.options.directory ?? '';
  // The handshake's socket goes once all engines are ready.
  const isOver = async () => (await vllm.sidecar.status()).endpoints.length === 2;
  await waitFor(isOver, { what: 'the end of the handshake' });
  const before = readdirSync(dir).sort();
  const second = new InProcessSidecar({ ipc: { dir } });
  await t.throwsAsync(second.start(), {
    code: 'STEPTAP_DIRECTORY_IN_USE',
    message: new RegExp(`another steptap already relays the sockets in ${dir}`),
  });
  await second.close();
  t.deepEqual(readdirSync(dir).sort(), before);
  await vllm.open(['r1']);
  await vllm.step([{ id: 'r1', tokens: 2 }]);
  t.deepEqual(await vllm.observed(), { count: 1, sum: 2 });
});

test('INIT that names TCP addresses on its way through the directory gets listeners in their place', async (t) => {
  const dir = temporaryDirectory(t);
  const frontend = new StandInFrontend({ handshake: `ipc://${join(dir, randomUUID())}`, clients: 2 });
  t.teardown(() => frontend.stop());
  await frontend.start();
  const sidecar = await runSidecar(t, { ipc: { dir }, model: { name: 'stand-in' } });
  await waitFor(async () => (await sidecar.status()).endpoints.length === 1, { what: 'the handshake taken' });
  const engine = new StandInEngine({ chunk: 3 });
  t.teardown(() => engine.stop());
  await Promise.all([frontend.ready(), engine.start(frontend.handshakeAddress)]);
  for (const list of ['inputs', 'outputs'] as const) {
    t.is(engine.addresses[list].length, 2);
    for (const [index, address] of engine.addresses[list].entries()) {
      t.regex(address, /^tcp:\/\/127\.0\.0\.1:\d+$/);
      t.not(address, frontend.addresses[list][index]);
    }
  }
  await Promise.all([0, 1].map((client) => frontend.submit({ promptTokens: 10, maxTokens: 5, client })));
  await sameAsFrontend(t, new Vllm(frontend, [engine], sidecar));
});
