import { isIPv4, isIPv6 } from 'node:net';
import { type Format, FormatError, textOf, wholeNumberOf, within } from './format.js';

/** A TCP address. `host` is a name, an IPv4 or an IPv6 address without brackets, or `*` for every address. */
export interface HostAndPort {
  readonly host: string;
  readonly port: number;
}

/** First and last port, both inclusive. */
export interface PortRange {
  readonly first: number;
  readonly last: number;
}

const MAX_PORT = 65_535;

/** True for the hosts that mean "every address of this machine": only to listen on, never to dial. */
export function isWildcard(host: string): boolean {
  return host === '*' || host === '0.0.0.0' || (isIPv6(host) && /^[0:]+$/.test(host));
}

/** True for the hosts that reach this machine (in a pod: the same pod) and nothing else. */
export function isLoopback(host: string): boolean {
  return host === 'localhost' || (isIPv4(host) && host.startsWith('127.')) || host === '::1';
}

function isHostName(host: string): boolean {
  // Digits and dots alone are a misspelt IPv4 address, not a name.
  return host.length <= 253 && /^[\w-]+(\.[\w-]+)*\.?$/.test(host) && !/^[\d.]+$/.test(host);
}

/** A host without the brackets an IPv6 address may have. */
function hostOf(text: string): string {
  const bracketed = /^\[(.*)\]$/.exec(text)?.[1];
  if (bracketed !== undefined) {
    if (isIPv6(bracketed)) return bracketed;
  } else if (text === '*' || isIPv4(text) || isIPv6(text) || isHostName(text)) return text;
  throw new FormatError();
}

/** Reads `tcp://host:port`. @throws FormatError */
export function parseEndpoint(raw: unknown): HostAndPort {
  const match = /^tcp:\/\/(\[[^\]]*\]|[^:]*):(\d{1,5})$/.exec(textOf(raw));
  if (match?.[1] === undefined) throw new FormatError();
  return { host: hostOf(match[1]), port: within(Number(match[2]), 0, MAX_PORT) };
}

/** Writes `tcp://host:port`, an IPv6 address in brackets. */
export function formatEndpoint({ host, port }: HostAndPort): string {
  return `tcp://${isIPv6(host) ? `[${host}]` : host}:${port}`;
}

function endpoint(allowed: string, fits: (address: HostAndPort) => boolean): Format<string> {
  const parse = (raw: unknown): string => {
    const address = parseEndpoint(raw);
    if (!fits(address)) throw new FormatError();
    // node:net knows no "*"; libzmq reads it as 0.0.0.0.
    return formatEndpoint(address.host === '*' ? { ...address, host: '0.0.0.0' } : address);
  };
  return { allowed, placeholder: 'tcp://HOST:PORT', parse, print: String, holds: holdsWhatItParses(parse) };
}

function holdsWhatItParses(parse: (raw: unknown) => string): (value: unknown) => value is string {
  return (value): value is string => {
    try {
      return parse(value) === value;
    } catch {
      return false;
    }
  };
}

/** Where steptap connects to. */
export const dialEndpoint = endpoint(
  'an address to dial, tcp://host:port with a port from 1 to 65535 and not a wildcard host',
  ({ host, port }) => port !== 0 && !isWildcard(host),
);

/** Where steptap listens; `*` and the zero addresses mean everywhere, port 0 any free one. */
export const listenEndpoint = endpoint('an address to listen on, tcp://host:port', () => true);

/** A host that others are told, so never a wildcard. */
export const peerHost: Format<string> = {
  allowed: 'a host name or an IP address that engines can reach, not a wildcard',
  placeholder: 'HOST',
  parse: (raw) => {
    const host = hostOf(textOf(raw));
    if (isWildcard(host)) throw new FormatError();
    return host;
  },
  print: String,
  holds: (value): value is string => typeof value === 'string',
};

/** A host that node:net can listen on. It knows no `*`. */
export const bindHost: Format<string> = {
  allowed: 'a host name or an IP address to listen on (0.0.0.0 or :: for every address)',
  placeholder: 'HOST',
  parse: (raw) => {
    const host = hostOf(textOf(raw));
    if (host === '*') throw new FormatError();
    return host;
  },
  print: String,
  holds: (value): value is string => typeof value === 'string',
};

export const tcpPort: Format<number> = {
  allowed: 'a TCP port from 0 to 65535 (0: any free one)',
  placeholder: 'PORT',
  parse: (raw) => within(wholeNumberOf(raw), 0, MAX_PORT),
  print: String,
  holds: (value): value is number =>
    Number.isInteger(value) && Number(value) >= 0 && Number(value) <= MAX_PORT,
};

/** `29600-29699`, one port, or `0` for any free port, which is null. */
export const portRange: Format<PortRange | null> = {
  allowed: '0 for any free port, one port, or a range such as 29600-29699',
  placeholder: 'FIRST-LAST',
  parse: (raw) => {
    const match = typeof raw === 'string' ? /^(\d{1,5})\s*-\s*(\d{1,5})$/.exec(raw.trim()) : null;
    if (match === null) {
      const port = within(wholeNumberOf(raw), 0, MAX_PORT);
      return port === 0 ? null : { first: port, last: port };
    }
    const first = within(Number(match[1]), 1, MAX_PORT);
    const last = within(Number(match[2]), 1, MAX_PORT);
    if (first > last) throw new FormatError('the first port is above the last');
    return { first, last };
  },
  print: (range) => {
    if (range === null) return '0';
    return range.first === range.last ? String(range.first) : `${range.first}-${range.last}`;
  },
  holds: (value): value is PortRange | null =>
    value === null || (typeof value === 'object' && 'first' in value && 'last' in value),
};

/** Base of an HTTP API, without a slash at its end, so that a path can be appended. */
export const httpUrl: Format<string> = {
  allowed: 'an http:// or https:// URL without credentials, query or fragment',
  placeholder: 'URL',
  parse: (raw) => {
    const text = textOf(raw);
    if (!/^https?:\/\/[^/]/i.test(text) || !URL.canParse(text)) throw new FormatError();
    const url = new URL(text);
    // A password in a URL would end up in logs and on /status; frontend.apiKey is the place for a secret.
    if (url.username !== '' || url.password !== '') throw new FormatError('it holds credentials');
    if (/[?#]/.test(text)) throw new FormatError();
    return (url.origin + url.pathname).replace(/\/+$/, '');
  },
  print: String,
  holds: (value): value is string => typeof value === 'string',
};
