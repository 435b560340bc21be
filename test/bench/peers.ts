import { join } from 'node:path';
import { LineProcess } from './line-process.js';
import { handshakePayloads } from './messages.js';
import { compiled, packageRoot } from './toolchain.js';

/** Addresses of the three sockets of a frontend, or of whatever stands before it. */
export interface Addresses {
  readonly handshake: string;
  readonly requests: string;
  readonly outputs: string;
}

/** What a receiving peer saw of one phase. Latencies in microseconds, 0 when the messages carry no time. */
export interface Received {
  readonly messages: number;
  readonly bytes: number;
  /** From the first message to the last. */
  readonly seconds: number;
  readonly p50: number;
  readonly p99: number;
  readonly max: number;
}

/** Messages that wait in a libzmq socket before a sender is held back: libzmq's own default. */
export const highWaterMark = 1000;

/** `c`: peer.c on libzmq. `node`: node-peer.ts on the zeromq package, for throughput only. */
export const peerKinds = ['c', 'node'] as const;
export type PeerKind = (typeof peerKinds)[number];

function startPeer(kind: PeerKind, role: 'frontend' | 'engine', args: readonly string[]): LineProcess {
  if (kind === 'c') return new LineProcess(role, compiled('peer'), [role, ...args]);
  const script = join(packageRoot, 'dist', 'test', 'bench', 'node-peer.js');
  return new LineProcess(role, process.execPath, [script, role, ...args]);
}

/** One peer: the frontend, or all engines of a case. Sends a script or counts what comes, as told. */
export class Peer {
  readonly #process: LineProcess;

  constructor(process: LineProcess) {
    this.#process = process;
  }

  /** Sends `count` messages of a script at `rate` per second (0: saturated); resolves when all are sent. */
  async send(script: string, count: number, rate: number, stamp: number): Promise<void> {
    this.#process.write(`send ${script} ${count} ${rate} ${stamp}`);
    await this.#process.answer('sent');
  }

  async expect(count: number, stamp: number): Promise<Received> {
    this.#process.write(`expect ${count} ${stamp}`);
    const [messages = 0, bytes = 0, seconds = 0, p50 = 0, p99 = 0, max = 0] = (
      await this.#process.answer('received')
    ).map(Number);
    return { messages, bytes, seconds, p50, p99, max };
  }

  stop(): Promise<void> {
    return this.#process.stop();
  }
}

/** A frontend that has bound its sockets and waits to be told what to say in INIT. */
export class BoundFrontend {
  readonly addresses: Addresses;
  readonly #process: LineProcess;

  readonly #kind: PeerKind;

  private constructor(kind: PeerKind, process: LineProcess, addresses: Addresses) {
    this.#kind = kind;
    this.#process = process;
    this.addresses = addresses;
  }

  static async start(kind: PeerKind, bind: Addresses, engines: number): Promise<BoundFrontend> {
    const process = startPeer(kind, 'frontend', [
      bind.handshake,
      bind.requests,
      bind.outputs,
      String(engines),
      String(highWaterMark),
    ]);
    const [handshake = '', requests = '', outputs = ''] = await process.answer('bound');
    return new BoundFrontend(kind, process, { handshake, requests, outputs });
  }

  /** Starts the engines at `handshake`; both peers are ready when all engines have registered. */
  async join(
    engines: number,
    handshake: string,
    init: { readonly requests: string; readonly outputs: string },
  ): Promise<{ frontend: Peer; engine: Peer }> {
    this.#process.write(`init ${handshakePayloads.init(init.requests, init.outputs)}`);
    const engineProcess = startPeer(this.#kind, 'engine', [
      handshake,
      String(engines),
      String(highWaterMark),
      handshakePayloads.hello,
      handshakePayloads.ready,
      handshakePayloads.registration,
    ]);
    try {
      await Promise.all([this.#process.answer('ready'), engineProcess.answer('ready')]);
    } catch (error) {
      await engineProcess.stop();
      throw error;
    }
    return { frontend: new Peer(this.#process), engine: new Peer(engineProcess) };
  }

  stop(): Promise<void> {
    return this.#process.stop();
  }
}
