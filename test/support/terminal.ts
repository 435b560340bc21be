/** What the demo draws on a terminal: colours where they are wanted, bars, numbers in columns. */

const BAR_WIDTH = 40;
const EIGHTHS = ['', '▏', '▎', '▍', '▌', '▋', '▊', '▉'] as const;

const coloured = process.stdout.isTTY === true && !process.env['NO_COLOR'];

function paint(code: number): (text: string) => string {
  return (text) => (coloured ? `\x1b[${code}m${text}\x1b[0m` : text);
}

export const bold = paint(1);
export const dim = paint(2);
export const red = paint(31);
export const green = paint(32);
export const cyan = paint(36);

export function print(line = ''): void {
  process.stdout.write(`${line}\n`);
}

/** 52845 as `52,845`, right-aligned. */
export function number(value: number, width = 0): string {
  return value.toLocaleString('en-US').padStart(width);
}

/** A bar of `value` where `largest` takes the whole width; anything above zero is visible. */
export function bar(value: number, largest: number): string {
  if (value === 0) return '';
  const eighths = Math.max(Math.round((value / largest) * BAR_WIDTH * 8), 1);
  return '█'.repeat(Math.floor(eighths / 8)) + EIGHTHS[eighths % 8];
}
