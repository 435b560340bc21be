/** The real sidecar as a process of its own: `steptap run` as built. */
import { request } from 'undici';
import { Child, type JsonLine } from './child.js';
import { parsePrometheusText } from './prometheus-text.js';

export interface SidecarOptions {
  readonly args: readonly string[];
  readonly env?: NodeJS.ProcessEnv;
  readonly nodeFlags?: readonly string[];
}

export class SidecarProcess {
  readonly child: Child;
  readonly metricsUrl: string;

  constructor(child: Child, metricsUrl: string) {
    this.child = child;
    this.metricsUrl = metricsUrl;
  }

  /** Its log, oldest line first. */
  get logs(): readonly JsonLine[] {
    return this.child.lines;
  }

  /** All samples of `/metrics`, by `seriesKey`. */
  async metrics(): Promise<Map<string, number>> {
    return parsePrometheusText((await this.get('/metrics')).text);
  }

  async readyz(): Promise<{ status: number; text: string }> {
    return this.get('/readyz');
  }

  async status(): Promise<unknown> {
    return JSON.parse((await this.get('/status')).text);
  }

  async get(path: string): Promise<{ status: number; text: string }> {
    const { statusCode, body } = await request(this.metricsUrl + path);
    return { status: statusCode, text: await body.text() };
  }

  /** SIGTERM; resolves with the exit code. */
  stop(): Promise<number> {
    return this.child.stop();
  }

  /** SIGKILL. */
  kill(): Promise<void> {
    return this.child.kill();
  }
}

/** Starts `steptap run` with a free metrics port unless `args` name one; resolves when everything is bound. */
export async function startSidecar({
  args,
  env = {},
  nodeFlags = [],
}: SidecarOptions): Promise<SidecarProcess> {
  const port = args.includes('--metrics-port') ? [] : ['--metrics-host', '127.0.0.1', '--metrics-port', '0'];
  const run = ['run', ...args, ...port];
  const child = new Child('the sidecar', '../../proxy/main.js', run, env, nodeFlags);
  try {
    const { metricsUrl } = await child.line((line) => typeof line['metricsUrl'] === 'string', 'it is bound');
    return new SidecarProcess(child, String(metricsUrl));
  } catch (error) {
    await child.kill();
    throw error;
  }
}
