/** Whether resident memory grows, seen through the ups and downs of a garbage collector. */
const MINUTE_MS = 60_000;

export interface Resident {
  /** Milliseconds of performance.now(). */
  readonly at: number;
  readonly bytes: number;
}

/** The least of each minute: what is left behind a collection. */
export function leastPerMinute(memory: readonly Resident[]): Resident[] {
  const least = new Map<number, Resident>();
  for (const resident of memory) {
    const minute = Math.floor(resident.at / MINUTE_MS);
    const known = least.get(minute);
    if (known === undefined || resident.bytes < known.bytes) least.set(minute, resident);
  }
  return [...least.values()];
}

/** Slope of the least-squares line through `points`, in bytes per minute. */
export function slopePerMinute(points: readonly Resident[]): number {
  const meanAt = mean(points.map(({ at }) => at));
  const meanBytes = mean(points.map(({ bytes }) => bytes));
  let covariance = 0;
  let variance = 0;
  for (const { at, bytes } of points) {
    covariance += (at - meanAt) * (bytes - meanBytes);
    variance += (at - meanAt) ** 2;
  }
  return variance === 0 ? 0 : (covariance / variance) * MINUTE_MS;
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
