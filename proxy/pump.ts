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

  constructor(from: Socket, reads: ReadBuffer, to: Socket, tap: Tap, direction: TapDirection) {
    this.#from = from;
    this.#reads = reads;
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
      this.#reads.sink = (chunk) => {
        if (!accepts(Buffer.concat([opening, chunk]))) return;
        this.#reads.sink = this.#relay;
        this.#relay(chunk);
      };
    } else this.#reads.sink = this.#relay;
    if (!to.writableNeedDrain && !this.#isRewriting) from.resume();
  }

  /**
   * Calls back once the message that has begun is whole at the other side, and reads no further. Whoever loses
   * patience with that message finds nothing of it there, unless it is a large one.
   */
  stopAtBoundary(onStopped: () => void): void {
    if (this.#onStopped !== null) return;
    this.#onStopped = onStopped;
    if (this.#messages.isIdle || this.#from.readableEnded) this.#stop();
    else this.#from.once('close', () => this.#stop());
  }

  #stop(): void {
    if (this.stopped) return;
    this.stopped = true;
    this.#reads.sink = () => undefined;
    this.#from.pause();
    this.#onStopped?.();
  }

  /** Nothing more will come: what was held back goes on as it is. */
  flush(): void {
    for (const bytes of this.#messages.flush()) this.#to.write(bytes);
  }

  readonly #onEnd = (): void => {
    this.#hasEnded = true;
    if (this.#isRewriting) return;
    this.flush();
    this.#to.end();
  };

  readonly #relay = (chunk: Buffer): void => {
    const rewritten = this.#tap.rewrite(this.#direction, chunk);
    if (rewritten instanceof Promise) this.#holdFor(rewritten);
    else this.#write(rewritten);
    this.#tap.read(this.#direction, chunk);
  };

  #holdFor(rewritten: Promise<Buffer>): void {
    this.#isRewriting = true;
    this.#from.pause();
    void rewritten.then((bytes) => {
      this.#isRewriting = false;
      this.#from.resume();
      this.#write(bytes);
      if (this.#hasEnded) this.#onEnd();
    });
  }

  #write(bytes: Buffer): void {
    const to = this.#to;
    const pieces = this.#messages.push(bytes);
    if (pieces.length > 1) to.cork(); // one system call for what was held and what completes it
    for (const piece of pieces) to.write(piece);
    if (pieces.length > 1) to.uncork();
    if (this.#onStopped !== null && pieces.length > 0 && this.#messages.atBoundary) this.#stop();
    if (to.writableLength === 0) return; // the kernel has taken it all
    this.#reads.release();
    if (to.writableNeedDrain) this.#from.pause();
  }
}
