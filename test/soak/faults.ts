/** Faults that must change nothing in what arrives and what is counted. Each is over when it resolves. */
import { once } from 'node:events';
import net from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { requireAddress } from '../../proxy/address.js';
import { encodeMessage, greeting, readyCommand } from '../support/toxic-zmtp.js';
import type { Random } from '../transparency/random.js';
import type { Stack } from './stack.js';

const HALF_OPEN = 300;
const TINY_FRAMES = 20_000;
const SCRAPES = 50;
const PLENTY_OF_DESCRIPTORS = 1024;

export interface Fault {
  readonly name: string;
  readonly inflict: (stack: Stack, random: Random) => Promise<void>;
}

export const HARMLESS: readonly Fault[] = [
  { name: 'steptap stopped', inflict: ({ steptap }, random) => stopped(steptap, random) },
  { name: 'frontend stopped', inflict: ({ frontend }, random) => stopped(frontend, random) },
  { name: 'engine stopped', inflict: ({ engine }, random) => stopped(engine, random) },
  {
    name: 'half-open greetings',
    inflict: (stack, random) => strangers(stack, random, HALF_OPEN, partOfAGreeting),
  },
  { name: 'HTTP to a data listener', inflict: (stack, random) => strangers(stack, random, 20, () => HTTP) },
  { name: 'a flood of tiny frames', inflict: (stack, random) => strangers(stack, random, 1, () => FLOOD) },
  { name: 'out of descriptors', inflict: outOfDescriptors },
  { name: 'scrapes', inflict: scrapes },
];

const HTTP = Buffer.from('GET / HTTP/1.1\r\nHost: x\r\n\r\n');
/** A PUSH that sends one-byte messages, none of them a batch. */
const FLOOD = Buffer.concat([
  greeting(),
  readyCommand('PUSH', Buffer.alloc(0)),
  ...Array.from({ length: TINY_FRAMES }, () => encodeMessage([Buffer.of(0xc1)])),
]);

function partOfAGreeting(random: Random): Buffer {
  return greeting().subarray(0, random.integer(10));
}

async function stopped(process: { signal(name: NodeJS.Signals): void }, random: Random): Promise<void> {
  process.signal('SIGSTOP');
  await delay(200 + random.integer(2000));
  process.signal('SIGCONT');
}

/** Connections of nobody, to where outputs go, that send `bytes` and after a while hang up. */
async function strangers(
  stack: Stack,
  random: Random,
  count: number,
  bytes: (random: Random) => Buffer,
): Promise<void> {
  const { endpoints } = await stack.steptap.status();
  const listen = endpoints.find(({ kind }) => kind === 'outputs')?.listen;
  if (listen === null || listen === undefined) throw new Error('steptap has no endpoint for outputs');
  const sockets = await Promise.all(
    Array.from({ length: count }, async () => {
      const socket = net.connect({ ...requireAddress(listen) });
      socket.on('error', () => undefined).resume();
      await Promise.race([once(socket, 'connect'), once(socket, 'close')]);
      socket.write(bytes(random));
      return socket;
    }),
  );
  await delay(500 + random.integer(1000));
  for (const socket of sockets) socket.destroy();
}

async function outOfDescriptors(stack: Stack, random: Random): Promise<void> {
  const { steptap } = stack;
  const before = steptap.descriptors;
  steptap.limitDescriptors(before + 2);
  const listen = (await steptap.status()).endpoints[0]?.listen;
  if (listen !== null && listen !== undefined) {
    for (let connection = 0; connection < 20; connection++) {
      const socket = net.connect({ ...requireAddress(listen) });
      socket.on('error', () => undefined).resume();
      setTimeout(() => socket.destroy(), 500);
    }
  }
  await delay(500 + random.integer(500));
  steptap.limitDescriptors(PLENTY_OF_DESCRIPTORS);
}

async function scrapes({ steptap }: Stack): Promise<void> {
  await Promise.all(Array.from({ length: SCRAPES }, () => steptap.get('/metrics')));
}
