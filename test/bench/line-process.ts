import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';

/** How long a line from a child may take: longer than the 20 s after which a peer gives up by itself. */
const lineDeadlineMs = 25_000;

/** A benchmark that is stopped half-way leaves no peer behind. */
const alive = new Set<ChildProcess>();
process.once('exit', () => {
  for (const child of alive) child.kill('SIGKILL');
});
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(1));

/** A child process that answers in lines on stdout. Its stderr is kept for error messages. */
export class LineProcess {
  readonly #child: ChildProcess;
  readonly #name: string;
  readonly #lines: string[] = [];
  #stderr = '';
  #ended: string | undefined;
  #wake: (() => void) | undefined;

  constructor(name: string, command: string, args: readonly string[], env: NodeJS.ProcessEnv = process.env) {
    this.#name = name;
    this.#child = spawn(command, args, { env, stdio: ['pipe', 'pipe', 'pipe'] });
    alive.add(this.#child);
    const { stdout, stderr, stdin } = this.#child;
    if (stdout === null || stderr === null || stdin === null) throw new Error(`${name}: no pipes`);
    // A peer that has gone is reported by its exit code; the broken pipe adds nothing.
    stdin.on('error', () => {});
    createInterface({ input: stdout }).on('line', (line) => {
      this.#lines.push(line);
      this.#wake?.();
    });
    stderr.on('data', (chunk: Buffer) => {
      this.#stderr = (this.#stderr + chunk.toString()).slice(-4000);
    });
    this.#child.on('error', (error) => this.#end(error.message));
    this.#child.on('close', (code, signal) => this.#end(`exit ${code ?? signal}`));
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  /** Why the process is no more; undefined while it lives. */
  get ended(): string | undefined {
    return this.#ended;
  }

  /** The next line of stdout. Rejects when the process ends first or says nothing for 25 s. */
  async line(): Promise<string> {
    const deadline = Date.now() + lineDeadlineMs;
    for (;;) {
      const line = this.#lines.shift();
      if (line !== undefined) return line;
      if (this.#ended !== undefined) throw this.failure(this.#ended);
      const left = deadline - Date.now();
      if (left <= 0) throw this.failure('no answer');
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, left);
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  /** The next line, which must start with this word; returns what follows it, split at spaces. */
  async answer(word: string): Promise<string[]> {
    const [first, ...rest] = (await this.line()).split(' ');
    if (first !== word) throw this.failure(`said "${first}", not "${word}"`);
    return rest;
  }

  write(line: string): void {
    this.#child.stdin?.write(`${line}\n`);
  }

  failure(reason: string): Error {
    return new Error(`${this.#name}: ${reason}${this.#stderr === '' ? '' : `\n${this.#stderr.trim()}`}`);
  }

  /** Kills the process and waits until it has gone. */
  async stop(signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
    if (this.#ended !== undefined) return;
    const closed = once(this.#child, 'close');
    this.#child.kill(signal);
    await closed;
  }

  #end(reason: string): void {
    this.#ended ??= reason;
    alive.delete(this.#child);
    this.#wake?.();
  }
}
