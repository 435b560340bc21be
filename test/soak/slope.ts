/** Slope of the least-squares line through `points`, in bytes per minute. */
export function slopePerMinute(points: readonly { readonly at: number; readonly bytes: number }[]): number {
  const meanAt = mean(points.map(({ at }) => at));
  const meanBytes = mean(points.map(({ bytes }) => bytes));
  let covariance = 0;
  let variance = 0;
  for (const { at, bytes } of points) {
    covariance += (at - meanAt) * (bytes - meanBytes);
    variance += (at - meanAt) ** 2;
  }
  return variance === 0 ? 0 : (covariance / variance) * 60_000;
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
