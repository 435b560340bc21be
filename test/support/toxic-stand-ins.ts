/** Stand-in frontend and engines on real ZeroMQ sockets around a steptap process, in either way in. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { Child } from './child.js';
import { type EngineOptions, StandInEngine } from './engine.js';
import { type FrontendOptions, StandInFrontend } from './frontend.js';
import { eventually, freePort } from './in-process.js';
import { seriesKey } from './prometheus-text.js';
import type { Way } from './toxic-rig.js';
import { type Scope, scratchDirectory } from './toxic-scope.js';
import { Victim } from './toxic-victim.js';

export const MODEL = 'tiny';

/** What both ends and steptap have to be told, before anything runs. */
export interface Plan {
  readonly way: Way;
  /** steptap's command line. */
  readonly args: readonly string[];
  readonly frontend: FrontendOptions;
  /** Where engines go. In a socket directory: wherever the frontend says. */
  readonly handshake: string | null;
}

/** Both ways with a state file, so that steptap may be killed and started again. */
export async function plan(scope: Scope, way: Way, frontend: FrontendOptions = {}): Promise<Plan> {
  const aside = scratchDirectory(scope);
  const common = ['--metrics-port', '0', '--metrics-host', '127.0.0.1', '--model-name', MODEL];
  if (way === 'directory') {
    const directory = join(aside, 'd');
    mkdirSync(directory);
    const args = ['--ipc-dir', directory, ...common];
    return { way, args, frontend: { modelName: MODEL, directory, ...frontend }, handshake: null };
  }
  const upstream = `tcp://127.0.0.1:${await freePort()}`;
  const handshake = `tcp://127.0.0.1:${await freePort()}`;
  const args = ['--frontend-handshake', upstream, '--engine-handshake', handshake, ...common];
  args.push('--state-path', join(aside, 'state.json'));
  return { way, args, frontend: { modelName: MODEL, handshake: upstream, ...frontend }, handshake };
}

export interface StandIns {
  readonly frontend: StandInFrontend;
  readonly engine: StandInEngine;
  readonly steptap: Victim;
  readonly plan: Plan;
}

/** Frontend and engine in the test's process; resolves when requests can be sent. */
export async function startStandIns(
  scope: Scope,
  way: Way,
  { frontend: frontendOptions = {}, engine: engineOptions = {} }: StandInOptions = {},
): Promise<StandIns> {
  const planned = await plan(scope, way, frontendOptions);
  const steptap = await Victim.start(scope, planned.args);
  const frontend = await new StandInFrontend(planned.frontend).start();
  scope.teardown(() => frontend.stop());
  await allTaken(steptap, planned, 3);
  const engine = new StandInEngine(engineOptions);
  scope.teardown(() => engine.stop());
  await engine.start(planned.handshake ?? frontend.handshakeAddress);
  await frontend.ready();
  return { frontend, engine, steptap, plan: planned };
}

export interface StandInOptions {
  readonly frontend?: FrontendOptions;
  readonly engine?: EngineOptions;
}

/** A frontend as a process of its own, whose sockets steptap has taken; `url` once engines are there. */
export async function spawnFrontend(
  scope: Scope,
  steptap: Victim,
  planned: Plan,
): Promise<{ readonly child: Child; readonly handshake: string; readonly url: () => Promise<string> }> {
  const child = new Child('frontend', 'stand-in-main.js', ['frontend', JSON.stringify(planned.frontend)]);
  scope.teardown(() => child.kill());
  const bound = await child.line(({ event }) => event === 'bound', 'it is bound');
  await allTaken(steptap, planned, 3);
  const url = async () => String((await child.line(({ event }) => event === 'ready', 'it is ready'))['url']);
  return { child, handshake: planned.handshake ?? String(bound['handshake']), url };
}

export function spawnEngine(scope: Scope, handshake: string, options: EngineOptions = {}): Child {
  const child = new Child('engine', 'stand-in-main.js', [
    'engine',
    JSON.stringify({ handshake, ...options }),
  ]);
  scope.teardown(() => child.kill());
  return child;
}

/** What `vllm:iteration_tokens_total` of engine 0 says: observations and tokens. */
export function totals(samples: ReadonlyMap<string, number>): { count: number; sum: number } {
  const value = (suffix: string) =>
    samples.get(seriesKey(`vllm:iteration_tokens_total_${suffix}`, { engine: '0', model_name: MODEL })) ?? 0;
  return { count: value('count'), sum: value('sum') };
}

async function allTaken(steptap: Victim, { way }: Plan, sockets: number): Promise<void> {
  if (way === 'handshake') return;
  await eventually('sockets taken over', async () => {
    const { endpoints } = await steptap.status();
    return endpoints.filter(({ listen }) => listen?.startsWith('ipc:')).length >= sockets;
  });
}
