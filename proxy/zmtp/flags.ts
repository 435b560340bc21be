/** The first byte of a ZMTP 3 frame (RFC 23), and what follows from it. */
export const MORE = 1;
export const LONG = 2;
export const COMMAND = 4;
const RESERVED = 0xf8;

/** Flag byte and length. */
export const SHORT_HEADER = 2;
export const LONG_HEADER = 9;

/** No frame begins like this: bits without a meaning, or a command that announces more of itself. */
export function areInvalid(flags: number): boolean {
  return (flags & RESERVED) !== 0 || (flags & (COMMAND | MORE)) === (COMMAND | MORE);
}

/** Lengths past 2^53 can't be counted in a number; no peer sends 8 PiB. */
const HIGHEST_HIGH_WORD = 0x1f_ffff;

/** The eight bytes at `at`; -1 when they are more than a number can hold. */
export function longLength(bytes: Buffer, at: number): number {
  const high = bytes.readUInt32BE(at);
  return high > HIGHEST_HIGH_WORD ? -1 : high * 0x1_0000_0000 + bytes.readUInt32BE(at + 4);
}
