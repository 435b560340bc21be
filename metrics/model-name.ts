import type { Logger } from 'pino';
import { Agent, request } from 'undici';
import { messageOf } from '../proxy/errors.js';

const INITIAL_DELAY_MS = 250;
const MAX_DELAY_MS = 5_000;
/** For a whole answer, and within undici for connecting, headers and each piece of the body. */
const ATTEMPT_TIMEOUT_MS = 5_000;
const WARN_INTERVAL_MS = 60_000;
/** vLLM's own answer has some hundred bytes, with many LoRA modules some thousand. */
const MAX_BODY_BYTES = 1024 * 1024;

export interface ModelNameDiscoveryOptions {
  /** Base of the frontend's HTTP API; `/v1/models` is appended. */
  readonly url: string;
  /** Sent as bearer token, never logged. */
  readonly apiKey: string | null;
  readonly logger: Logger;
  /** Called once, with the first served model's id. */
  readonly onName: (name: string) => void;
  readonly initialDelayMs?: number;
  readonly maxDelayMs?: number;
  readonly attemptTimeoutMs?: number;
  readonly warnIntervalMs?: number;
}

/** The frontend answered, but with something that more patience alone will not turn into a name. */
class BadAnswer extends Error {
  readonly kind: 'unauthorized' | 'shape';

  constructor(kind: BadAnswer['kind'], message: string) {
    super(message);
    this.kind = kind;
  }
}

/**
 * Asks the frontend for its model name until it answers. A frontend takes seconds to minutes to load its model,
 * refuses connections or answers 503 until then, and all of this is normal.
 */
export class ModelNameDiscovery {
  readonly #options: ModelNameDiscoveryOptions;
  readonly #url: string;
  readonly #agent: Agent;
  readonly #stopped = new AbortController();
  readonly #warned = new Set<BadAnswer['kind']>();
  #lastWarning = 0;
  #running: Promise<void> | null = null;

  constructor(options: ModelNameDiscoveryOptions) {
    this.#options = options;
    this.#url = `${options.url.replace(/\/+$/, '')}/v1/models`;
    const timeout = options.attemptTimeoutMs ?? ATTEMPT_TIMEOUT_MS;
    this.#agent = new Agent({
      connections: 1,
      connect: { timeout },
      headersTimeout: timeout,
      bodyTimeout: timeout,
    });
  }

  /** Begins to ask; a second call changes nothing. */
  start(): void {
    this.#running ??= this.#run();
  }

  /** Gives up, aborts what is in flight, and resolves when no socket is left. */
  async stop(): Promise<void> {
    this.#stopped.abort();
    await this.#running;
    await this.#agent.destroy();
  }

  async #run(): Promise<void> {
    const { logger, onName, initialDelayMs = INITIAL_DELAY_MS, maxDelayMs = MAX_DELAY_MS } = this.#options;
    this.#lastWarning = performance.now();
    let name: string | null = null;
    let delay = initialDelayMs;
    while (!this.#stopped.signal.aborted) {
      try {
        name = await this.#ask();
        break;
      } catch (error) {
        if (this.#stopped.signal.aborted) break;
        this.#report(error);
        // A wrong key is not cured by asking often.
        if (error instanceof BadAnswer && error.kind === 'unauthorized') delay = maxDelayMs;
      }
      await this.#pause(delay / 2 + (Math.random() * delay) / 2);
      delay = Math.min(delay * 2, maxDelayMs);
    }
    await this.#agent.destroy();
    if (name === null || this.#stopped.signal.aborted) return;
    logger.info({ model: name, url: this.#url }, 'model name known');
    onName(name);
  }

  /** One attempt, with a deadline over all of it: undici's own are per piece, and a byte every four seconds passes them. */
  async #ask(): Promise<string> {
    const attempt = new AbortController();
    const abort = () => attempt.abort(new Error('no complete answer in time'));
    const deadline = setTimeout(abort, this.#options.attemptTimeoutMs ?? ATTEMPT_TIMEOUT_MS);
    deadline.unref();
    this.#stopped.signal.addEventListener('abort', abort, { once: true });
    try {
      return await this.#request(attempt.signal);
    } finally {
      clearTimeout(deadline);
      this.#stopped.signal.removeEventListener('abort', abort);
    }
  }

  async #request(signal: AbortSignal): Promise<string> {
    const { apiKey } = this.#options;
    const { statusCode, body } = await request(this.#url, {
      dispatcher: this.#agent,
      headers: {
        accept: 'application/json',
        ...(apiKey === null ? {} : { authorization: `Bearer ${apiKey}` }),
      },
      signal,
    });
    if (statusCode !== 200) {
      // What it says does not matter, and unread it would hold the connection.
      body.on('error', () => {}).destroy();
      if (statusCode === 401 || statusCode === 403) throw new BadAnswer('unauthorized', `HTTP ${statusCode}`);
      throw new Error(`HTTP ${statusCode}`);
    }
    return firstModelId(await limitedText(body));
  }

  #report(error: unknown): void {
    const { logger, warnIntervalMs = WARN_INTERVAL_MS } = this.#options;
    const context = { url: this.#url, reason: messageOf(error) };
    if (error instanceof BadAnswer && !this.#warned.has(error.kind)) {
      this.#warned.add(error.kind);
      logger.warn(
        context,
        error.kind === 'unauthorized'
          ? 'the frontend wants an API key to tell its model name: set frontend.apiKey (STEPTAP_FRONTEND_API_KEY), or model.name (--model-name)'
          : 'the frontend answered /v1/models with something else than a list of models: check frontend.url (--frontend-url), or set model.name (--model-name)',
      );
    } else if (performance.now() - this.#lastWarning >= warnIntervalMs) {
      this.#lastWarning = performance.now();
      logger.warn(
        context,
        'the frontend has not told its model name yet; its series are held back until it does',
      );
    } else {
      logger.debug(context, 'no model name yet');
    }
  }

  #pause(ms: number): Promise<void> {
    const { signal } = this.#stopped;
    return new Promise((resolve) => {
      const timer = setTimeout(end, ms);
      timer.unref();
      signal.addEventListener('abort', end, { once: true });
      function end() {
        clearTimeout(timer);
        signal.removeEventListener('abort', end);
        resolve();
      }
    });
  }
}

async function limitedText(body: AsyncIterable<Buffer>): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  // Leaving the loop by an error destroys the body, and with it the connection.
  for await (const chunk of body) {
    size += chunk.length;
    if (size > MAX_BODY_BYTES) throw new BadAnswer('shape', `more than ${MAX_BODY_BYTES} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

/** `{"data": [{"id": NAME, …}, …]}`, as the OpenAI API and vLLM have it. The first is the first served name. */
function firstModelId(text: string): string {
  let answer: unknown;
  try {
    answer = JSON.parse(text);
  } catch {
    throw new BadAnswer('shape', 'not JSON');
  }
  const models = property(answer, 'data');
  if (!Array.isArray(models)) throw new BadAnswer('shape', 'no list `data`');
  const id = property(models[0], 'id');
  if (typeof id !== 'string' || id === '') throw new BadAnswer('shape', 'no string `data[0].id`');
  return id;
}

function property(value: unknown, key: string): unknown {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>)[key] : undefined;
}
