/** What a restarted steptap must know to stand in for the one before: addresses, what flows there, the engines. */
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import type { Logger } from 'pino';
import { errnoOf, messageOf } from './errors.js';
import type { DataAddresses } from './frontend.js';
import type { Telemetry } from './telemetry.js';

const VERSION = 1;

interface EndpointState {
  /** `tcp://host:port` or `ipc:///path` where engines connect. */
  readonly listen: string;
  /** The same for what is dialled. */
  readonly upstream: string;
  readonly kind: string;
  readonly client: string | null;
  /** Engines that had a request connection here. */
  readonly engines: readonly number[];
}

export interface State {
  readonly version: typeof VERSION;
  /** Data addresses of the last INIT; null when there was none. */
  readonly addresses: DataAddresses | null;
  readonly engines: readonly number[];
  readonly endpoints: readonly EndpointState[];
}

export class StateFile {
  readonly #path: string;
  readonly #telemetry: Telemetry;
  readonly #logger: Logger;
  #lastError: string | null = null;

  constructor(path: string, telemetry: Telemetry, logger: Logger) {
    this.#path = path;
    this.#telemetry = telemetry;
    this.#logger = logger;
  }

  /** The state that was written last; null when there is none or it can't be used. */
  read(): State | null {
    try {
      const state: unknown = JSON.parse(readFileSync(this.#path, 'utf8'));
      if (isState(state)) return state;
      this.#logger.warn({ path: this.#path }, 'state file is of another version; starting without it');
    } catch (error) {
      if (errnoOf(error) !== 'ENOENT') {
        this.#logger.warn(
          { path: this.#path, error: messageOf(error) },
          'state file not read; starting without it',
        );
      }
    }
    return null;
  }

  /** Replaces the file as a whole. A failure is counted and logged once: relaying goes on without it. */
  write(state: Omit<State, 'version'>): void {
    try {
      writeFileSync(`${this.#path}.new`, `${JSON.stringify({ version: VERSION, ...state }, null, 1)}\n`);
      renameSync(`${this.#path}.new`, this.#path);
      this.#lastError = null;
    } catch (error) {
      const reason = errnoOf(error) ?? 'other';
      this.#telemetry.add('state_write_failures_total', { reason });
      if (reason === this.#lastError) return;
      this.#lastError = reason;
      this.#logger.error(
        { path: this.#path, error: messageOf(error) },
        'state file not written: a restart will not find its listeners',
      );
    }
  }
}

function isState(value: unknown): value is State {
  if (typeof value !== 'object' || value === null) return false;
  const { version, engines, endpoints, addresses } = value as Partial<Record<keyof State, unknown>>;
  return (
    version === VERSION &&
    isArrayOf(engines, Number.isInteger) &&
    (addresses === null || isDataAddresses(addresses)) &&
    isArrayOf(endpoints, isEndpointState)
  );
}

function isDataAddresses(value: unknown): value is DataAddresses {
  const { inputs, outputs } = (value ?? {}) as Partial<Record<keyof DataAddresses, unknown>>;
  return [inputs, outputs].every((list) => isArrayOf(list, (address) => typeof address === 'string'));
}

function isEndpointState(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false;
  const { listen, upstream, kind, client, engines } = value as Partial<Record<keyof EndpointState, unknown>>;
  return (
    [listen, upstream, kind].every((text) => typeof text === 'string') &&
    (client === null || typeof client === 'string') &&
    isArrayOf(engines, Number.isInteger)
  );
}

function isArrayOf(value: unknown, is: (element: unknown) => boolean): boolean {
  return Array.isArray(value) && value.every(is);
}
