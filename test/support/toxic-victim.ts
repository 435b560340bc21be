/** steptap as a process of its own, to be stopped, killed, started again, starved and looked at from outside. */
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { imageNodeFlags } from './image.js';
import type { LogLine, Status } from './in-process.js';
import { seriesKey } from './prometheus-text.js';
import { type SidecarProcess, startSidecar } from './sidecar.js';
import type { Scope } from './toxic-scope.js';

const PAGE_BYTES = 4096;

export class Victim {
  readonly args: readonly string[];
  readonly #process: SidecarProcess;

  private constructor(args: readonly string[], process: SidecarProcess) {
    this.args = args;
    this.#process = process;
  }

  /** Started as in the image, and bound; killed with its scope. */
  static async start(
    scope: Scope,
    args: readonly string[],
    env: Readonly<Record<string, string>> = {},
  ): Promise<Victim> {
    const victim = new Victim(args, await startSidecar({ args, env, nodeFlags: imageNodeFlags() }));
    scope.teardown(() => victim.kill());
    return victim;
  }

  get pid(): number {
    return this.#process.child.pid;
  }

  get metricsUrl(): string {
    return this.#process.metricsUrl;
  }

  logged(level: string, text: string): LogLine[] {
    const lines = this.#process.logs as readonly LogLine[];
    return lines.filter((line) => line.level === level && line.msg.includes(text));
  }

  get(path: string): Promise<{ status: number; text: string }> {
    return this.#process.get(path);
  }

  async status(): Promise<Status> {
    return (await this.#process.status()) as Status;
  }

  samples(): Promise<Map<string, number>> {
    return this.#process.metrics();
  }

  async sample(name: string, labels: Readonly<Record<string, string>> = {}): Promise<number | undefined> {
    return (await this.samples()).get(seriesKey(name, labels));
  }

  signal(name: NodeJS.Signals): void {
    this.#process.child.signal(name);
  }

  /** kill -9, and waits until it is gone. */
  kill(): Promise<void> {
    return this.#process.kill();
  }

  /** Resolves with the exit code; 128 + signal where one ended it. */
  exited(): Promise<number> {
    return this.#process.child.exited();
  }

  /** Resident memory in bytes. */
  get rss(): number {
    return Number(readFileSync(`/proc/${this.pid}/statm`, 'utf8').split(' ')[1]) * PAGE_BYTES;
  }

  /** Open file descriptors. */
  get descriptors(): number {
    return readdirSync(`/proc/${this.pid}/fd`).length;
  }

  /** From now on, until told otherwise, it may have `count` file descriptors open (the soft limit). */
  limitDescriptors(count: number): void {
    execFileSync('prlimit', ['--pid', String(this.pid), `--nofile=${count}:`]);
  }
}
