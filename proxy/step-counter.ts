/**
 * Counts one output message: what vLLM's own frontend would observe for it. The rules are those of semantics.md,
 * cited as S1 … S13.
 */
import type { Engines, StepObserver } from './engines.js';
import type { Telemetry } from './telemetry.js';
import type { Request, RequestTracker } from './tracking.js';
import { ListedRow, NO_CACHED_COUNT, NO_PREFILL_STATS, type OutputBatch } from './vllm/output-batch.js';
import { walker } from './vllm/output-walker.js';

export class StepCounter {
  readonly #tracker: RequestTracker;
  readonly #engines: Engines;
  readonly #observer: StepObserver;
  readonly #telemetry: Telemetry;
  readonly #row = new ListedRow();

  constructor(tracker: RequestTracker, engines: Engines, observer: StepObserver, telemetry: Telemetry) {
    this.#tracker = tracker;
    this.#engines = engines;
    this.#observer = observer;
    this.#telemetry = telemetry;
  }

  /** Whose requests a batch is to be read for. */
  get tracker(): RequestTracker {
    return this.#tracker;
  }

  count(batch: OutputBatch): void {
    const engine = this.#engines.get(batch.engineIndex);
    const rows = batch.length;
    let tokens = batch.plainTokens;
    let untracked = batch.plainUntracked;
    let repeated = 0;
    const row = this.#row;
    for (let index = 0; index < batch.listed; index++) {
      batch.row(index, row);
      // A request that an earlier row has finished has no slot any more.
      const request = this.#tracker.at(row.slot) ?? this.#tracker.find(batch.idOf(row));
      if (request?.selected) {
        if (row.computed !== NO_PREFILL_STATS && request.prefillReported) repeated++; // S10: counted all the same
        tokens += row.tokens + prefillTokens(request, row);
      } else {
        untracked++;
      }
      if (request !== undefined && row.finished) this.#tracker.close(request.id);
    }
    for (const id of batch.finishedRequests) this.#tracker.close(id); // S5: behind the outputs

    if (batch.invalidCounts > 0) {
      this.#telemetry.add(
        'decode_errors_total',
        { kind: 'outputs', reason: 'invalid_count' },
        batch.invalidCounts,
      );
    }
    if (engine === undefined) {
      if (rows > 0) this.#telemetry.add('unknown_engine_batches_total', {});
      return;
    }
    if (batch.hasSchedulerStats) engine.steps++;
    if (rows === 0) return;
    engine.untrackedOutputs += untracked;
    engine.repeatedPrefillReports += repeated;
    if (untracked === rows) engine.untrackedBatches++; // S4: still an observation, of 0
    this.#observer.observe(engine.index, tokens);
  }
}

/** Prompt tokens computed for this output: prefill stats (S2), or before vLLM 0.20 the uncached prompt, once (S11). */
function prefillTokens(request: Request, { computed, cached }: ListedRow): number {
  if (computed !== NO_PREFILL_STATS) {
    request.prefillReported = true;
    return computed;
  }
  if (cached === NO_CACHED_COUNT || request.promptCounted) return 0;
  request.promptCounted = true;
  if (request.slot !== 0) walker.markPromptCounted(request.slot);
  return Math.max(request.promptLength - cached, 0);
}
