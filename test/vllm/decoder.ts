/** A capture of steptap's, counted again by vLLM's own decoder of that version (reference.py). */
import { execFile } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { parsePrometheusText } from '../support/prometheus-text.js';
import { differences, type Samples } from './comparison.js';
import type { Environment } from './environment.js';
import type { Options } from './options.js';

const run = promisify(execFile);

/** Where each part of the load ends in a capture, in bytes. */
export type Marks = ReadonlyMap<string, { readonly begin: number; readonly end: number }>;

export async function decodedByVllm(
  environment: Environment,
  options: Options,
  { capture, ours, folder }: { capture: string | undefined; ours: Samples; folder: string },
): Promise<{ verdict: string; problems: string[] }> {
  if (capture === undefined) return { verdict: '–', problems: [] };
  const reference = await decode(environment, options, capture);
  await writeFile(join(folder, 'reference.txt'), reference);
  const problems = differences(ours, parsePrometheusText(reference)).map((problem) =>
    problem.replace('frontend', 'vLLM’s decoder'),
  );
  return { verdict: problems.length === 0 ? 'equal' : 'DIFFERS', problems };
}

/** A fixture: how the engines started, then one part of the load, and what vLLM's decoder counts in that. */
export async function keepPart(
  environment: Environment,
  options: Options,
  { capture, marks, part, target }: { capture: string; marks: Marks; part: string; target: string },
): Promise<void> {
  const all = await readFile(capture);
  const { begin, end } = marks.get(part) ?? { begin: 0, end: all.length };
  const start = all
    .subarray(0, begin)
    .toString()
    .split('\n')
    .filter((line) => /"dir":"(hs-up|hs-down|reg)"/.test(line));
  await writeFile(target, `${start.join('\n')}\n${all.subarray(begin, end).toString()}`);
  await writeFile(target.replace(/\.jsonl$/, '.reference.txt'), await decode(environment, options, target));
}

async function decode(environment: Environment, options: Options, capture: string): Promise<string> {
  const python = join(await environment.python(options.version), 'python');
  const { stdout } = await run(python, [environment.script('reference.py'), capture, 'tiny']);
  return stdout;
}
