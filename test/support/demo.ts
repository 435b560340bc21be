/**
 * `steptap demo`: the validation workload through the real sidecar in directory mode, for chunks of 1, 4 and 8
 * tokens a message, compared with the frontend's own count after every request.
 */
import { complete } from './completions.js';
import { type DemoStack, startDemoStack } from './demo-stack.js';
import { differences, type IterationSamples, scrapeIterations } from './iteration-samples.js';
import { LOAD_STEPS_PER_SECOND, steadyLoad } from './steady-load.js';
import { bar, bold, cyan, dim, green, number, print, red } from './terminal.js';
import { waitFor } from './wait.js';
import { WORKLOAD, WORKLOAD_COUNTS, WORKLOAD_SUM, type WorkloadRequest } from './workload.js';

export interface DemoOptions {
  /** Stay up under a steady load after the comparison, until SIGINT or SIGTERM. */
  readonly keep: boolean;
}

const MODEL_NAME = 'stand-in';
const SERIES_DEADLINE_MS = 10_000;
/** The sidecar passes an output on before it counts it. */
const SETTLE_MS = 1_000;
const STOP_SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/** Resolves with the exit code: 0 when everything agrees, 1 when anything differs, 130 when interrupted. */
export async function runDemo({ keep }: DemoOptions): Promise<number> {
  const stop = new AbortController();
  const interrupt = (): void => stop.abort();
  for (const name of STOP_SIGNALS) process.on(name, interrupt);
  try {
    print(bold('steptap demo'));
    print('stand-in frontend ── unix sockets ── steptap (directory mode) ── unix sockets ── stand-in engine');
    print(
      `${WORKLOAD.length} requests over HTTP; after each, every sample of vllm:iteration_tokens_total is`,
    );
    print("compared: steptap's /metrics against the frontend's own.");
    const results: Result[] = [];
    for (const [chunk, count] of WORKLOAD_COUNTS) results.push(await runWorkload(chunk, count, stop.signal));
    const passed = verdict(results);
    if (passed && keep) await stayUp(stop.signal);
    return passed ? 0 : 1;
  } catch (error) {
    if (stop.signal.aborted) return 130;
    throw error;
  } finally {
    for (const name of STOP_SIGNALS) process.off(name, interrupt);
  }
}

interface Result {
  readonly chunk: number;
  readonly expectedCount: number;
  readonly sum: number;
  readonly count: number;
  /** Requests after which sidecar, frontend and arithmetic did not agree. */
  readonly wrong: number;
}

async function runWorkload(chunk: number, expectedCount: number, signal: AbortSignal): Promise<Result> {
  signal.throwIfAborted();
  print(
    `\n${bold(`Chunks of ${chunk}`)}: the engine sends up to ${chunk} token${chunk === 1 ? '' : 's'} of a request in one message`,
  );
  const stack = await startDemoStack({ chunk }, MODEL_NAME);
  try {
    const start = await waitFor(() => scrapeIterations(stack.metricsUrl), {
      deadlineMs: SERIES_DEADLINE_MS,
      what: 'the sidecar has the series of the engine',
    });
    const zero = [...start.samples.values()].every((value) => value === 0);
    print(`${mark(zero)} before the first request all ${start.samples.size} samples are zero`);
    print(dim('    prompt  output            sum  count'));
    let wrong = zero ? 0 : 1;
    const expected = { sum: 0, count: 0 };
    for (const request of WORKLOAD) {
      signal.throwIfAborted();
      await complete(stack.frontendUrl, request, { signal });
      expected.sum += request.promptTokens + request.outputTokens;
      expected.count += Math.ceil(request.outputTokens / chunk);
      if (!(await compare(stack, request, expected))) wrong++;
    }
    const end = await scrapeIterations(stack.metricsUrl);
    if (end === null) throw new Error('the series are gone');
    drawHistogram(end);
    return { chunk, expectedCount, sum: end.sum, count: end.count, wrong };
  } finally {
    await stack.stop();
  }
}

/** Prints one line on one request; false when anything differs. */
async function compare(
  { metricsUrl, frontendUrl }: DemoStack,
  { promptTokens, outputTokens, stream }: WorkloadRequest,
  expected: { readonly sum: number; readonly count: number },
): Promise<boolean> {
  const frontend = await scrapeIterations(frontendUrl);
  let sidecar: IterationSamples | null = null;
  let unlike: string[] = ['no series'];
  const deadline = performance.now() + SETTLE_MS;
  do {
    sidecar = await scrapeIterations(metricsUrl);
    if (sidecar !== null && frontend !== null) unlike = differences(sidecar.samples, frontend.samples);
  } while (unlike.length > 0 && performance.now() < deadline);
  const { sum = Number.NaN, count = Number.NaN } = sidecar ?? {};
  if (sum !== expected.sum) unlike.push(`_sum ${sum}, expected ${expected.sum}`);
  if (count !== expected.count) unlike.push(`_count ${count}, expected ${expected.count}`);
  const sizes = `${number(promptTokens, 8)}${number(outputTokens, 8)}  ${stream ? 'stream' : '      '}`;
  print(`${mark(unlike.length === 0)} ${sizes}${number(sum, 8)}${number(count, 7)}`);
  for (const line of unlike) print(red(`    ${line}`));
  return unlike.length === 0;
}

function drawHistogram({ buckets }: IterationSamples): void {
  const largest = Math.max(...buckets.map(({ count }) => count));
  print(dim('\n  tokens a step    steps'));
  let above = 0;
  for (const { le, count } of buckets) {
    const bound = Number.parseFloat(le);
    const range = Number.isNaN(bound) ? `more than ${number(above)}` : rangeOf(above, bound);
    print(`${range.padStart(17)}${number(count, 7)}  ${cyan(bar(count, largest))}`);
    above = bound;
  }
}

function rangeOf(above: number, bound: number): string {
  return above === 0 ? `0 – ${number(bound)}` : `${number(above + 1)} – ${number(bound)}`;
}

function verdict(results: readonly Result[]): boolean {
  const passed = results.every(
    ({ wrong, sum, count, expectedCount }) => wrong === 0 && sum === WORKLOAD_SUM && count === expectedCount,
  );
  print(`\n${bold('Result')}`);
  for (const { chunk, sum, count } of results) {
    print(`  chunks of ${chunk}: _sum ${sum}, _count ${count}`);
  }
  const sums = [...new Set(results.map(({ sum }) => sum))].join(', ');
  const counts = results.map(({ count }) => count).join(', ');
  const text = `_sum ${sums} and _count ${counts}`;
  if (passed)
    print(green(bold(`PASS: ${text}; steptap and frontend agree in every sample after every request`)));
  else {
    const wanted = `_sum ${WORKLOAD_SUM} and _count ${[...WORKLOAD_COUNTS.values()].join(', ')}`;
    const wrong = results.reduce((total, result) => total + result.wrong, 0);
    print(red(bold(`FAIL: ${text}, expected ${wanted}; ${wrong} comparisons differ`)));
  }
  return passed;
}

function mark(good: boolean): string {
  return good ? green('✓') : red('✗');
}

async function stayUp(signal: AbortSignal): Promise<void> {
  const stack = await startDemoStack({ stepsPerSecond: LOAD_STEPS_PER_SECOND }, MODEL_NAME);
  try {
    print(`\n${bold('Up under a steady load until Ctrl-C')}`);
    print(`  steptap   ${cyan(`${stack.metricsUrl}/metrics`)}`);
    print(`            ${cyan(`${stack.metricsUrl}/status`)}`);
    print(`  frontend  ${cyan(`${stack.frontendUrl}/metrics`)}`);
    await steadyLoad(stack.frontendUrl, signal);
  } finally {
    await stack.stop();
  }
}
