import { flagsHelp, indent } from './describe.js';
import { ConfigError } from './error.js';
import { type Grammar, type ParsedArguments, parseArguments, SETTINGS_GRAMMAR } from './flags.js';
import { didYouMean } from './nearest.js';

/** What the command line asks for. `args` are the flags for `loadSettings`. */
export type Command =
  | { readonly command: 'run'; readonly args: readonly string[] }
  | { readonly command: 'demo'; readonly keep: boolean }
  | { readonly command: 'replay'; readonly file: string; readonly modelName?: string; readonly json: boolean }
  | { readonly command: 'check-config'; readonly args: readonly string[] }
  | { readonly command: 'version' }
  | { readonly command: 'help'; readonly topic?: Topic };

export type Topic = (typeof TOPICS)[number];

const TOPICS = ['run', 'demo', 'replay', 'check-config'] as const;

const GRAMMARS: Readonly<Record<Topic, Grammar>> = {
  run: SETTINGS_GRAMMAR,
  demo: { withValue: [], switches: ['--keep'], operands: [] },
  replay: { withValue: ['--model-name'], switches: ['--json'], operands: ['FILE'] },
  'check-config': SETTINGS_GRAMMAR,
};

/**
 * Reads the arguments after the program's name. The flags of `run` and `check-config` are left to `loadSettings`,
 * which tells all that is wrong with them together with file and environment.
 *
 * @throws ConfigError with everything that is wrong
 */
export function parseCommand(argv: readonly string[]): Command {
  const [first = ''] = argv;
  if (first === '--version' || first === '-V') return alone(argv, { command: 'version' });
  const isNamed = first !== '' && !first.startsWith('-');
  const topic = isNamed ? TOPICS.find((name) => name === first) : 'run';
  if (topic === undefined) {
    throw new ConfigError([`unknown command ${JSON.stringify(first)}${didYouMean(first, TOPICS)}`]);
  }
  const args = isNamed ? argv.slice(1) : argv;
  const parsed = parseArguments(args, GRAMMARS[topic]);
  if (parsed.switches.has('--help')) return isNamed ? { command: 'help', topic } : { command: 'help' };
  return commandOf(topic, args, parsed);
}

function alone(argv: readonly string[], command: Command): Command {
  if (argv.length === 1) return command;
  throw new ConfigError([`${argv[0]} stands alone: unexpected ${JSON.stringify(argv[1])}`]);
}

function commandOf(topic: Topic, args: readonly string[], parsed: ParsedArguments): Command {
  if (topic === 'run' || topic === 'check-config') return { command: topic, args };
  if (parsed.problems.length > 0) throw new ConfigError(parsed.problems, `Try steptap ${topic} --help.`);
  if (topic === 'demo') return { command: 'demo', keep: parsed.switches.has('--keep') };
  const modelName = parsed.values.get('--model-name');
  return {
    command: 'replay',
    file: parsed.operands[0] ?? '',
    json: parsed.switches.has('--json'),
    ...(modelName === undefined ? {} : { modelName }),
  };
}

/** The help page of a command, or without one the page about all of them. */
export function helpText(topic?: Topic): string {
  return topic === undefined ? OVERVIEW : PAGES[topic]();
}

const OVERVIEW = `steptap: how many tokens each vLLM engine step moved

Usage:
  steptap [run] [FLAGS]                              run the sidecar
  steptap demo [--keep]                              show it at work between an embedded frontend and engines
  steptap replay FILE [--model-name NAME] [--json]   compute the histogram of a capture
  steptap check-config [FLAGS]                       print the effective configuration and where it comes from
  steptap --version
  steptap --help
  steptap COMMAND --help

Exit codes: 0 done, 64 wrong command line or configuration, 1 any other error.

Flags of run and check-config:
${flagsHelp()}`;

const SETTINGS_NOTE = `Later wins: default, file, environment, flag. An empty environment variable counts as not set.
Unknown flags, file keys and STEPTAP_ variables are errors; all errors are told at once (exit code 64).
`;

const PAGES: Readonly<Record<Topic, () => string>> = {
  run: () => `Usage: steptap [run] [FLAGS]

Relays between a vLLM frontend and its engines and serves vllm:iteration_tokens_total on the metrics port.
One of --ipc-dir and --frontend-handshake with --engine-handshake is needed.

Flags:
${flagsHelp()}
${SETTINGS_NOTE}`,
  demo: () => `Usage: steptap demo [--keep]

Runs steptap between an embedded frontend and embedded engines on real sockets, sends the validation workload
and compares what both counted. Exit code 1 if anything differs.

Flags:
${indent('--keep  stay up under a steady load and print the metrics URL\n')}`,
  replay: () => `Usage: steptap replay FILE [--model-name NAME] [--json]

Computes the histogram of a capture (JSON lines) and prints it as Prometheus text.

Flags:
${indent('--model-name NAME  value of the label model_name\n--json             print JSON in place of Prometheus text\n')}`,
  'check-config': () => `Usage: steptap check-config [FLAGS]

Checks the configuration that run would have with the same flags, environment and file, binds nothing, and prints
every setting with its effective value and where that comes from. Secrets are not printed.

Flags:
${flagsHelp()}
${SETTINGS_NOTE}`,
};
