/** Read what an engine says on a handshake connection. */
import type { Logger } from 'pino';
import type { Flow } from './flow.js';
import { MessageReader } from './message-reader.js';
import { readStatus } from './vllm/handshake.js';
import type { Ready } from './zmtp/ready.js';

const MAX_STATUS_BYTES = 64 * 1024;

/** HELLO and READY, for the log. */
export class HandshakeReader extends MessageReader {
  readonly #logger: Logger;

  constructor(flow: Flow, onReady: (ready: Ready) => void, logger: Logger) {
    super(flow, onReady);
    this.#logger = logger;
  }

  wants(_index: number, length: number): number {
    return length <= MAX_STATUS_BYTES ? length : 0;
  }

  frame(_index: number, bytes: Buffer, start: number, end: number): void {
    const status = readStatus(bytes.subarray(start, end));
    this.#logger.debug({ status: status ?? 'unreadable' }, 'engine handshake');
  }
}

/** The first message of a connection of unknown kind: HELLO makes it a handshake, anything else does not. */
export class HelloReader extends MessageReader {
  readonly #onFirstMessage: (isHello: boolean) => void;
  #isHello = false;
  #hasDecided = false;

  constructor(flow: Flow, onReady: (ready: Ready) => void, onFirstMessage: (isHello: boolean) => void) {
    super(flow, onReady);
    this.#onFirstMessage = onFirstMessage;
  }

  wants(index: number, length: number): number {
    return this.#hasDecided || index > 0 || length > MAX_STATUS_BYTES ? 0 : length;
  }

  frame(_index: number, bytes: Buffer, start: number, end: number): void {
    this.#isHello = readStatus(bytes.subarray(start, end)) === 'HELLO';
  }

  override message(frames: number): void {
    super.message(frames);
    if (this.#hasDecided) return;
    this.#hasDecided = true;
    this.#onFirstMessage(this.#isHello);
  }
}
