/**
 * Counts one output message: what vLLM's own frontend would observe for it. The rules are those of semantics.md,
 * cited as S1 … S13.
 */
import { BatchRequests } from './batch-requests.js';
import type { Engines, StepObserver } from './engines.js';
import type { Telemetry } from './telemetry.js';
import type { Request, RequestTracker } from './tracking.js';
import { NO_CACHED_COUNT, NO_PREFILL_STATS, type OutputBatch } from './vllm/output-batch.js';

/** One per output connection: its batches come from one engine and repeat their ids. */
export class StepCounter {
  readonly #tracker: RequestTracker;
  readonly #engines: Engines;
  readonly #observer: StepObserver;
  readonly #telemetry: Telemetry;
  readonly #requests: BatchRequests;

  constructor(tracker: RequestTracker, engines: Engines, observer: StepObserver, telemetry: Telemetry) {
    this.#tracker = tracker;
    this.#engines = engines;
    this.#observer = observer;
    this.#telemetry = telemetry;
    this.#requests = new BatchRequests(tracker);
  }

  count(batch: OutputBatch): void {
    const engine = this.#engines.get(batch.engineIndex);
    const rows = batch.length;
    let tokens = 0;
    let untracked = 0;
    let repeated = 0;
    this.#requests.begin();
    for (let row = 0; row < rows; row++) {
      const request = this.#requests.find(batch, row);
      if (request?.selected) {
        const computed = batch.computed[row] as number;
        if (computed !== NO_PREFILL_STATS && request.prefillReported) repeated++; // S10: counted all the same
        tokens +=
          (batch.tokens[row] as number) + prefillTokens(request, computed, batch.cached[row] as number);
      } else {
        untracked++;
      }
      if (request !== undefined && batch.finished[row] === 1) this.#tracker.close(request.id);
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
function prefillTokens(request: Request, computed: number, cached: number): number {
  if (computed !== NO_PREFILL_STATS) {
    request.prefillReported = true;
    return computed;
  }
  if (cached === NO_CACHED_COUNT || request.promptCounted) return 0;
  request.promptCounted = true;
  return Math.max(request.promptLength - cached, 0);
}
