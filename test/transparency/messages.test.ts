/** Real ZeroMQ peers see the same frames in the same messages as without a sidecar, in both modes, while scraped. */
import test from 'ava';
import { type Mode, startVllm, type Vllm } from '../support/vllm.js';
import { waitFor } from '../support/wait.js';
import { Random } from './random.js';
import { sha256 } from './zmtp-writer.js';

const MIB = 1024 * 1024;
const SCRAPE_MS = 50;
const MODES: readonly Mode[] = ['directory', 'handshake'];

/** Lengths of the frames of each message. The first frame of one with several must not be empty: it is the type. */
const MESSAGES: readonly (readonly number[])[] = [
  ...[0, 1, 255, 256, 65_535, 65_536, MIB, 60 * MIB].map((length) => [length]),
  [1, 0],
  [1, 0, 0, 0],
  [1, 254, 255, 256, 257],
  [1, 20 * MIB, 0, 5 * MIB + 1],
  Array.from({ length: 1000 }, (_, index) => index % 300),
];

interface Summary {
  readonly length: number;
  readonly sha256: string;
}

function summary(frames: readonly Uint8Array[]): Summary[] {
  return frames.map((frame) => ({ length: frame.length, sha256: sha256(Buffer.from(frame)) }));
}

async function scraped(vllm: Vllm, work: Promise<void>): Promise<number> {
  let isDone = false;
  let scrapes = 0;
  const end = work.finally(() => {
    isDone = true;
  });
  for (; !isDone; scrapes++) {
    const next = performance.now() + SCRAPE_MS;
    await vllm.sidecar.samples();
    await waitFor(() => isDone || performance.now() >= next, { what: 'the time of the next scrape' });
  }
  await end;
  return scrapes;
}

for (const mode of MODES) {
  test.serial(
    `${mode}: messages to the frontend arrive with the frames they were sent with, 0 bytes to 60 MB`,
    async (t) => {
      const vllm = await startVllm(t, { mode });
      const random = new Random(1);
      const sendAll = async () => {
        for (const lengths of MESSAGES) {
          const frames = lengths.map((length) => random.bytes(length));
          t.deepEqual(summary(await vllm.send(frames)), summary(frames));
        }
      };
      t.true((await scraped(vllm, sendAll())) >= 2);
      const labels = { engine: '0', client: '0', direction: 'to_frontend' };
      await vllm.step([]); // tells whose connection it is
      t.is(await vllm.counter('messages_total', labels), MESSAGES.length + 2); // and the registration
    },
  );

  test.serial(
    `${mode}: messages to an engine arrive with the frames they were sent with, 0 bytes to 60 MB`,
    async (t) => {
      const vllm = await startVllm(t, { mode });
      const [engine] = vllm.engines;
      const received: Summary[][] = [];
      if (engine !== undefined) engine.onInput = (_client, frames) => received.push(summary(frames));
      const random = new Random(2);
      const sendAll = async () => {
        for (const [index, lengths] of MESSAGES.entries()) {
          // 0x7f: a type that neither steptap nor the engine reads.
          const frames = lengths.map((length, at) =>
            at > 0 ? random.bytes(length) : Buffer.alloc(length, 0x7f),
          );
          await vllm.frontend.sendRaw(0, 0, frames);
          const arrived = await waitFor(() => received[index], {
            what: 'the message at the engine',
            deadlineMs: 40_000,
          });
          t.deepEqual(arrived, summary(frames));
        }
      };
      t.true((await scraped(vllm, sendAll())) >= 2);
      const labels = { engine: '0', client: '0', direction: 'to_engine' };
      t.is(await vllm.counter('messages_total', labels), MESSAGES.length);
    },
  );
}

test('thousands of small messages keep their order in both directions at once', async (t) => {
  const vllm = await startVllm(t, { mode: 'handshake' });
  const [engine] = vllm.engines;
  const received: string[] = [];
  if (engine !== undefined) engine.onInput = (_client, frames) => received.push(String(frames[1]));
  const expected = Array.from({ length: 3000 }, (_, index) => `message ${index}`);
  await Promise.all(
    expected.flatMap((text) => [
      vllm.frontend.sendRaw(0, 0, [Buffer.of(0x7f), Buffer.from(text)]),
      engine?.sendRaw(0, [Buffer.from(text)]),
    ]),
  );
  await waitFor(() => received.length >= expected.length && vllm.arrived.length >= expected.length, {
    what: 'all messages',
  });
  t.deepEqual(received, expected);
  t.deepEqual(
    vllm.arrived.map(([frame]) => String(frame)),
    expected,
  );
});
