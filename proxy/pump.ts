/** One direction of a joined connection: what `from` sends is written to `to`, whole messages at a time, and shown to the tap. */
import type { Socket } from 'node:net';
import type { ReadBuffer } from './read-buffer.js';
import type { Tap, TapDirection } from './tap.js';
import { WholeMessages } from './whole-messages.js';
import { SIGNATURE_LENGTH } from './zmtp/greeting.js';

export class Pump {
  stopped = false;
  readonly #from: Socket;
  readonly #reads: ReadBuffer;
  readonly #to: Socket;
  readonly #tap: Tap;
  readonly #direction: TapDirection;
  readonly #messages = new WholeMessages();
  #onStopped: (() => void) | null = null;
  /** A message is being rewritten: nothing may overtake it, not even the end. */
  #isRewriting = false;
  #hasEnded = false;

  /** `reads`: what `from` reads into. */
  constructor(from: Socket, reads: ReadBuffer, to: Socket, tap: Tap, direction: TapDirection) {
    this.#from = from;
    this.#reads = reads;
    this.#to = to;
    this.#tap = tap;
    this.#direction = direction;
  }

  /**
   * Begins with what was read before, `opening`. `accepts` is asked with all bytes so far until the ZMTP version
   * behind the signature has passed; false keeps the last of them back.
   */
  start(opening: Buffer = Buffer.alloc(0), accepts: ((opening: Buffer) => boolean) | null = null): void {
    const from = this.#from;
    const to = this.#to;
    const reads = this.#reads;
    to.on('drain', () => {
      if (!this.#isRewriting && !this.stopped) from.resume();
    });
    from.on('end', this.#onEnd);
    reads.sink = this.#relay;
    reads.show();
    // An end that came while the frontend was dialled has been emitted, pause or not.
    if (from.readableEnded) this.#onEnd();
    if (accepts !== null && opening.length <= SIGNATURE_LENGTH) {
      reads.sink = (chunk) => {
        if (!accepts(Buffer.concat([opening, chunk]))) return chunk.length;
        reads.sink = this.#relay;
        return this.#relay(chunk);
      };
    }
    if (!to.writableNeedDrain && !this.#isRewriting) from.resume();
  }

  /**
   * Calls back once the message that has begun is whole at the other side, and reads no further. Whoever loses
   * patience with that message finds nothing of it there, unless it is a large one.
   */
  stopAtBoundary(onStopped: () => void): void {
    if (this.#onStopped !== null) return;
    this.#onStopped = onStopped;
    if ((this.#messages.isIdle && !this.#isRewriting) || this.#from.readableEnded) this.#stop();
    else this.#from.once('close', () => this.#stop());
  }

  #stopIfAsked(): void {
    if (this.#onStopped !== null && this.#messages.atBoundary && !this.#isRewriting) this.#stop();
  }

  #stop(): void {
    if (this.stopped) return;
    this.stopped = true;
    this.#reads.sink = takeAll;
    this.#from.pause();
    this.#onStopped?.();
  }

  /** Nothing more will come: what had to wait goes on as it is. */
  flush(): void {
    if (this.stopped) return;
    this.#reads.sink = this.#pass;
    this.#reads.show();
  }

  readonly #onEnd = (): void => {
    this.#hasEnded = true;
    if (this.#isRewriting) return;
    this.flush();
    this.#to.end();
  };

  readonly #relay = (chunk: Buffer): number => {
    const passing = this.#messages.push(chunk);
    if (passing === 0) return 0;
    this.#pass(passing === chunk.length ? chunk : chunk.subarray(0, passing));
    this.#stopIfAsked();
    return passing;
  };

  readonly #pass = (bytes: Buffer): number => {
    const rewritten = this.#tap.rewrite(this.#direction, bytes);
    if (rewritten instanceof Promise) this.#holdFor(rewritten);
    else this.#write(rewritten);
    this.#tap.read(this.#direction, bytes);
    return bytes.length;
  };

  #holdFor(rewritten: Promise<Buffer>): void {
    this.#isRewriting = true;
    this.#from.pause();
    void rewritten.then((bytes) => {
      this.#isRewriting = false;
      this.#from.resume();
      this.#write(bytes);
      this.#stopIfAsked();
      if (this.#hasEnded) this.#onEnd();
    });
  }

  #write(bytes: Buffer): void {
    const to = this.#to;
    if (to.writableLength > 0) {
      // It has to queue. A copy: small ones must not hold a read buffer each.
      to.write(Buffer.from(bytes));
    } else {
      to.write(bytes);
      if (to.writableLength === 0) return; // the kernel has taken it all
      this.#reads.keep();
    }
    if (to.writableNeedDrain) this.#from.pause();
  }
}

const takeAll = (chunk: Buffer): number => chunk.length;
