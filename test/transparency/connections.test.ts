/** What happens to a connection happens to its other half, and only vLLM gets through. */
import { connect } from 'node:net';
import test from 'ava';
import { freePort, runSidecar } from '../support/in-process.js';
import { waitFor } from '../support/wait.js';
import { Random } from './random.js';
import { RawListener, RawPeer } from './raw-peer.js';
import { connectTo, joinPeers, listen, MODES, openPath } from './ways-in.js';
import { engineIdentity, greeting, message, ready } from './zmtp-writer.js';

const MIB = 1024 * 1024;

for (const mode of MODES) {
  test(`${mode}: an engine that ends its half still gets what the frontend goes on to send`, async (t) => {
    const { engine, frontend } = (await openPath(t, mode)).requests;
    await engine.send(message([Buffer.from('the last one')]));
    engine.socket.end();
    await waitFor(() => frontend.hasEnded, { what: 'the end at the frontend' });
    t.deepEqual(frontend.received, engine.sent);
    await frontend.send(message([new Random(1).bytes(5 * MIB)]));
    t.false(engine.hasEnded);
    frontend.socket.end();
    await waitFor(() => engine.hasEnded, { what: 'the end at the engine' });
    t.deepEqual(engine.received, frontend.sent);
  });

  test(`${mode}: a frontend that ends its half still gets what the engine goes on to send`, async (t) => {
    const { engine, frontend } = (await openPath(t, mode)).outputs;
    await frontend.send(message([Buffer.from('the last one')]));
    frontend.socket.end();
    await waitFor(() => engine.hasEnded, { what: 'the end at the engine' });
    t.deepEqual(engine.received, frontend.sent);
    await engine.send(message([new Random(2).bytes(5 * MIB)]));
    t.false(frontend.hasEnded);
    engine.socket.end();
    await waitFor(() => frontend.hasEnded, { what: 'the end at the frontend' });
    t.deepEqual(frontend.received, engine.sent);
  });

  test(`${mode}: when one side goes away so does the other, and both are forgotten`, async (t) => {
    const { sidecar, requests, outputs } = await openPath(t, mode);
    requests.engine.socket.destroy();
    outputs.frontend.socket.destroy();
    await waitFor(() => requests.frontend.hasEnded && outputs.engine.hasEnded, { what: 'both ends' });
    requests.frontend.socket.end();
    outputs.engine.socket.end();
    const open = async (kind: string) => await sidecar.sample('steptap_connections', { kind });
    await waitFor(async () => (await open('requests')) === 0 && (await open('outputs')) === 0, {
      what: 'no connection left',
    });
    t.is(await sidecar.sample('steptap_connections_total', { kind: 'requests' }), 1);
  });

  test(`${mode}: a side that does not read stops the other one, and gets everything once it does`, async (t) => {
    const { requests, outputs } = await openPath(t, mode);
    const both = [
      { from: requests.frontend, to: requests.engine },
      { from: outputs.engine, to: outputs.frontend },
    ];
    for (const { from, to } of both) {
      to.keepNoMore();
      to.socket.pause();
      const piece = new Random(3).bytes(MIB);
      // Kernel and Node hold some MiB between the two ends; a relay that reads on would take all of it.
      let isStopped = false;
      for (let sent = 0; sent < 64 && !isStopped; sent++) {
        const taken = from.send(piece).then(() => 'taken');
        const waited = new Promise((resolve) => setTimeout(resolve, 300, 'waited'));
        isStopped = (await Promise.race([taken, waited])) === 'waited';
      }
      t.true(isStopped);
      t.true(from.sentBytes < 40 * MIB, `${from.sentBytes} bytes went into the relay`);
      to.socket.resume();
      await waitFor(() => to.receivedBytes === from.sentBytes, { what: 'everything that was held back' });
      t.deepEqual(to.received, from.sent);
    }
  });

  test(`${mode}: a greeting that comes byte by byte passes byte by byte, in both directions`, async (t) => {
    const { handshake, entrance } = await listen(t, mode);
    handshake.opening = Buffer.alloc(0);
    const before = handshake.accepted.length;
    const engine = await RawPeer.connect(t, entrance);
    const bytes = Buffer.concat([greeting(), ready('DEALER', engineIdentity(0))]);
    for (let at = 0; at < 10; at++) await engine.send(bytes.subarray(at, at + 1));
    // The signature is what makes it dial, and libzmq waits for an answer behind it.
    const frontend = await waitFor(
      () => handshake.accepted.slice(before).find(({ receivedBytes }) => receivedBytes === 10),
      { what: 'the signature at the frontend' },
    );
    const answer = greeting();
    for (let at = 10; at < answer.length; at++) {
      await engine.send(bytes.subarray(at, at + 1));
      await waitFor(() => frontend.receivedBytes === at + 1, { what: `byte ${at} at the frontend` });
    }
    for (let at = answer.length; at < bytes.length; at++) {
      t.is(frontend.receivedBytes, answer.length, 'READY waits until it is whole');
      await engine.send(bytes.subarray(at, at + 1));
    }
    await waitFor(() => frontend.receivedBytes === bytes.length, { what: 'READY at the frontend' });
    for (let at = 0; at < answer.length; at++) {
      await frontend.send(answer.subarray(at, at + 1));
      await waitFor(() => engine.receivedBytes === at + 1, { what: `byte ${at} at the engine` });
    }
    t.deepEqual(frontend.received, engine.sent);
    t.deepEqual(engine.received, frontend.sent);
  });

  for (const [what, bytes] of [
    ['an HTTP client', Buffer.from('GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n')],
    ['a TLS client', Buffer.from('16030102000100', 'hex')],
    ['a ZMTP 1 peer', Buffer.of(0x01, 0x00, 0x01, 0x7e)],
    ['a ZMTP 2 peer', Buffer.concat([greeting().subarray(0, 10), Buffer.of(1, 5)])],
    ['something with half a signature', Buffer.concat([greeting().subarray(0, 9), Buffer.of(0)])],
  ] as const) {
    test(`${mode}: ${what} is closed and counted, the frontend is never dialled`, async (t) => {
      const { sidecar, requests, entrance } = await openPath(t, mode).then(async (path) => ({
        ...path,
        entrance: connectTo(path.told.inputs[0]),
      }));
      const dialled = async () => await sidecar.sample('steptap_connections', { kind: 'requests' });
      t.is(await dialled(), 1);
      const stranger = await RawPeer.connect(t, entrance);
      await stranger.send(bytes);
      await waitFor(() => stranger.isClosed || stranger.hasEnded, { what: 'closed' });
      const labels = { kind: 'requests', reason: 'not_zmtp' };
      t.is(await sidecar.sample('steptap_connection_failures_total', labels), 1);
      t.is(stranger.receivedBytes, 0);
      t.is(await dialled(), 1);
      await requests.frontend.send(message([Buffer.from('still here')]));
      await waitFor(() => requests.engine.receivedBytes === requests.frontend.sentBytes, { what: 'arrival' });
    });
  }
}

test('a peer that turns out to be ZMTP 2 behind the signature is closed, and so is what was dialled', async (t) => {
  const { sidecar, handshake, entrance } = await listen(t, 'handshake');
  const stranger = await RawPeer.connect(t, entrance);
  await stranger.send(greeting().subarray(0, 10));
  await waitFor(() => stranger.receivedBytes > 0, { what: "the frontend's greeting" });
  await stranger.send(Buffer.of(1, 5));
  await waitFor(() => stranger.isClosed || stranger.hasEnded, { what: 'closed' });
  await waitFor(() => handshake.accepted[0]?.hasEnded, { what: 'the end at the frontend' });
  t.is(handshake.accepted[0]?.receivedBytes, 10);
  const labels = { kind: 'handshake', reason: 'not_zmtp' };
  t.is(await sidecar.sample('steptap_connection_failures_total', labels), 1);
});

test('a reset is passed on as a reset, from either side', async (t) => {
  const { sidecar, requests, outputs } = await openPath(t, 'handshake');
  await requests.engine.send(message([Buffer.from('the last one')]));
  await waitFor(() => requests.frontend.receivedBytes === requests.engine.sentBytes, { what: 'arrival' });
  requests.engine.socket.resetAndDestroy();
  outputs.frontend.socket.resetAndDestroy();
  await waitFor(() => requests.frontend.isClosed && outputs.engine.isClosed, { what: 'both closed' });
  t.is(requests.frontend.errno, 'ECONNRESET');
  t.is(outputs.engine.errno, 'ECONNRESET');
  t.deepEqual(requests.frontend.received, requests.engine.sent);
  for (const kind of ['requests', 'outputs']) {
    const failures = await sidecar.sample('steptap_connection_failures_total', { kind, reason: 'reset' });
    t.is(failures, 1, kind);
  }
});

test('IPv6: engines and frontend at ::1, INIT with addresses in brackets', async (t) => {
  const hasIpv6 = await freePort('::1').then(
    () => true,
    () => false,
  );
  if (!hasIpv6) {
    t.log('skipped: this machine has no ::1');
    t.pass();
    return;
  }
  const { requests, outputs, told } = await openPath(t, 'handshake', { host: '::1' });
  for (const address of [...told.inputs, ...told.outputs]) t.regex(address, /^tcp:\/\/\[::1\]:\d+$/);
  t.is(requests.engine.socket.remoteAddress, '::1');
  await requests.frontend.send(message([Buffer.from('to the engine')]));
  await outputs.engine.send(message([Buffer.from('to the frontend')]));
  await waitFor(() => requests.engine.receivedBytes === requests.frontend.sentBytes, { what: 'a request' });
  await waitFor(() => outputs.frontend.receivedBytes === outputs.engine.sentBytes, { what: 'an output' });
  t.deepEqual(requests.engine.received, requests.frontend.sent);
  t.deepEqual(outputs.frontend.received, outputs.engine.sent);
});

test('an engine gets in past hundreds of peers that connect and say nothing', async (t) => {
  const { sidecar, handshake, entrance } = await listen(t, 'handshake');
  const silent = await Promise.all(Array.from({ length: 260 }, () => RawPeer.connect(t, entrance)));
  const labels = { kind: 'handshake', reason: 'too_many_greetings' };
  const refused = async () => Number(await sidecar.sample('steptap_connection_failures_total', labels));
  await waitFor(async () => (await refused()) >= 4, { what: 'the oldest ones refused' });
  await waitFor(() => silent.filter((peer) => peer.isClosed || peer.hasEnded).length >= 4, {
    what: 'closed',
  });
  t.is(handshake.accepted.length, 0);
  const identity = ready('DEALER', engineIdentity(0));
  const { engine, frontend } = await joinPeers(t, entrance, handshake, identity, []);
  t.deepEqual(frontend.received, engine.sent);
});

test('a peer that connects and says nothing is let go after ten seconds', async (t) => {
  const { sidecar, entrance } = await listen(t, 'handshake');
  const silent = await RawPeer.connect(t, entrance);
  await silent.send(greeting().subarray(0, 9));
  await waitFor(() => silent.isClosed || silent.hasEnded, { what: 'closed', deadlineMs: 15_000 });
  const labels = { kind: 'handshake', reason: 'greeting_timeout' };
  t.is(await sidecar.sample('steptap_connection_failures_total', labels), 1);
});

test('an engine waits ten seconds for a frontend that does not listen, then is let go to try again', async (t) => {
  const port = await freePort();
  const sidecar = await runSidecar(t, {
    frontend: { handshake: `tcp://127.0.0.1:${await freePort()}` },
    engine: { handshake: `tcp://127.0.0.1:${port}` },
  });
  const engine = await RawPeer.connect(t, { host: '127.0.0.1', port });
  await engine.send(greeting());
  await waitFor(
    async () => (await sidecar.get('/readyz')).text.includes('frontend does not answer at tcp://'),
    {
      what: 'not ready, with the reason',
    },
  );
  await waitFor(() => engine.isClosed || engine.hasEnded, { what: 'closed', deadlineMs: 15_000 });
  const labels = { kind: 'handshake', reason: 'dial_refused' };
  t.is(await sidecar.sample('steptap_connection_failures_total', labels), 1);
});

test('a peer that hangs up in its greeting leaves nothing behind', async (t) => {
  const { sidecar, handshake, entrance } = await listen(t, 'handshake');
  const socket = connect(entrance);
  socket.end(greeting().subarray(0, 5));
  await waitFor(() => socket.closed, { what: 'closed' });
  await waitFor(async () => (await sidecar.sample('steptap_connections', { kind: 'handshake' })) === 0, {
    what: 'no connection left',
  });
  t.is(handshake.accepted.length, 0);
});

test('a connection whose engine gave up while the frontend did not listen is never dialled', async (t) => {
  const upstreamPort = await freePort();
  const port = await freePort();
  const sidecar = await runSidecar(t, {
    frontend: { handshake: `tcp://127.0.0.1:${upstreamPort}` },
    engine: { handshake: `tcp://127.0.0.1:${port}` },
  });
  const engine = await RawPeer.connect(t, { host: '127.0.0.1', port });
  await engine.send(greeting());
  await waitFor(async () => (await sidecar.get('/readyz')).text.includes('does not answer'), {
    what: 'dialling',
  });
  engine.socket.resetAndDestroy();
  await waitFor(async () => (await sidecar.sample('steptap_connections', { kind: 'handshake' })) === 0, {
    what: 'no connection left',
  });
  const frontend = await RawListener.listen(t, { host: '127.0.0.1', port: upstreamPort });
  await waitFor(async () => (await sidecar.get('/readyz')).text === 'no engine is connected\n', {
    what: 'readyz',
  });
  t.is(frontend.accepted.length, 0);
});
