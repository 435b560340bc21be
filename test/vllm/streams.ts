/** Long streams that are watched while something happens to what lies between. */
import { Agent } from 'undici';
import { type Answer, type Ask, sendOne } from './load.js';

/** Events after which a stream is taken to flow. */
const FLOWING = 20;

export interface Stream {
  /** Times of its events, in milliseconds. */
  readonly times: number[];
  answer: Answer | undefined;
}

export class Streams {
  readonly all: Stream[] = [];
  readonly #dispatcher: Agent;
  readonly #ends: Promise<void>[] = [];

  /** `timeout`: a stream that is silent for so long counts as hanging and fails. */
  constructor(url: string, { count, tokens, timeout }: { count: number; tokens: number; timeout: number }) {
    this.#dispatcher = new Agent({ headersTimeout: timeout, bodyTimeout: timeout });
    for (let i = 0; i < count; i++) {
      const stream: Stream = { times: [], answer: undefined };
      this.all.push(stream);
      const sending = sendOne(url, streamOf(tokens, i), this.#dispatcher, () =>
        stream.times.push(Date.now()),
      );
      this.#ends.push(
        sending.then((answer) => {
          stream.answer = answer;
        }),
      );
    }
  }

  /** Every stream flows, or has ended already. */
  get started(): boolean {
    return this.all.every(({ times, answer }) => times.length > FLOWING || answer !== undefined);
  }

  async done(): Promise<void> {
    await Promise.all(this.#ends);
    await this.#dispatcher.destroy();
  }

  get completed(): number {
    return this.all.filter(({ answer }) => answer?.ok === true).length;
  }

  /** The longest time without an event in any stream, in milliseconds. */
  get longestGap(): number {
    let gap = 0;
    for (const { times } of this.all)
      for (let i = 1; i < times.length; i++) gap = Math.max(gap, (times[i] ?? 0) - (times[i - 1] ?? 0));
    return gap;
  }

  get problems(): string[] {
    return [
      ...new Set(this.all.flatMap(({ answer }) => (answer?.ok === false ? [answer.problem ?? ''] : []))),
    ];
  }
}

function streamOf(tokens: number, i: number): Ask {
  return {
    path: '/v1/completions',
    stream: true,
    body: {
      ...{ model: 'tiny', prompt: [10 + i, 20, 30, 40], max_tokens: tokens, ignore_eos: true },
      ...{ stream: true, stream_options: { include_usage: true } },
    },
  };
}

/** One short request: its status or what went wrong, and how long it took. */
export async function ask(url: string, timeout: number): Promise<{ ok: boolean; what: string; ms: number }> {
  const begin = Date.now();
  const dispatcher = new Agent({ headersTimeout: timeout, bodyTimeout: timeout });
  const body = { model: 'tiny', prompt: [7, 8, 9], max_tokens: 4, ignore_eos: true };
  const answer = await sendOne(url, { path: '/v1/completions', stream: false, body }, dispatcher);
  await dispatcher.destroy();
  const what = answer.ok ? 'answered' : (answer.problem ?? 'failed');
  return {
    ok: answer.ok,
    what: what.includes('Timeout') ? `no answer in ${timeout} ms` : what,
    ms: Date.now() - begin,
  };
}
