/**
 * The buffer that one socket reads into, again and again. Node's usual way is 64 KiB of fresh memory for each read:
 * page faults, garbage and pauses of its collector that show in latency and in resident memory.
 */
import net from 'node:net';

const FIRST_BYTES = 1024;
const MAX_BYTES = 64 * 1024;

export class ReadBuffer implements net.OnReadOpts {
  /** Takes what has been read. The bytes hold until it returns, unless `release` was called. */
  sink: (chunk: Buffer) => void = () => undefined;
  #bytes = Buffer.allocUnsafeSlow(FIRST_BYTES);

  /** Leaves the last chunk to whoever still needs it, such as a write that is under way. */
  release(): void {
    this.#bytes = Buffer.allocUnsafeSlow(this.#bytes.length);
  }

  // What net.Socket asks: called behind each read, for the next one.
  readonly buffer = (): Buffer => this.#bytes;

  readonly callback = (length: number, bytes: Uint8Array): boolean => {
    this.sink((bytes as Buffer).subarray(0, length));
    // Connections that carry little keep a small one.
    if (length === this.#bytes.length && length < MAX_BYTES) this.#bytes = Buffer.allocUnsafeSlow(length * 4);
    return true;
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
