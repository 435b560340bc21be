/**
 * Reads what passes on one connection: cuts both directions into frames and gives the frames to the reader of what
 * flows there. Whatever goes wrong here is counted, and the connection is from then on *opaque*: relayed, not read.
 */
import type { Logger } from 'pino';
import type { Endpoint } from './endpoint.js';
import { messageOf } from './errors.js';
import { Flow } from './flow.js';
import type { Frontend } from './frontend.js';
import { HandshakeReader, HelloReader } from './handshake-reader.js';
import type { InitRewriter } from './init-rewriter.js';
import { IdleReader, type MessageReader } from './message-reader.js';
import { OutputsReader } from './outputs-reader.js';
import { AddAbortReader, RegistrationReader } from './requests-reader.js';
import type { Telemetry } from './telemetry.js';
import { FrameCutter } from './zmtp/frame-cutter.js';
import { engineIndexOf, type Ready } from './zmtp/ready.js';

/** One direction: where frames are cut, what they are read as, what has passed. */
class Lane {
  readonly flow: Flow;
  readonly cutter: FrameCutter;

  constructor(flow: Flow, reader: MessageReader) {
    this.flow = flow;
    this.cutter = new FrameCutter(reader);
  }
}

/** One of a tap's two directions, for whoever brings it the bytes. */
export type TapDirection = Lane;

/** A second reader of all bytes, such as a capture. */
export interface Recorder {
  record(direction: 'to_engine' | 'to_frontend', chunk: Buffer): void;
}

/** Without INIT nothing tells which client a socket belongs to. Ids are unique, so one tracker serves them all. */
const CLIENT_WITHOUT_INIT = '0';

export interface TapContext {
  readonly frontend: Frontend;
  readonly telemetry: Telemetry;
  readonly logger: Logger;
  readonly maxFrameBytes: number;
  readonly recorder?: (endpoint: Endpoint, tap: Tap) => Recorder;
}

export class Tap {
  readonly toFrontend: Lane;
  readonly toEngine: Lane;
  readonly endpoint: Endpoint;
  /** Index of the engine at the other end, once its identity or its first batch has told. */
  engine: number | null = null;
  /** Set while INIT may come: that message is held and its addresses are replaced. */
  rewriter: InitRewriter | null = null;

  readonly #context: TapContext;
  readonly #recorder: Recorder | undefined;
  readonly #stopFolding: () => void;
  #isOpaque = false;
  /** A request connection that stands in for an earlier one of the same engine. */
  #isReplacement = false;
  #isEngineConnected = false;

  constructor(endpoint: Endpoint, context: TapContext) {
    this.endpoint = endpoint;
    this.#context = context;
    const toFrontend = new Flow('to_frontend');
    const toEngine = new Flow('to_engine');
    const { frontend, telemetry } = context;
    const engineReady = (ready: Ready) => this.#onEngineReady(ready);
    const frontendReady = (ready: Ready) => {
      endpoint.learnUpstream(ready);
      this.#judgePath();
    };

    let up: MessageReader = new IdleReader(toFrontend, engineReady);
    let down: MessageReader = new IdleReader(toEngine, frontendReady);
    if (endpoint.kind === 'outputs') {
      up = this.#outputsReader(toFrontend, engineReady);
    } else if (endpoint.kind === 'requests') {
      up = new RegistrationReader(toFrontend, engineReady, (version) => this.#onRegistration(version));
      down = this.#requestsReader(toEngine, frontendReady);
    } else if (endpoint.kind === 'handshake') {
      up = new HandshakeReader(toFrontend, engineReady, context.logger);
      this.rewriter = frontend.initRewriter();
    } else if (endpoint.kind === 'unknown') {
      up = new HelloReader(toFrontend, engineReady, (isHello) => this.#learnKind(isHello));
    }
    this.toFrontend = new Lane(toFrontend, up);
    this.toEngine = new Lane(toEngine, down);
    try {
      this.#recorder = context.recorder?.(endpoint, this);
    } catch (error) {
      this.#becomeOpaque('tap_error', error);
    }
    this.#stopFolding = telemetry.beforeRead(() => this.#fold(false));
  }

  /** The bytes to send on in place of `chunk`; a promise while INIT waits for its listeners. */
  rewrite(direction: TapDirection, chunk: Buffer): Buffer | Promise<Buffer> {
    if (this.rewriter === null || direction !== this.toEngine) return chunk;
    return this.rewriter.push(Buffer.from(chunk)); // which holds it back, while the next one is read into its place
  }

  read(direction: TapDirection, chunk: Buffer): void {
    const lane = direction === this.toEngine ? this.toEngine : this.toFrontend;
    lane.flow.bytes += chunk.length;
    if (this.#isOpaque) return;
    try {
      lane.cutter.push(chunk);
      this.#recorder?.record(lane.flow.direction, chunk);
      if (lane.cutter.fault !== null) this.#becomeOpaque(lane.cutter.fault);
    } catch (error) {
      this.#becomeOpaque('tap_error', error);
    }
  }

  closed(): void {
    this.#stopFolding();
    this.#fold(true);
    if (this.#isEngineConnected && this.engine !== null)
      this.#context.frontend.engineDisconnected(this.engine);
  }

  #outputsReader(flow: Flow, onReady: (ready: Ready) => void): OutputsReader {
    const { frontend, telemetry, maxFrameBytes } = this.#context;
    const onEngine = (index: number) => this.#learnEngine(index);
    return new OutputsReader(
      flow,
      onReady,
      frontend,
      this.endpoint.client ?? '',
      telemetry,
      maxFrameBytes,
      onEngine,
    );
  }

  #requestsReader(flow: Flow, onReady: (ready: Ready) => void): AddAbortReader {
    const { frontend, telemetry, maxFrameBytes } = this.#context;
    const onRequest = () => {
      // Requests reach the engine again, so this frontend replaces connections (ROUTER_HANDOVER, zmq.rs).
      if (this.#isReplacement && this.engine !== null) frontend.pathWorks(this.engine);
      this.#isReplacement = false;
    };
    return new AddAbortReader(
      flow,
      onReady,
      frontend.tracker(this.endpoint.client ?? ''),
      telemetry,
      maxFrameBytes,
      onRequest,
    );
  }

  #onEngineReady(ready: Ready): void {
    if (ready.socketType === 'PUSH') this.#learnOutputs();
    const index = engineIndexOf(ready.identity);
    if (ready.socketType !== 'DEALER' || index === null) return;
    this.#learnEngine(index);
    if (this.endpoint.kind === 'requests') this.#engineConnected(index);
  }

  #engineConnected(index: number): void {
    this.#context.frontend.engineConnected(index);
    this.#isEngineConnected = true;
    this.#isReplacement = this.endpoint.hasHad(index);
    this.endpoint.addEngine(index);
    this.#judgePath();
  }

  /** Either READY may come first: the engine's says that it was here before, the frontend's what its ROUTER is. */
  #judgePath(): void {
    if (this.#isReplacement && this.engine !== null)
      this.#context.frontend.engineReconnected(this.engine, this.endpoint);
  }

  #onRegistration(version: string | null): void {
    if (this.engine === null) return;
    this.#context.frontend.engineRegistered(this.engine, version);
  }

  /** What flows on an endpoint of unknown kind shows in the engine's first message. */
  #learnKind(isHello: boolean): void {
    if (isHello) {
      this.endpoint.assign('handshake', null);
      this.toFrontend.cutter.sink = new HandshakeReader(
        this.toFrontend.flow,
        () => undefined,
        this.#context.logger,
      );
      // HELLO may come before the frontend's greeting has passed, or in the middle of it.
      const { atBoundary, greetingLeft } = this.toEngine.cutter;
      if (atBoundary) this.rewriter = this.#context.frontend.initRewriter(greetingLeft);
    } else if (this.engine !== null && this.#context.frontend.addresses === null) {
      this.#learnRequests(this.engine);
    }
  }

  /**
   * A vLLM whose engines get their INIT past steptap (rank 0 of an external or hybrid load balancer): a DEALER with
   * an engine's identity that does not say HELLO has registered.
   */
  #learnRequests(engine: number): void {
    this.endpoint.assign('requests', CLIENT_WITHOUT_INIT);
    this.toFrontend.cutter.sink = new RegistrationReader(
      this.toFrontend.flow,
      () => undefined,
      (version) => this.#onRegistration(version),
    );
    this.toEngine.cutter.sink = this.#requestsReader(this.toEngine.flow, (ready) =>
      this.endpoint.learnUpstream(ready),
    );
    this.#engineConnected(engine);
  }

  /** The same for outputs. The coordinator's PULL counts as one of them there; it never carries outputs. */
  #learnOutputs(): void {
    if (this.endpoint.kind !== 'unknown' || this.#context.frontend.addresses !== null) return;
    this.endpoint.assign('outputs', CLIENT_WITHOUT_INIT);
    this.toFrontend.cutter.sink = this.#outputsReader(this.toFrontend.flow, () => undefined);
  }

  #learnEngine(index: number): void {
    this.engine ??= index;
    if (this.endpoint.kind !== 'outputs') this.#context.frontend.engines.add(index);
  }

  #becomeOpaque(reason: string, error?: unknown): void {
    this.#isOpaque = true;
    const kind = this.endpoint.kindLabel;
    this.#context.telemetry.add('opaque_connections_total', { kind, reason });
    this.#context.logger.warn(
      {
        kind,
        reason,
        endpoint: this.endpoint.name,
        ...(error === undefined ? {} : { error: messageOf(error) }),
      },
      'connection can no longer be read; it is relayed on, its tokens are not counted',
    );
  }

  /** Until the engine is known its numbers wait here, so that no series moves to another label later. */
  #fold(isLast: boolean): void {
    if (this.engine === null && !isLast) return;
    const engine = this.engine === null ? 'unknown' : String(this.engine);
    const client = this.endpoint.client ?? '';
    this.toFrontend.flow.fold(this.#context.telemetry, engine, client);
    this.toEngine.flow.fold(this.#context.telemetry, engine, client);
  }
}
