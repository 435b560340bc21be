/**
 * Runs ava, prints one line a test and the details of each failure. The last line is "N passed, N failed", with
 * ", N skipped" when some were. Exit code 1 on any failure, when no test ran, and when the deadline passes.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { Parser, type Result } from 'tap-parser';

const DEADLINE_MS = 10 * 60_000;

interface Count {
  passed: number;
  failed: number;
  skipped: number;
}

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

/** ava's diagnostics: nested maps and texts, one field a line. */
function indented(value: unknown, indent = '      '): string {
  if (typeof value !== 'object' || value === null)
    return `${indent}${String(value).replaceAll('\n', `\n${indent}`)}`;
  return Object.entries(value)
    .filter(([, inner]) => inner !== '')
    .map(([name, inner]) => {
      const key = name.replace(/:$/, '');
      const text = indented(inner, `${indent}  `);
      return text.includes('\n') ? `${indent}${key}:\n${text}` : `${indent}${key}: ${text.trim()}`;
    })
    .join('\n');
}

function report(result: Result, count: Count): void {
  if (result.skip || result.todo) {
    count.skipped++;
    print(`  -    ${result.name}`);
  } else if (result.ok) {
    count.passed++;
    print(`  ok   ${result.name}`);
  } else {
    count.failed++;
    print(`  FAIL ${result.name}`);
    if (result.diag !== null) print(indented(result.diag));
  }
}

async function runTests(args: readonly string[]): Promise<number> {
  const cli = fileURLToPath(new URL('cli.mjs', import.meta.resolve('ava')));
  const count: Count = { passed: 0, failed: 0, skipped: 0 };
  const failRun = (why: string): void => {
    count.failed++;
    print(`  FAIL the test run: ${why}`);
  };
  // A group of its own, so that the deadline also ends what the tests have started.
  const ava = spawn(process.execPath, [cli, '--tap', ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
    detached: true,
  });
  const stopAll = (signal: NodeJS.Signals): void => {
    if (ava.pid !== undefined && ava.exitCode === null) process.kill(-ava.pid, signal);
  };
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => stopAll(signal));
  const deadline = setTimeout(() => {
    failRun(`not done within ${DEADLINE_MS / 60_000} minutes`);
    stopAll('SIGKILL');
  }, DEADLINE_MS);

  const parser = new Parser();
  parser.on('assert', (result: Result) => report(result, count));
  parser.on('bailout', (reason: string) => failRun(`bailed out: ${reason}`));
  ava.stdout.pipe(parser);
  const parsed = once(parser, 'complete');
  const [code] = await once(ava, 'close');
  await parsed;
  clearTimeout(deadline);

  if (code !== 0 && count.failed === 0) failRun(`ava ended with ${code ?? 'a signal'}`);
  if (count.passed + count.failed === 0) failRun('there were no tests');
  const skipped = count.skipped > 0 ? `, ${count.skipped} skipped` : '';
  print(`\n${count.passed} passed, ${count.failed} failed${skipped}`);
  return count.failed === 0 ? 0 : 1;
}

process.exitCode = await runTests(process.argv.slice(2));
