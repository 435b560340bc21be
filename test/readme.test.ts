import { readFileSync, writeFileSync } from 'node:fs';
import test from 'ava';
import { settingsTable } from '../config/describe.js';
import { FAMILIES } from '../proxy/telemetry.js';

/** `UPDATE_README=1 npm test` writes the tables instead of comparing them. */
const isUpdate = process.env['UPDATE_README'] === '1';
const path = new URL('../../README.md', import.meta.url);

function metricsTable(): string {
  const own = Object.entries(FAMILIES).map(
    ([name, { kind, labels, help }]) =>
      `| \`steptap_${name}\` | ${kind} | ${labels.join(', ')} | ${help.replaceAll('|', '\\|')} |`,
  );
  return [
    '| metric | type | labels | meaning |',
    '| --- | --- | --- | --- |',
    '| `vllm:iteration_tokens_total` | histogram | model_name, engine | Tokens per engine step. |',
    ...own,
    '| `steptap_model_name_known` | gauge |  | 0 while the `vllm:` series are held back for want of a name. |',
    '| `steptap_build_info` | gauge | version, node | Always 1. |',
  ].join('\n');
}

function block(readme: string, name: string): { readonly begin: number; readonly end: number } {
  const begin = readme.indexOf('-->\n', readme.indexOf(`<!-- ${name}: begin`)) + 4;
  return { begin, end: readme.indexOf(`<!-- ${name}: end -->`) };
}

for (const [name, make] of [
  ['settings', settingsTable],
  ['metrics', metricsTable],
] as const) {
  test.serial(`the README's table of ${name} is what the code has`, (t) => {
    const readme = readFileSync(path, 'utf8');
    const { begin, end } = block(readme, name);
    const table = `${make().trim()}\n`;
    if (isUpdate) writeFileSync(path, readme.slice(0, begin) + table + readme.slice(end));
    else t.is(readme.slice(begin, end), table);
    t.pass();
  });
}
