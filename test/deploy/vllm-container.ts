/**
 * vLLM's container in pod.ts: an API server on the port in argv and one engine, told nothing but VLLM_RPC_BASE_PATH.
 * The parent makes the engine misbehave by message.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { StandInEngine } from '../support/engine.js';
import { StandInFrontend } from '../support/frontend.js';

/** What the engine shall do wrong; `repeat prefill` lasts, the others happen once. */
export type Misbehaviour = 'repeat prefill' | 'send garbage' | 'die';

const directory = process.env['VLLM_RPC_BASE_PATH'];
if (directory === undefined) throw new Error('VLLM_RPC_BASE_PATH is not set');
const frontend = await new StandInFrontend({ directory, httpPort: Number(process.argv[2]) }).start();
// vLLM's engine is a process that takes seconds to start: the time in which steptap takes the sockets over.
await delay(1000);
const engine = new StandInEngine();
await Promise.all([engine.start(frontend.handshakeAddress), frontend.ready()]);

process.on('message', (misbehaviour: Misbehaviour) => {
  if (misbehaviour === 'repeat prefill') engine.options = { ...engine.options, repeatPrefill: true };
  else if (misbehaviour === 'send garbage') void engine.sendGarbage(0);
  else void engine.die();
});
process.once('SIGTERM', () => process.exit(0));
