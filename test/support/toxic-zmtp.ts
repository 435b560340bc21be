/**
 * A ZMTP 3.1 peer made of a plain socket, so that every byte, pause and end is in the test's hand. What it sent and
 * what it received is kept as a SHA-256, which is how two ends of a relay are compared.
 */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import net from 'node:net';
import type { Address } from '../../proxy/address.js';

const GREETING_LENGTH = 64;
const MORE = 1;
const LONG = 2;
const COMMAND = 4;
/** A frame that claims more is not kept, and nothing behind it is read: only misbehaving peers send such. */
const MAX_KEPT_BYTES = 256 * 1024 * 1024;

export type SocketType = 'ROUTER' | 'DEALER' | 'PULL' | 'PUSH' | 'XPUB';

/** How a connection ended: `fin` the peer sent its end, `reset` it was cut. */
export type End = 'fin' | 'reset';

/** All bytes that went one way. */
export class Tally {
  bytes = 0;
  /** Reads or writes they took. */
  chunks = 0;
  readonly #hash = createHash('sha256');

  add(chunk: Buffer): void {
    this.bytes += chunk.length;
    this.chunks++;
    this.#hash.update(chunk);
  }

  get digest(): string {
    return this.#hash.copy().digest('hex');
  }
}

export interface ZmtpOptions {
  readonly type: SocketType;
  /** null: a READY without the property, as zmq.rs sends it. */
  readonly identity?: Buffer | null;
  readonly onMessage?: (frames: readonly Buffer[], peer: ZmtpPeer) => void;
}

export class ZmtpPeer {
  readonly socket: net.Socket;
  readonly sent = new Tally();
  readonly received = new Tally();
  /** Whether a frontend closes its half when the engine has closed the other, as libzmq and zmq.rs do. */
  endsWithItsPeer = true;
  /** Messages received, commands not included. */
  messages = 0;
  /** When, by performance.now(), and how the other side ended it; null while it has not. */
  end: { readonly how: End; readonly at: number } | null = null;
  /** Resolves with the socket type in the other side's READY. */
  readonly ready: Promise<string>;
  readonly ended: Promise<End>;
  readonly #options: ZmtpOptions;
  #becomeReady: (type: string) => void = () => undefined;
  #greetingLeft = GREETING_LENGTH;
  /** Bytes of a frame that is not whole yet, and how many it takes. */
  #pending: Buffer[] = [];
  #pendingLength = 0;
  #needed = 0;
  #frames: Buffer[] = [];

  constructor(socket: net.Socket, options: ZmtpOptions) {
    this.socket = socket;
    this.#options = options;
    this.ready = new Promise((resolve) => {
      this.#becomeReady = resolve;
    });
    this.ended = new Promise((resolve) => {
      const see = (how: End) => {
        this.end ??= { how, at: performance.now() };
        resolve(this.end.how);
      };
      socket.on('end', () => see('fin'));
      socket.on('error', () => see('reset'));
      socket.on('close', () => see('reset'));
    });
    socket.setNoDelay(true);
    socket.on('data', (chunk: Buffer) => {
      this.received.add(chunk);
      this.#read(chunk);
    });
    this.write(greeting());
    this.write(
      readyCommand(options.type, options.identity === undefined ? Buffer.alloc(0) : options.identity),
    );
  }

  /** Dials; throws when nobody answers. */
  static async connect(address: Address, options: ZmtpOptions): Promise<ZmtpPeer> {
    const socket = net.connect({ ...address, allowHalfOpen: true });
    await once(socket, 'connect');
    return new ZmtpPeer(socket, options);
  }

  /** False when the kernel takes no more for now, as with any stream. */
  write(bytes: Buffer): boolean {
    this.sent.add(bytes);
    return this.socket.write(bytes);
  }

  send(...frames: readonly Uint8Array[]): boolean {
    return this.write(encodeMessage(frames));
  }

  /** Resolves once the kernel has taken all but a little of what was written. */
  async drained(): Promise<void> {
    if (this.socket.writableNeedDrain) await once(this.socket, 'drain');
  }

  destroy(): void {
    this.socket.destroy();
  }

  #read(chunk: Buffer): void {
    const skipped = Math.min(this.#greetingLeft, chunk.length);
    this.#greetingLeft -= skipped;
    this.#pending.push(chunk.subarray(skipped));
    this.#pendingLength += chunk.length - skipped;
    if (this.#needed > MAX_KEPT_BYTES) this.#pending.length = 0;
    if (this.#pendingLength < this.#needed) return;
    this.#readFrames(this.#needed > MAX_KEPT_BYTES ? Buffer.alloc(0) : Buffer.concat(this.#pending));
  }

  #readFrames(bytes: Buffer): void {
    let at = 0;
    let frame = frameAt(bytes, at);
    while (frame.isWhole) {
      this.#take(frame.flags, bytes.subarray(frame.bodyAt, frame.end));
      at = frame.end;
      frame = frameAt(bytes, at);
    }
    this.#needed = frame.end - at;
    this.#pending = [bytes.subarray(at)];
    this.#pendingLength = bytes.length - at;
  }

  #take(flags: number, body: Buffer): void {
    if (flags & COMMAND) {
      const type = /Socket-Type\0\0\0[\s\S]([A-Z]+)/i.exec(body.toString('latin1'))?.[1];
      if (type !== undefined) this.#becomeReady(type);
      return;
    }
    this.#frames.push(body);
    if (flags & MORE) return;
    const frames = this.#frames;
    this.#frames = [];
    this.messages++;
    this.#options.onMessage?.(frames, this);
  }
}

/** Frames as ZMTP puts them on the wire: flag byte, length, body. */
export function encodeMessage(frames: readonly Uint8Array[]): Buffer {
  return Buffer.concat(
    frames.flatMap((body, index) => [frameHeader(index < frames.length - 1 ? MORE : 0, body.length), body]),
  );
}

export function frameHeader(flags: number, length: number): Buffer {
  if (length <= 255) return Buffer.of(flags, length);
  const header = Buffer.alloc(9);
  header[0] = flags | LONG;
  header.writeBigUInt64BE(BigInt(length), 1);
  return header;
}

/** Signature, version 3.1, mechanism NULL. */
export function greeting(): Buffer {
  const bytes = Buffer.alloc(GREETING_LENGTH);
  bytes.set([0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1]);
  bytes.write('NULL', 12, 'latin1');
  return bytes;
}

export function readyCommand(type: SocketType, identity: Buffer | null): Buffer {
  const properties = [property('Socket-Type', Buffer.from(type))];
  if (identity !== null) properties.push(property('Identity', identity));
  const body = Buffer.concat([Buffer.from('\x05READY', 'latin1'), ...properties]);
  return Buffer.concat([frameHeader(COMMAND, body.length), body]);
}

function property(name: string, value: Buffer): Buffer {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(value.length);
  return Buffer.concat([Buffer.of(name.length), Buffer.from(name), length, value]);
}

/** The frame that begins at `at`; `end` is a guess while its header is not whole. */
function frameAt(
  bytes: Buffer,
  at: number,
): { readonly isWhole: boolean; readonly flags: number; readonly bodyAt: number; readonly end: number } {
  const flags = bytes[at] ?? 0;
  const isLong = (flags & LONG) !== 0;
  const bodyAt = at + (isLong ? 9 : 2);
  if (bytes.length < bodyAt) return { isWhole: false, flags, bodyAt, end: bodyAt };
  const end = bodyAt + (isLong ? Number(bytes.readBigUInt64BE(at + 1)) : (bytes[at + 1] as number));
  return { isWhole: bytes.length >= end, flags, bodyAt, end };
}
