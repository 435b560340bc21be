import test from 'ava';
import { type Command, helpText, parseCommand } from '../../config/cli.js';
import { ConfigError } from '../../config/error.js';
import { SETTINGS } from '../../config/schema.js';

const READ: readonly (readonly [readonly string[], Command])[] = [
  [[], { command: 'run', args: [] }],
  [['--ipc-dir', '/x'], { command: 'run', args: ['--ipc-dir', '/x'] }],
  [['run', '--bogus'], { command: 'run', args: ['--bogus'] }],
  [['check-config', '--config', 'f'], { command: 'check-config', args: ['--config', 'f'] }],
  [['demo'], { command: 'demo', keep: false }],
  [['demo', '--keep'], { command: 'demo', keep: true }],
  [['replay', 'f.jsonl'], { command: 'replay', file: 'f.jsonl', json: false }],
  [['replay', '--json', 'f'], { command: 'replay', file: 'f', json: true }],
  [
    ['replay', 'f', '--json', '--model-name', 'm'],
    { command: 'replay', file: 'f', json: true, modelName: 'm' },
  ],
  [['replay', '--', '-f'], { command: 'replay', file: '-f', json: false }],
  [['--version'], { command: 'version' }],
  [['--help'], { command: 'help' }],
  [['-h'], { command: 'help' }],
  [['--metrics-port', '1', '--help'], { command: 'help' }],
  [['replay', '--help'], { command: 'help', topic: 'replay' }],
  [['check-config', '--bogus', '-h'], { command: 'help', topic: 'check-config' }],
];

for (const [argv, command] of READ) {
  test(`steptap ${argv.join(' ')} asks for ${JSON.stringify(command)}`, (t) => {
    t.deepEqual(parseCommand(argv), command);
  });
}

const REFUSED: readonly (readonly [readonly string[], readonly string[]])[] = [
  [['rnu'], ['unknown command "rnu" (did you mean run?)']],
  [['demo', '--kep', 'x'], ['unknown flag --kep (did you mean --keep?)']],
  [['demo', '--keep=1'], ['--keep takes no value']],
  [['demo', 'x'], ['unexpected argument "x"']],
  [['replay'], ['FILE is missing']],
  [
    ['replay', '--model-name'],
    [
      '--model-name needs a value (one that begins with a dash is written --model-name=-…)',
      'FILE is missing',
    ],
  ],
  [
    ['replay', 'a', 'b', '--jsn'],
    ['unexpected argument "b"', 'unknown flag --jsn (did you mean --json?)'],
  ],
  [['--version', 'x'], ['--version stands alone: unexpected "x"']],
];

for (const [argv, problems] of REFUSED) {
  test(`steptap ${argv.join(' ')} is refused`, (t) => {
    const error = t.throws(() => parseCommand(argv), { instanceOf: ConfigError });
    t.deepEqual(error?.problems, problems);
    t.is(error?.exitCode, 64);
    t.regex(error?.message ?? '', /\nTry steptap .*--help\.$/);
  });
}

test('the help page names every command, and every setting with flag, variable and default', (t) => {
  for (const page of [helpText(), helpText('run'), helpText('check-config')]) {
    for (const { name, flag, env, defaultText } of SETTINGS) {
      t.true(page.includes(`      ${name}, ${env}, default: ${defaultText}\n`), name);
      if (flag !== null) t.true(page.includes(`\n  ${flag} `), flag);
    }
    t.true(page.includes('--config FILE'));
  }
  for (const command of ['demo', 'replay', 'check-config'])
    t.regex(helpText(), new RegExp(`steptap ${command}`));
  t.regex(helpText('demo'), /^Usage: steptap demo \[--keep\]\n/);
  t.regex(helpText('replay'), /^Usage: steptap replay FILE \[--model-name NAME\] \[--json\]\n/);
});
