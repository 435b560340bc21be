/** The middle of a list of numbers; the mean of the two in the middle when it is even. NaN for none. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const upper = sorted[Math.trunc(sorted.length / 2)] ?? Number.NaN;
  const lower = sorted[Math.trunc((sorted.length - 1) / 2)] ?? Number.NaN;
  return (lower + upper) / 2;
}

/** Half the distance between the least and the greatest, in per cent of the median. */
export function spreadPercent(values: readonly number[]): number {
  return ((Math.max(...values) - Math.min(...values)) / 2 / median(values)) * 100;
}
