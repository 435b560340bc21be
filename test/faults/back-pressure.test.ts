/** A frontend that does not read holds its engine back through steptap, at bounded memory, and loses nothing. */
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import test from 'ava';
import { eventually } from '../support/in-process.js';
import { batch } from '../support/toxic-load.js';
import { startProcessRig, WAYS } from '../support/toxic-rig.js';
import { totals } from '../support/toxic-stand-ins.js';
import { encodeMessage, type ZmtpPeer } from '../support/toxic-zmtp.js';

const MEBIBYTE = 1024 * 1024;
const SENT_BYTES = 200 * MEBIBYTE;
const PAUSED_MS = 5000;
/** steptap holds a chunk or two for each direction; the rest is V8 and its garbage. */
const GROWTH_BYTES = 40 * MEBIBYTE;

for (const way of WAYS) {
  test(`a frontend that does not read for five seconds while an engine has 200 MB for it (${way})`, async (t) => {
    const { frontend, sidecar, join } = await startProcessRig(t, way, {});
    const engine = await join(0);
    const peer = frontend.peers.outputs[0] as ZmtpPeer;
    const outputs = Array.from({ length: 256 }, (_, index) => ({ id: `cmpl-${index}`, tokens: 4 }));
    const message = encodeMessage([batch(0, 0, outputs)]);
    const before = sidecar.rss;
    let highest = before;
    const watch = setInterval(() => {
      highest = Math.max(highest, sidecar.rss);
    }, 20);
    t.teardown(() => clearInterval(watch));

    peer.socket.pause();
    let messages = 0;
    const sending = (async () => {
      for (; engine.outputs.sent.bytes < SENT_BYTES; messages++) {
        if (!engine.outputs.write(message)) await once(engine.outputs.socket, 'drain');
      }
    })();
    await delay(PAUSED_MS);
    const heldBack = engine.outputs.sent.bytes;
    // What kernel buffers take between the two ends, and steptap's own.
    t.true(heldBack < 64 * MEBIBYTE, `${heldBack} bytes were taken while nobody read`);
    t.is((await sidecar.get('/livez')).status, 200);
    peer.socket.resume();
    await sending;
    await eventually('all bytes', () => peer.received.bytes === engine.outputs.sent.bytes, 60_000);
    t.is(peer.received.digest, engine.outputs.sent.digest);
    t.is(totals(await sidecar.samples()).count, messages);
    t.true(highest - before < GROWTH_BYTES, `grew by ${(highest - before) / MEBIBYTE} MiB`);
  });
}
