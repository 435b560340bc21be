/** Logs go to stdout, one JSON object a line, or for people where log.format is `pretty`. */
import pino, { type Logger } from 'pino';
import pretty from 'pino-pretty';
import type { Settings } from '../config/settings.js';

export function createLogger({ level, format }: Settings['log']): Logger {
  const options = {
    level,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: named },
  };
  // Synchronous: the last lines before an exit are the ones that are looked for.
  return format === 'pretty'
    ? pino(options, pretty({ sync: true }))
    : pino(options, pino.destination({ dest: 1, sync: true }));
}

function named(label: string): { level: string } {
  return { level: label };
}
