/** The end of a drain: each connection stops between two messages. */
import test from 'ava';
import { freePort, runSidecar } from '../support/in-process.js';
import { waitFor } from '../support/wait.js';
import { RawPeer } from '../transparency/raw-peer.js';
import { MODES, openPath } from '../transparency/ways-in.js';
import { greeting, message } from '../transparency/zmtp-writer.js';

for (const mode of MODES) {
  test(`${mode}: a message that has begun is relayed to its end, and nothing behind it`, async (t) => {
    const { sidecar, outputs, requests } = await openPath(t, mode);
    // More than is held back: the beginning has gone on.
    const first = message([Buffer.alloc(300, 1), Buffer.alloc(200_000, 2)]);
    const second = message([Buffer.alloc(100, 3)]);
    await outputs.engine.send(first.subarray(0, 100_000));
    await outputs.frontend.receivesAtLeast(outputs.engine.sentBytes);
    const stopped = sidecar.stop();
    await waitFor(async () => (await sidecar.get('/readyz')).text.includes('draining'), { what: 'draining' });
    // Nothing has begun here, so this one ends first, once the drain is over.
    await waitFor(() => requests.engine.hasEnded && requests.frontend.hasEnded, {
      what: 'the idle one ended',
    });
    t.false(outputs.frontend.hasEnded);
    await outputs.engine.send(first.subarray(100_000, 100_050));
    await outputs.frontend.receivesAtLeast(outputs.engine.sentBytes);
    await outputs.engine.send(Buffer.concat([first.subarray(100_050), second.subarray(0, 50)]));
    await waitFor(() => outputs.frontend.hasEnded, { what: 'the end' });
    const end = outputs.engine.sentBytes - 50;
    t.is(outputs.frontend.receivedBytes, end);
    t.deepEqual(outputs.frontend.bytes.subarray(-first.length), first);
    await stopped;
  });

  test(`${mode}: of a message that has begun and is small enough to be held back nothing goes on`, async (t) => {
    const { sidecar, outputs } = await openPath(t, mode);
    const whole = message([Buffer.alloc(100, 3)]);
    const before = outputs.frontend.receivedBytes;
    await outputs.engine.send(Buffer.concat([whole, whole.subarray(0, 50)]));
    await outputs.frontend.receivesAtLeast(before + whole.length);
    await sidecar.stop();
    await waitFor(() => outputs.frontend.hasEnded, { what: 'the end' });
    t.is(outputs.frontend.receivedBytes, before + whole.length);
  });

  test(`${mode}: a message that never ends does not hold the drain`, async (t) => {
    const { sidecar, outputs } = await openPath(t, mode);
    await outputs.engine.send(message([Buffer.alloc(300_000)]).subarray(0, 100_000));
    await outputs.frontend.receivesAtLeast(outputs.engine.sentBytes);
    const startedAt = performance.now();
    await sidecar.stop();
    t.true(performance.now() - startedAt < 5000);
    await waitFor(() => outputs.frontend.hasEnded || outputs.frontend.isClosed, { what: 'the end' });
  });

  test(`${mode}: while it drains connections go on, and the drain is over as soon as the last one has closed`, async (t) => {
    const { sidecar, handshake, requests, outputs } = await openPath(t, mode, {
      patch: { drain: { timeout: 60_000 } },
    });
    const stopped = sidecar.stop();
    await waitFor(async () => (await sidecar.get('/readyz')).status === 503, { what: 'not ready' });
    await requests.frontend.send(message([Buffer.from('still relayed')]));
    await requests.engine.receivesAtLeast(requests.frontend.sentBytes);
    t.deepEqual(requests.engine.received, requests.frontend.sent);
    t.is((await sidecar.get('/livez')).status, 200);
    for (const { engine, frontend } of [handshake, requests, outputs]) {
      engine.socket.end();
      frontend.socket.end();
    }
    await stopped;
    t.pass();
  });
}

test('a connection that waits for its frontend ends with the drain', async (t) => {
  const port = await freePort();
  const sidecar = await runSidecar(t, {
    frontend: { handshake: `tcp://127.0.0.1:${await freePort()}` },
    engine: { handshake: `tcp://127.0.0.1:${port}` },
  });
  const engine = await RawPeer.connect(t, { host: '127.0.0.1', port });
  await engine.send(greeting());
  const waits = async () => (await sidecar.get('/readyz')).text.includes('does not answer');
  await waitFor(waits, { what: 'the frontend dialled' });
  await sidecar.stop();
  await waitFor(() => engine.hasEnded || engine.isClosed, { what: 'the end' });
  t.is(engine.receivedBytes, 0);
});
