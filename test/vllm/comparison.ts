/**
 * What steptap counted against what the frontend counted. Frontends differ in what they count, so a comparison has
 * a rule:
 *
 * - `exact`: every sample of the series is equal. Rust 0.30 and later, Python 0.23 and later.
 * - `whole-prompt`: Python before 0.23 counts cached prompt tokens as well. Equal where nothing was cached; else
 *   `_count` is equal and `_sum` is steptap's plus the engine's own counter of prefix cache hits.
 * - `tokens`: Rust before 0.30 has no such histogram. `_sum` equals prompt and generated tokens less prefix cache hits.
 */
import { request } from 'undici';
import { parsePrometheusText } from '../support/prometheus-text.js';

export type Rule = 'exact' | 'whole-prompt' | 'tokens';
export type Samples = ReadonlyMap<string, number>;

const SERIES = 'vllm:iteration_tokens_total';
const PARTS = [`${SERIES}_bucket{`, `${SERIES}_sum{`, `${SERIES}_count{`];

export function ruleFor(frontend: 'python' | 'rust', version: string): Rule {
  const [, minor = 0] = version.split('.').map(Number);
  if (frontend === 'rust') return minor >= 30 ? 'exact' : 'tokens';
  return minor >= 23 ? 'exact' : 'whole-prompt';
}

/** All samples of a `/metrics` page. */
export async function scrape(url: string): Promise<Samples> {
  const { body, statusCode } = await request(url);
  const text = await body.text();
  return statusCode === 200 ? parsePrometheusText(text) : new Map();
}

/** Only those of `vllm:iteration_tokens_total`, without `_created`. */
export function iterationSamples(all: Samples): Map<string, number> {
  return new Map([...all].filter(([key]) => PARTS.some((part) => key.startsWith(part))));
}

/** Engines that the series has. */
export function enginesOf(all: Samples): ReadonlySet<string> {
  const engines = [...iterationSamples(all).keys()].map((key) => /engine="([^"]*)"/.exec(key)?.[1] ?? '');
  return new Set(engines);
}

/** Samples without those of other engines; samples that name no engine stay. */
export function ofEngines(all: Samples, engines: ReadonlySet<string>): Samples {
  const kept = [...all].filter(([key]) => {
    const engine = /[{,]engine="([^"]*)"/.exec(key)?.[1];
    return engine === undefined || engines.has(engine);
  });
  return new Map(kept);
}

/** Those samples as lines, sorted: for a file beside a capture. */
export function seriesText(all: Samples): string {
  const lines = [...iterationSamples(all)].map(([key, value]) => `${key} ${value}`);
  return `${lines.sort().join('\n')}\n`;
}

/** The sum over all label sets of one name. */
export function total(all: Samples, name: string): number {
  let sum = 0;
  for (const [key, value] of all) if (key === name || key.startsWith(`${name}{`)) sum += value;
  return sum;
}

export function sumOf(all: Samples): number {
  return total(all, `${SERIES}_sum`);
}

export function countOf(all: Samples): number {
  return total(all, `${SERIES}_count`);
}

/** Prompt and generated tokens, as the frontend counts them over all requests. */
function tokensOf(all: Samples): number {
  return total(all, 'vllm:prompt_tokens_total') + total(all, 'vllm:generation_tokens_total');
}

/** Prompt tokens that came from the engine's own prefix cache; older versions call it `gpu_prefix_cache_hits`. */
export function prefixHits(all: Samples): number {
  return total(all, 'vllm:prefix_cache_hits_total') + total(all, 'vllm:gpu_prefix_cache_hits_total');
}

/** One line per sample that differs; nothing when the two sets are equal. */
export function differences(ours: Samples, theirs: Samples): string[] {
  const [left, right] = [iterationSamples(ours), iterationSamples(theirs)];
  const keys = [...new Set([...left.keys(), ...right.keys()])].sort();
  if (keys.length === 0) return ['neither side has the series'];
  return keys
    .filter((key) => left.get(key) !== right.get(key))
    .map((key) => `${key}: steptap ${left.get(key) ?? 'none'}, frontend ${right.get(key) ?? 'none'}`);
}

/** What stays different by the rule; an empty list is agreement. */
export function compare(rule: Rule, ours: Samples, theirs: Samples): string[] {
  const hits = prefixHits(theirs);
  if (rule === 'tokens') return equal('_sum', sumOf(ours), tokensOf(theirs) - hits);
  if (rule === 'exact' || hits === 0) return differences(ours, theirs);
  return [
    ...equal('_count', countOf(ours), countOf(theirs)),
    ...equal('_sum less prefix cache hits', sumOf(ours), sumOf(theirs) - hits),
  ];
}

/** How much larger steptap's `_sum` is than the rule makes it. */
export function excess(rule: Rule, ours: Samples, theirs: Samples): number {
  const expected = rule === 'tokens' ? tokensOf(theirs) : sumOf(theirs);
  return sumOf(ours) - expected + (rule === 'exact' ? 0 : prefixHits(theirs));
}

/**
 * With cancelled requests. The frontend drops a request, then says so to the engine; what the engine has sent until
 * steptap sees that, steptap counts and the frontend does not. So `_count` is equal, steptap's `_sum` is the larger
 * one by no more than `late`, the tokens that the cancelled requests had left, and no bucket moves by more than
 * `_sum` does. How much it really is depends on how late the machine schedules each process.
 */
export function compareLoosely(rule: Rule, ours: Samples, theirs: Samples, late: number): string[] {
  const hits = rule === 'exact' ? 0 : prefixHits(theirs);
  const more = excess(rule, ours, theirs);
  const problems = between('_sum beyond the frontend’s', more, late);
  if (rule === 'tokens') return problems;
  problems.push(...equal('_count', countOf(ours), countOf(theirs)));
  if (hits > 0) return problems;
  for (const [key, value] of iterationSamples(theirs)) {
    if (!key.includes('_bucket')) continue;
    problems.push(...between(`${key} below the frontend’s`, value - (ours.get(key) ?? Number.NaN), more));
  }
  return problems;
}

function equal(what: string, ours: number, theirs: number): string[] {
  return ours === theirs ? [] : [`${what}: steptap ${ours}, frontend ${theirs}`];
}

function between(what: string, value: number, bound: number): string[] {
  return value >= 0 && value <= bound ? [] : [`${what}: ${value}, allowed 0 to ${bound}`];
}
