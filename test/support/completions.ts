/** A client of `/v1/completions`, as far as the demo and tests need one. */
import { type Dispatcher, request } from 'undici';
import { pseudoTokens } from './messages.js';
import type { WorkloadRequest } from './workload.js';

interface CompletionBody {
  readonly usage?: { readonly completion_tokens: number };
}

/** Sends one request and reads the answer to its end; the number of tokens that came. Rejects when not 200. */
export async function complete(
  url: string,
  { promptTokens, outputTokens, stream }: WorkloadRequest,
  options: { readonly dispatcher?: Dispatcher; readonly signal?: AbortSignal } = {},
): Promise<number> {
  const prompt = pseudoTokens(promptTokens);
  const { statusCode, body } = await request(`${url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt, max_tokens: outputTokens, stream }),
    ...options,
  });
  const text = await body.text();
  if (statusCode !== 200) throw new Error(`/v1/completions answered ${statusCode}: ${text}`);
  const answers = stream ? events(text) : [JSON.parse(text) as CompletionBody];
  const tokens = answers.at(-1)?.usage?.completion_tokens;
  if (tokens === undefined) throw new Error('/v1/completions answered without usage');
  return tokens;
}

function events(text: string): CompletionBody[] {
  const data = text
    .split('\n\n')
    .filter((event) => event !== '')
    .map((event) => event.replace(/^data: /, ''));
  if (data.pop() !== '[DONE]') throw new Error('the stream ended without [DONE]');
  return data.map((event) => JSON.parse(event) as CompletionBody);
}
