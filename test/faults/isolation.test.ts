/** One connection that misbehaves leaves all others as they are. */
import { once } from 'node:events';
import net from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { eventually } from '../support/in-process.js';
import { batch, readBatch } from '../support/toxic-load.js';
import { type Rig, startRig, WAYS } from '../support/toxic-rig.js';
import type { RawEngine } from '../support/toxic-vllm.js';
import { greeting, type ZmtpPeer } from '../support/toxic-zmtp.js';

/** Limits of proxy/endpoint.ts, as SECURITY.md promises them. */
const MAX_HALF_OPEN = 256;
const GREETING_DEADLINE_MS = 10_000;
const ONE_BYTE_FRAMES = 200_000;
const NEIGHBOURS_MESSAGES = 200;

interface Misbehaviour {
  readonly name: string;
  /** `peer` is a second engine's output connection, its greeting done. */
  readonly misbehave: (peer: ZmtpPeer) => Promise<void>;
  /** Reason of `steptap_opaque_connections_total`; null: the connection is read on. */
  readonly opaque: string | null;
}

const MISBEHAVIOURS: readonly Misbehaviour[] = [
  {
    name: 'sends garbage in place of frames',
    misbehave: async (peer) => void peer.write(Buffer.alloc(1_000_000, 0xf9)),
    opaque: 'reserved_flags',
  },
  {
    name: 'sends a frame that claims 2^62 bytes',
    misbehave: async (peer) => {
      peer.write(Buffer.of(2, 0x40, 0, 0, 0, 0, 0, 0, 0));
      peer.write(Buffer.alloc(1_000_000));
    },
    opaque: 'frame_length',
  },
  {
    name: 'sends a frame that does not end',
    misbehave: async (peer) => {
      peer.write(Buffer.of(2, 0, 0x0f, 0, 0, 0, 0, 0, 0));
      for (let mebibyte = 0; mebibyte < 64; mebibyte++) {
        if (!peer.write(Buffer.alloc(1024 * 1024))) await once(peer.socket, 'drain');
      }
    },
    opaque: null,
  },
  {
    name: `sends ${ONE_BYTE_FRAMES} frames of one byte`,
    misbehave: async (peer) => {
      if (!peer.write(Buffer.alloc(3 * ONE_BYTE_FRAMES, Buffer.of(0, 1, 0xc1))))
        await once(peer.socket, 'drain');
    },
    opaque: null,
  },
  {
    name: 'sends one message of very many frames',
    misbehave: async (peer) => {
      if (!peer.write(Buffer.alloc(2 * ONE_BYTE_FRAMES, Buffer.of(1, 0)))) await once(peer.socket, 'drain');
    },
    opaque: null,
  },
  {
    name: 'stops in the middle of a header',
    misbehave: async (peer) => void peer.write(Buffer.of(2, 0, 0, 0)),
    opaque: null,
  },
];

for (const way of WAYS) {
  for (const { name, misbehave, opaque } of MISBEHAVIOURS) {
    test(`an output connection that ${name} is relayed, and its neighbour is counted as before (${way})`, async (t) => {
      const rig = await startRig(t, way);
      const good = await rig.join(0);
      const bad = await rig.join(1);
      const atFrontend = rig.frontend.peers.outputs[1] as ZmtpPeer;
      await Promise.all([misbehave(bad.outputs), neighbour(t, rig, good)]);
      bad.outputs.socket.end(); // what was held back of a message goes on with the end
      await eventually(
        'all of it relayed',
        () => atFrontend.received.bytes === bad.outputs.sent.bytes,
        30_000,
      );
      t.is(atFrontend.received.digest, bad.outputs.sent.digest);
      if (opaque === null) return;
      t.is(
        await rig.sidecar.sample('steptap_opaque_connections_total', { kind: 'outputs', reason: opaque }),
        1,
      );
    });
  }

  test(`greetings that are never finished are limited, the oldest goes first, and engines still get in (${way})`, async (t) => {
    const rig = await startRig(t, way);
    const strangers = await Promise.all(Array.from({ length: MAX_HALF_OPEN }, () => stranger(t, rig)));
    strangers[0]?.write(greeting().subarray(0, 5));
    await eventually('all accepted', () => connections(rig, MAX_HALF_OPEN));
    const late = [await stranger(t, rig), await stranger(t, rig)];
    await eventually('the oldest ones closed', () => strangers.filter(({ closed }) => closed).length === 2);
    t.deepEqual(
      [strangers[0]?.closed, strangers[1]?.closed, late.some(({ closed }) => closed)],
      [true, true, false],
    );
    const begun = performance.now();
    await neighbour(t, rig, await rig.join(0));
    t.true(performance.now() - begun < 5000);
    const startedAt = performance.now();
    await eventually(
      'the others closed at their deadline',
      () => strangers.every(({ closed }) => closed),
      15_000,
    );
    t.true(performance.now() - startedAt < GREETING_DEADLINE_MS + 2000);
    t.true((await failures(rig, 'too_many_greetings')) >= 2);
    t.true((await failures(rig, 'greeting_timeout')) >= MAX_HALF_OPEN - 4);
  });
}

/** A well-behaved engine at work: everything arrives in order and is counted. */
async function neighbour(t: ExecutionContext, { frontend, sidecar }: Rig, engine: RawEngine): Promise<void> {
  const own = () => frontend.batches.filter((payload) => payload.length > 1).map(readBatch);
  for (let sequence = 0; sequence < NEIGHBOURS_MESSAGES; sequence++) {
    engine.outputs.send(batch(0, sequence, [{ id: 'unknown', tokens: 3 }]));
    if (sequence % 20 === 0) await new Promise(setImmediate);
  }
  const peer = frontend.peers.outputs[0] as ZmtpPeer;
  await eventually('the neighbour at the frontend', () => peer.received.bytes === engine.outputs.sent.bytes);
  t.is(peer.received.digest, engine.outputs.sent.digest);
  t.deepEqual(
    own().map(({ sequence }) => sequence),
    Array.from({ length: NEIGHBOURS_MESSAGES }, (_, sequence) => sequence),
  );
  const labels = { engine: '0', model_name: 'tiny' };
  t.is(await sidecar.sample('vllm:iteration_tokens_total_count', labels), NEIGHBOURS_MESSAGES);
}

/** Connects where engines do and says nothing. */
async function stranger(t: ExecutionContext, { layout }: Rig): Promise<net.Socket> {
  const socket = net.connect({ ...layout.handshake });
  t.teardown(() => socket.destroy());
  socket.on('error', () => undefined);
  socket.resume();
  await once(socket, 'connect');
  return socket;
}

async function connections({ sidecar }: Rig, count: number): Promise<boolean> {
  const { endpoints } = await sidecar.status();
  return endpoints.reduce((sum, endpoint) => sum + endpoint.connections, 0) === count;
}

/** Of all kinds: what an endpoint in a socket directory carries is not known before its first INIT. */
async function failures({ sidecar }: Rig, reason: string): Promise<number> {
  const samples = [...(await sidecar.samples())];
  return samples
    .filter(([series]) => series.startsWith('steptap_connection_failures_total') && series.includes(reason))
    .reduce((sum, [, value]) => sum + value, 0);
}
