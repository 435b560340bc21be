import { MAX_SOCKET_PATH_BYTES } from '../proxy/address.js';
import {
  formatEndpoint,
  type HostAndPort,
  isLoopback,
  isWildcard,
  parseEndpoint,
  portRange,
} from './network.js';
import type { SettingName } from './schema.js';
import type { Settings } from './settings.js';

/** What steptap appends to ipc.dir: a slash, vLLM's UUID, and `.up` for the socket that it moved aside. */
const SOCKET_NAME_BYTES = 1 + 36 + 3;

/**
 * What contradicts each other among values that are right by themselves. Settings in `wrong` were given a value
 * that is not right by itself; what depends on them is not judged, their own problem is enough.
 */
export function contradictions(settings: Settings, wrong: ReadonlySet<SettingName>): readonly string[] {
  const rules: readonly [readonly SettingName[], (settings: Settings) => string | null][] = [
    [['ipc.dir', 'frontend.handshake', 'engine.handshake'], nothingToRelay],
    [['frontend.handshake', 'engine.handshake'], halfAHandshake],
    [['engine.handshake', 'engine.advertiseHost'], wildcardToldToEngines],
    [['frontend.handshake', 'engine.handshake'], relaysToItself],
    [['engine.ports', 'engine.handshake'], rangeHoldsHandshakePort],
    [['engine.ports', 'metrics.port'], rangeHoldsMetricsPort],
    [['engine.handshake', 'metrics.port', 'metrics.host'], samePortTwice],
    [['ipc.dir'], socketPathTooLong],
  ];
  return rules.flatMap(([names, rule]) =>
    names.some((name) => wrong.has(name)) ? [] : (rule(settings) ?? []),
  );
}

function listening({ engine }: Settings): HostAndPort | null {
  return engine.handshake === null ? null : parseEndpoint(engine.handshake);
}

function nothingToRelay({ ipc, frontend, engine }: Settings): string | null {
  if (ipc.dir !== null || frontend.handshake !== null || engine.handshake !== null) return null;
  return 'nothing to relay: set --ipc-dir (ipc.dir), or --frontend-handshake with --engine-handshake';
}

function halfAHandshake({ frontend, engine }: Settings): string | null {
  if ((frontend.handshake === null) === (engine.handshake === null)) return null;
  return frontend.handshake === null
    ? `engine.handshake (${engine.handshake}) needs frontend.handshake, the address to dial for the frontend`
    : `frontend.handshake (${frontend.handshake}) needs engine.handshake, the address where engines find steptap`;
}

function wildcardToldToEngines(settings: Settings): string | null {
  const address = listening(settings);
  if (address === null || !isWildcard(address.host) || settings.engine.advertiseHost !== null) return null;
  return `engine.handshake (${formatEndpoint(address)}) is a wildcard: set engine.advertiseHost (--advertise-host) to the host that engines can reach`;
}

function relaysToItself(settings: Settings): string | null {
  const ours = listening(settings);
  if (ours === null || settings.frontend.handshake === null) return null;
  const theirs = parseEndpoint(settings.frontend.handshake);
  const isSameHost =
    ours.host === theirs.host ||
    (isLoopback(theirs.host) && (isLoopback(ours.host) || isWildcard(ours.host)));
  if (ours.port !== theirs.port || !isSameHost) return null;
  return `frontend.handshake (${settings.frontend.handshake}) and engine.handshake (${settings.engine.handshake}) are the same address: steptap would dial itself`;
}

function rangeHolds({ engine }: Settings, port: number): boolean {
  return engine.ports !== null && engine.ports.first <= port && port <= engine.ports.last;
}

function rangeHoldsHandshakePort(settings: Settings): string | null {
  const port = listening(settings)?.port ?? 0;
  if (!rangeHolds(settings, port)) return null;
  return `engine.ports (${portRange.print(settings.engine.ports)}) holds ${port}, the port of engine.handshake`;
}

function rangeHoldsMetricsPort(settings: Settings): string | null {
  const { port } = settings.metrics;
  if (!rangeHolds(settings, port)) return null;
  return `engine.ports (${portRange.print(settings.engine.ports)}) holds ${port}, the port of metrics.port`;
}

function samePortTwice(settings: Settings): string | null {
  const address = listening(settings);
  const { host, port } = settings.metrics;
  if (address === null || address.port === 0 || address.port !== port) return null;
  if (address.host !== host && !isWildcard(address.host) && !isWildcard(host)) return null;
  return `engine.handshake (${settings.engine.handshake}) and metrics.port (${port}) want the same port`;
}

function socketPathTooLong({ ipc }: Settings): string | null {
  if (ipc.dir === null) return null;
  const bytes = Buffer.byteLength(ipc.dir) + SOCKET_NAME_BYTES;
  if (bytes <= MAX_SOCKET_PATH_BYTES) return null;
  return (
    `ipc.dir is too long: a socket <ipc.dir>/<uuid>.up would have a path of ${bytes} bytes and the limit is ` +
    `${MAX_SOCKET_PATH_BYTES}, so ipc.dir may have ${MAX_SOCKET_PATH_BYTES - SOCKET_NAME_BYTES} bytes; it is ${JSON.stringify(ipc.dir)}`
  );
}
