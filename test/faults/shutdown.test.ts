/** SIGTERM in every state ends with 0, as designed; twice: at once. */

import { once } from 'node:events';
import { existsSync, readdirSync, watch } from 'node:fs';
import { basename } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { Child } from '../support/child.js';
import { eventually } from '../support/in-process.js';
import { batch } from '../support/toxic-load.js';
import { argsOf, layOut, type Rig, startProcessRig, WAYS } from '../support/toxic-rig.js';
import { startStandIns, totals } from '../support/toxic-stand-ins.js';
import type { Victim } from '../support/toxic-victim.js';
import { RawFrontend } from '../support/toxic-vllm.js';
import { encodeMessage, type ZmtpPeer } from '../support/toxic-zmtp.js';

const DRAIN = ['--drain-timeout', '300ms'];
/** Of `drain` in proxy/relay.ts: what a message that has begun gets to become whole. */
const BOUNDARY_MS = 1000;

for (const way of WAYS) {
  test(`SIGTERM before it is bound ends it with 0 (${way})`, async (t) => {
    const layout = await layOut(t, way);
    const frontend = await RawFrontend.listen({ bind: layout.bind });
    t.teardown(() => frontend.close());
    const child = new Child('steptap', '../../proxy/main.js', [
      'run',
      ...['--metrics-host', '127.0.0.1'],
      ...argsOf(layout, frontend.bound.handshake),
    ]);
    t.teardown(() => child.kill());
    await child.line(({ msg }) => msg === 'starting', 'first line');
    child.signal('SIGTERM');
    t.is(await child.exited(), 0, child.stderr);
    untouched(t, layout.dir, frontend);
  });

  test(`SIGTERM with no engine ends it with 0 (${way})`, async (t) => {
    const rig = await startProcessRig(t, way, { args: DRAIN });
    await ended(t, rig, 500);
  });

  test(`SIGTERM with an idle engine ends it with 0 (${way})`, async (t) => {
    const rig = await startProcessRig(t, way, { args: DRAIN });
    const engine = await rig.join(0);
    await ended(t, rig, 300 + BOUNDARY_MS);
    for (const peer of [engine.requests, engine.outputs]) await peer.ended;
  });

  test(`SIGTERM in the middle of a message ends it with 0 (${way})`, async (t) => {
    const rig = await startProcessRig(t, way, { args: DRAIN });
    const engine = await rig.join(0);
    const peer = rig.frontend.peers.outputs[0] as ZmtpPeer;
    // More than is held back, so that the beginning is at the frontend.
    const message = encodeMessage([batch(0, 0, [{ id: 'x', tokens: 1 }]), Buffer.alloc(200_000)]);
    engine.outputs.write(message.subarray(0, 100_000));
    await eventually('the beginning', () => peer.received.bytes === engine.outputs.sent.bytes);
    rig.sidecar.signal('SIGTERM');
    await delay(400);
    engine.outputs.write(message.subarray(100_000));
    t.is(await peer.ended, 'fin');
    t.is(rig.frontend.batches.length, 1, 'it became whole');
    t.is(await rig.sidecar.exited(), 0);
  });

  test(`SIGTERM with a frontend that has stopped reading ends it with 0 (${way})`, async (t) => {
    const rig = await startProcessRig(t, way, { args: DRAIN });
    const engine = await rig.join(0);
    rig.frontend.peers.outputs[0]?.socket.pause();
    const block = encodeMessage([Buffer.alloc(1024 * 1024)]);
    for (let sent = 0; sent < 32; sent++) engine.outputs.write(block);
    await Promise.race([once(engine.outputs.socket, 'drain'), delay(300)]);
    await ended(t, rig, 300 + BOUNDARY_MS);
  });

  test(`SIGTERM twice ends it at once, under load too (${way})`, async (t) => {
    const { frontend, steptap, plan } = await startStandIns(t, way, {
      frontend: { handover: true },
      engine: { stepsPerSecond: 500 },
    });
    frontend.submit({ promptTokens: 10, maxTokens: 100_000 }).catch(() => undefined);
    await eventually('load', () => frontend.histogram.totals().count > 50);
    steptap.signal('SIGTERM');
    await eventually('draining', () => steptap.logged('info', 'draining').length > 0);
    await delay(100);
    const begun = performance.now();
    steptap.signal('SIGTERM');
    t.is(await steptap.exited(), 0);
    t.true(performance.now() - begun < 500);
    const { directory } = plan.frontend;
    if (directory !== undefined) t.deepEqual(leftBehind(directory), []);
  });

  test(`SIGTERM under load: it relays and counts on until the requests have finished, and ends when the engine goes (${way})`, async (t) => {
    const { frontend, engine, steptap } = await startStandIns(t, way, { engine: { stepsPerSecond: 500 } });
    const load = frontend.submit({ promptTokens: 10, maxTokens: 500 });
    await eventually('load', () => frontend.histogram.totals().count > 50);
    steptap.signal('SIGTERM');
    await eventually('not ready', async () => (await steptap.get('/readyz')).status === 503);
    t.is((await load).tokens.length, 500);
    t.deepEqual(totals(await steptap.samples()), frontend.histogram.totals());
    await engine.stop();
    t.is(await steptap.exited(), 0);
  });
}

test('names in a socket directory are put back without a moment in which one is missing', async (t) => {
  const rig = await startProcessRig(t, 'directory', { args: DRAIN });
  const names = Object.values(rig.frontend.bound).map((address) =>
    'path' in address ? basename(address.path) : '',
  );
  const events: (string | null)[] = [];
  const watcher = watch(rig.layout.dir as string, (_event, name) => events.push(name));
  t.teardown(() => watcher.close());
  rig.sidecar.signal('SIGTERM');
  await rig.sidecar.exited();
  await eventually('events', () => names.every((name) => events.includes(name)));
  // A name that is replaced is moved over, one event; one that is missing for a moment goes and comes, two.
  for (const name of names) t.is(events.filter((event) => event === name).length, 1, `${events}`);
});

async function ended(t: ExecutionContext, rig: Rig<Victim>, withinMs: number): Promise<void> {
  const begun = performance.now();
  rig.sidecar.signal('SIGTERM');
  t.is(await rig.sidecar.exited(), 0);
  const took = performance.now() - begun;
  t.true(took < withinMs + 1000, `${took} ms`);
  untouched(t, rig.layout.dir, rig.frontend);
}

/** The names in a socket directory lead to the frontend again. */
function untouched(t: ExecutionContext, dir: string | null, frontend: RawFrontend): void {
  if (dir === null) return;
  t.deepEqual(leftBehind(dir), []);
  for (const address of Object.values(frontend.bound)) t.true('path' in address && existsSync(address.path));
}

function leftBehind(dir: string): string[] {
  return readdirSync(dir).filter((name) => name.endsWith('.up') || name.endsWith('.in'));
}
