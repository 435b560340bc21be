/** Sidecar, frontend and engine as three processes around one socket directory, started in a pod's order. */
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Child, type JsonLine } from './child.js';
import type { EngineOptions } from './engine.js';
import { type SidecarProcess, startSidecar } from './sidecar.js';

export interface DemoStack {
  /** Base URLs, without a slash at the end. */
  readonly frontendUrl: string;
  readonly metricsUrl: string;
  readonly sidecar: SidecarProcess;
  /** Ends all three and removes the directory. */
  stop(): Promise<void>;
}

/** Resolves when the frontend serves requests; what was started is cleaned up when anything fails. */
export async function startDemoStack(engine: EngineOptions, modelName: string): Promise<DemoStack> {
  const directory = await mkdtemp(join(tmpdir(), 'steptap-demo-'));
  const children: Child[] = [];
  const stop = async (): Promise<void> => {
    // Engine and frontend first, as the last pod containers do; the sidecar then has nothing to drain.
    for (const child of children.reverse()) await child.stop().catch(() => {});
    await rm(directory, { recursive: true, force: true });
  };
  try {
    const port = await freePort();
    const frontendUrl = `http://127.0.0.1:${port}`;
    const sidecar = await startSidecar({
      args: ['--ipc-dir', directory, '--frontend-url', frontendUrl],
      env: noSettings(),
    });
    children.push(sidecar.child);
    const frontend = standIn('frontend', { directory, modelName, httpPort: port });
    children.push(frontend);
    const { handshake } = await frontend.line(isEvent('bound'), 'it is bound');
    children.push(standIn('engine', { ...engine, handshake }));
    await frontend.line(isEvent('ready'), 'its engine is ready');
    return { frontendUrl, metricsUrl: sidecar.metricsUrl, sidecar, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** The caller's STEPTAP_ variables are for another sidecar. */
function noSettings(): NodeJS.ProcessEnv {
  const names = Object.keys(process.env).filter((name) => name.startsWith('STEPTAP_'));
  return Object.fromEntries(names.map((name) => [name, undefined]));
}

function standIn(kind: 'frontend' | 'engine', options: Record<string, unknown>): Child {
  return new Child(`the stand-in ${kind}`, 'stand-in-main.js', [kind, JSON.stringify(options)]);
}

function isEvent(name: string): (line: JsonLine) => boolean {
  return (line) => line['event'] === name;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}
