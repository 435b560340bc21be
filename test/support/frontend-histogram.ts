/**
 * `vllm:iteration_tokens_total` as the stand-in frontend counts it: the rules S1 to S6, S10 and S11 of the semantics
 * on fully decoded messages. Shares nothing with the product code that it is compared with.
 */
import { outputFieldIndex, type VllmVersion } from './messages.js';

const NAME = 'vllm:iteration_tokens_total';
const BOUNDS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, Number.POSITIVE_INFINITY];

/** Requests that one frontend client has sent and not seen the end of: length of the prompt, until it is counted. */
export type OpenRequests = Map<string, { uncountedPrompt: number | null }>;

export class FrontendHistogram {
  readonly #modelName: string;
  readonly #series: { within: number[]; count: number; sum: number }[];
  readonly #at: { tokens: number; finish: number; cached: number; prefill: number };

  constructor(modelName: string, engines: number, version: VllmVersion) {
    this.#modelName = modelName;
    this.#series = Array.from({ length: engines }, () => ({ within: BOUNDS.map(() => 0), count: 0, sum: 0 }));
    this.#at = {
      tokens: outputFieldIndex(version, 'tokens'),
      finish: outputFieldIndex(version, 'finish'),
      cached: outputFieldIndex(version, 'cached'),
      prefill: outputFieldIndex(version, 'prefill'),
    };
  }

  /** Counts one decoded output message of a client and takes what it finishes out of `open`. */
  count(message: unknown, open: OpenRequests): void {
    if (!Array.isArray(message)) return;
    const [engine, outputs, , , utility, finished, waveComplete, startWave] = message as unknown[];
    const rows = Array.isArray(outputs) ? outputs : [];
    if (rows.length > 0 && [utility, waveComplete, startWave].some((field) => (field ?? null) !== null))
      return;
    let tokens = 0;
    for (const row of rows) if (Array.isArray(row)) tokens += this.#tokensOf(row, open);
    if (rows.length > 0) this.#observe(Number(engine), tokens);
    for (const id of Array.isArray(finished) ? finished : []) open.delete(String(id));
  }

  #observe(engine: number, tokens: number): void {
    const series = this.#series[engine];
    if (series === undefined) return;
    series.count++;
    series.sum += tokens;
    series.within = series.within.map((count, at) => (tokens <= (BOUNDS[at] ?? 0) ? count + 1 : count));
  }

  #tokensOf(row: readonly unknown[], open: OpenRequests): number {
    const id = String(row[0]);
    const request = open.get(id);
    if (request === undefined) return 0;
    const newTokens = row[this.#at.tokens];
    const tokens = (Array.isArray(newTokens) ? newTokens.length : 0) + this.#computedTokens(row, request);
    if ((row[this.#at.finish] ?? null) !== null) open.delete(id);
    return tokens;
  }

  #computedTokens(row: readonly unknown[], request: { uncountedPrompt: number | null }): number {
    if (this.#at.prefill >= 0) {
      const stats = row[this.#at.prefill];
      if (typeof stats !== 'object' || stats === null) return 0;
      const computed = 'num_computed_tokens' in stats ? stats.num_computed_tokens : 0;
      return typeof computed === 'number' && Number.isSafeInteger(computed) && computed >= 0 ? computed : 0;
    }
    const prompt = request.uncountedPrompt;
    request.uncountedPrompt = null;
    return prompt === null ? 0 : prompt - Math.max(Number(row[this.#at.cached] ?? 0), 0);
  }

  /** What one engine's batches summed up to: number of observations and tokens. */
  totals(engine = 0): { count: number; sum: number } {
    const { count, sum } = this.#series[engine] ?? { count: 0, sum: 0 };
    return { count, sum };
  }

  /** Prometheus text as vLLM's Python frontend prints it. */
  text(): string {
    const lines = [
      `# HELP ${NAME} Histogram of number of tokens per engine_step.`,
      `# TYPE ${NAME} histogram`,
    ];
    const model = this.#modelName.replace(/[\\"]/g, '\\$&').replaceAll('\n', '\\n');
    for (const [engine, { within, count, sum }] of this.#series.entries()) {
      for (const [at, bound] of BOUNDS.entries()) {
        const le = bound === Number.POSITIVE_INFINITY ? '+Inf' : bound.toFixed(1);
        lines.push(`${NAME}_bucket{engine="${engine}",le="${le}",model_name="${model}"} ${within[at]}.0`);
      }
      const labels = `{engine="${engine}",model_name="${model}"}`;
      lines.push(`${NAME}_count${labels} ${count}.0`, `${NAME}_sum${labels} ${sum}.0`);
    }
    return `${lines.join('\n')}\n`;
  }
}
