/** Where steptap listens, where it dials for each connection accepted there, and what flows. */
import net from 'node:net';
import { type Address, formatAddress } from './address.js';
import { Connection, type FailureReason, socketOptions } from './connection.js';
import { errnoOf, messageOf, SteptapError } from './errors.js';
import { LogThrottle } from './log-throttle.js';
import { Tap, type TapContext } from './tap.js';
import type { Ready } from './zmtp/ready.js';

/** `unknown`: not told yet; `other`: relayed and never decoded. */
export type EndpointKind = 'handshake' | 'requests' | 'outputs' | 'other' | 'unknown';

/** A peer that connects and says nothing is let go after this. */
const GREETING_DEADLINE_MS = 10_000;
/** Half-open greetings per endpoint; the oldest goes, so that an engine always gets in. */
const MAX_HALF_OPEN = 256;
const BACKLOG = 4096;

export interface EndpointEvents {
  /** Kind, client or engines have changed. */
  changed(endpoint: Endpoint): void;
  /** The frontend's socket refused a connection, or the last connection has gone. */
  suspect(endpoint: Endpoint): void;
}

export class Endpoint {
  kind: EndpointKind = 'unknown';
  /** Index of the frontend client as decimal text; null where there is none. */
  client: string | null = null;
  /** What is dialled for each connection. */
  upstream: Address;
  /** Engines that have had a request connection here. */
  readonly engines = new Set<number>();
  /** Found at the start without a record of its engines: any of them may have been connected before. */
  mayHaveHadEngines = false;
  readonly connections = new Set<Connection>();
  /** How the frontend's ROUTER is made; null until its READY was seen. */
  upstreamRouter: 'libzmq' | 'other' | null = null;
  /** The frontend's socket has been reached at least once. */
  wasReached = false;
  /** Where engines connect to. */
  listenAddress: Address | null = null;
  readonly #context: TapContext;
  readonly #events: EndpointEvents;
  readonly #throttle = new LogThrottle();
  #server: net.Server | null = null;

  constructor(upstream: Address, context: TapContext, events: EndpointEvents) {
    this.upstream = upstream;
    this.#context = context;
    this.#events = events;
  }

  /** For logs: what is dialled. */
  get name(): string {
    return formatAddress(this.upstream);
  }

  /** Label value: what is not known is `other`. */
  get kindLabel(): string {
    return this.kind === 'unknown' ? 'other' : this.kind;
  }

  get unreachable(): boolean {
    for (const connection of this.connections) if (connection.stage === 'dialling') return true;
    return false;
  }

  assign(kind: EndpointKind, client: string | null): void {
    if (this.kind === kind && this.client === client) return;
    this.kind = kind;
    this.client = client;
    this.#context.logger.debug({ endpoint: this.name, kind, client }, 'endpoint known');
    this.#events.changed(this);
  }

  /** Whether a request connection of this engine would stand in for an earlier one. */
  hasHad(index: number): boolean {
    return this.mayHaveHadEngines || this.engines.has(index);
  }

  addEngine(index: number): void {
    if (this.engines.has(index)) return;
    this.engines.add(index);
    this.#events.changed(this);
  }

  learnUpstream(ready: Ready): void {
    if (ready.socketType === 'ROUTER') this.upstreamRouter = ready.identity === null ? 'other' : 'libzmq';
  }

  /**
   * Begins to accept at `address` (TCP port 0: any free one); gives the address that was bound.
   * Throws STEPTAP_LISTEN, naming the address, when it is in use, forbidden or does not exist here.
   */
  async listen(address: Address): Promise<Address> {
    const server = net.createServer({ allowHalfOpen: true, pauseOnConnect: true, ...socketOptions });
    server.on('connection', (socket) => this.#accept(socket));
    await new Promise<void>((resolve, reject) => {
      server.once('error', (error) => reject(listenError(address, error)));
      server.listen({ ...address, backlog: BACKLOG }, () => resolve());
    });
    server.removeAllListeners('error');
    server.on('error', (error) => this.#failed('accept_failed', error)); // such as EMFILE; it goes on accepting
    this.#server = server;
    const bound = server.address();
    this.listenAddress =
      'port' in address && bound !== null && typeof bound === 'object'
        ? { host: address.host, port: bound.port }
        : address;
    return this.listenAddress;
  }

  /** No new connections; those that are joined go on. */
  stopListening(): void {
    this.#server?.close();
    this.#server = null;
  }

  destroy(): void {
    this.stopListening();
    for (const connection of this.connections) connection.destroy();
  }

  #accept(socket: net.Socket): void {
    const tap = new Tap(this, this.#context);
    const { telemetry } = this.#context;
    // What flows on an endpoint of unknown kind shows later; its label must not change once counted.
    const wasUnknown = this.kind === 'unknown';
    if (!wasUnknown) telemetry.add('connections_total', { kind: this.kindLabel });
    const deadline = setTimeout(() => {
      if (connection.stage === 'greeting') connection.refuse('greeting_timeout');
    }, GREETING_DEADLINE_MS);
    deadline.unref();
    const connection: Connection = new Connection(socket, () => this.upstream, tap, {
      joined: () => {
        this.wasReached = true;
      },
      failed: (reason, error) => this.#failed(reason, error),
      closed: () => {
        clearTimeout(deadline);
        this.connections.delete(connection);
        if (wasUnknown) telemetry.add('connections_total', { kind: this.kindLabel });
        if (this.connections.size === 0) this.#events.suspect(this);
      },
    });
    this.connections.add(connection);
    this.#limitHalfOpen();
  }

  #limitHalfOpen(): void {
    if (this.connections.size <= MAX_HALF_OPEN) return;
    const halfOpen = [...this.connections].filter(({ stage }) => stage === 'greeting');
    if (halfOpen.length > MAX_HALF_OPEN) halfOpen[0]?.refuse('too_many_greetings');
  }

  #failed(reason: FailureReason, error?: Error): void {
    this.#context.telemetry.add('connection_failures_total', { kind: this.kindLabel, reason });
    if (reason === 'dial_refused') this.#events.suspect(this);
    if (!this.#throttle.allows(reason)) return;
    const detail = { endpoint: this.name, kind: this.kindLabel, reason, errno: errnoOf(error) };
    this.#context.logger[reason === 'reset' ? 'info' : 'warn'](detail, 'connection failed');
  }
}

function listenError(address: Address, error: Error): SteptapError {
  const where = formatAddress(address);
  const errno = errnoOf(error);
  const why =
    errno === 'EADDRINUSE'
      ? 'is in use by another process; stop that one or choose another address'
      : errno === 'EACCES'
        ? 'may not be bound by this user; check the permissions of the directory, or use a port above 1023'
        : errno === 'EADDRNOTAVAIL'
          ? 'is no address of this machine'
          : messageOf(error);
  return new SteptapError('STEPTAP_LISTEN', `can't listen on ${where}: ${where} ${why}`, { cause: error });
}
