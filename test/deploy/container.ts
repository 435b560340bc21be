import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';

/** A probe as a manifest has it: GET `path` on `port` until it says 200. */
export interface Probe {
  readonly path: string;
  readonly port: number;
  readonly periodSeconds: number;
  readonly failureThreshold: number;
}

/** One container of the pod, run as a process, its output kept for when something fails. */
export class Container {
  readonly name: string;
  readonly #process: ChildProcess;
  #output = '';

  constructor(name: string, command: readonly string[], env: Readonly<Record<string, string>>) {
    this.name = name;
    const [file = '', ...args] = command;
    this.#process = spawn(file, args, {
      env: { PATH: process.env['PATH'], ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    for (const stream of [this.#process.stdout, this.#process.stderr]) {
      stream?.setEncoding('utf8').on('data', (text: string) => {
        this.#output = (this.#output + text).slice(-20_000);
      });
    }
  }

  get output(): string {
    return this.#output;
  }

  get running(): boolean {
    return this.#process.exitCode === null && this.#process.signalCode === null;
  }

  kill(signal: NodeJS.Signals): void {
    this.#process.kill(signal);
  }

  /** Sends the signal and gives the exit code; null when a signal ended it. Rejects when it outlives `withinMs`. */
  async end(signal: NodeJS.Signals, withinMs: number): Promise<number | null> {
    if (this.running) {
      const exited = once(this.#process, 'exit', { signal: AbortSignal.timeout(withinMs) });
      this.#process.kill(signal);
      await exited;
    }
    return this.#process.exitCode;
  }

  /** As the kubelet: asks until it passes, gives up after the probe's threshold or when the container ends. */
  async untilPasses(probe: Probe): Promise<void> {
    const deadline = Date.now() + probe.periodSeconds * probe.failureThreshold * 1000;
    while (!(await passes(probe))) {
      if (!this.running) throw new Error(`${this.name} ended before ${probe.path} passed:\n${this.#output}`);
      if (Date.now() > deadline)
        throw new Error(`${this.name}: ${probe.path} never passed:\n${this.#output}`);
      await pause(100);
    }
  }
}

/** Whether the probe passes now; a refused connection is a no. */
export async function passes(probe: Pick<Probe, 'path' | 'port'>): Promise<boolean> {
  try {
    const response = await fetch(`http://127.0.0.1:${probe.port}${probe.path}`, {
      signal: AbortSignal.timeout(5000),
    });
    await response.arrayBuffer();
    return response.ok;
  } catch {
    return false;
  }
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Asks until `ask` gives something that `enough` accepts; the error at the deadline says what it gave last. */
export async function until<T>(
  what: string,
  ask: () => Promise<T>,
  enough: (answer: T) => boolean,
  withinMs = 30_000,
): Promise<T> {
  const deadline = Date.now() + withinMs;
  for (;;) {
    const answer = await ask();
    if (enough(answer)) return answer;
    if (Date.now() > deadline)
      throw new Error(`${what}: still ${JSON.stringify(answer)} after ${withinMs} ms`);
    await pause(200);
  }
}
