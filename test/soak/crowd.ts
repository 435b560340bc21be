/** Very many requests in flight, for a frontend that reads by fits and starts. */
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { eventually } from '../support/in-process.js';
import { addFrames, batch } from '../support/toxic-load.js';
import { startProcessRig, type Way } from '../support/toxic-rig.js';
import type { Scope } from '../support/toxic-scope.js';
import { totals } from '../support/toxic-stand-ins.js';
import type { ZmtpPeer } from '../support/toxic-zmtp.js';
import type { Resident } from './memory.js';

const REQUESTS = 10_000;
/** Of each batch; all have their turn, so that a new request is known long before its first output. */
const OUTPUTS = 256;
const FINISHED_PER_BATCH = 8;
const PROMPT_TOKENS = 15;
const STEP_MS = 10;
/** More than the kernel and steptap hold comes in this time: the engine has to wait. */
const PAUSE_MS = 2000;
const READ_MS = 500;
const WATCH_MS = 1000;

export interface Crowd {
  readonly memory: readonly Resident[];
  readonly sent: { readonly count: number; readonly sum: number };
  readonly counted: { readonly count: number; readonly sum: number };
}

/**
 * Batches of 256 outputs, 100 a second at most, until `deadline` (of performance.now()). Rejects when not all requests
 * are tracked at the begin or the end.
 */
export async function crowd(scope: Scope, way: Way, deadline: number): Promise<Crowd> {
  const { frontend, sidecar, join } = await startProcessRig(scope, way);
  const { outputs } = await join(0);
  const requests = frontend.peers.requests[0] as ZmtpPeer;
  const reader = frontend.peers.outputs[0] as ZmtpPeer;
  let added = 0;
  const addRequest = async (): Promise<string> => {
    const id = `cmpl-${added++}`;
    if (!requests.send(...addFrames(id, PROMPT_TOKENS))) await once(requests.socket, 'drain');
    return id;
  };
  const inFlight: string[] = [];
  while (inFlight.length < REQUESTS) inFlight.push(await addRequest());
  await untilAllAreTracked();

  const memory: Resident[] = [];
  const watch = setInterval(() => memory.push({ at: performance.now(), bytes: sidecar.rss }), WATCH_MS);
  scope.teardown(() => clearInterval(watch));
  const stopReading = readSlowly();
  const sent = { count: 0, sum: 0 };
  while (performance.now() < deadline) {
    const turn = inFlight.splice(0, OUTPUTS);
    const message = batch(
      0,
      sent.count,
      turn.map((id, index) => ({ id, tokens: 1, isLast: index < FINISHED_PER_BATCH })),
    );
    sent.count++;
    sent.sum += OUTPUTS;
    if (!outputs.send(message)) await once(outputs.socket, 'drain');
    inFlight.push(...turn.slice(FINISHED_PER_BATCH));
    while (inFlight.length < REQUESTS) inFlight.push(await addRequest());
    await delay(STEP_MS);
  }
  clearInterval(watch);
  await stopReading();
  await eventually('all bytes', () => reader.received.bytes === outputs.sent.bytes, 60_000);
  await untilAllAreTracked();
  return { memory, sent, counted: totals(await sidecar.samples()) };

  async function untilAllAreTracked(): Promise<void> {
    await eventually(
      `${REQUESTS} requests tracked`,
      async () => (await sidecar.sample('steptap_tracked_requests', { client: '0' })) === REQUESTS,
    );
  }

  /** Returns its end. */
  function readSlowly(): () => Promise<void> {
    const stop = new AbortController();
    const reading = (async () => {
      while (!stop.signal.aborted) {
        reader.socket.pause();
        await delay(PAUSE_MS);
        reader.socket.resume();
        await delay(READ_MS);
        frontend.batches.length = 0;
      }
    })();
    return () => {
      stop.abort();
      return reading;
    };
  }
}
