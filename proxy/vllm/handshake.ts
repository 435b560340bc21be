/**
 * The start of an engine, as maps on the handshake and request sockets: HELLO and READY (up), INIT (down),
 * registration (up, empty before vLLM 0.20). protocol.md, "Handshake".
 */
import { decode, encode } from '@msgpack/msgpack';
import { Header, skipValues } from './msgpack.js';

/** A string of INIT's address lists and the bytes it takes, header included. */
export interface AddressSpan {
  readonly address: string;
  readonly start: number;
  readonly end: number;
}

/** INIT's two lists; the position in a list is the frontend client's index. */
export interface InitAddresses {
  readonly inputs: readonly AddressSpan[];
  readonly outputs: readonly AddressSpan[];
}

/** The value under `status` of a handshake map (`HELLO`, `READY`), or null when `body` is no such map. */
export function readStatus(body: Buffer): string | null {
  const status = readMap(body)?.['status'];
  return typeof status === 'string' ? status : null;
}

/** `vllm_version` of a registration; null before vLLM 0.23 and for anything else. */
export function readVllmVersion(body: Buffer): string | null {
  const version = readMap(body)?.['vllm_version'];
  return typeof version === 'string' ? version : null;
}

function readMap(body: Buffer): Record<string, unknown> | null {
  try {
    const value = decode(body, { useBigInt64: true });
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : null;
  } catch {
    // Not MessagePack: the caller decides whether that is worth a count.
    return null;
  }
}

/** Where INIT's input and output addresses stand in `body`; null when it is no whole map with both lists. */
export function readInitAddresses(body: Buffer): InitAddresses | null {
  if (skipValues(body, 0, body.length, 1) !== body.length) return null;
  const addressesAt = findKey(body, 0, 'addresses');
  if (addressesAt === null) return null;
  const inputs = readAddressList(body, findKey(body, addressesAt, 'inputs'));
  const outputs = readAddressList(body, findKey(body, addressesAt, 'outputs'));
  return inputs === null || outputs === null ? null : { inputs, outputs };
}

/**
 * `body` with each span's string replaced; every other byte stays. Decoding and encoding the map again would not
 * do: floats would become integers and 64-bit integers lose bits.
 */
export function spliceAddresses(body: Buffer, replacements: ReadonlyMap<AddressSpan, string>): Buffer {
  const spans = [...replacements.keys()].sort((a, b) => a.start - b.start);
  const parts: Uint8Array[] = [];
  let copied = 0;
  for (const span of spans) {
    parts.push(body.subarray(copied, span.start), encode(replacements.get(span)));
    copied = span.end;
  }
  parts.push(body.subarray(copied));
  return Buffer.concat(parts);
}

/** Position of the value under `key` in the map at `at`. The caller has checked that the value there is whole. */
function findKey(body: Buffer, mapAt: number, key: string): number | null {
  const header = new Header();
  if (!header.map(body, mapAt, body.length)) return null;
  let at = header.at;
  for (let pairs = header.size; pairs > 0; pairs--) {
    const valueAt = skipValues(body, at, body.length, 1);
    if (header.string(body, at, body.length) && body.toString('utf8', header.at, valueAt) === key)
      return valueAt;
    at = skipValues(body, valueAt, body.length, 1);
  }
  return null;
}

function readAddressList(body: Buffer, listAt: number | null): AddressSpan[] | null {
  const header = new Header();
  if (listAt === null || !header.array(body, listAt, body.length)) return null;
  const spans: AddressSpan[] = [];
  let at = header.at;
  for (let left = header.size; left > 0; left--) {
    if (!header.string(body, at, body.length)) return null;
    const end = header.at + header.size;
    spans.push({ address: body.toString('utf8', header.at, end), start: at, end });
    at = end;
  }
  return spans;
}
