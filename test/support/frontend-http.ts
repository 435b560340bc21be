/**
 * What the stand-in frontend serves over HTTP:
 *
 *     GET  /health, /metrics
 *     GET  /v1/models
 *     POST /v1/completions    prompt as text (a token a byte) or token ids; max_tokens; stream
 */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { StandInFrontend } from './frontend.js';

const MAX_BODY_BYTES = 64 * 1024 * 1024;
const DEFAULT_MAX_TOKENS = 16;

interface CompletionRequest {
  readonly prompt: readonly number[];
  readonly maxTokens: number;
  readonly stream: boolean;
}

export class FrontendHttp {
  readonly #frontend: StandInFrontend;
  readonly #server: Server;

  static async listen(frontend: StandInFrontend, host: string, port: number): Promise<FrontendHttp> {
    const http = new FrontendHttp(frontend);
    http.#server.listen(port, host);
    await once(http.#server, 'listening');
    return http;
  }

  private constructor(frontend: StandInFrontend) {
    this.#frontend = frontend;
    this.#server = createServer((request, response) => {
      this.#answer(request, response).catch((error: unknown) => fail(response, error));
    });
  }

  get url(): string {
    const { address, family, port } = this.#server.address() as AddressInfo;
    return `http://${family === 'IPv6' ? `[${address}]` : address}:${port}`;
  }

  async close(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { pathname } = new URL(request.url ?? '/', 'http://frontend');
    const { apiKey } = this.#frontend.options;
    if (
      pathname.startsWith('/v1/') &&
      apiKey !== undefined &&
      request.headers.authorization !== `Bearer ${apiKey}`
    ) {
      return sendJson(response, 401, { error: 'Unauthorized' });
    }
    switch (`${request.method} ${pathname}`) {
      case 'GET /health':
        response.end();
        return;
      case 'GET /metrics':
        response.setHeader('content-type', 'text/plain; version=0.0.4; charset=utf-8');
        response.end(this.#frontend.histogram.text());
        return;
      case 'GET /v1/models': {
        const model = { id: this.#frontend.modelName, object: 'model', owned_by: 'vllm' };
        return sendJson(response, 200, { object: 'list', data: [model] });
      }
      case 'POST /v1/completions':
        return this.#complete(await readCompletionRequest(request), response);
      default:
        return sendJson(response, 404, { detail: 'Not Found' });
    }
  }

  async #complete(body: CompletionRequest, response: ServerResponse): Promise<void> {
    const frontend = this.#frontend;
    const head = {
      object: 'text_completion',
      created: Math.floor(Date.now() / 1000),
      model: frontend.modelName,
    };
    const { id, done } = frontend.open({
      promptTokens: body.prompt,
      maxTokens: body.maxTokens,
      onTokens: (tokens) => {
        if (body.stream) sendEvent(response, { id, ...head, choices: [choice(tokens, null)] });
      },
    });
    response.on('close', () => {
      if (!response.writableFinished) frontend.abort([id]).catch(() => {});
    });
    if (body.stream) response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' });
    const { tokens } = await done;
    if (response.destroyed) return;
    const usage = {
      prompt_tokens: body.prompt.length,
      completion_tokens: tokens.length,
      total_tokens: body.prompt.length + tokens.length,
    };
    if (!body.stream)
      return sendJson(response, 200, { id, ...head, choices: [choice(tokens, 'length')], usage });
    sendEvent(response, { id, ...head, choices: [choice([], 'length')], usage });
    response.end('data: [DONE]\n\n');
  }
}

function choice(tokens: readonly number[], finish: string | null): Record<string, unknown> {
  return {
    index: 0,
    text: tokens.map((token) => ` t${token}`).join(''),
    logprobs: null,
    finish_reason: finish,
  };
}

async function readCompletionRequest(request: IncomingMessage): Promise<CompletionRequest> {
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    length += chunk.length;
    if (length > MAX_BODY_BYTES) throw new RequestError(413, 'the body is too large');
    chunks.push(chunk);
  }
  const body = parseObject(Buffer.concat(chunks).toString());
  const { prompt, max_tokens: maxTokens = DEFAULT_MAX_TOKENS, stream = false } = body;
  const tokens = typeof prompt === 'string' ? [...Buffer.from(prompt)] : prompt;
  if (!Array.isArray(tokens) || !tokens.every((token): token is number => Number.isInteger(token))) {
    throw new RequestError(400, 'prompt must be text or an array of token ids');
  }
  if (typeof maxTokens !== 'number' || !Number.isInteger(maxTokens) || maxTokens < 1) {
    throw new RequestError(400, 'max_tokens must be a whole number from 1');
  }
  return { prompt: tokens, maxTokens, stream: stream === true };
}

function parseObject(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null) return value as Record<string, unknown>;
  } catch {
    // Answered below, like any other body that is no object.
  }
  throw new RequestError(400, 'the body must be a JSON object');
}

class RequestError extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

function fail(response: ServerResponse, error: unknown): void {
  const message = error instanceof Error ? error.message : String(error);
  if (response.headersSent) response.destroy();
  else sendJson(response, error instanceof RequestError ? error.status : 500, { error: { message } });
}

function sendJson(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify(body));
}

function sendEvent(response: ServerResponse, event: unknown): void {
  response.write(`data: ${JSON.stringify(event)}\n\n`);
}
