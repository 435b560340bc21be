/** A raw value does not have the format asked for. The message is a detail, or empty when there is none to tell. */
export class FormatError extends Error {
  constructor(detail = '') {
    super(detail);
    this.name = 'FormatError';
  }
}

/**
 * How the values of a setting are written. Text comes from flags and environment variables, text or anything
 * else from the file. `print` gives text that `parse` reads back to the same value.
 */
export interface Format<T> {
  /** Completes "NAME must be …". */
  readonly allowed: string;
  /** What stands for the value in a help text, as in `--drain-timeout DURATION`. */
  readonly placeholder: string;
  /** @throws FormatError and nothing else */
  parse(raw: unknown): T;
  print(value: T): string;
  /** Whether this is a value that `parse` could have given. */
  holds(value: unknown): value is T;
}

/** The trimmed text of a raw value that must be text. */
export function textOf(raw: unknown): string {
  if (typeof raw !== 'string') throw new FormatError();
  return raw.trim();
}

/** The whole number that a raw value is or spells with digits only. */
export function wholeNumberOf(raw: unknown): number {
  const number = typeof raw === 'string' && /^\d{1,16}$/.test(raw.trim()) ? Number(raw) : raw;
  if (typeof number !== 'number' || !Number.isSafeInteger(number)) throw new FormatError();
  // Of the two zeros only the plain one can be printed and read back.
  return number === 0 ? 0 : number;
}

/** `value` when it lies in the range, both ends inclusive. */
export function within(value: number, least: number, most: number): number {
  if (!Number.isSafeInteger(value) || value < least || value > most) throw new FormatError();
  return value;
}

/** True for C0 and C1 control characters, which belong in no name, path or key. */
export function hasControlCharacter(text: string): boolean {
  return /\p{Cc}/u.test(text);
}
