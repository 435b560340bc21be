/**
 * One accepted connection joined to one dialled connection.
 *
 *     engine ──accepted──►[gate]── pump to_frontend ──►dialled── frontend
 *                   ▲                   │ copy                │
 *                   └──────────── pump to_engine ◄────────────┘
 *                                       │ copy
 *                                       ▼
 *                                 tap (reads, never writes)
 *
 * The gate lets the first bytes through only when they open a ZMTP 3 connection; only then is the frontend dialled.
 * A pump writes a chunk on before the tap sees it, and stops reading while the other side is full, so that
 * back-pressure, half-close, end and reset are those of the two peers.
 */
import net from 'node:net';
import type { Address } from './address.js';
import { errnoOf } from './errors.js';
import { Pump } from './pump.js';
import { ReadBuffer, withReadBuffer } from './read-buffer.js';
import type { Tap } from './tap.js';
import { judgeOpening, SIGNATURE_LENGTH } from './zmtp/greeting.js';

/** Between bind and listen a frontend's socket refuses for some milliseconds, a frontend that restarts for longer. */
const DIAL_DEADLINE_MS = 10_000;
const DIAL_RETRY_FIRST_MS = 5;
const DIAL_RETRY_MAX_MS = 250;
/** How long after a peer's reset the other side is reset: its last bytes must have left this machine. */
const RESET_GRACE_MS = 20;
const RETRIABLE = new Set(['ECONNREFUSED', 'ENOENT', 'EAGAIN', 'ETIMEDOUT', 'EHOSTUNREACH', 'ENETUNREACH']);

export type FailureReason =
  | 'not_zmtp'
  | 'greeting_timeout'
  | 'too_many_greetings'
  | 'dial_refused'
  | 'dial_failed'
  | 'accept_failed'
  | 'reset'
  | 'timeout';

export interface ConnectionEvents {
  /** The frontend was reached. */
  joined(): void;
  failed(reason: FailureReason, error?: Error): void;
  closed(): void;
}

type Stage = 'greeting' | 'dialling' | 'joined' | 'closing' | 'closed';

export class Connection {
  stage: Stage = 'greeting';
  readonly tap: Tap;
  readonly #accepted: net.Socket;
  readonly #acceptedReads = new ReadBuffer();
  readonly #upstream: () => Address;
  readonly #events: ConnectionEvents;
  #dialled: net.Socket | null = null;
  #pumps: readonly [Pump, Pump] | null = null;
  #opening: Buffer = Buffer.alloc(0);
  #retry: NodeJS.Timeout | undefined;
  #dialDeadline = 0;

  /** `upstream` is asked at each attempt: a socket that is handed back gets its old name while one is under way. */
  constructor(accepted: net.Socket, upstream: () => Address, tap: Tap, events: ConnectionEvents) {
    this.#acceptedReads.sink = this.#readOpening;
    this.#accepted = withReadBuffer(accepted, this.#acceptedReads, streamOptions);
    this.#upstream = upstream;
    this.tap = tap;
    this.#events = events;
    this.#accepted.on('error', (error) => this.#broken(this.#accepted, error));
    this.#accepted.on('close', () => this.#ended(this.#accepted));
    this.#accepted.on('end', () => {
      if (this.stage === 'greeting') this.#accepted.destroy();
    });
  }

  /** Ends a connection that has not opened properly. */
  refuse(reason: FailureReason): void {
    this.#fail(reason);
  }

  /** Stops each direction at its next message boundary, then ends both sides. */
  stopAtBoundary(): void {
    if (this.#pumps === null) {
      this.destroy();
      return;
    }
    for (const pump of this.#pumps) pump.stopAtBoundary(this.#onPumpStopped);
  }

  destroy(): void {
    clearTimeout(this.#retry);
    this.#accepted.destroy();
    this.#dialled?.destroy();
  }

  readonly #onPumpStopped = (): void => {
    if (this.#pumps?.every((pump) => pump.stopped) !== true) return;
    this.#accepted.destroySoon();
    this.#dialled?.destroySoon();
  };

  /** Takes nothing: what has come stays in the buffer until there is somewhere to send it. */
  readonly #readOpening = (opening: Buffer): number => {
    const verdict = judgeOpening(opening);
    if (verdict === 'not_zmtp') this.#fail('not_zmtp');
    if (verdict !== 'zmtp3' || this.stage !== 'greeting') return 0;
    this.#opening = Buffer.from(opening.subarray(0, SIGNATURE_LENGTH + 1));
    this.#accepted.pause();
    this.stage = 'dialling';
    this.#dialDeadline = performance.now() + DIAL_DEADLINE_MS;
    this.#dial(DIAL_RETRY_FIRST_MS);
    return 0;
  };

  #dial(retryAfterMs: number): void {
    const reads = new ReadBuffer();
    const socket = net.connect({ ...this.#upstream(), ...streamOptions, ...socketOptions, onread: reads });
    this.#dialled = socket;
    const failed = (error: Error): void => {
      socket.destroy();
      if (this.stage !== 'dialling') return;
      const errno = errnoOf(error) ?? '';
      if (!RETRIABLE.has(errno)) this.#fail('dial_failed', error);
      else if (performance.now() + retryAfterMs > this.#dialDeadline) this.#fail('dial_refused', error);
      else {
        const next = Math.min(retryAfterMs * 2, DIAL_RETRY_MAX_MS);
        this.#retry = setTimeout(() => this.#dial(next), retryAfterMs);
      }
    };
    socket.on('error', failed);
    socket.once('connect', () => {
      socket.off('error', failed);
      this.#join(socket, reads);
    });
  }

  #join(dialled: net.Socket, reads: ReadBuffer): void {
    if (this.stage !== 'dialling') {
      dialled.destroy();
      return;
    }
    this.stage = 'joined';
    const accepted = this.#accepted;
    dialled.on('error', (error) => this.#broken(dialled, error));
    dialled.on('close', () => this.#ended(dialled));
    const toFrontend = new Pump(accepted, this.#acceptedReads, dialled, this.tap, this.tap.toFrontend);
    const toEngine = new Pump(dialled, reads, accepted, this.tap, this.tap.toEngine);
    this.#pumps = [toFrontend, toEngine];
    this.#events.joined();
    toFrontend.start(this.#opening, (opening) => {
      if (judgeOpening(opening) !== 'not_zmtp') return true;
      this.#fail('not_zmtp');
      return false;
    });
    toEngine.start();
    this.#opening = Buffer.alloc(0);
  }

  #fail(reason: FailureReason, error?: Error): void {
    if (this.stage === 'closing' || this.stage === 'closed') return;
    this.stage = 'closing';
    this.#events.failed(reason, error);
    this.destroy();
  }

  /** One side ended with an error: what came before it is delivered, then the other side ends likewise. */
  #broken(side: net.Socket, error: Error): void {
    const other = side === this.#accepted ? this.#dialled : this.#accepted;
    if (this.stage !== 'joined' || other === null) {
      this.destroy();
      return;
    }
    this.stage = 'closing';
    const [toFrontend, toEngine] = this.#pumps ?? [];
    (side === this.#accepted ? toFrontend : toEngine)?.flush();
    const errno = errnoOf(error);
    if (errno === 'ETIMEDOUT') this.#events.failed('timeout', error);
    else if (errno === 'ECONNRESET') this.#events.failed('reset', error);
    // Bytes that still wait for the peer would be thrown away by a reset, so behind them an end must do.
    const canReset = errno === 'ECONNRESET' && 'port' in this.#upstream() && other.writableLength === 0;
    if (canReset) setTimeout(() => other.resetAndDestroy(), RESET_GRACE_MS);
    else other.destroySoon();
  }

  #ended(side: net.Socket): void {
    const other = side === this.#accepted ? this.#dialled : this.#accepted;
    if (this.stage === 'joined') {
      this.stage = 'closing';
      other?.destroySoon();
    }
    if (side === this.#accepted && this.stage !== 'closing') this.destroy();
    if (this.stage === 'closed') return;
    const isOver = this.#accepted.destroyed && (this.#dialled === null || this.#dialled.destroyed);
    if (!isOver) return;
    this.stage = 'closed';
    clearTimeout(this.#retry);
    this.tap.closed();
    this.#events.closed();
  }
}

/** Above what one read brings, so that `drain` comes only when a peer has fallen behind. */
const streamOptions = { allowHalfOpen: true, writableHighWaterMark: 128 * 1024 } as const;

/** Small messages must not wait for an acknowledgement, and a peer whose machine died must be noticed. */
export const socketOptions = { noDelay: true, keepAlive: true, keepAliveInitialDelay: 30_000 } as const;
