import { parseArgs } from 'node:util';
import type { Given } from './given.js';
import { didYouMean } from './nearest.js';
import { SETTINGS } from './schema.js';

/** What a command takes. Flags are written with their dashes. */
export interface Grammar {
  /** Flags that need a value. */
  readonly withValue: readonly string[];
  /** Flags that take none. */
  readonly switches: readonly string[];
  /** Words that stand for themselves, such as `FILE`; all are needed. */
  readonly operands: readonly string[];
}

export interface ParsedArguments {
  readonly values: ReadonlyMap<string, string>;
  readonly switches: ReadonlySet<string>;
  readonly operands: readonly string[];
  readonly problems: readonly string[];
}

const HELP_SWITCHES: readonly string[] = ['--help', '-h'];

/**
 * Cuts the arguments by a grammar and finds everything that is wrong with them. A value that begins with a dash has
 * to be written `--flag=-value`: what follows a flag without `=` and begins with a dash is a flag of its own.
 */
export function parseArguments(argv: readonly string[], grammar: Grammar): ParsedArguments {
  const values = new Map<string, string>();
  const switches = new Set<string>();
  const operands: string[] = [];
  const problems = new Set<string>();
  const known = [...grammar.withValue, ...grammar.switches, '--help'];
  // No option is declared, so parseArgs takes no word for a value by itself and the tokens are all there is.
  const { tokens } = parseArgs({ args: [...argv], strict: false, allowPositionals: true, tokens: true });
  const taken = new Set<number>();

  for (const [position, token] of tokens.entries()) {
    if (taken.has(position) || token.kind === 'option-terminator') continue;
    if (token.kind === 'positional') {
      operands.push(token.value);
      if (operands.length > grammar.operands.length) {
        problems.add(`unexpected argument ${JSON.stringify(token.value)}`);
      }
      continue;
    }
    const flag = token.rawName;
    const next = tokens[position + 1];
    const isFollowed = token.value === undefined && next?.kind === 'positional';
    if (grammar.withValue.includes(flag)) {
      if (isFollowed) taken.add(position + 1);
      const value = token.value ?? (isFollowed ? next.value : undefined);
      if (value === undefined) {
        problems.add(`${flag} needs a value (one that begins with a dash is written ${flag}=-…)`);
      } else if (values.has(flag)) problems.add(`${flag} is given more than once`);
      else values.set(flag, value);
    } else if (grammar.switches.includes(flag) || HELP_SWITCHES.includes(flag)) {
      if (token.value !== undefined) problems.add(`${flag} takes no value`);
      switches.add(flag === '-h' ? '--help' : flag);
    } else {
      // The word after it would be its value. It is not shown: it might be a secret that has no flag.
      if (isFollowed && grammar.operands.length === 0) taken.add(position + 1);
      problems.add(unknownFlag(flag, known));
    }
  }
  const missing = grammar.operands.slice(operands.length).map((operand) => `${operand} is missing`);
  return { values, switches, operands, problems: [...problems, ...missing] };
}

function unknownFlag(flag: string, known: readonly string[]): string {
  const secret = SETTINGS.find(({ isSensitive, env }) => isSensitive && env === environmentNameOf(flag));
  if (secret !== undefined) {
    return `unknown flag ${flag}: ${secret.name} has none, set ${secret.env} or put it into the file`;
  }
  return `unknown flag ${flag}${didYouMean(flag, known)}`;
}

function environmentNameOf(flag: string): string {
  return `STEPTAP_${flag.replace(/^--/, '').replaceAll('-', '_').toUpperCase()}`;
}

/** The grammar of `run` and `check-config`: a flag per setting, and the configuration file. */
export const SETTINGS_GRAMMAR: Grammar = {
  withValue: ['--config', ...SETTINGS.flatMap(({ flag }) => flag ?? [])],
  switches: [],
  operands: [],
};

/** The settings that flags give. */
export function settingsFromFlags(values: ReadonlyMap<string, string>): readonly Given[] {
  return SETTINGS.flatMap((setting) => {
    const raw = setting.flag === null ? undefined : values.get(setting.flag);
    if (raw === undefined) return [];
    return { setting, raw, source: 'flag', origin: `flag ${setting.flag}` } as const;
  });
}
