/**
 * Both ways in with raw peers at the two ends: a frontend that listens, a real sidecar, an engine that goes through
 * the handshake and then connects to what INIT told it.
 *
 *     engine ──handshake──► steptap ──► frontend      then the same for requests and outputs
 */
import { randomUUID } from 'node:crypto';
import type { NetConnectOpts } from 'node:net';
import { join } from 'node:path';
import { decode } from '@msgpack/msgpack';
import type { ExecutionContext } from 'ava';
import {
  freePort,
  type InProcessSidecar,
  runSidecar,
  type SettingsPatch,
  temporaryDirectory,
} from '../support/in-process.js';
import { array, bin, bool, ext, float, int, map, NIL, str } from '../support/msgpack-encoder.js';
import { waitFor } from '../support/wait.js';
import { RawListener, RawPeer } from './raw-peer.js';
import { engineIdentity, greeting, message, ready } from './zmtp-writer.js';

export type Mode = 'directory' | 'handshake';
export const MODES: readonly Mode[] = ['directory', 'handshake'];

/** The two ends of one relayed connection, their greetings and READYs exchanged. */
export interface Joined {
  readonly engine: RawPeer;
  readonly frontend: RawPeer;
}

export interface Sockets {
  readonly sidecar: InProcessSidecar;
  readonly handshake: RawListener;
  readonly requests: RawListener;
  readonly outputs: RawListener;
  /** Where the engine finds the handshake. */
  readonly entrance: NetConnectOpts;
  /** What the frontend names in INIT. */
  readonly addresses: Addresses;
}

export interface Addresses {
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
}

export interface Path {
  readonly sidecar: InProcessSidecar;
  readonly sockets: Sockets;
  readonly handshake: Joined;
  readonly requests: Joined;
  readonly outputs: Joined;
  /** What the frontend named in INIT, and what the engine was told. */
  readonly named: Addresses;
  readonly told: Addresses;
}

const SOCKET_TYPES = { handshake: 'ROUTER', requests: 'ROUTER', outputs: 'PULL' } as const;

/** A frontend that listens and a sidecar in front of it; no engine yet. */
export async function listen(
  t: ExecutionContext,
  mode: Mode,
  { host = '127.0.0.1', patch = {} as SettingsPatch } = {},
): Promise<Sockets> {
  const names = { handshake: randomUUID(), requests: randomUUID(), outputs: randomUUID() };
  const dir = mode === 'directory' ? temporaryDirectory(t) : null;
  const open = (kind: keyof typeof names) =>
    RawListener.listen(t, dir === null ? { host, port: 0 } : { path: join(dir, names[kind]) });
  const handshake = await open('handshake');
  const requests = await open('requests');
  const outputs = await open('outputs');
  for (const [kind, listener] of Object.entries({ handshake, requests, outputs })) {
    // vLLM's sockets speak first, unasked.
    listener.opening = Buffer.concat([greeting(), ready(SOCKET_TYPES[kind as keyof typeof names])]);
  }
  const url = (port: number) => (host.includes(':') ? `tcp://[${host}]:${port}` : `tcp://${host}:${port}`);
  if (dir !== null) {
    const sidecar = await runSidecar(t, { ipc: { dir }, ...patch });
    const taken = async () => (await sidecar.status()).endpoints.length === 3;
    await waitFor(taken, { what: 'all three sockets taken over' });
    const addresses = {
      inputs: [`ipc://${join(dir, names.requests)}`],
      outputs: [`ipc://${join(dir, names.outputs)}`],
    };
    const entrance = { path: join(dir, names.handshake) };
    return { sidecar, handshake, requests, outputs, entrance, addresses };
  }
  const port = await freePort(host);
  const sidecar = await runSidecar(t, {
    frontend: { handshake: url(handshake.port) },
    engine: { handshake: url(port) },
    ...patch,
  });
  const addresses = { inputs: [url(requests.port)], outputs: [url(outputs.port)] };
  return { sidecar, handshake, requests, outputs, entrance: { host, port }, addresses };
}

/** An engine that has said HELLO, got its INIT and opened its two data connections. */
export async function openPath(
  t: ExecutionContext,
  mode: Mode,
  options: { host?: string; patch?: SettingsPatch } = {},
): Promise<Path> {
  const sockets = await listen(t, mode, options);
  const { sidecar, addresses } = sockets;
  const handshake = await joinPeers(
    t,
    sockets.entrance,
    sockets.handshake,
    ready('DEALER', engineIdentity(0)),
    [message([HELLO])],
  );
  await handshake.frontend.send(message([initWith(addresses)]));
  const told = await toldAddresses(handshake.engine, sockets.handshake.opening.length);
  const requests = await joinPeers(
    t,
    connectTo(told.inputs[0]),
    sockets.requests,
    ready('DEALER', engineIdentity(0)),
    [message([Buffer.alloc(0)])],
  );
  const outputs = await joinPeers(t, connectTo(told.outputs[0]), sockets.outputs, ready('PUSH'), []);
  return { sidecar, sockets, handshake, requests, outputs, named: addresses, told };
}

export const HELLO = map([
  [str('status'), str('HELLO')],
  [str('local'), bool(true)],
  [str('headless'), bool(false)],
]);

/**
 * An INIT with everything around the addresses that decoding and encoding again would change. Elsewhere in the map
 * stands a list of the same name, `others`, that is none of steptap's business.
 */
export function initWith({ inputs, outputs }: Addresses, others: Addresses = { inputs, outputs }): Buffer {
  const list = (addresses: readonly string[]) => array(addresses.map((address) => str(address)));
  return map([
    [str('unknown_float'), float(1)],
    [str('unknown_float32'), float(0.1, 4)],
    [
      str('addresses'),
      map([
        [str('unknown_before'), int(2n ** 64n - 1n)],
        [str('outputs'), list(outputs)],
        [str('coordinator_input'), NIL],
        [str('inputs', 1), list(inputs)],
        [str('coordinator_output'), NIL],
        [str('frontend_stats_publish_address'), str('tcp://127.0.0.1:1')],
      ]),
    ],
    [
      str('parallel_config'),
      map([
        [str('data_parallel_size'), int(1, 8)],
        [str('seed'), int(-(2n ** 63n))],
        [str('inputs'), list(others.inputs)],
      ]),
    ],
    [str('unknown_binary'), bin(Buffer.from([0xc1, 0xff, 0]))],
    [str('unknown_ext'), ext(42, Buffer.from('whatever'))],
    [int(7), NIL],
  ]);
}

/** What an engine reads in its INIT, the only message it has received behind `openingLength` bytes. */
export async function toldAddresses(engine: RawPeer, openingLength: number): Promise<Addresses> {
  const wholeMessage = () => {
    const bytes = engine.bytes.subarray(openingLength);
    // Longer than 255 bytes, so always with an 8-byte length.
    return bytes.length >= 9 && bytes.length >= 9 + Number(bytes.readBigUInt64BE(1)) && bytes.subarray(9);
  };
  const received = await waitFor(wholeMessage, { what: 'INIT at the engine' });
  const init = decode(received, { useBigInt64: true }) as { addresses: Addresses };
  return init.addresses;
}

export function connectTo(address: string | undefined): NetConnectOpts {
  const match = /^tcp:\/\/\[?([^\]]*?)\]?:(\d+)$/.exec(address ?? '');
  if (match !== null) return { host: String(match[1]), port: Number(match[2]) };
  return { path: String(address).replace('ipc://', '') };
}

/** Connects an engine's socket; resolves once each side has what the other said first. */
export async function joinPeers(
  t: ExecutionContext,
  to: NetConnectOpts,
  listener: RawListener,
  readyCommand: Buffer,
  first: readonly Buffer[],
): Promise<Joined> {
  const engine = await RawPeer.connect(t, to);
  const opening = Buffer.concat([greeting(), readyCommand, ...first]);
  await engine.send(opening);
  const frontend = await listener.next();
  await frontend.receivesAtLeast(opening.length);
  await engine.receivesAtLeast(listener.opening.length);
  return { engine, frontend };
}
