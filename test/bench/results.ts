import type { Case } from './cases.js';
import type { HopName } from './hops.js';
import type { Phase, Session } from './session.js';
import { median, spreadPercent } from './statistics.js';

/** All sessions of one case, by hop, one per round and in the order of rounds. */
export interface CaseResult {
  readonly case: Case;
  readonly sessions: ReadonlyMap<HopName, readonly Session[]>;
}

/** A row of the throughput table: one case and one hop. */
export interface ThroughputRow {
  readonly case: string;
  readonly hop: HopName;
  readonly messagesPerSecond: number;
  readonly megabytesPerSecond: number;
  /** Half the range of all runs, per cent of the median. */
  readonly spread: number;
  /** Median over the rounds of (this hop / zmq_proxy in the same round). */
  readonly ratio: number | undefined;
  readonly cpuPerMessage: number | undefined;
  readonly goal: number | undefined;
}

/** A row of the latency table: one case, rate and hop; microseconds. */
export interface LatencyRow {
  readonly case: string;
  readonly rate: number;
  readonly hop: HopName;
  readonly p50: number;
  readonly p99: number;
  /** What the hop adds to no hop, medians over the rounds. */
  readonly addedP50: number | undefined;
  readonly addedP99: number | undefined;
  /** Added by steptap / added by zmq_proxy, from those medians. */
  readonly ratioP50: number | undefined;
  readonly ratioP99: number | undefined;
  /** Half the range of p50 over all runs, per cent of the median. */
  readonly spread: number;
  readonly cpuPerMessage: number | undefined;
  readonly peakRss: number | undefined;
}

/** Goals for throughput / that of zmq_proxy, by workload. */
const throughputGoals: Readonly<Record<string, number>> = { '1': 1, '16': 1, '256': 0.7 };
/** Goals for what steptap adds / what zmq_proxy adds. */
export const latencyGoals = { p50: 0.9, p99: 1 };

export function throughputRows({ case: benchCase, sessions }: CaseResult): ThroughputRow[] {
  return [...sessions].map(([hop, runs]) => {
    const phases = phasesAt(runs, 0);
    const rates = phases.map(messagesPerSecond);
    const baseline = phasesAt(sessions.get('zmq_proxy') ?? [], 0).map(messagesPerSecond);
    return {
      case: benchCase.name,
      hop,
      messagesPerSecond: median(rates),
      megabytesPerSecond: median(phases.map(({ received }) => received.bytes / received.seconds / 1e6)),
      spread: spreadPercent(rates),
      ratio:
        baseline.length === 0
          ? undefined
          : median(rates.map((rate, run) => rate / (baseline[run] ?? Number.NaN))),
      cpuPerMessage: medianOf(phases, (phase) => phase.cpuPerMessage),
      goal: hop === 'steptap' ? throughputGoals[benchCase.workload] : undefined,
    };
  });
}

export function latencyRows(result: CaseResult): LatencyRow[] {
  return result.case.rates.flatMap((rate) => {
    const proxy = added(result, 'zmq_proxy', rate);
    return [...result.sessions].map(([hop, runs]) => {
      const phases = phasesAt(runs, rate);
      const own = hop === 'none' ? undefined : added(result, hop, rate);
      const comparable = hop === 'steptap' && own !== undefined && proxy !== undefined;
      return {
        case: result.case.name,
        rate,
        hop,
        p50: median(phases.map(({ received }) => received.p50)),
        p99: median(phases.map(({ received }) => received.p99)),
        addedP50: own?.p50,
        addedP99: own?.p99,
        ratioP50: comparable ? own.p50 / proxy.p50 : undefined,
        ratioP99: comparable ? own.p99 / proxy.p99 : undefined,
        spread: spreadPercent(phases.map(({ received }) => received.p50)),
        cpuPerMessage: medianOf(phases, (phase) => phase.cpuPerMessage),
        peakRss: medianOf(phases, (phase) => phase.peakRss),
      };
    });
  });
}

/** What steptap's own process showed, over all sessions. */
export interface SidecarFacts {
  readonly startMillis: number;
  readonly idleRss: number;
  /** Peak at 10,000 messages/s, highest case. */
  readonly rssAtTenThousand: number;
  readonly peakRss: number;
  /** Loop time of a scrape with 8 engines. */
  readonly scrapeMillis: number;
  readonly sessions: number;
}

export function sidecarFacts(results: readonly CaseResult[]): SidecarFacts | undefined {
  const sessions = results.flatMap((result) =>
    (result.sessions.get('steptap') ?? []).map((session) => ({ session, engines: result.case.engines })),
  );
  const facts = sessions.flatMap(({ session }) => session.sidecar ?? []);
  if (facts.length === 0) return undefined;
  const phases = sessions.flatMap(({ session }) => session.phases);
  const eight = sessions
    .filter(({ engines }) => engines === 8)
    .flatMap(({ session }) => session.sidecar ?? []);
  const rss = (chosen: readonly Phase[]) => Math.max(...chosen.map((phase) => phase.peakRss ?? 0));
  return {
    startMillis: median(facts.map(({ startMillis }) => startMillis)),
    idleRss: median(facts.map(({ idleRss }) => idleRss)),
    rssAtTenThousand: rss(phases.filter(({ rate }) => rate === 10_000)),
    peakRss: rss(phases),
    scrapeMillis: median(eight.map(({ scrapeMillis }) => scrapeMillis)),
    sessions: facts.length,
  };
}

function added(result: CaseResult, hop: HopName, rate: number): { p50: number; p99: number } | undefined {
  const bare = phasesAt(result.sessions.get('none') ?? [], rate);
  const phases = phasesAt(result.sessions.get(hop) ?? [], rate);
  if (bare.length === 0 || phases.length === 0) return undefined;
  const difference = (key: 'p50' | 'p99') =>
    median(phases.map(({ received }, run) => received[key] - (bare[run]?.received[key] ?? Number.NaN)));
  return { p50: difference('p50'), p99: difference('p99') };
}

function phasesAt(sessions: readonly Session[], rate: number): Phase[] {
  return sessions.flatMap(({ phases }) => phases.filter((phase) => phase.rate === rate));
}

function messagesPerSecond({ received }: Phase): number {
  return (received.messages - 1) / received.seconds;
}

function medianOf(phases: readonly Phase[], value: (phase: Phase) => number | undefined): number | undefined {
  const values = phases.flatMap((phase) => value(phase) ?? []);
  return values.length === 0 ? undefined : median(values);
}
