/** ZMTP 3.1 as bytes, written from the RFC and not with the product's code (RFC 37, mechanism NULL). */
import { createHash } from 'node:crypto';

const MORE = 1;
const LONG = 2;
const COMMAND = 4;

export function greeting(major = 3): Buffer {
  const bytes = Buffer.alloc(64);
  bytes[0] = 0xff;
  bytes[8] = 1;
  bytes[9] = 0x7f;
  bytes[10] = major;
  bytes[11] = major === 3 ? 1 : 0;
  bytes.write('NULL', 12, 'latin1');
  return bytes;
}

export function ready(socketType: string, identity?: Buffer): Buffer {
  const parts = [Buffer.from('\x05READY'), property('Socket-Type', Buffer.from(socketType))];
  if (identity !== undefined) parts.push(property('Identity', identity));
  return frame(Buffer.concat(parts), COMMAND);
}

export function ping(context: Buffer): Buffer {
  return frame(Buffer.concat([Buffer.from('\x04PING\x00\x0a'), context]), COMMAND);
}

/** A whole message, one frame for each body. `long` writes every length in eight bytes, as a peer may. */
export function message(bodies: readonly Buffer[], long = false): Buffer {
  return Buffer.concat(
    bodies.map((body, index) =>
      frame(body, (index < bodies.length - 1 ? MORE : 0) | (long || body.length > 255 ? LONG : 0)),
    ),
  );
}

/** Two bytes, little-endian: how an engine of that index calls itself. */
export function engineIdentity(index: number): Buffer {
  const identity = Buffer.alloc(2);
  identity.writeUInt16LE(index);
  return identity;
}

export function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex');
}

function property(name: string, value: Buffer): Buffer {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(value.length);
  return Buffer.concat([Buffer.of(name.length), Buffer.from(name), length, value]);
}

function frame(body: Buffer, flags: number): Buffer {
  if (body.length <= 255 && (flags & LONG) === 0) return Buffer.concat([Buffer.of(flags, body.length), body]);
  const header = Buffer.alloc(9);
  header[0] = flags | LONG;
  header.writeBigUInt64BE(BigInt(body.length), 1);
  return Buffer.concat([header, body]);
}
