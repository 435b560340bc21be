/**
 * Proof on real vLLM: start steptap, then vLLM as README.md says, send a mixed load, and compare every sample of
 * `vllm:iteration_tokens_total` with the frontend's own. Exit code 0: all as the rule for this frontend promises.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { messageOf, SteptapError } from '../../proxy/errors.js';
import { proveEngineDeath } from './engine-death.js';
import { Environment } from './environment.js';
import { proveLoad } from './load-proof.js';
import { proveOffline } from './offline-proof.js';
import { type Options, readOptions, USAGE } from './options.js';
import { proveQuick } from './quick.js';
import { appendRow, type Proof } from './report.js';
import { proveRestart } from './restart.js';
import { proveTermination } from './termination.js';

const PROOFS = {
  load: proveLoad,
  offline: proveOffline,
  restart: proveRestart,
  terminate: proveTermination,
  'engine-death': proveEngineDeath,
  quick: proveQuick,
} satisfies Record<
  Options['what'],
  (environment: Environment, options: Options, folder: string) => Promise<Proof>
>;

/** Problems that are printed; one cause often shows in every sample. */
const SHOWN = 20;

async function main(): Promise<number> {
  const options = readOptions(process.argv.slice(2));
  if (options.help) {
    process.stdout.write(USAGE);
    return 0;
  }
  const folder = await mkdtemp(join(tmpdir(), 'steptap-vllm-'));
  const { row, problems } = await PROOFS[options.what](new Environment(), options, folder);
  process.stdout.write(`${row}\n`);
  if (options.table !== undefined) await appendRow(options.table, row);
  for (const problem of problems.slice(0, SHOWN)) process.stdout.write(`  ${problem}\n`);
  if (problems.length > SHOWN) process.stdout.write(`  and ${problems.length - SHOWN} more\n`);
  process.stdout.write(problems.length === 0 ? 'as promised\n' : `NOT as promised; logs: ${folder}\n`);
  if (problems.length === 0 && !options.keep) await rm(folder, { recursive: true, force: true });
  return problems.length === 0 ? 0 : 1;
}

try {
  process.exitCode = await main();
} catch (error) {
  process.stderr.write(`${messageOf(error)}\n`);
  process.exitCode = error instanceof SteptapError ? error.exitCode : 1;
}
