/** `LLM()` in a script, with the socket directory as its only change. */
import { mkdtemp, readFile, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parsePrometheusText } from '../support/prometheus-text.js';
import { compare, countOf, differences, ruleFor, scrape, sumOf } from './comparison.js';
import type { Environment } from './environment.js';
import type { Options } from './options.js';
import { Process, until } from './process.js';
import { markdownRow, type Proof } from './report.js';
import { Sidecar } from './sidecar.js';

const RUN_MS = 400_000;
/** Prompts of offline.py. */
const REQUESTS = 15;

export async function proveOffline(
  environment: Environment,
  options: Options,
  folder: string,
): Promise<Proof> {
  const ipcDir = await mkdtemp(join(tmpdir(), 'vllm-'));
  const metrics = join(folder, 'frontend.metrics.txt');
  const ready = join(folder, 'read');
  const sidecar = await Sidecar.start({
    log: join(folder, 'steptap.log'),
    frontendUrl: 'http://127.0.0.1:9',
    ipcDir,
    extra: ['--model-name', 'tiny'],
  });
  const python = join(await environment.python(options.version), 'python');
  const script = new Process({
    name: 'LLM()',
    command: python,
    args: [environment.script('offline.py'), await environment.model(), metrics, ready],
    env: { VLLM_RPC_BASE_PATH: ipcDir, HF_HUB_OFFLINE: '1', VLLM_CPU_KVCACHE_SPACE: '1' },
    log: join(folder, 'llm.log'),
  });
  const problems: string[] = [];
  try {
    const text = await until('LLM() is done', () => readFile(metrics, 'utf8').catch(() => undefined), {
      deadline: RUN_MS,
      alive: [script, sidecar.process],
    });
    const theirs = parsePrometheusText(text);
    const ours = await scrape(`${sidecar.url}/metrics`);
    const rule = ruleFor('python', options.version);
    problems.push(...compare(rule, ours, theirs));
    const verdict =
      problems.length > 0 ? 'DIFFERS' : differences(ours, theirs).length === 0 ? 'equal' : 'less cached';
    const row = markdownRow({
      ...{
        layout: options,
        offline: true,
        clients: 1,
        requests: REQUESTS,
        count: countOf(ours),
        sum: sumOf(ours),
      },
      parts: [verdict, verdict, '–', '–'],
    });
    return { row, problems };
  } finally {
    await writeFile(ready, '');
    await script.stop();
    await sidecar.process.stop();
  }
}
