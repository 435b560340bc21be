/** steptap killed with -9 and started again by its supervisor, as a kubelet does. */
import { setTimeout as delay } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { Router } from 'zeromq';
import { eventually } from '../support/in-process.js';
import { engineIdentity } from '../support/messages.js';
import { bindTo, ROUTER_OPTIONS } from '../support/sockets.js';
import { addFrames, batch } from '../support/toxic-load.js';
import { type Rig, startProcessRig, WAYS } from '../support/toxic-rig.js';
import { startStandIns, totals } from '../support/toxic-stand-ins.js';
import { Victim } from '../support/toxic-victim.js';
import { ZmtpPeer } from '../support/toxic-zmtp.js';
import { within } from '../support/wait.js';

const REQUESTS = 6;
const TOKENS = 600;
const LOAD = { batchSize: REQUESTS, stepsPerSecond: 300 } as const;
/** What a supervisor takes to notice. */
const DOWN_MS = 300;
/** What may be inside steptap and its sockets when it is killed: half a second's worth on a busy machine. */
const LOST_AT_MOST = 150;

for (const way of WAYS) {
  test(`killed and started again under load: engines reconnect, requests are adopted and counted, new ones reach the engine (${way})`, async (t) => {
    const { frontend, engine, steptap, plan } = await startStandIns(t, way, {
      frontend: { handover: true },
      engine: LOAD,
    });
    const load = Array.from({ length: REQUESTS }, () =>
      frontend.submit({ promptTokens: 100, maxTokens: TOKENS }),
    );
    await eventually('load', () => frontend.histogram.totals().count > 100);
    await steptap.kill();
    await delay(DOWN_MS);
    const before = frontend.histogram.totals();

    const restarted = await Victim.start(t, plan.args);
    for (const { tokens } of await Promise.all(load)) {
      t.true(tokens.length > TOKENS - LOST_AT_MOST, `${tokens.length} tokens arrived`);
    }
    const after = frontend.histogram.totals();
    // It begins at zero: what has passed since is what the frontend has counted since.
    const expected = { count: after.count - before.count, sum: after.sum - before.sum };
    t.deepEqual(totals(await restarted.samples()), expected);
    t.is(await restarted.sample('steptap_adopted_requests_total'), REQUESTS);
    t.is(await restarted.sample('steptap_untracked_outputs_total', { engine: '0' }), 0);

    // This frontend's ROUTER hands over, so requests reach the engine; steptap learns it from the first one.
    await eventually('engine reconnected', async () => connectedEngines(restarted));
    const next = await frontend.submit({ promptTokens: 10, maxTokens: 5 });
    t.is(next.tokens.length, 5);
    await eventually('ready', async () => (await restarted.get('/readyz')).status === 200);
    t.is(await restarted.sample('steptap_frontend_path_usable'), 1);
    t.deepEqual(engine.errors, []);
  });

  test(`behind a libzmq ROUTER a restarted steptap is not ready, and says why (${way})`, async (t) => {
    const rig = await startProcessRig(t, way, { isRust: false });
    const engine = await rig.join(0);
    const restarted = await killAndRestart(t, rig);
    await engine.reconnect();
    await eventually('path lost', async () => (await restarted.sample('steptap_frontend_path_usable')) === 0);
    const { status, text } = await restarted.get('/readyz');
    t.is(status, 503);
    t.regex(text, /can't send to engine 0 .* restart vLLM/);
    t.is(restarted.logged('error', 'requests hang').length, 1);
  });

  test(`behind a frontend like the Rust one a restarted steptap is ready as soon as the engine is back (${way})`, async (t) => {
    const rig = await startProcessRig(t, way, { isRust: true });
    const engine = await rig.join(0);
    const restarted = await killAndRestart(t, rig);
    await engine.reconnect();
    await eventually('ready', async () => (await restarted.get('/readyz')).status === 200);
    t.is(await restarted.sample('steptap_frontend_path_usable'), 1);
    // From before: adopted at its first output. Seen in between: tracked by its ADD.
    rig.frontend.peers.requests.at(-1)?.send(...addFrames('new', 7));
    await eventually('request at the engine', () => engine.requests.messages === 1);
    engine.outputs.send(
      batch(0, 0, [
        { id: 'old', tokens: 2 },
        { id: 'new', tokens: 1, computed: 7 },
      ]),
    );
    await eventually('output', () => rig.frontend.batches.length === 1);
    t.deepEqual(totals(await restarted.samples()), { count: 1, sum: 10 });
    t.is(await restarted.sample('steptap_adopted_requests_total'), 1);
  });
}

test('what steptap says of a libzmq ROUTER without handover is so: requests do not reach a reconnected engine', async (t) => {
  for (const handover of [false, true]) {
    const router = new Router({ ...ROUTER_OPTIONS, handover });
    t.teardown(() => router.close());
    const address = await bindTo(router, 'tcp://127.0.0.1:0');
    const port = Number(address.split(':').at(-1));
    const dial = () =>
      ZmtpPeer.connect({ host: '127.0.0.1', port }, { type: 'DEALER', identity: engineIdentity(0) });
    const registration = router.receive();
    const first = await dial();
    await within(first.ready, { what: 'READY' });
    first.send(Buffer.from('registration'));
    await within(registration, { what: 'registration' });
    // As in vLLM: behind the registration nothing is read there any more, so the end of the first goes unnoticed.
    await router.send([engineIdentity(0), 'a']);
    await eventually('request', () => first.messages === 1);
    first.destroy();
    const second = await dial();
    await within(second.ready, { what: 'READY for the second' });
    t.teardown(() => second.destroy());
    await delay(100);
    await router.send([engineIdentity(0), 'b']);
    await delay(500);
    t.is(second.messages, handover ? 1 : 0, handover ? 'with handover' : 'without');
  }
});

async function connectedEngines(steptap: Victim): Promise<boolean> {
  return (await steptap.status()).engines.some(({ connections }) => connections > 0);
}

async function killAndRestart(t: ExecutionContext, { sidecar }: Rig<Victim>): Promise<Victim> {
  await eventually('engine known', () => connectedEngines(sidecar));
  await sidecar.kill();
  return Victim.start(t, sidecar.args);
}
