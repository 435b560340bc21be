/**
 * Tells what is in a directory, whenever that changes and once a second: an event can be missed, and a directory
 * can be removed and made anew under its name.
 */
import { type FSWatcher, readdirSync, statSync, watch } from 'node:fs';
import { basename } from 'node:path';
import type { Logger } from 'pino';
import { errnoOf, messageOf, SteptapError } from './errors.js';
import { LogThrottle } from './log-throttle.js';

const RESCAN_MS = 1000;
const DESCRIPTORS_OUT = new Set(['EMFILE', 'ENFILE']);

export class DirectoryWatch {
  readonly #dir: string;
  readonly #logger: Logger;
  /** Gets the names of all files. */
  readonly #onNames: (names: readonly string[]) => Promise<void>;
  readonly #throttle = new LogThrottle();
  #watcher: FSWatcher | null = null;
  #watchedInode = 0;
  #rescan: NodeJS.Timeout | undefined;
  #isMissing = false;

  constructor(dir: string, logger: Logger, onNames: (names: readonly string[]) => Promise<void>) {
    this.#dir = dir;
    this.#logger = logger;
    this.#onNames = onNames;
  }

  /** The directory is not there or can't be read. */
  get isMissing(): boolean {
    return this.#isMissing;
  }

  /** Throws STEPTAP_DIRECTORY. */
  list(): string[] {
    try {
      return readdirSync(this.#dir);
    } catch (error) {
      throw new SteptapError(
        'STEPTAP_DIRECTORY',
        `ipc.dir ${this.#dir} can't be read (${errnoOf(error) ?? messageOf(error)}); make it a directory that vLLM and steptap share`,
        { cause: error },
      );
    }
  }

  /** Resolves when what is there now has been dealt with. */
  async start(): Promise<void> {
    await this.#look();
    this.#rescan = setInterval(() => void this.#look(), RESCAN_MS);
    this.#rescan.unref();
    this.#watch();
  }

  stop(): void {
    this.#unwatch();
    clearInterval(this.#rescan);
    this.#rescan = undefined;
  }

  async #look(): Promise<void> {
    let names: string[];
    try {
      names = this.list();
    } catch (error) {
      this.#failed(error instanceof SteptapError ? error.cause : error, messageOf(error));
      return;
    }
    if (this.#isMissing) this.#logger.info({ dir: this.#dir }, 'socket directory is back');
    this.#isMissing = false;
    // Made anew under the same name; the watch would stay with the old one, which bound sockets keep alive.
    const inode = statSync(this.#dir, { throwIfNoEntry: false })?.ino;
    if (this.#rescan !== undefined && (this.#watcher === null || inode !== this.#watchedInode)) this.#watch();
    await this.#onNames(names);
  }

  #failed(cause: unknown, message: string): void {
    const errno = errnoOf(cause) ?? '';
    if (DESCRIPTORS_OUT.has(errno)) {
      // This says nothing of the directory, and connections that end make room.
      const text = 'out of file descriptors: new sockets wait; raise the limit (ulimit -n)';
      if (this.#throttle.allows(errno)) this.#logger.error({ errno }, text);
      return;
    }
    if (!this.#isMissing) this.#logger.error({ error: message }, 'socket directory lost');
    this.#isMissing = true;
    this.#unwatch();
  }

  #watch(): void {
    this.#unwatch();
    try {
      this.#watchedInode = statSync(this.#dir).ino;
      this.#watcher = watch(this.#dir, (_event, name) => {
        // Its own name: the directory itself was removed or moved.
        if (name === basename(this.#dir)) this.#unwatch();
        void this.#look();
      });
      this.#watcher.on('error', () => this.#unwatch());
    } catch {
      // The rescan goes on and tries again.
      this.#unwatch();
    }
  }

  #unwatch(): void {
    this.#watcher?.close();
    this.#watcher = null;
  }
}
