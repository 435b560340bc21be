/** The command line as a user meets it: what it prints where, and how it ends. */
import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import test, { type ExecutionContext } from 'ava';
import { freePort, temporaryDirectory } from '../support/in-process.js';
import { startSidecar } from '../support/sidecar.js';

const MAIN = fileURLToPath(new URL('../../proxy/main.js', import.meta.url));
const FIXTURES = fileURLToPath(new URL('../../../test/fixtures/', import.meta.url));
const DEADLINE_MS = 20_000;

interface Result {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs steptap to its end, with no setting from this process' environment. */
function steptap(args: readonly string[], env: NodeJS.ProcessEnv = {}): Promise<Result> {
  const { PATH, NODE_V8_COVERAGE } = process.env;
  const own = { PATH, ...(NODE_V8_COVERAGE === undefined ? {} : { NODE_V8_COVERAGE }), ...env };
  return new Promise((resolve) => {
    const child = execFile(
      process.execPath,
      [MAIN, ...args],
      { env: own, timeout: DEADLINE_MS, killSignal: 'SIGKILL' },
      (_error, stdout, stderr) => resolve({ code: child.exitCode ?? -1, stdout, stderr }),
    );
  });
}

/** Ends with `code`, says each of `texts` on stderr, and nothing on stdout that is not its log. */
async function fails(
  t: ExecutionContext,
  args: readonly string[],
  code: number,
  texts: readonly (string | RegExp)[],
  env: NodeJS.ProcessEnv = {},
): Promise<Result> {
  const result = await steptap(args, env);
  t.is(result.code, code, result.stderr);
  for (const text of texts) {
    t.true(typeof text === 'string' ? result.stderr.includes(text) : text.test(result.stderr), result.stderr);
  }
  t.false(result.stderr.includes('    at '), 'a stack is no message');
  return result;
}

test('--version prints name and version of the package', async (t) => {
  const { version } = JSON.parse(readFileSync(join(FIXTURES, '../../package.json'), 'utf8')) as {
    version: string;
  };
  t.deepEqual(await steptap(['--version']), { code: 0, stdout: `steptap ${version}\n`, stderr: '' });
});

test('--help, and COMMAND --help, print their page and end with 0', async (t) => {
  for (const args of [['--help'], ['run', '--help'], ['replay', '--help']]) {
    const { code, stdout, stderr } = await steptap(args);
    t.deepEqual({ code, stderr }, { code: 0, stderr: '' }, args.join(' '));
    t.regex(stdout, /Usage:/, args.join(' '));
  }
});

test('all that is wrong with a configuration is told at once, from flags, environment and file, with 64', async (t) => {
  const dir = temporaryDirectory(t);
  const file = join(dir, 'steptap.yaml');
  writeFileSync(file, 'metrics:\n  prot: 1\nlog:\n  level: loud\n');
  const args = ['--config', file, '--metrics-port', '70000', '--no-such-flag', '--engine-ports', '9-3'];
  const env = {
    STEPTAP_NO_SUCH: '1',
    STEPTAP_DRAIN_TIMEOUT: 'soon',
    STEPTAP_FRONTEND_API_KEY: 'sesame',
    STEPTAP_ENGINE_HANDSHAKE: 'tcp://0.0.0.0:5000',
  };
  const texts = ['metrics.prot', 'loud', '70000', '--no-such-flag', '9-3', 'STEPTAP_NO_SUCH', 'soon'];
  const { stdout, stderr } = await fails(t, args, 64, texts, env);
  t.false(`${stdout}${stderr}`.includes('sesame'));
});

test('values that contradict each other, and nothing to relay, are told with 64', async (t) => {
  await fails(t, [], 64, ['nothing to relay', '--ipc-dir', '--frontend-handshake']);
  await fails(t, ['--engine-handshake', 'tcp://0.0.0.0:5000'], 64, ['needs frontend.handshake', 'wildcard']);
  const same = ['--frontend-handshake', 'tcp://127.0.0.1:5000', '--engine-handshake', 'tcp://127.0.0.1:5000'];
  await fails(t, same, 64, ['dial itself']);
  await fails(t, ['no-such-command'], 64, ['no-such-command']);
  await fails(t, ['--ipc-dir', '/tmp', '--config', '/no/such/file'], 64, ['/no/such/file']);
});

test('check-config prints every value and where it comes from, but no secret, and binds nothing', async (t) => {
  const port = await freePort();
  const taken = net.createServer().listen(port, '127.0.0.1');
  t.teardown(() => taken.close());
  const { code, stdout, stderr } = await steptap(
    ['check-config', '--metrics-port', String(port), '--track', 'cmpl-*,!cmpl-probe*'],
    {
      VLLM_RPC_BASE_PATH: '/no/such/directory',
      STEPTAP_FRONTEND_API_KEY: 'sesame',
      STEPTAP_LOG_LEVEL: 'warn',
    },
  );
  t.deepEqual({ code, stderr }, { code: 0, stderr: '' });
  t.false(stdout.includes('sesame'));
  const line = (name: string) => stdout.split('\n').find((text) => text.includes(name)) ?? '';
  t.regex(line('metrics.port'), new RegExp(`${port}.*--metrics-port`));
  t.regex(line('ipc.dir'), /\/no\/such\/directory.*VLLM_RPC_BASE_PATH/);
  t.regex(line('log.level'), /warn.*STEPTAP_LOG_LEVEL/);
  t.regex(line('drain.timeout'), /default/);
  t.regex(line('frontend.apiKey'), /STEPTAP_FRONTEND_API_KEY/);
  await fails(t, ['check-config', '--metrics-port', 'x'], 64, ['metrics']);
});

test('replay prints the histogram of a capture on stdout and nothing else there', async (t) => {
  const file = join(FIXTURES, 'rust-0.33.0.jsonl');
  const { code, stdout, stderr } = await steptap(['replay', file, '--model-name', 'tiny']);
  t.is(code, 0, stderr);
  const expected = readFileSync(join(FIXTURES, 'rust-0.33.0.metrics.txt'), 'utf8');
  const sum = (text: string) => /vllm:iteration_tokens_total_sum\{.*\} ([\d.]+)/.exec(text)?.[1];
  t.is(Number(sum(stdout)), Number(sum(expected)));
  for (const line of stdout.trim().split('\n')) t.regex(line, /^(# |vllm:iteration_tokens_total)/);
  t.regex(stderr, /rust-0\.33\.0\.jsonl: \d+ messages/);
  const json = await steptap(['replay', file, '--json']);
  const { engines } = JSON.parse(json.stdout) as { engines: { engine: number; sum: number }[] };
  t.deepEqual(
    engines.map(({ engine, sum: tokens }) => [engine, tokens]),
    [[0, Number(sum(expected))]],
  );
});

test('replay names file and line of what it cannot read', async (t) => {
  const dir = temporaryDirectory(t);
  const file = join(dir, 'broken.jsonl');
  writeFileSync(file, '{"t":1,"dir":"out","eng":0,"cli":0,"frames":[]}\n{"t":2}\n');
  await fails(t, ['replay', file], 1, [`${file}, line 2`, 'not a captured message']);
  await fails(t, ['replay', join(dir, 'missing.jsonl')], 1, ['missing.jsonl', 'ENOENT']);
  await fails(t, ['replay', dir], 1, [dir, 'EISDIR']);
  await fails(t, ['replay'], 64, ['FILE']);
});

test('a metrics port in use is one clear error', async (t) => {
  const dir = temporaryDirectory(t);
  const port = await freePort();
  const taken = net.createServer().listen(port, '127.0.0.1');
  t.teardown(() => taken.close());
  await fails(t, ['--ipc-dir', dir, '--metrics-host', '127.0.0.1', '--metrics-port', String(port)], 1, [
    `cannot serve metrics on 127.0.0.1:${port}: the port is in use`,
    '--metrics-port',
  ]);
});

test('a handshake address that is in use, or is none of this machine, is one clear error', async (t) => {
  const port = await freePort();
  const taken = net.createServer().listen(port, '127.0.0.1');
  t.teardown(() => taken.close());
  const args = (address: string) => [
    ...['--frontend-handshake', 'tcp://127.0.0.1:9', '--engine-handshake', address],
    ...['--metrics-host', '127.0.0.1', '--metrics-port', '0'],
  ];
  const inUse = `tcp://127.0.0.1:${port}`;
  await fails(t, args(inUse), 1, [`can't listen on ${inUse}`, 'in use by another process']);
  await fails(t, args('tcp://192.0.2.1:5000'), 1, ['tcp://192.0.2.1:5000', 'is no address of this machine']);
});

test('a directory that is missing, is a file, has too long a path or is relayed already is one clear error', async (t) => {
  const dir = temporaryDirectory(t);
  const metrics = ['--metrics-host', '127.0.0.1', '--metrics-port', '0'];
  const missing = join(dir, 'missing');
  await fails(t, ['--ipc-dir', missing, ...metrics], 1, [missing, 'ENOENT']);
  const file = join(dir, 'file');
  writeFileSync(file, '');
  await fails(t, ['--ipc-dir', file, ...metrics], 1, [file, 'ENOTDIR']);
  const long = join(dir, 'x'.repeat(90 - dir.length));
  mkdirSync(long);
  await fails(t, ['--ipc-dir', long, ...metrics], 64, [long, '107']);
  const sidecar = await startSidecar({ args: ['--ipc-dir', dir] });
  t.teardown(() => sidecar.stop());
  await fails(t, ['--ipc-dir', dir, ...metrics], 1, [`another steptap already relays the sockets in ${dir}`]);
  t.is((await sidecar.get('/startupz')).status, 200);
});

test('run logs JSON lines that say what was bound; a free metrics port is named', async (t) => {
  const dir = temporaryDirectory(t);
  const sidecar = await startSidecar({ args: ['--ipc-dir', dir] });
  t.teardown(() => sidecar.stop());
  const bound = sidecar.logs.find(({ msg }) => msg === 'bound');
  t.is(bound?.['ipcDir'], dir);
  t.regex(String(bound?.['metricsUrl']), /^http:\/\/127\.0\.0\.1:\d+$/);
  t.true(existsSync(join(dir, '.steptap.json')));
  t.is(await sidecar.stop(), 0);
  t.is(sidecar.child.stderr, '');
  t.false(existsSync(join(dir, '.steptap.lock')));
});

test('a log level that silences it leaves stdout empty', async (t) => {
  const dir = temporaryDirectory(t);
  const missing = join(dir, randomUUID());
  const { code, stdout, stderr } = await steptap([
    '--ipc-dir',
    missing,
    '--log-level',
    'silent',
    '--metrics-port',
    '0',
  ]);
  t.deepEqual({ code, stdout }, { code: 1, stdout: '' });
  t.regex(stderr, /^steptap: ipc\.dir .* can't be read/);
});
