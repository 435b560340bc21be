/** A child process with its output in a file: started in its own process group, so that its children end with it. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { SteptapError } from '../../proxy/errors.js';

/** vLLM takes some seconds to let its engines go; after that they are killed. */
const STOP_MS = 20_000;

export interface Command {
  readonly name: string;
  readonly command: string;
  readonly args: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly log: string;
}

export class Process {
  readonly name: string;
  readonly log: string;
  readonly #child: ChildProcess;
  readonly #closed: Promise<unknown>;

  constructor({ name, command, args, env = {}, log }: Command) {
    this.name = name;
    this.log = log;
    const out = openSync(log, 'a');
    this.#child = spawn(command, args, {
      detached: true,
      stdio: ['ignore', out, out],
      env: { ...process.env, ...env },
    });
    closeSync(out);
    this.#closed = once(this.#child, 'close').catch(() => undefined);
  }

  get pid(): number {
    if (this.#child.pid === undefined) throw new SteptapError('NOT_STARTED', `${this.name} did not start`);
    return this.#child.pid;
  }

  get running(): boolean {
    return this.#child.pid !== undefined && this.#child.exitCode === null && this.#child.signalCode === null;
  }

  get exitCode(): number | null {
    return this.#child.exitCode;
  }

  /** To this process alone; `stop` reaches its children too. */
  kill(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  async closed(): Promise<void> {
    await this.#closed;
  }

  /** SIGTERM, and after 20 s SIGKILL to the whole group. */
  async stop(): Promise<void> {
    if (this.running) {
      this.kill('SIGTERM');
      const timer = setTimeout(() => this.#killGroup(), STOP_MS);
      await this.#closed;
      clearTimeout(timer);
    }
    this.#killGroup();
  }

  async output(): Promise<string> {
    return readFile(this.log, 'utf8');
  }

  #killGroup(): void {
    if (this.#child.pid === undefined) return;
    try {
      process.kill(-this.#child.pid, 'SIGKILL');
    } catch {
      // the group is gone already
    }
  }
}

/** Asks every 200 ms until the answer is not undefined; fails at the deadline or when one of the processes has ended. */
export async function until<T>(
  what: string,
  ask: () => Promise<T | undefined>,
  { deadline = 10_000, alive = [] }: { deadline?: number; alive?: readonly Process[] } = {},
): Promise<T> {
  const end = Date.now() + deadline;
  for (;;) {
    const answer = await ask();
    if (answer !== undefined) return answer;
    const gone = alive.find((process) => !process.running);
    if (gone !== undefined)
      throw new SteptapError(
        'ENDED',
        `${gone.name} ended (${gone.exitCode}) before ${what}: see ${gone.log}`,
      );
    if (Date.now() > end) throw new SteptapError('TIMEOUT', `not within ${deadline} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}
