/** A vLLM frontend without vLLM: binds its sockets, starts engines by handshake, sends requests, counts outputs. */
import { randomBytes, randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { decode, encode } from '@msgpack/msgpack';
import type { Message, Pull, Router } from 'zeromq';
import { type Completion, FrontendClient, type OnTokens, openRouter } from './frontend-client.js';
import { FrontendHistogram } from './frontend-histogram.js';
import { FrontendHttp } from './frontend-http.js';
import {
  addFrames,
  ENGINE_CORE_DEAD,
  HELLO,
  NEWEST,
  outputFieldIndex,
  pseudoTokens,
  READY,
  utilityFrames,
  type VllmVersion,
} from './messages.js';
import { bindTo, Outbox, receiveAll } from './sockets.js';
import { within } from './wait.js';

export interface FrontendOptions {
  /** Directory mode: all sockets are `<dir>/<uuid>`. Without it they are TCP. */
  readonly directory?: string;
  /** Handshake address to bind, where it must be known in advance. */
  readonly handshake?: string;
  /** TCP mode: address that sockets bind to, and the host that INIT names. Both 127.0.0.1. */
  readonly host?: string;
  readonly advertiseHost?: string;
  /** Number of frontend clients (`--api-server-count`) and of engines. */
  readonly clients?: number;
  readonly engines?: number;
  readonly modelName?: string;
  readonly version?: VllmVersion;
  /** Take over a returning engine and refuse what cannot be delivered, as the Rust frontend does. */
  readonly handover?: boolean;
  readonly httpHost?: string;
  readonly httpPort?: number;
  /** Asked of every `/v1/` request as a bearer token. */
  readonly apiKey?: string;
  /** INIT's `parallel_config`, and further keys of INIT. */
  readonly parallelConfig?: Readonly<Record<string, unknown>>;
  readonly initExtra?: Readonly<Record<string, unknown>>;
}

export interface RequestSpec {
  /** Token ids, or how many. */
  readonly promptTokens: number | readonly number[];
  readonly maxTokens: number;
  readonly client?: number;
  readonly engine?: number;
  readonly id?: string;
  /** Auxiliary frames after the payload, as tensors travel. */
  readonly auxiliary?: readonly Uint8Array[];
  /** Called with the new tokens of each output. */
  readonly onTokens?: OnTokens;
}

export class StandInFrontend {
  readonly options: FrontendOptions;
  readonly modelName: string;
  readonly histogram: FrontendHistogram;
  /** Message seen on a client's output socket, before it is read. */
  onOutput: ((client: number, frames: readonly Buffer[]) => void) | null = null;
  /** Message sent to an engine, without the identity frame. */
  onRequest: ((engine: number, client: number, frames: readonly Uint8Array[]) => void) | null = null;
  /** What engines did that would have ended a real frontend's start. */
  readonly violations: string[] = [];
  /** Clients that were told ENGINE_CORE_DEAD, in the order of arrival. */
  readonly deaths: number[] = [];
  readonly #engines: number;
  readonly #version: VllmVersion;
  readonly #finishAt: number;
  readonly #handshake: Router;
  readonly #handshakeOut: Outbox;
  #handshakeAddress = '';
  readonly #clients: FrontendClient[] = [];
  readonly #greeted = new Set<number>();
  readonly #started = new Set<number>();
  readonly #calls = new Map<bigint, (result: unknown) => void>();
  #http: FrontendHttp | null = null;
  #turn = 0;
  #allReady: () => void = () => {};
  readonly #ready = new Promise<void>((resolve) => {
    this.#allReady = resolve;
  });

  constructor(options: FrontendOptions = {}) {
    this.options = options;
    this.modelName = options.modelName ?? 'stand-in';
    this.#engines = options.engines ?? 1;
    this.#version = options.version ?? NEWEST;
    this.#finishAt = outputFieldIndex(this.#version, 'finish');
    this.histogram = new FrontendHistogram(this.modelName, this.#engines, this.#version);
    this.#handshake = openRouter(options.handover ?? false);
    this.#handshakeOut = new Outbox(this.#handshake);
  }

  /** Binds all ZeroMQ sockets. */
  async start(): Promise<this> {
    this.#handshakeAddress = await this.#bind(this.#handshake, this.options.handshake);
    for (let index = 0; index < (this.options.clients ?? 1); index++) await this.#openClient(index);
    this.#read(receiveAll(this.#handshake, (frames) => this.#onHandshake(frames)));
    return this;
  }

  /** Resolves when all engines have sent READY and registered with all clients, and HTTP is served. */
  async ready(deadlineMs = 20_000): Promise<this> {
    await within(this.#ready, { deadlineMs, what: 'all engines READY and registered' });
    await this.#handshakeOut.drained();
    this.#handshake.close();
    const { httpHost = '127.0.0.1', httpPort = 0 } = this.options;
    this.#http = await FrontendHttp.listen(this, httpHost, httpPort);
    return this;
  }

  /** Where engines shall send HELLO. */
  get handshakeAddress(): string {
    return this.#handshakeAddress;
  }

  /** Engines that have sent READY. */
  get readyEngines(): readonly number[] {
    return [...this.#started];
  }

  /** Addresses as INIT names them, by client. */
  get addresses(): { inputs: string[]; outputs: string[] } {
    return {
      inputs: this.#clients.map(({ input }) => input),
      outputs: this.#clients.map(({ output }) => output),
    };
  }

  /** `http://host:port` of `/v1/completions` and `/metrics`, once ready. */
  get url(): string {
    if (this.#http === null) throw new Error('the frontend is not ready');
    return this.#http.url;
  }

  /** Sends a request and resolves when it is finished or aborted; clients and engines take turns. */
  submit(spec: RequestSpec): Promise<Completion> {
    return this.open(spec).done;
  }

  /** As `submit`, with the id at hand from the start. */
  open(spec: RequestSpec): { id: string; done: Promise<Completion> } {
    const turn = this.#turn++;
    const clientIndex = spec.client ?? turn % this.#clients.length;
    const engine = spec.engine ?? turn % this.#engines;
    const client = this.#client(clientIndex);
    const id = spec.id ?? `cmpl-${randomUUID()}-0-${randomBytes(4).toString('hex')}`;
    const { promptTokens, maxTokens } = spec;
    const prompt = typeof promptTokens === 'number' ? pseudoTokens(promptTokens) : promptTokens;
    const done = client.expect(id, engine, prompt.length, spec.onTokens);
    const frames = addFrames({
      id,
      promptTokens: prompt,
      maxTokens,
      client: clientIndex,
      version: this.#version,
    });
    this.sendRaw(engine, clientIndex, [...frames, ...(spec.auxiliary ?? [])]).catch((cause: unknown) =>
      client.fail(id, new Error(`engine ${engine} cannot be reached`, { cause })),
    );
    return { id, done };
  }

  /** Gives requests up: the frontend counts them no more, their engines get ABORT. */
  async abort(ids: readonly string[]): Promise<void> {
    for (const [index, client] of this.#clients.entries()) {
      for (const { engine, frames } of client.abort(ids)) await this.sendRaw(engine, index, frames);
    }
  }

  /** Calls a utility method of an engine and resolves with its result. */
  async utility(engine: number, client: number, method: string): Promise<unknown> {
    const callId = randomBytes(8).readBigUInt64BE();
    const result = new Promise((resolve) => this.#calls.set(callId, resolve));
    await this.sendRaw(engine, client, utilityFrames(client, callId, method));
    return result;
  }

  /** Any message from a client to an engine, as these frames. */
  sendRaw(engine: number, client: number, frames: readonly Uint8Array[]): Promise<void> {
    this.onRequest?.(engine, client, frames);
    return this.#client(client).send(engine, frames);
  }

  /** Closes HTTP and all sockets; what was sent still goes out. */
  async stop(): Promise<void> {
    await this.#http?.close();
    await Promise.all(
      [this.#handshakeOut, ...this.#clients.map(({ outbox }) => outbox)].map((box) => box.drained()),
    );
    for (const client of this.#clients) client.close();
    this.#handshake.close();
  }

  async #bind(socket: Router | Pull, given?: string): Promise<string> {
    const { directory, host = '127.0.0.1', advertiseHost = host } = this.options;
    if (given === undefined && directory !== undefined) {
      return bindTo(socket, `ipc://${join(directory, randomUUID())}`);
    }
    const bound = await bindTo(socket, given ?? `tcp://${host}:0`);
    return advertiseHost === host ? bound : bound.replace(host, advertiseHost);
  }

  async #openClient(index: number): Promise<void> {
    const client = new FrontendClient(this.options.handover ?? false);
    client.input = await this.#bind(client.requests);
    client.output = await this.#bind(client.outputs);
    this.#clients.push(client);
    this.#read(receiveAll(client.requests, ([identity]) => this.#onRegistration(client, identity)));
    this.#read(receiveAll(client.outputs, (frames) => this.#onOutput(index, client, frames)));
  }

  #client(index: number): FrontendClient {
    const client = this.#clients[index];
    if (client === undefined) throw new Error(`there is no frontend client ${index}`);
    return client;
  }

  #read(loop: Promise<void>): void {
    loop.catch((error: unknown) => this.violations.push(`a socket failed: ${String(error)}`));
  }

  #onHandshake([identity, body]: Message[]): void {
    if (identity === undefined || body === undefined) return;
    const engine = identity.readUInt16LE();
    const message = decode(body);
    const status =
      typeof message === 'object' && message !== null && 'status' in message ? message.status : null;
    if (status === HELLO) {
      this.#once(this.#greeted, engine, 'HELLO');
      void this.#handshakeOut.send([identity, this.#init()]);
    } else if (status === READY) {
      this.#once(this.#started, engine, 'READY');
      this.#checkReady();
    }
  }

  #init(): Uint8Array {
    const none = { coordinator_input: null, coordinator_output: null, frontend_stats_publish_address: null };
    return encode({
      addresses: { ...this.addresses, ...none },
      parallel_config: this.options.parallelConfig ?? {},
      ...this.options.initExtra,
    });
  }

  #onRegistration(client: FrontendClient, identity: Buffer | undefined): void {
    if (identity === undefined || identity.length !== 2) return;
    this.#once(client.registered, identity.readUInt16LE(), 'registration');
    this.#checkReady();
  }

  #once(seen: Set<number>, engine: number, what: string): void {
    if (engine >= this.#engines)
      this.violations.push(`${what} of engine ${engine}, which does not belong here`);
    else if (seen.has(engine)) this.violations.push(`second ${what} of engine ${engine}`);
    seen.add(engine);
  }

  #checkReady(): void {
    const full = [this.#started, ...this.#clients.map(({ registered }) => registered)];
    if (full.every(({ size }) => size >= this.#engines)) this.#allReady();
  }

  #onOutput(index: number, client: FrontendClient, frames: Message[]): void {
    this.onOutput?.(index, frames);
    const [payload] = frames;
    if (payload === undefined) return;
    if (frames.length === 1 && payload.equals(ENGINE_CORE_DEAD)) {
      this.deaths.push(index);
      client.failAll('the engine is dead');
      return;
    }
    const message = tryDecode(payload);
    if (!Array.isArray(message)) return;
    this.histogram.count(message, client.open);
    for (const row of Array.isArray(message[1]) ? message[1] : []) client.deliver(row, this.#finishAt);
    if (Array.isArray(message[4])) {
      const [callId, , result] = message[4] as unknown[];
      this.#calls.get(BigInt(String(callId)))?.(result);
      this.#calls.delete(BigInt(String(callId)));
    }
  }
}

/** Garbage is nothing to a frontend that goes on. */
function tryDecode(payload: Buffer): unknown {
  try {
    return decode(payload, { useBigInt64: true });
  } catch {
    return null;
  }
}
