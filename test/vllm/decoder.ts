/** A capture of steptap's, counted again by vLLM's own decoder of that version (reference.py). */
import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { parsePrometheusText } from '../support/prometheus-text.js';
import { differences, type Samples } from './comparison.js';
import type { Environment } from './environment.js';
import type { Options } from './options.js';

const run = promisify(execFile);

export async function decodedByVllm(
  environment: Environment,
  options: Options,
  { capture, ours, folder }: { capture: string | undefined; ours: Samples; folder: string },
): Promise<{ verdict: string; problems: string[] }> {
  if (capture === undefined) return { verdict: '–', problems: [] };
  const python = join(await environment.python(options.version), 'python');
  const { stdout } = await run(python, [environment.script('reference.py'), capture, 'tiny']);
  await writeFile(join(folder, 'reference.txt'), stdout);
  const problems = differences(ours, parsePrometheusText(stdout)).map((problem) =>
    problem.replace('frontend', 'vLLM’s decoder'),
  );
  return { verdict: problems.length === 0 ? 'equal' : 'DIFFERS', problems };
}
