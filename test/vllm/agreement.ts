/** Two `/metrics` pages that come to rest: the frontend answers a moment before it records the last step. */
import {
  compare,
  compareLoosely,
  differences,
  enginesOf,
  excess,
  ofEngines,
  prefixHits,
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
  const more = excess(rule, ours, theirs);
  const sum = more === 0 ? 'equal' : `+${more}`;
  if (rule === 'tokens') return `token sum ${sum}`;
  if (differences(ours, theirs).length === 0) return 'equal';
  const hits = prefixHits(theirs);
  return rule === 'whole-prompt' && hits > 0
    ? `count equal, sum ${sum} less ${hits} cached`
    : `count equal, sum ${sum}`;
}
