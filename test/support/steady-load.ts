import { setTimeout as delay } from 'node:timers/promises';
import { complete } from './completions.js';
import { WORKLOAD } from './workload.js';

const PAUSE_MS = 250;
/** What an engine should do at most under this load, so that a chart moves and a processor rests. */
export const LOAD_STEPS_PER_SECOND = 25;

/** Sends the validation workload over and over, one request after the other, until `signal` is aborted. */
export async function steadyLoad(frontendUrl: string, signal: AbortSignal): Promise<void> {
  try {
    for (let turn = 0; !signal.aborted; turn++) {
      const request = WORKLOAD[turn % WORKLOAD.length];
      if (request !== undefined) await complete(frontendUrl, request, { signal });
      await delay(PAUSE_MS, undefined, { signal });
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}
