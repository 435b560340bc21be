import { Registry } from 'prom-client';
import { registrable } from './registrable.js';

/** The name under which vLLM's own frontends export it. */
const ITERATION_TOKENS = 'vllm:iteration_tokens_total';

/** Upper bounds in tokens, inclusive, as in vLLM (semantics S9); everything above falls into +Inf. */
const UPPER_BOUNDS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

/** vLLM prints floats: `le="1.0"`, and a query that compares sidecar and frontend joins on that text. */
const LE = [...UPPER_BOUNDS.map((bound) => bound.toFixed(1)), '+Inf'];

/** An engine's ZeroMQ identity is its index in two bytes. */
const MAX_ENGINE_INDEX = 0xffff;

/** What one engine has observed so far. */
export interface EngineTotals {
  readonly engine: number;
  readonly count: number;
  /** Tokens. */
  readonly sum: number;
  /** Cumulative, one per bound and +Inf at the end: 14 numbers, the last equal to `count`. */
  readonly buckets: readonly number[];
}

/** The plain form that `steptap replay --json` prints. Buckets are cumulative, by the text of their `le`. */
export interface IterationHistogramJson {
  readonly name: string;
  readonly model_name: string | null;
  readonly engines: readonly {
    readonly engine: number;
    readonly count: number;
    readonly sum: number;
    readonly buckets: Readonly<Record<string, number>>;
  }[];
}

interface HistogramValue {
  readonly metricName: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

/** One engine's numbers. Doubles in a typed array: adding to them allocates nothing, however large they grow. */
class Series {
  /** Observations per bucket, not cumulative, then the sum of tokens. */
  readonly numbers = new Float64Array(LE.length + 1);
}

const SUM = LE.length;

/**
 * `vllm:iteration_tokens_total{model_name,engine}`: tokens that one engine step moved, observed once per output
 * message. prom-client's own Histogram hashes labels and builds objects at each observation, so this one keeps
 * plain numbers and only speaks to prom-client's registry when it is scraped.
 */
export class IterationHistogram {
  readonly name = ITERATION_TOKENS;
  /** vLLM's own words. */
  readonly help = 'Histogram of number of tokens per engine_step.';
  readonly type = 'histogram';
  readonly aggregator = 'sum';

  /** The `model_name` label. While it is null the series are held back from every print, but counted. */
  modelName: string | null = null;

  /** By engine index, without holes: indexes are small in practice, and the data path then only indexes. */
  readonly #series: (Series | null)[] = [];

  /** Makes the engine known: its series stand at zero from now on. A second time changes nothing. */
  addEngine(index: number): void {
    if (!Number.isInteger(index) || index < 0 || index > MAX_ENGINE_INDEX) {
      throw new RangeError(`engine index ${index} is not an integer from 0 to ${MAX_ENGINE_INDEX}`);
    }
    while (this.#series.length <= index) this.#series.push(null);
    this.#series[index] ??= new Series();
  }

  hasEngine(index: number): boolean {
    return (this.#series[index] ?? null) !== null;
  }

  /** One step of `engine` moved `tokens` (an integer ≥ 0). An unknown engine is not observed (semantics S1). */
  observe(engine: number, tokens: number): void {
    const numbers = this.#series[engine]?.numbers;
    if (numbers === undefined) return;
    // Most steps are decodes of a few tokens, so the loop is over after one or two comparisons.
    let bucket = 0;
    while (tokens > (UPPER_BOUNDS[bucket] ?? Number.POSITIVE_INFINITY)) bucket++;
    (numbers[bucket] as number)++;
    (numbers[SUM] as number) += tokens;
  }

  /** Of every known engine, by index. Independent of the model name. */
  totals(): EngineTotals[] {
    const totals: EngineTotals[] = [];
    for (const [engine, series] of this.#series.entries()) {
      if (series === null) continue;
      let count = 0;
      const buckets: number[] = [];
      for (const observations of series.numbers.subarray(0, SUM)) {
        count += observations;
        buckets.push(count);
      }
      totals.push({ engine, count, sum: series.numbers[SUM] as number, buckets });
    }
    return totals;
  }

  /** For prom-client's registry, which prints the values in this order. */
  async get(): Promise<{
    name: string;
    help: string;
    type: string;
    aggregator: string;
    values: HistogramValue[];
  }> {
    const { name, help, type, aggregator } = this;
    const values = this.modelName === null ? [] : this.#values(this.modelName);
    return { name, help, type, aggregator, values };
  }

  /** This histogram alone as Prometheus text 0.0.4. */
  async renderText(): Promise<string> {
    const registry = new Registry();
    registry.registerMetric(registrable(this));
    return registry.metrics();
  }

  toJSON(): IterationHistogramJson {
    return {
      name: this.name,
      model_name: this.modelName,
      engines: this.totals().map(({ engine, count, sum, buckets }) => ({
        engine,
        count,
        sum,
        buckets: Object.fromEntries(LE.map((le, index) => [le, buckets[index] as number])),
      })),
    };
  }

  #values(model_name: string): HistogramValue[] {
    return this.totals().flatMap(({ engine, count, sum, buckets }) => {
      const labels = { model_name, engine: String(engine) };
      const values: HistogramValue[] = buckets.map((value, index) => ({
        metricName: `${this.name}_bucket`,
        labels: { le: LE[index] as string, ...labels },
        value,
      }));
      values.push({ metricName: `${this.name}_sum`, labels, value: sum });
      values.push({ metricName: `${this.name}_count`, labels, value: count });
      return values;
    });
  }
}
