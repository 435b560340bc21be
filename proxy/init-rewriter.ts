/**
 * The one place where bytes are changed: INIT on its way from the frontend to an engine. Everything is passed on
 * as it came, chunk by chunk, but a message frame is held until it is whole, shown to `rewrite` and, if it was
 * INIT, framed anew. Anything unexpected makes it transparent for good: better uncounted than broken.
 */
import { areInvalid, COMMAND, LONG, LONG_HEADER, MORE, SHORT_HEADER } from './zmtp/flags.js';
import { GREETING_LENGTH } from './zmtp/greeting.js';

/** INIT is a map of a few addresses and the parallel configuration: some hundred bytes. */
const MAX_INIT_BYTES = 1024 * 1024;
const MAX_SHORT_BODY = 255;

/** Gives INIT with other addresses, or null when `body` is not INIT or needs no change. */
export type Rewrite = (body: Buffer) => Promise<Buffer | null>;

export class InitRewriter {
  readonly #rewrite: Rewrite;
  #held: Buffer = Buffer.alloc(0);
  #greetingLeft: number;
  #isTransparent = false;
  #busy: Promise<Buffer> | null = null;

  /** `greetingLeft`: how many of the bytes pushed first belong to the greeting; behind it begins a frame. */
  constructor(rewrite: Rewrite, greetingLeft = GREETING_LENGTH) {
    this.#greetingLeft = greetingLeft;
    this.#rewrite = rewrite;
  }

  /**
   * The bytes to send on for this chunk; a promise only while `rewrite` is at work. Promises are settled in the
   * order of the pushes, and each byte comes out once.
   */
  push(chunk: Buffer): Buffer | Promise<Buffer> {
    const out = this.#busy === null ? this.#take(chunk) : this.#busy.then(() => this.#take(chunk));
    if (out instanceof Promise) {
      this.#busy = out;
      const done = () => {
        if (this.#busy === out) this.#busy = null;
      };
      void out.then(done, done);
    }
    return out;
  }

  #take(chunk: Buffer): Buffer | Promise<Buffer> {
    if (this.#isTransparent) return chunk;
    const greeting = chunk.subarray(0, this.#greetingLeft);
    this.#greetingLeft -= greeting.length;
    this.#held = Buffer.concat([this.#held, chunk.subarray(greeting.length)]);
    return this.#takeFrames([greeting]);
  }

  #takeFrames(out: Buffer[]): Buffer | Promise<Buffer> {
    let frame = this.#nextFrame();
    while (frame !== null) {
      this.#held = this.#held.subarray(frame.end);
      if (frame.isMessage) {
        const { raw, body } = frame;
        return this.#rewrite(body).then((changed) => {
          out.push(changed === null ? raw : frameOf((raw[0] as number) & MORE, changed));
          return this.#takeFrames(out);
        });
      }
      out.push(frame.raw);
      frame = this.#nextFrame();
    }
    if (this.#isTransparent) {
      out.push(this.#held);
      this.#held = Buffer.alloc(0);
    }
    return Buffer.concat(out);
  }

  #nextFrame(): { raw: Buffer; body: Buffer; end: number; isMessage: boolean } | null {
    const held = this.#held;
    const flags = held[0];
    if (flags === undefined) return null;
    const isLong = (flags & LONG) !== 0;
    const bodyAt = isLong ? LONG_HEADER : SHORT_HEADER;
    if (areInvalid(flags)) this.#isTransparent = true;
    if (this.#isTransparent || held.length < bodyAt) return null;
    const length = isLong ? Number(held.readBigUInt64BE(1)) : (held[1] as number);
    if (length > MAX_INIT_BYTES) this.#isTransparent = true;
    const end = bodyAt + length;
    if (this.#isTransparent || held.length < end) return null;
    const isMessage = (flags & COMMAND) === 0;
    return { raw: held.subarray(0, end), body: held.subarray(bodyAt, end), end, isMessage };
  }
}

function frameOf(more: number, body: Buffer): Buffer {
  if (body.length <= MAX_SHORT_BODY) return Buffer.concat([Buffer.of(more, body.length), body]);
  const header = Buffer.alloc(LONG_HEADER);
  header[0] = more | LONG;
  header.writeBigUInt64BE(BigInt(body.length), 1);
  return Buffer.concat([header, body]);
}
