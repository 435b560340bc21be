/**
 * A frontend and an engine made of plain sockets that speak just enough of vLLM to be taken for it: handshake,
 * registration, one client. Everything behind that is what the test writes.
 */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import net from 'node:net';
import { join } from 'node:path';
import { decode, encode } from '@msgpack/msgpack';
import { type Address, formatAddress, requireAddress } from '../../proxy/address.js';
import { engineIdentity } from './messages.js';
import { ZmtpPeer } from './toxic-zmtp.js';

export type Purpose = 'handshake' | 'requests' | 'outputs';
export type Addresses = Readonly<Record<Purpose, Address>>;

const PURPOSES = ['handshake', 'requests', 'outputs'] as const;
const TYPES = { handshake: 'ROUTER', requests: 'ROUTER', outputs: 'PULL' } as const;

/** Socket files as vLLM names them. */
export function socketFiles(dir: string): Addresses {
  const file = () => ({ path: join(dir, randomUUID()) });
  return { handshake: file(), requests: file(), outputs: file() };
}

export function anyPorts(): Addresses {
  const address = { host: '127.0.0.1', port: 0 };
  return { handshake: address, requests: address, outputs: address };
}

export interface RawFrontendOptions {
  /** Where it binds; what it names in INIT is the same unless `advertise` says otherwise. */
  readonly bind: Addresses;
  readonly advertise?: (purpose: Purpose, bound: Address) => Address;
  /** READY of its ROUTERs without an `Identity` property, as zmq.rs sends it. */
  readonly isRust?: boolean;
}

export class RawFrontend {
  /** Connections in the order in which their READY came, the closed ones included; a probe sends none. */
  readonly peers: Record<Purpose, ZmtpPeer[]> = { handshake: [], requests: [], outputs: [] };
  /** Payloads of the output messages, frame 0. */
  readonly batches: Buffer[] = [];
  registrations = 0;
  readonly #options: RawFrontendOptions;
  readonly #servers = new Map<Purpose, net.Server>();
  readonly #sockets = new Set<ZmtpPeer>();
  #bound: Addresses = anyPorts();

  private constructor(options: RawFrontendOptions) {
    this.#options = options;
  }

  static async listen(options: RawFrontendOptions): Promise<RawFrontend> {
    const frontend = new RawFrontend(options);
    const bound: Partial<Record<Purpose, Address>> = {};
    for (const purpose of PURPOSES) bound[purpose] = await frontend.#bind(purpose);
    frontend.#bound = bound as Addresses;
    return frontend;
  }

  get bound(): Addresses {
    return this.#bound;
  }

  /** Closes the listeners and cuts all connections, as when its process is killed. */
  close(): void {
    for (const server of this.#servers.values()) server.close();
    for (const peer of this.#sockets) peer.destroy();
  }

  async #bind(purpose: Purpose): Promise<Address> {
    const server = net.createServer({ allowHalfOpen: true }, (socket) => this.#accept(purpose, socket));
    this.#servers.set(purpose, server);
    const at = this.#options.bind[purpose];
    server.listen(at);
    await once(server, 'listening');
    const bound = server.address();
    return 'host' in at && typeof bound === 'object' && bound !== null
      ? { host: at.host, port: bound.port }
      : at;
  }

  #accept(purpose: Purpose, socket: net.Socket): void {
    const peer = new ZmtpPeer(socket, {
      type: TYPES[purpose],
      identity: this.#options.isRust === true ? null : Buffer.alloc(0),
      onMessage: (frames) => this.#onMessage(purpose, frames, peer),
    });
    this.#sockets.add(peer);
    void peer.ready.then(() => this.peers[purpose].push(peer));
    void peer.ended.then(() => {
      if (peer.endsWithItsPeer) peer.socket.end();
    });
  }

  #onMessage(purpose: Purpose, frames: readonly Buffer[], peer: ZmtpPeer): void {
    const payload = frames[0] as Buffer;
    if (purpose === 'outputs') this.batches.push(payload);
    else if (purpose === 'requests') this.registrations++;
    else if ((decode(payload) as { status?: string }).status === 'HELLO') peer.send(this.#init());
  }

  #init(): Uint8Array {
    const name = (purpose: Purpose): string => {
      const bound = this.#bound[purpose];
      return formatAddress(this.#options.advertise?.(purpose, bound) ?? bound);
    };
    const addresses = {
      inputs: [name('requests')],
      outputs: [name('outputs')],
      coordinator_input: null,
      coordinator_output: null,
      frontend_stats_publish_address: null,
    };
    return encode({ addresses, parallel_config: {} });
  }
}

/** An engine behind its handshake and registration; what it sends from then on is the test's. */
export class RawEngine {
  readonly index: number;
  readonly handshake: ZmtpPeer;
  /** Replaced by `reconnect`. */
  requests: ZmtpPeer;
  outputs: ZmtpPeer;
  readonly #requestsAt: Address;
  readonly #outputsAt: Address;

  private constructor(
    index: number,
    handshake: ZmtpPeer,
    requests: ZmtpPeer,
    outputs: ZmtpPeer,
    at: Dialled,
  ) {
    this.index = index;
    this.handshake = handshake;
    this.requests = requests;
    this.outputs = outputs;
    this.#requestsAt = at.requests;
    this.#outputsAt = at.outputs;
  }

  /** `via` gives what to dial for an address, for a toxic relay on the way. */
  static async join(
    index: number,
    handshakeAt: Address,
    via: (address: Address) => Address | Promise<Address> = (address) => address,
  ): Promise<RawEngine> {
    let gotInit: (payload: Buffer) => void = () => undefined;
    const init = new Promise<Buffer>((resolve) => {
      gotInit = resolve;
    });
    const handshake = await ZmtpPeer.connect(await via(handshakeAt), {
      type: 'DEALER',
      identity: engineIdentity(index),
      onMessage: ([payload]) => gotInit(payload as Buffer),
    });
    await handshake.ready;
    handshake.send(encode({ status: 'HELLO', local: true, headless: false }));
    const { addresses } = decode(await init) as { addresses: Record<'inputs' | 'outputs', string[]> };
    const dial = async (list: readonly string[]) => via(requireAddress(list[0] ?? ''));
    const at = { requests: await dial(addresses.inputs), outputs: await dial(addresses.outputs) };
    const [requests, outputs] = await dialData(index, at);
    requests.send(encode({ vllm_version: '0.32.0', max_model_len: 4096 }));
    handshake.send(encode({ status: 'READY', local: true, headless: false }));
    return new RawEngine(index, handshake, requests, outputs, at);
  }

  get peers(): Readonly<Record<Purpose, ZmtpPeer>> {
    return { handshake: this.handshake, requests: this.requests, outputs: this.outputs };
  }

  /** Dials both data addresses again, without handshake and registration, as libzmq does by itself. */
  async reconnect(): Promise<void> {
    for (const peer of [this.requests, this.outputs]) peer.destroy();
    const at = { requests: this.#requestsAt, outputs: this.#outputsAt };
    [this.requests, this.outputs] = await dialData(this.index, at);
  }

  destroy(): void {
    for (const peer of Object.values(this.peers)) peer.destroy();
  }
}

interface Dialled {
  readonly requests: Address;
  readonly outputs: Address;
}

async function dialData(index: number, at: Dialled): Promise<[ZmtpPeer, ZmtpPeer]> {
  const requests = await ZmtpPeer.connect(at.requests, { type: 'DEALER', identity: engineIdentity(index) });
  const outputs = await ZmtpPeer.connect(at.outputs, { type: 'PUSH' });
  await Promise.all([requests.ready, outputs.ready]);
  return [requests, outputs];
}
