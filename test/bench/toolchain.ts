import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The root of the package, seen from dist/test/bench/. */
export const packageRoot = fileURLToPath(new URL('../../../', import.meta.url));

export type Program = 'peer' | 'zmq-proxy';

/**
 * Compiles test/bench/<program>.c against the system's libzmq, unless that is done already.
 * Returns the path of the executable; throws with what to install when the compiler or the library is missing.
 */
export function compiled(program: Program): string {
  const source = join(packageRoot, 'test', 'bench', `${program}.c`);
  const folder = join(packageRoot, 'dist', 'test', 'bench', 'bin');
  const output = join(folder, program);
  if (existsSync(output) && statSync(output).mtimeMs > statSync(source).mtimeMs) return output;
  mkdirSync(folder, { recursive: true });
  const args = ['-O2', '-Wall', '-pthread', '-o', output, source, '-lzmq'];
  const result = spawnSync('cc', args, { encoding: 'utf8' });
  if (result.error !== undefined) {
    throw new Error('The benchmark needs a C compiler: apt-get install gcc libc6-dev libzmq3-dev');
  }
  if (result.status !== 0) {
    const hint = /zmq\.h|-lzmq/.test(result.stderr)
      ? 'libzmq and its header are missing: apt-get install libzmq3-dev'
      : `cc ${args.join(' ')} failed`;
    throw new Error(`${hint}\n${result.stderr}`);
  }
  return output;
}
