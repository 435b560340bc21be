/** Frontends, sockets and directories that are not there, go away and come back. */
import { existsSync, mkdirSync, rmSync } from 'node:fs';
import { dirname } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { Child } from '../support/child.js';
import { eventually, freePort, runSidecar } from '../support/in-process.js';
import { batch } from '../support/toxic-load.js';
import { argsOf, type Rig, startProcessRig, startRig, takenOver, WAYS } from '../support/toxic-rig.js';
import { totals } from '../support/toxic-stand-ins.js';
import type { Victim } from '../support/toxic-victim.js';
import { anyPorts, RawEngine, RawFrontend, socketFiles } from '../support/toxic-vllm.js';
import { ZmtpPeer } from '../support/toxic-zmtp.js';

/** DIAL_DEADLINE_MS of proxy/connection.ts. */
const DIAL_DEADLINE_MS = 10_000;

test('a frontend that never comes: not ready and says so, the engine is let go after ten seconds, and gets through later', async (t) => {
  const [upstream, port] = [await freePort(), await freePort()];
  const sidecar = await runSidecar(t, {
    frontend: { handshake: `tcp://127.0.0.1:${upstream}` },
    engine: { handshake: `tcp://127.0.0.1:${port}` },
  });
  const at = { host: '127.0.0.1', port };
  const early = await ZmtpPeer.connect(at, { type: 'DEALER' });
  await eventually('not ready', async () =>
    (await sidecar.get('/readyz')).text.includes(
      `frontend does not answer at tcp://127.0.0.1:${upstream} (handshake)`,
    ),
  );
  const since = performance.now();
  await eventually('let go', () => early.end !== null, DIAL_DEADLINE_MS + 3000);
  t.true(performance.now() - since > DIAL_DEADLINE_MS - 3000);
  const labels = { kind: 'handshake', reason: 'dial_refused' };
  t.is(await sidecar.sample('steptap_connection_failures_total', labels), 1);

  const waiting = RawEngine.join(0, at);
  await delay(300);
  const frontend = await RawFrontend.listen({
    bind: { ...anyPorts(), handshake: { host: '127.0.0.1', port: upstream } },
  });
  t.teardown(() => frontend.close());
  const engine = await waiting;
  t.teardown(() => engine.destroy());
  await eventually('ready', async () => (await sidecar.get('/readyz')).status === 200);
});

for (const way of WAYS) {
  test(`a frontend that dies and comes back ten times is relayed each time, and the series go on (${way})`, async (t) => {
    const rig = await startRig(t, way);
    let { frontend } = rig;
    for (let life = 1; life <= 10; life++) {
      const engine = await RawEngine.join(0, entrance(rig, frontend));
      engine.outputs.send(batch(0, life, [{ id: 'x', tokens: 1 }]));
      await eventually('batch', () => frontend.batches.length === 1);
      const { bound } = frontend;
      frontend.close();
      await Promise.all(Object.values(engine.peers).map(({ ended }) => ended));
      engine.destroy();
      // vLLM starts with other sockets, but for the port engines know.
      const bind =
        way === 'directory'
          ? socketFiles(rig.layout.dir as string)
          : { ...anyPorts(), handshake: bound.handshake };
      frontend = await RawFrontend.listen({ bind });
      const next = frontend;
      t.teardown(() => next.close());
      if (way === 'directory') await takenOver(bind);
    }
    const samples = await rig.sidecar.samples();
    t.deepEqual(totals(samples), { count: 10, sum: 0 });
    t.is(await rig.sidecar.sample('steptap_frontend_path_usable'), 1);
    await eventually('only the living frontend is left', async () => {
      const { endpoints } = await rig.sidecar.status();
      return endpoints.length === (way === 'directory' ? 3 : 1 + 2);
    });
    t.deepEqual(rig.sidecar.logged('error', ''), []);
  });
}

test('a directory that is removed and made again at once is still watched, not only looked at each second', async (t) => {
  const rig = await startRig(t, 'directory');
  const engine = await rig.join(0);
  const dir = rig.layout.dir as string;
  for (let again = 0; again < 3; again++) {
    rmSync(dir, { recursive: true });
    mkdirSync(dir);
    const second = await RawFrontend.listen({ bind: socketFiles(dir) });
    t.teardown(() => second.close());
    await takenOver(second.bound);
    // By then a rescan has been; what counts is how soon it sees what comes next.
    const begun = performance.now();
    const third = await RawFrontend.listen({ bind: socketFiles(dir) });
    t.teardown(() => third.close());
    await takenOver(third.bound);
    t.true(performance.now() - begun < 500, `${performance.now() - begun} ms`);
  }
  // Connections do not need the names.
  engine.outputs.send(batch(0, 0, [{ id: 'x', tokens: 1 }]));
  await eventually('batch', () => rig.frontend.batches.length === 1);
});

test('socket files that are removed under steptap are there again, and what is connected does not notice', async (t) => {
  const rig = await startRig(t, 'directory');
  const engine = await rig.join(0);
  const paths = Object.values(rig.layout.bind).map((address) => ('path' in address ? address.path : ''));
  for (const path of paths) rmSync(path);
  await eventually('listening again', () => paths.every((path) => existsSync(path)));
  const late = await rig.join(1);
  for (const each of [engine, late]) each.outputs.send(batch(each.index, 0, [{ id: 'x', tokens: 1 }]));
  await eventually('both heard', () => rig.frontend.batches.length === 2);
  t.deepEqual(rig.sidecar.logged('error', ''), []);
});

test('a second steptap on the same directory, handshake address or metrics port ends with 1, and the first is not hurt', async (t) => {
  for (const way of WAYS) {
    const rig = await startProcessRig(t, way);
    const engine = await rig.join(0);
    const port = new URL(rig.sidecar.metricsUrl).port;
    const own = argsOf(rig.layout, rig.frontend.bound.handshake);
    const other = ['--frontend-handshake', `tcp://127.0.0.1:${await freePort()}`];
    other.push('--engine-handshake', `tcp://127.0.0.1:${await freePort()}`, '--model-name', 'tiny');
    const where =
      way === 'directory'
        ? dirname(Object.values(rig.layout.bind).map((a) => ('path' in a ? a.path : ''))[0] ?? '')
        : 'tcp://127.0.0.1';
    await refused(t, own, where);
    await refused(t, [...other, '--metrics-port', port], port);
    await unhurt(t, rig, engine);
  }
});

async function refused(t: ExecutionContext, args: readonly string[], names: string): Promise<void> {
  const child = new Child('second', '../../proxy/main.js', ['run', '--metrics-host', '127.0.0.1', ...args]);
  t.teardown(() => child.kill());
  const begun = performance.now();
  t.is(await child.exited(), 1, child.stderr);
  t.true(performance.now() - begun < 5000);
  t.true(child.stderr.includes(names), child.stderr);
  t.is(child.stderr.trimEnd().split('\n').length, 1, child.stderr);
}

async function unhurt(
  t: ExecutionContext,
  { frontend, sidecar, join }: Rig<Victim>,
  engine: RawEngine,
): Promise<void> {
  const before = frontend.batches.length;
  engine.outputs.send(batch(0, 0, [{ id: 'x', tokens: 1 }]));
  (await join(1)).outputs.send(batch(1, 0, [{ id: 'x', tokens: 1 }]));
  await eventually('both heard', () => frontend.batches.length === before + 2);
  t.is((await sidecar.get('/readyz')).status, 200);
}

/** Where engines find the handshake of a frontend. */
function entrance({ layout }: Rig, frontend: RawFrontend) {
  return layout.way === 'directory' ? frontend.bound.handshake : layout.handshake;
}
