/** The command line of `npm run test:vllm`. */
import { parseArgs } from 'node:util';
import { SteptapError } from '../../proxy/errors.js';
import type { Layout, Mode } from './serving.js';

export const USAGE = `npm run test:vllm -- [options]

  --version V            of the engines and of a Python frontend (default 0.32.0)
  --frontend F           python (default) or rust
  --frontend-version V   of the Rust frontend (default: as --version)
  --mode M               directory (default), handshake (all engines headless) or mixed (one local, one headless)
  --engines N            data parallel size (default 1)
  --clients N            frontend clients, --api-server-count (default: vLLM's own, for Python as many as engines)
  --offline-llm          LLM() in a script instead of a server
  --restart              kill -9 steptap under load and start it again, instead of the load
  --terminate            SIGTERM to steptap under load, then to vLLM, instead of the load
  --engine-death HOW     end the engine under load: kill (kill -9) or seed (a request its CPU kernels die of)
  --without-steptap      with --engine-death: the same with nothing in between
  --decoder              count what passed again by vLLM's own decoder, also where the frontend counts alike
  --capture FILE         keep what passed in the part with cached prefixes, and beside it what vLLM's decoder counts
  --table FILE           append the Markdown line to this file
  --quick                one Rust frontend against the embedded engine: no torch, no Python frontend
  --keep                 keep the folder with the logs even when all is well
`;

export interface Options extends Layout {
  readonly what: 'load' | 'offline' | 'restart' | 'terminate' | 'engine-death' | 'quick';
  readonly engineDeath: 'kill' | 'seed';
  readonly withoutSteptap: boolean;
  readonly decoder: boolean;
  readonly capture: string | undefined;
  readonly table: string | undefined;
  readonly keep: boolean;
  readonly help: boolean;
}

const MODES: readonly string[] = ['directory', 'handshake', 'mixed'];
const NEWEST = '0.32.0';
/** The newest Rust frontend; there are no CPU engines of this version yet. */
const NEWEST_RUST = '0.33.0';

export function readOptions(args: string[]): Options {
  const { values } = parseArgs({
    args,
    options: {
      version: { type: 'string' },
      frontend: { type: 'string', default: 'python' },
      'frontend-version': { type: 'string' },
      mode: { type: 'string', default: 'directory' },
      engines: { type: 'string', default: '1' },
      clients: { type: 'string' },
      'offline-llm': { type: 'boolean', default: false },
      restart: { type: 'boolean', default: false },
      terminate: { type: 'boolean', default: false },
      'engine-death': { type: 'string' },
      'without-steptap': { type: 'boolean', default: false },
      decoder: { type: 'boolean', default: false },
      capture: { type: 'string' },
      table: { type: 'string' },
      quick: { type: 'boolean', default: false },
      keep: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  });
  const { frontend, mode, quick } = values;
  if (frontend !== 'python' && frontend !== 'rust') throw wrong('--frontend', frontend, 'python or rust');
  if (!MODES.includes(mode)) throw wrong('--mode', mode, MODES.join(', '));
  const death = values['engine-death'] ?? 'kill';
  if (death !== 'kill' && death !== 'seed') throw wrong('--engine-death', death, 'kill or seed');
  const version = values.version ?? NEWEST;
  return {
    what: whatOf(values),
    version,
    frontend,
    frontendVersion: values['frontend-version'] ?? (quick ? NEWEST_RUST : version),
    mode: mode as Mode,
    engines: whole('--engines', values.engines),
    clients: values.clients === undefined ? undefined : whole('--clients', values.clients),
    engineDeath: death,
    withoutSteptap: values['without-steptap'],
    decoder: values.decoder,
    capture: values.capture,
    table: values.table,
    keep: values.keep,
    help: values.help,
  };
}

function whatOf(values: {
  quick: boolean;
  'offline-llm': boolean;
  restart: boolean;
  terminate: boolean;
  'engine-death'?: string | undefined;
}): Options['what'] {
  if (values.quick) return 'quick';
  if (values['offline-llm']) return 'offline';
  if (values.restart) return 'restart';
  if (values.terminate) return 'terminate';
  return values['engine-death'] === undefined ? 'load' : 'engine-death';
}

function whole(flag: string, text: string): number {
  const value = Number(text);
  if (!Number.isInteger(value) || value < 1) throw wrong(flag, text, 'a whole number from 1 on');
  return value;
}

function wrong(flag: string, value: string, allowed: string): SteptapError {
  return new SteptapError('BAD_OPTION', `${flag} ${value}: must be ${allowed}`, { exitCode: 64 });
}
