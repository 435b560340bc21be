import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { Transport } from './cases.js';
import { LineProcess } from './line-process.js';
import { type Addresses, BoundFrontend, highWaterMark, type PeerKind } from './peers.js';
import { Sidecar } from './sidecar-process.js';
import { compiled } from './toolchain.js';

export const hopNames = ['none', 'zmq_proxy', 'steptap'] as const;
export type HopName = (typeof hopNames)[number];

/** What stands between a bound frontend and its engines. */
export interface Hop {
  readonly frontend: BoundFrontend;
  /** Where the engines say HELLO, and the addresses that the frontend's INIT names. */
  readonly handshake: string;
  readonly init: { readonly requests: string; readonly outputs: string };
  /** The process to watch; none without a hop. */
  readonly pid?: number;
  readonly sidecar?: Sidecar;
  stop(): Promise<void>;
}

/** Who stands at the two ends. */
export interface LineUp {
  readonly transport: Transport;
  readonly engines: number;
  readonly peers: PeerKind;
  /** An empty directory for socket files. */
  readonly folder: string;
}

/** Starts the frontend and what stands before it. */
export function startHop(name: HopName, lineUp: LineUp): Promise<Hop> {
  if (name === 'none') return startDirect(lineUp);
  if (name === 'zmq_proxy') return startZmqProxy(lineUp);
  return lineUp.transport === 'unix' ? startDirectorySidecar(lineUp) : startHandshakeSidecar(lineUp);
}

/** Addresses as vLLM chooses them: a file named by a UUID, or any port. */
function bindings({ transport, folder }: LineUp): Addresses {
  const address = () => (transport === 'tcp' ? 'tcp://127.0.0.1:*' : `ipc://${join(folder, randomUUID())}`);
  return { handshake: address(), requests: address(), outputs: address() };
}

async function startDirect(lineUp: LineUp): Promise<Hop> {
  const frontend = await BoundFrontend.start(lineUp.peers, bindings(lineUp), lineUp.engines);
  return {
    frontend,
    handshake: frontend.addresses.handshake,
    init: frontend.addresses,
    stop: () => frontend.stop(),
  };
}

async function startZmqProxy(lineUp: LineUp): Promise<Hop> {
  const direct = await startDirect(lineUp);
  const inner = direct.frontend.addresses;
  const outer = bindings(lineUp);
  const proxy = new LineProcess('zmq-proxy', compiled('zmq-proxy'), [
    outer.requests,
    outer.outputs,
    inner.requests,
    inner.outputs,
    String(highWaterMark),
  ]);
  const stop = async () => {
    await direct.stop();
    await proxy.stop();
  };
  const [requests = '', outputs = ''] = await orStop(proxy.answer('bound'), stop);
  return { ...direct, init: { requests, outputs }, pid: proxy.pid, stop };
}

/** steptap as in a pod: first the sidecar on an empty directory, then the frontend's sockets, taken over. */
async function startDirectorySidecar(lineUp: LineUp): Promise<Hop> {
  const sidecar = await Sidecar.start(['--ipc-dir', lineUp.folder]);
  const direct = await orStop(startDirect(lineUp), () => sidecar.stop());
  const stop = async () => {
    await direct.stop();
    await sidecar.stop();
  };
  const paths = Object.values(direct.frontend.addresses).map((address: string) =>
    address.slice('ipc://'.length),
  );
  await orStop(takenOver(paths), stop);
  return { ...direct, pid: sidecar.pid, sidecar, stop };
}

/** steptap between nodes: engines are told its handshake address, INIT does the rest. */
async function startHandshakeSidecar(lineUp: LineUp): Promise<Hop> {
  const direct = await startDirect(lineUp);
  const port = await Sidecar.freePort();
  const handshake = `tcp://127.0.0.1:${port}`;
  const sidecar = await orStop(
    Sidecar.start(['--frontend-handshake', direct.handshake, '--engine-handshake', handshake]),
    () => direct.stop(),
  );
  const stop = async () => {
    await direct.stop();
    await sidecar.stop();
  };
  return { ...direct, handshake, pid: sidecar.pid, sidecar, stop };
}

/** Waits until each socket file has its `.up` beside it; real engines come seconds later anyway. */
async function takenOver(paths: readonly string[]): Promise<void> {
  const deadline = Date.now() + 5000;
  while (!paths.every((path) => existsSync(path) && existsSync(`${path}.up`))) {
    if (Date.now() > deadline) throw new Error('steptap did not take over the socket files within 5 s');
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

async function orStop<T>(result: Promise<T>, stop: () => Promise<void>): Promise<T> {
  try {
    return await result;
  } catch (error) {
    await stop();
    throw error;
  }
}
