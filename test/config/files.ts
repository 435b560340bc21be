import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ConfigError, loadSettings } from '../../config/load.js';

const folder = mkdtempSync(join(tmpdir(), 'steptap-config-'));

/** Path of a new configuration file. */
export function configFile(name: string, text: string): string {
  const path = join(mkdtempSync(join(folder, 'f-')), name);
  writeFileSync(path, text);
  return path;
}

/** What is wrong with a configuration; empty when nothing is. */
export function problemsOf(argv: readonly string[], env: NodeJS.ProcessEnv = {}): readonly string[] {
  return errorOf(argv, env)?.problems ?? [];
}

export function errorOf(argv: readonly string[], env: NodeJS.ProcessEnv = {}): ConfigError | null {
  try {
    loadSettings(argv, env);
    return null;
  } catch (error) {
    if (error instanceof ConfigError) return error;
    throw error;
  }
}
