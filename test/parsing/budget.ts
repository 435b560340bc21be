import { isDeepStrictEqual } from 'node:util';
import type { ExecutionContext } from 'ava';
import fc, { type Parameters, type RunDetails } from 'fast-check';

/** A property stops looking for counter-examples after `seconds`; all of test/parsing together stay below 40. */
export function budget(seconds: number, numRuns = 2_000): Parameters<unknown> {
  return { numRuns, interruptAfterTimeLimit: seconds * 1_000 };
}

/**
 * Fails with the counter-example, if there is one. False when the time was over before all runs were done: a slow
 * machine need not have met every kind of case.
 */
export function isComplete<T>(details: RunDetails<T>): boolean {
  if (details.failed && !details.interrupted) throw new Error(fc.defaultReportMessage(details) ?? 'failed');
  return !details.interrupted;
}

/** ava's deepEqual takes a millisecond for a large value; it is only asked for the difference when there is one. */
export function same(t: ExecutionContext, actual: unknown, expected: unknown, message?: string): void {
  if (isDeepStrictEqual(actual, expected)) t.pass();
  else t.deepEqual(actual, expected, message);
}
