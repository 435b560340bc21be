/**
 * Cuts one direction of a ZMTP 3 connection into frames, whatever the chunks it comes in.
 *
 *     chunk   ...──────┬──┬───────────┬──┬──────────────...
 *                 body │h │   body    │h │  body (goes on in the next chunk)
 *                      └──┴───────────┴──┴──
 *     h = flag byte (1 more, 2 long length, 4 command) + length (1 byte, or 8 bytes big-endian)
 *
 * The sink says for each frame how many leading bytes it wants. A frame that lies whole in its chunk is handed
 * over in place, without a copy; one that crosses chunks is gathered in a buffer that grows with what has really
 * arrived, never with what the header claims; the rest is skipped by length.
 */
import { areInvalid, COMMAND, LONG, LONG_HEADER, longLength, MORE, SHORT_HEADER } from './flags.js';
import { GreetingReader } from './greeting.js';

/** READY carries a socket type and an identity of at most 255 bytes; anything longer is not needed. */
const MAX_COMMAND_BYTES = 4096;
const FIRST_GATHER_BYTES = 4096;
const NOTHING = Buffer.alloc(0);

/** Why a connection can't be cut any further. */
export type FramingFault = 'not_zmtp' | 'mechanism' | 'reserved_flags' | 'frame_length';

export interface FrameSink {
  /** How many leading bytes of frame `index` of the message (body of `length` bytes) are wanted; 0: skip it. */
  wants(index: number, length: number): number;
  /** The wanted bytes, `bytes[start..end)`, of frame `index`; `length` is that of the whole body. */
  frame(index: number, bytes: Buffer, start: number, end: number, length: number): void;
  /** The message of `frames` frames has ended. */
  message(frames: number): void;
  /** A chunk has been cut to its end: the bytes that `frame` was handed will change. */
  pushed?(): void;
  /** A command frame (READY, PING, …): name-length, name, data. Only the first 4 KiB of it. */
  command(body: Buffer): void;
}

export class FrameCutter {
  sink: FrameSink;
  /** Once set nothing is read any more. */
  fault: FramingFault | null = null;

  readonly #greeting = new GreetingReader();
  readonly #header = Buffer.alloc(LONG_HEADER);
  #headerLength = 0;
  /** Index of the frame in its message. */
  #index = 0;

  // The frame whose body is on its way; #left > 0 says that there is one.
  #flags = 0;
  #length = 0;
  #left = 0;
  #wanted = 0;
  #gathered: Buffer | null = null;
  #gatheredLength = 0;

  constructor(sink: FrameSink) {
    this.sink = sink;
  }

  /** True between two messages: whoever stops here loses no part of one. */
  get atBoundary(): boolean {
    return this.#left === 0 && this.#headerLength === 0 && this.#index === 0;
  }

  /** Bytes of the greeting that are still to come. */
  get greetingLeft(): number {
    return this.#greeting.left;
  }

  push(chunk: Buffer): void {
    if (this.fault !== null) return;
    const end = chunk.length;
    let at = this.#greeting.push(chunk);
    this.fault = this.#greeting.fault;
    while (at < end && this.fault === null) {
      if (this.#left > 0) at = this.#continueBody(chunk, at, end);
      else if (this.#headerLength > 0) at = this.#continueHeader(chunk, at, end);
      else at = this.#readFrame(chunk, at, end);
    }
    this.sink.pushed?.();
  }

  /** The common case: header and body in one chunk. Returns where the next frame begins. */
  #readFrame(chunk: Buffer, at: number, end: number): number {
    const flags = chunk[at] as number;
    if (!this.#acceptFlags(flags)) return end;
    const headerLength = flags & LONG ? LONG_HEADER : SHORT_HEADER;
    const bodyAt = at + headerLength;
    if (bodyAt > end) return this.#continueHeader(chunk, at, end);
    const length = flags & LONG ? this.#longLength(chunk, at + 1) : (chunk[at + 1] as number);
    if (this.fault !== null) return end;
    const bodyEnd = bodyAt + length;
    if (bodyEnd > end) {
      this.#beginBody(flags, length);
      return bodyAt;
    }
    const wanted = this.#wantedOf(flags, length);
    if (wanted > 0) this.#handOver(flags, chunk, bodyAt, bodyAt + wanted, length);
    this.#endFrame(flags);
    return bodyEnd;
  }

  /** A header that is cut by the end of a chunk is put together byte by byte. */
  #continueHeader(chunk: Buffer, from: number, end: number): number {
    let at = from;
    while (at < end) {
      this.#header[this.#headerLength++] = chunk[at++] as number;
      const flags = this.#header[0] as number;
      if (!this.#acceptFlags(flags)) return end;
      if (this.#headerLength < (flags & LONG ? LONG_HEADER : SHORT_HEADER)) continue;
      const length = flags & LONG ? this.#longLength(this.#header, 1) : (this.#header[1] as number);
      this.#headerLength = 0;
      if (this.fault !== null) return end;
      this.#beginBody(flags, length);
      if (length === 0) this.#endBody();
      return at;
    }
    return at;
  }

  #beginBody(flags: number, length: number): void {
    this.#flags = flags;
    this.#length = length;
    this.#left = length;
    this.#wanted = this.#wantedOf(flags, length);
    this.#gatheredLength = 0;
    if (this.#wanted > 0) this.#gathered = NOTHING;
  }

  #continueBody(chunk: Buffer, at: number, end: number): number {
    const taken = Math.min(this.#left, end - at);
    const missing = this.#wanted - this.#gatheredLength;
    if (missing > 0) this.#gather(chunk, at, Math.min(taken, missing));
    this.#left -= taken;
    if (this.#left === 0) this.#endBody();
    return at + taken;
  }

  #gather(chunk: Buffer, at: number, count: number): void {
    const needed = this.#gatheredLength + count;
    let gathered = this.#gathered as Buffer;
    if (needed > gathered.length) {
      const grown = Buffer.allocUnsafe(
        Math.min(this.#wanted, Math.max(needed, gathered.length * 2, FIRST_GATHER_BYTES)),
      );
      gathered.copy(grown, 0, 0, this.#gatheredLength);
      gathered = this.#gathered = grown;
    }
    chunk.copy(gathered, this.#gatheredLength, at, at + count);
    this.#gatheredLength = needed;
  }

  #endBody(): void {
    const gathered = this.#gathered;
    this.#gathered = null;
    if (gathered !== null) {
      const body = gathered.subarray(0, this.#gatheredLength);
      this.#handOver(this.#flags, body, 0, this.#gatheredLength, this.#length);
    }
    this.#wanted = 0;
    this.#endFrame(this.#flags);
  }

  #wantedOf(flags: number, length: number): number {
    if (flags & COMMAND) return Math.min(length, MAX_COMMAND_BYTES);
    return Math.min(length, this.sink.wants(this.#index, length));
  }

  #handOver(flags: number, bytes: Buffer, start: number, end: number, length: number): void {
    if (flags & COMMAND) this.sink.command(bytes.subarray(start, end));
    else this.sink.frame(this.#index, bytes, start, end, length);
  }

  #endFrame(flags: number): void {
    if (flags & COMMAND) return;
    if (flags & MORE) {
      this.#index++;
    } else {
      const frames = this.#index + 1;
      this.#index = 0;
      this.sink.message(frames);
    }
  }

  #acceptFlags(flags: number): boolean {
    if (!areInvalid(flags)) return true;
    this.fault = 'reserved_flags';
    return false;
  }

  #longLength(bytes: Buffer, at: number): number {
    const length = longLength(bytes, at);
    if (length < 0) this.fault = 'frame_length';
    return length;
  }
}
