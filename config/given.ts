import { FormatError } from './format.js';
import type { Setting } from './schema.js';

/** Where an effective value comes from, in the order in which later ones win. */
export type Source = 'default' | 'file' | 'environment' | 'flag';

/** A value that somebody gave. `origin` says where in words: `flag --metrics-port`, `environment STEPTAP_TRACK`. */
export interface Given {
  readonly setting: Setting;
  readonly raw: unknown;
  readonly source: Source;
  readonly origin: string;
}

/** What one source gave, and what is wrong with it beyond the values themselves. */
export interface SourceReading {
  readonly given: readonly Given[];
  readonly problems: readonly string[];
}

const MAX_SHOWN = 120;

/** A raw value for an error message: one line, not too long, without the password of a URL. */
function showRaw(raw: unknown): string {
  const text = JSON.stringify(raw) ?? String(raw);
  const masked = text.replace(/(\/\/)[^/\s]*@/g, '$1[redacted]@');
  return masked.length > MAX_SHOWN ? `${masked.slice(0, MAX_SHOWN)}…` : masked;
}

/** The value in its own type, or the problem with it. */
export function readGiven({
  setting,
  raw,
  origin,
}: Given): { readonly value: unknown } | { readonly problem: string } {
  if (setting.isNullable && (raw === null || (setting.whenNull === 'off' && raw === 'off'))) {
    return { value: null };
  }
  try {
    return { value: setting.format.parse(raw) };
  } catch (error) {
    if (!(error instanceof FormatError)) throw error;
    const shown = setting.isSensitive ? 'it is not' : `it is ${showRaw(raw)}`;
    const orOff = setting.whenNull === 'off' && setting.isNullable ? ', or off' : '';
    const detail = error.message === '' ? '' : `: ${error.message}`;
    return {
      problem: `${setting.name} must be ${setting.format.allowed}${orOff}; ${shown}${detail} (${origin})`,
    };
  }
}
