/**
 * The vLLM at the frontend's end: its engines, its clients' requests, and whether it still reaches its engines.
 * One steptap serves one vLLM; when another one starts in its place (an INIT with other addresses) requests begin
 * anew and the engines' series go on.
 */
import { basename } from 'node:path';
import type { Logger } from 'pino';
import type { Endpoint } from './endpoint.js';
import { type Engine, Engines, type StepObserver } from './engines.js';
import { InitRewriter, type Rewrite } from './init-rewriter.js';
import { LogThrottle } from './log-throttle.js';
import { StepCounter } from './step-counter.js';
import type { Telemetry } from './telemetry.js';
import { RequestTracker } from './tracking.js';

/** Engines reconnect within a second; one that does not by then was gone before the restart. */
const RECONNECT_MS = 60_000;

/** The two lists of INIT; the position in a list is the frontend client's index. */
export interface DataAddresses {
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
}

export interface FrontendOptions {
  readonly observer: StepObserver;
  readonly telemetry: Telemetry;
  readonly logger: Logger;
  /** Whether `tracking.requestIds` selects an id. */
  readonly selects: (id: string) => boolean;
  readonly onInit: Rewrite;
  /** Something that the state file holds has changed. */
  readonly onChange: () => void;
}

export class Frontend {
  readonly engines: Engines;
  readonly #options: FrontendOptions;
  #clients = new Map<string, RequestTracker>();
  /** What the INIT of this vLLM named, to tell it from the next one. */
  #addresses: DataAddresses | null = null;
  /** Engines from before a restart of steptap that have not come back yet, and until when they are waited for. */
  readonly #awaited = new Set<number>();
  #awaitedUntil = 0;
  /** Engines that this frontend can't send requests to any more. */
  readonly #lostEngines = new Set<number>();
  readonly #throttle = new LogThrottle();
  #adoptedBefore = 0;

  constructor(options: FrontendOptions) {
    this.#options = options;
    this.engines = new Engines(options.observer, () => options.onChange());
    options.telemetry.beforeRead(() => this.#fold());
  }

  /** Frontend clients in the order of their index. */
  get clients(): RequestTracker[] {
    return [...this.#clients.values()];
  }

  get hasConnectedEngine(): boolean {
    return this.engines.all.some(({ connections }) => connections > 0);
  }

  get lostEngines(): readonly number[] {
    return [...this.#lostEngines];
  }

  /** The data addresses of this vLLM's INIT; null before there was one. */
  get addresses(): DataAddresses | null {
    return this.#addresses;
  }

  /** What flows at the unix socket called `name`, whichever directory vLLM knows it in; null when INIT named none. */
  flowAt(name: string): { readonly kind: 'requests' | 'outputs'; readonly client: string } | null {
    for (const [kind, list] of [
      ['requests', this.#addresses?.inputs],
      ['outputs', this.#addresses?.outputs],
    ] as const) {
      const client =
        list?.findIndex((address) => address.startsWith('ipc://') && basename(address) === name) ?? -1;
      if (client >= 0) return { kind, client: String(client) };
    }
    return null;
  }

  get awaitedEngines(): readonly number[] {
    return performance.now() < this.#awaitedUntil ? [...this.#awaited] : [];
  }

  tracker(client: string): RequestTracker {
    let tracker = this.#clients.get(client);
    if (tracker === undefined) {
      tracker = new RequestTracker(client, this.#options.selects);
      this.#clients.set(client, tracker);
    }
    return tracker;
  }

  stepCounter(client: string): StepCounter {
    return new StepCounter(
      this.tracker(client),
      this.engines,
      this.#options.observer,
      this.#options.telemetry,
    );
  }

  initRewriter(greetingLeft?: number): InitRewriter {
    return new InitRewriter(this.#options.onInit, greetingLeft);
  }

  /** An INIT names these data addresses: another vLLM than before, unless they are the same. */
  begin(addresses: DataAddresses): void {
    if (JSON.stringify(addresses) === JSON.stringify(this.#addresses)) return;
    if (this.#addresses !== null) this.#options.logger.info('a new vLLM has started: requests begin anew');
    this.#addresses = addresses;
    this.#fold();
    for (const tracker of this.clients) {
      this.#options.telemetry.set('tracked_requests', { client: tracker.client }, 0);
      tracker.retire();
    }
    this.#clients = new Map();
    this.#adoptedBefore = 0;
    this.#lostEngines.clear();
    this.#awaited.clear();
  }

  /** After a restart: what was known before, and that requests may be in flight. */
  recover(addresses: DataAddresses | null, engines: readonly number[]): void {
    this.#addresses = addresses;
    this.#awaitedUntil = performance.now() + RECONNECT_MS;
    for (const index of engines) {
      this.engines.add(index);
      this.#awaited.add(index);
    }
  }

  engineConnected(index: number): void {
    const engine = this.engines.add(index);
    engine.connections++;
    this.#awaited.delete(index);
    this.#options.logger.info({ engine: index }, 'engine connected');
  }

  engineDisconnected(index: number): void {
    const engine = this.engines.get(index);
    if (engine === undefined) return;
    engine.connections--;
    this.#options.logger.info({ engine: index }, 'engine disconnected');
  }

  /**
   * A request connection has taken the place of an earlier one of this engine. libzmq's ROUTER (Python frontends)
   * keeps sending to the old one for ever; zmq.rs (the Rust frontend) takes the new one.
   */
  engineReconnected(index: number, endpoint: Endpoint): void {
    if (endpoint.upstreamRouter !== 'libzmq' || this.#lostEngines.has(index)) return;
    this.#lostEngines.add(index);
    this.#options.logger.error(
      { engine: index, endpoint: endpoint.name },
      'the request connection of this engine was replaced; a libzmq frontend does not use the new one and requests hang. Restart vLLM, unless a line follows that requests reach the engine',
    );
  }

  pathWorks(index: number): void {
    if (this.#lostEngines.delete(index)) {
      this.#options.logger.info({ engine: index }, 'requests reach the reconnected engine');
    }
  }

  engineRegistered(index: number, vllmVersion: string | null): void {
    const engine: Engine = this.engines.add(index);
    engine.vllmVersion = vllmVersion;
    this.#options.logger.info(
      { engine: index, vllmVersion: vllmVersion ?? 'before 0.23' },
      'engine registered',
    );
  }

  engineDied(index: number | null): void {
    const engine = index === null ? 'unknown' : String(index);
    this.#options.telemetry.add('engine_dead_total', { engine });
    this.#options.logger.error({ engine }, 'engine core reports that it died (ENGINE_CORE_DEAD)');
  }

  undecodable(kind: string, reason: string): void {
    if (!this.#throttle.allows(`${kind} ${reason}`)) return;
    this.#options.logger.warn(
      { kind, reason },
      'a message could not be read; it was relayed and not counted',
    );
  }

  #fold(): void {
    const { telemetry } = this.#options;
    for (const engine of this.engines.all) engine.fold(telemetry);
    let adopted = 0;
    for (const tracker of this.clients) {
      telemetry.set('tracked_requests', { client: tracker.client }, tracker.trackedCount);
      adopted += tracker.adoptedCount;
    }
    telemetry.add('adopted_requests_total', {}, adopted - this.#adoptedBefore);
    this.#adoptedBefore = adopted;
    telemetry.set('frontend_path_usable', {}, this.#lostEngines.size === 0 ? 1 : 0);
  }
}
