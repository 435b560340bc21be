/** steptap and vLLM side by side, started and stopped in the order of a pod with a native sidecar. */
import { mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { scrape, total } from './comparison.js';
import type { Environment } from './environment.js';
import type { Options } from './options.js';
import { until } from './process.js';
import { freePorts, type Ports, Serving } from './serving.js';
import { Sidecar } from './sidecar.js';

export interface Pair {
  sidecar: Sidecar;
  readonly serving: Serving;
  /** Starts steptap again as it was started first, on the same ports. */
  readonly restartSidecar: () => Promise<Sidecar>;
}

export async function startPair(
  environment: Environment,
  options: Options,
  {
    folder,
    capture,
    extra = [],
  }: { folder: string; capture?: string | undefined; extra?: readonly string[] },
): Promise<Pair> {
  const ports = await freePorts();
  // a unix socket's path has at most 107 bytes
  const ipcDir = await mkdtemp(join(tmpdir(), 'vllm-'));
  const startSidecar = (metricsPort: number) =>
    Sidecar.start({
      log: join(folder, 'steptap.log'),
      frontendUrl: `http://127.0.0.1:${ports.http}`,
      metricsPort,
      ...(capture === undefined ? {} : { capture }),
      ...waysIn(options, ports, ipcDir),
      extra: [...statePath(options, folder), ...extra],
    });
  const sidecar = await startSidecar(0);
  const metricsPort = Number(new URL(sidecar.url).port);
  let serving: Serving | null = null;
  try {
    serving = await Serving.start(environment, options, { ports, ipcDir, logs: folder });
    await until('steptap sees every engine', () => seesEngines(sidecar, visibleEngines(options)));
    return { sidecar, serving, restartSidecar: () => startSidecar(metricsPort) };
  } catch (error) {
    await serving?.stop();
    await sidecar.process.stop();
    throw error;
  }
}

function waysIn(options: Options, ports: Ports, ipcDir: string) {
  const directory = options.mode === 'handshake' ? {} : { ipcDir };
  if (options.mode === 'directory') return directory;
  const handshake = {
    frontend: `tcp://127.0.0.1:${ports.handshake}`,
    engine: `tcp://127.0.0.1:${ports.tap}`,
  };
  return { ...directory, handshake };
}

/** Handshake mode has no directory to keep its state in. */
function statePath(options: Options, folder: string): string[] {
  return options.mode === 'directory' ? [] : ['--state-path', join(folder, 'state.json')];
}

/**
 * With engines on both sides vLLM tells its local ones the TCP address of the frontend's own handshake, so they pass
 * steptap by; only the headless ones can be seen.
 */
export function visibleEngines({ mode, engines }: Options): number {
  return mode === 'mixed' ? engines - 1 : engines;
}

async function seesEngines(sidecar: Sidecar, engines: number): Promise<true | undefined> {
  const samples = await scrape(`${sidecar.url}/metrics`);
  const known = [...samples.keys()].filter((key) =>
    key.startsWith('vllm:iteration_tokens_total_count'),
  ).length;
  const ready = (await sidecar.probe('/readyz')).status === 200;
  return known === engines && ready && total(samples, 'steptap_model_name_known') === 1 ? true : undefined;
}

/**
 * vLLM ends first, then steptap: so a kubelet ends containers and native sidecars. Returns what was not as promised:
 * steptap must leave with 0 by itself, soon after the last connection is gone.
 */
export async function stopInOrder({ serving, sidecar }: Pair): Promise<string[]> {
  const begin = Date.now();
  await serving.stop();
  const middle = Date.now();
  await sidecar.process.stop();
  const end = Date.now();
  const code = sidecar.process.exitCode;
  process.stdout.write(
    `stop: vLLM ${middle - begin} ms, then steptap ${end - middle} ms, exit code ${code}\n`,
  );
  return code === 0 ? [] : [`steptap ended with ${code} after SIGTERM`];
}
