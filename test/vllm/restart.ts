/**
 * kill -9 of steptap under six streams, and a start one second later. A Rust frontend goes on. A libzmq frontend
 * never sends to the returned engine again, steptap or not; then `/readyz` must say so.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { countOf, scrape, sumOf, total } from './comparison.js';
import type { Environment } from './environment.js';
import type { Options } from './options.js';
import { startPair, stopInOrder } from './pair.js';
import { until } from './process.js';
import { frontendName, type Proof } from './report.js';
import { ask, Streams } from './streams.js';

const STREAMS = 6;
const TOKENS = 1500;
const DOWN_MS = 1000;
const HANGS_MS = 15_000;

export async function proveRestart(
  environment: Environment,
  options: Options,
  folder: string,
): Promise<Proof> {
  const pair = await startPair(environment, options, { folder });
  const problems: string[] = [];
  const facts: string[] = [];
  try {
    const streams = new Streams(pair.serving.url, { count: STREAMS, tokens: TOKENS, timeout: HANGS_MS });
    await until('all streams flow', async () => (streams.started ? true : undefined), { deadline: 60_000 });
    const before = await scrape(`${pair.sidecar.url}/metrics`);
    pair.sidecar.process.kill('SIGKILL');
    await pair.sidecar.process.closed();
    await pause(DOWN_MS);
    pair.sidecar = await pair.restartSidecar();
    facts.push(`down ${DOWN_MS} ms, bound again ${pair.sidecar.boundAfter} ms after its start`);
    await streams.done();
    facts.push(`${streams.completed} of ${STREAMS} streams completed, longest gap ${streams.longestGap} ms`);
    facts.push(...streams.problems);
    const after = await scrape(`${pair.sidecar.url}/metrics`);
    facts.push(
      `counted before ${countOf(before)} steps, ${sumOf(before)} tokens; after ${countOf(after)}, ${sumOf(after)}`,
    );
    facts.push(`adopted requests: ${total(after, 'steptap_adopted_requests_total')}`);
    // one that is sent before the engine is back may be lost; the next one tells
    let fresh = await ask(pair.serving.url, HANGS_MS);
    if (!fresh.ok) {
      facts.push(`a request right after the restart: ${fresh.what}`);
      fresh = await ask(pair.serving.url, HANGS_MS);
    }
    const health = await pair.sidecar.probe('/readyz');
    const usable = total(await scrape(`${pair.sidecar.url}/metrics`), 'steptap_frontend_path_usable');
    facts.push(
      `a new request: ${fresh.what} (${fresh.ms} ms); /readyz ${health.status} ${health.text.trim()}`,
    );
    facts.push(`steptap_frontend_path_usable ${usable}`);
    if (streams.completed !== STREAMS) problems.push(`streams lost: ${streams.problems.join('; ')}`);
    if (options.frontend === 'rust' && !fresh.ok) problems.push('the Rust frontend did not go on');
    if (fresh.ok !== (health.status === 200))
      problems.push('/readyz does not say whether requests get through');
    if (fresh.ok !== (usable === 1)) problems.push('steptap_frontend_path_usable is wrong');
  } finally {
    problems.push(...(await stopInOrder(pair)));
  }
  return { row: `| ${frontendName(options)} | ${options.mode} | ${facts.join('; ')} |`, problems };
}
