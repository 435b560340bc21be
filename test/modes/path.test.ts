/** Whether a frontend still reaches an engine whose request connection was replaced; and both modes at once. */
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import test from 'ava';
import { freePort, runSidecar, temporaryDirectory } from '../support/in-process.js';
import { array, int, str } from '../support/msgpack-encoder.js';
import { waitFor } from '../support/wait.js';
import { RawListener, RawPeer } from '../transparency/raw-peer.js';
import { connectTo, HELLO, initWith, joinPeers, openPath, toldAddresses } from '../transparency/ways-in.js';
import { engineIdentity, greeting, message, ready } from '../transparency/zmtp-writer.js';

const ADD = message([Buffer.of(0), array([str('r1'), array([int(1)])])]);

for (const [library, routerReady, isLost] of [
  ['libzmq', ready('ROUTER', Buffer.alloc(0)), true],
  ['zmq.rs', ready('ROUTER'), false],
] as const) {
  for (const order of ['before', 'after'] as const) {
    test(`a replaced request connection of a ${library} ROUTER whose READY comes ${order} the engine's is ${isLost ? 'lost until a request passes' : 'usable'}`, async (t) => {
      const { sidecar, sockets, requests, told } = await openPath(t, 'handshake');
      sockets.requests.opening = Buffer.alloc(0);
      requests.engine.socket.destroy();
      await waitFor(() => requests.frontend.hasEnded, { what: 'the end at the frontend' });
      requests.frontend.socket.end();
      t.is(await sidecar.sample('steptap_frontend_path_usable'), 1);

      const engine = await RawPeer.connect(t, connectTo(told.inputs[0]));
      const identity = ready('DEALER', engineIdentity(0));
      await engine.send(greeting());
      const frontend = await waitFor(
        () => sockets.requests.accepted.find((peer) => peer.receivedBytes === 64 && !peer.hasEnded),
        { what: 'the new connection at the frontend' },
      );
      const says = [
        async () => {
          await frontend.send(Buffer.concat([greeting(), routerReady]));
          await engine.receivesAtLeast(frontend.sentBytes);
        },
        async () => {
          await engine.send(identity);
          await frontend.receivesAtLeast(engine.sentBytes);
        },
      ];
      for (const say of order === 'before' ? says : says.reverse()) await say();
      t.is(await sidecar.sample('steptap_frontend_path_usable'), isLost ? 0 : 1);
      t.is((await sidecar.get('/readyz')).text.includes('restart vLLM'), isLost);

      await frontend.send(ADD);
      await engine.receivesAtLeast(frontend.sentBytes);
      t.is(await sidecar.sample('steptap_frontend_path_usable'), 1);
      t.is((await sidecar.get('/readyz')).status, 200);
    });
  }
}

test('both modes at once: a local engine through the directory and a remote one through the handshake are told the same', async (t) => {
  const dir = temporaryDirectory(t);
  const path = join(dir, randomUUID());
  const host = '127.0.0.1';
  const [local, remote, requests, outputs] = await Promise.all([
    RawListener.listen(t, { path }),
    RawListener.listen(t, { host, port: 0 }),
    RawListener.listen(t, { host, port: 0 }),
    RawListener.listen(t, { host, port: 0 }),
  ]);
  for (const listener of [local, remote, requests]) {
    listener.opening = Buffer.concat([greeting(), ready('ROUTER', Buffer.alloc(0))]);
  }
  outputs.opening = Buffer.concat([greeting(), ready('PULL')]);
  const port = await freePort();
  const sidecar = await runSidecar(t, {
    ipc: { dir },
    frontend: { handshake: `tcp://${host}:${remote.port}` },
    engine: { handshake: `tcp://${host}:${port}` },
  });
  const named = { inputs: [`tcp://${host}:${requests.port}`], outputs: [`tcp://${host}:${outputs.port}`] };
  const told = [];
  for (const [index, [to, listener]] of (
    [
      [{ path }, local],
      [{ host, port }, remote],
    ] as const
  ).entries()) {
    const identity = ready('DEALER', engineIdentity(index));
    const { engine, frontend } = await joinPeers(t, to, listener, identity, [message([HELLO])]);
    await frontend.send(message([initWith(named)]));
    told.push(await toldAddresses(engine, listener.opening.length));
  }
  t.deepEqual(told[0], told[1]);
  t.notDeepEqual(told[0]?.inputs, named.inputs);
  for (const index of [0, 1]) {
    const identity = ready('DEALER', engineIdentity(index));
    const to = connectTo(told[index]?.inputs[0]);
    const { frontend, engine } = await joinPeers(t, to, requests, identity, [message([Buffer.alloc(0)])]);
    await frontend.send(message([Buffer.of(0), array([str(`r${index}`), array([int(1)])])]));
    await engine.receivesAtLeast(frontend.sentBytes);
    const push = await joinPeers(t, connectTo(told[index]?.outputs[0]), outputs, ready('PUSH'), []);
    const tokens = array(Array.from({ length: 3 + index }, () => int(1)));
    await push.engine.send(message([array([int(index), array([array([str(`r${index}`), tokens])])])]));
    await push.frontend.receivesAtLeast(push.engine.sentBytes);
    const labels = { engine: String(index), model_name: 'tiny' };
    t.is(await sidecar.sample('vllm:iteration_tokens_total_sum', labels), 3 + index);
  }
  t.is((await sidecar.status()).endpoints.length, 4);
  t.is((await sidecar.get('/readyz')).status, 200);
});

test('a handshake through the directory is known by HELLO, whichever side says READY first', async (t) => {
  for (const order of ['engine', 'frontend'] as const) {
    const dir = temporaryDirectory(t);
    const path = join(dir, randomUUID());
    const listener = await RawListener.listen(t, { path });
    const opening = Buffer.concat([greeting(), ready('ROUTER')]);
    if (order === 'frontend') listener.opening = opening;
    const sidecar = await runSidecar(t, { ipc: { dir } });
    await waitFor(async () => (await sidecar.status()).endpoints.length === 1, { what: 'taken over' });
    const engine = await RawPeer.connect(t, { path });
    await engine.send(Buffer.concat([greeting(), ready('DEALER', engineIdentity(0))]));
    const frontend = await listener.next();
    if (order === 'engine') {
      await engine.send(message([HELLO])); // before a single byte of the frontend's greeting
      await frontend.receivesAtLeast(engine.sentBytes);
      for (const byte of opening) await frontend.send(Buffer.of(byte));
    } else {
      await engine.receivesAtLeast(opening.length);
      await engine.send(message([HELLO]));
      await frontend.receivesAtLeast(engine.sentBytes);
    }
    await frontend.send(
      message([initWith({ inputs: ['tcp://127.0.0.1:9'], outputs: ['tcp://127.0.0.1:8'] })]),
    );
    const told = await toldAddresses(engine, opening.length);
    t.not(told.inputs[0], 'tcp://127.0.0.1:9', order);
    const kinds = (await sidecar.status()).endpoints.map(({ kind }) => kind);
    t.deepEqual(kinds.sort(), ['handshake', 'outputs', 'requests'], order);
    engine.socket.destroy();
  }
});
