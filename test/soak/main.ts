/**
 * Load with random faults, for as long as it is told:
 *
 *     npm run soak -- --minutes 10 [--seed N]
 *
 * First an engine has 1 GB for a frontend that does not read for 30 seconds. Then both ways in run side by side: in
 * each round some faults that must change nothing, then a reconciliation of every series with the frontend's own,
 * then now and again a kill -9 of steptap (handshake) or of all of vLLM (directory) under load. Beside them one more
 * steptap has 10,000 requests in flight and a frontend that reads by fits and starts. Ends with 0 when nothing differed,
 * nothing was lost but what was inside a killed process, and memory stayed where it was.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { messageOf } from '../../proxy/errors.js';
import { flood } from '../support/toxic-flood.js';
import { WAYS, type Way } from '../support/toxic-rig.js';
import { ProgramScope } from '../support/toxic-scope.js';
import { Random } from '../transparency/random.js';
import { crowd } from './crowd.js';
import { HARMLESS } from './faults.js';
import { leastPerMinute, type Resident, slopePerMinute } from './memory.js';
import { Stack } from './stack.js';

const MEBIBYTE = 1024 * 1024;
const MINUTE_MS = 60_000;
const FLOOD_BYTES = 1024 * MEBIBYTE;
const FLOOD_PAUSE_MS = 30_000;
const FLOOD_GROWTH_BYTES = 40 * MEBIBYTE;
const FAULTS_PER_ROUND = 4;
const RSS_LIMIT_BYTES = 160 * MEBIBYTE;
/** Looked at only over a time in which it means something. */
const SLOPE_LIMIT_BYTES = 0.5 * MEBIBYTE;
const SLOPE_AFTER_MINUTES = 8;
/** The first minutes fill caches and compile. */
const WARM_UP_MS = 2 * MINUTE_MS;

const { values } = parseArgs({
  options: { minutes: { type: 'string', default: '10' }, seed: { type: 'string', default: '1' } },
});
const minutes = Number(values.minutes);
const seed = Number(values.seed);
if (!(minutes > 0) || !Number.isInteger(seed)) {
  process.stderr.write('usage: npm run soak -- [--minutes N] [--seed N]\n');
  process.exit(64);
}

const problems: string[] = [];
const deadline = performance.now() + minutes * MINUTE_MS;

function say(text: string): void {
  const elapsed = ((performance.now() - deadline) / MINUTE_MS + minutes).toFixed(1);
  process.stdout.write(`${elapsed} min  ${text}\n`);
}

function problem(text: string): void {
  problems.push(text);
  say(`PROBLEM  ${text}`);
}

async function floodBothWays(): Promise<void> {
  // Half of the time at most, where that is short.
  const pause = Math.min(FLOOD_PAUSE_MS, (minutes * MINUTE_MS) / 4);
  const floods = WAYS.map(async (way) => {
    const scope = new ProgramScope();
    try {
      const { heldBack, growth, sent, arrived } = await flood(scope, way, FLOOD_BYTES, pause);
      const facts = `held back after ${mebibytes(heldBack)}, grew by ${mebibytes(growth)}`;
      say(`${way}: 1 GB for a frontend that did not read for ${pause / 1000} s: ${facts}`);
      if (arrived.digest !== sent.digest) problem(`${way}: the bytes that arrived differ`);
      if (arrived.counted !== sent.messages)
        problem(`${way}: counted ${arrived.counted} of ${sent.messages}`);
      if (growth > FLOOD_GROWTH_BYTES) problem(`${way}: memory grew by ${mebibytes(growth)}`);
    } finally {
      await scope.end();
    }
  });
  await Promise.all(floods);
}

async function soak(way: Way): Promise<void> {
  const scope = new ProgramScope();
  const random = new Random(seed + WAYS.indexOf(way));
  try {
    const stack = await Stack.start(scope, way);
    const memory: Resident[] = [];
    for (let round = 1; performance.now() < deadline; round++) {
      const faults = await harmlessRound(stack, random);
      await reconcile(stack, `round ${round} (${faults.join(', ')})`);
      memory.push({ at: performance.now(), bytes: stack.steptap.rss });
      if (stack.steptap.rss > RSS_LIMIT_BYTES) problem(`${way}: ${mebibytes(stack.steptap.rss)} resident`);
      if (way === 'handshake' && round % 2 === 0) await killedUnderLoad(stack, random);
      if (way === 'directory' && round % 4 === 0) await stack.restartVllm();
    }
    // In the other way in it is killed again and again.
    if (way === 'directory') judgeMemory(way, memory);
    const { finished, failed, unfinished } = stack.requests;
    say(`${way}: ${finished} requests finished, ${failed} refused and ${unfinished} unfinished around kills`);
    say(`${way}: ${stack.compared} series compared`);
    if (finished === 0 || stack.compared === 0) problem(`${way}: nothing was done`);
  } finally {
    await scope.end();
  }
}

async function harmlessRound(stack: Stack, random: Random): Promise<string[]> {
  const { failed, unfinished } = stack.requests;
  const stop = new AbortController();
  const load = stack.load(random, stop.signal);
  const names: string[] = [];
  while (names.length < FAULTS_PER_ROUND && performance.now() < deadline) {
    const fault = HARMLESS[random.integer(HARMLESS.length)];
    if (fault === undefined) continue;
    names.push(fault.name);
    await fault.inflict(stack, random);
    await delay(random.integer(1000));
  }
  stop.abort();
  await load;
  const lost = stack.requests.failed - failed + stack.requests.unfinished - unfinished;
  if (lost > 0) problem(`${stack.way}: ${lost} requests did not finish although nothing was killed`);
  return names;
}

/** Steptap killed in the middle of requests; some may never end, the others and the next ones do. */
async function killedUnderLoad(stack: Stack, random: Random): Promise<void> {
  const stop = new AbortController();
  const load = stack.load(random, stop.signal);
  await delay(500 + random.integer(1500));
  await stack.killSteptap(random.integer(1000));
  await delay(1000);
  stop.abort();
  await load;
  await reconcile(stack, 'since kill -9 of steptap');
}

async function reconcile(stack: Stack, what: string): Promise<void> {
  const differing = await stack.differences();
  if (differing.length > 0) problem(`${stack.way}, ${what}: ${differing.join('; ')}`);
  else say(`${stack.way}, ${what}: all series as the frontend's, ${mebibytes(stack.steptap.rss)} resident`);
}

async function crowded(): Promise<void> {
  const scope = new ProgramScope();
  const name = 'crowd';
  try {
    const { memory, sent, counted } = await crowd(scope, 'directory', deadline);
    say(`${name}: ${counted.count} batches and ${counted.sum} tokens counted`);
    if (counted.count !== sent.count || counted.sum !== sent.sum)
      problem(`${name}: sent were ${sent.count} batches and ${sent.sum} tokens`);
    const highest = Math.max(...memory.map(({ bytes }) => bytes));
    say(`${name}: ${mebibytes(highest)} resident at most`);
    if (highest > RSS_LIMIT_BYTES) problem(`${name}: more than ${mebibytes(RSS_LIMIT_BYTES)}`);
    judgeMemory(name, memory);
  } finally {
    await scope.end();
  }
}

function judgeMemory(name: string, memory: readonly Resident[]): void {
  const begin = (memory[0]?.at ?? 0) + WARM_UP_MS;
  const floors = leastPerMinute(memory.filter(({ at }) => at >= begin));
  if (floors.length < 3) return;
  const slope = slopePerMinute(floors);
  say(`${name}: memory grows by ${mebibytes(slope)} a minute`);
  if (minutes >= SLOPE_AFTER_MINUTES && slope > SLOPE_LIMIT_BYTES) problem(`${name}: memory grows`);
}

function mebibytes(bytes: number): string {
  return `${(bytes / MEBIBYTE).toFixed(1)} MiB`;
}

try {
  await floodBothWays();
  await Promise.all([...WAYS.map(soak), crowded()]);
} catch (error) {
  problem(error instanceof Error ? (error.stack ?? messageOf(error)) : String(error));
}
process.stdout.write(problems.length === 0 ? 'all is well\n' : `${problems.length} problems\n`);
process.exit(problems.length === 0 ? 0 : 1);
