/** A frontend that does not read holds its engine back through steptap, at bounded memory, and loses nothing. */
import test from 'ava';
import { flood } from '../support/toxic-flood.js';
import { WAYS } from '../support/toxic-rig.js';

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
