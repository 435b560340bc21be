/** One direction of a joined connection: what `from` sends is written to `to`, and shown to the tap. */
import type { Socket } from 'node:net';
import type { Tap, TapDirection } from './tap.js';
import { SIGNATURE_LENGTH } from './zmtp/greeting.js';

export class Pump {
  stopped = false;
  readonly #from: Socket;
  readonly #to: Socket;
  readonly #tap: Tap;
  readonly #direction: TapDirection;
  #onStopped: (() => void) | null = null;
  /** A message is being rewritten: nothing may overtake it, not even the end. */
  #isRewriting = false;
  #hasEnded = false;

  constructor(from: Socket, to: Socket, tap: Tap, direction: TapDirection) {
    this.#from = from;
    this.#to = to;
    this.#tap = tap;
    this.#direction = direction;
  }

  /**
   * Begins with bytes that were read before. `accepts` is asked with all bytes so far until the ZMTP version
   * behind the signature has passed; false keeps the last of them back.
   */
  start(opening: Buffer = Buffer.alloc(0), accepts: ((opening: Buffer) => boolean) | null = null): void {
    const from = this.#from;
    const to = this.#to;
    to.on('drain', () => {
      if (!this.#isRewriting && !this.stopped) from.resume();
    });
    from.on('end', this.#onEnd);
    if (opening.length > 0) this.#relay(opening);
    // An end that came while the frontend was dialled has been emitted, pause or not.
    if (from.readableEnded) this.#onEnd();
    if (accepts !== null && opening.length <= SIGNATURE_LENGTH) {
      from.once('data', (chunk: Buffer) => {
        if (!accepts(Buffer.concat([opening, chunk]))) return;
        from.on('data', this.#relay);
        this.#relay(chunk);
      });
    } else from.on('data', this.#relay);
    if (!to.writableNeedDrain && !this.#isRewriting) from.resume();
  }

  /** Calls back once nothing of a begun message is missing on the other side, and reads no further. */
  stopAtBoundary(onStopped: () => void): void {
    if (this.#onStopped !== null) return;
    this.#onStopped = onStopped;
    if (this.#direction.atBoundary || this.#from.readableEnded) this.#stop();
    else this.#from.once('close', () => this.#stop());
  }

  #stop(): void {
    if (this.stopped) return;
    this.stopped = true;
    this.#from.off('data', this.#relay);
    this.#from.pause();
    this.#onStopped?.();
  }

  readonly #onEnd = (): void => {
    this.#hasEnded = true;
    if (!this.#isRewriting) this.#to.end();
  };

  readonly #relay = (chunk: Buffer): void => {
    if (this.#onStopped !== null) {
      this.#relayUpToBoundary(chunk);
      return;
    }
    const rewritten = this.#tap.rewrite(this.#direction, chunk);
    if (rewritten instanceof Promise) this.#holdFor(rewritten);
    else if (rewritten.length > 0 && !this.#to.write(rewritten)) this.#from.pause();
    this.#tap.read(this.#direction, chunk);
  };

  #holdFor(rewritten: Promise<Buffer>): void {
    this.#isRewriting = true;
    this.#from.pause();
    void rewritten.then((bytes) => {
      this.#isRewriting = false;
      const isFull = bytes.length > 0 && !this.#to.write(bytes);
      if (this.#hasEnded) this.#to.end();
      else if (!isFull) this.#from.resume();
    });
  }

  #relayUpToBoundary(chunk: Buffer): void {
    this.#tap.read(this.#direction, chunk);
    const { boundary } = this.#direction;
    if (boundary < 0) {
      if (!this.#to.write(chunk)) this.#from.pause();
      return;
    }
    this.#to.write(chunk.subarray(0, boundary));
    this.#stop();
  }
}
