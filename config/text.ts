import { resolve } from 'node:path';
import { type Format, FormatError, hasControlCharacter, textOf } from './format.js';

const isText = (value: unknown): value is string => typeof value === 'string';

/** A model name goes into a label, where anything may stand; longer than this is an accident. */
const MAX_NAME_LENGTH = 1024;

/** The bytes an HTTP header takes as a bearer token. */
const HEADER_TEXT = /^[\x21-\x7e]+$/;

/** picomatch refuses patterns above 65,536 characters; request ids have some dozens. */
const MAX_GLOB_LENGTH = 1024;

export const modelName: Format<string> = {
  allowed: `text of 1 to ${MAX_NAME_LENGTH} characters`,
  placeholder: 'NAME',
  parse: (raw) => {
    const text = textOf(raw);
    if (text === '' || text.length > MAX_NAME_LENGTH) throw new FormatError();
    return text;
  },
  print: String,
  holds: isText,
};

/** White space around it is cut off: a secret read from a file often ends in a newline. */
export const secret: Format<string> = {
  allowed: 'printable ASCII without spaces',
  placeholder: 'KEY',
  parse: (raw) => {
    const text = textOf(raw);
    if (!HEADER_TEXT.test(text)) throw new FormatError();
    return text;
  },
  print: () => '[redacted]',
  holds: isText,
};

/** An absolute path; a relative one counts from the working directory. */
export const path: Format<string> = {
  allowed: 'a path',
  placeholder: 'PATH',
  parse: (raw) => {
    if (typeof raw !== 'string' || raw.trim() === '' || hasControlCharacter(raw)) throw new FormatError();
    return resolve(raw);
  },
  print: String,
  holds: isText,
};

/** One of a few words. */
export function oneOf<const T extends string>(words: readonly T[]): Format<T> {
  const find = (value: unknown): T | undefined => words.find((word) => word === value);
  return {
    allowed: `one of ${words.join(', ')}`,
    placeholder: 'WORD',
    parse: (raw) => {
      const word = find(textOf(raw));
      if (word === undefined) throw new FormatError();
      return word;
    },
    print: String,
    holds: (value): value is T => find(value) !== undefined,
  };
}

/**
 * Cuts at commas, but not inside `{a,b}` and `(a,b)`, which are parts of one glob. A backslash takes its meaning
 * from the character after it.
 */
function cutAtCommas(text: string): string[] {
  const parts = [''];
  let depth = 0;
  for (const [character] of text.matchAll(/\\.|./gsu)) {
    if (character === '\\') throw new FormatError('a backslash with nothing after it');
    if (character === '{' || character === '(') depth++;
    if (character === '}' || character === ')') depth--;
    if (depth < 0) break;
    if (character === ',' && depth === 0) parts.push('');
    else parts[parts.length - 1] += character;
  }
  if (depth !== 0) throw new FormatError('a bracket has no partner');
  return parts.map((part) => part.trim());
}

/** Globs over request ids; `!` in front excludes. Comma-separated text, or in a file a list of them. */
export const globs: Format<readonly string[]> = {
  allowed: `a comma-separated list of globs, each of 1 to ${MAX_GLOB_LENGTH} characters, ! in front excludes`,
  placeholder: 'GLOBS',
  parse: (raw) => {
    const parts = Array.isArray(raw) ? raw.map(textOf) : cutAtCommas(textOf(raw));
    for (const part of parts) {
      if (part === '' || part === '!' || part.length > MAX_GLOB_LENGTH || hasControlCharacter(part)) {
        throw new FormatError();
      }
      if (cutAtCommas(part).length > 1) throw new FormatError('a comma inside one glob');
    }
    if (parts.length === 0) throw new FormatError();
    return parts;
  },
  print: (value) => value.join(','),
  holds: (value): value is readonly string[] => Array.isArray(value) && value.every(isText),
};
