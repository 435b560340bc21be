import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { waitFor } from '../support/wait.js';

/** A probe as a manifest has it: GET `path` on `port` until it says 200. */
export interface Probe {
  readonly path: string;
  readonly port: number;
  readonly periodSeconds: number;
  readonly failureThreshold: number;
}

/** One container of the pod, run as a process, its last output kept for when something fails. */
export class Container {
  readonly name: string;
  readonly #process: ChildProcess;
  #output = '';

  /** `env` is all that it gets, besides PATH. */
  constructor(name: string, command: readonly string[], env: Readonly<Record<string, string>>) {
    this.name = name;
    const [file = '', ...args] = command;
    this.#process = spawn(file, args, {
      env: { PATH: process.env['PATH'], ...env },
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
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

  tell(message: string): void {
    this.#process.send(message);
  }

  /** Sends the signal and gives the exit code, null when the signal itself ended it. Rejects when it outlives that. */
  async end(signal: NodeJS.Signals, withinMs: number): Promise<number | null> {
    if (this.running) {
      const exited = once(this.#process, 'exit', { signal: AbortSignal.timeout(withinMs) });
      this.#process.kill(signal);
      await exited;
    }
    return this.#process.exitCode;
  }

  /** As the kubelet: asks until it passes, and gives up after the probe's threshold or when the container has ended. */
  async untilPasses(probe: Probe): Promise<void> {
    const deadlineMs = probe.periodSeconds * probe.failureThreshold * 1000;
    try {
      await waitFor(async () => (await passes(probe)) || !this.running, { deadlineMs, what: probe.path });
    } catch (cause) {
      throw new Error(`${this.name}: ${probe.path} never passed:\n${this.#output}`, { cause });
    }
    if (!this.running) throw new Error(`${this.name} ended before ${probe.path} passed:\n${this.#output}`);
  }
}

/** Whether the probe passes now; a refused connection is a no. */
export async function passes({ path, port }: Pick<Probe, 'path' | 'port'>): Promise<boolean> {
  try {
    const response = await fetch(`http://127.0.0.1:${port}${path}`, { signal: AbortSignal.timeout(5000) });
    await response.arrayBuffer();
    return response.ok;
  } catch {
    return false;
  }
}
