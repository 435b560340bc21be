/** An engine that ends, in whatever way, ends at the frontend in the same way, behind its last byte. */
import { setTimeout as delay } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { formatAddress } from '../../proxy/address.js';
import { Child } from '../support/child.js';
import { eventually } from '../support/in-process.js';
import { batch, readBatch } from '../support/toxic-load.js';
import { startRig, WAYS, type Way } from '../support/toxic-rig.js';
import { anyPorts, RawEngine, RawFrontend } from '../support/toxic-vllm.js';
import type { End, ZmtpPeer } from '../support/toxic-zmtp.js';

/** The promise; the test machine's own hiccups come on top. */
const END_WITHIN_MS = 100;
const RESTARTS = 100;

interface Ending {
  readonly name: string;
  readonly end: (peer: ZmtpPeer) => void;
  /** Only when all bytes have arrived. libuv takes a reset right behind bytes for an end, with and without steptap. */
  readonly waits: boolean;
}

const CLOSED: Ending = { name: 'closed', end: ({ socket }) => socket.end(), waits: false };
const RESET: Ending = { name: 'reset', end: ({ socket }) => socket.resetAndDestroy(), waits: true };

for (const way of WAYS) {
  for (const ending of way === 'handshake' ? [CLOSED, RESET] : [CLOSED]) {
    test.serial(
      `an engine connection that is ${ending.name} ends as without steptap, with all its bytes, within 100 ms (${way})`,
      async (t) => {
        const direct = await endOf(t, ending, null);
        const relayed = await endOf(t, ending, way);
        t.is(relayed.how, direct.how);
        t.is(direct.how, ending === RESET ? 'reset' : 'fin');
        t.true(relayed.after < END_WITHIN_MS, `${relayed.after} ms`);
      },
    );
  }

  test.serial(`kill -9 of an engine process is seen by the frontend within 100 ms (${way})`, async (t) => {
    const rig = await startRig(t, way);
    const at = rig.layout.handshake;
    const engine = new Child('engine', 'stand-in-main.js', [
      'engine',
      JSON.stringify({ handshake: formatAddress(at) }),
    ]);
    t.teardown(() => engine.kill());
    await engine.line(({ event }) => event === 'ready', 'it is ready');
    const { requests, outputs } = rig.frontend.peers;
    await eventually(
      'engine at the frontend',
      () => rig.frontend.registrations === 1 && outputs.length === 1,
    );
    const killedAt = performance.now();
    engine.signal('SIGKILL');
    for (const peer of [requests[0], outputs[0]]) {
      await eventually('end at the frontend', () => peer?.end !== null);
      const after = (peer?.end?.at ?? Number.POSITIVE_INFINITY) - killedAt;
      // The kernel has to take the process down first: some milliseconds.
      t.true(after < END_WITHIN_MS + 50, `${after} ms`);
    }
  });

  test(`an engine that is restarted ${RESTARTS} times gets its first message through each time (${way})`, async (t) => {
    const { frontend, sidecar, join } = await startRig(t, way);
    for (let start = 0; start < RESTARTS; start++) {
      const engine = await join(0);
      engine.outputs.send(batch(0, start, [{ id: `r${start}`, tokens: 1 }]));
      await eventually('first message', () => frontend.batches.length === start + 1);
      t.is(readBatch(frontend.batches[start] as Buffer).sequence, start);
      // In turn as one that ends in order and as one that is killed.
      if (start % 2 === 0) for (const { socket } of Object.values(engine.peers)) socket.end();
      else engine.destroy();
      for (const peers of Object.values(frontend.peers)) await peers.at(-1)?.ended;
    }
    await eventually('all connections closed', async () => {
      const open = ['handshake', 'requests', 'outputs'].map((kind) =>
        sidecar.sample('steptap_connections', { kind }),
      );
      return (await Promise.all(open)).every((count) => count === 0);
    });
    t.is(await sidecar.sample('steptap_connections_total', { kind: 'outputs' }), RESTARTS);
    t.is(
      await sidecar.sample('vllm:iteration_tokens_total_count', { engine: '0', model_name: 'tiny' }),
      RESTARTS,
    );
  });

  test(`a frontend that closes its connections ends them at the engine (${way})`, async (t) => {
    const { frontend, join } = await startRig(t, way);
    const engine = await join(0);
    frontend.close();
    for (const peer of Object.values(engine.peers)) await eventually('end', () => peer.end !== null);
    t.pass();
  });
}

for (const way of WAYS) {
  test(`connections that the network cuts end at both peers, and the engine gets in again (${way})`, async (t) => {
    const rig = await startRig(t, way, { engineSide: {} });
    const engine = await rig.join(0);
    const atFrontend = [rig.frontend.peers.requests[0], rig.frontend.peers.outputs[0]];
    for (const relay of rig.relays) relay.reset();
    for (const peer of [engine.requests, engine.outputs, ...atFrontend]) await peer?.ended;
    await engine.reconnect();
    engine.outputs.send(batch(0, 1, [{ id: 'x', tokens: 1 }]));
    await eventually('first message', () => rig.frontend.batches.length === 1);
    t.is(rig.sidecar.logged('error', '').length, 0);
  });

  test(`a half that the network closes is closed at the frontend, and the other half goes on (${way})`, async (t) => {
    const rig = await startRig(t, way, { engineSide: {} });
    const engine = await rig.join(0);
    const [peer] = rig.frontend.peers.requests as [ZmtpPeer];
    peer.endsWithItsPeer = false;
    await eventually('registration', () => rig.frontend.registrations === 1);
    for (const relay of rig.relays) relay.halfClose();
    t.is(await peer.ended, 'fin');
    peer.send(Buffer.of(0), Buffer.alloc(100_000, 7));
    await eventually('request at the engine', () => engine.requests.messages === 1);
    t.is(engine.requests.received.digest, peer.sent.digest);
  });
}

test('an end behind bytes that the frontend has not read yet waits for them', async (t) => {
  const { frontend, join } = await startRig(t, 'handshake');
  const engine = await join(0);
  const peer = frontend.peers.outputs[0] as ZmtpPeer;
  peer.socket.pause();
  for (let sent = 0; sent < 200; sent++) engine.outputs.write(Buffer.alloc(64 * 1024, sent));
  engine.outputs.socket.end();
  await delay(300);
  t.is(peer.end, null);
  peer.socket.resume();
  t.is(await peer.ended, 'fin');
  t.is(peer.received.digest, engine.outputs.sent.digest);
});

/** How an engine's output connection ends at the frontend, and how long after; `way` null: without steptap. */
async function endOf(
  t: ExecutionContext,
  ending: Ending,
  way: Way | null,
): Promise<{ how: End; after: number }> {
  const { frontend, engine } = await connected(t, way);
  const peer = frontend.peers.outputs[0] as ZmtpPeer;
  engine.outputs.send(Buffer.alloc(40_000, 1));
  if (ending.waits) await eventually('all bytes', () => peer.received.bytes === engine.outputs.sent.bytes);
  const at = performance.now();
  ending.end(engine.outputs);
  const how = await peer.ended;
  t.is(peer.received.digest, engine.outputs.sent.digest, way ?? 'direct');
  return { how, after: (peer.end?.at ?? 0) - at };
}

async function connected(
  t: ExecutionContext,
  way: Way | null,
): Promise<{ frontend: RawFrontend; engine: RawEngine }> {
  if (way !== null) {
    const { frontend, join } = await startRig(t, way);
    return { frontend, engine: await join(0) };
  }
  const frontend = await RawFrontend.listen({ bind: anyPorts() });
  t.teardown(() => frontend.close());
  const engine = await RawEngine.join(0, frontend.bound.handshake);
  t.teardown(() => engine.destroy());
  await eventually('outputs connection', () => frontend.peers.outputs.length === 1);
  return { frontend, engine };
}
