/**
 * The three names of a socket that steptap takes over.
 *
 *     before    <uuid>     vLLM listens
 *     after     <uuid>.up  vLLM listens: a bound unix socket goes on working under a new name
 *               <uuid>     steptap listens and relays to <uuid>.up
 *
 * The listener is made as `<uuid>.in` and then renamed into place, here as when names are put back, because Node
 * unlinks the path a server was bound to when it closes, whoever's file has that name by then.
 */
import {
  accessSync,
  chmodSync,
  chownSync,
  constants,
  existsSync,
  linkSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs';
import { join } from 'node:path';
import { MAX_SOCKET_PATH_BYTES } from './address.js';
import { errnoOf, SteptapError } from './errors.js';

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const UUID_LENGTH = 36;
const UPSTREAM = '.up';
const INCOMING = '.in';

/** The UUID that `name` is or begins with, and which of the names it is; null for files of other people. */
export function readName(
  name: string,
): { readonly uuid: string; readonly role: 'own' | 'upstream' | 'incoming' } | null {
  const uuid = name.slice(0, UUID_LENGTH);
  if (!UUID.test(uuid)) return null;
  const suffix = name.slice(UUID_LENGTH);
  if (suffix === '') return { uuid, role: 'own' };
  if (suffix === UPSTREAM) return { uuid, role: 'upstream' };
  return suffix === INCOMING ? { uuid, role: 'incoming' } : null;
}

/** Throws STEPTAP_PATH_LENGTH when sockets in `dir` would have paths that no unix socket can have. */
export function checkPathLength(dir: string): void {
  const length = Buffer.byteLength(dir) + 1 + UUID_LENGTH + UPSTREAM.length;
  if (length <= MAX_SOCKET_PATH_BYTES) return;
  throw new SteptapError(
    'STEPTAP_PATH_LENGTH',
    `ipc.dir ${dir} makes socket paths of ${length} bytes; the limit is ${MAX_SOCKET_PATH_BYTES}: use a shorter directory`,
  );
}

export class SocketNames {
  readonly uuid: string;
  /** Where engines connect. */
  readonly path: string;
  /** Where vLLM listens once taken over. */
  readonly upstream: string;
  /** Where steptap's listener is made. */
  readonly incoming: string;

  constructor(dir: string, uuid: string) {
    this.uuid = uuid;
    this.path = join(dir, uuid);
    this.upstream = this.path + UPSTREAM;
    this.incoming = this.path + INCOMING;
  }

  get isSocket(): boolean {
    return statSync(this.path, { throwIfNoEntry: false })?.isSocket() === true;
  }

  /** A socket can be dialled by who may write to it. */
  get mayBeDialled(): boolean {
    try {
      accessSync(this.path, constants.W_OK);
      return true;
    } catch (error) {
      return errnoOf(error) !== 'EACCES';
    }
  }

  get exists(): boolean {
    return existsSync(this.path);
  }

  /**
   * vLLM's socket gets its second name and the listener takes over the first, without a moment in which there is
   * none. Where links to sockets are forbidden there is one, some microseconds long; engines retry.
   */
  takeOver(): void {
    copyOwner(this.path, this.incoming);
    try {
      linkSync(this.path, this.upstream);
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') throw error;
      renameSync(this.path, this.upstream);
    }
    try {
      renameSync(this.incoming, this.path);
    } catch (error) {
      this.putBack();
      throw error;
    }
  }

  /** The listener takes the place of a dead one, or of none. */
  putInPlace(): void {
    copyOwner(this.upstream, this.incoming);
    renameSync(this.incoming, this.path);
  }

  /** vLLM's socket has its name again, over the listener's. */
  putBack(): void {
    renameSync(this.upstream, this.path);
  }

  remove(): void {
    rmSync(this.path, { force: true });
    rmSync(this.upstream, { force: true });
  }
}

/** vLLM's user must be able to connect to steptap's socket just as to its own. */
function copyOwner(from: string, to: string): void {
  const { mode, uid, gid } = statSync(from);
  chmodSync(to, mode & 0o777);
  if (process.geteuid?.() === 0) chownSync(to, uid, gid);
}
