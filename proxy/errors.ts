/**
 * Every error steptap raises on purpose. `code` is stable and safe to match on; the message names the value,
 * the limit and what to do. `exitCode` is what the process ends with when the error reaches main: 64 (EX_USAGE)
 * for a wrong command line or configuration, 1 for what went wrong while starting or running.
 */
export class SteptapError extends Error {
  readonly code: string;
  readonly exitCode: number;

  constructor(code: string, message: string, options: { cause?: unknown; exitCode?: number } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'SteptapError';
    this.code = code;
    this.exitCode = options.exitCode ?? 1;
  }
}

/** The errno of a failed system call (`ECONNREFUSED`, …), or undefined for any other error. */
export function errnoOf(error: unknown): string | undefined {
  if (error instanceof Error && 'code' in error && typeof error.code === 'string') return error.code;
  return undefined;
}

/** What to print of anything that was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
