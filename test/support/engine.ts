/** A vLLM engine core without a model: starts by handshake, answers requests in steps, and misbehaves when told to. */
import { setTimeout as delay, setImmediate as nextTurn } from 'node:timers/promises';
import { decode, encode } from '@msgpack/msgpack';
import type { Dealer, Message, Push } from 'zeromq';
import {
  ABORT,
  ADD,
  batch,
  ENGINE_CORE_DEAD,
  engineIdentity,
  FINISH_LENGTH,
  GARBAGE,
  HELLO,
  NEWEST,
  type OutputSpec,
  outputFieldIndex,
  pseudoTokens,
  READY,
  registration,
  UTILITY,
  type VllmVersion,
} from './messages.js';
import { connectTo, IdentityDealer, Outbox, openPush, receiveAll } from './sockets.js';
import { within } from './wait.js';

export interface EngineOptions {
  readonly index?: number;
  readonly version?: VllmVersion;
  /** New tokens of a request in one step. */
  readonly chunk?: number;
  /** Share of every prompt, 0 to 1, that the prefix cache holds; at least one token is computed. */
  readonly cachedShare?: number;
  /** Requests that one step moves on. */
  readonly batchSize?: number;
  /** Steps a second; 0 = as fast as possible. */
  readonly stepsPerSecond?: number;
  /** Between INIT and registration, as if a model loaded. */
  readonly loadMs?: number;
  /** Also list finished ids in `finished_requests`, as engines with data parallelism do. */
  readonly finishedRequests?: boolean;
  /** Send prefill stats with every output of a request, not only with the first. */
  readonly repeatPrefill?: boolean;
}

interface Running {
  readonly id: string;
  readonly client: number;
  readonly prompt: number;
  readonly maxTokens: number;
  produced: number;
}

interface EngineClient {
  readonly requests: Dealer;
  readonly outputs: Push;
  readonly outbox: Outbox;
}

export class StandInEngine {
  readonly index: number;
  /** All options may be changed while the engine runs, from the next step on. */
  options: EngineOptions;
  /** Message that came on a client's request socket, before it is read. */
  onInput: ((client: number, frames: readonly Buffer[]) => void) | null = null;
  /** Message sent on a client's output socket. */
  onSend: ((client: number, frames: readonly Uint8Array[]) => void) | null = null;
  /** Addresses that INIT named. */
  addresses: { readonly inputs: readonly string[]; readonly outputs: readonly string[] } = {
    inputs: [],
    outputs: [],
  };
  /** INIT as it came. */
  init: Buffer = Buffer.alloc(0);
  /** What went wrong on a socket or in a request. */
  readonly errors: string[] = [];
  /** Steps that moved at least one request. */
  steps = 0;
  readonly #version: VllmVersion;
  readonly #clients: EngineClient[] = [];
  #running: Running[] = [];
  #stopped = false;
  #wake: () => void = () => {};
  #stepping: Promise<void> = Promise.resolve();

  constructor(options: EngineOptions = {}) {
    this.options = options;
    this.index = options.index ?? 0;
    this.#version = options.version ?? NEWEST;
  }

  /** Handshake, connections and registration; resolves when READY is sent. */
  async start(handshakeAddress: string, deadlineMs = 20_000): Promise<this> {
    const handshake = new IdentityDealer(engineIdentity(this.index));
    try {
      connectTo(handshake, handshakeAddress);
      await handshake.send(encode({ status: HELLO, local: true, headless: false }));
      const [init] = await within(handshake.receive(), { deadlineMs, what: `INIT for engine ${this.index}` });
      this.#readInit(init);
      if (this.options.loadMs) await delay(this.options.loadMs);
      for (const [client, input] of this.addresses.inputs.entries()) {
        await this.#connectClient(client, input, this.addresses.outputs[client] ?? '');
      }
      await handshake.send(encode({ status: READY, local: true, headless: false, num_gpu_blocks: 16384 }));
    } finally {
      handshake.close();
    }
    this.#stepping = this.#run();
    return this;
  }

  /** Requests that are not finished. */
  get running(): readonly string[] {
    return this.#running.map(({ id }) => id);
  }

  /** Any message on a client's output socket, as these frames. */
  async sendRaw(client: number, frames: readonly Uint8Array[]): Promise<void> {
    const target = this.#clients[client];
    if (target === undefined) throw new Error(`there is no frontend client ${client}`);
    this.onSend?.(client, frames);
    await target.outbox.send(frames);
  }

  /** Messages that are no batch; those of T21 unless given. */
  async sendGarbage(client: number, messages: readonly (readonly Uint8Array[])[] = GARBAGE): Promise<void> {
    for (const frames of messages) await this.sendRaw(client, frames);
  }

  /** A hand-made batch of this engine. */
  sendBatch(client: number, outputs: readonly OutputSpec[], stats = false): Promise<void> {
    return this.sendRaw(client, [batch({ engine: this.index, outputs, stats, version: this.#version })]);
  }

  /** Ends like a crashed engine core: ENGINE_CORE_DEAD to every client, and no answer to anything any more. */
  async die(): Promise<void> {
    this.#running = [];
    this.#halt();
    for (const client of this.#clients.keys()) await this.sendRaw(client, [ENGINE_CORE_DEAD]);
  }

  /** Closes all sockets; what was sent still goes out. */
  async stop(): Promise<void> {
    this.#halt();
    await this.#stepping;
    for (const { requests, outputs, outbox } of this.#clients) {
      requests.close();
      await outbox.drained();
      outputs.close();
    }
  }

  #halt(): void {
    this.#stopped = true;
    this.#wake();
  }

  #readInit(body: Message | undefined): void {
    if (body === undefined) throw new Error('INIT is empty');
    this.init = body;
    const init = decode(body, { useBigInt64: true }) as {
      addresses: { inputs: string[]; outputs: string[] };
    };
    const { inputs, outputs } = init.addresses;
    this.addresses = { inputs, outputs };
  }

  async #connectClient(client: number, input: string, output: string): Promise<void> {
    const requests = new IdentityDealer(engineIdentity(this.index));
    const outputs = openPush();
    connectTo(requests, input);
    connectTo(outputs, output);
    this.#clients.push({ requests, outputs, outbox: new Outbox(outputs) });
    await requests.send(registration(this.index, this.#version));
    receiveAll(requests, (frames) => this.#onInput(client, frames)).catch((error: unknown) =>
      this.errors.push(String(error)),
    );
  }

  #onInput(client: number, frames: Message[]): void {
    this.onInput?.(client, frames);
    const [type, payload] = frames;
    if (this.#stopped || type?.length !== 1 || payload === undefined) return;
    try {
      this.#onRequest(client, type[0] ?? 0, payload);
    } catch (error) {
      this.errors.push(String(error));
    }
  }

  #onRequest(client: number, type: number, payload: Buffer): void {
    if (type === ADD) {
      const [id, prompt, , sampling] = decode(payload) as [
        string,
        number[] | null,
        unknown,
        { max_tokens: number },
      ];
      const maxTokens = sampling.max_tokens;
      this.#running.push({ id, client, prompt: prompt?.length ?? 0, maxTokens, produced: 0 });
      this.#wake();
    } else if (type === ABORT) {
      const ids = new Set(decode(payload) as string[]);
      this.#running = this.#running.filter(({ id }) => !ids.has(id));
    } else if (type === UTILITY) {
      const [, callId] = decode(payload, { useBigInt64: true }) as [unknown, number | bigint];
      const utility = [callId, null, [null, ['generate']]];
      const reply = batch({ engine: this.index, utility, version: this.#version });
      this.sendRaw(client, [reply]).catch((error: unknown) => this.errors.push(String(error)));
    }
  }

  async #run(): Promise<void> {
    let due = performance.now();
    while (!this.#stopped) {
      if (this.#running.length === 0) {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
        due = performance.now();
        continue;
      }
      await this.#step().catch((error: unknown) => this.errors.push(String(error)));
      const rate = this.options.stepsPerSecond ?? 0;
      due += rate > 0 ? 1000 / rate : 0;
      const wait = due - performance.now();
      // Requests and aborts shall come in between steps, however fast these are.
      await (rate > 0 && wait > 0 ? delay(wait) : nextTurn());
    }
  }

  /** One engine step: at most one message for each client, the first of them with the scheduler's stats. */
  async #step(): Promise<void> {
    this.steps++;
    const messages = new Map<number, OutputSpec[]>();
    for (const request of this.#running.slice(0, this.options.batchSize ?? 1)) {
      const outputs = messages.get(request.client) ?? [];
      outputs.push(this.#advance(request));
      messages.set(request.client, outputs);
    }
    this.#running = this.#running.filter(({ produced, maxTokens }) => produced < maxTokens);
    let stats = true;
    for (const [client, outputs] of messages) {
      const finished = this.options.finishedRequests
        ? outputs.filter(({ finish }) => finish !== null).map(({ id }) => id)
        : null;
      const version = this.#version;
      await this.sendRaw(client, [batch({ engine: this.index, outputs, stats, finished, version })]);
      stats = false;
    }
  }

  #advance(request: Running): OutputSpec {
    const { id, prompt, maxTokens } = request;
    const first = request.produced === 0;
    const tokens = Math.min(this.options.chunk ?? 1, maxTokens - request.produced);
    request.produced += tokens;
    const cached = Math.max(Math.min(Math.floor(prompt * (this.options.cachedShare ?? 0)), prompt - 1), 0);
    const reportsPrefill =
      outputFieldIndex(this.#version, 'prefill') >= 0 && (first || this.options.repeatPrefill === true);
    return {
      id,
      tokens: pseudoTokens(tokens),
      cached,
      finish: request.produced >= maxTokens ? FINISH_LENGTH : null,
      ...(reportsPrefill && { computed: prompt - cached }),
    };
  }
}
