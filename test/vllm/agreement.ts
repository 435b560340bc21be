/** Two `/metrics` pages that come to rest: the frontend answers a moment before it records the last step. */
import {
  compare,
  compareLoosely,
  differences,
  enginesOf,
  ofEngines,
  type Rule,
  type Samples,
  scrape,
  sumOf,
} from './comparison.js';

const SETTLE_MS = 10_000;
const POLL_MS = 300;

export interface Agreement {
  readonly ours: Samples;
  readonly theirs: Samples;
  readonly problems: readonly string[];
  /** For a table: `equal`, or what had to be allowed for. */
  readonly verdict: string;
}

/**
 * Asks both until they agree and no longer change, at most 10 s. Engines that steptap does not see are left out; that
 * it sees those it should is checked at the start. `aborts`: what of this part was cancelled.
 */
export async function agree(
  rule: Rule,
  urls: { ours: string; theirs: string },
  aborts: { requests: number; tokensLeft: number },
): Promise<Agreement> {
  const end = Date.now() + SETTLE_MS;
  let before = '';
  for (;;) {
    const [ours, all] = await Promise.all([scrape(urls.ours), scrape(urls.theirs)]);
    const theirs = ofEngines(all, enginesOf(ours));
    const problems =
      aborts.requests === 0
        ? compare(rule, ours, theirs)
        : compareLoosely(rule, ours, theirs, aborts.tokensLeft);
    const now = JSON.stringify([sumOf(ours), sumOf(theirs)]);
    if ((problems.length === 0 && now === before) || Date.now() > end)
      return { ours, theirs, problems, verdict: verdictOf(rule, ours, theirs, problems) };
    before = now;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

function verdictOf(rule: Rule, ours: Samples, theirs: Samples, problems: readonly string[]): string {
  if (problems.length > 0) return 'DIFFERS';
  if (rule === 'tokens') return 'token sum equal';
  const differing = differences(ours, theirs);
  if (differing.length === 0) return 'equal';
  const sum = sumOf(ours) - sumOf(theirs);
  if (rule === 'whole-prompt') return `count equal, sum ${sum} (cached tokens)`;
  return `count equal, sum ${sum > 0 ? '+' : ''}${sum}`;
}
