import { type Format, FormatError, textOf, wholeNumberOf, within } from './format.js';

/** Node's timers take no longer delay: 2^31 - 1 ms, 24.8 days. */
const LONGEST_MS = 2 ** 31 - 1;

/** A Buffer holds no more in Node 20, and a msgpack length is a 32-bit number. */
const LARGEST_BYTES = 4 * 1024 ** 3;

type Unit = readonly [name: string, factor: number];

/** Largest first: the first that divides a value without remainder is the one it is printed in. */
const DURATIONS: readonly Unit[] = [
  ['h', 3_600_000],
  ['m', 60_000],
  ['s', 1_000],
  ['ms', 1],
];

const SIZES: readonly Unit[] = [
  ['GiB', 1024 ** 3],
  ['MiB', 1024 ** 2],
  ['KiB', 1024],
  ['GB', 1e9],
  ['MB', 1e6],
  ['kB', 1e3],
  ['B', 1],
];

/** `64Mi` is how Kubernetes writes 64 MiB. */
const KUBERNETES_SIZES: readonly Unit[] = [
  ['Gi', 1024 ** 3],
  ['Mi', 1024 ** 2],
  ['Ki', 1024],
];

function withUnit(raw: unknown, units: readonly Unit[]): number {
  if (typeof raw === 'number' || /^\d+$/.test(textOf(raw))) return wholeNumberOf(raw);
  const match = /^(\d{1,16})\s*([a-z]{1,3})$/i.exec(textOf(raw));
  const unit = units.find(([name]) => name.toLowerCase() === match?.[2]?.toLowerCase());
  if (match === null || unit === undefined) throw new FormatError();
  return Number(match[1]) * unit[1];
}

function inLargestUnit(value: number, units: readonly Unit[], space: string): string {
  const [name, factor] = units.find(([, size]) => value >= size && value % size === 0) ?? ['', 1];
  return name === '' ? String(value) : `${value / factor}${space}${name}`;
}

/** Milliseconds, written `500ms`, `30s`, `2m`, `1h`, or as a plain whole number of milliseconds. */
export const duration: Format<number> = {
  allowed: 'a duration such as 500ms, 30s, 2m or a whole number of milliseconds, at most 24 days',
  placeholder: 'DURATION',
  parse: (raw) => within(withUnit(raw, DURATIONS), 0, LONGEST_MS),
  print: (value) => (value === 0 ? '0s' : inLargestUnit(value, DURATIONS, '')),
  holds: (value): value is number => Number.isSafeInteger(value) && Number(value) >= 0,
};

/** Bytes, written `64 MiB`, `64MiB`, `64Mi`, `1GB` (10^9), or as a plain whole number of bytes. */
export const byteSize: Format<number> = {
  allowed: 'a size such as 64MiB, 512KiB, 1GB or a whole number of bytes, 1 byte to 4 GiB',
  placeholder: 'SIZE',
  parse: (raw) => within(withUnit(raw, [...SIZES, ...KUBERNETES_SIZES]), 1, LARGEST_BYTES),
  print: (value) => inLargestUnit(value, SIZES, ' '),
  holds: (value): value is number => Number.isSafeInteger(value) && Number(value) >= 1,
};
