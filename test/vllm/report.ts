/** What an experiment found, and the lines of COMPATIBILITY.md. */
import { appendFile } from 'node:fs/promises';
import type { Layout } from './serving.js';

export interface Proof {
  readonly row: string;
  /** What was not as promised. */
  readonly problems: readonly string[];
}

export interface Row {
  readonly layout: Layout;
  readonly offline: boolean;
  /** Frontend clients that steptap saw. */
  readonly clients: number;
  readonly requests: number;
  /** Observations and tokens in all, as steptap counted them. */
  readonly count: number;
  readonly sum: number;
  /** Verdicts of the parts of the load, in their order. */
  readonly parts: readonly string[];
}

export function markdownRow({ layout, offline, clients, requests, count, sum, parts }: Row): string {
  const frontend = offline ? `LLM() ${layout.version}` : frontendName(layout);
  const cells = [layout.version, frontend, layout.mode, `${layout.engines} × ${clients}`];
  return `| ${[...cells, requests, count, sum, ...parts].join(' | ')} |`;
}

export function frontendName({ frontend, frontendVersion, version }: Layout): string {
  return frontend === 'rust' ? `Rust ${frontendVersion}` : `Python ${version}`;
}

export async function appendRow(file: string, row: string): Promise<void> {
  await appendFile(file, `${row}\n`);
}
