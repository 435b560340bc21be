import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { extname } from 'node:path';
import { errnoOf } from '../proxy/errors.js';
import type { Given, SourceReading } from './given.js';
import { didYouMean } from './nearest.js';
import { SETTINGS, type Setting } from './schema.js';

/** Loaded when there is a file to read: it is more than half of the 48 ms that loading config/ would take. */
const loadYaml = (): typeof import('yaml') => createRequire(import.meta.url)('yaml');

const WHY_UNREADABLE: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such file',
  EACCES: 'no permission',
  EISDIR: 'it is a directory',
  ENOTDIR: 'a part of the path is no directory',
};

/**
 * What a configuration file gives: JSON when its name ends in .json, else YAML (of which JSON is a part), a map of
 * groups of settings. Parser messages quote the text around an error, which may be the API key, so only the
 * position is told.
 */
export function settingsFromFile(path: string): SourceReading {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    const errno = errnoOf(error) ?? 'unknown error';
    return {
      given: [],
      problems: [`cannot read ${path}: ${WHY_UNREADABLE[errno] ?? errno} (flag --config)`],
    };
  }
  const parsed = extname(path) === '.json' ? parseJson(text) : parseYaml(text);
  if ('problem' in parsed) return { given: [], problems: [`${path} ${parsed.problem}`] };
  return settingsFromTree(parsed.tree, path);
}

type Parsed = { readonly tree: unknown } | { readonly problem: string };

function parseJson(text: string): Parsed {
  try {
    return { tree: JSON.parse(text) };
  } catch (error) {
    const offset = /position (\d+)/.exec(error instanceof Error ? error.message : '')?.[1];
    const before = text.slice(0, offset === undefined ? text.length : Number(offset)).split('\n');
    return {
      problem: `is not valid JSON: line ${before.length}, column ${(before.at(-1)?.length ?? 0) + 1}`,
    };
  }
}

function parseYaml(text: string): Parsed {
  const { LineCounter, parseDocument } = loadYaml();
  const lines = new LineCounter();
  const document = parseDocument(text, { prettyErrors: false, lineCounter: lines, logLevel: 'silent' });
  const error = document.errors[0];
  if (error !== undefined) {
    const { line, col } = lines.linePos(error.pos[0]);
    const what = error.code.toLowerCase().replaceAll('_', ' ');
    return { problem: `is not valid YAML: line ${line}, column ${col}: ${what}` };
  }
  try {
    return { tree: document.toJS() };
  } catch {
    return { problem: 'is not valid YAML: an alias has no anchor, or there are too many' };
  }
}

function isMap(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function settingsFromTree(tree: unknown, path: string): SourceReading {
  const given: Given[] = [];
  const problems: string[] = [];
  const groups = new Set(SETTINGS.map(({ name }) => name.split('.')[0] ?? ''));
  if (tree !== null && !isMap(tree)) problems.push(`${path} must hold a map of settings`);
  for (const [group, values] of Object.entries(isMap(tree) ? tree : {})) {
    const settings = SETTINGS.filter(({ name }) => name.startsWith(`${group}.`));
    if (!groups.has(group)) problems.push(`unknown key ${group} in ${path}${nearestKey(group, groups)}`);
    // `metrics:` with nothing under it but comments
    else if (values === null) continue;
    else if (!isMap(values)) problems.push(`${group} in ${path} must be a map of settings`);
    else read(settings, group, values);
  }
  return { given, problems };

  function read(
    settings: readonly Setting[],
    group: string,
    values: Readonly<Record<string, unknown>>,
  ): void {
    for (const [key, raw] of Object.entries(values)) {
      const name = `${group}.${key}`;
      const setting = settings.find((candidate) => candidate.name === name);
      if (setting !== undefined) given.push({ setting, raw, source: 'file', origin: `file ${path}` });
      else {
        const known = settings.map((candidate) => candidate.name);
        problems.push(`unknown key ${name} in ${path}${didYouMean(name, known)}`);
      }
    }
  }
}

function nearestKey(key: string, groups: ReadonlySet<string>): string {
  const dotted = SETTINGS.find(({ name }) => name === key)?.name.split('.');
  if (dotted !== undefined) return ` (write ${dotted[0]}: and under it, indented, ${dotted[1]}:)`;
  return didYouMean(key, [...groups]);
}
