/** Reads an output connection: the first frame of each message is a batch, or the raw words ENGINE_CORE_DEAD. */
import type { Flow } from './flow.js';
import type { Frontend } from './frontend.js';
import { MessageReader } from './message-reader.js';
import type { StepCounter } from './step-counter.js';
import type { Telemetry } from './telemetry.js';
import { type DecodeFault, OutputBatch } from './vllm/output-batch.js';
import { walker } from './vllm/output-walker.js';
import type { Ready } from './zmtp/ready.js';

/** Of a chunk; a gathered frame can be larger. */
const MAX_LOADED_BYTES = 128 * 1024;
const NOTHING = Buffer.alloc(0);
const ENGINE_CORE_DEAD = Buffer.from('ENGINE_CORE_DEAD', 'latin1');

export class OutputsReader extends MessageReader {
  readonly #telemetry: Telemetry;
  readonly #frontend: Frontend;
  readonly #maxFrameBytes: number;
  readonly #onEngine: (index: number) => void;
  readonly #batch: OutputBatch;
  readonly #counter: StepCounter;
  /** The first frame held a batch; it counts once the message is whole. */
  #hasBatch = false;
  /** That frame: bytes[frameStart..frameEnd). */
  #frame: Buffer = NOTHING;
  #frameStart = 0;
  #frameEnd = 0;
  /** Whether its message outlives the chunk: it is then kept here and read again. */
  #isKept = false;
  /** What the walker has loaded, and where. */
  #loaded: Buffer | null = null;
  #base = 0;
  #engine: number | null = null;

  constructor(
    flow: Flow,
    onReady: (ready: Ready) => void,
    frontend: Frontend,
    client: string,
    telemetry: Telemetry,
    maxFrameBytes: number,
    onEngine: (index: number) => void,
  ) {
    super(flow, onReady);
    this.#frontend = frontend;
    this.#telemetry = telemetry;
    this.#maxFrameBytes = maxFrameBytes;
    this.#onEngine = onEngine;
    this.#counter = frontend.stepCounter(client);
    this.#batch = new OutputBatch(this.#counter.tracker);
  }

  wants(index: number, length: number): number {
    if (index > 0) return 0;
    this.#hasBatch = false;
    if (length === 0) this.#fail('empty');
    else if (length > this.#maxFrameBytes) this.#fail('frame_too_large');
    else return length;
    return 0;
  }

  frame(_index: number, bytes: Buffer, start: number, end: number): void {
    const fault = this.#read(bytes, start, end);
    if (fault === null) {
      this.#hasBatch = true;
      this.#isKept = false;
      this.#frame = bytes;
      this.#frameStart = start;
      this.#frameEnd = end;
    } else if (ENGINE_CORE_DEAD.equals(bytes.subarray(start, end))) this.#engineDied();
    else this.#fail(fault);
  }

  override message(frames: number): void {
    super.message(frames);
    if (!this.#hasBatch) return;
    this.#hasBatch = false;
    if (this.#isKept) this.#batch.read(this.#frame, 0, this.#frame.length);
    this.#frame = NOTHING;
    if (this.#engine === null) {
      this.#engine = this.#batch.engineIndex;
      this.#onEngine(this.#engine);
    }
    this.#counter.count(this.#batch);
  }

  pushed(): void {
    this.#loaded = null;
    if (!this.#hasBatch || this.#isKept) return;
    this.#isKept = true;
    this.#frame = Buffer.from(this.#frame.subarray(this.#frameStart, this.#frameEnd));
  }

  /** A chunk of small frames is brought into the walker's memory once for all of them. */
  #read(bytes: Buffer, start: number, end: number): DecodeFault | null {
    if (bytes.length > MAX_LOADED_BYTES) return this.#batch.read(bytes, start, end);
    if (this.#loaded !== bytes) {
      this.#loaded = bytes;
      this.#base = walker.load(bytes);
    }
    return this.#batch.readLoaded(this.#base, start, end);
  }

  #engineDied(): void {
    this.#frontend.engineDied(this.#engine);
  }

  #fail(reason: string): void {
    this.#telemetry.add('decode_errors_total', { kind: 'outputs', reason });
    this.#frontend.undecodable('outputs', reason);
  }
}
