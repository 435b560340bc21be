/** A frontend that does not read holds its engine back through steptap, at bounded memory, and loses nothing. */
import { setImmediate as turn } from 'node:timers/promises';
import test from 'ava';
import { eventually } from '../support/in-process.js';
import { flood } from '../support/toxic-flood.js';
import { batch } from '../support/toxic-load.js';
import { startProcessRig, WAYS } from '../support/toxic-rig.js';
import { encodeMessage, type ZmtpPeer } from '../support/toxic-zmtp.js';

const MEBIBYTE = 1024 * 1024;
const SENT_BYTES = 200 * MEBIBYTE;
const PAUSED_MS = 5000;
/** What kernel buffers take between the two ends, and steptap's own. */
const HELD_BACK_BYTES = 64 * MEBIBYTE;
/** steptap holds a chunk or two for each direction; the rest is V8 and its garbage. */
const GROWTH_BYTES = 40 * MEBIBYTE;

for (const way of WAYS) {
  test(`a frontend that does not read for five seconds while an engine has 200 MB for it (${way})`, async (t) => {
    const { heldBack, growth, livezWhilePaused, sent, arrived } = await flood(t, way, SENT_BYTES, PAUSED_MS);
    t.true(heldBack < HELD_BACK_BYTES, `${heldBack} bytes were taken while nobody read`);
    t.is(livezWhilePaused, 200);
    t.is(arrived.digest, sent.digest);
    t.is(arrived.counted, sent.messages);
    t.true(growth < GROWTH_BYTES, `grew by ${growth / MEBIBYTE} MiB`);
  });
}

test('small messages that wait for a frontend take no more memory than they are long', async (t) => {
  const { frontend, sidecar, join } = await startProcessRig(t, 'directory');
  const { outputs } = await join(0);
  const peer = frontend.peers.outputs[0] as ZmtpPeer;
  // steptap's read buffer is then as large as it gets.
  outputs.write(encodeMessage([Buffer.alloc(60_000)]));
  await eventually('the large one', () => peer.received.bytes === outputs.sent.bytes);
  const message = encodeMessage([batch(0, 0, [{ id: 'cmpl-1', tokens: 1 }])]);
  const before = sidecar.rss;
  let highest = before;
  peer.socket.pause();
  // Each is read by itself. The kernel takes the first hundreds, steptap the others.
  for (let sent = 0; sent < 5000; sent++) {
    outputs.write(message);
    await turn();
    if (sent % 100 === 0) highest = Math.max(highest, sidecar.rss);
  }
  peer.socket.resume();
  await eventually('all bytes', () => peer.received.bytes === outputs.sent.bytes);
  t.is(peer.received.digest, outputs.sent.digest);
  t.true(highest - before < GROWTH_BYTES, `grew by ${(highest - before) / MEBIBYTE} MiB`);
});
