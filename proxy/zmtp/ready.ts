/** The READY command of ZMTP's NULL mechanism: 5 "READY", then (name-length, name, 4-byte length, value)*. */

const READY = Buffer.from('\x05READY', 'latin1');

export interface Ready {
  /** `ROUTER`, `DEALER`, `PULL`, `PUSH`, `XPUB`, … */
  readonly socketType: string;
  /** Value of the `Identity` property; null when there is none (zmq.rs' ROUTER), empty where libzmq has none. */
  readonly identity: Buffer | null;
}

/** Reads a command's body; null when it is another command or its properties do not fit their lengths. */
export function readReady(body: Buffer): Ready | null {
  if (!body.subarray(0, READY.length).equals(READY)) return null;
  let socketType = '';
  let identity: Buffer | null = null;
  let at = READY.length;
  while (at < body.length) {
    const nameEnd = at + 1 + (body[at] as number);
    if (nameEnd + 4 > body.length) return null;
    const name = body.toString('latin1', at + 1, nameEnd).toLowerCase();
    const valueAt = nameEnd + 4;
    const valueEnd = valueAt + body.readUInt32BE(nameEnd);
    if (valueEnd > body.length) return null;
    if (name === 'socket-type') socketType = body.toString('latin1', valueAt, valueEnd);
    if (name === 'identity') identity = Buffer.from(body.subarray(valueAt, valueEnd));
    at = valueEnd;
  }
  return { socketType, identity };
}

/** The engine index a DEALER's identity stands for: 2 bytes little-endian; null for any other identity. */
export function engineIndexOf(identity: Buffer | null): number | null {
  return identity?.length === 2 ? identity.readUInt16LE(0) : null;
}
