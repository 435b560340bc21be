import test from 'ava';
import { SteptapError } from '../../proxy/errors.js';
import { configFile, errorOf, problemsOf } from './files.js';

const DIR = '--ipc-dir=/x';

/** Title, arguments, environment, and what the only problem must say. */
const CASES: readonly (readonly [string, readonly string[], NodeJS.ProcessEnv, RegExp])[] = [
  [
    'an unknown flag',
    [DIR, '--metric-port', '1'],
    {},
    /^unknown flag --metric-port \(did you mean --metrics-port\?\)$/,
  ],
  ['an unknown short flag', [DIR, '-p'], {}, /^unknown flag -p/],
  ['a flag of __proto__', [DIR, '--__proto__=1'], {}, /^unknown flag --__proto__/],
  ['a negated flag', [DIR, '--no-track'], {}, /^unknown flag --no-track/],
  ['a flag without its value', [DIR, '--metrics-port'], {}, /^--metrics-port needs a value/],
  ['a flag that eats the next', ['--model-name', DIR], {}, /^--model-name needs a value/],
  [
    'a flag given twice',
    [DIR, '--metrics-port=1', '--metrics-port=2'],
    {},
    /^--metrics-port is given more than once$/,
  ],
  ['a stray argument', [DIR, 'stray'], {}, /^unexpected argument "stray"$/],
  [
    'an empty flag value',
    [DIR, '--model-name='],
    {},
    /^model.name must be text .* it is "" \(flag --model-name\)$/,
  ],
  [
    'an unknown environment variable',
    [DIR],
    { STEPTAP_METRIC_PORT: '1' },
    /^unknown environment variable STEPTAP_METRIC_PORT \(did you mean STEPTAP_METRICS_PORT\?\)$/,
  ],
  [
    'a port too high',
    [DIR, '--metrics-port=65536'],
    {},
    /^metrics.port must be a TCP port from 0 to 65535 .*"65536" \(flag --metrics-port\)$/,
  ],
  [
    'a port that is a word',
    [DIR],
    { STEPTAP_METRICS_PORT: 'http' },
    /^metrics.port .*"http" \(environment STEPTAP_METRICS_PORT\)$/,
  ],
  [
    'a wrong value that is overridden',
    [DIR, '--metrics-port=1'],
    { STEPTAP_METRICS_PORT: 'x' },
    /^metrics.port /,
  ],
  ['a negative duration', [DIR, '--drain-timeout=-1s'], {}, /^drain.timeout must be a duration/],
  ['a duration without a known unit', [DIR, '--drain-timeout=5d'], {}, /^drain.timeout must be .*"5d"/],
  [
    'a duration no timer can wait',
    [DIR, '--drain-timeout=600h'],
    {},
    /^drain.timeout must be .*at most 24 days/,
  ],
  [
    'a size of nothing',
    [DIR, '--decode-max-frame-bytes=0'],
    {},
    /^decode.maxFrameBytes must be .*1 byte to 4 GiB/,
  ],
  ['a size with a half', [DIR, '--decode-max-frame-bytes=1.5MiB'], {}, /^decode.maxFrameBytes must be/],
  [
    'a reversed port range',
    [DIR, '--engine-ports=20-10'],
    {},
    /^engine.ports must be .*the first port is above the last/,
  ],
  ['an unknown level', [DIR, '--log-level=loud'], {}, /^log.level must be one of trace, debug, .*"loud"/],
  [
    'an unknown log format',
    [DIR, '--log-format=xml'],
    {},
    /^log.format must be one of json, pretty; it is "xml"/,
  ],
  [
    'an address without scheme',
    [DIR, '--frontend-handshake=f:1', '--engine-handshake=tcp://e:2'],
    {},
    /^frontend.handshake must be .*, or off; it is "f:1"/,
  ],
  [
    'a wildcard to dial',
    [DIR, '--frontend-handshake=tcp://*:1', '--engine-handshake=tcp://e:2'],
    {},
    /^frontend.handshake must be .*not a wildcard host/,
  ],
  ['a misspelt IPv4 address', [DIR, '--metrics-host=127.0.0.256'], {}, /^metrics.host must be/],
  ['a star to bind HTTP to', [DIR, '--metrics-host=*'], {}, /^metrics.host must be .*0\.0\.0\.0 or ::/],
  [
    'a wildcard for engines',
    [DIR, '--advertise-host=[::]'],
    {},
    /^engine.advertiseHost must be .*not a wildcard/,
  ],
  ['a URL of another scheme', [DIR, '--frontend-url=ftp://x'], {}, /^frontend.url must be an http:\/\//],
  ['an empty glob', [DIR, '--track=a,,b'], {}, /^tracking.requestIds must be/],
  [
    'a glob bracket without partner',
    [DIR, '--track=a{b'],
    {},
    /^tracking.requestIds .*a bracket has no partner/,
  ],
  ['a path with a newline', ['--ipc-dir=/a\nb'], {}, /^ipc.dir must be a path, or off; it is "\/a\\nb"/],
  [
    'nothing to relay',
    [],
    {},
    /^nothing to relay: set --ipc-dir .*, or --frontend-handshake with --engine-handshake$/,
  ],
  [
    'a dialled handshake alone',
    ['--frontend-handshake=tcp://f:1'],
    {},
    /^frontend.handshake .* needs engine.handshake/,
  ],
  [
    'a listening handshake alone',
    [DIR, '--engine-handshake=tcp://e:1'],
    {},
    /^engine.handshake .* needs frontend.handshake/,
  ],
  [
    'a wildcard without a host to tell',
    ['--frontend-handshake=tcp://f:1', '--engine-handshake=tcp://0.0.0.0:2'],
    {},
    /^engine.handshake \(tcp:\/\/0.0.0.0:2\) is a wildcard: set engine.advertiseHost/,
  ],
  [
    'an IPv6 wildcard',
    ['--frontend-handshake=tcp://f:1', '--engine-handshake=tcp://[::]:2'],
    {},
    /^engine.handshake .* is a wildcard/,
  ],
  [
    'a star',
    ['--frontend-handshake=tcp://f:1', '--engine-handshake=tcp://*:2'],
    {},
    /^engine.handshake .* is a wildcard/,
  ],
  [
    'the same address twice',
    ['--frontend-handshake=tcp://f:1', '--engine-handshake=tcp://f:1'],
    {},
    /the same address: steptap would dial itself$/,
  ],
  [
    'a dialled loopback that is its own wildcard',
    ['--frontend-handshake=tcp://127.0.0.1:1', '--engine-handshake=tcp://*:1', '--advertise-host=h'],
    {},
    /steptap would dial itself$/,
  ],
  [
    'a range that holds the handshake port',
    ['--frontend-handshake=tcp://f:1', '--engine-handshake=tcp://e:25', '--engine-ports=20-30'],
    {},
    /^engine.ports \(20-30\) holds 25, the port of engine.handshake$/,
  ],
  [
    'a range that holds the metrics port',
    [DIR, '--engine-ports=9464'],
    {},
    /^engine.ports \(9464\) holds 9464, the port of metrics.port$/,
  ],
  [
    'one port for both',
    ['--frontend-handshake=tcp://f:1', '--engine-handshake=tcp://e:9464'],
    {},
    /want the same port$/,
  ],
  [
    'a directory too long for sockets',
    [`--ipc-dir=/${'d'.repeat(67)}`],
    {},
    /^ipc.dir is too long: .* 108 bytes and the limit is 107, so ipc.dir may have 67 bytes; it is "\/d+"$/,
  ],
];

for (const [title, argv, env, expected] of CASES) {
  test(`${title} is refused`, (t) => {
    const problems = problemsOf(argv, env);
    t.is(problems.length, 1, problems.join('\n'));
    t.regex(problems[0] ?? '', expected);
  });
}

/** Title, name and text of a file, and what the only problem must say. */
const FILES: readonly (readonly [string, string, string, RegExp])[] = [
  [
    'an unknown group',
    'c.yaml',
    'metric: {port: 1}',
    /^unknown key metric in .*c\.yaml \(did you mean metrics\?\)$/,
  ],
  [
    'an unknown key',
    'c.json',
    '{"metrics": {"prot": 1}}',
    /^unknown key metrics\.prot in .* \(did you mean metrics\.port\?\)$/,
  ],
  [
    'a dotted key',
    'c.yaml',
    'metrics.port: 1',
    /^unknown key metrics\.port in .* \(write metrics: and under it, indented, port:\)$/,
  ],
  ['a key of __proto__', 'c.json', '{"__proto__": {"port": 1}}', /^unknown key __proto__ /],
  ['a key of __proto__ in YAML', 'c.yaml', 'metrics: {__proto__: 1}', /^unknown key metrics\.__proto__ /],
  [
    'a wrong type',
    'c.yaml',
    'metrics: {port: true}',
    /^metrics\.port must be .* it is true \(file .*c\.yaml\)$/,
  ],
  ['a map for a value', 'c.yaml', 'metrics: {port: {a: 1}}', /^metrics\.port must be .* it is \{"a":1\}/],
  ['a number for text', 'c.yaml', 'model: {name: 7}', /^model\.name must be text .* it is 7 /],
  ['null for what cannot be off', 'c.yaml', 'metrics: {port: null}', /^metrics\.port must be .* it is null /],
  ['an empty list', 'c.yaml', 'tracking: {requestIds: []}', /^tracking\.requestIds must be/],
  [
    'a comma within one of a list',
    'c.yaml',
    'tracking: {requestIds: ["a,b"]}',
    /^tracking\.requestIds must be .*a comma inside one glob/,
  ],
  ['text for a group', 'c.yaml', 'metrics: 5', /^metrics in .* must be a map of settings$/],
  ['a list for the whole', 'c.yaml', '- 1', /must hold a map of settings$/],
  ['broken JSON', 'c.json', '{\n  "metrics": {"port": 1,}\n}', /is not valid JSON: line 2, column \d+$/],
  ['cut JSON', 'c.json', '{\n', /is not valid JSON: line 2, column \d+$/],
  ['broken YAML', 'c.yaml', 'metrics:\n  port: 1\n bad', /is not valid YAML: line \d+, column \d+: /],
  ['a repeated YAML key', 'c.yaml', 'log: {level: info, level: warn}', /is not valid YAML: .*duplicate key/],
  ['an alias without anchor', 'c.yaml', 'log: *x', /is not valid YAML/],
];

for (const [title, name, text, expected] of FILES) {
  test(`${title} in a file is refused`, (t) => {
    const problems = problemsOf([DIR, '--config', configFile(name, text)]);
    t.is(problems.length, 1, problems.join('\n'));
    t.regex(problems[0] ?? '', expected);
  });
}

test('a file that is missing or a directory is named', (t) => {
  t.deepEqual(problemsOf(['--config', '/nowhere/c.yaml']), [
    'cannot read /nowhere/c.yaml: there is no such file (flag --config)',
  ]);
  t.deepEqual(problemsOf(['--config', '/']), ['cannot read /: it is a directory (flag --config)']);
});

test('all errors of all sources are told at once, with exit code 64', (t) => {
  const file = configFile('c.yaml', 'metrics: {port: x, prot: 1}\nlog: {level: loud}\n');
  const argv = ['--config', file, '--bogus', '--track', '--frontend-handshake=tcp://f:1'];
  const error = errorOf(argv, { STEPTAP_NOPE: '1', STEPTAP_DRAIN_TIMEOUT: 'soon' });
  t.true(error instanceof SteptapError);
  t.is(error?.code, 'STEPTAP_CONFIG');
  t.is(error?.exitCode, 64);
  const expected = [
    /--bogus/,
    /--track/,
    /metrics\.prot/,
    /STEPTAP_NOPE/,
    /^metrics\.port must/,
    /needs engine\.handshake/,
    /log\.level/,
    /drain\.timeout/,
  ];
  for (const one of expected)
    t.is(error?.problems.filter((problem) => one.test(problem)).length, 1, String(one));
  t.is(error?.problems.length, expected.length);
  for (const problem of error?.problems ?? []) t.true(error?.message.includes(`  - ${problem}\n`));
  t.true(error?.message.startsWith('8 problems:\n'));
});

test('contradictions are told together with what else is wrong', (t) => {
  const argv = [
    '--frontend-handshake=tcp://f:1',
    '--engine-handshake=tcp://*:25',
    '--engine-ports=20-30',
    '--log-level=x',
  ];
  t.is(problemsOf(argv).length, 3);
});

test('what depends on a wrong value is not judged', (t) => {
  t.is(problemsOf(['--ipc-dir=']).length, 1);
  t.is(problemsOf(['--frontend-handshake=f', '--engine-handshake=tcp://*:1']).length, 2);
});

test('a wildcard with a host to tell, port 0 and a range beside the ports are right', (t) => {
  const argv = ['--frontend-handshake=tcp://f:1', '--engine-handshake=tcp://*:0', '--advertise-host=h'];
  t.deepEqual(problemsOf([...argv, '--engine-ports=9465-9470', '--metrics-port=0']), []);
  t.deepEqual(problemsOf([`--ipc-dir=/${'d'.repeat(66)}`]), []);
});

test('the API key never shows in an error', (t) => {
  const key = 'sk-sec ret';
  const errors = [
    errorOf([DIR], { STEPTAP_FRONTEND_API_KEY: key }),
    errorOf([DIR, '--frontend-api-key', 'sk-sec']),
    errorOf([DIR, '--frontend-api-key=sk-sec']),
    errorOf([DIR, '--config', configFile('c.yaml', `frontend: {apiKey: {x: "${key}"}}`)]),
    errorOf([DIR, '--config', configFile('c.yaml', `frontend: ${key}`)]),
    errorOf([DIR, '--config', configFile('c.json', `{"frontend": {"apiKey": ${key}}}`)]),
    errorOf([DIR, '--config', configFile('c.yaml', `frontend:\n  apiKey: "${key}`)]),
    errorOf([DIR, '--frontend-url=http://user:sk-sec@host']),
  ];
  for (const error of errors) {
    t.truthy(error);
    t.notRegex(error?.message ?? 'sk-sec', /sk-sec/);
  }
  t.regex(errors[1]?.message ?? '', /frontend\.apiKey has none, set STEPTAP_FRONTEND_API_KEY/);
});
