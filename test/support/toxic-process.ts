/** steptap as a process of its own, to be stopped, killed, started again and starved. */
import { type ChildProcess, spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { ExecutionContext } from 'ava';
import { request } from 'undici';
import { eventually, type LogLine, type Status } from './in-process.js';
import { parsePrometheusText, seriesKey } from './prometheus-text.js';

const MAIN = fileURLToPath(new URL('../../proxy/main.js', import.meta.url));
const PAGE_BYTES = 4096;

export interface Limits {
  /** File descriptors it may have open. */
  readonly descriptors?: number;
}

export interface Exit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

export class SidecarProcess {
  readonly args: readonly string[];
  readonly exited: Promise<Exit>;
  readonly #child: ChildProcess;
  #output = '';
  #errors = '';

  constructor(args: readonly string[], { descriptors }: Limits = {}) {
    this.args = args;
    const command = [process.execPath, MAIN, 'run', '--metrics-host', '127.0.0.1', ...args];
    const limited = descriptors === undefined ? '' : `ulimit -n ${descriptors}; `;
    this.#child = spawn('sh', ['-c', `${limited}exec "$@"`, 'sh', ...command], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#child.stdout?.setEncoding('utf8').on('data', (text: string) => {
      this.#output += text;
    });
    this.#child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.#errors += text;
    });
    this.exited = new Promise((resolve) => {
      this.#child.once('close', (code, signal) => resolve({ code, signal }));
    });
  }

  /** Started and bound; killed with the test. */
  static async start(
    t: ExecutionContext,
    args: readonly string[],
    limits: Limits = {},
  ): Promise<SidecarProcess> {
    const sidecar = new SidecarProcess(args, limits);
    t.teardown(() => sidecar.kill());
    await sidecar.bound();
    return sidecar;
  }

  get pid(): number {
    if (this.#child.pid === undefined) throw new Error('steptap did not start');
    return this.#child.pid;
  }

  get isRunning(): boolean {
    return this.#child.exitCode === null && this.#child.signalCode === null;
  }

  get logs(): LogLine[] {
    const whole = this.#output.slice(0, this.#output.lastIndexOf('\n') + 1);
    return whole
      .split('\n')
      .filter((line) => line.startsWith('{'))
      .map((line) => JSON.parse(line) as LogLine);
  }

  get errors(): string {
    return this.#errors;
  }

  get metricsUrl(): string {
    const url = this.logs.find(({ msg }) => msg === 'bound')?.['metricsUrl'];
    if (typeof url !== 'string') throw new Error('steptap has not bound');
    return url;
  }

  async bound(): Promise<void> {
    await eventually('steptap bound', () => {
      if (!this.isRunning) throw new Error(`steptap ended before it was bound: ${this.#errors}`);
      return this.logs.some(({ msg }) => msg === 'bound');
    });
  }

  logged(level: string, text: string): LogLine[] {
    return this.logs.filter((line) => line.level === level && line.msg.includes(text));
  }

  async get(path: string): Promise<{ status: number; text: string }> {
    const { statusCode, body } = await request(this.metricsUrl + path);
    return { status: statusCode, text: await body.text() };
  }

  async status(): Promise<Status> {
    return JSON.parse((await this.get('/status')).text) as Status;
  }

  async samples(): Promise<Map<string, number>> {
    return parsePrometheusText((await this.get('/metrics')).text);
  }

  async sample(name: string, labels: Readonly<Record<string, string>> = {}): Promise<number | undefined> {
    return (await this.samples()).get(seriesKey(name, labels));
  }

  signal(name: NodeJS.Signals): void {
    this.#child.kill(name);
  }

  /** kill -9, and waits until it is gone. */
  async kill(): Promise<void> {
    this.signal('SIGKILL');
    await this.exited;
  }

  /** Resident memory in bytes. */
  get rss(): number {
    return Number(readFileSync(`/proc/${this.pid}/statm`, 'utf8').split(' ')[1]) * PAGE_BYTES;
  }

  /** Open file descriptors. */
  get descriptors(): number {
    return readdirSync(`/proc/${this.pid}/fd`).length;
  }
}
