/**
 * The buffer that one socket reads into, again and again; what its reader does not take yet stays, and the next read
 * goes behind it:
 *
 *     bytes   ░░░taken░░░│──left──│··········
 *                        ▲start   ▲end        moved to the front before the next read
 *
 * Node's usual way is 64 KiB of fresh memory for each read: page faults, garbage, and pauses of its collector that show
 * in latency and in resident memory.
 */
import net from 'node:net';

/** Enough for the greeting; connections that carry little stay small. */
const FIRST_BYTES = 1024;
/** Room for a read of 64 KiB behind a message of 64 KiB that is not whole yet. */
const MAX_BYTES = 128 * 1024;

export class ReadBuffer implements net.OnReadOpts {
  /**
   * Is shown all bytes that are left, and says how many of them it has taken. They hold until it returns, or for good
   * when it has called `keep`.
   */
  sink: (chunk: Buffer) => number = () => 0;
  #bytes = Buffer.allocUnsafeSlow(FIRST_BYTES);
  #start = 0;
  #end = 0;
  #isKept = false;

  /** Somebody still needs what was taken, such as a write that is under way: it is not overwritten. */
  keep(): void {
    this.#isKept = true;
  }

  /** Shows what is left once more. */
  show(): void {
    if (this.#end > this.#start) this.#start += this.sink(this.#bytes.subarray(this.#start, this.#end));
  }

  // For net.Socket. It asks for `buffer` at first and behind each `callback`, and only there may bytes be moved.
  readonly callback = (length: number): boolean => {
    this.#end += length;
    this.show();
    return true;
  };

  readonly buffer = (): Buffer => {
    const left = this.#end - this.#start;
    const size = this.#bytes.length;
    // Half of it is free for a read, as long as no more than 64 KiB are left.
    const isShort = size < MAX_BYTES && (this.#end === size || left > size / 2);
    if (isShort || this.#isKept) {
      const larger = Buffer.allocUnsafeSlow(isShort ? Math.min(size * 4, MAX_BYTES) : size);
      this.#bytes.copy(larger, 0, this.#start, this.#end);
      this.#bytes = larger;
      this.#isKept = false;
    } else if (left > 0) {
      this.#bytes.copyWithin(0, this.#start, this.#end);
    }
    this.#start = 0;
    this.#end = left;
    return left === 0 ? this.#bytes : this.#bytes.subarray(left);
  };
}

/**
 * The accepted connection as a socket that reads into `reads`. net.Server gives its sockets no `onread`, and a
 * socket takes it only when it is made; so its handle, which has not read yet (`pauseOnConnect`), gets another socket.
 */
export function withReadBuffer(
  accepted: net.Socket,
  reads: ReadBuffer,
  options: net.SocketConstructorOpts,
): net.Socket {
  const { _handle: handle } = accepted as { _handle?: object };
  return new net.Socket({ ...options, handle, onread: reads } as net.SocketConstructorOpts);
}
