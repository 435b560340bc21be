/** The samples of `vllm:iteration_tokens_total` in a scrape, and what two scrapes differ in. */
import { request } from 'undici';
import { parsePrometheusText } from './prometheus-text.js';

const NAME = 'vllm:iteration_tokens_total';
const LE = /[{,]le="([^"]+)"/;

export interface Bucket {
  readonly le: string;
  /** Observations in this bucket and not in one before. */
  readonly count: number;
}

export interface IterationSamples {
  readonly sum: number;
  readonly count: number;
  readonly buckets: readonly Bucket[];
  /** All samples of the metric, by `seriesKey`. */
  readonly samples: ReadonlyMap<string, number>;
}

/** Scrapes a `/metrics`; null while the metric is not there. Series of several engines are added up. */
export async function scrapeIterations(url: string): Promise<IterationSamples | null> {
  const { body } = await request(`${url}/metrics`);
  // vLLM's Python frontend adds the time of creation, which no two programs share.
  const samples = new Map(
    [...parsePrometheusText(await body.text())].filter(
      ([key]) => key.startsWith(NAME) && !key.includes('_created'),
    ),
  );
  if (samples.size === 0) return null;
  const cumulative = new Map<string, number>();
  for (const [key, value] of samples) {
    const le = LE.exec(key)?.[1];
    if (le !== undefined) cumulative.set(le, (cumulative.get(le) ?? 0) + value);
  }
  const bounds = [...cumulative].sort(([a], [b]) => boundOf(a) - boundOf(b));
  const buckets = bounds.map(([le, value], at) => ({ le, count: value - (bounds[at - 1]?.[1] ?? 0) }));
  return { sum: total(samples, '_sum'), count: total(samples, '_count'), buckets, samples };
}

function boundOf(le: string): number {
  return le === '+Inf' ? Number.POSITIVE_INFINITY : Number(le);
}

function total(samples: ReadonlyMap<string, number>, suffix: string): number {
  let sum = 0;
  for (const [key, value] of samples) if (key.startsWith(`${NAME}${suffix}{`)) sum += value;
  return sum;
}

/** Series that are not the same in both, with both values. */
export function differences(a: ReadonlyMap<string, number>, b: ReadonlyMap<string, number>): string[] {
  const keys = [...new Set([...a.keys(), ...b.keys()])];
  return keys
    .filter((key) => a.get(key) !== b.get(key))
    .map((key) => `${key}: sidecar ${a.get(key) ?? 'none'}, frontend ${b.get(key) ?? 'none'}`);
}
