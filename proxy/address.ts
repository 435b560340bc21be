/** Where a socket listens or is dialled: a unix socket path, or a TCP host and port. */
import { SteptapError } from './errors.js';

export type Address = { readonly path: string } | { readonly host: string; readonly port: number };

/** sun_path holds 108 bytes with its final zero (unix(7)). */
export const MAX_SOCKET_PATH_BYTES = 107;

/** Reads ZeroMQ's notation: `ipc:///path`, `tcp://host:port`, `tcp://[v6]:port`. Null for anything else. */
export function parseAddress(text: string): Address | null {
  if (text.startsWith('ipc://') && text.length > 6) return { path: text.slice(6) };
  const match = /^tcp:\/\/(?:\[([^\]]+)\]|([^:[\]]+)):(\d{1,5})$/.exec(text);
  const host = match?.[1] ?? match?.[2];
  const port = Number(match?.[3]);
  if (host === undefined || port > 65_535) return null;
  return { host, port };
}

/** Like `parseAddress`, for text that was checked before; throws STEPTAP_ADDRESS. */
export function requireAddress(text: string): Address {
  const address = parseAddress(text);
  if (address === null) {
    throw new SteptapError(
      'STEPTAP_ADDRESS',
      `${text} is no address: expected tcp://host:port or ipc:///path`,
    );
  }
  return address;
}

export function formatAddress(address: Address): string {
  if ('path' in address) return `ipc://${address.path}`;
  const host = address.host.includes(':') ? `[${address.host}]` : address.host;
  return `tcp://${host}:${address.port}`;
}
