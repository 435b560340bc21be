/** What the readers of all kinds of connections share: READY commands and the number of messages. */
import type { Flow } from './flow.js';
import type { FrameSink } from './zmtp/frame-cutter.js';
import { type Ready, readReady } from './zmtp/ready.js';

export abstract class MessageReader implements FrameSink {
  protected readonly flow: Flow;
  readonly #onReady: (ready: Ready) => void;

  constructor(flow: Flow, onReady: (ready: Ready) => void) {
    this.flow = flow;
    this.#onReady = onReady;
  }

  abstract wants(index: number, length: number): number;
  abstract frame(index: number, bytes: Buffer, start: number, end: number, length: number): void;

  message(_frames: number): void {
    this.flow.messages++;
  }

  command(body: Buffer): void {
    const ready = readReady(body);
    if (ready !== null) this.#onReady(ready);
  }
}

/** Counts messages and wants nothing of them. */
export class IdleReader extends MessageReader {
  wants(): number {
    return 0;
  }

  frame(): void {}
}
