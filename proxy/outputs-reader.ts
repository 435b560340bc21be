/** Reads an output connection: the first frame of each message is a batch, or the raw words ENGINE_CORE_DEAD. */
import type { Flow } from './flow.js';
import type { Frontend } from './frontend.js';
import { MessageReader } from './message-reader.js';
import type { StepCounter } from './step-counter.js';
import type { Telemetry } from './telemetry.js';
import { OutputBatch } from './vllm/output-batch.js';
import type { Ready } from './zmtp/ready.js';

const ENGINE_CORE_DEAD = Buffer.from('ENGINE_CORE_DEAD', 'latin1');

export class OutputsReader extends MessageReader {
  readonly #telemetry: Telemetry;
  readonly #frontend: Frontend;
  readonly #maxFrameBytes: number;
  readonly #onEngine: (index: number) => void;
  readonly #batch = new OutputBatch();
  readonly #counter: StepCounter;
  /** The first frame held a batch; it counts once the message is whole. */
  #hasBatch = false;
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
    const fault = this.#batch.read(bytes, start, end);
    if (fault === null) this.#hasBatch = true;
    else if (ENGINE_CORE_DEAD.equals(bytes.subarray(start, end))) this.#engineDied();
    else this.#fail(fault);
  }

  override message(frames: number): void {
    super.message(frames);
    if (!this.#hasBatch) return;
    this.#hasBatch = false;
    if (this.#engine === null) {
      this.#engine = this.#batch.engineIndex;
      this.#onEngine(this.#engine);
    }
    this.#counter.count(this.#batch);
  }

  #engineDied(): void {
    this.#frontend.engineDied(this.#engine);
  }

  #fail(reason: string): void {
    this.#telemetry.add('decode_errors_total', { kind: 'outputs', reason });
    this.#frontend.undecodable('outputs', reason);
  }
}
