import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import test, { type ExecutionContext } from 'ava';
import { differences, scrapeIterations } from './support/iteration-samples.js';
import { waitFor } from './support/wait.js';

const MAIN = fileURLToPath(new URL('../proxy/main.js', import.meta.url));

interface Demo {
  /** All of stdout so far. */
  readonly text: () => string;
  readonly interrupt: () => void;
  readonly exitCode: Promise<number | null>;
  /** What the demo has in its temporary directory. */
  readonly leftovers: () => Promise<string[]>;
}

async function startDemo(
  t: ExecutionContext,
  args: readonly string[],
  env: NodeJS.ProcessEnv = {},
): Promise<Demo> {
  const directory = await mkdtemp(join(tmpdir(), 'st-'));
  t.teardown(() => rm(directory, { recursive: true, force: true }));
  const demo = spawn(process.execPath, [MAIN, 'demo', ...args], {
    env: { ...process.env, ...env, TMPDIR: directory },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  t.teardown(() => demo.kill());
  let text = '';
  demo.stdout.setEncoding('utf8').on('data', (more: string) => {
    text += more;
  });
  return {
    text: () => text,
    interrupt: () => demo.kill('SIGINT'),
    exitCode: once(demo, 'close').then(([code]) => code as number | null),
    leftovers: () => readdir(directory),
  };
}

test('the demo compares every request, ends with the sums and counts of the workload and cleans up', async (t) => {
  const demo = await startDemo(t, [], { STEPTAP_TRACK: '!*' });
  t.is(await demo.exitCode, 0);
  const lines = demo.text().trimEnd().split('\n');
  t.is(lines.filter((line) => /^✓ +[\d,]+ +\d+/.test(line)).length, 3 * 14);
  t.is(lines.filter((line) => line.startsWith('✓ before the first request')).length, 3);
  t.regex(lines.at(-1) ?? '', /^PASS: _sum 52845 and _count 96, 32, 21;/);
  t.false(demo.text().includes('\x1b'), 'no colours into a pipe');
  t.deepEqual(await demo.leftovers(), []);
});

test('the demo stays up under a load that moves, and goes at Ctrl-C', async (t) => {
  const demo = await startDemo(t, ['--keep']);
  const url = await waitFor(() => /(http:\S+)\/metrics/.exec(demo.text())?.[1], {
    deadlineMs: 60_000,
    what: 'the metrics URL',
  });
  const count = async (): Promise<number> => (await scrapeIterations(url))?.count ?? 0;
  const first = await waitFor(count, { what: 'an observation' });
  await waitFor(async () => (await count()) > first, { what: 'more observations' });
  demo.interrupt();
  t.is(await demo.exitCode, 0);
  t.deepEqual(await demo.leftovers(), []);
});

test('a demo that is interrupted says so with its exit code and leaves nothing', async (t) => {
  const demo = await startDemo(t, []);
  await waitFor(() => demo.text().includes('✓'), { what: 'the first comparison' });
  demo.interrupt();
  t.is(await demo.exitCode, 130);
  t.deepEqual(await demo.leftovers(), []);
});

test('a difference names the series and both values, also where one is missing', (t) => {
  const sidecar = new Map([
    ['a', 1],
    ['b', 2],
    ['c', 3],
  ]);
  const frontend = new Map([
    ['a', 1],
    ['b', 5],
    ['d', 4],
  ]);
  t.deepEqual(differences(sidecar, frontend), [
    'b: sidecar 2, frontend 5',
    'c: sidecar 3, frontend none',
    'd: sidecar none, frontend 4',
  ]);
});
