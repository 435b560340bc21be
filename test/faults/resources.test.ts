/** Nothing is left behind by connections that have gone, and steptap survives when the machine runs out. */
import { once } from 'node:events';
import { symlinkSync } from 'node:fs';
import net from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { eventually, temporaryDirectory } from '../support/in-process.js';
import { batch } from '../support/toxic-load.js';
import { type Rig, startProcessRig, takenOver, WAYS } from '../support/toxic-rig.js';
import { totals } from '../support/toxic-stand-ins.js';
import type { Victim } from '../support/toxic-victim.js';
import { type RawEngine, RawFrontend, socketFiles } from '../support/toxic-vllm.js';
import { greeting, ZmtpPeer } from '../support/toxic-zmtp.js';

const MEBIBYTE = 1024 * 1024;
const CONNECTIONS = 1000;
const AT_ONCE = 50;
/**
 * The first rounds fill caches and compile; growth is looked at behind them. Node's collector lets 40 MiB of garbage lie
 * before it looks, so less says nothing: 13 KB that a connection leaves are found.
 */
const GROWTH_BYTES = 40 * MEBIBYTE;

for (const way of WAYS) {
  test(`${CONNECTIONS} connections opened and closed leave no descriptor and no memory (${way})`, async (t) => {
    const { sidecar, layout, join: joinEngine } = await startProcessRig(t, way);
    await joinEngine(0);
    const idle = sidecar.descriptors;
    const round = async (count: number) => {
      for (let opened = 0; opened < count; opened += AT_ONCE) {
        const peers = await Promise.all(
          Array.from({ length: AT_ONCE }, () => ZmtpPeer.connect(layout.handshake, { type: 'DEALER' })),
        );
        await Promise.all(peers.map(({ ready }) => ready));
        for (const [index, peer] of peers.entries()) index % 2 === 0 ? peer.destroy() : peer.socket.end();
      }
      await eventually('descriptors back', () => sidecar.descriptors <= idle);
    };
    await round(CONNECTIONS);
    const before = sidecar.rss;
    await round(3 * CONNECTIONS);
    t.log(`grew by ${(sidecar.rss - before) / MEBIBYTE} MiB`);
    t.true(sidecar.rss - before < GROWTH_BYTES, `grew by ${(sidecar.rss - before) / MEBIBYTE} MiB`);
    t.is(
      (await sidecar.status()).endpoints.reduce((sum, { connections }) => sum + connections, 0),
      3,
    );
  });

  test(`out of file descriptors: what is connected goes on, and new engines get in once there are some again (${way})`, async (t) => {
    const rig = await startProcessRig(t, way);
    const { sidecar, layout } = rig;
    const engine = await rig.join(0);
    const limit = sidecar.descriptors + 20;
    sidecar.limitDescriptors(limit);
    const crowd = await Promise.all(
      Array.from({ length: 60 }, () =>
        ZmtpPeer.connect(layout.handshake, { type: 'DEALER' }).catch(() => null),
      ),
    );
    await eventually('descriptors used up', () =>
      sidecar.logged('warn', 'connection failed').some(({ errno }) => errno === 'EMFILE'),
    );
    await works(t, rig, engine, 1);
    for (const peer of crowd) peer?.destroy();
    await eventually('descriptors free again', () => sidecar.descriptors < limit - 10);
    const late = await rig.join(1);
    t.is((await sidecar.get('/livez')).status, 200);
    await works(t, rig, engine, 2);
    t.is(totals(await sidecar.samples()).count, 2);
    late.destroy();
    t.deepEqual(sidecar.logged('fatal', ''), []);
  });
}

test('sockets that could not be taken over for want of descriptors are taken as soon as there are some', async (t) => {
  const { sidecar, layout } = await startProcessRig(t, 'directory');
  const dir = layout.dir as string;
  sidecar.limitDescriptors(sidecar.descriptors);
  const second = await RawFrontend.listen({ bind: socketFiles(dir) });
  t.teardown(() => second.close());
  await eventually('the failure', () => sidecar.logged('error', '').length > 0);
  await delay(1500);
  sidecar.limitDescriptors(1000);
  await takenOver(second.bound);
  const { endpoints } = await sidecar.status();
  t.is(endpoints.length, 6);
});

test('a state file that finds no room is counted and logged once, and nothing else changes', async (t) => {
  const path = join(temporaryDirectory(t), 'state.json');
  // Where the new file is written before it takes the old one's place.
  symlinkSync('/dev/full', `${path}.new`);
  const rig = await startProcessRig(t, 'directory', { args: ['--state-path', path] });
  const engine = await rig.join(0);
  await works(t, rig, engine, 1);
  await (await rig.join(1)).reconnect();
  const failures = await rig.sidecar.sample('steptap_state_write_failures_total', { reason: 'ENOSPC' });
  t.true((failures ?? 0) > 1, `${failures} failures`);
  t.is(rig.sidecar.logged('error', 'state file not written').length, 1);
});

test('a greeting that is cut off leaves nothing', async (t) => {
  const { sidecar, layout, join: joinEngine } = await startProcessRig(t, 'handshake');
  await joinEngine(0);
  const idle = sidecar.descriptors;
  for (let length = 1; length < greeting().length; length++) {
    const socket = net.connect({ ...layout.handshake }, () => socket.end(greeting().subarray(0, length)));
    await once(socket.resume(), 'close');
  }
  await eventually('descriptors back', () => sidecar.descriptors <= idle);
  t.pass();
});

/** An engine's batches still arrive. */
async function works(
  t: ExecutionContext,
  { frontend }: Rig<Victim>,
  engine: RawEngine,
  sequence: number,
): Promise<void> {
  const peer = frontend.peers.outputs[0] as ZmtpPeer;
  engine.outputs.send(batch(0, sequence, [{ id: 'x', tokens: 1 }]));
  await eventually('batch', () => peer.received.bytes === engine.outputs.sent.bytes);
  t.is(peer.received.digest, engine.outputs.sent.digest);
}
