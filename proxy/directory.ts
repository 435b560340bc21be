/**
 * Takes over the sockets that a vLLM binds as files `<dir>/<uuid>`.
 *
 *     before    <uuid>     vLLM listens
 *     after     <uuid>.up  vLLM listens: a bound unix socket goes on working under a new name
 *               <uuid>     steptap listens and relays to <uuid>.up
 *
 * The listener is made as `<uuid>.in` and then renamed into place, here as when names are put back, because Node
 * unlinks the path a server was bound to when it closes, whoever's file has that name by then.
 */
import {
  chmodSync,
  chownSync,
  type FSWatcher,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  watch,
} from 'node:fs';
import net from 'node:net';
import { basename, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from 'pino';
import { MAX_SOCKET_PATH_BYTES } from './address.js';
import type { Endpoint } from './endpoint.js';
import { errnoOf, messageOf, SteptapError } from './errors.js';
import { isListening, probe } from './zmtp/probe.js';

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const UUID_LENGTH = 36;
const UPSTREAM = '.up';
const INCOMING = '.in';
const LOCK = '.steptap.lock';
const RESCAN_MS = 1000;
/** A socket that was bound but never answered is given this long before it is taken for dead. */
const FIRST_ANSWER_MS = 10_000;
/** After a restart: a frontend that was killed between bind and listen is not waited for longer than this. */
const RECOVERY_PATIENCE_MS = 2000;
const PROBE_RETRY_MS = 20;
/** The queues between an engine and its tensor-parallel workers; not steptap's business, and hot. */
const WORKER_QUEUE_TYPES = new Set(['XPUB', 'PUB']);

export interface DirectoryOptions {
  readonly dir: string;
  readonly logger: Logger;
  /** An endpoint for the socket `uuid`, to dial at `upstream`. */
  readonly createEndpoint: (uuid: string, upstream: string) => Endpoint;
  /** A pair found at the start, of a vLLM that was there before this process; `socketType` as its probe answered. */
  readonly recovered: (endpoint: Endpoint, socketType: string) => void;
  readonly removed: (endpoint: Endpoint) => void;
}

interface Pair {
  readonly uuid: string;
  readonly endpoint: Endpoint;
  readonly takenAt: number;
  readonly stop: AbortController;
  /** Its last connection has gone: vLLM may go as well, now or in a while. */
  isSuspect: boolean;
  isBeingChecked: boolean;
}

export class SocketDirectory {
  readonly #options: DirectoryOptions;
  readonly #pairs = new Map<string, Pair>();
  /** Taken or recovered right now. */
  readonly #busy = new Set<string>();
  readonly #handedBack = new Set<string>();
  #watcher: FSWatcher | null = null;
  #watchedInode = 0;
  #rescan: NodeJS.Timeout | undefined;
  #lock: net.Server | null = null;
  #isMissing = false;

  constructor(options: DirectoryOptions) {
    this.#options = options;
  }

  get isMissing(): boolean {
    return this.#isMissing;
  }

  /** Takes what is there and watches. Throws STEPTAP_DIRECTORY when the directory can't be used. */
  async start(): Promise<void> {
    const { dir } = this.#options;
    checkLength(dir);
    const names = this.#list();
    this.#lock = await lockDirectory(dir);
    for (const name of names) if (name.endsWith(INCOMING)) rmSync(join(dir, name), { force: true });
    await this.#scan();
    this.#watch();
    this.#rescan = setInterval(() => {
      void this.#scan();
      for (const pair of this.#pairs.values()) if (pair.isSuspect && isIdle(pair)) void this.#check(pair);
    }, RESCAN_MS);
    this.#rescan.unref();
  }

  /** The frontend's socket may be gone: looks, and removes the pair if so. */
  suspect(endpoint: Endpoint): void {
    for (const pair of this.#pairs.values()) {
      if (pair.endpoint !== endpoint) continue;
      pair.isSuspect = true;
      void this.#check(pair);
    }
  }

  /** The endpoint that took the place of `path`; vLLM may know the directory under another name. */
  find(path: string): Endpoint | undefined {
    return this.#pairs.get(basename(path))?.endpoint;
  }

  /** Puts the original names back, without a moment in which a name is missing. New connections go straight. */
  putBack(): void {
    this.#stopWatching();
    for (const pair of this.#pairs.values()) this.#giveBack(pair);
    this.#lock?.close();
  }

  #list(): string[] {
    const { dir } = this.#options;
    try {
      return readdirSync(dir);
    } catch (error) {
      throw new SteptapError(
        'STEPTAP_DIRECTORY',
        `ipc.dir ${dir} can't be read (${errnoOf(error) ?? messageOf(error)}); make it a directory that vLLM and steptap share`,
        { cause: error },
      );
    }
  }

  #watch(): void {
    try {
      const { dir } = this.#options;
      this.#watchedInode = statSync(dir).ino;
      this.#watcher = watch(dir, (_event, name) => {
        // Its own name: the directory itself was removed or moved.
        if (name === basename(dir)) this.#stopWatcher();
        void this.#scan();
      });
      this.#watcher.on('error', () => this.#stopWatcher());
    } catch {
      // The rescan goes on and tries again.
      this.#stopWatcher();
    }
  }

  #stopWatcher(): void {
    this.#watcher?.close();
    this.#watcher = null;
  }

  #stopWatching(): void {
    this.#stopWatcher();
    clearInterval(this.#rescan);
  }

  async #scan(): Promise<void> {
    let names: string[];
    try {
      names = this.#list();
    } catch (error) {
      if (!this.#isMissing) this.#options.logger.error({ error: messageOf(error) }, 'socket directory lost');
      this.#isMissing = true;
      this.#stopWatcher();
      return;
    }
    this.#isMissing = false;
    // Made anew under the same name; the watch would stay with the old one, which bound sockets keep alive.
    if (this.#watchedInode !== statSync(this.#options.dir, { throwIfNoEntry: false })?.ino)
      this.#stopWatcher();
    if (this.#watcher === null && this.#rescan !== undefined) this.#watch();
    const present = new Set(names);
    const work: Promise<void>[] = [];
    for (const name of names) {
      const uuid = name.slice(0, UUID_LENGTH);
      if (!UUID.test(uuid) || this.#busy.has(uuid) || this.#pairs.has(uuid)) continue;
      if (name === uuid + UPSTREAM) work.push(this.#exclusively(uuid, () => this.#recover(uuid)));
      else if (name === uuid && !present.has(uuid + UPSTREAM) && !this.#handedBack.has(uuid)) {
        work.push(this.#exclusively(uuid, () => this.#take(uuid)));
      }
    }
    for (const uuid of this.#handedBack) if (!present.has(uuid)) this.#handedBack.delete(uuid);
    for (const pair of this.#pairs.values()) if (!present.has(pair.uuid)) void this.#check(pair);
    if (work.length > 0) for (const pair of this.#pairs.values()) if (isIdle(pair)) void this.#check(pair);
    await Promise.all(work);
  }

  async #exclusively(uuid: string, work: () => Promise<void>): Promise<void> {
    this.#busy.add(uuid);
    try {
      await work();
    } catch (error) {
      this.#options.logger.error({ uuid, error: messageOf(error) }, 'socket could not be taken over');
    } finally {
      this.#busy.delete(uuid);
    }
  }

  /** Takes at once and asks later: engines may connect before the frontend is able to answer. */
  async #take(uuid: string): Promise<void> {
    const path = join(this.#options.dir, uuid);
    if (statSync(path, { throwIfNoEntry: false })?.isSocket() !== true) return;
    const endpoint = this.#options.createEndpoint(uuid, path + UPSTREAM);
    try {
      await endpoint.listen({ path: path + INCOMING });
      copyOwner(path, path + INCOMING);
      renameSync(path, path + UPSTREAM);
      renameSync(path + INCOMING, path);
    } catch (error) {
      endpoint.destroy();
      this.#options.removed(endpoint);
      if (errnoOf(error) === 'ENOENT') return; // vLLM took it away in that moment
      throw error;
    }
    const pair = this.#keep(uuid, endpoint);
    this.#options.logger.info({ socket: path }, 'socket taken over');
    void this.#identify(pair);
  }

  /** A pair from before a restart: `<uuid>` is a dead socket of steptap's, `<uuid>.up` vLLM's, dead or alive. */
  async #recover(uuid: string): Promise<void> {
    const path = join(this.#options.dir, uuid);
    const deadline = performance.now() + RECOVERY_PATIENCE_MS;
    while (!(await isListening(path + UPSTREAM))) {
      if (performance.now() > deadline) {
        this.#removeFiles(uuid);
        this.#options.logger.info({ socket: path }, 'stale pair removed');
        return;
      }
      await delay(PROBE_RETRY_MS);
    }
    const endpoint = this.#options.createEndpoint(uuid, path + UPSTREAM);
    const pair = this.#keep(uuid, endpoint);
    const socketType = await this.#ask(pair, AbortSignal.timeout(RECOVERY_PATIENCE_MS));
    this.#options.recovered(endpoint, socketType ?? '');
    await this.#listenInPlace(pair);
    this.#options.logger.info({ socket: path, kind: endpoint.kind }, 'socket of a running vLLM recovered');
  }

  async #listenInPlace({ uuid, endpoint }: Pair): Promise<void> {
    const path = join(this.#options.dir, uuid);
    await endpoint.listen({ path: path + INCOMING });
    copyOwner(path + UPSTREAM, path + INCOMING);
    renameSync(path + INCOMING, path);
    endpoint.listenAddress = { path };
  }

  #keep(uuid: string, endpoint: Endpoint): Pair {
    const pair = {
      uuid,
      endpoint,
      takenAt: performance.now(),
      stop: new AbortController(),
      isSuspect: false,
      isBeingChecked: false,
    };
    endpoint.listenAddress = { path: join(this.#options.dir, uuid) };
    this.#pairs.set(uuid, pair);
    return pair;
  }

  async #identify(pair: Pair): Promise<void> {
    const socketType = await this.#ask(pair, pair.stop.signal);
    if (socketType === null) return;
    this.#options.logger.debug({ uuid: pair.uuid, socketType }, 'socket identified');
    if (!WORKER_QUEUE_TYPES.has(socketType)) return;
    this.#giveBack(pair);
    this.#handedBack.add(pair.uuid);
    this.#options.logger.info({ uuid: pair.uuid, socketType }, 'worker queue handed back');
  }

  /** Socket type of vLLM's end; null when it is gone or `signal` aborts first. */
  async #ask(pair: Pair, signal: AbortSignal): Promise<string | null> {
    const path = join(this.#options.dir, pair.uuid + UPSTREAM);
    while (!signal.aborted) {
      const answer = await probe(path, signal);
      if (typeof answer !== 'string') {
        pair.endpoint.wasReached = true;
        pair.endpoint.learnUpstream(answer);
        return answer.socketType;
      }
      if (answer === 'refused' && performance.now() - pair.takenAt > FIRST_ANSWER_MS) {
        void this.#check(pair);
        return null;
      }
      await delay(PROBE_RETRY_MS);
    }
    return null;
  }

  async #check(pair: Pair): Promise<void> {
    if (pair.isBeingChecked || this.#pairs.get(pair.uuid) !== pair) return;
    pair.isBeingChecked = true;
    try {
      const path = join(this.#options.dir, pair.uuid);
      const isAlive = await isListening(path + UPSTREAM);
      const mayAnswer = !pair.endpoint.wasReached && performance.now() - pair.takenAt < FIRST_ANSWER_MS;
      if (this.#pairs.get(pair.uuid) !== pair) return;
      if (!isAlive && !mayAnswer) this.#remove(pair);
      else if (isAlive && statSync(path, { throwIfNoEntry: false }) === undefined) {
        this.#options.logger.warn({ socket: path }, 'socket file was removed under us; listening again');
        pair.endpoint.stopListening();
        await this.#listenInPlace(pair);
      }
    } catch (error) {
      this.#options.logger.error({ uuid: pair.uuid, error: messageOf(error) }, 'socket could not be checked');
    } finally {
      pair.isBeingChecked = false;
    }
  }

  #remove(pair: Pair): void {
    this.#drop(pair);
    this.#removeFiles(pair.uuid);
    this.#options.logger.info(
      { uuid: pair.uuid, kind: pair.endpoint.kind },
      'socket of the frontend is gone',
    );
  }

  #removeFiles(uuid: string): void {
    rmSync(join(this.#options.dir, uuid), { force: true });
    rmSync(join(this.#options.dir, uuid + UPSTREAM), { force: true });
  }

  #giveBack(pair: Pair): void {
    const path = join(this.#options.dir, pair.uuid);
    try {
      renameSync(path + UPSTREAM, path);
    } catch (error) {
      // Gone with its vLLM: nothing to put back.
      this.#options.logger.debug({ socket: path, error: messageOf(error) }, 'name not put back');
    }
    this.#drop(pair);
  }

  #drop(pair: Pair): void {
    pair.stop.abort();
    pair.endpoint.stopListening();
    this.#pairs.delete(pair.uuid);
    this.#options.removed(pair.endpoint);
  }
}

function isIdle({ endpoint }: Pair): boolean {
  return endpoint.connections.size === 0;
}

function checkLength(dir: string): void {
  const length = Buffer.byteLength(dir) + 1 + UUID_LENGTH + UPSTREAM.length;
  if (length <= MAX_SOCKET_PATH_BYTES) return;
  throw new SteptapError(
    'STEPTAP_PATH_LENGTH',
    `ipc.dir ${dir} makes socket paths of ${length} bytes; the limit is ${MAX_SOCKET_PATH_BYTES}: use a shorter directory`,
  );
}

/** vLLM's user must be able to connect to steptap's socket just as to its own. */
function copyOwner(from: string, to: string): void {
  const { mode, uid, gid } = statSync(from);
  chmodSync(to, mode & 0o777);
  if (process.geteuid?.() === 0) chownSync(to, uid, gid);
}

/** One steptap per directory: a socket tells a living one from one that was killed, also across PID namespaces. */
async function lockDirectory(dir: string): Promise<net.Server> {
  const path = join(dir, LOCK);
  if (await isListening(path)) {
    throw new SteptapError(
      'STEPTAP_DIRECTORY_IN_USE',
      `another steptap already relays the sockets in ${dir}; stop it or give this one a directory of its own`,
    );
  }
  rmSync(path, { force: true });
  const server = net.createServer((socket) => socket.destroy());
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error) =>
      reject(
        new SteptapError(
          'STEPTAP_DIRECTORY',
          `ipc.dir ${dir} can't be written (${errnoOf(error) ?? messageOf(error)}); steptap needs the user id that vLLM has`,
          { cause: error },
        ),
      ),
    );
    server.listen(path, () => resolve());
  });
  server.unref();
  return server;
}
