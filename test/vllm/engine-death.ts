/** kill -9 of the engine under load: what a user sees, and what steptap says. */
import { readdir, readFile } from 'node:fs/promises';
import { SteptapError } from '../../proxy/errors.js';
import { scrape, total } from './comparison.js';
import type { Environment } from './environment.js';
import type { Options } from './options.js';
import { startPair } from './pair.js';
import { until } from './process.js';
import type { Proof } from './report.js';
import { ask, Streams } from './streams.js';

const HANGS_MS = 15_000;
const STREAMS = 3;

export async function proveEngineDeath(
  environment: Environment,
  options: Options,
  folder: string,
): Promise<Proof> {
  const pair = await startPair(environment, options, { folder });
  const facts: string[] = [];
  try {
    const streams = new Streams(pair.serving.url, { count: STREAMS, tokens: 3000, timeout: HANGS_MS });
    await until('all streams flow', async () => (streams.started ? true : undefined), { deadline: 60_000 });
    const engine = await engineCore(pair.serving.processes.map(({ pid }) => pid));
    const killed = Date.now();
    process.kill(engine, 'SIGKILL');
    const unready = await until(
      'steptap is no longer ready',
      async () => ((await pair.sidecar.probe('/readyz')).status === 200 ? undefined : Date.now() - killed),
      { deadline: 30_000 },
    ).catch(() => undefined);
    facts.push(unready === undefined ? '/readyz stays 200' : `/readyz 503 after ${unready} ms`);
    await streams.done();
    facts.push(`streams: ${streams.completed} of ${STREAMS} completed; ${streams.problems.join(' / ')}`);
    const fresh = await ask(pair.serving.url, HANGS_MS);
    facts.push(`a new request: ${fresh.what} (${fresh.ms} ms)`);
    const samples = await scrape(`${pair.sidecar.url}/metrics`);
    facts.push(`steptap_engine_dead_total ${total(samples, 'steptap_engine_dead_total')}`);
    facts.push(`frontend ${pair.serving.processes[0]?.running ? 'still runs' : 'has ended'}`);
    const problems = pair.sidecar.process.running ? [] : ['steptap did not survive the engine'];
    const frontend =
      options.frontend === 'rust' ? `Rust ${options.frontendVersion}` : `Python ${options.version}`;
    return { row: `| ${frontend}, ${options.mode} | ${facts.join('; ')} |`, problems };
  } finally {
    await pair.serving.stop();
    await pair.sidecar.process.stop();
  }
}

/** The process that calls itself `VLLM::EngineCore`, among the descendants of these. */
async function engineCore(roots: readonly number[]): Promise<number> {
  const family = new Set(roots);
  const pids = (await readdir('/proc')).map(Number).filter((pid) => pid > 0);
  for (const pid of pids.sort((a, b) => a - b)) {
    const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
    const parent = Number(/^PPid:\s+(\d+)/m.exec(status)?.[1]);
    if (!family.has(parent)) continue;
    family.add(pid);
    if (/^Name:.*EngineCor/m.test(status)) return pid;
    const line = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
    if (line.includes('EngineCore')) return pid;
  }
  throw new SteptapError('NO_ENGINE', 'found no engine core process');
}
