import test from 'ava';
import { describeSettings, settingsTable } from '../../config/describe.js';
import { loadSettings } from '../../config/load.js';
import { SETTINGS, valueAt } from '../../config/schema.js';
import { configFile } from './files.js';

/** A value for each setting that differs from its default, as text and as the effective value. */
const OTHER: Readonly<Record<string, readonly [text: string, value: unknown]>> = {
  'ipc.dir': ['/run/vllm', '/run/vllm'],
  'frontend.handshake': ['tcp://frontend:5550', 'tcp://frontend:5550'],
  'frontend.url': ['https://vllm:8443/base/', 'https://vllm:8443/base'],
  'frontend.apiKey': [' sk-1234\n', 'sk-1234'],
  'engine.handshake': ['tcp://[fd00::1]:5551', 'tcp://[fd00::1]:5551'],
  'engine.advertiseHost': ['[fd00::2]', 'fd00::2'],
  'engine.ports': ['29600-29699', { first: 29600, last: 29699 }],
  'model.name': ['meta/"llama"', 'meta/"llama"'],
  'tracking.requestIds': ['cmpl-*, !cmpl-{a,b}', ['cmpl-*', '!cmpl-{a,b}']],
  'metrics.host': ['127.0.0.1', '127.0.0.1'],
  'metrics.port': ['0', 0],
  'state.path': ['/var/lib/steptap.json', '/var/lib/steptap.json'],
  'decode.maxFrameBytes': ['1 GiB', 1024 ** 3],
  'drain.timeout': ['2m', 120_000],
  'log.level': ['debug', 'debug'],
  'log.format': ['pretty', 'pretty'],
};

/** The two that every configuration with a handshake needs. */
const BASE = ['--ipc-dir=/run/base', '--frontend-handshake=tcp://f:1', '--engine-handshake=tcp://e:2'];

function without(flag: string | null): string[] {
  return BASE.filter((argument) => flag === null || !argument.startsWith(`${flag}=`));
}

function nested(name: string, value: unknown): string {
  const [group = '', key = ''] = name.split('.');
  return JSON.stringify({ [group]: { [key]: value } });
}

test('every setting of the schema is tried here', (t) => {
  t.deepEqual(
    SETTINGS.map(({ name }) => name).sort(),
    Object.keys(OTHER).sort() as (typeof SETTINGS)[number]['name'][],
  );
});

for (const setting of SETTINGS) {
  const [text, value] = OTHER[setting.name] ?? ['', null];
  const base = without(setting.flag);

  test(`${setting.name} comes from the file`, (t) => {
    const file = configFile('steptap.json', nested(setting.name, text));
    const { settings, sources, origins } = loadSettings([...base, '--config', file], {});
    t.deepEqual(valueAt(settings, setting.name), value);
    t.is(sources[setting.name], 'file');
    t.is(origins[setting.name], `file ${file}`);
  });

  test(`${setting.name} comes from the environment, which beats the file`, (t) => {
    const file = configFile('steptap.json', setting.isNullable ? nested(setting.name, null) : '{}');
    const { settings, sources, origins } = loadSettings([...base, '--config', file], { [setting.env]: text });
    t.deepEqual(valueAt(settings, setting.name), value);
    t.is(sources[setting.name], 'environment');
    t.is(origins[setting.name], `environment ${setting.env}`);
  });

  const { flag } = setting;
  if (flag === null) continue;
  test(`${flag} beats environment and file, written either way`, (t) => {
    const file = configFile('steptap.json', nested(setting.name, text));
    for (const written of [[`${flag}=${text}`], [flag, text]]) {
      const argv = [...base, '--config', file, ...written];
      const { settings, sources, origins } = loadSettings(argv, { [setting.env]: text });
      t.deepEqual(valueAt(settings, setting.name), value);
      t.is(sources[setting.name], 'flag');
      t.is(origins[setting.name], `flag ${flag}`);
    }
  });
}

test('without anything but a directory all is at its default', (t) => {
  const { settings, sources } = loadSettings(['--ipc-dir', '/run/vllm'], {});
  t.deepEqual(settings, {
    ipc: { dir: '/run/vllm' },
    frontend: { handshake: null, url: 'http://127.0.0.1:8000', apiKey: null },
    engine: { handshake: null, advertiseHost: null, ports: null },
    model: { name: null },
    tracking: { requestIds: ['*'] },
    metrics: { host: '0.0.0.0', port: 9464 },
    state: { path: '/run/vllm/.steptap.json' },
    decode: { maxFrameBytes: 67_108_864 },
    drain: { timeout: 30_000 },
    log: { level: 'info', format: 'json' },
  });
  t.deepEqual([...new Set(Object.values(sources))].sort(), ['default', 'flag']);
});

test('a later source wins with a value of its own', (t) => {
  const file = configFile('c.yaml', 'metrics:\n  port: 1001\ndrain:\n  timeout: 1s\nlog:\n  level: warn\n');
  const env = { STEPTAP_METRICS_PORT: '1002', STEPTAP_DRAIN_TIMEOUT: '2s' };
  const argv = ['--ipc-dir=/x', '--config', file, '--metrics-port=1003'];
  const { settings } = loadSettings(argv, env);
  t.is(settings.metrics.port, 1003);
  t.is(settings.drain.timeout, 2000);
  t.is(settings.log.level, 'warn');
});

test('a file may hold numbers, lists and null as YAML and JSON have them', (t) => {
  const yaml = configFile(
    'steptap.conf',
    'ipc: {dir: /x}\nengine: {ports: 0}\ntracking:\n  requestIds: [a*, x]\nmetrics:\n' +
      'decode: {maxFrameBytes: 1024}\ndrain: {timeout: 1500}\nstate: {path: null}\n',
  );
  const { settings } = loadSettings(['--config', yaml], {});
  t.is(settings.engine.ports, null);
  t.deepEqual(settings.tracking.requestIds, ['a*', 'x']);
  t.is(settings.decode.maxFrameBytes, 1024);
  t.is(settings.drain.timeout, 1500);
  t.is(settings.state.path, null);
  t.is(settings.metrics.port, 9464);
});

test('an empty file changes nothing', (t) => {
  t.is(loadSettings(['--ipc-dir=/x', '--config', configFile('e.yaml', '')], {}).settings.metrics.port, 9464);
});

test('an empty environment variable counts as not set', (t) => {
  const { settings, sources } = loadSettings(['--ipc-dir=/x'], {
    STEPTAP_METRICS_PORT: '',
    VLLM_RPC_BASE_PATH: '',
  });
  t.is(settings.metrics.port, 9464);
  t.is(sources['metrics.port'], 'default');
});

test('VLLM_RPC_BASE_PATH is the socket directory unless something else is said', (t) => {
  const env = { VLLM_RPC_BASE_PATH: '/run/vllm' };
  const { settings, origins } = loadSettings([], env);
  t.is(settings.ipc.dir, '/run/vllm');
  t.is(origins['ipc.dir'], 'environment VLLM_RPC_BASE_PATH');
  t.is(loadSettings(['--ipc-dir', '/y'], env).settings.ipc.dir, '/y');
  t.is(loadSettings([], { ...env, STEPTAP_IPC_DIR: '/z' }).settings.ipc.dir, '/z');
  const file = configFile('c.json', '{"ipc": {"dir": "/w"}}');
  t.is(loadSettings(['--config', file], env).settings.ipc.dir, '/w');
  const both = ['--ipc-dir=off', '--frontend-handshake=tcp://f:1', '--engine-handshake=tcp://e:2'];
  t.is(loadSettings(both, env).settings.ipc.dir, null);
});

test('the state file is in the socket directory, off without one, and can be switched off', (t) => {
  const handshake = ['--frontend-handshake=tcp://f:1', '--engine-handshake=tcp://e:2'];
  t.is(loadSettings(handshake, {}).settings.state.path, null);
  t.is(loadSettings([...handshake, '--state-path=/s'], {}).settings.state.path, '/s');
  t.is(loadSettings(['--ipc-dir=/x', '--state-path=off'], {}).settings.state.path, null);
});

test('engines are told the host of engine.handshake, without brackets, unless another is set', (t) => {
  const argv = ['--frontend-handshake=tcp://f:1', '--engine-handshake'];
  t.is(loadSettings([...argv, 'tcp://[::1]:2'], {}).settings.engine.advertiseHost, '::1');
  const told = loadSettings([...argv, 'tcp://*:2', '--advertise-host=pod-0.svc'], {});
  t.is(told.settings.engine.advertiseHost, 'pod-0.svc');
  t.is(told.settings.engine.handshake, 'tcp://0.0.0.0:2');
});

test('a relative path counts from the working directory', (t) => {
  t.is(loadSettings(['--ipc-dir=sockets'], {}).settings.ipc.dir, `${process.cwd()}/sockets`);
});

test('a flag keeps the text as it was written', (t) => {
  for (const name of ['007', '0x10', '1e3', 'false', '-x', 'a=b']) {
    t.is(loadSettings(['--ipc-dir=/x', `--model-name=${name}`], {}).settings.model.name, name);
  }
});

test('the variables that Kubernetes makes of a service named steptap are not settings', (t) => {
  const env = {
    STEPTAP_SERVICE_HOST: '10.0.0.1',
    STEPTAP_SERVICE_PORT: '9464',
    STEPTAP_SERVICE_PORT_METRICS: '9464',
    STEPTAP_PORT: 'tcp://10.0.0.1:9464',
    STEPTAP_PORT_9464_TCP: 'tcp://10.0.0.1:9464',
    STEPTAP_PORT_9464_TCP_ADDR: '10.0.0.1',
    STEPTAP_METRICS_SERVICE_HOST: '10.0.0.2',
    STEPTAP_METRICS_PORT: 'tcp://10.0.0.2:9464',
  };
  t.is(loadSettings(['--ipc-dir=/x'], env).settings.metrics.port, 9464);
  t.throws(() => loadSettings(['--ipc-dir=/x'], { STEPTAP_PORT: '9464' }));
});

test('check-config prints every setting, its value and where that comes from, and no secret', (t) => {
  const file = configFile('c.yaml', 'frontend: {apiKey: sk-secret}\nlog: {level: warn}\n');
  const argv = [
    '--config',
    file,
    '--engine-ports=29600-29699',
    '--drain-timeout=90000',
    '--model-name= a\tb',
  ];
  const text = describeSettings(loadSettings(argv, { VLLM_RPC_BASE_PATH: '/run/vllm' }));
  t.is(
    text,
    `SETTING               VALUE                    SOURCE
ipc.dir               /run/vllm                environment VLLM_RPC_BASE_PATH
frontend.handshake    off                      default
frontend.url          http://127.0.0.1:8000    default
frontend.apiKey       [redacted]               file ${file}
engine.handshake      off                      default
engine.advertiseHost  not set                  default
engine.ports          29600-29699              flag --engine-ports
model.name            "a\\tb"                   flag --model-name
tracking.requestIds   *                        default
metrics.host          0.0.0.0                  default
metrics.port          9464                     default
state.path            /run/vllm/.steptap.json  default
decode.maxFrameBytes  64 MiB                   default
drain.timeout         90s                      flag --drain-timeout
log.level             warn                     file ${file}
log.format            json                     default
`,
  );
});

test('the table has one row per setting, five cells wide', (t) => {
  const rows = settingsTable().trimEnd().split('\n');
  t.is(rows.length, SETTINGS.length + 2);
  for (const row of rows) t.is(row.split(/(?<!\\)\|/).length, 7, row);
  t.true(
    rows.some((row) =>
      row.includes('| metrics.port | `--metrics-port PORT` | `STEPTAP_METRICS_PORT` | 9464 |'),
    ),
  );
  t.true(rows.some((row) => row.includes('| frontend.apiKey | – | `STEPTAP_FRONTEND_API_KEY` | not set |')));
});
