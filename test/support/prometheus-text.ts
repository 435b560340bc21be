/**
 * A reader for the Prometheus text format and OpenMetrics, strict enough to compare two exporters sample by
 * sample. Written apart from the code that prints, so that one does not repeat the other's mistake.
 */

const NAME = /[a-zA-Z_:][a-zA-Z0-9_:]*/y;
const LABEL = /\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\["\\n])*)"\s*(,|(?=\}))/y;
const VALUE = /\s+([^\s]+)(?:\s+-?[0-9.]+)?\s*(?:#.*)?$/y;
const ESCAPES: Readonly<Record<string, string>> = { '\\\\': '\\', '\\n': '\n', '\\"': '"' };

/** Samples by `seriesKey`. Comments, timestamps and exemplars are left out. Throws on a bad line, with its number. */
export function parsePrometheusText(text: string): Map<string, number> {
  const samples = new Map<string, number>();
  for (const [index, line] of text.split('\n').entries()) {
    if (line === '' || line.startsWith('#')) continue;
    const fail = (what: string) => new Error(`line ${index + 1}: ${what}: ${line}`);
    const name = match(NAME, line, 0);
    if (name === null) throw fail('no metric name');
    let at = name[0].length;
    const labels: Record<string, string> = {};
    if (line[at] === '{') {
      at++;
      while (line[at] !== '}') {
        const label = match(LABEL, line, at);
        if (label === null) throw fail('bad label');
        const [whole, key = '', escaped = ''] = label;
        if (Object.hasOwn(labels, key)) throw fail(`label ${key} twice`);
        labels[key] = escaped.replace(/\\./g, (pair) => ESCAPES[pair] as string);
        at += whole.length;
      }
      at++;
    }
    const value = match(VALUE, line, at)?.[1];
    if (value === undefined) throw fail('no value');
    const key = seriesKey(name[0], labels);
    if (samples.has(key)) throw fail('series twice');
    samples.set(key, numberOf(value, fail));
  }
  return samples;
}

/** `name{a="x",b="y"}` with the labels in alphabetical order and their values escaped as in JSON; bare without. */
export function seriesKey(name: string, labels: Readonly<Record<string, string>> = {}): string {
  const pairs = Object.keys(labels)
    .sort()
    .map((label) => `${label}=${JSON.stringify(labels[label])}`);
  return pairs.length === 0 ? name : `${name}{${pairs.join(',')}}`;
}

function match(pattern: RegExp, line: string, at: number): RegExpExecArray | null {
  pattern.lastIndex = at;
  return pattern.exec(line);
}

function numberOf(text: string, fail: (what: string) => Error): number {
  const special: Record<string, number> = {
    '+inf': Number.POSITIVE_INFINITY,
    '-inf': Number.NEGATIVE_INFINITY,
    nan: Number.NaN,
  };
  const lower = text.toLowerCase();
  if (Object.hasOwn(special, lower)) return special[lower] as number;
  const value = Number(text);
  if (Number.isNaN(value)) throw fail('bad value');
  return value;
}
