import { once } from 'node:events';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { request } from 'undici';
import { imageNodeFlags } from '../support/image.js';
import { LineProcess } from './line-process.js';
import { packageRoot } from './toolchain.js';

const startDeadlineMs = 10_000;
/** Counting follows the relay within the same turn of steptap's loop; this is only for a machine in a stall. */
const countDeadlineMs = 5000;

/** What steptap has counted, over all engines. */
export interface Counted {
  readonly count: number;
  readonly sum: number;
  /** Series that must stay zero when decoding works, and did not. */
  readonly faults: readonly string[];
}

/** Counters that stay zero in a load that is all valid and all tracked. */
const faultCounters = [
  'steptap_decode_errors_total',
  'steptap_opaque_connections_total',
  'steptap_untracked_outputs_total',
  'steptap_untracked_batches_total',
  'steptap_unknown_engine_batches_total',
  'steptap_connection_failures_total',
  'steptap_adopted_requests_total',
];

/** A steptap process of its own, as the image starts it. */
export class Sidecar {
  /** From spawn to the first 200 of /startupz, in milliseconds. */
  readonly startMillis: number;
  readonly #process: LineProcess;
  readonly #url: string;

  private constructor(process: LineProcess, url: string, startMillis: number) {
    this.#process = process;
    this.#url = url;
    this.startMillis = startMillis;
  }

  /** More Node flags, for a profile of the sidecar, come from STEPTAP_BENCH_NODE_FLAGS, for instance --cpu-prof. */
  static async start(flags: readonly string[]): Promise<Sidecar> {
    const port = await Sidecar.freePort();
    const nodeFlags = (process.env['STEPTAP_BENCH_NODE_FLAGS'] ?? '')
      .split(' ')
      .filter((flag) => flag !== '');
    const args = [
      ...imageNodeFlags(),
      ...nodeFlags,
      join(packageRoot, 'dist', 'proxy', 'main.js'),
      'run',
      ...flags,
      ...['--metrics-host', '127.0.0.1', '--metrics-port', String(port)],
      ...['--model-name', 'bench', '--log-level', 'warn', '--drain-timeout', '1s'],
    ];
    const started = performance.now();
    const child = new LineProcess('steptap', process.execPath, args, environment());
    const url = `http://127.0.0.1:${port}`;
    while (!(await answers(`${url}/startupz`))) {
      if (child.ended !== undefined) throw child.failure(child.ended);
      if (performance.now() - started > startDeadlineMs) {
        await child.stop();
        throw child.failure('/startupz did not answer 200 within 10 s');
      }
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    return new Sidecar(child, url, performance.now() - started);
  }

  static async freePort(): Promise<number> {
    const server = createServer().listen(0, '127.0.0.1');
    await once(server, 'listening');
    const address = server.address();
    server.close();
    await once(server, 'close');
    if (address === null || typeof address === 'string') throw new Error('no port');
    return address.port;
  }

  get pid(): number {
    return this.#process.pid;
  }

  async scrape(): Promise<string> {
    const { body } = await request(`${this.#url}/metrics`);
    return body.text();
  }

  /** What has been counted once at least `count` batches are; what there is when that takes over 5 s. */
  async counted(count: number): Promise<Counted> {
    const deadline = Date.now() + countDeadlineMs;
    for (;;) {
      const text = await this.scrape();
      const counted = {
        count: total(text, 'vllm:iteration_tokens_total_count'),
        sum: total(text, 'vllm:iteration_tokens_total_sum'),
        faults: text.split('\n').filter(isFault),
      };
      if (counted.count >= count || Date.now() > deadline) return counted;
    }
  }

  /** SIGTERM where a profile is to be written, which needs an orderly end; else at once. */
  stop(): Promise<void> {
    return this.#process.stop(process.env['STEPTAP_BENCH_NODE_FLAGS'] === undefined ? 'SIGKILL' : 'SIGTERM');
  }
}

/** The environment without settings that would change what is measured. */
function environment(): NodeJS.ProcessEnv {
  return Object.fromEntries(
    Object.entries(process.env).filter(
      ([name]) => !name.startsWith('STEPTAP_') && !name.startsWith('VLLM_') && !name.startsWith('NODE_'),
    ),
  );
}

async function answers(url: string): Promise<boolean> {
  try {
    const { statusCode, body } = await request(url);
    await body.dump();
    return statusCode === 200;
  } catch {
    return false;
  }
}

/**
 * The frontend closes its handshake socket when all engines are ready. It may do so before it has read all (reset), and
 * an engine that is slow to close its own dials once more (dial_refused).
 */
const handshakeClosed = 'steptap_connection_failures_total{kind="handshake",';

function isFault(line: string): boolean {
  if (line.startsWith(handshakeClosed)) return false;
  return faultCounters.some((name) => line.startsWith(name)) && !line.endsWith(' 0');
}

/** Sum over all series of one name. */
function total(text: string, name: string): number {
  let sum = 0;
  for (const line of text.split('\n')) {
    if (line.startsWith(`${name}{`) || line.startsWith(`${name} `))
      sum += Number(line.slice(line.lastIndexOf(' ')));
  }
  return sum;
}
