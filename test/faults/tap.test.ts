/** Whatever goes wrong while bytes are read, they have already gone on. */
import test, { type ExecutionContext } from 'ava';
import { pino } from 'pino';
import { type Address, formatAddress } from '../../proxy/address.js';
import type { StepObserver } from '../../proxy/engines.js';
import { Relay } from '../../proxy/relay.js';
import type { TapContext } from '../../proxy/tap.js';
import { Telemetry } from '../../proxy/telemetry.js';
import { eventually, settingsWith } from '../support/in-process.js';
import { addFrames, batch } from '../support/toxic-load.js';
import { layOut, settingsOf, takenOver, WAYS, type Way } from '../support/toxic-rig.js';
import { RawEngine, RawFrontend } from '../support/toxic-vllm.js';
import type { ZmtpPeer } from '../support/toxic-zmtp.js';

const MESSAGES = 500;

const silent: StepObserver = { addEngine: () => undefined, observe: () => undefined };

function fail(): never {
  throw new Error('injected');
}

const INJECTIONS: readonly {
  readonly where: string;
  readonly observer?: StepObserver;
  readonly recorder?: TapContext['recorder'];
}[] = [
  { where: 'where steps are counted', observer: { ...silent, observe: fail } },
  { where: 'where engines are made known', observer: { ...silent, addEngine: fail } },
  { where: 'in a recorder', recorder: () => ({ record: fail }) },
  { where: 'where a recorder is made', recorder: fail },
];

for (const way of WAYS) {
  for (const { where, observer = silent, recorder } of INJECTIONS) {
    test(`an exception ${where} leaves every byte in its place (${way})`, async (t) => {
      const { telemetry, frontend, engine } = await relayWith(t, way, observer, recorder);
      const [requests, outputs] = [frontend.peers.requests[0], frontend.peers.outputs[0]];
      if (requests === undefined || outputs === undefined) throw new Error('not connected');
      for (let sequence = 0; sequence < MESSAGES; sequence++) {
        requests.send(...addFrames(`r${sequence}`, 50));
        engine.outputs.send(
          batch(0, sequence, [{ id: `r${sequence}`, tokens: 1, computed: 50, isLast: true }]),
        );
      }
      await same(t, engine.outputs, outputs);
      await same(t, requests, engine.requests);
      await same(t, engine.requests, requests);
      telemetry.fold();
      const opaque = telemetry
        .samples('opaque_connections_total')
        .filter(({ labels, value }) => labels['reason'] === 'tap_error' && value > 0);
      t.true(opaque.length > 0, 'the exception is counted');
    });
  }
}

async function relayWith(
  t: ExecutionContext,
  way: Way,
  observer: StepObserver,
  recorder: TapContext['recorder'],
): Promise<{ telemetry: Telemetry; frontend: RawFrontend; engine: RawEngine }> {
  const layout = await layOut(t, way);
  const frontend = await RawFrontend.listen({ bind: layout.bind });
  t.teardown(() => frontend.close());
  const telemetry = new Telemetry();
  const upstream: Address = frontend.bound.handshake;
  const relay = new Relay({
    settings: settingsWith(settingsOf(layout, upstream)),
    observer,
    telemetry,
    logger: pino({ level: 'silent' }),
    ...(recorder === undefined ? {} : { recorder }),
  });
  t.teardown(() => relay.destroy());
  await relay.start();
  if (way === 'directory') await takenOver(layout.bind);
  const engine = await RawEngine.join(0, layout.handshake);
  t.teardown(() => engine.destroy());
  await eventually(
    `engine at the frontend through ${formatAddress(layout.handshake)}`,
    () => frontend.registrations === 1 && frontend.peers.outputs.length === 1,
  );
  return { telemetry, frontend, engine };
}

async function same(t: ExecutionContext, from: ZmtpPeer, to: ZmtpPeer): Promise<void> {
  await eventually('all bytes', () => to.received.bytes === from.sent.bytes);
  t.is(to.received.digest, from.sent.digest);
}
