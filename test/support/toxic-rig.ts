/**
 * One frontend and one steptap, with toxic relays before and behind it where a test asks for them, in either of the
 * two ways in:
 *
 *     engine ──[engine side]──► steptap ──[frontend side]──► frontend
 */
import { randomUUID } from 'node:crypto';
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { type Address, formatAddress } from '../../proxy/address.js';
import {
  eventually,
  freePort,
  type LogLine,
  runSidecar,
  type SettingsPatch,
  type Status,
} from './in-process.js';
import { ToxicRelay, type Toxics } from './toxic-relay.js';
import { type Scope, scratchDirectory } from './toxic-scope.js';
import { Victim } from './toxic-victim.js';
import { type Addresses, anyPorts, type Purpose, RawEngine, RawFrontend, socketFiles } from './toxic-vllm.js';

/** `directory`: sockets taken over in place; `handshake`: TCP, addresses replaced in INIT. */
export type Way = 'directory' | 'handshake';
export const WAYS: readonly Way[] = ['directory', 'handshake'];

/** What tests ask of a sidecar, in their own process or in one of its own. */
export interface Watched {
  samples(): Promise<Map<string, number>>;
  sample(name: string, labels?: Readonly<Record<string, string>>): Promise<number | undefined>;
  status(): Promise<Status>;
  get(path: string): Promise<{ status: number; text: string }>;
  logged(level: string, text: string): LogLine[];
}

export interface RigOptions {
  readonly engineSide?: Partial<Toxics>;
  readonly frontendSide?: Partial<Toxics>;
  readonly isRust?: boolean;
  readonly settings?: SettingsPatch;
}

/** The sockets of a way in, laid out before anything runs. */
export interface Layout {
  readonly way: Way;
  /** The socket directory that steptap watches, or null. */
  readonly dir: string | null;
  /** A place for the test's own sockets and files. */
  readonly aside: string;
  /** Where the frontend, or what stands before it, binds. */
  readonly bind: Addresses;
  /** Where engines go for their handshake; with a socket directory it is the frontend's own address. */
  readonly handshake: Address;
}

export async function layOut(scope: Scope, way: Way): Promise<Layout> {
  const aside = scratchDirectory(scope);
  if (way === 'handshake') {
    const handshake = { host: '127.0.0.1', port: await freePort() };
    return { way, dir: null, aside, bind: anyPorts(), handshake };
  }
  const dir = join(aside, 'd');
  mkdirSync(dir);
  const bind = socketFiles(dir);
  return { way, dir, aside, bind, handshake: bind.handshake };
}

export interface Rig<S extends Watched = Watched> {
  readonly layout: Layout;
  readonly frontend: RawFrontend;
  readonly sidecar: S;
  readonly relays: readonly ToxicRelay[];
  /** An engine whose connections stand last in the frontend's lists. */
  join(index: number): Promise<RawEngine>;
}

/** With the sidecar in the test's own process. */
export function startRig(t: ExecutionContext, way: Way, options: RigOptions = {}): Promise<Rig> {
  return assemble(t, way, options, (layout, upstream) =>
    runSidecar(t, { ...settingsOf(layout, upstream), ...options.settings }),
  );
}

/** With the sidecar as a process. */
export function startProcessRig(
  scope: Scope,
  way: Way,
  options: RigOptions & { readonly args?: readonly string[] } = {},
): Promise<Rig<Victim>> {
  return assemble(scope, way, options, (layout, upstream) =>
    Victim.start(scope, [...argsOf(layout, upstream), ...(options.args ?? [])]),
  );
}

/** The sidecar's settings for `layout`, with the frontend's handshake at `upstream`. */
export function settingsOf({ dir, handshake }: Layout, upstream: Address): SettingsPatch {
  return dir === null
    ? { frontend: { handshake: formatAddress(upstream) }, engine: { handshake: formatAddress(handshake) } }
    : { ipc: { dir } };
}

/** The same as flags, with a state file. */
export function argsOf({ dir, aside, handshake }: Layout, upstream: Address): string[] {
  const args = dir === null ? ['--frontend-handshake', formatAddress(upstream)] : ['--ipc-dir', dir];
  if (dir === null)
    args.push('--engine-handshake', formatAddress(handshake), '--state-path', join(aside, 'state.json'));
  return [...args, '--metrics-port', '0', '--model-name', 'tiny', '--log-level', 'debug'];
}

/** All sockets of `addresses` have been taken over. */
export async function takenOver(addresses: Addresses): Promise<void> {
  await eventually('sockets taken over', () =>
    Object.values(addresses).every(
      (address) => !('path' in address) || (existsSync(`${address.path}.up`) && existsSync(address.path)),
    ),
  );
}

async function assemble<S extends Watched>(
  scope: Scope,
  way: Way,
  options: RigOptions,
  startSidecar: (layout: Layout, upstream: Address) => Promise<S>,
): Promise<Rig<S>> {
  const layout = await layOut(scope, way);
  const relays: ToxicRelay[] = [];
  const relayed = async (at: Address, upstream: Address, toxics: Partial<Toxics>): Promise<Address> => {
    const { relay, address } = await ToxicRelay.listen(at, upstream, toxics);
    relays.push(relay);
    scope.teardown(() => relay.close());
    return address;
  };
  const asideAddress = (): Address =>
    way === 'handshake' ? { host: '127.0.0.1', port: 0 } : { path: join(layout.aside, randomUUID()) };

  const publicAddress = new Map<Purpose, Address>();
  const { frontendSide } = options;
  const frontend = await RawFrontend.listen({
    bind:
      frontendSide === undefined
        ? layout.bind
        : { handshake: asideAddress(), requests: asideAddress(), outputs: asideAddress() },
    advertise: (purpose, bound) => publicAddress.get(purpose) ?? bound,
    isRust: options.isRust ?? true,
  });
  scope.teardown(() => frontend.close());
  if (frontendSide !== undefined) {
    for (const purpose of ['handshake', 'requests', 'outputs'] as const) {
      const upstream = frontend.bound[purpose];
      publicAddress.set(purpose, await relayed(layout.bind[purpose], upstream, frontendSide));
    }
  }
  const upstream = publicAddress.get('handshake') ?? frontend.bound.handshake;
  const sidecar = await startSidecar(layout, upstream);
  if (way === 'directory') await takenOver(layout.bind);

  const { engineSide } = options;
  const via = (address: Address) =>
    engineSide === undefined ? address : relayed(asideAddress(), address, engineSide);
  const joinEngine = async (index: number): Promise<RawEngine> => {
    const { requests, outputs } = frontend.peers;
    const before = requests.length + outputs.length;
    const engine = await RawEngine.join(index, layout.handshake, via);
    scope.teardown(() => engine.destroy());
    await eventually('engine at the frontend', () => requests.length + outputs.length === before + 2, 30_000);
    return engine;
  };
  return { layout, frontend, sidecar, relays, join: joinEngine };
}
