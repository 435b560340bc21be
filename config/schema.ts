import convict from 'convict';
import type { Format } from './format.js';
import { bindHost, dialEndpoint, httpUrl, listenEndpoint, peerHost, portRange, tcpPort } from './network.js';
import type { Settings } from './settings.js';
import { globs, modelName, oneOf, path, secret } from './text.js';
import { byteSize, duration } from './units.js';

const FORMATS = {
  'bind-host': bindHost,
  'byte-size': byteSize,
  'dial-endpoint': dialEndpoint,
  globs,
  'http-url': httpUrl,
  'listen-endpoint': listenEndpoint,
  'log-format': oneOf(['json', 'pretty']),
  'log-level': oneOf(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']),
  milliseconds: duration,
  'model-name': modelName,
  path,
  'peer-host': peerHost,
  'port-range': portRange,
  secret,
  'tcp-port': tcpPort,
} satisfies Record<string, Format<unknown>>;

/** One setting. `doc`, `default`, `format`, `env`, `arg`, `sensitive` and `nullable` are convict's. */
interface Entry<T> {
  readonly doc: string;
  readonly default: T;
  readonly format: keyof typeof FORMATS;
  readonly env: string;
  /** The flag without its dashes. A secret has none: everybody on a machine can read command lines. */
  readonly arg?: string;
  readonly sensitive?: boolean;
  readonly nullable?: boolean;
  /** The word that is written for null: `off` may be given, too, the others are only shown. */
  readonly whenNull?: 'off' | '0' | 'not set';
  /** What the default is, where that depends on something else. */
  readonly defaultText?: string;
}

type Entries = {
  readonly [G in keyof Settings]: { readonly [K in keyof Settings[G]]: Entry<Settings[G][K]> };
};

/** Every setting there is. Flags, environment variables, file keys, help, README and check-config come from here. */
const SCHEMA: Entries = {
  ipc: {
    dir: {
      doc: 'Directory of the sockets of a vLLM on this node; steptap takes each of them over.',
      default: null,
      format: 'path',
      env: 'STEPTAP_IPC_DIR',
      arg: 'ipc-dir',
      nullable: true,
      whenNull: 'off',
      defaultText: 'VLLM_RPC_BASE_PATH if set, else off',
    },
  },
  frontend: {
    handshake: {
      doc: 'Where the frontend listens for engines on other nodes; dialled. Needs engine.handshake.',
      default: null,
      format: 'dial-endpoint',
      env: 'STEPTAP_FRONTEND_HANDSHAKE',
      arg: 'frontend-handshake',
      nullable: true,
      whenNull: 'off',
    },
    url: {
      doc: 'HTTP address of the frontend, asked for the model name.',
      default: 'http://127.0.0.1:8000',
      format: 'http-url',
      env: 'STEPTAP_FRONTEND_URL',
      arg: 'frontend-url',
    },
    apiKey: {
      doc: 'Bearer token for frontend.url. Never printed; no flag, since command lines are public.',
      default: null,
      format: 'secret',
      env: 'STEPTAP_FRONTEND_API_KEY',
      sensitive: true,
      nullable: true,
      whenNull: 'not set',
    },
  },
  engine: {
    handshake: {
      doc: 'Where steptap listens for engines on other nodes. Needs frontend.handshake.',
      default: null,
      format: 'listen-endpoint',
      env: 'STEPTAP_ENGINE_HANDSHAKE',
      arg: 'engine-handshake',
      nullable: true,
      whenNull: 'off',
    },
    advertiseHost: {
      doc: 'Host that engines are told to send to. Needed when engine.handshake is a wildcard.',
      default: null,
      format: 'peer-host',
      env: 'STEPTAP_ADVERTISE_HOST',
      arg: 'advertise-host',
      nullable: true,
      whenNull: 'not set',
      defaultText: 'host of engine.handshake',
    },
    ports: {
      doc: 'Ports of the listeners for requests and outputs, for a firewall to let through; 0: any free ones.',
      default: null,
      format: 'port-range',
      env: 'STEPTAP_ENGINE_PORTS',
      arg: 'engine-ports',
      nullable: true,
      whenNull: '0',
    },
  },
  model: {
    name: {
      doc: 'Value of the label model_name.',
      default: null,
      format: 'model-name',
      env: 'STEPTAP_MODEL_NAME',
      arg: 'model-name',
      nullable: true,
      whenNull: 'not set',
      defaultText: 'asked from the frontend: first entry of /v1/models',
    },
  },
  tracking: {
    requestIds: {
      doc: 'Which requests to count: comma-separated globs over request ids, ! in front excludes.',
      default: ['*'],
      format: 'globs',
      env: 'STEPTAP_TRACK',
      arg: 'track',
    },
  },
  metrics: {
    host: {
      doc: 'Address the HTTP server listens on.',
      default: '0.0.0.0',
      format: 'bind-host',
      env: 'STEPTAP_METRICS_HOST',
      arg: 'metrics-host',
    },
    port: {
      doc: 'Port of the HTTP server; 0: any free port, which is logged.',
      default: 9464,
      format: 'tcp-port',
      env: 'STEPTAP_METRICS_PORT',
      arg: 'metrics-port',
    },
  },
  state: {
    path: {
      doc: 'File that tells a restarted steptap which sockets and engines there were.',
      default: null,
      format: 'path',
      env: 'STEPTAP_STATE_PATH',
      arg: 'state-path',
      nullable: true,
      whenNull: 'off',
      defaultText: '<ipc.dir>/.steptap.json, or off',
    },
  },
  decode: {
    maxFrameBytes: {
      doc: 'Larger frames are relayed but not read.',
      default: 64 * 1024 ** 2,
      format: 'byte-size',
      env: 'STEPTAP_DECODE_MAX_FRAME_BYTES',
      arg: 'decode-max-frame-bytes',
    },
  },
  drain: {
    timeout: {
      doc: 'How long to relay on after SIGTERM while connections are open: 30s, 2m, 500ms; a bare number is milliseconds.',
      default: 30_000,
      format: 'milliseconds',
      env: 'STEPTAP_DRAIN_TIMEOUT',
      arg: 'drain-timeout',
    },
  },
  log: {
    level: {
      doc: 'Least severe level to log: trace, debug, info, warn, error, fatal or silent.',
      default: 'info',
      format: 'log-level',
      env: 'STEPTAP_LOG_LEVEL',
      arg: 'log-level',
    },
    format: {
      doc: 'json for machines or pretty (coloured lines) for people.',
      default: 'json',
      format: 'log-format',
      env: 'STEPTAP_LOG_FORMAT',
      arg: 'log-format',
    },
  },
};

/** `ipc.dir`, `frontend.handshake`, … */
export type SettingName = {
  [G in keyof Settings]: `${G}.${keyof Settings[G] & string}`;
}[keyof Settings];

/** A setting as flags, environment, file and help texts see it. */
export interface Setting {
  readonly name: SettingName;
  readonly doc: string;
  readonly env: string;
  /** With its dashes; null for a setting that has none. */
  readonly flag: string | null;
  readonly isSensitive: boolean;
  readonly isNullable: boolean;
  readonly whenNull: string;
  readonly format: Format<unknown>;
  /** As a person would write it. */
  readonly defaultText: string;
}

function settingOf(name: SettingName, entry: Entry<unknown>): Setting {
  const format: Format<unknown> = FORMATS[entry.format];
  const whenNull = entry.whenNull ?? 'off';
  return {
    name,
    doc: entry.doc,
    env: entry.env,
    flag: entry.arg === undefined ? null : `--${entry.arg}`,
    isSensitive: entry.sensitive === true,
    isNullable: entry.nullable === true,
    whenNull,
    format,
    defaultText: entry.defaultText ?? (entry.default === null ? whenNull : format.print(entry.default)),
  };
}

/** All settings in the order of the schema. */
export const SETTINGS: readonly Setting[] = Object.entries(SCHEMA).flatMap(([group, entries]) =>
  Object.entries<Entry<unknown>>(entries).map(([key, entry]) =>
    settingOf(`${group}.${key}` as SettingName, entry),
  ),
);

/** The value of a setting; undefined where there is none. */
export function valueAt(settings: Settings, name: SettingName): unknown {
  const [group = '', key = ''] = name.split('.');
  const values = Object.entries(settings).find(([candidate]) => candidate === group)?.[1] ?? {};
  return Object.entries(values).find(([candidate]) => candidate === key)?.[1];
}

/** The value as it is written, null as the word that stands for it, a secret as `[redacted]`. */
export function printValue(setting: Setting, value: unknown): string {
  return value === null ? setting.whenNull : setting.format.print(value);
}

for (const [name, format] of Object.entries<Format<unknown>>(FORMATS)) {
  convict.addFormat({
    name,
    validate: (value: unknown) => {
      if (!format.holds(value)) throw new Error(`must be ${format.allowed}`);
    },
    coerce: (raw: unknown) => format.parse(raw),
  });
}

/** A convict configuration that holds the defaults. It reads neither process.env nor process.argv by itself. */
export function createConfiguration(): convict.Config<Settings> {
  return convict<Settings>(SCHEMA as convict.Schema<Settings>, { env: {}, args: [] });
}
