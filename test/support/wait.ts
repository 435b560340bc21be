import { setTimeout as delay } from 'node:timers/promises';

const POLL_MS = 10;
const DEFAULT_DEADLINE_MS = 10_000;

export interface WaitOptions {
  readonly deadlineMs?: number;
  /** What is waited for, as the error shall name it. */
  readonly what: string;
}

/** The first value of `condition` that is not false, null or undefined; rejects after the deadline. */
export async function waitFor<T>(
  condition: () => T | Promise<T>,
  { deadlineMs = DEFAULT_DEADLINE_MS, what }: WaitOptions,
): Promise<Exclude<T, false | null | undefined>> {
  const deadline = performance.now() + deadlineMs;
  for (;;) {
    const value = await condition();
    if (value !== false && value !== null && value !== undefined) {
      return value as Exclude<T, false | null | undefined>;
    }
    if (performance.now() > deadline) throw new Error(`not within ${deadlineMs} ms: ${what}`);
    await delay(POLL_MS);
  }
}

/** The value of `promise`; rejects when the deadline passes first. */
export async function within<T>(
  promise: Promise<T>,
  { deadlineMs = DEFAULT_DEADLINE_MS, what }: WaitOptions,
): Promise<T> {
  const timer = new AbortController();
  const late = delay(deadlineMs, undefined, { signal: timer.signal }).then(() => {
    throw new Error(`not within ${deadlineMs} ms: ${what}`);
  });
  late.catch(() => {});
  try {
    return await Promise.race([promise, late]);
  } finally {
    timer.abort();
  }
}
