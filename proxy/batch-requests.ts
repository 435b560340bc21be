/**
 * Finds the request of each row of a batch. An engine's batches repeat their ids in order, one after the other
 * finished and new ones at the end, so the id's bytes are first compared with those that came in the same place
 * of the last batch; only where that fails is a string made and looked up.
 */

import type { Request, RequestTracker } from './tracking.js';
import type { OutputBatch } from './vllm/output-batch.js';

interface Place {
  /** A copy: the frame it came in must not be kept alive by it. */
  readonly id: Buffer;
  readonly request: Request;
}

export class BatchRequests {
  readonly #tracker: RequestTracker;
  #last: Place[] = [];
  #current: Place[] = [];
  /** Place in the last batch where the next id is expected. */
  #expected = 0;

  constructor(tracker: RequestTracker) {
    this.#tracker = tracker;
  }

  /** To be called before the first row of a batch. */
  begin(): void {
    const spent = this.#last;
    this.#last = this.#current;
    this.#current = spent;
    this.#current.length = 0;
    this.#expected = 0;
  }

  /** The request in flight that the id in `row` names; rows are asked for in order. */
  find(batch: OutputBatch, row: number): Request | undefined {
    const { bytes } = batch;
    const start = batch.idStart[row] as number;
    const end = batch.idEnd[row] as number;
    const last = this.#last;
    for (let place = this.#expected; place < last.length; place++) {
      const candidate = last[place] as Place;
      if (!candidate.request.live) continue;
      if (!matches(candidate.id, bytes, start, end)) break;
      this.#expected = place + 1;
      this.#current.push(candidate);
      return candidate.request;
    }
    const request = this.#tracker.find(bytes.toString('utf8', start, end));
    if (request !== undefined) this.#current.push({ id: Buffer.from(bytes.subarray(start, end)), request });
    return request;
  }
}

/** A loop beats Buffer.compare for ids of some 45 bytes: no call out of JavaScript. */
function matches(id: Buffer, bytes: Buffer, start: number, end: number): boolean {
  const length = id.length;
  if (length !== end - start) return false;
  for (let i = 0; i < length; i++) if (id[i] !== bytes[start + i]) return false;
  return true;
}
