/**
 * The newest Rust frontend against the embedded engine, through steptap in handshake mode: a real frontend without
 * torch. Where its wheel can't be had, the proof is skipped and says so.
 */
import { join } from 'node:path';
import { messageOf } from '../../proxy/errors.js';
import { StandInEngine } from '../support/engine.js';
import { agree } from './agreement.js';
import { countOf, scrape, sumOf } from './comparison.js';
import type { Environment } from './environment.js';
import { type Ask, freshLoad, send } from './load.js';
import type { Options } from './options.js';
import { Process, until } from './process.js';
import type { Proof } from './report.js';
import { freePorts, healthy } from './serving.js';
import { Sidecar } from './sidecar.js';

const START_MS = 30_000;
/** Of every prompt, so that cached tokens occur. */
const CACHED_SHARE = 0.25;
const NO_ABORTS = { requests: 0, tokensLeft: 0 };

export async function proveQuick(environment: Environment, options: Options, folder: string): Promise<Proof> {
  let binary: string;
  let model: string;
  try {
    binary = await environment.rustFrontend(options.frontendVersion);
    model = await environment.model();
  } catch (error) {
    const row = `skipped: the Rust frontend ${options.frontendVersion} can't be had: ${messageOf(error)}`;
    return { row, problems: [] };
  }
  const ports = await freePorts();
  const [url, frontendAt, tapAt] = [
    `http://127.0.0.1:${ports.http}`,
    `tcp://127.0.0.1:${ports.handshake}`,
    `tcp://127.0.0.1:${ports.tap}`,
  ];
  const sidecar = await Sidecar.start({
    ...{ log: join(folder, 'steptap.log'), frontendUrl: url },
    ...{ handshake: { frontend: frontendAt, engine: tapAt } },
    extra: ['--state-path', join(folder, 'state.json')],
  });
  const frontend = new Process({
    name: 'Rust frontend',
    command: binary,
    args: [
      ...['serve', model, '--served-model-name', 'tiny', '--host', '127.0.0.1', '--port', String(ports.http)],
      ...['--data-parallel-size', '1', '--data-parallel-size-local', '0'],
      ...['--data-parallel-address', '127.0.0.1', '--data-parallel-rpc-port', String(ports.handshake)],
    ],
    env: { HF_HUB_OFFLINE: '1' },
    log: join(folder, 'frontend.log'),
  });
  const engine = new StandInEngine({ cachedShare: CACHED_SHARE, batchSize: 8 });
  try {
    await engine.start(tapAt, START_MS);
    await until('the Rust frontend is healthy', () => healthy(url), {
      deadline: START_MS,
      alive: [frontend],
    });
    const urls = { ours: `${sidecar.url}/metrics`, theirs: `${url}/metrics` };
    await until('the model name is known', async () =>
      [...(await scrape(urls.ours)).keys()].some((key) => key.includes('model_name="tiny"'))
        ? true
        : undefined,
    );
    const load = freshLoad().filter(withoutLogprobs);
    const answers = await send(url, load);
    const failures = answers.filter(({ ok }) => !ok).map(({ problem }) => `a request failed: ${problem}`);
    const { ours, problems, verdict } = await agree('exact', urls, NO_ABORTS);
    const row =
      `Rust ${options.frontendVersion}, embedded engine: ${answers.length} requests, ` +
      `${countOf(ours)} observations, ${sumOf(ours)} tokens: ${verdict}`;
    return { row, problems: [...failures, ...engine.errors, ...problems] };
  } finally {
    await frontend.stop();
    await engine.stop();
    await sidecar.process.stop();
  }
}

/** The embedded engine has no model, so it knows none. */
function withoutLogprobs(ask: Ask): boolean {
  return ask.body['logprobs'] === undefined;
}
