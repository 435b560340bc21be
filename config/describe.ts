import type { Loaded } from './load.js';
import { printValue, SETTINGS, type Setting, valueAt } from './schema.js';

/** What `steptap check-config` prints: setting, effective value, source; a line each, columns aligned. */
export function describeSettings({ settings, origins }: Loaded): string {
  const rows = SETTINGS.map((setting) => [
    setting.name,
    onOneLine(printValue(setting, valueAt(settings, setting.name))),
    origins[setting.name],
  ]);
  return align([['SETTING', 'VALUE', 'SOURCE'], ...rows]);
}

/** A Markdown table of all settings. */
export function settingsTable(): string {
  const rows = SETTINGS.map((setting) => [
    setting.name,
    setting.flag === null ? '–' : `\`${setting.flag} ${setting.format.placeholder}\``,
    `\`${setting.env}\``,
    setting.defaultText,
    setting.doc,
  ]);
  const header = ['setting', 'flag', 'environment', 'default', 'what it does'];
  return [header, header.map(() => '---'), ...rows]
    .map((cells) => `| ${cells.map((cell) => inCell(cell)).join(' | ')} |\n`)
    .join('');
}

/** The flags of `run` and `check-config` for their help page, each with what it does, its name and its default. */
export function flagsHelp(): string {
  const settings = SETTINGS.map(
    (setting) =>
      `${usageOf(setting)}\n    ${setting.doc}\n` +
      `    ${setting.name}, ${setting.env}, default: ${setting.defaultText}\n`,
  );
  return indent(`--config FILE\n    JSON or YAML file with settings.\n${settings.join('')}`);
}

function usageOf({ flag, format }: Setting): string {
  return flag === null ? '(file or environment only)' : `${flag} ${format.placeholder}`;
}

/** A value that would break the line, or whose ends one could not see, as JSON. */
function onOneLine(value: string): string {
  return /\p{Cc}|^\s|\s$/u.test(value) ? JSON.stringify(value) : value;
}

/** A bare `*` or `<` is markup in Markdown, a bare pipe ends the cell. */
function inCell(cell: string): string {
  const text = cell.replaceAll('|', '\\|');
  return cell.startsWith('`') ? text : text.replaceAll('*', '\\*').replaceAll('<', '&lt;');
}

function align(rows: readonly (readonly string[])[]): string {
  const widths = (rows[0] ?? []).map((_, column) =>
    Math.max(...rows.map((row) => (row[column] ?? '').length)),
  );
  return rows
    .map(
      (row) =>
        `${row
          .map((cell, column) => cell.padEnd(widths[column] ?? 0))
          .join('  ')
          .trimEnd()}\n`,
    )
    .join('');
}

/** Two spaces in front of every line. */
export function indent(text: string): string {
  return text.replace(/^(?=.)/gm, '  ');
}
