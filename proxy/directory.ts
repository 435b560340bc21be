/**
 * Takes over the sockets that a vLLM binds in a directory (socket-names.ts tells how): watches for new ones, asks
 * each what it is, finds those of a vLLM that outlived the steptap before, and removes what is dead.
 */
import { rmSync } from 'node:fs';
import type net from 'node:net';
import { basename, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from 'pino';
import { lockDirectory } from './directory-lock.js';
import { DirectoryWatch } from './directory-watch.js';
import type { Endpoint } from './endpoint.js';
import { errnoOf, messageOf } from './errors.js';
import { checkPathLength, readName, SocketNames } from './socket-names.js';
import { isListening, probe } from './zmtp/probe.js';

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
  readonly names: SocketNames;
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
  /** Paths of sockets that this user may not dial, so that vLLM keeps them. */
  readonly #forbidden = new Set<string>();
  /** Pairs from before this process whose vLLM does not answer, and since when. */
  readonly #silentSince = new Map<string, number>();
  readonly #watch: DirectoryWatch;
  #lock: net.Server | null = null;

  constructor(options: DirectoryOptions) {
    this.#options = options;
    this.#watch = new DirectoryWatch(options.dir, options.logger, (names) => this.#scan(names));
  }

  /** Why sockets can't be relayed, one sentence each; empty when they can. */
  get problems(): string[] {
    const problems = [...this.#forbidden].map(
      (path) => `${path} belongs to another user: run steptap as vLLM's user`,
    );
    if (this.#watch.isMissing) problems.push(`socket directory ${this.#options.dir} is missing`);
    return problems;
  }

  /** Takes what is there and watches. Throws STEPTAP_DIRECTORY when the directory can't be used. */
  async start(): Promise<void> {
    const { dir } = this.#options;
    checkPathLength(dir);
    const names = this.#watch.list();
    this.#lock = await lockDirectory(dir);
    for (const name of names) {
      if (readName(name)?.role === 'incoming') rmSync(join(dir, name), { force: true });
    }
    await this.#watch.start();
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
    this.#watch.stop();
    for (const pair of this.#pairs.values()) this.#giveBack(pair);
    this.#lock?.close();
  }

  async #scan(names: readonly string[]): Promise<void> {
    const present = new Set(names);
    const work: Promise<void>[] = [];
    for (const name of names) {
      const read = readName(name);
      if (read === null || this.#busy.has(read.uuid) || this.#pairs.has(read.uuid)) continue;
      const socket = new SocketNames(this.#options.dir, read.uuid);
      if (read.role === 'upstream') work.push(this.#exclusively(socket, () => this.#recover(socket)));
      const isNew = read.role === 'own' && !present.has(basename(socket.upstream));
      if (isNew && !this.#handedBack.has(read.uuid)) {
        work.push(this.#exclusively(socket, () => this.#take(socket)));
      }
    }
    for (const path of this.#forbidden) if (!present.has(basename(path))) this.#forbidden.delete(path);
    for (const uuid of this.#handedBack) if (!present.has(uuid)) this.#handedBack.delete(uuid);
    for (const pair of this.#pairs.values()) if (!present.has(pair.names.uuid)) void this.#check(pair);
    const isNewVllm = work.length > 0;
    for (const pair of this.#pairs.values()) {
      if (isIdle(pair) && (pair.isSuspect || isNewVllm)) void this.#check(pair);
    }
    await Promise.all(work);
  }

  async #exclusively({ uuid, path }: SocketNames, work: () => Promise<void>): Promise<void> {
    this.#busy.add(uuid);
    try {
      await work();
    } catch (error) {
      this.#options.logger.error({ socket: path, error: messageOf(error) }, 'socket could not be taken over');
    } finally {
      this.#busy.delete(uuid);
    }
  }

  /** Takes at once and asks later: engines may connect before the frontend is able to answer. */
  async #take(names: SocketNames): Promise<void> {
    if (!names.isSocket || this.#isForbidden(names)) return;
    const endpoint = this.#options.createEndpoint(names.uuid, names.upstream);
    try {
      await endpoint.listen({ path: names.incoming });
      names.takeOver();
    } catch (error) {
      endpoint.destroy();
      this.#options.removed(endpoint);
      if (errnoOf(error) === 'ENOENT') return; // vLLM took it away in that moment
      throw error;
    }
    const pair = this.#keep(names, endpoint);
    this.#options.logger.info({ socket: names.path }, 'socket taken over');
    void this.#identify(pair);
  }

  /** A pair from before a restart: `<uuid>` is a dead socket of steptap's, `<uuid>.up` vLLM's, dead or alive. */
  async #recover(names: SocketNames): Promise<void> {
    if (!(await isListening(names.upstream))) {
      this.#removeIfStale(names);
      return;
    }
    this.#silentSince.delete(names.uuid);
    const endpoint = this.#options.createEndpoint(names.uuid, names.upstream);
    const pair = this.#keep(names, endpoint);
    const socketType = await this.#ask(pair, AbortSignal.timeout(RECOVERY_PATIENCE_MS));
    this.#options.recovered(endpoint, socketType ?? '');
    await this.#listenInPlace(pair);
    this.#options.logger.info(
      { socket: names.path, kind: endpoint.kind },
      'socket of a running vLLM recovered',
    );
  }

  #isForbidden({ path, mayBeDialled }: SocketNames): boolean {
    if (mayBeDialled) this.#forbidden.delete(path);
    else if (!this.#forbidden.has(path)) {
      this.#forbidden.add(path);
      this.#options.logger.error(
        { socket: path, uid: process.geteuid?.() },
        "socket belongs to another user and is left alone: run steptap as vLLM's user",
      );
    }
    return !mayBeDialled;
  }

  /** Nobody listens: looked at again by the next scans, and removed when that lasts. */
  #removeIfStale(names: SocketNames): void {
    const since = this.#silentSince.get(names.uuid) ?? performance.now();
    this.#silentSince.set(names.uuid, since);
    if (performance.now() - since < RECOVERY_PATIENCE_MS) return;
    this.#silentSince.delete(names.uuid);
    names.remove();
    this.#options.logger.info({ socket: names.path }, 'stale pair removed');
  }

  async #listenInPlace({ names, endpoint }: Pair): Promise<void> {
    await endpoint.listen({ path: names.incoming });
    names.putInPlace();
    endpoint.listenAddress = { path: names.path };
  }

  #keep(names: SocketNames, endpoint: Endpoint): Pair {
    const pair = {
      names,
      endpoint,
      takenAt: performance.now(),
      stop: new AbortController(),
      isSuspect: false,
      isBeingChecked: false,
    };
    endpoint.listenAddress = { path: names.path };
    this.#pairs.set(names.uuid, pair);
    return pair;
  }

  async #identify(pair: Pair): Promise<void> {
    const socketType = await this.#ask(pair, pair.stop.signal);
    if (socketType === null) return;
    this.#options.logger.debug({ socket: pair.names.path, socketType }, 'socket identified');
    if (!WORKER_QUEUE_TYPES.has(socketType)) return;
    this.#giveBack(pair);
    this.#handedBack.add(pair.names.uuid);
    this.#options.logger.info({ socket: pair.names.path, socketType }, 'worker queue handed back');
  }

  /** Socket type of vLLM's end; null when it is gone or `signal` aborts first. */
  async #ask(pair: Pair, signal: AbortSignal): Promise<string | null> {
    while (!signal.aborted) {
      const answer = await probe(pair.names.upstream, signal);
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
    const { names, endpoint } = pair;
    if (pair.isBeingChecked || !this.#isKept(pair)) return;
    pair.isBeingChecked = true;
    try {
      const isAlive = await isListening(names.upstream);
      const mayAnswer = !endpoint.wasReached && performance.now() - pair.takenAt < FIRST_ANSWER_MS;
      if (!this.#isKept(pair)) return;
      if (!isAlive && !mayAnswer) {
        this.#drop(pair);
        names.remove();
        this.#options.logger.info(
          { socket: names.path, kind: endpoint.kind },
          endpoint.kind === 'handshake' ? 'handshake is over' : 'socket of the frontend is gone',
        );
      } else if (isAlive && !names.exists) {
        this.#options.logger.warn(
          { socket: names.path },
          'socket file was removed under us; listening again',
        );
        endpoint.stopListening();
        await this.#listenInPlace(pair);
      }
    } catch (error) {
      this.#options.logger.error(
        { socket: names.path, error: messageOf(error) },
        'socket could not be checked',
      );
    } finally {
      pair.isBeingChecked = false;
    }
  }

  #isKept(pair: Pair): boolean {
    return this.#pairs.get(pair.names.uuid) === pair;
  }

  #giveBack(pair: Pair): void {
    try {
      pair.names.putBack();
      // Connections that were accepted and not yet dialled find it there.
      pair.endpoint.upstream = { path: pair.names.path };
    } catch (error) {
      // Gone with its vLLM: nothing to put back.
      this.#options.logger.debug({ socket: pair.names.path, error: messageOf(error) }, 'name not put back');
    }
    this.#drop(pair);
  }

  #drop(pair: Pair): void {
    pair.stop.abort();
    pair.endpoint.stopListening();
    this.#pairs.delete(pair.names.uuid);
    this.#options.removed(pair.endpoint);
  }
}

function isIdle({ endpoint }: Pair): boolean {
  return endpoint.connections.size === 0;
}
