/**
 * The WebAssembly module that reads batches (proxy/wasm/output-walker.ts), and its memory: the frame to be read, the
 * rows that a reading listed, and a slot for each request in flight that has stood in a batch.
 *
 * Blocks of memory are handed out one behind the other and never given back; slots are used again.
 */
import { readFileSync } from 'node:fs';

/** Ids that do not fit into a slot are looked up for each output. vLLM's own are 22 to 53 bytes long. */
const MAX_SLOT_ID_BYTES = 112;

// Layouts, as in the module.
const SLOT_BYTES = 128;
const SLOT_FLAGS = 8;
const SLOT_ID = 16;
const SELECTED = 1;
const PROMPT_COUNTED = 2;
const ROW_BYTES = 40;

const PAGE_BYTES = 64 * 1024;
/** The module's own constants lie below. */
const FIRST_FREE = 4096;
/** What the module may look at past the end of a frame; see USUAL_ROW_BYTES there. */
const PADDING_BYTES = 512;
const FIRST_FRAME_BYTES = 128 * 1024;
const FIRST_ROWS = 512;
/** Of the walker that stays, so that no frame makes it large for good. */
const MAX_SHARED_ROWS = 16 * 1024;
const LARGE_KEPT_MS = 10_000;
const SLOTS_AT_ONCE = 256;

/** Failures of `read`, as in the module. */
export const TRUNCATED = -1;
export const MALFORMED = -2;
export const LIST_FULL = -4;

/** Whose requests the ids in a batch name. */
export interface SlotOwner {
  /** Number that no other owner has. */
  readonly slotOwner: number;
  /** Slot of the request in flight with this id; 0 when there is none. */
  slotOf(id: string): number;
}

interface Exports {
  readonly memory: { readonly buffer: ArrayBuffer; grow(pages: number): number };
  resultAt(): number;
  read(start: number, end: number, owner: number, first: number, rows: number, room: number): number;
  stringLength(at: number, end: number): number;
  stringStart(): number;
}

/** Of the types of WebAssembly, which come with the DOM's, what is needed here. */
declare const WebAssembly: {
  readonly Module: new (bytes: Uint8Array) => object;
  readonly Instance: new (module: object, imports: object) => { readonly exports: object };
};

const module = new WebAssembly.Module(readFileSync(new URL('../wasm/output-walker.wasm', import.meta.url)));

export class OutputWalker {
  /** All memory. */
  bytes!: Buffer;
  /** The same in words; positions are a quarter. */
  words!: Uint32Array;
  /** The same in doubles; positions are an eighth. */
  doubles!: Float64Array;
  /** Where the module leaves what it found. */
  readonly resultAt: number;
  /** Where the listed rows begin. */
  rowsAt: number;

  readonly #exports: Exports;
  #next = FIRST_FREE;
  #frameAt: number;
  #frameBytes = FIRST_FRAME_BYTES;
  #rows = FIRST_ROWS;
  readonly #maxRows: number;
  readonly #freeSlots: number[] = [];
  #owner: SlotOwner | null = null;

  /** `maxRows`: of a frame that lists more of them nothing is said but that. */
  constructor(maxRows: number) {
    this.#maxRows = maxRows;
    const slotOf = (start: number, end: number): number =>
      this.#owner === null ? 0 : this.#owner.slotOf(this.text(start, end));
    this.#exports = new WebAssembly.Instance(module, { 'output-walker': { slotOf } }).exports as Exports;
    this.#view();
    this.resultAt = this.#exports.resultAt();
    this.#frameAt = this.#reserve(FIRST_FRAME_BYTES + PADDING_BYTES);
    this.rowsAt = this.#reserve(FIRST_ROWS * ROW_BYTES);
  }

  /** Brings bytes in, in the place of those before; returns the address of the first. */
  load(bytes: Uint8Array): number {
    if (bytes.length > this.#frameBytes) {
      this.#frameBytes = Math.max(bytes.length, this.#frameBytes * 2);
      this.#frameAt = this.#reserve(this.#frameBytes + PADDING_BYTES);
    }
    this.bytes.set(bytes, this.#frameAt);
    return this.#frameAt;
  }

  /** Reads the frame at `start`, an address; returns 0, or the failure. `first`: slot of the first row that is expected. */
  read(start: number, end: number, owner: SlotOwner | null, first: number): number {
    this.#owner = owner;
    const whose = owner === null ? 0 : owner.slotOwner << 8;
    for (;;) {
      const fault = this.#exports.read(start, end, whose, first, this.rowsAt, this.#rows);
      if (fault !== LIST_FULL || this.#rows * 2 > this.#maxRows) return fault;
      this.#rows *= 2;
      this.rowsAt = this.#reserve(this.#rows * ROW_BYTES);
    }
  }

  /** The strings that follow each other from `at` on. */
  strings(from: number, end: number, count: number): string[] {
    let at = from;
    return Array.from({ length: count }, () => {
      const length = this.#exports.stringLength(at, end);
      const start = this.#exports.stringStart();
      at = start + length;
      return this.text(start, at);
    });
  }

  text(start: number, end: number): string {
    return this.bytes.toString('utf8', start, end);
  }

  /** A slot for the request with this id; 0 when the id does not fit into one. */
  allocateSlot(owner: number, id: string, selected: boolean): number {
    const length = Buffer.byteLength(id);
    if (length > MAX_SLOT_ID_BYTES || length === 0) return 0;
    if (this.#freeSlots.length === 0) {
      const block = this.#reserve(SLOTS_AT_ONCE * SLOT_BYTES);
      for (let i = SLOTS_AT_ONCE - 1; i >= 0; i--) this.#freeSlots.push(block + i * SLOT_BYTES);
    }
    const slot = this.#freeSlots.pop() as number;
    this.bytes.fill(0, slot, slot + SLOT_BYTES);
    this.bytes.write(id, slot + SLOT_ID);
    this.words[slot / 4] = (owner << 8) | length;
    this.words[(slot + SLOT_FLAGS) / 4] = selected ? SELECTED : 0;
    return slot;
  }

  freeSlot(slot: number): void {
    this.words[slot / 4] = 0;
    this.#freeSlots.push(slot);
  }

  /** From now on `num_cached_tokens` in this request's outputs needs no judgement. */
  markPromptCounted(slot: number): void {
    const at = (slot + SLOT_FLAGS) / 4;
    this.words[at] = (this.words[at] as number) | PROMPT_COUNTED;
  }

  #reserve(bytes: number): number {
    const at = this.#next;
    this.#next = Math.ceil((at + bytes) / 16) * 16;
    const missing = this.#next - this.bytes.length;
    if (missing > 0) {
      this.#exports.memory.grow(Math.ceil(missing / PAGE_BYTES));
      this.#view();
    }
    return at;
  }

  /** A memory that has grown is another buffer. */
  #view(): void {
    const { buffer } = this.#exports.memory;
    this.bytes = Buffer.from(buffer);
    this.words = new Uint32Array(buffer);
    this.doubles = new Float64Array(buffer);
  }
}

/** The one that all connections use: a frame is read and counted in one go. */
export const walker = new OutputWalker(MAX_SHARED_ROWS);

let large: OutputWalker | null = null;
let dropLarge: NodeJS.Timeout | undefined;

/** For frames that would make the shared one large, whose memory never shrinks; it goes when none of them come any more. */
export function largeWalker(): OutputWalker {
  large ??= new OutputWalker(Number.POSITIVE_INFINITY);
  clearTimeout(dropLarge);
  dropLarge = setTimeout(() => {
    large = null;
  }, LARGE_KEPT_MS).unref();
  return large;
}
