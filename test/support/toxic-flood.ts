/** An engine that has very much for a frontend that does not read. */
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { eventually } from './in-process.js';
import { batch } from './toxic-load.js';
import { startProcessRig, type Way } from './toxic-rig.js';
import type { Scope } from './toxic-scope.js';
import { totals } from './toxic-stand-ins.js';
import { encodeMessage, type ZmtpPeer } from './toxic-zmtp.js';

const OUTPUTS = 256;
const WATCH_MS = 20;

export interface Flood {
  /** Bytes that went into the kernel and steptap while nobody read. */
  readonly heldBack: number;
  /** Bytes by which steptap's resident memory grew at most. */
  readonly growth: number;
  readonly livezWhilePaused: number;
  readonly sent: { readonly messages: number; readonly digest: string };
  readonly arrived: { readonly counted: number; readonly digest: string };
}

/** `bytes` for a frontend that reads nothing for `pausedMs`, and then everything. */
export async function flood(scope: Scope, way: Way, bytes: number, pausedMs: number): Promise<Flood> {
  const { frontend, sidecar, join } = await startProcessRig(scope, way);
  const { outputs } = await join(0);
  const peer = frontend.peers.outputs[0] as ZmtpPeer;
  const message = encodeMessage([
    batch(
      0,
      0,
      Array.from({ length: OUTPUTS }, (_, index) => ({ id: `cmpl-${index}`, tokens: 4 })),
    ),
  ]);
  const before = sidecar.rss;
  let highest = before;
  const watch = setInterval(() => {
    highest = Math.max(highest, sidecar.rss);
  }, WATCH_MS);
  scope.teardown(() => clearInterval(watch));

  peer.socket.pause();
  let messages = 0;
  const sending = (async () => {
    for (; outputs.sent.bytes < bytes; messages++) {
      if (!outputs.write(message)) await once(outputs.socket, 'drain');
    }
  })();
  await delay(pausedMs);
  const heldBack = outputs.sent.bytes;
  const { status: livezWhilePaused } = await sidecar.get('/livez');
  peer.socket.resume();
  await sending;
  await eventually('all bytes', () => peer.received.bytes === outputs.sent.bytes, 120_000);
  const { count: counted } = totals(await sidecar.samples());
  clearInterval(watch);
  return {
    heldBack,
    growth: highest - before,
    livezWhilePaused,
    sent: { messages, digest: outputs.sent.digest },
    arrived: { counted, digest: peer.received.digest },
  };
}
