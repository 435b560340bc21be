/**
 * Real vLLM in the layouts steptap has a way into. Command lines are those of README.md; in directory mode vLLM gets
 * one environment variable and nothing else.
 */
import { createServer } from 'node:net';
import { join } from 'node:path';
import { request } from 'undici';
import type { Environment } from './environment.js';
import { Process, until } from './process.js';

export type Mode = 'directory' | 'handshake' | 'mixed';

export interface Layout {
  /** Of the engines, and of a Python frontend. */
  readonly version: string;
  readonly frontend: 'python' | 'rust';
  /** Of a Rust frontend, which may be another than its engines'. */
  readonly frontendVersion: string;
  readonly mode: Mode;
  readonly engines: number;
  /** Frontend clients: `--api-server-count`; undefined: not given. */
  readonly clients: number | undefined;
}

export interface Ports {
  readonly http: number;
  /** Where the frontend listens for engines. */
  readonly handshake: number;
  /** Where steptap does. */
  readonly tap: number;
}

const MODEL_NAME = 'tiny';
/** Two engines on two busy cores have taken 200 s. */
const START_MS = 480_000;

/** bfloat16 would use AMX, which some virtual machines announce and do not have. */
const ENGINE_ARGS = ['--load-format', 'dummy', '--enforce-eager', '--dtype', 'float32'];

export class Serving {
  readonly url: string;
  /** The frontend first. */
  readonly processes: readonly Process[];

  private constructor(url: string, processes: readonly Process[]) {
    this.url = url;
    this.processes = processes;
  }

  /** Starts frontend and engines and waits until `/health` answers 200. */
  static async start(
    environment: Environment,
    layout: Layout,
    { ports, ipcDir, logs }: { ports: Ports; ipcDir: string; logs: string },
  ): Promise<Serving> {
    const model = await environment.model();
    const bin = await environment.python(layout.version);
    const vllm = join(bin, 'vllm');
    const common = {
      HF_HUB_OFFLINE: '1',
      VLLM_CPU_KVCACHE_SPACE: '1',
      VLLM_NO_USAGE_STATS: '1',
      ...(layout.mode === 'handshake' ? {} : { VLLM_RPC_BASE_PATH: ipcDir }),
    };
    const rust =
      layout.frontend === 'rust' ? await environment.rustFrontend(layout.frontendVersion) : undefined;
    const log = (name: string) => join(logs, `${name}.log`);
    const http = ['--served-model-name', MODEL_NAME, '--host', '127.0.0.1', '--port', String(ports.http)];
    const processes: Process[] = [];

    const local = layout.mode === 'directory' ? layout.engines : layout.mode === 'mixed' ? 1 : 0;
    const parallel =
      layout.engines > 1 || local === 0 ? ['--data-parallel-size', String(layout.engines)] : [];
    const remote = ['--data-parallel-address', '127.0.0.1', '--data-parallel-rpc-port'];
    const split =
      layout.mode === 'directory'
        ? []
        : ['--data-parallel-size-local', String(local), ...remote, String(ports.handshake)];
    const several = layout.clients !== undefined ? ['--api-server-count', String(layout.clients)] : [];

    const standalone = rust !== undefined && layout.mode === 'handshake';
    const direct = { VLLM_USE_RUST_FRONTEND: '1', VLLM_RUST_FRONTEND_PATH: rust ?? '' };
    processes.push(
      new Process({
        name: 'frontend',
        command: standalone ? rust : vllm,
        args: [
          'serve',
          model,
          ...http,
          ...(standalone ? [] : ENGINE_ARGS),
          ...parallel,
          ...split,
          ...several,
        ],
        env: { ...common, ...(rust !== undefined && !standalone ? direct : {}) },
        log: log('frontend'),
      }),
    );
    for (let rank = local; rank < layout.engines; rank++)
      processes.push(
        new Process({
          name: `engine ${rank}`,
          command: vllm,
          args: [
            ...['serve', model, ...ENGINE_ARGS, '--headless', ...parallel],
            ...['--data-parallel-size-local', '1'],
            ...(layout.engines > 1 ? ['--data-parallel-start-rank', String(rank)] : []),
            ...[...remote, String(ports.tap)],
          ],
          // with one engine vLLM takes the address from here
          env: { ...common, VLLM_DP_MASTER_IP: '127.0.0.1' },
          log: log(`engine-${rank}`),
        }),
      );

    const url = `http://127.0.0.1:${ports.http}`;
    try {
      await until('vLLM is healthy', () => healthy(url), { deadline: START_MS, alive: processes });
    } catch (error) {
      await Promise.all(processes.map((process) => process.stop()));
      throw error;
    }
    return new Serving(url, processes);
  }

  async stop(): Promise<void> {
    await Promise.all(this.processes.map((process) => process.stop()));
  }
}

export async function healthy(url: string): Promise<true | undefined> {
  try {
    const { statusCode, body } = await request(`${url}/health`, { headersTimeout: 2000 });
    await body.dump();
    return statusCode === 200 ? true : undefined;
  } catch {
    return undefined;
  }
}

/** Ports that are free now. */
export async function freePorts(): Promise<Ports> {
  const [http = 0, handshake = 0, tap = 0] = await Promise.all([freePort(), freePort(), freePort()]);
  return { http, handshake, tap };
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const address = server.address();
      server.close(() => resolve(typeof address === 'object' && address !== null ? address.port : 0));
    });
  });
}
