/** steptap as a process of its own, as in a pod. */
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { request } from 'undici';
import { Process, until } from './process.js';

const DIST = fileURLToPath(new URL('../../', import.meta.url));

export interface SidecarOptions {
  readonly log: string;
  readonly frontendUrl: string;
  readonly ipcDir?: string;
  /** Where the frontend listens for engines, and where steptap does instead. */
  readonly handshake?: { readonly frontend: string; readonly engine: string };
  readonly metricsPort?: number;
  /** File to write everything that passes to. */
  readonly capture?: string;
  readonly extra?: readonly string[];
}

export class Sidecar {
  readonly process: Process;
  readonly url: string;
  /** Milliseconds from the start of the process to its line `bound`. */
  readonly boundAfter: number;

  private constructor(process: Process, url: string, boundAfter: number) {
    this.process = process;
    this.url = url;
    this.boundAfter = boundAfter;
  }

  static async start(options: SidecarOptions): Promise<Sidecar> {
    const begin = Date.now();
    const child = new Process({
      name: 'steptap',
      command: process.execPath,
      args: commandLine(options),
      log: options.log,
    });
    const seen = (await child.output()).length;
    const url = await until('steptap bound', async () => boundUrl((await child.output()).slice(seen)), {
      alive: [child],
    });
    return new Sidecar(child, url, Date.now() - begin);
  }

  /** The status of a probe, 0 when there is no answer, and its text. */
  async probe(path: string): Promise<{ status: number; text: string }> {
    try {
      const { statusCode, body } = await request(this.url + path);
      return { status: statusCode, text: await body.text() };
    } catch {
      return { status: 0, text: '' };
    }
  }
}

/** A capture needs the sidecar composed with a sink, which the command line does not offer. */
function commandLine(options: SidecarOptions): string[] {
  const program =
    options.capture === undefined
      ? [join(DIST, 'proxy', 'main.js'), 'run']
      : [join(DIST, 'test', 'vllm', 'capturing-sidecar.js'), options.capture];
  const args = [
    ...program,
    '--metrics-host',
    '127.0.0.1',
    '--metrics-port',
    String(options.metricsPort ?? 0),
  ];
  args.push('--frontend-url', options.frontendUrl);
  if (options.ipcDir !== undefined) args.push('--ipc-dir', options.ipcDir);
  if (options.handshake !== undefined)
    args.push(
      '--frontend-handshake',
      options.handshake.frontend,
      '--engine-handshake',
      options.handshake.engine,
    );
  return [...args, ...(options.extra ?? [])];
}

function boundUrl(output: string): string | undefined {
  for (const line of output.split('\n')) {
    if (!line.includes('"bound"')) continue;
    try {
      const { msg, metricsUrl } = JSON.parse(line) as { msg?: string; metricsUrl?: string };
      if (msg === 'bound' && metricsUrl !== undefined) return metricsUrl.replace(/\/(metrics)?$/, '');
    } catch {
      // a line that is still being written
    }
  }
  return undefined;
}
