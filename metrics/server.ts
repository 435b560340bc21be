/**
 *     /metrics     Prometheus text 0.0.4, or OpenMetrics 1.0.0 when `Accept` asks for it; gzip on request
 *     /livez       200 as long as the event loop turns
 *     /healthz     the same
 *     /startupz    200 once everything is bound, else 503
 *     /readyz      200 `ok`, else 503 with the reasons, one a line
 *     /status      JSON: what is connected and tracked
 *     /            the links above, for people
 *
 * GET and HEAD, nothing else.
 */
import http from 'node:http';
import { type AddressInfo, isIPv6, type Socket } from 'node:net';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import type { Logger } from 'pino';
import { errnoOf, messageOf, SteptapError } from '../proxy/errors.js';
import { acceptsGzip, negotiateFormat } from './negotiation.js';
import type { MetricsRegistry } from './registry.js';

const gzipAsync = promisify(gzip);

/** A request has to have arrived by then, headers and all. */
const REQUEST_TIMEOUT_MS = 10_000;
/** How often Node looks for requests that are over their time. */
const TIMEOUT_CHECK_MS = 2_000;
/** Longer than the usual scrape interval, so that Prometheus keeps its connection. */
const KEEP_ALIVE_TIMEOUT_MS = 75_000;
/** Request line and headers together; more is answered with 431. */
const MAX_HEADER_BYTES = 16 * 1024;
/** Scrapers and probes are few. The file descriptors are the relay's. */
const MAX_CONNECTIONS = 128;
/** How long `close` lets answers finish that are on their way. */
const CLOSE_GRACE_MS = 1_000;

const TEXT = 'text/plain; charset=utf-8';

/** What the probes ask the sidecar. */
interface Health {
  /** Every listener is bound. */
  bound(): boolean;
  /** Why no traffic should come now, one short sentence each; empty when ready. */
  unreadyReasons(): readonly string[];
}

export interface MetricsServerOptions {
  readonly registry: MetricsRegistry;
  readonly host: string;
  /** 0: any free one. */
  readonly port: number;
  readonly health: Health;
  /** Anything that JSON.stringify takes; asked at each `/status`. */
  readonly status: () => unknown;
  readonly logger: Logger;
}

interface Answer {
  readonly status: number;
  readonly type: string;
  readonly body: string;
  readonly compressible?: boolean;
  readonly headers?: Readonly<Record<string, string>>;
}

type Handler = (request: http.IncomingMessage) => Answer | Promise<Answer>;

/** The HTTP server of metrics and probes. It holds nothing of its own: every answer is made when it is asked. */
export class MetricsServer {
  readonly #options: MetricsServerOptions;
  readonly #server: http.Server;
  readonly #routes: ReadonlyMap<string, Handler>;
  /** In the order of their last use. */
  readonly #connections = new Set<Socket>();
  readonly #answering = new Set<Socket>();

  constructor(options: MetricsServerOptions) {
    this.#options = options;
    this.#routes = routesOf(options);
    this.#server = http.createServer(
      {
        requestTimeout: REQUEST_TIMEOUT_MS,
        headersTimeout: REQUEST_TIMEOUT_MS,
        connectionsCheckingInterval: TIMEOUT_CHECK_MS,
        keepAliveTimeout: KEEP_ALIVE_TIMEOUT_MS,
        maxHeaderSize: MAX_HEADER_BYTES,
      },
      (request, response) => void this.#answer(request, response),
    );
    this.#server.on('connection', (socket) => this.#makeRoom(socket));
  }

  /** Resolves with the address once bound; a SteptapError `METRICS_LISTEN` names address and setting otherwise. */
  listen(): Promise<AddressInfo> {
    const { host, port, logger } = this.#options;
    return new Promise((resolve, reject) => {
      const refuse = (error: Error) => reject(listenError(error, host, port));
      this.#server.once('error', refuse);
      this.#server.listen({ host, port }, () => {
        this.#server.off('error', refuse);
        // Later errors are failed accepts (out of file descriptors): the next one may succeed.
        this.#server.on('error', (err) =>
          logger.warn({ err }, 'metrics server could not accept a connection'),
        );
        resolve(this.#server.address() as AddressInfo);
      });
    });
  }

  /** Stops listening at once and resolves when the last connection is gone, after a second at most. */
  close(): Promise<void> {
    if (!this.#server.listening) return Promise.resolve();
    return new Promise((resolve) => {
      const deadline = setTimeout(() => this.#server.closeAllConnections(), CLOSE_GRACE_MS);
      this.#server.close(() => {
        clearTimeout(deadline);
        resolve();
      });
      this.#server.closeIdleConnections();
    });
  }

  /** Past the limit the connection that was idle longest goes, so that probes always get in. */
  #makeRoom(socket: Socket): void {
    this.#connections.add(socket);
    socket.once('close', () => this.#connections.delete(socket));
    if (this.#connections.size <= MAX_CONNECTIONS) return;
    for (const candidate of this.#connections) {
      if (this.#answering.has(candidate)) continue;
      candidate.destroy();
      return;
    }
  }

  async #answer(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const { socket } = request;
    this.#answering.add(socket);
    response.once('close', () => {
      this.#answering.delete(socket);
      // Used last, so last to go.
      if (this.#connections.delete(socket) && !socket.destroyed) this.#connections.add(socket);
    });
    try {
      await send(request, response, await this.#route(request));
    } catch (err) {
      this.#options.logger.error({ err, method: request.method, url: request.url }, 'http handler failed');
      await send(request, response, { status: 500, type: TEXT, body: 'internal error, see the log\n' });
    }
  }

  #route(request: http.IncomingMessage): Answer | Promise<Answer> {
    const path = request.url?.split('?', 1)[0] ?? '';
    const handler = this.#routes.get(path);
    if (handler === undefined) return { status: 404, type: TEXT, body: 'not found\n' };
    if (request.method !== 'GET' && request.method !== 'HEAD') {
      const headers = { allow: 'GET, HEAD' };
      return { status: 405, type: TEXT, body: 'only GET and HEAD\n', headers };
    }
    return handler(request);
  }
}

function routesOf({ registry, health, status }: MetricsServerOptions): ReadonlyMap<string, Handler> {
  const alive = (): Answer => ({ status: 200, type: TEXT, body: 'ok\n' });
  const unless = (reasons: readonly string[]): Answer =>
    reasons.length === 0 ? alive() : { status: 503, type: TEXT, body: `${reasons.join('\n')}\n` };
  return new Map<string, Handler>([
    [
      '/metrics',
      async (request) => {
        const format = negotiateFormat(request.headers.accept);
        return {
          status: 200,
          type: registry.contentType(format),
          body: await registry.render(format),
          compressible: true,
          headers: { vary: 'Accept, Accept-Encoding' },
        };
      },
    ],
    ['/livez', alive],
    ['/healthz', alive],
    ['/startupz', () => unless(health.bound() ? [] : ['not bound yet'])],
    ['/readyz', () => unless(health.unreadyReasons())],
    [
      '/status',
      () => ({ status: 200, type: 'application/json', body: `${JSON.stringify(status(), null, 2)}\n` }),
    ],
    ['/', () => ({ status: 200, type: 'text/html; charset=utf-8', body: PAGE })],
  ]);
}

async function send(
  request: http.IncomingMessage,
  response: http.ServerResponse,
  answer: Answer,
): Promise<void> {
  let body = Buffer.from(answer.body);
  const headers: http.OutgoingHttpHeaders = {
    'content-type': answer.type,
    'cache-control': 'no-store',
    'x-content-type-options': 'nosniff',
    ...answer.headers,
  };
  if (answer.compressible && acceptsGzip(request.headers['accept-encoding']?.toString())) {
    body = await gzipAsync(body);
    headers['content-encoding'] = 'gzip';
  }
  response.writeHead(answer.status, { ...headers, 'content-length': body.length });
  response.end(request.method === 'HEAD' ? undefined : body);
}

function listenError(error: Error, host: string, port: number): SteptapError {
  const address = isIPv6(host) ? `[${host}]:${port}` : `${host}:${port}`;
  const [reason, flag, variable] = reasonFor(error);
  return new SteptapError(
    'METRICS_LISTEN',
    `cannot serve metrics on ${address}: ${reason}; set another with ${flag} (${variable})`,
    { cause: error },
  );
}

function reasonFor(error: Error): readonly [reason: string, flag: string, variable: string] {
  const port = ['--metrics-port', 'STEPTAP_METRICS_PORT'] as const;
  const host = ['--metrics-host', 'STEPTAP_METRICS_HOST'] as const;
  switch (errnoOf(error)) {
    case 'EADDRINUSE':
      return ['the port is in use', ...port];
    case 'EACCES':
      return ['this user may not bind the port', ...port];
    case 'EADDRNOTAVAIL':
      return ['the address is not one of this machine', ...host];
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
      return ['the host name does not resolve', ...host];
    default:
      return [messageOf(error), ...host];
  }
}

const PAGE = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>steptap</title>
<h1>steptap</h1>
<p>Counts the tokens of each vLLM engine step.</p>
<ul>
<li><a href="/metrics">/metrics</a> for Prometheus
<li><a href="/status">/status</a> what is connected and tracked, as JSON
<li><a href="/readyz">/readyz</a> whether traffic should come, and why not
<li><a href="/startupz">/startupz</a> whether everything is bound
<li><a href="/livez">/livez</a>, <a href="/healthz">/healthz</a> whether the process is alive
</ul>
</html>
`;
