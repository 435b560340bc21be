/** The real sidecar inside the test's process: its own sockets and HTTP port, its log kept for questions. */
import { mkdtempSync, rmSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import type { ExecutionContext } from 'ava';
import { pino } from 'pino';
import { request } from 'undici';
import type { Settings } from '../../config/settings.js';
import { errnoOf } from '../../proxy/errors.js';
import { type Bound, Sidecar } from '../../proxy/sidecar.js';
import { parsePrometheusText, seriesKey } from './prometheus-text.js';
import { waitFor } from './wait.js';

export type SettingsPatch = { readonly [Section in keyof Settings]?: Partial<Settings[Section]> };

export interface LogLine {
  readonly level: string;
  readonly msg: string;
  readonly [detail: string]: unknown;
}

/** What `/status` answers, as far as tests ask for it. */
export interface Status {
  readonly unreadyReasons: readonly string[];
  readonly endpoints: readonly {
    readonly kind: string;
    readonly client: string | null;
    readonly listen: string | null;
    readonly upstream: string;
    readonly connections: number;
  }[];
  readonly engines: readonly { readonly index: number; readonly connections: number }[];
  readonly clients: readonly { readonly client: string; readonly trackedRequests: number }[];
}

/** The schema's defaults, but for a metrics port of its own, a known model name and a short drain. */
export function settingsWith(patch: SettingsPatch): Settings {
  return {
    ipc: { dir: null, ...patch.ipc },
    frontend: { handshake: null, url: 'http://127.0.0.1:9', apiKey: null, ...patch.frontend },
    engine: { handshake: null, advertiseHost: null, ports: null, ...patch.engine },
    model: { name: 'tiny', ...patch.model },
    tracking: { requestIds: ['*'], ...patch.tracking },
    metrics: { host: '127.0.0.1', port: 0, ...patch.metrics },
    state: { path: null, ...patch.state },
    decode: { maxFrameBytes: 64 * 1024 * 1024, ...patch.decode },
    drain: { timeout: 50, ...patch.drain },
    log: { level: 'debug', format: 'json', ...patch.log },
  };
}

export class InProcessSidecar {
  readonly logs: LogLine[] = [];
  readonly #sidecar: Sidecar;
  #bound: Bound | null = null;

  constructor(patch: SettingsPatch) {
    const logs = this.logs;
    const destination = new Writable({
      write(line: Buffer, _encoding, done) {
        logs.push(JSON.parse(line.toString()) as LogLine);
        done();
      },
    });
    const formatters = { level: (level: string) => ({ level }) };
    const logger = pino({ level: 'debug', base: null, formatters }, destination);
    this.#sidecar = new Sidecar({ settings: settingsWith(patch), logger, version: 'test' });
  }

  async start(): Promise<this> {
    this.#bound = await this.#sidecar.start();
    return this;
  }

  get metricsUrl(): string {
    if (this.#bound === null) throw new Error('not started');
    return this.#bound.metricsUrl;
  }

  async get(path: string): Promise<{ status: number; text: string }> {
    const { statusCode, body } = await request(this.metricsUrl + path);
    return { status: statusCode, text: await body.text() };
  }

  async status(): Promise<Status> {
    return JSON.parse((await this.get('/status')).text) as Status;
  }

  /** All samples of `/metrics`, by `seriesKey`. */
  async samples(): Promise<Map<string, number>> {
    return parsePrometheusText((await this.get('/metrics')).text);
  }

  /** One sample; undefined where the series does not exist. */
  async sample(name: string, labels: Readonly<Record<string, string>> = {}): Promise<number | undefined> {
    return (await this.samples()).get(seriesKey(name, labels));
  }

  /** Lines of this level whose message contains `text`. */
  logged(level: string, text: string): LogLine[] {
    return this.logs.filter((line) => line.level === level && line.msg.includes(text));
  }

  /** As on SIGTERM: drains, then closes everything. */
  async stop(): Promise<void> {
    await this.#sidecar.stop();
  }

  async close(): Promise<void> {
    this.#sidecar.abort();
    await this.#sidecar.stop();
  }
}

/** A started sidecar that ends with the test. */
export async function runSidecar(t: ExecutionContext, patch: SettingsPatch): Promise<InProcessSidecar> {
  const sidecar = await new InProcessSidecar(patch).start();
  t.teardown(() => sidecar.close());
  return sidecar;
}

/** A directory with a short path, since socket paths may have 107 bytes; removed with the test. */
export function temporaryDirectory(t: ExecutionContext): string {
  const dir = mkdtempSync(join(tmpdir(), 'st-'));
  t.teardown(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** Below the ports that systems give to outgoing connections and to who asks for any port. */
const FIRST_PORT = 10_000;
const LAST_PORT = 32_000;
const given = new Set<number>();

/** A TCP port that nobody listens on, and that is not given a second time. */
export async function freePort(host = '127.0.0.1'): Promise<number> {
  return (await freePorts(1, host)).first;
}

/** The same for `count` ports in a row. */
export async function freePorts(count: number, host = '127.0.0.1'): Promise<{ first: number; last: number }> {
  for (;;) {
    const first = FIRST_PORT + Math.floor(Math.random() * (LAST_PORT - FIRST_PORT - count));
    const ports = Array.from({ length: count }, (_, index) => first + index);
    if (ports.some((port) => given.has(port))) continue;
    const areFree = await Promise.all(ports.map((port) => isFree(host, port)));
    if (areFree.includes(false)) continue;
    for (const port of ports) given.add(port);
    return { first, last: first + count - 1 };
  }
}

/** Rejects where the host is no address of this machine. */
async function isFree(host: string, port: number): Promise<boolean> {
  const server = net.createServer();
  const isBound = await new Promise<boolean>((resolve, reject) => {
    server.once('error', (error) => {
      if (errnoOf(error) === 'EADDRINUSE') resolve(false);
      else reject(error);
    });
    server.listen({ host, port }, () => resolve(true));
  });
  if (isBound) await new Promise((resolve) => server.close(resolve));
  return isBound;
}

/** `waitFor` with the name in front. */
export function eventually<T>(
  what: string,
  ask: () => T | Promise<T>,
  deadlineMs?: number,
): Promise<Exclude<T, false | null | undefined>> {
  return waitFor(ask, deadlineMs === undefined ? { what } : { what, deadlineMs });
}
