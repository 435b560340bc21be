/**
 * A relay that does to connections what networks, kernels and schedulers do: cuts them into pieces, delays them,
 * stops, resets, closes one half. It stands before or behind steptap, on a unix socket or on TCP.
 */
import { once } from 'node:events';
import net from 'node:net';
import { setTimeout as delay, setImmediate as nextTurn } from 'node:timers/promises';
import type { Address } from '../../proxy/address.js';

/** Read for every piece, so they may be changed while bytes flow. */
export interface Toxics {
  /** Bytes to write at a time, given the offset in its direction; null: as they come. */
  slice: ((offset: number) => number) | null;
  /** Milliseconds before a piece is written. */
  delay: number;
  /** Nothing is read from either side, so that both are held back by the kernel. */
  stopped: boolean;
}

interface Joined {
  readonly accepted: net.Socket;
  readonly dialled: net.Socket;
}

export class ToxicRelay {
  readonly toxics: Toxics;
  readonly #server: net.Server;
  readonly #joined = new Set<Joined>();

  private constructor(upstream: Address, toxics: Toxics) {
    this.toxics = toxics;
    this.#server = net.createServer({ allowHalfOpen: true, noDelay: true }, (accepted) => {
      const dialled = net.connect({ ...upstream, allowHalfOpen: true, noDelay: true });
      const joined = { accepted, dialled };
      this.#joined.add(joined);
      accepted.on('close', () => this.#joined.delete(joined));
      pass(accepted, dialled, toxics);
      pass(dialled, accepted, toxics);
    });
  }

  static async listen(
    at: Address,
    upstream: Address,
    toxics: Partial<Toxics> = {},
  ): Promise<{ readonly relay: ToxicRelay; readonly address: Address }> {
    const relay = new ToxicRelay(upstream, { slice: null, delay: 0, stopped: false, ...toxics });
    relay.#server.listen(at);
    await once(relay.#server, 'listening');
    const bound = relay.#server.address();
    const address =
      'host' in at && typeof bound === 'object' && bound !== null ? { host: at.host, port: bound.port } : at;
    return { relay, address };
  }

  get connections(): number {
    return this.#joined.size;
  }

  stop(): void {
    this.toxics.stopped = true;
    for (const { accepted, dialled } of this.#joined) {
      accepted.pause();
      dialled.pause();
    }
  }

  go(): void {
    this.toxics.stopped = false;
    for (const { accepted, dialled } of this.#joined) {
      accepted.resume();
      dialled.resume();
    }
  }

  /** Cuts all connections: RST on TCP, a plain close on unix sockets. */
  reset(): void {
    for (const { accepted, dialled } of this.#joined) for (const side of [accepted, dialled]) cut(side);
  }

  /** The side that dialled the relay says nothing more, but goes on listening. */
  halfClose(): void {
    for (const { dialled } of this.#joined) dialled.end();
  }

  close(): void {
    this.#server.close();
    this.reset();
  }
}

function pass(from: net.Socket, to: net.Socket, toxics: Toxics): void {
  let offset = 0;
  let work: Promise<void> = Promise.resolve();
  const writeOn = async (chunk: Buffer): Promise<void> => {
    for (let at = 0; at < chunk.length; ) {
      if (toxics.delay > 0) await delay(toxics.delay);
      // Without a turn of the loop a reader in the same process would find the pieces together again.
      else if (toxics.slice !== null) await nextTurn();
      const piece = chunk.subarray(at, at + Math.max(1, toxics.slice?.(offset) ?? chunk.length));
      await new Promise<void>((resolve) => to.write(piece, () => resolve()));
      at += piece.length;
      offset += piece.length;
    }
  };
  from.on('data', (chunk: Buffer) => {
    from.pause();
    work = writeOn(chunk).then(() => {
      if (!toxics.stopped) from.resume();
    });
  });
  from.on('end', () => void work.then(() => to.end()));
  from.on('error', () => cut(to));
  from.on('close', () => void work.then(() => to.destroySoon()));
}

function cut(socket: net.Socket): void {
  if (socket.remoteAddress === undefined) socket.destroy();
  else socket.resetAndDestroy();
}
