/** Every byte that goes in comes out, in both modes, for every kind of connection, while scraped. */
import test, { type ExecutionContext } from 'ava';
import type { InProcessSidecar } from '../support/in-process.js';
import { array, int, NIL, str } from '../support/msgpack-encoder.js';
import { waitFor } from '../support/wait.js';
import { Random } from './random.js';
import { RawPeer } from './raw-peer.js';
import { connectTo, initWith, type Joined, MODES, openPath } from './ways-in.js';
import { greeting, message, ping, ready, sha256 } from './zmtp-writer.js';

const MIB = 1024 * 1024;
const SCRAPE_MS = 50;
/** Around every width of a length, and the largest that real traffic has (multimodal tensors). */
const SIZES = [0, 1, 2, 254, 255, 256, 257, 65_534, 65_535, 65_536, 65_537, MIB, 8 * MIB + 1];

/** Messages as vLLM sends them, and others that only ZMTP allows. */
function* traffic(random: Random, largest: number): Generator<Buffer> {
  for (const size of [...SIZES, largest]) yield message([random.bytes(size)]);
  for (const size of SIZES.slice(0, 10)) yield message([random.bytes(size)], true);
  yield message([Buffer.alloc(0), Buffer.alloc(0), Buffer.alloc(0)]);
  yield ping(random.bytes(16));
  yield message([Buffer.of(0), array([str('r1'), array([int(1)])]), random.bytes(70_000), Buffer.alloc(0)]);
  yield message([array([int(0), array([array([str('r1'), array([int(7)]), NIL])]), NIL])]);
  yield message([Buffer.from('ENGINE_CORE_DEAD')]);
  yield message(Array.from({ length: 300 }, (_, index) => random.bytes(index)));
  for (let i = 0; i < 500; i++) {
    yield message(Array.from({ length: 1 + random.integer(4) }, () => random.bytes(random.integer(400))));
  }
}

async function sendAll(peer: RawPeer, seed: number, largest: number, longestPiece: number): Promise<void> {
  const random = new Random(seed);
  for (const bytes of traffic(random, largest)) {
    const pieces = bytes.length > MIB ? [bytes] : random.pieces(bytes, longestPiece);
    for (const piece of pieces) await peer.send(piece);
  }
}

/** Asks for `/metrics` every 50 ms until `done`; gives the number of answers, each of them a good one. */
async function scrape(t: ExecutionContext, sidecar: InProcessSidecar, done: () => boolean): Promise<number> {
  let answers = 0;
  while (!done()) {
    const next = performance.now() + SCRAPE_MS;
    t.true((await sidecar.samples()).size > 20);
    answers++;
    await waitFor(() => performance.now() >= next || done(), { what: 'the time of the next scrape' });
  }
  return answers;
}

async function arrived({ engine, frontend }: Joined): Promise<void> {
  await waitFor(
    () => engine.receivedBytes >= frontend.sentBytes && frontend.receivedBytes >= engine.sentBytes,
    { what: 'everything sent has arrived', deadlineMs: 30_000 },
  );
}

function unchanged(t: ExecutionContext, { engine, frontend }: Joined, what: string): void {
  t.deepEqual(frontend.received, engine.sent, `${what}, to the frontend`);
  t.deepEqual(engine.received, frontend.sent, `${what}, to the engine`);
}

for (const mode of MODES) {
  test(`${mode}: all bytes of request and output connections arrive as sent, 0 bytes to 60 MB, while scraped every 50 ms`, async (t) => {
    const { sidecar, requests, outputs } = await openPath(t, mode);
    const peers = [requests.engine, requests.frontend, outputs.engine, outputs.frontend];
    for (const peer of peers) peer.keepNoMore();
    let isDone = false;
    const scraping = scrape(t, sidecar, () => isDone);
    const sending = peers.map((peer, index) =>
      sendAll(peer, index, (index === 1 || index === 2 ? 60 : 17) * MIB, 3000),
    );
    await Promise.all(sending);
    await arrived(requests);
    await arrived(outputs);
    isDone = true;
    t.true((await scraping) >= 3);
    unchanged(t, requests, 'requests');
    unchanged(t, outputs, 'outputs');
    t.true(requests.frontend.sentBytes > 60 * MIB && outputs.engine.sentBytes > 60 * MIB);
  });

  test(`${mode}: bytes that are no ZMTP frames go through all the same once the greeting has passed`, async (t) => {
    const { sidecar, requests, outputs, handshake } = await openPath(t, mode);
    for (const { engine, frontend } of [requests, outputs, handshake]) {
      for (const peer of [engine, frontend]) {
        const noise = new Random(engine.sentBytes).bytes(3 * MIB);
        noise[0] = 0xf8; // reserved flags: the framing is lost here
        await peer.send(noise);
      }
    }
    for (const joined of [requests, outputs, handshake]) await arrived(joined);
    unchanged(t, requests, 'requests');
    unchanged(t, outputs, 'outputs');
    t.deepEqual(handshake.frontend.received, handshake.engine.sent);
    for (const kind of ['requests', 'outputs', 'handshake']) {
      const labels = { kind, reason: 'reserved_flags' };
      t.is(await sidecar.sample('steptap_opaque_connections_total', labels), 1, kind);
    }
  });
}

test('a connection of another mechanism than NULL is relayed and not read', async (t) => {
  const { sidecar, sockets, told, requests } = await openPath(t, 'handshake');
  const plain = greeting();
  plain.fill(0, 12, 32).write('PLAIN', 12, 'latin1');
  sockets.requests.opening = plain;
  const engine = await RawPeer.connect(t, connectTo(told.inputs[0]));
  await engine.send(Buffer.concat([plain, new Random(4).bytes(5000)]));
  const frontend = await sockets.requests.next();
  await frontend.send(new Random(5).bytes(5000));
  await arrived({ engine, frontend });
  unchanged(t, { engine, frontend }, 'requests');
  const labels = { kind: 'requests', reason: 'mechanism' };
  t.is(await sidecar.sample('steptap_opaque_connections_total', labels), 1);
  await requests.frontend.send(message([Buffer.from('the other one is read as before')]));
  await arrived(requests);
});

test('directory: the handshake passes unchanged, INIT with its unix addresses included', async (t) => {
  const { handshake, named, told } = await openPath(t, 'directory');
  await handshake.engine.send(message([Buffer.from('READY, later')]));
  await handshake.frontend.send(message([Buffer.from('a second message')]));
  await arrived(handshake);
  unchanged(t, handshake, 'handshake');
  t.deepEqual(told.inputs, named.inputs);
});

test('handshake: in INIT the address strings differ, and not one other byte', async (t) => {
  const { handshake, named, told } = await openPath(t, 'handshake');
  t.notDeepEqual(told.inputs, named.inputs);
  t.notDeepEqual(told.outputs, named.outputs);
  const behind = message([initWith(named).subarray(1)]); // no INIT any more
  await handshake.frontend.send(behind);
  await handshake.engine.send(message([Buffer.from('READY, later')]));
  // Of the two lists under `inputs` only the one in `addresses` is vLLM's.
  const expected = Buffer.concat([greeting(), ready('ROUTER'), message([initWith(told, named)]), behind]);
  await waitFor(() => handshake.engine.receivedBytes >= expected.length, { what: 'all at the engine' });
  t.is(sha256(handshake.engine.bytes), sha256(expected));
  await waitFor(() => handshake.frontend.receivedBytes >= handshake.engine.sentBytes, {
    what: 'all at the frontend',
  });
  t.deepEqual(handshake.frontend.received, handshake.engine.sent);
});
