/**
 * What a setting's value may look like. Each format reads text (from the environment, a flag, a file) or the value
 * a JSON or YAML file can hold instead, and throws a FormatError that says what is expected.
 */
import { parseAddress } from '../proxy/address.js';

export class FormatError extends Error {}

export interface Format<T> {
  /** For help and error messages: completes "expected …". */
  readonly expected: string;
  parse(raw: unknown): T;
  /** The value as one would write it. */
  print(value: T): string;
}

function refuse(expected: string): never {
  throw new FormatError(expected);
}

function textOf(raw: unknown, expected: string): string {
  if (typeof raw === 'string' && raw.trim() !== '') return raw.trim();
  return refuse(expected);
}

/** Text that only passes when `accepts` says so. */
function textFormat(expected: string, accepts: (text: string) => boolean): Format<string> {
  return {
    expected,
    parse: (raw) => {
      const text = textOf(raw, expected);
      return accepts(text) ? text : refuse(expected);
    },
    print: (value) => value,
  };
}

export const text = textFormat('some text', () => true);
export const directory = textFormat('an absolute path', (path) => path.startsWith('/'));
export const filePath = textFormat('a path', () => true);

/** `tcp://host:port`; IPv6 in brackets. `*` as host is ZeroMQ's way to write a wildcard. */
export const endpoint = textFormat('tcp://host:port', (address) => {
  const parsed = parseAddress(address);
  return parsed !== null && 'port' in parsed && parsed.port > 0;
});

export const httpUrl = textFormat('an http:// or https:// URL', (url) => {
  const protocol = URL.canParse(url) ? new URL(url).protocol : '';
  return protocol === 'http:' || protocol === 'https:';
});

export function oneOf<T extends string>(...values: readonly T[]): Format<T> {
  const expected = `one of ${values.join(', ')}`;
  return {
    expected,
    parse: (raw) => values.find((value) => value === textOf(raw, expected)) ?? refuse(expected),
    print: (value) => value,
  };
}

const MAX_PORT = 65_535;

export const port: Format<number> = {
  expected: `a port from 0 to ${MAX_PORT}`,
  parse: (raw) => {
    const number = wholeNumber(raw);
    return number !== null && number <= MAX_PORT ? number : refuse(port.expected);
  },
  print: String,
};

export interface PortRange {
  readonly first: number;
  readonly last: number;
}

/** Null: any free port. */
export const portRange: Format<PortRange | null> = {
  expected: `0 (any), a port, or a range first-last such as 29600-29699, within 1 to ${MAX_PORT}`,
  parse: (raw) => {
    const match = /^(\d{1,5})(?:\s*-\s*(\d{1,5}))?$/.exec(String(raw).trim());
    if (match === null) return refuse(portRange.expected);
    const first = Number(match[1]);
    const last = Number(match[2] ?? match[1]);
    if (first === 0 && last === 0) return null;
    return first >= 1 && first <= last && last <= MAX_PORT ? { first, last } : refuse(portRange.expected);
  },
  print: (range) => (range === null ? '0' : `${range.first}-${range.last}`),
};

/** Longest first, so that a value is printed in the largest unit that divides it. */
const DURATION_UNITS = { h: 3_600_000, m: 60_000, s: 1000, ms: 1 } as const;
const SIZE_UNITS = { GiB: 2 ** 30, MiB: 2 ** 20, KiB: 2 ** 10, GB: 1e9, MB: 1e6, KB: 1e3, B: 1 } as const;
/** What a timer takes (a 32-bit number of milliseconds). */
const MAX_DURATION_MS = 2 ** 31 - 1;

/** Milliseconds. */
export const duration: Format<number> = {
  expected: 'a duration such as 30s, 500ms or 2m (a plain number: milliseconds)',
  parse: (raw) => {
    const milliseconds = withUnit(raw, DURATION_UNITS);
    return milliseconds !== null && milliseconds <= MAX_DURATION_MS
      ? milliseconds
      : refuse(duration.expected);
  },
  print: (value) => printUnit(value, DURATION_UNITS, ''),
};

/** Bytes. */
export const byteSize: Format<number> = {
  expected: 'a size above 0 such as 64MiB, 500KB or a plain number of bytes',
  parse: (raw) => {
    const bytes = withUnit(raw, SIZE_UNITS);
    return bytes !== null && bytes > 0 ? bytes : refuse(byteSize.expected);
  },
  print: (value) => printUnit(value, SIZE_UNITS, ' '),
};

/** Globs, comma-separated or as a list. */
export const globs: Format<readonly string[]> = {
  expected: 'globs separated by commas, such as chatcmpl-*,!*-test',
  parse: (raw) => {
    const parts: readonly unknown[] = Array.isArray(raw) ? raw : textOf(raw, globs.expected).split(',');
    return parts.map((part) => {
      const glob = textOf(part, globs.expected);
      return glob === '!' ? refuse(globs.expected) : glob;
    });
  },
  print: (value) => value.join(','),
};

function wholeNumber(raw: unknown): number | null {
  const number =
    typeof raw === 'number' ? raw : typeof raw === 'string' && /^\d+$/.test(raw.trim()) ? Number(raw) : -1;
  return Number.isSafeInteger(number) && number >= 0 ? number : null;
}

function withUnit(raw: unknown, units: Readonly<Record<string, number>>): number | null {
  const plain = wholeNumber(raw);
  if (plain !== null) return plain;
  const match = /^(\d+(?:\.\d+)?)\s*([a-z]+)$/i.exec(String(raw).trim());
  const unit = Object.keys(units).find((name) => name.toLowerCase() === match?.[2]?.toLowerCase());
  const value = unit === undefined ? Number.NaN : Number(match?.[1]) * (units[unit] as number);
  return Number.isSafeInteger(value) ? value : null;
}

function printUnit(value: number, units: Readonly<Record<string, number>>, space: string): string {
  for (const [name, size] of Object.entries(units)) {
    if (value >= size && value % size === 0) return `${value / size}${space}${name}`;
  }
  return String(value);
}
