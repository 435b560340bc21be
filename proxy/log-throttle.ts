/** One line in a while for things that come in floods; the counters have them all. */
const INTERVAL_MS = 10_000;

export class LogThrottle {
  readonly #loggedAt = new Map<string, number>();

  /** True when `key` was not let through within the last ten seconds. Keys must be few: they are kept. */
  allows(key: string): boolean {
    const now = performance.now();
    if (now - (this.#loggedAt.get(key) ?? Number.NEGATIVE_INFINITY) < INTERVAL_MS) return false;
    this.#loggedAt.set(key, now);
    return true;
  }
}
