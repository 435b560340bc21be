/**
 * Everything between vLLM's two ends, composed: the endpoints of both ways in, the frontend they belong to, the
 * state that outlives this process. No HTTP, no metrics library.
 */
import type { Logger } from 'pino';
import type { Settings } from '../config/settings.js';
import { type Address, formatAddress, parseAddress, requireAddress } from './address.js';
import { DataListeners } from './data-listeners.js';
import { SocketDirectory } from './directory.js';
import { Endpoint, type EndpointKind } from './endpoint.js';
import type { StepObserver } from './engines.js';
import { Frontend } from './frontend.js';
import { idFilter } from './id-filter.js';
import { InitHandler } from './init.js';
import { type State, StateFile } from './state.js';
import type { TapContext } from './tap.js';
import type { Telemetry } from './telemetry.js';
import type { DecodeFault } from './vllm/output-batch.js';

/** At the end of a drain a message that has begun is given this long to become whole. */
const BOUNDARY_TIMEOUT_MS = 1000;
const DRAIN_POLL_MS = 20;
const BYPASSED =
  'the last steptap ended before vLLM and put the socket names back: engines may be connected past this one and are then not counted. Restart vLLM';
/** The client whose sockets were there before this process, when no state file tells which is whose. */
const RECOVERED_CLIENT = '0';

export interface RelayOptions {
  readonly settings: Settings;
  readonly observer: StepObserver;
  readonly telemetry: Telemetry;
  readonly logger: Logger;
  readonly recorder?: TapContext['recorder'];
}

export class Relay {
  readonly frontend: Frontend;
  readonly #options: RelayOptions;
  readonly #endpoints = new Set<Endpoint>();
  /** Let go of, but with connections that go on. */
  readonly #retired = new Set<Endpoint>();
  readonly #context: TapContext;
  readonly #listeners: DataListeners;
  readonly #directory: SocketDirectory | null;
  readonly #stateFile: StateFile | null;
  #recovering: State | null = null;
  #saveScheduled = false;
  #isDraining = false;
  /** Data sockets had their own names at the start: engines found them straight while no steptap was there. */
  #isBypassed = false;

  constructor(options: RelayOptions) {
    const { settings, telemetry, logger, observer, recorder } = options;
    this.#options = options;
    this.frontend = new Frontend({
      observer,
      telemetry,
      logger,
      selects: idFilter(settings.tracking.requestIds),
      onInit: (body) => init.handle(body),
      onChange: () => this.#scheduleSave(),
    });
    this.#context = {
      frontend: this.frontend,
      telemetry,
      logger,
      maxFrameBytes: settings.decode.maxFrameBytes,
      ...(recorder === undefined ? {} : { recorder }),
    };
    const removed = (endpoint: Endpoint) => this.#retire(endpoint);
    const { handshake, ports, advertiseHost } = settings.engine;
    const bindAddress = handshake === null ? null : requireAddress(handshake);
    this.#listeners = new DataListeners({
      bindHost: bindAddress !== null && 'host' in bindAddress ? bindAddress.host : null,
      advertiseHost,
      ports,
      logger,
      createEndpoint: (upstream) => this.#createEndpoint(upstream),
      removed,
    });
    const { dir } = settings.ipc;
    this.#directory =
      dir === null
        ? null
        : new SocketDirectory({
            dir,
            logger,
            createEndpoint: (uuid, upstream) => this.#createTaken(uuid, upstream),
            recovered: (endpoint, socketType) => this.#recoverTaken(endpoint, socketType),
            removed,
          });
    this.#stateFile =
      settings.state.path === null ? null : new StateFile(settings.state.path, telemetry, logger);
    const init = new InitHandler({
      frontend: this.frontend,
      listeners: this.#listeners,
      findTaken: (path) => this.#directory?.find(path),
      hasDirectory: dir !== null,
      telemetry,
      logger,
    });
    telemetry.beforeRead(() => this.#fold());
    startAtZero(telemetry);
  }

  /** Binds everything. Throws SteptapError naming the address or directory that can't be had. */
  async start(): Promise<void> {
    const { settings } = this.#options;
    this.#recovering = this.#stateFile?.read() ?? null;
    if (this.#recovering !== null) {
      this.frontend.recover(this.#recovering.addresses, this.#recovering.engines);
      await this.#recoverListeners(this.#recovering);
    }
    if (settings.frontend.handshake !== null && settings.engine.handshake !== null) {
      const endpoint = this.#createEndpoint(requireAddress(settings.frontend.handshake));
      endpoint.assign('handshake', null);
      await endpoint.listen(requireAddress(settings.engine.handshake));
    }
    await this.#directory?.start();
    this.#recovering = null;
    this.#save();
    if (this.#isBypassed) this.#options.logger.warn(BYPASSED);
  }

  get endpoints(): readonly Endpoint[] {
    return [...this.#endpoints];
  }

  /** Why traffic can't be expected to flow; empty when it can. */
  unreadyReasons(): string[] {
    const reasons: string[] = [];
    if (this.#isDraining) reasons.push('draining');
    reasons.push(...(this.#directory?.problems ?? []));
    if (!this.frontend.hasConnectedEngine) {
      reasons.push('no engine is connected');
      if (this.#isBypassed) reasons.push(BYPASSED);
    }
    for (const endpoint of this.#endpoints) {
      if (endpoint.unreachable)
        reasons.push(`frontend does not answer at ${endpoint.name} (${endpoint.kindLabel})`);
    }
    for (const engine of this.frontend.awaitedEngines) {
      reasons.push(`engine ${engine} has not reconnected since steptap was restarted`);
    }
    for (const address of this.#lostAddresses()) {
      reasons.push(`frontend does not listen at ${address} any more: restart vLLM unless it is ending`);
    }
    for (const engine of this.frontend.lostEngines) {
      reasons.push(`frontend can't send to engine ${engine} since its connection was replaced: restart vLLM`);
    }
    return reasons;
  }

  /**
   * Relays on until the connections have closed or `timeoutMs` is over, then puts the socket names back and stops
   * each connection at a message boundary.
   */
  async drain(timeoutMs: number): Promise<void> {
    this.#isDraining = true;
    await this.#connectionsClosed(timeoutMs);
    const connections = this.#connections();
    this.#directory?.putBack();
    for (const endpoint of this.#endpoints) endpoint.stopListening();
    for (const connection of connections) connection.stopAtBoundary();
    await this.#connectionsClosed(BOUNDARY_TIMEOUT_MS);
    this.destroy();
  }

  /** Ends everything now. The state file stays: whoever comes next can go on from it. */
  destroy(): void {
    this.#isDraining = true;
    this.#directory?.putBack();
    for (const endpoint of [...this.#endpoints, ...this.#retired]) endpoint.destroy();
  }

  /** Sockets that INIT named and that are gone although engines are connected to others of them. */
  #lostAddresses(): string[] {
    const directory = this.#directory;
    const { addresses } = this.frontend;
    if (directory === null || addresses === null) return [];
    if (!this.frontend.hasConnectedEngine) return [];
    return [...addresses.inputs, ...addresses.outputs].filter((text) => {
      const address = parseAddress(text);
      return address !== null && 'path' in address && directory.find(address.path) === undefined;
    });
  }

  #connections() {
    return [...this.#endpoints, ...this.#retired].flatMap(({ connections }) => [...connections]);
  }

  #connectionsClosed(timeoutMs: number): Promise<void> {
    return new Promise((resolve) => {
      const deadline = performance.now() + timeoutMs;
      const poll = setInterval(() => {
        if (this.#connections().length > 0 && performance.now() < deadline) return;
        clearInterval(poll);
        resolve();
      }, DRAIN_POLL_MS);
    });
  }

  #createEndpoint(upstream: Address): Endpoint {
    const endpoint = new Endpoint(upstream, this.#context, {
      changed: () => this.#scheduleSave(),
      suspect: (suspected) => {
        this.#directory?.suspect(suspected);
        if (suspected.connections.size === 0) this.#retired.delete(suspected);
      },
    });
    this.#endpoints.add(endpoint);
    return endpoint;
  }

  /** INIT may have named it already; and after a clean end names were put back, so the state file may know it. */
  #createTaken(uuid: string, upstream: string): Endpoint {
    const endpoint = this.#createEndpoint({ path: upstream });
    const flow = this.frontend.flowAt(uuid);
    if (flow !== null) endpoint.assign(flow.kind, flow.client);
    const known = this.#recovering?.endpoints.find(({ listen }) => listen.endsWith(`/${uuid}`));
    if (known === undefined) return endpoint;
    this.#adopt(endpoint, known.kind, known.client, known.engines);
    if (known.engines.length > 0) this.#isBypassed = true;
    return endpoint;
  }

  #retire(endpoint: Endpoint): void {
    this.#endpoints.delete(endpoint);
    if (endpoint.connections.size > 0) this.#retired.add(endpoint);
    this.#scheduleSave();
  }

  async #recoverListeners({ endpoints }: State): Promise<void> {
    for (const { listen, upstream, kind, client, engines } of endpoints) {
      if (!listen.startsWith('tcp://') || kind === 'handshake') continue;
      const endpoint = await this.#listeners.recover(upstream, listen);
      if (endpoint !== null) this.#adopt(endpoint, kind, client, engines);
    }
  }

  /** A pair from before this process of which no state file tells: its socket type is all there is to go by. */
  #recoverTaken(endpoint: Endpoint, socketType: string): void {
    if (endpoint.kind !== 'unknown') return;
    endpoint.mayHaveHadEngines = true;
    if (socketType === 'ROUTER') this.#adopt(endpoint, 'requests', RECOVERED_CLIENT, []);
    else if (socketType === 'PULL') this.#adopt(endpoint, 'outputs', RECOVERED_CLIENT, []);
    else endpoint.assign('other', null);
  }

  #adopt(endpoint: Endpoint, kind: string, client: string | null, engines: readonly number[]): void {
    endpoint.assign(asKind(kind), client);
    for (const engine of engines) endpoint.addEngine(engine);
    if (client !== null) this.frontend.tracker(client).adoptUnknown();
  }

  /** Several things change at once when an engine starts; the file is written once, when they have. */
  #scheduleSave(): void {
    if (this.#saveScheduled || this.#recovering !== null || this.#isDraining) return;
    this.#saveScheduled = true;
    setImmediate(() => {
      this.#saveScheduled = false;
      this.#save();
    });
  }

  #save(): void {
    const endpoints = this.endpoints.flatMap(({ listenAddress, name, kind, client, engines }) =>
      listenAddress === null
        ? []
        : [{ listen: formatAddress(listenAddress), upstream: name, kind, client, engines: [...engines] }],
    );
    const engines = this.frontend.engines.all.map(({ index }) => index);
    this.#stateFile?.write({ addresses: this.frontend.addresses, engines, endpoints });
  }

  #fold(): void {
    const { telemetry } = this.#options;
    const open = new Map<string, number>([...KIND_LABELS].map((kind) => [kind, 0]));
    for (const endpoint of [...this.#endpoints, ...this.#retired]) {
      open.set(endpoint.kindLabel, (open.get(endpoint.kindLabel) ?? 0) + endpoint.connections.size);
    }
    for (const [kind, count] of open) telemetry.set('connections', { kind }, count);
  }
}

/** An alert on the increase of a counter misses the first one when its series appears with it. */
function startAtZero(telemetry: Telemetry): void {
  const faults: readonly DecodeFault[] = [
    'empty',
    'truncated',
    'malformed',
    'trailing_bytes',
    'invalid_shape',
  ];
  for (const reason of [...faults, 'frame_too_large', 'invalid_count']) {
    for (const kind of ['outputs', 'requests']) telemetry.add('decode_errors_total', { kind, reason }, 0);
  }
  for (const reason of ['not_zmtp', 'mechanism', 'reserved_flags', 'frame_length', 'tap_error']) {
    for (const kind of ['requests', 'outputs'])
      telemetry.add('opaque_connections_total', { kind, reason }, 0);
  }
}

const KINDS: readonly EndpointKind[] = ['handshake', 'requests', 'outputs', 'other', 'unknown'];
const KIND_LABELS = KINDS.filter((kind) => kind !== 'unknown');

function asKind(text: string): EndpointKind {
  return KINDS.find((kind) => kind === text) ?? 'unknown';
}
