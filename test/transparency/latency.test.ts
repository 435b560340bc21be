/** Small messages do not wait for an acknowledgement (TCP_NODELAY on both sides of the relay). */
import test from 'ava';
import type { RawPeer } from './raw-peer.js';
import { openPath } from './ways-in.js';
import { message } from './zmtp-writer.js';

/** Where both sides talk, Linux holds an acknowledgement back for 40 ms, and Nagle's second piece waits for it. */
const DELAYED_ACK_MS = 40;
const ROUNDS = 60;

test('the second of two small messages is relayed at once, in both directions', async (t) => {
  const { requests } = await openPath(t, 'handshake');
  for (const [from, to] of [
    [requests.frontend, requests.engine],
    [requests.engine, requests.frontend],
  ] as const) {
    const bytes = message([Buffer.alloc(100)]);
    const taken: number[] = [];
    for (let round = 0; round < ROUNDS; round++) {
      const first = arrival(to, from.sentBytes + bytes.length);
      await from.send(bytes);
      await first;
      const startedAt = performance.now();
      const second = arrival(to, from.sentBytes + bytes.length);
      await from.send(bytes);
      await second;
      taken.push(performance.now() - startedAt);
      const answered = arrival(from, to.sentBytes + bytes.length);
      await to.send(bytes);
      await answered;
    }
    const median = taken.sort((a, b) => a - b)[ROUNDS / 2] as number;
    t.true(median < DELAYED_ACK_MS / 2, `median ${median} ms`);
  }
});

/** Resolves as soon as `peer` has received `count` bytes in all. */
function arrival(peer: RawPeer, count: number): Promise<void> {
  return new Promise((resolve) => {
    const look = () => {
      if (peer.receivedBytes < count) return;
      peer.socket.off('data', look);
      resolve();
    };
    peer.socket.on('data', look);
  });
}
