/** One client of the stand-in frontend, as an API server is one: a request socket, an output socket, its requests. */
import { Pull, Router } from 'zeromq';
import type { OpenRequests } from './frontend-histogram.js';
import { abortFrames, engineIdentity, FINISH_ABORT } from './messages.js';
import { Outbox, PULL_OPTIONS, ROUTER_OPTIONS } from './sockets.js';

export interface Completion {
  readonly id: string;
  readonly tokens: readonly number[];
  /** vLLM's number: 0 stop, 1 length, 2 abort. */
  readonly finishReason: number;
}

export type OnTokens = (tokens: readonly number[]) => void;

interface Pending {
  readonly engine: number;
  readonly tokens: number[];
  readonly onTokens: OnTokens | undefined;
  readonly resolve: (completion: Completion) => void;
  readonly reject: (error: Error) => void;
}

/** A ROUTER as the Rust frontend has it (`handover`: takes over, refuses what cannot go), or the Python one. */
export function openRouter(handover: boolean): Router {
  return new Router({ ...ROUTER_OPTIONS, handover, mandatory: handover });
}

export class FrontendClient {
  readonly requests: Router;
  readonly outputs = new Pull(PULL_OPTIONS);
  readonly outbox: Outbox;
  /** Addresses as INIT names them. */
  input = '';
  output = '';
  /** Engines that have registered on the request socket. */
  readonly registered = new Set<number>();
  /** Requests that the histogram counts. */
  readonly open: OpenRequests = new Map();
  readonly #pending = new Map<string, Pending>();

  constructor(handover: boolean) {
    this.requests = openRouter(handover);
    this.outbox = new Outbox(this.requests);
  }

  send(engine: number, frames: readonly Uint8Array[]): Promise<void> {
    return this.outbox.send([engineIdentity(engine), ...frames]);
  }

  /** Resolves when request `id` is finished or aborted. `promptLength` is in tokens. */
  expect(id: string, engine: number, promptLength: number, onTokens?: OnTokens): Promise<Completion> {
    this.open.set(id, { uncountedPrompt: promptLength });
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { engine, tokens: [], onTokens, resolve, reject });
    });
  }

  /** Takes one EngineCoreOutput whose finish_reason stands at `finishAt`. */
  deliver(row: unknown, finishAt: number): void {
    if (!Array.isArray(row)) return;
    const id = String(row[0]);
    const pending = this.#pending.get(id);
    if (pending === undefined) return;
    const tokens = Array.isArray(row[1]) ? row[1].map(Number) : [];
    pending.tokens.push(...tokens);
    pending.onTokens?.(tokens);
    const finishReason: unknown = row[finishAt] ?? null;
    if (finishReason === null) return;
    this.#pending.delete(id);
    pending.resolve({ id, tokens: pending.tokens, finishReason: Number(finishReason) });
  }

  /** Gives those of the requests up that are its own; one ABORT for each engine that has some. */
  abort(ids: readonly string[]): { engine: number; frames: Uint8Array[] }[] {
    const byEngine = new Map<number, string[]>();
    for (const id of ids) {
      const pending = this.#pending.get(id);
      if (pending === undefined) continue;
      this.#pending.delete(id);
      this.open.delete(id);
      byEngine.set(pending.engine, [...(byEngine.get(pending.engine) ?? []), id]);
      pending.resolve({ id, tokens: pending.tokens, finishReason: FINISH_ABORT });
    }
    return [...byEngine].map(([engine, own]) => ({ engine, frames: abortFrames(own) }));
  }

  fail(id: string, error: Error): void {
    this.open.delete(id);
    this.#pending.get(id)?.reject(error);
    this.#pending.delete(id);
  }

  failAll(reason: string): void {
    for (const { reject } of this.#pending.values()) reject(new Error(reason));
    this.#pending.clear();
  }

  close(): void {
    this.requests.close();
    this.outputs.close();
    this.failAll('the frontend stopped');
  }
}
