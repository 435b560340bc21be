/**
 * The mixed load in three parts, each harder to agree on than the one before:
 *
 * - `fresh`: every prompt is new, nothing is cancelled. Every frontend that has the metric counts this alike.
 * - `cached`: prompts that share prefixes, and n=3, so that cached tokens occur.
 * - `cancelled`: clients that go away mid-stream, and stop strings; both end in an ABORT that the engine gets late.
 *
 * No request has a seed: vLLM's CPU engine dies of one on some processors.
 */
import { Agent, request } from 'undici';

export interface Ask {
  readonly path: '/v1/completions' | '/v1/chat/completions';
  readonly body: Readonly<Record<string, unknown>>;
  readonly stream: boolean;
  /** Go away after so many chunks. */
  readonly cancelAfter?: number;
}

export interface Answer {
  readonly ok: boolean;
  readonly promptTokens: number;
  readonly completionTokens: number;
  /** The first 200 characters of what came instead of an answer. */
  readonly problem?: string;
}

/** Prompt lengths around the engine's block (16, 128) and batch (2,048) sizes, up to the longest promised one. */
const LENGTHS = [
  1, 2, 7, 15, 16, 17, 33, 64, 100, 127, 128, 129, 255, 500, 1000, 1500, 2047, 2048, 2049, 3000, 5000, 9000,
  20000,
];
const OUTPUTS = [1, 2, 3, 5, 8, 13, 17, 32];
/** Ids from here to the end of the vocabulary are words, those before are special. */
const FIRST_WORD = 3;
const VOCABULARY = 512;
const CONCURRENCY = 6;

/** Deterministic, so that two runs send the same. */
function prompts(start: number): (length: number) => number[] {
  let state = start;
  const next = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return FIRST_WORD + ((state >>> 8) % (VOCABULARY - FIRST_WORD));
  };
  return (length) => Array.from({ length }, next);
}

function completion(
  prompt: number[] | string,
  maxTokens: number,
  stream: boolean,
  more: Record<string, unknown> = {},
): Ask {
  const usage = stream ? { stream_options: { include_usage: true } } : {};
  const body = { model: 'tiny', prompt, max_tokens: maxTokens, stream, ignore_eos: true, ...usage, ...more };
  return { path: '/v1/completions', body, stream };
}

function chat(text: string, maxTokens: number, stream: boolean, more: Record<string, unknown> = {}): Ask {
  const usage = stream ? { stream_options: { include_usage: true } } : {};
  const messages = [{ role: 'user', content: text }];
  const body = { model: 'tiny', messages, max_tokens: maxTokens, stream, ...usage, ...more };
  return { path: '/v1/chat/completions', body, stream };
}

export function freshLoad(): Ask[] {
  const prompt = prompts(1);
  const asks = LENGTHS.flatMap((length, i) => {
    const output = OUTPUTS[i % OUTPUTS.length] ?? 1;
    const first = completion(prompt(length), output, i % 2 === 0);
    // short prompts come again with other words, so that steps hold several requests
    return length > 200 ? [first] : [first, completion(prompt(length), output + 3, i % 2 === 1)];
  });
  for (let i = 0; i < 6; i++) {
    asks.push(completion(prompt(20 + i), 6, i % 2 === 0, { logprobs: 3 }));
    asks.push(chat(`${i}${'pong ball '.repeat(i + 1)}`, 7 + i, i % 2 === 0));
    asks.push(completion(`${i} ${'lob dob '.repeat(i + 1)}`, 9, i % 2 === 1, { temperature: 0 }));
  }
  return asks;
}

export function cachedLoad({ several = true } = {}): Ask[] {
  const prompt = prompts(2);
  const asks: Ask[] = [];
  for (const length of [300, 1000, 6000]) {
    const shared = prompt(length);
    for (let i = 0; i < 4; i++) asks.push(completion([...shared, ...prompt(i * 40)], 4 + i, i % 2 === 0));
  }
  for (let i = 0; i < 3; i++) {
    asks.push(completion(prompt(24), 5, false, { prompt_logprobs: 2, logprobs: 2 }));
    if (several) asks.push(completion(prompt(40 + 300 * i), 6, i % 2 === 0, { n: 3 }));
  }
  return asks;
}

export function cancelledLoad(): Ask[] {
  const prompt = prompts(3);
  const asks: Ask[] = [];
  for (let i = 0; i < 30; i++) {
    const ask = completion(prompt(5 + i * 9), 150 + i * 5, true);
    asks.push({ ...ask, cancelAfter: 1 + ((i * 7) % 40) });
    if (i % 3 === 0) asks.push(completion(prompt(30), 60, i % 2 === 0, { stop: ['a', 'e'] }));
    if (i % 3 === 1) asks.push(completion(prompt(60 + i), 20, i % 2 === 0));
  }
  return asks;
}

/** Requests of a load that end in an ABORT of the frontend's, and the tokens these had left at most. */
export function abortsOf(load: readonly Ask[]): { requests: number; tokensLeft: number } {
  const aborts = load.filter((ask) => ask.cancelAfter !== undefined || ask.body['stop'] !== undefined);
  const left = aborts.map((ask) => Number(ask.body['max_tokens']) - (ask.cancelAfter ?? 0));
  return { requests: aborts.length, tokensLeft: left.reduce((sum, tokens) => sum + tokens, 0) };
}

/** Sends a load, six requests at a time, and waits for all answers. Never throws: a failed request is an answer. */
export async function send(url: string, load: readonly Ask[], concurrency = CONCURRENCY): Promise<Answer[]> {
  const dispatcher = new Agent({ headersTimeout: 300_000, bodyTimeout: 300_000, connections: concurrency });
  const answers: Answer[] = [];
  let next = 0;
  const worker = async () => {
    while (next < load.length) {
      const ask = load[next++] as Ask;
      answers.push(await sendOne(url, ask, dispatcher));
    }
  };
  await Promise.all(Array.from({ length: concurrency }, worker));
  await dispatcher.destroy();
  return answers;
}

/** One request. `onChunk` sees the time of each server-sent event. */
export async function sendOne(
  url: string,
  ask: Ask,
  dispatcher: Agent,
  onChunk?: () => void,
): Promise<Answer> {
  const leave = new AbortController();
  const parts: string[] = [];
  try {
    const { statusCode, body } = await request(url + ask.path, {
      dispatcher,
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(ask.body),
      signal: leave.signal,
    });
    if (statusCode !== 200 || !ask.stream) {
      const text = await body.text();
      return statusCode === 200 ? readUsage([text]) : failed(`${statusCode} ${text}`);
    }
    let chunks = 0;
    const utf8 = new TextDecoder();
    for await (const bytes of body as AsyncIterable<Uint8Array>) {
      const part = utf8.decode(bytes, { stream: true });
      parts.push(part);
      onChunk?.();
      chunks += part.split('\ndata: ').length;
      if (ask.cancelAfter !== undefined && chunks > ask.cancelAfter) leave.abort();
    }
    return readUsage(parts.join('').split('\n'));
  } catch (error) {
    if (leave.signal.aborted) return { ok: true, promptTokens: 0, completionTokens: 0 };
    return failed(String(error));
  }
}

function failed(problem: string): Answer {
  return { ok: false, promptTokens: 0, completionTokens: 0, problem: problem.slice(0, 200) };
}

/** Usage stands in the body, or in the last event of a stream. */
function readUsage(lines: readonly string[]): Answer {
  for (const line of lines.toReversed()) {
    if (!line.includes('"usage"')) continue;
    const parsed = JSON.parse(line.replace(/^data: /, '')) as {
      usage?: { prompt_tokens: number; completion_tokens: number };
    };
    if (parsed.usage)
      return {
        ok: true,
        promptTokens: parsed.usage.prompt_tokens,
        completionTokens: parsed.usage.completion_tokens,
      };
  }
  return failed(`no usage in: ${lines.join('').slice(-150)}`);
}
