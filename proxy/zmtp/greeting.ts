/**
 * The first bytes of a ZMTP 3 connection (RFC 23/ZMTP): signature 0xff, 8 bytes, 0x7f; version; 20-byte
 * mechanism; as-server; filler up to 64 bytes. A peer sends it in pieces and holds the later ones back until it
 * has seen the other side's first ones, so nobody on the way may wait for all 64.
 */
export const GREETING_LENGTH = 64;
export const SIGNATURE_LENGTH = 10;
const VERSION_AT = 10;
const MECHANISM_AT = 12;
const MECHANISM_LENGTH = 20;
const OLDEST_VERSION = 3;

export type Opening = 'incomplete' | 'zmtp3' | 'not_zmtp';

/**
 * What the first bytes of a connection say. `zmtp3` as soon as the signature is whole, which is when a peer may
 * start to wait for an answer; the version is judged as soon as it is there.
 */
export function judgeOpening(bytes: Uint8Array): Opening {
  if (bytes.length > 0 && bytes[0] !== 0xff) return 'not_zmtp';
  if (bytes.length < SIGNATURE_LENGTH) return 'incomplete';
  if (bytes[SIGNATURE_LENGTH - 1] !== 0x7f) return 'not_zmtp';
  const version = bytes[VERSION_AT];
  if (version !== undefined && version < OLDEST_VERSION) return 'not_zmtp';
  return 'zmtp3';
}

/** The security mechanism named by a whole greeting: `NULL`, `PLAIN`, `CURVE`, … */
export function mechanismOf(greeting: Buffer): string {
  const name = greeting.toString('latin1', MECHANISM_AT, MECHANISM_AT + MECHANISM_LENGTH);
  return name.replace(/\0+$/, '');
}

/** Gathers the greeting of one direction from the pieces it comes in, and judges it. */
export class GreetingReader {
  /** `not_zmtp` as soon as it shows, `mechanism` (another than NULL) at the end. */
  fault: 'not_zmtp' | 'mechanism' | null = null;
  /** Freed once it is whole. */
  #bytes: Buffer | null = Buffer.alloc(GREETING_LENGTH);
  #length = 0;

  /** Bytes that are still to come. */
  get left(): number {
    return GREETING_LENGTH - this.#length;
  }

  /** How many of the first bytes of `chunk` belong to the greeting; 0 once it is whole. */
  push(chunk: Buffer): number {
    if (this.#bytes === null) return 0;
    const taken = chunk.copy(this.#bytes, this.#length);
    this.#length += taken;
    const begun = this.#bytes.subarray(0, this.#length);
    if (judgeOpening(begun) === 'not_zmtp') this.fault = 'not_zmtp';
    else if (this.left === 0 && mechanismOf(begun) !== 'NULL') this.fault = 'mechanism';
    if (this.left === 0) this.#bytes = null;
    return taken;
  }
}

/** A greeting as a peer of version 3.1 with mechanism NULL sends it. */
export function nullGreeting(): Buffer {
  const greeting = Buffer.alloc(GREETING_LENGTH);
  greeting[0] = 0xff;
  greeting[SIGNATURE_LENGTH - 2] = 1; // what libzmq writes there; no meaning in version 3
  greeting[SIGNATURE_LENGTH - 1] = 0x7f;
  greeting[VERSION_AT] = OLDEST_VERSION;
  greeting[VERSION_AT + 1] = 1;
  greeting.write('NULL', MECHANISM_AT, 'latin1');
  return greeting;
}
