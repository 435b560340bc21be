/**
 * A stand-in frontend or engine as a process of its own:
 *
 *     node stand-in-main.js frontend '{"directory":"/run/vllm","engines":2}'
 *     node stand-in-main.js engine '{"handshake":"tcp://127.0.0.1:29550","count":2,"chunk":4}'
 *
 * Options are those of StandInFrontend and StandInEngine; an engine process also takes `handshake`, where to send
 * HELLO, and `count`, how many engines it runs, from `index` on. Prints `{"event":"bound"}` (frontend: with its
 * handshake address) and `{"event":"ready"}` (frontend: with its URL). Ends with 0 at SIGTERM or SIGINT.
 */
import { once } from 'node:events';
import { type EngineOptions, StandInEngine } from './engine.js';
import { type FrontendOptions, StandInFrontend } from './frontend.js';

const READY_DEADLINE_MS = 10 * 60_000;

interface EngineProcessOptions extends EngineOptions {
  readonly handshake: string;
  readonly count?: number;
}

interface StandIn {
  ready(): Promise<Record<string, unknown>>;
  stop(): Promise<void>;
}

function print(event: string, facts: Record<string, unknown>): void {
  process.stdout.write(`${JSON.stringify({ event, ...facts })}\n`);
}

async function startFrontend(options: FrontendOptions): Promise<StandIn> {
  const frontend = await new StandInFrontend(options).start();
  print('bound', { handshake: frontend.handshakeAddress, ...frontend.addresses });
  return {
    ready: async () => ({ url: (await frontend.ready(READY_DEADLINE_MS)).url }),
    stop: () => frontend.stop(),
  };
}

function startEngines({ handshake, count = 1, ...options }: EngineProcessOptions): StandIn {
  const first = options.index ?? 0;
  const engines = Array.from(
    { length: count },
    (_, n) => new StandInEngine({ ...options, index: first + n }),
  );
  return {
    ready: async () => {
      await Promise.all(engines.map((engine) => engine.start(handshake, READY_DEADLINE_MS)));
      return { engines: engines.map(({ index }) => index) };
    },
    stop: async () => {
      await Promise.all(engines.map((engine) => engine.stop()));
    },
  };
}

const [kind, json = '{}'] = process.argv.slice(2);
const stopped = Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')]);
if (kind !== 'frontend' && kind !== 'engine') {
  process.stderr.write("usage: stand-in-main.js frontend|engine '{…options…}'\n");
  process.exit(64);
}
const standIn =
  kind === 'frontend'
    ? await startFrontend(JSON.parse(json) as FrontendOptions)
    : startEngines(JSON.parse(json) as EngineProcessOptions);
const ready = standIn.ready().then((facts) => print('ready', facts));
await Promise.race([ready, stopped]);
await stopped;
await standIn.stop();
process.exit(0);
