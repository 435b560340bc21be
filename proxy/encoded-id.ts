/**
 * A request id to compare with bytes of a frame, four at a time: over single bytes the comparison took most of
 * the time of a batch, and Buffer.compare has to leave JavaScript for each id.
 */
export class EncodedId {
  readonly #length: number;
  /** Every four bytes; the last word ends with the id and overlaps the one before it. */
  readonly #words: Int32Array;

  /** Copies `bytes[start..end)`: the chunk that the id came in must not be kept alive by it. */
  constructor(bytes: Buffer, start: number, end: number) {
    const length = end - start;
    this.#length = length;
    this.#words = new Int32Array(length >= 4 ? Math.ceil(length / 4) : 0);
    for (let i = 0; i < this.#words.length; i++) {
      this.#words[i] = bytes.readInt32LE(start + Math.min(i * 4, length - 4));
    }
  }

  /** Whether `view[start..end)` is this id; never true for ids below four bytes, which are not worth a case. */
  equals(view: DataView, start: number, end: number): boolean {
    const words = this.#words;
    const last = words.length - 1;
    // From the end, where ids differ first.
    if (this.#length !== end - start || last < 0 || words[last] !== view.getInt32(end - 4, true))
      return false;
    let at = start;
    for (let i = 0; i < last; i++) {
      if (words[i] !== view.getInt32(at, true)) return false;
      at += 4;
    }
    return true;
  }
}
