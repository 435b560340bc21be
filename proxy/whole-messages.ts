/**
 * Says how much of what has come may go on, so that a message goes on when it is whole: killing steptap leaves no half
 * message at a peer. A peer can't use half a message, so nothing comes later for it; but one of them, zmq.rs in vLLM's
 * Rust frontend, closes its socket for ever when a connection ends inside a message.
 *
 *     chunk   ──message──┬──message──┬──mess
 *             goes on    ▲           ▲ waits until the rest is there, 64 KiB at most
 *
 * A larger message streams as it comes. So does everything when the bytes are no ZMTP 3 of mechanism NULL.
 *
 * This looks at headers only, of bytes that lie together; it runs before each write, so it must be quick. The tap cuts
 * frames on its own (zmtp/frame-cutter.ts): nothing that goes wrong there may touch what is relayed.
 */
import { areInvalid, COMMAND, LONG, LONG_HEADER, longLength, MORE, SHORT_HEADER } from './zmtp/flags.js';
import { GreetingReader } from './zmtp/greeting.js';

const MAX_WAITING_BYTES = 64 * 1024;

export class WholeMessages {
  readonly #greeting = new GreetingReader();
  /** No ZMTP 3 of mechanism NULL. */
  #isOpaque = false;
  #waiting = 0;
  /** Offset in the next chunk of the first frame that was not whole in the last one. */
  #next = 0;
  /** That frame is not the first of its message. */
  #isInside = false;
  /** Part of a message has gone on: the rest must follow. */
  #isStreaming = false;
  /** Bytes of the streaming frame that are still to come, and whether its message ends with it. */
  #frameLeft = 0;
  #isLastFrame = false;

  /** Nothing of a message that has begun is outstanding at the other side. */
  get atBoundary(): boolean {
    return !this.#isStreaming;
  }

  /** No message has begun, waiting or not. */
  get isIdle(): boolean {
    return !this.#isStreaming && this.#waiting === 0;
  }

  /** How many bytes of `chunk` may go on. It begins with those that had to wait the last time. */
  push(chunk: Buffer): number {
    const passing = this.#passing(chunk);
    this.#waiting = chunk.length - passing;
    return passing;
  }

  #passing(chunk: Buffer): number {
    const end = chunk.length;
    if (this.#isOpaque) return end;
    let boundary = 0;
    if (this.#greeting.left > 0) {
      // It goes on as it comes, since each side waits for the other's.
      boundary = this.#next = this.#greeting.push(chunk);
      if (this.#greeting.fault !== null) return this.#becomeOpaque(end);
    }

    let at = this.#next;
    let inside = this.#isInside;
    if (this.#isStreaming) {
      if (this.#frameLeft > end) {
        this.#frameLeft -= end;
        return end;
      }
      at = this.#frameLeft;
      inside = !this.#isLastFrame;
      if (this.#isLastFrame) boundary = at;
    }
    while (at < end) {
      const flags = chunk[at] as number;
      if (areInvalid(flags)) return this.#becomeOpaque(end);
      const after = frameEnd(chunk, at, end);
      if (after < 0) return this.#becomeOpaque(end);
      if (after > end) break;
      at = after;
      if (endsMessage(flags, inside)) {
        inside = false;
        boundary = at;
      } else inside = true;
    }
    return this.#upTo(boundary, at, inside, chunk);
  }

  /** `boundary`: where the last whole message ends; `at`: the first frame that is not whole. */
  #upTo(boundary: number, at: number, inside: boolean, chunk: Buffer): number {
    const end = chunk.length;
    this.#isInside = inside;
    if (boundary > 0 || (!this.#isStreaming && end <= MAX_WAITING_BYTES)) {
      this.#isStreaming = false;
      this.#next = at - boundary;
      return boundary;
    }
    this.#isStreaming = true;
    this.#next = 0;
    this.#frameLeft = 0;
    this.#isLastFrame = false;
    const after = at < end ? frameEnd(chunk, at, end) : end;
    if (after === Number.POSITIVE_INFINITY) return at; // a header that is not whole waits
    this.#frameLeft = after - end;
    if (after > end) this.#isLastFrame = endsMessage(chunk[at] as number, inside);
    return end;
  }

  #becomeOpaque(passing: number): number {
    this.#isOpaque = true;
    this.#isStreaming = false;
    return passing;
  }
}

/** Whether nothing is outstanding behind a frame of these flags; a command can stand between two frames of a message. */
function endsMessage(flags: number, inside: boolean): boolean {
  return (flags & MORE) === 0 && ((flags & COMMAND) === 0 || !inside);
}

/** Where the frame at `at` ends; infinity when its header is not whole, -1 when its length can't be true. */
function frameEnd(chunk: Buffer, at: number, end: number): number {
  if (((chunk[at] as number) & LONG) === 0) {
    return at + SHORT_HEADER > end ? Number.POSITIVE_INFINITY : at + SHORT_HEADER + (chunk[at + 1] as number);
  }
  if (at + LONG_HEADER > end) return Number.POSITIVE_INFINITY;
  const length = longLength(chunk, at + 1);
  return length < 0 ? -1 : at + LONG_HEADER + length;
}
