/**
 * semantics.md S1 … S13 word by word, with maps and lists and no thought of speed. Written apart from
 * proxy/step-counter.ts and proxy/tracking.ts.
 */
export interface Row {
  readonly id: string;
  readonly tokens: number;
  readonly finished: boolean;
  /** num_computed_tokens of the prefill stats; null without stats. */
  readonly computed: number | null;
  /** num_cached_tokens; null where the layout has none. */
  readonly cached: number | null;
}

export interface Batch {
  readonly engine: number;
  readonly rows: readonly Row[];
  readonly finishedRequests: readonly string[];
  readonly hasSchedulerStats: boolean;
}

export interface Counts {
  readonly observations: [engine: number, tokens: number][];
  tracked: number;
  adopted: number;
  unknownEngineBatches: number;
  untrackedOutputs: number;
  untrackedBatches: number;
  repeatedPrefillReports: number;
  steps: number;
}

interface InFlight {
  readonly prompt: number;
  readonly isAdopted: boolean;
  outputs: number;
  prefillReports: number;
}

export class CountingModel {
  readonly #counts: Counts = {
    observations: [],
    tracked: 0,
    adopted: 0,
    unknownEngineBatches: 0,
    untrackedOutputs: 0,
    untrackedBatches: 0,
    repeatedPrefillReports: 0,
    steps: 0,
  };
  readonly #inFlight = new Map<string, InFlight>();
  readonly #knownEngines: Set<number>;
  readonly #selects: (id: string) => boolean;
  /** Ids that ended since the restart; null: there was none. */
  #ended: Set<string> | null = null;

  constructor(knownEngines: readonly number[], selects: (id: string) => boolean) {
    this.#knownEngines = new Set(knownEngines);
    this.#selects = selects;
  }

  get counts(): Counts {
    return { ...this.#counts, tracked: [...this.#inFlight.keys()].filter(this.#selects).length };
  }

  restart(): void {
    this.#ended ??= new Set();
  }

  add(id: string, prompt: number): void {
    if (!this.#inFlight.has(id))
      this.#inFlight.set(id, { prompt, isAdopted: false, outputs: 0, prefillReports: 0 });
  }

  end(id: string): void {
    this.#inFlight.delete(id);
    this.#ended?.add(id);
  }

  batch({ engine, rows, finishedRequests, hasSchedulerStats }: Batch): void {
    const counts = this.#counts;
    const isKnown = this.#knownEngines.has(engine);
    let value = 0;
    let untracked = 0;
    for (const row of rows) {
      const request = this.#find(row.id);
      if (request !== undefined && this.#selects(row.id)) value += this.#tokensOf(row, request, isKnown);
      else untracked++;
      if (request !== undefined) {
        request.outputs++;
        if (row.finished) this.end(row.id);
      }
    }
    for (const id of finishedRequests) this.end(id);
    if (!isKnown) {
      if (rows.length > 0) counts.unknownEngineBatches++;
      return;
    }
    if (hasSchedulerStats) counts.steps++;
    counts.untrackedOutputs += untracked;
    if (rows.length === 0) return;
    if (untracked === rows.length) counts.untrackedBatches++;
    counts.observations.push([engine, value]);
  }

  #tokensOf({ tokens, computed, cached }: Row, request: InFlight, isKnown: boolean): number {
    if (computed !== null) {
      if (request.prefillReports > 0 && isKnown) this.#counts.repeatedPrefillReports++;
      request.prefillReports++;
      return tokens + computed;
    }
    const isFirst = request.outputs === 0 && !request.isAdopted;
    if (cached === null || !isFirst) return tokens;
    return tokens + Math.max(request.prompt - Math.max(cached, 0), 0);
  }

  #find(id: string): InFlight | undefined {
    const request = this.#inFlight.get(id);
    if (request !== undefined || this.#ended === null || this.#ended.has(id)) return request;
    if (this.#selects(id)) this.#counts.adopted++;
    const adopted = { prompt: 0, isAdopted: true, outputs: 0, prefillReports: 0 };
    this.#inFlight.set(id, adopted);
    return adopted;
  }
}
