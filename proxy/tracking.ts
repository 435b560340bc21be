/**
 * Which requests of one frontend client are in flight. semantics.md S3, S7, S13.
 */
import { type SlotOwner, walker } from './vllm/output-walker.js';

/** A request between its ADD and its finish or ABORT. */
export interface Request {
  readonly id: string;
  /** len(prompt_token_ids) of the ADD; 0 when unknown. */
  readonly promptLength: number;
  /** Whether `tracking.requestIds` selects it. Others are followed as well, so that their outputs cost no look-up. */
  readonly selected: boolean;
  /** Prefill stats have been seen: further ones are a repetition (S10). */
  prefillReported: boolean;
  /** The uncached prompt has been counted, at the first output of an engine without prefill stats (S11). */
  promptCounted: boolean;
  /** Where the walker knows it, once it stood in a batch; 0: nowhere. */
  slot: number;
}

/**
 * Ids remembered as closed while requests from before a restart may be adopted. vLLM makes ids unique, and
 * outputs behind an ABORT come within a step or two, so the oldest can go.
 */
const MAX_CLOSED_IDS = 65_536;

let owners = 0;

export class RequestTracker implements SlotOwner {
  /** Index of the frontend client, as decimal text (a label). */
  readonly client: string;
  readonly slotOwner = owners++;
  readonly #selects: (id: string) => boolean;
  readonly #requests = new Map<string, Request>();
  readonly #bySlot = new Map<number, Request>();
  #isRetired = false;
  /** Ids closed since the restart; null while nothing is to be adopted. */
  #closed: Set<string> | null = null;
  #selected = 0;
  #adopted = 0;

  constructor(client: string, selects: (id: string) => boolean) {
    this.client = client;
    this.#selects = selects;
  }

  /** Requests in flight that `tracking.requestIds` selects. */
  get trackedCount(): number {
    return this.#selected;
  }

  /** Requests from before the restart, adopted and selected. */
  get adoptedCount(): number {
    return this.#adopted;
  }

  /** From now on an id never seen before is one from before the restart and is adopted (S13). */
  adoptUnknown(): void {
    this.#closed ??= new Set();
  }

  /** A second ADD of an id in flight changes nothing. */
  add(id: string, promptLength: number): void {
    if (!this.#requests.has(id)) this.#open(id, promptLength);
  }

  /** The request with this id, adopted if need be; undefined when it is not in flight. */
  find(id: string): Request | undefined {
    const request = this.#requests.get(id);
    if (request !== undefined || this.#closed === null || this.#closed.has(id)) return request;
    // Its first output may have passed before the restart: without a prompt length none is counted at this one.
    const adopted = this.#open(id, 0);
    if (adopted.selected) this.#adopted++;
    return adopted;
  }

  slotOf(id: string): number {
    const request = this.#requests.get(id);
    if (request === undefined || this.#isRetired) return 0;
    if (request.slot === 0) {
      request.slot = walker.allocateSlot(this.slotOwner, id, request.selected);
      if (request.slot !== 0) this.#bySlot.set(request.slot, request);
    }
    return request.slot;
  }

  /** The request that has this slot. */
  at(slot: number): Request | undefined {
    return this.#bySlot.get(slot);
  }

  /** Another vLLM has come: what still flows from the old one is counted, but takes no more room. */
  retire(): void {
    this.#isRetired = true;
    for (const request of this.#bySlot.values()) this.#leaveSlot(request);
  }

  /** Finished or aborted; an id that is not in flight is remembered as closed all the same. */
  close(id: string): void {
    const request = this.#requests.get(id);
    if (request !== undefined) {
      this.#leaveSlot(request);
      if (request.selected) this.#selected--;
      this.#requests.delete(id);
    }
    if (this.#closed !== null) this.#remember(this.#closed, id);
  }

  #leaveSlot(request: Request): void {
    if (request.slot === 0) return;
    walker.freeSlot(request.slot);
    this.#bySlot.delete(request.slot);
    request.slot = 0;
  }

  #open(id: string, promptLength: number): Request {
    const selected = this.#selects(id);
    const request: Request = {
      id,
      promptLength,
      selected,
      prefillReported: false,
      promptCounted: false,
      slot: 0,
    };
    this.#requests.set(id, request);
    if (selected) this.#selected++;
    return request;
  }

  #remember(closed: Set<string>, id: string): void {
    closed.add(id);
    if (closed.size <= MAX_CLOSED_IDS) return;
    const [oldest] = closed;
    if (oldest !== undefined) closed.delete(oldest);
  }
}
