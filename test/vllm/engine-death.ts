/** The engine dies under load: what a user sees, with steptap and without, and what steptap says. */
import { mkdtemp, readdir, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Agent } from 'undici';
import { SteptapError } from '../../proxy/errors.js';
import { scrape, total } from './comparison.js';
import type { Environment } from './environment.js';
import { sendOne } from './load.js';
import type { Options } from './options.js';
import { startPair } from './pair.js';
import { until } from './process.js';
import { frontendName, type Proof } from './report.js';
import { freePorts, healthy, Serving } from './serving.js';
import type { Sidecar } from './sidecar.js';
import { ask, Streams } from './streams.js';

const HANGS_MS = 15_000;
const STREAMS = 3;
const TOKENS = 3000;
const FLOWS_MS = 60_000;
const NOTICED_MS = 20_000;

export async function proveEngineDeath(
  environment: Environment,
  options: Options,
  folder: string,
): Promise<Proof> {
  const { serving, sidecar } = await start(environment, options, folder);
  const facts: string[] = [];
  const problems: string[] = [];
  try {
    const streams = new Streams(serving.url, { count: STREAMS, tokens: TOKENS, timeout: HANGS_MS });
    await until('all streams flow', async () => (streams.started ? true : undefined), { deadline: FLOWS_MS });
    const begin = Date.now();
    await endEngine(options, serving);
    if (sidecar !== null) facts.push(await noticed(sidecar, begin));
    await streams.done();
    facts.push(
      `${streams.completed} of ${STREAMS} streams complete, the others: ${streams.problems.join(' / ')}`,
    );
    const fresh = await ask(serving.url, HANGS_MS);
    facts.push(`a new request: ${fresh.what} (${fresh.ms} ms)`);
    facts.push(`/health of vLLM ${(await healthy(serving.url)) === true ? '200' : 'not 200'}`);
    facts.push(`frontend process ${serving.processes[0]?.running ? 'runs' : 'has ended'}`);
    if (sidecar?.process.running === false) problems.push('steptap did not survive the engine');
  } finally {
    await serving.stop();
    await sidecar?.process.stop();
  }
  const what = options.engineDeath === 'kill' ? 'kill -9' : 'crash';
  const way = options.withoutSteptap ? 'without steptap' : `steptap, ${options.mode}`;
  return { row: `| ${what} | ${frontendName(options)} | ${way} | ${facts.join('; ')} |`, problems };
}

async function start(
  environment: Environment,
  options: Options,
  folder: string,
): Promise<{ serving: Serving; sidecar: Sidecar | null }> {
  if (!options.withoutSteptap) return startPair(environment, options, { folder });
  const ipcDir = await mkdtemp(join(tmpdir(), 'vllm-'));
  const ports = await freePorts();
  // engines of handshake mode then connect to the frontend itself
  const straight = { ...ports, tap: ports.handshake };
  return {
    serving: await Serving.start(environment, options, { ports: straight, ipcDir, logs: folder }),
    sidecar: null,
  };
}

async function endEngine(options: Options, serving: Serving): Promise<void> {
  if (options.engineDeath === 'kill') {
    process.kill(await engineCore(serving.processes.map(({ pid }) => pid)), 'SIGKILL');
    return;
  }
  const body = { model: 'tiny', prompt: [5, 6], max_tokens: 5, seed: 1 };
  const dispatcher = new Agent({ headersTimeout: HANGS_MS });
  await sendOne(serving.url, { path: '/v1/completions', stream: false, body }, dispatcher);
  await dispatcher.destroy();
}

/** What steptap says, and how soon after `begin`. */
async function noticed(sidecar: Sidecar, begin: number): Promise<string> {
  const after = await until(
    'steptap is no longer ready',
    async () => ((await sidecar.probe('/readyz')).status === 200 ? undefined : Date.now() - begin),
    { deadline: NOTICED_MS },
  ).catch(() => undefined);
  const dead = total(await scrape(`${sidecar.url}/metrics`), 'steptap_engine_dead_total');
  const ready = after === undefined ? '/readyz stays 200' : `/readyz 503 after ${after} ms`;
  return `${ready}; steptap_engine_dead_total ${dead}`;
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
  }
  throw new SteptapError('NO_ENGINE', 'found no engine core process');
}
