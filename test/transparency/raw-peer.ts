/** A peer without any ZeroMQ library: it sends bytes as it is told to and hashes all that goes and comes. */
import { createHash, type Hash } from 'node:crypto';
import { once } from 'node:events';
import net from 'node:net';
import type { ExecutionContext } from 'ava';
import { waitFor } from '../support/wait.js';

/** All bytes of one direction so far. */
export interface Traffic {
  readonly bytes: number;
  readonly sha256: string;
}

export class RawPeer {
  readonly socket: net.Socket;
  readonly #sent = createHash('sha256');
  readonly #received = createHash('sha256');
  #sentBytes = 0;
  #receivedBytes = 0;
  #kept: Buffer[] = [];
  #keeps = true;
  #hasEnded = false;
  errno: string | null = null;

  constructor(socket: net.Socket) {
    this.socket = socket;
    socket.on('data', (chunk: Buffer) => {
      this.#received.update(chunk);
      this.#receivedBytes += chunk.length;
      if (this.#keeps) this.#kept.push(chunk);
    });
    socket.on('end', () => {
      this.#hasEnded = true;
    });
    socket.on('error', (error) => {
      this.errno = 'code' in error ? String(error.code) : error.message;
    });
  }

  static async connect(t: ExecutionContext, to: net.NetConnectOpts): Promise<RawPeer> {
    const socket = net.connect({ ...to, allowHalfOpen: true, noDelay: true } as net.NetConnectOpts);
    const peer = new RawPeer(socket);
    t.teardown(() => socket.destroy());
    await once(socket, 'connect');
    return peer;
  }

  get sent(): Traffic {
    return traffic(this.#sentBytes, this.#sent);
  }

  get received(): Traffic {
    return traffic(this.#receivedBytes, this.#received);
  }

  get sentBytes(): number {
    return this.#sentBytes;
  }

  get receivedBytes(): number {
    return this.#receivedBytes;
  }

  /** The other side has said that nothing more comes. */
  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  get isClosed(): boolean {
    return this.socket.closed;
  }

  /** Everything received until `keepNoMore`. */
  get bytes(): Buffer {
    this.#kept = [Buffer.concat(this.#kept)];
    return this.#kept[0] as Buffer;
  }

  /** From now on received bytes are only hashed. */
  keepNoMore(): void {
    this.#keeps = false;
    this.#kept = [];
  }

  /** Resolves once the socket takes more. */
  async send(bytes: Buffer): Promise<void> {
    this.#sent.update(bytes);
    this.#sentBytes += bytes.length;
    if (!this.socket.write(bytes)) await once(this.socket, 'drain');
  }

  /** Resolves with the first `count` bytes received. */
  receivesAtLeast(count: number): Promise<Buffer> {
    return waitFor(() => this.bytes.length >= count && this.bytes, { what: `${count} bytes received` });
  }
}

/** A listener that keeps whoever connects. Ends with the test. */
export class RawListener {
  readonly accepted: RawPeer[] = [];
  readonly server: net.Server;
  /** Sent to whoever connects, as vLLM's sockets do. */
  opening: Buffer = Buffer.alloc(0);
  readonly #taken = new Set<RawPeer>();

  private constructor(server: net.Server) {
    this.server = server;
    server.on('connection', (socket) => {
      const peer = new RawPeer(socket);
      this.accepted.push(peer);
      if (this.opening.length > 0) void peer.send(this.opening);
    });
  }

  static async listen(t: ExecutionContext, at: net.ListenOptions): Promise<RawListener> {
    const server = net.createServer({ allowHalfOpen: true, noDelay: true });
    const listener = new RawListener(server);
    server.listen(at);
    await once(server, 'listening');
    t.teardown(() => {
      server.close();
      for (const { socket } of listener.accepted) socket.destroy();
    });
    return listener;
  }

  get port(): number {
    return (this.server.address() as net.AddressInfo).port;
  }

  /**
   * The next connection of a real peer, that is one which sends more than a greeting: steptap's own question what
   * this socket is ends there.
   */
  async next(): Promise<RawPeer> {
    const peer = await waitFor(
      () => this.accepted.find((candidate) => !this.#taken.has(candidate) && candidate.receivedBytes > 64),
      { what: 'a connection' },
    );
    this.#taken.add(peer);
    return peer;
  }
}

function traffic(bytes: number, hash: Hash): Traffic {
  return { bytes, sha256: hash.copy().digest('hex') };
}
