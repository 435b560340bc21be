/**
 * SIGTERM, in the harder order: steptap first, with streams under way, then vLLM (a kubelet does it the other way
 * round for a native sidecar, as every other proof here does). Draining steptap relays and counts on; when vLLM has
 * gone, it goes.
 */
import { agree } from './agreement.js';
import { ruleFor } from './comparison.js';
import type { Environment } from './environment.js';
import type { Options } from './options.js';
import { startPair } from './pair.js';
import { until } from './process.js';
import { frontendName, type Proof } from './report.js';
import { Streams } from './streams.js';

const STREAMS = 6;
const TOKENS = 400;
const SILENT_MS = 30_000;
const FLOWS_MS = 60_000;
/** Longer than the streams take, so that what ends steptap is that vLLM has gone. */
const DRAIN = ['--drain-timeout', '300s'];
const NO_ABORTS = { requests: 0, tokensLeft: 0 };

export async function proveTermination(
  environment: Environment,
  options: Options,
  folder: string,
): Promise<Proof> {
  const { sidecar, serving } = await startPair(environment, options, { folder, extra: DRAIN });
  const problems: string[] = [];
  const facts: string[] = [];
  try {
    const streams = new Streams(serving.url, { count: STREAMS, tokens: TOKENS, timeout: SILENT_MS });
    await until('all streams flow', async () => (streams.started ? true : undefined), { deadline: FLOWS_MS });
    sidecar.process.kill('SIGTERM');
    const begin = Date.now();
    await until('/readyz 503', async () =>
      (await sidecar.probe('/readyz')).status === 503 ? true : undefined,
    );
    facts.push(`/readyz 503 after ${Date.now() - begin} ms`);
    await streams.done();
    facts.push(`${streams.completed} of ${STREAMS} streams complete while draining`);
    facts.push(`longest gap ${streams.longestGap} ms`);
    if (streams.completed !== STREAMS) problems.push(...streams.problems);
    const rule = ruleFor(
      options.frontend,
      options.frontend === 'rust' ? options.frontendVersion : options.version,
    );
    const urls = { ours: `${sidecar.url}/metrics`, theirs: `${serving.url}/metrics` };
    const agreement = await agree(rule, urls, NO_ABORTS);
    facts.push(`series: ${agreement.verdict}`);
    problems.push(...agreement.problems);
  } finally {
    const begin = Date.now();
    await serving.stop();
    facts.push(`vLLM ended ${Date.now() - begin} ms after its SIGTERM`);
    const middle = Date.now();
    await until('steptap has ended', async () => (sidecar.process.running ? undefined : true)).catch(
      () => undefined,
    );
    facts.push(`steptap ${Date.now() - middle} ms later with exit code ${sidecar.process.exitCode}`);
    await sidecar.process.stop();
  }
  if (sidecar.process.exitCode !== 0) problems.push(`steptap ended with ${sidecar.process.exitCode}`);
  return { row: `| ${frontendName(options)} | ${options.mode} | ${facts.join('; ')} |`, problems };
}
