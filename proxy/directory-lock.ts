/** One steptap per directory. */
import { rmSync } from 'node:fs';
import net from 'node:net';
import { join } from 'node:path';
import { errnoOf, messageOf, SteptapError } from './errors.js';
import { isListening } from './zmtp/probe.js';

const LOCK = '.steptap.lock';

/**
 * Listens on a socket in `dir`, which tells a living steptap from one that was killed, also across PID namespaces.
 * Throws STEPTAP_DIRECTORY_IN_USE, or STEPTAP_DIRECTORY when the directory can't be written.
 */
export async function lockDirectory(dir: string): Promise<net.Server> {
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
