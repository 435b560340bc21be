/** A sidecar that is killed, stopped and started again in front of a vLLM that goes on. */
import { randomUUID } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { Pair } from 'zeromq';
import { StandInEngine } from '../support/engine.js';
import { type FrontendOptions, StandInFrontend } from '../support/frontend.js';
import { freePort, runSidecar, type Status, temporaryDirectory } from '../support/in-process.js';
import type { OutputSpec } from '../support/messages.js';
import { seriesKey } from '../support/prometheus-text.js';
import { type SidecarProcess, startSidecar } from '../support/sidecar.js';
import { BY_HAND, type Mode } from '../support/vllm.js';
import { waitFor } from '../support/wait.js';

const ENGINE = { engine: '0', model_name: 'stand-in' };

/** A vLLM between whose ends sidecars come and go as processes. */
class Stand {
  readonly frontend: StandInFrontend;
  readonly engine = new StandInEngine(BY_HAND);
  readonly statePath: string;
  readonly #t: ExecutionContext;
  readonly #args: readonly string[];
  #sidecar: SidecarProcess | null = null;
  #arrived = 0;
  #sent = 0;

  private constructor(
    t: ExecutionContext,
    frontend: StandInFrontend,
    args: readonly string[],
    statePath: string,
  ) {
    this.#t = t;
    this.frontend = frontend;
    this.#args = args;
    this.statePath = statePath;
    frontend.onOutput = () => this.#arrived++;
  }

  static async start(t: ExecutionContext, mode: Mode, options: FrontendOptions = {}): Promise<Stand> {
    const dir = temporaryDirectory(t);
    const statePath = join(dir, mode === 'directory' ? '.steptap.json' : 'state.json');
    const frontend = new StandInFrontend(mode === 'directory' ? { directory: dir, ...options } : options);
    t.teardown(() => frontend.stop());
    await frontend.start();
    const entrance = mode === 'directory' ? frontend.handshakeAddress : `tcp://127.0.0.1:${await freePort()}`;
    const args =
      mode === 'directory'
        ? ['--ipc-dir', dir]
        : [
            ...['--frontend-handshake', frontend.handshakeAddress],
            ...['--engine-handshake', entrance, '--state-path', statePath],
          ];
    const stand = new Stand(t, frontend, args, statePath);
    await stand.startSidecar();
    if (mode === 'directory') await stand.endpoints(3);
    t.teardown(() => stand.engine.stop());
    await Promise.all([frontend.ready(), stand.engine.start(entrance)]);
    return stand;
  }

  get sidecar(): SidecarProcess {
    if (this.#sidecar === null) throw new Error('no sidecar runs');
    return this.#sidecar;
  }

  async startSidecar(): Promise<void> {
    const sidecar = await startSidecar({
      args: [...this.#args, '--model-name', 'stand-in', '--drain-timeout', '100ms'],
    });
    this.#sidecar = sidecar;
    this.#t.teardown(() => sidecar.stop()); // a killed one would not tell what it has run through
  }

  async status(): Promise<Status> {
    return (await this.sidecar.status()) as Status;
  }

  async endpoints(count: number): Promise<void> {
    await waitFor(async () => (await this.status()).endpoints.length === count, { what: 'the endpoints' });
  }

  /** Resolves once the engine is connected on both data sockets. */
  async connected(): Promise<void> {
    const isConnected = async () => {
      const { endpoints } = await this.status();
      const connections = (kind: string) => endpoints.find((endpoint) => endpoint.kind === kind)?.connections;
      return connections('requests') === 1 && connections('outputs') === 1;
    };
    await waitFor(isConnected, { what: 'the engine on both data sockets' });
  }

  async open(id: string): Promise<void> {
    this.frontend.open({ id, promptTokens: 128, maxTokens: 1000 }).done.catch(() => {});
    await waitFor(() => this.engine.running.includes(id), { what: `${id} at the engine` });
  }

  /** Resolves when the frontend has the batch. */
  async step(...outputs: OutputSpec[]): Promise<void> {
    this.#sent++;
    await this.engine.sendBatch(0, outputs);
    await waitFor(() => this.#arrived === this.#sent, { what: 'the batch at the frontend' });
  }

  /** Count and sum of the sidecar that runs now. */
  async observed(): Promise<(number | undefined)[]> {
    const samples = await this.sidecar.metrics();
    return ['count', 'sum'].map((what) =>
      samples.get(seriesKey(`vllm:iteration_tokens_total_${what}`, ENGINE)),
    );
  }

  async sample(name: string, labels: Record<string, string> = {}): Promise<number | undefined> {
    return (await this.sidecar.metrics()).get(seriesKey(`steptap_${name}`, labels));
  }
}

for (const [mode, withState] of [
  ['directory', true],
  ['directory', false],
  ['handshake', true],
] as const) {
  const how = withState ? 'with its state file' : 'without its state file';
  test(`${mode}: killed and started again ${how}, requests go on and those in flight are adopted (S13)`, async (t) => {
    const stand = await Stand.start(t, mode, { handover: true });
    for (const id of ['running', 'cancelled', 'finished']) await stand.open(id);
    await stand.step({ id: 'running', tokens: 2, computed: 128 });
    t.deepEqual(await stand.observed(), [1, 130]);
    const before = (await stand.status()).endpoints.map(({ listen }) => listen).sort();

    await stand.sidecar.kill();
    if (!withState) rmSync(stand.statePath);
    await stand.startSidecar();
    await stand.connected();
    if (mode === 'handshake') {
      t.deepEqual((await stand.status()).endpoints.map(({ listen }) => listen).sort(), before);
    }
    const isKnown = async () => (await stand.observed()).join() === '0,0';
    await waitFor(isKnown, { what: 'the series at zero as the engine is known' });
    await stand.step({ id: 'running', tokens: 3 });
    t.deepEqual(await stand.observed(), [1, 3]);
    t.is(await stand.sample('adopted_requests_total'), 1);

    await stand.open('new'); // a frontend that takes the new connection
    await stand.step({ id: 'new', tokens: 1, computed: 100, cached: 28 }, { id: 'running', tokens: 1 });
    t.deepEqual(await stand.observed(), [2, 105]);
    t.is(await stand.sample('frontend_path_usable'), 1);
    t.is((await stand.sidecar.readyz()).status, 200);

    await stand.frontend.abort(['cancelled']);
    await waitFor(() => !stand.engine.running.includes('cancelled'), { what: 'the ABORT at the engine' });
    await stand.step({ id: 'cancelled', tokens: 50 });
    await stand.step({ id: 'finished', tokens: 5, finish: 0 });
    await stand.step({ id: 'finished', tokens: 50 });
    t.deepEqual(await stand.observed(), [5, 110]);
    t.is(await stand.sample('adopted_requests_total'), 2);
    t.is(await stand.sample('tracked_requests', { client: '0' }), 2);
    t.deepEqual(stand.frontend.violations, []);
    t.deepEqual(stand.engine.errors, []);
  });
}

for (const [mode, withState] of [
  ['directory', true],
  ['directory', false],
  ['handshake', true],
] as const) {
  const how = withState ? 'with its state file' : 'without its state file';
  test(`${mode}: in front of a libzmq frontend a restart ${how} is told as a path that can't be used any more`, async (t) => {
    const stand = await Stand.start(t, mode);
    t.is((await stand.sidecar.readyz()).status, 200);
    await stand.sidecar.kill();
    if (!withState) rmSync(stand.statePath);
    await stand.startSidecar();
    await stand.connected();
    const lost = async () => (await stand.sample('frontend_path_usable')) === 0;
    await waitFor(lost, { what: 'the path known as lost' });
    const { status, text } = await stand.sidecar.readyz();
    t.is(status, 503);
    t.regex(text, /frontend can't send to engine 0 since its connection was replaced: restart vLLM/);
    t.true(
      stand.sidecar.logs.some(({ level, msg }) => level === 'error' && /Restart vLLM/.test(String(msg))),
    );
    // Outputs still arrive and count.
    await stand.step({ id: 'from before', tokens: 4 });
    t.deepEqual(await stand.observed(), [1, 4]);
  });
}

for (const mode of ['directory', 'handshake'] as const) {
  test(`${mode}: SIGTERM ends it with 0 after the drain, and the state file stays for the next start`, async (t) => {
    const stand = await Stand.start(t, mode, { handover: true });
    await stand.open('r1');
    t.is(await stand.sidecar.stop(), 0);
    const messages = stand.sidecar.logs.map(({ msg }) => msg);
    t.true(messages.includes('draining') && messages.includes('drained'));
    const state = JSON.parse(readFileSync(stand.statePath, 'utf8')) as { engines: number[] };
    t.deepEqual(state.engines, [0]);
    if (mode === 'directory') {
      const names = readdirSync(String(stand.frontend.options.directory)).filter(
        (name) => !name.startsWith('.'),
      );
      t.is(names.filter((name) => name.endsWith('.up') || name.endsWith('.in')).length, 0);
      // The handshake's goes once all engines are ready.
      t.true(names.length === 2 || names.length === 3, names.join());
      // Meanwhile the engine has gone straight to the frontend, and requests reach it there.
      const ids = new Set<string>();
      const isReached = () => {
        const { id, done } = stand.frontend.open({ promptTokens: 1, maxTokens: 1000 });
        done.catch(() => {}); // as long as the engine is not back
        ids.add(id);
        return stand.engine.running.some((running) => ids.has(running));
      };
      await waitFor(isReached, { what: 'a request at the engine without a sidecar' });
    }
  });
}

test('directory: names put back at SIGTERM lead new connections straight to vLLM', async (t) => {
  const dir = temporaryDirectory(t);
  const path = join(dir, randomUUID());
  const pair = new Pair({ linger: 0 });
  t.teardown(() => pair.close());
  await pair.bind(`ipc://${path}`);
  const sidecar = await startSidecar({ args: ['--ipc-dir', dir] });
  t.teardown(() => sidecar.stop());
  await waitFor(() => existsSync(`${path}.up`), { what: 'the socket taken over' });
  t.is(await sidecar.stop(), 0);
  t.false(existsSync(`${path}.up`));
  const other = new Pair({ linger: 0 });
  t.teardown(() => other.close());
  other.connect(`ipc://${path}`);
  await other.send('straight');
  t.is(String(await pair.receive()), 'straight');
});

test('a second SIGTERM ends the drain at once, and names are put back all the same', async (t) => {
  const dir = temporaryDirectory(t);
  const path = join(dir, randomUUID());
  const pair = new Pair({ linger: 0 });
  t.teardown(() => pair.close());
  await pair.bind(`ipc://${path}`);
  const sidecar = await startSidecar({ args: ['--ipc-dir', dir, '--drain-timeout', '60s'] });
  t.teardown(() => sidecar.stop());
  await waitFor(() => existsSync(`${path}.up`), { what: 'the socket taken over' });
  const other = new Pair({ linger: 0 });
  t.teardown(() => other.close());
  other.connect(`ipc://${path}`);
  await other.send('hello');
  await pair.receive();
  sidecar.child.signal('SIGTERM');
  await waitFor(async () => (await sidecar.readyz()).text.includes('draining'), { what: '/readyz draining' });
  await other.send('relayed while draining');
  t.is(String(await pair.receive()), 'relayed while draining');
  sidecar.child.signal('SIGTERM');
  t.is(await sidecar.child.exited(), 0);
  t.true(existsSync(path));
  t.false(existsSync(`${path}.up`));
  t.true(sidecar.logs.some(({ msg }) => msg === 'stopped at once by a second signal'));
});

test('directory: started again after a clean end under a running vLLM, it says that engines go past it', async (t) => {
  const stand = await Stand.start(t, 'directory', { handover: true });
  t.is(await stand.sidecar.stop(), 0);
  await stand.startSidecar();
  const { status, text } = await stand.sidecar.readyz();
  t.is(status, 503);
  t.regex(text, /engines may be connected past this one .* Restart vLLM/);
  t.is(stand.sidecar.logs.filter(({ msg }) => /past this one/.test(String(msg))).length, 1);
});

test('handshake: after a restart it is not ready before each engine from before is back, and says which is not', async (t) => {
  const stand = await Stand.start(t, 'handshake', { handover: true });
  await stand.sidecar.kill();
  await stand.engine.stop();
  await stand.startSidecar();
  const { status, text } = await stand.sidecar.readyz();
  t.is(status, 503);
  t.true(text.includes('engine 0 has not reconnected since steptap was restarted'), text);
});

test('a state file that is none is told in the log and does no harm', async (t) => {
  const dir = temporaryDirectory(t);
  const path = join(dir, 'state.json');
  for (const text of [
    'no JSON',
    '{"version":99}',
    '{"version":1,"addresses":null,"engines":[0],"endpoints":[{}]}',
  ]) {
    writeFileSync(path, text);
    const sidecar = await runSidecar(t, { ipc: { dir }, state: { path } });
    t.is(sidecar.logged('warn', 'starting without it').length, 1, text);
    t.is(
      await sidecar.sample('vllm:iteration_tokens_total_count', { engine: '0', model_name: 'tiny' }),
      undefined,
    );
    await sidecar.close();
  }
});

test('a state file that cannot be written is counted and told once', async (t) => {
  const dir = temporaryDirectory(t);
  const sidecar = await runSidecar(t, { ipc: { dir }, state: { path: join(dir, 'missing', 'state.json') } });
  const pair = new Pair({ linger: 0 });
  t.teardown(() => pair.close());
  await pair.bind(`ipc://${join(dir, randomUUID())}`);
  const failures = async () =>
    Number(await sidecar.sample('steptap_state_write_failures_total', { reason: 'ENOENT' }));
  await waitFor(async () => (await failures()) >= 1, { what: 'a failure counted' });
  t.is(sidecar.logged('error', 'state file not written').length, 1);
  t.is((await sidecar.status()).endpoints.length, 1);
});

test('handshake: a port from before the restart that someone has taken is told and not fatal', async (t) => {
  const dir = temporaryDirectory(t);
  const path = join(dir, 'state.json');
  const taken = `tcp://127.0.0.1:${await freePort()}`;
  const other = await new StandInFrontend({ handshake: taken }).start();
  t.teardown(() => other.stop());
  const endpoint = {
    listen: taken,
    upstream: 'tcp://127.0.0.1:9',
    kind: 'requests',
    client: '0',
    engines: [0],
  };
  const state = {
    version: 1,
    addresses: { inputs: ['tcp://127.0.0.1:9'], outputs: [] },
    engines: [0],
    endpoints: [endpoint],
  };
  writeFileSync(path, JSON.stringify(state));
  const sidecar = await runSidecar(t, {
    frontend: { handshake: `tcp://127.0.0.1:${await freePort()}` },
    engine: { handshake: `tcp://127.0.0.1:${await freePort()}` },
    state: { path },
  });
  const [line] = sidecar.logged('error', 'engines from before the restart will not find this');
  t.regex(String(line?.['error']), new RegExp(`${taken} is in use by another process`));
  const series = { engine: '0', model_name: 'tiny' };
  t.is(await sidecar.sample('vllm:iteration_tokens_total_count', series), 0);
});
