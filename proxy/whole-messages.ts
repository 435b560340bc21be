/**
 * Holds back a message that has begun until the rest of it has come, so that killing steptap leaves no half message
 * at a peer. A peer can't use half a message, so nothing comes later for it; but one of them, zmq.rs in vLLM's Rust
 * frontend, closes its socket for ever when a connection ends inside a message.
 *
 *     chunk   ──message──┬──message──┬──mess
 *             let through ▲           ▲ held until the rest is there, 64 KiB at most
 *
 * A larger message streams through as it comes. So does everything when the bytes are no ZMTP 3 of mechanism NULL.
 */
import { FrameCutter } from './zmtp/frame-cutter.js';

const MAX_HELD_BYTES = 64 * 1024;
const MAX_HELD_PIECES = 128;

export class WholeMessages {
  readonly #cutter = new FrameCutter({
    wants: () => 0,
    frame: () => undefined,
    message: () => undefined,
    command: () => undefined,
  });
  #held: Buffer[] = [];
  #heldBytes = 0;
  /** Part of a message has been let through: the rest must follow. */
  #isStreaming = false;

  /** Nothing of a message that has begun is outstanding at the other side. */
  get atBoundary(): boolean {
    return !this.#isStreaming;
  }

  /** No message has begun, held back or not. */
  get isIdle(): boolean {
    return !this.#isStreaming && this.#held.length === 0;
  }

  /** What may go on now that `chunk` has come; in order, each byte once. */
  push(chunk: Buffer): readonly Buffer[] {
    const cutter = this.#cutter;
    cutter.push(chunk);
    const { boundary } = cutter;
    if (cutter.fault !== null || (cutter.greetingLeft > 0 && boundary < 0)) {
      this.#isStreaming = false;
      return [...this.flush(), chunk];
    }
    if (boundary < 0) {
      if (this.#isStreaming) return [chunk];
      this.#hold(chunk);
      if (this.#heldBytes <= MAX_HELD_BYTES) return [];
      this.#isStreaming = true;
      return this.flush();
    }
    this.#isStreaming = false;
    if (boundary === chunk.length) return this.#held.length === 0 ? [chunk] : [...this.flush(), chunk];
    const ready = this.flush();
    this.#hold(chunk.subarray(boundary));
    return [...ready, chunk.subarray(0, boundary)];
  }

  /** What is held back, for when nothing will come behind it. */
  flush(): readonly Buffer[] {
    const held = this.#held;
    if (held.length === 0) return NOTHING;
    this.#held = [];
    this.#heldBytes = 0;
    return held;
  }

  /** Copies: the next chunk is read into the place of this one. */
  #hold(bytes: Buffer): void {
    this.#held.push(Buffer.from(bytes));
    this.#heldBytes += bytes.length;
    // A Buffer of one byte takes some 800: a peer that sends byte by byte must not make 64 KiB of that 50 MB.
    if (this.#held.length > MAX_HELD_PIECES) this.#held = [Buffer.concat(this.#held)];
  }
}

const NOTHING: readonly Buffer[] = [];
