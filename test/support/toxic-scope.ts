/** Where everything that must end is handed over: a test, or a program that runs the same parts for longer. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export interface Scope {
  teardown(end: (() => void) | (() => Promise<void>)): void;
}

/** Ends what was handed over, the last first. */
export class ProgramScope implements Scope {
  readonly #ends: (() => void | Promise<void>)[] = [];

  teardown(end: (() => void) | (() => Promise<void>)): void {
    this.#ends.push(end);
  }

  async end(): Promise<void> {
    for (const end of this.#ends.splice(0).reverse()) await end();
  }
}

/** A directory with a short path, since socket paths may have 107 bytes. */
export function scratchDirectory(scope: Scope): string {
  const dir = mkdtempSync(join(tmpdir(), 'st-'));
  scope.teardown(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}
