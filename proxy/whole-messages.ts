/**
 * Says how much of what has come may go on, so that a message goes on when it is whole: killing steptap leaves no half
 * message at a peer. A peer can't use half a message, so nothing comes later for it; but one of them, zmq.rs in vLLM's
 * Rust frontend, closes its socket for ever when a connection ends inside a message.
 *
 *     chunk   ──message──┬──message──┬──mess
 *             goes on    ▲           ▲ waits until the rest is there, 64 KiB at most
 *
 * A larger message streams as it comes. So does everything when the bytes are no ZMTP 3 of mechanism NULL.
 */
import { FrameCutter } from './zmtp/frame-cutter.js';

const MAX_WAITING_BYTES = 64 * 1024;

export class WholeMessages {
  readonly #cutter = new FrameCutter({
    wants: () => 0,
    frame: () => undefined,
    message: () => undefined,
    command: () => undefined,
  });
  #waiting = 0;
  /** Part of a message has gone on: the rest must follow. */
  #isStreaming = false;

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
    const passing = this.#passing(chunk, this.#waiting);
    this.#waiting = chunk.length - passing;
    return passing;
  }

  #passing(chunk: Buffer, waited: number): number {
    const cutter = this.#cutter;
    cutter.push(waited === 0 ? chunk : chunk.subarray(waited));
    const { boundary } = cutter;
    if (cutter.fault !== null || (cutter.greetingLeft > 0 && boundary < 0)) {
      this.#isStreaming = false;
      return chunk.length;
    }
    if (boundary >= 0) {
      this.#isStreaming = false;
      return waited + boundary;
    }
    if (!this.#isStreaming && chunk.length <= MAX_WAITING_BYTES) return 0;
    this.#isStreaming = true;
    return chunk.length;
  }
}
