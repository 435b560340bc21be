/** Read a request connection: registration towards the frontend, ADD and ABORT towards the engine. */
import type { Flow } from './flow.js';
import { MessageReader } from './message-reader.js';
import type { Telemetry } from './telemetry.js';
import type { RequestTracker } from './tracking.js';
import { readVllmVersion } from './vllm/handshake.js';
import { ABORT, ADD, ADD_PREFIX_BYTES, type AddedRequest, readAbort, readAdd } from './vllm/requests.js';
import type { Ready } from './zmtp/ready.js';

/** Frame 0 is the request's type, frame 1 its payload, the others auxiliary. */
const TYPE_FRAME = 0;
const PAYLOAD_FRAME = 1;

export class AddAbortReader extends MessageReader {
  readonly #tracker: RequestTracker;
  readonly #telemetry: Telemetry;
  readonly #maxFrameBytes: number;
  readonly #onRequest: () => void;
  #type = -1;
  // Read from the payload, done once the message is whole.
  #added: AddedRequest | null = null;
  #aborted: readonly string[] | null = null;

  constructor(
    flow: Flow,
    onReady: (ready: Ready) => void,
    tracker: RequestTracker,
    telemetry: Telemetry,
    maxFrameBytes: number,
    onRequest: () => void,
  ) {
    super(flow, onReady);
    this.#tracker = tracker;
    this.#telemetry = telemetry;
    this.#maxFrameBytes = maxFrameBytes;
    this.#onRequest = onRequest;
  }

  wants(index: number, length: number): number {
    if (index === TYPE_FRAME) {
      this.#type = -1;
      return length === 1 ? 1 : 0;
    }
    if (index !== PAYLOAD_FRAME) return 0;
    if (this.#type !== ADD && this.#type !== ABORT) return 0;
    if (length === 0) this.#fail('empty');
    if (this.#type === ADD) return Math.min(length, ADD_PREFIX_BYTES);
    if (length <= this.#maxFrameBytes) return length;
    this.#fail('frame_too_large');
    return 0;
  }

  frame(index: number, bytes: Buffer, start: number, end: number): void {
    if (index === TYPE_FRAME) {
      this.#type = bytes[start] as number;
    } else if (this.#type === ADD) {
      const added = readAdd(bytes, start, end);
      if (typeof added === 'string') this.#fail(added);
      else this.#added = added;
    } else {
      const ids = readAbort(bytes, start, end);
      if (typeof ids === 'string') this.#fail(ids);
      else this.#aborted = ids;
    }
  }

  override message(frames: number): void {
    super.message(frames);
    this.#onRequest();
    if (this.#added !== null) this.#tracker.add(this.#added.id, this.#added.promptLength);
    if (this.#aborted !== null) for (const id of this.#aborted) this.#tracker.close(id);
    this.#added = null;
    this.#aborted = null;
  }

  #fail(reason: string): void {
    this.#telemetry.add('decode_errors_total', { kind: 'requests', reason });
  }
}

/** Registration is small; the newest has some 25 keys in half a kilobyte. */
const MAX_REGISTRATION_BYTES = 64 * 1024;

export class RegistrationReader extends MessageReader {
  readonly #onRegistration: (vllmVersion: string | null) => void;

  constructor(
    flow: Flow,
    onReady: (ready: Ready) => void,
    onRegistration: (vllmVersion: string | null) => void,
  ) {
    super(flow, onReady);
    this.#onRegistration = onRegistration;
  }

  wants(_index: number, length: number): number {
    return length <= MAX_REGISTRATION_BYTES ? length : 0;
  }

  frame(_index: number, bytes: Buffer, start: number, end: number): void {
    this.#onRegistration(readVllmVersion(bytes.subarray(start, end)));
  }
}
