/**
 * A stand-in frontend or engine as a process of its own, or both in one as in a vLLM pod:
 *
 *     node stand-in-main.js frontend '{"directory":"/run/vllm","engines":2}'
 *     node stand-in-main.js engine '{"handshake":"tcp://127.0.0.1:29550","count":2,"chunk":4}'
 *     node stand-in-main.js pod '{"directory":"/run/vllm","httpHost":"0.0.0.0","httpPort":8000,"load":true}'
 *
 * Options are those of StandInFrontend and StandInEngine. An engine process also takes `handshake`, where to send
 * HELLO, and `count`, how many engines it runs, from `index` on; a pod takes both kinds, and `load`, to keep itself
 * busy. VLLM_RPC_BASE_PATH is the directory where a pod is told none. Prints `{"event":"bound"}` (with the handshake
 * address) and `{"event":"ready"}` (with the URL). Ends with 0 at SIGTERM or SIGINT.
 */

import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { type EngineOptions, StandInEngine } from './engine.js';
import { type FrontendOptions, StandInFrontend } from './frontend.js';
import { LOAD_STEPS_PER_SECOND, steadyLoad } from './steady-load.js';

const READY_DEADLINE_MS = 10 * 60_000;

interface EngineProcessOptions extends EngineOptions {
  readonly handshake: string;
  readonly count?: number;
}

interface PodOptions extends FrontendOptions, Omit<EngineOptions, 'version' | 'index'> {
  readonly load?: boolean;
}

const ENGINES_START_MS = 1000;

interface StandIn {
  ready(): Promise<Record<string, unknown>>;
  stop(): Promise<void>;
}

function print(event: string, facts: Record<string, unknown>): void {
  process.stdout.write(`${JSON.stringify({ event, ...facts })}\n`);
}

async function startFrontend(options: FrontendOptions): Promise<StandIn & { handshake: string }> {
  const frontend = await new StandInFrontend(options).start();
  const handshake = frontend.handshakeAddress;
  print('bound', { handshake, ...frontend.addresses });
  return {
    handshake,
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

async function startPod({ load = false, ...options }: PodOptions): Promise<StandIn> {
  const directory = options.directory ?? process.env['VLLM_RPC_BASE_PATH'];
  const frontend = await startFrontend(directory === undefined ? options : { ...options, directory });
  const pace = load ? { stepsPerSecond: LOAD_STEPS_PER_SECOND } : {};
  const { handshake } = frontend;
  const engines = startEngines({ ...pace, ...options, handshake, count: options.engines ?? 1 });
  const stopLoad = new AbortController();
  return {
    ready: async () => {
      // vLLM's engines take seconds to start; in the same instant they would find the socket before a sidecar has.
      const starting = delay(ENGINES_START_MS).then(() => engines.ready());
      const [facts] = await Promise.all([frontend.ready(), starting]);
      if (load) void steadyLoad(String(facts['url']), stopLoad.signal);
      return facts;
    },
    stop: async () => {
      stopLoad.abort();
      await engines.stop();
      await frontend.stop();
    },
  };
}

function start(kind: string | undefined, json: string): Promise<StandIn> | StandIn {
  switch (kind) {
    case 'frontend':
      return startFrontend(JSON.parse(json) as FrontendOptions);
    case 'engine':
      return startEngines(JSON.parse(json) as EngineProcessOptions);
    case 'pod':
      return startPod(JSON.parse(json) as PodOptions);
    default:
      process.stderr.write("usage: stand-in-main.js frontend|engine|pod '{…options…}'\n");
      process.exit(64);
  }
}

const stopped = Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')]);
const [kind, json = '{}'] = process.argv.slice(2);
const standIn = await start(kind, json);
const ready = standIn.ready().then((facts) => print('ready', facts));
await Promise.race([ready, stopped]);
await stopped;
await standIn.stop();
process.exit(0);
