/** Numbers that look random and are the same in every run, so that a failure can be repeated. */
export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed;
  }

  /** An integer from 0 to `below` - 1 (mulberry32). */
  integer(below: number): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let bits = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state);
    bits = (bits + Math.imul(bits ^ (bits >>> 7), 61 | bits)) ^ bits;
    return Math.floor((((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32) * below);
  }

  /** Bytes without a pattern that a shift or a swap would leave as it is. */
  bytes(length: number): Buffer {
    const bytes = Buffer.allocUnsafe(length);
    const block = Buffer.allocUnsafe(Math.min(length, 65_521));
    for (let i = 0; i < block.length; i++) block[i] = this.integer(256);
    for (let at = 0; at < length; at += block.length) block.copy(bytes, at);
    return bytes;
  }

  /** `bytes` cut into pieces of 1 to `longest` bytes. */
  pieces(bytes: Buffer, longest: number): Buffer[] {
    const pieces: Buffer[] = [];
    for (let at = 0; at < bytes.length; ) {
      const length = 1 + this.integer(longest);
      pieces.push(bytes.subarray(at, at + length));
      at += length;
    }
    return pieces;
  }
}
