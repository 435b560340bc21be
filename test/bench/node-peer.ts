/**
 * The same two ends as peer.c, on the `zeromq` package: what a peer costs in a language with a runtime, as vLLM's
 * are. Same arguments and lines, saturated only: RATE and STAMP are ignored.
 */
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { Dealer, Pull, Push, Router } from 'zeromq';

interface Message {
  readonly engine: number;
  readonly frames: readonly Buffer[];
}

type Send = (message: Message) => Promise<void>;
interface Receiver {
  receive(): Promise<Buffer[]>;
}

/** Both directions of a peer once its handshake is over. */
interface Ends {
  readonly send: Send;
  readonly receivers: readonly Receiver[];
}

const [role, ...args] = process.argv.slice(2);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
await obey(role === 'frontend' ? await startFrontend(args) : await startEngines(args));
process.exit(0);

async function startFrontend([handshakeAt, requestsAt, outputsAt, count, hwm]: string[]): Promise<Ends> {
  const marks = { sendHighWaterMark: Number(hwm), receiveHighWaterMark: Number(hwm) };
  const handshake = new Router({ ...marks, mandatory: true });
  const requests = new Router({ ...marks, mandatory: true });
  const outputs = new Pull({ receiveHighWaterMark: Number(hwm) });
  await handshake.bind(handshakeAt ?? '');
  await requests.bind(requestsAt ?? '');
  await outputs.bind(outputsAt ?? '');
  say(`bound ${[handshake, requests, outputs].map((socket) => socket.lastEndpoint).join(' ')}`);
  const { value: line } = await lines.next();
  const init = Buffer.from(String(line).slice('init '.length), 'hex');

  const greeted = new Set<string>();
  for (let i = 0; i < 2 * Number(count); i++) {
    const [identity = Buffer.alloc(0)] = await handshake.receive();
    if (greeted.has(identity.toString('hex'))) continue; // READY
    greeted.add(identity.toString('hex'));
    await handshake.send([identity, init]);
  }
  // Behind a ROUTER hop there is more than the identity before the payload.
  const envelopes: Buffer[][] = [];
  for (let i = 0; i < Number(count); i++) {
    const envelope = (await requests.receive()).slice(0, -1);
    envelopes[envelope.at(-1)?.[0] ?? 0] = envelope;
  }
  handshake.close();
  return {
    send: ({ engine, frames }) => requests.send([...(envelopes[engine] ?? []), ...frames]),
    receivers: [outputs],
  };
}

async function startEngines([handshakeAt, count, hwm, ...payloads]: string[]): Promise<Ends> {
  const [hello = '', ready = '', registration = ''] = payloads.map((hex) => Buffer.from(hex, 'hex'));
  const marks = { sendHighWaterMark: Number(hwm), receiveHighWaterMark: Number(hwm) };
  const requests: Dealer[] = [];
  const outputs: Push[] = [];
  for (let engine = 0; engine < Number(count); engine++) {
    const routingId = String.fromCharCode(engine, 0);
    const handshake = new Dealer({ ...marks, routingId });
    handshake.connect(handshakeAt ?? '');
    await handshake.send(hello);
    const [init = Buffer.alloc(0)] = await handshake.receive();
    const [requestsAt = '', outputsAt = ''] =
      init.toString('latin1').match(/(?:ipc|tcp):\/\/[\w.:/-]+/g) ?? [];
    const dealer = new Dealer({ ...marks, routingId });
    dealer.connect(requestsAt);
    const push = new Push({ sendHighWaterMark: Number(hwm) });
    push.connect(outputsAt);
    await handshake.send(ready);
    await dealer.send(registration);
    requests.push(dealer);
    outputs.push(push);
  }
  return {
    send: async ({ engine, frames }) => outputs[engine]?.send([...frames]),
    receivers: requests,
  };
}

async function obey({ send, receivers }: Ends): Promise<void> {
  say('ready');
  for await (const line of { [Symbol.asyncIterator]: () => lines }) {
    const [order, first, second] = String(line).split(' ');
    if (order === 'send') await sendScript(send, first ?? '', Number(second));
    else if (order === 'expect') await expect(receivers, Number(first));
  }
}

async function sendScript(send: Send, path: string, count: number): Promise<void> {
  const messages = load(readFileSync(path));
  const start = performance.now();
  for (let i = 0; i < count; i++) {
    const message = messages[i % messages.length];
    if (message !== undefined) await send(message);
  }
  say(`sent ${count} ${(performance.now() - start) / 1000}`);
}

async function expect(receivers: readonly Receiver[], count: number): Promise<void> {
  let received = 0;
  let bytes = 0;
  let first = 0;
  const share = async (receiver: Receiver, messages: number): Promise<void> => {
    for (let i = 0; i < messages; i++) {
      for (const frame of await receiver.receive()) bytes += frame.length;
      if (received++ === 0) first = performance.now();
    }
  };
  // Scripts go round the engines, so each gets the same share but for the remainder.
  await Promise.all(
    receivers.map((receiver, index) => share(receiver, Math.ceil((count - index) / receivers.length))),
  );
  say(`received ${received} ${bytes} ${(performance.now() - first) / 1000} 0 0 0`);
}

function load(bytes: Buffer): Message[] {
  const messages: Message[] = [];
  let at = 0;
  const u32 = (): number => {
    at += 4;
    return bytes.readUInt32LE(at - 4);
  };
  while (at < bytes.length) {
    const engine = u32();
    const frames = Array.from({ length: u32() }, () => {
      const length = u32();
      at += length;
      return bytes.subarray(at - length, at);
    });
    messages.push({ engine, frames });
  }
  return messages;
}

function say(line: string): void {
  process.stdout.write(`${line}\n`);
}
