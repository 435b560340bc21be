/**
 * What a frontend sends to an engine: `[type, payload, auxiliary…]`. type is one byte, payload MessagePack:
 * ADD an array of request_id, prompt_token_ids, …; ABORT an array of ids. protocol.md, "Requests".
 */

import { Header, isArray, MALFORMED, NIL, skipValues } from './msgpack.js';
import type { DecodeFault } from './output-batch.js';

export const ADD = 0x00;
export const ABORT = 0x01;

/** An ADD's id stands in front of the prompt, so this much is enough, however long the prompt is. */
export const ADD_PREFIX_BYTES = 16 * 1024;

export interface AddedRequest {
  readonly id: string;
  /** len(prompt_token_ids); 0 when the prompt came as embeddings (nil). */
  readonly promptLength: number;
}

/** Reads the first two elements of an ADD from `bytes[start..end)`, which may be cut off behind them. */
export function readAdd(bytes: Buffer, start: number, end: number): AddedRequest | DecodeFault {
  if (start === end) return 'empty';
  const header = new Header();
  if (!header.array(bytes, start, end) || header.size < 2) return faultAt(bytes, start, end);
  if (!header.string(bytes, header.at, end)) return faultAt(bytes, start, end);
  const idEnd = header.at + header.size;
  if (idEnd >= end) return 'truncated';
  const id = bytes.toString('utf8', header.at, idEnd);
  if (header.array(bytes, idEnd, end)) return { id, promptLength: header.size };
  if (bytes[idEnd] === NIL) return { id, promptLength: 0 };
  return isArray(bytes[idEnd] as number) ? 'truncated' : 'invalid_shape';
}

/** The ids an ABORT names. */
export function readAbort(bytes: Buffer, start: number, end: number): string[] | DecodeFault {
  if (start === end) return 'empty';
  const after = skipValues(bytes, start, end, 1);
  if (after < 0) return after === MALFORMED ? 'malformed' : 'truncated';
  if (after !== end) return 'trailing_bytes';
  const header = new Header();
  if (!header.array(bytes, start, end)) return 'invalid_shape';
  const ids: string[] = [];
  let at = header.at;
  for (let left = header.size; left > 0; left--) {
    if (!header.string(bytes, at, end)) return 'invalid_shape';
    at = header.at + header.size;
    ids.push(bytes.toString('utf8', header.at, at));
  }
  return ids;
}

function faultAt(bytes: Buffer, start: number, end: number): DecodeFault {
  const after = skipValues(bytes, start, end, 1);
  if (after >= 0) return 'invalid_shape';
  return after === MALFORMED ? 'malformed' : 'truncated';
}
