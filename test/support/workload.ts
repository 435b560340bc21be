/** The validation workload of the semantics: 14 requests, one after the other. */

/** Lengths of prompts and outputs in tokens. */
const PROMPTS = [1, 20000, 7, 8, 9, 63, 64, 255, 512, 1000, 2048, 4095, 8192, 16495] as const;
const OUTPUTS = [2, 2, 10, 17, 16, 10, 13, 1, 5, 6, 3, 1, 9, 1] as const;

export interface WorkloadRequest {
  readonly promptTokens: number;
  readonly outputTokens: number;
  readonly stream: boolean;
}

export const WORKLOAD: readonly WorkloadRequest[] = PROMPTS.map((promptTokens, at) => ({
  promptTokens,
  outputTokens: OUTPUTS[at] ?? 0,
  stream: at % 2 === 1,
}));

/** Prompt and output tokens of all requests. */
export const WORKLOAD_SUM = 52_845;
/** Output messages, by tokens per message. */
export const WORKLOAD_COUNTS: ReadonlyMap<number, number> = new Map([
  [1, 96],
  [4, 32],
  [8, 21],
]);
