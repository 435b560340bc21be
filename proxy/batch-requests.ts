/**
 * Finds the request of each row of a batch. An engine's batches repeat their ids in order, one after the other
 * finished and new ones at the end, so each request remembers which one came behind it:
 *
 *     batch n      a → b → c → d
 *     batch n+1    a → b       d        b is followed by c: does not match, d is looked up, b → d from now on
 *
 * The id's bytes are compared with those of the expected request, and only where that fails is a string made and
 * looked up. Engines that take turns between sets of requests (pipeline parallelism) cost one look-up a batch.
 */
import { EncodedId } from './encoded-id.js';
import type { Request, RequestTracker } from './tracking.js';
import type { OutputBatch } from './vllm/output-batch.js';

export class BatchRequests {
  readonly #tracker: RequestTracker;
  #first: Request | null = null;
  #expected: Request | null = null;
  #previous: Request | null = null;
  /** The last request of this batch that is still in flight; finished ones leave the chain. */
  #last: Request | null = null;

  constructor(tracker: RequestTracker) {
    this.#tracker = tracker;
  }

  /** To be called before the first row of a batch. */
  begin(): void {
    this.#expected = this.#first;
    this.#first = null;
    this.#previous = null;
    this.#last = null;
  }

  /** The request in flight that the id in `row` names; rows are asked for in order. */
  find(batch: OutputBatch, row: number): Request | undefined {
    const start = batch.idStart[row] as number;
    const end = batch.idEnd[row] as number;
    const expected = this.#expected;
    if (expected?.live && expected.encodedId?.equals(batch.view, start, end)) {
      this.#link(expected);
      return expected;
    }
    const request = this.#tracker.find(batch.bytes.toString('utf8', start, end));
    if (request === undefined) return undefined;
    request.encodedId ??= new EncodedId(batch.bytes, start, end);
    this.#link(request);
    return request;
  }

  #link(request: Request): void {
    // Whether the previous row finished its request is known only now.
    if (this.#previous?.live) this.#last = this.#previous;
    if (this.#last === null) this.#first = request;
    else this.#last.next = request;
    this.#previous = request;
    this.#expected = request.next;
  }
}
