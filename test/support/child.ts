/** A Node process of this package that reports in JSON lines on stdout. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { within } from './wait.js';

const STOP_DEADLINE_MS = 40_000;
const KEPT_LINES = 10_000;

export type JsonLine = Readonly<Record<string, unknown>>;

const living = new Set<ChildProcess>();
// Whatever ends this process, no child outlives it.
process.on('exit', () => {
  for (const child of living) child.kill('SIGKILL');
});

export class Child {
  /** JSON lines of stdout, oldest first; the newest ten thousand. */
  readonly lines: JsonLine[] = [];
  /** Everything on stderr, and lines of stdout that are not JSON. */
  stderr = '';
  readonly #what: string;
  readonly #process: ChildProcess;
  readonly #exited: Promise<number>;
  readonly #waiting = new Set<() => void>();

  /** `script` is relative to this file, in dist/test/support. */
  constructor(
    what: string,
    script: string,
    args: readonly string[],
    env: NodeJS.ProcessEnv = {},
    nodeFlags: readonly string[] = [],
  ) {
    this.#what = what;
    const path = fileURLToPath(new URL(script, import.meta.url));
    // A terminal's Ctrl-C goes to all processes of a group; children end when told to, in order.
    const child = spawn(process.execPath, [...nodeFlags, path, ...args], {
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    });
    this.#process = child;
    living.add(child);
    this.#exited = once(child, 'close').then(([code, signal]) => {
      living.delete(child);
      this.#notify();
      return typeof code === 'number' ? code : signal === 'SIGKILL' ? 137 : 143;
    });
    this.#exited.catch(() => {});
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      this.stderr += text;
    });
    createInterface({ input: child.stdout }).on('line', (line) => this.#onLine(line));
  }

  get pid(): number {
    return this.#process.pid ?? 0;
  }

  /** Resolves with the first line, past or to come, that `matches`; rejects when the process ends before. */
  async line(matches: (line: JsonLine) => boolean, what: string, deadlineMs = 20_000): Promise<JsonLine> {
    let check: () => void = () => {};
    const found = new Promise<JsonLine>((resolve, reject) => {
      check = () => {
        const line = this.lines.find(matches);
        if (line !== undefined) resolve(line);
        else if (!living.has(this.#process))
          reject(new Error(`${this.#what} ended before ${what}\n${this.stderr}`));
      };
    });
    this.#waiting.add(check);
    check();
    try {
      return await within(found, { deadlineMs, what: `${this.#what}: ${what}\n${this.stderr}` });
    } finally {
      this.#waiting.delete(check);
    }
  }

  /** SIGTERM, and the exit code; SIGKILL when it does not end in time. */
  async stop(deadlineMs = STOP_DEADLINE_MS): Promise<number> {
    this.#process.kill('SIGTERM');
    try {
      return await within(this.#exited, { deadlineMs, what: `${this.#what} ends at SIGTERM` });
    } catch (error) {
      await this.kill();
      throw error;
    }
  }

  signal(signal: NodeJS.Signals): void {
    this.#process.kill(signal);
  }

  /** SIGKILL; resolves when the process is gone. */
  async kill(): Promise<void> {
    this.#process.kill('SIGKILL');
    await this.#exited;
  }

  /** Resolves with the exit code; 128 + signal where one ended it. */
  exited(): Promise<number> {
    return this.#exited;
  }

  #onLine(line: string): void {
    const value = parseLine(line);
    if (value === null) this.stderr += `${line}\n`;
    else if (this.lines.push(value) > KEPT_LINES) this.lines.shift();
    this.#notify();
  }

  #notify(): void {
    for (const check of this.#waiting) check();
  }
}

function parseLine(line: string): JsonLine | null {
  try {
    const value: unknown = JSON.parse(line);
    return typeof value === 'object' && value !== null ? (value as JsonLine) : null;
  } catch {
    // Not for us: kept as text.
    return null;
  }
}
