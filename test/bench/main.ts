/**
 * npm run bench [-- options]
 *
 *   --case TEXT    only the case of that name, else those whose name contains TEXT (repeatable); see cases.ts
 *   --hop NAME     only this hop: none, zmq_proxy or steptap (repeatable)
 *   --runs N       rounds, 5 unless told
 *   --peers KIND   c (default), or node: peers on the zeromq package, throughput only
 *   --quick        a subset in one short round, under a minute
 *
 * Prints a table; a run of all cases and hops also writes test/bench/RESULTS.md.
 */
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { cases } from './cases.js';
import { type HopName, hopNames } from './hops.js';
import { type PeerKind, peerKinds } from './peers.js';
import { machine, report, writeResults } from './report.js';
import type { CaseResult } from './results.js';
import { type Durations, runSession, type Session } from './session.js';
import { packageRoot } from './toolchain.js';

/** Long enough that a p99 at 50 messages/s is read from 400 samples, and a single stall of the machine does not make it. */
const fullDurations: Durations = { throughput: 1, latency: (rate) => (rate < 1000 ? 8 : 3) };
const quickDurations: Durations = { throughput: 0.3, latency: (rate) => (rate < 1000 ? 2 : 0.5) };

const { values: options } = parseArgs({
  options: {
    case: { type: 'string', multiple: true },
    hop: { type: 'string', multiple: true },
    runs: { type: 'string' },
    peers: { type: 'string', default: 'c' },
    quick: { type: 'boolean', default: false },
  },
});

const peers = peerKinds.find((kind) => kind === options.peers);
const chosenCases = cases
  .filter(
    ({ name, quick }) =>
      (!options.quick || quick) && (options.case?.some((text) => isMeant(text, name)) ?? true),
  )
  .map((each) => (peers === 'c' ? each : { ...each, rates: [] }));
const chosenHops = hopNames.filter((name) => options.hop?.includes(name) ?? true);
const runs = Number(options.runs ?? (options.quick ? 1 : 5));
if (
  peers === undefined ||
  chosenCases.length === 0 ||
  chosenHops.length === 0 ||
  !(Number.isInteger(runs) && runs > 0)
) {
  console.error('No such case, hop or kind of peers, or not a number of runs. Cases:');
  for (const { name } of cases) console.error(`  ${name}`);
  process.exit(64);
}

try {
  const text = report(await runAll(options.quick ? quickDurations : fullDurations, peers), runs);
  console.log(`${machine()}\n\n${text}`);
  const complete = !options.quick && options.case === undefined && options.hop === undefined && peers === 'c';
  if (complete) writeResults(join(packageRoot, 'test', 'bench', 'RESULTS.md'), text);
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
}

/** Every round goes through all cases, so that a disturbance of the machine does not hit one case only. */
async function runAll(durations: Durations, peerKind: PeerKind): Promise<CaseResult[]> {
  const results = chosenCases.map((benchCase) => ({
    case: benchCase,
    sessions: new Map<HopName, Session[]>(chosenHops.map((hop) => [hop, []])),
  }));
  for (let round = 0; round < runs; round++) {
    for (const { case: benchCase, sessions } of results) {
      for (const hop of rotated(chosenHops, round)) {
        const started = performance.now();
        sessions
          .get(hop)
          ?.push(await named(benchCase.name, hop, runSession(benchCase, hop, durations, peerKind)));
        const seconds = ((performance.now() - started) / 1000).toFixed(1);
        console.error(`round ${round + 1}/${runs}  ${benchCase.name}  ${hop}  ${seconds} s`);
      }
    }
  }
  return results;
}

/** An error says in which session it came. */
async function named(name: string, hop: HopName, session: Promise<Session>): Promise<Session> {
  try {
    return await session;
  } catch (error) {
    throw new Error(`${name} ${hop}: ${error instanceof Error ? error.message : error}`, { cause: error });
  }
}

function isMeant(text: string, name: string): boolean {
  return cases.some((each) => each.name === text) ? name === text : name.includes(text);
}

function rotated<T>(list: readonly T[], by: number): T[] {
  const start = by % list.length;
  return [...list.slice(start), ...list.slice(0, start)];
}
