import { encode } from '@msgpack/msgpack';
import test, { type ExecutionContext } from 'ava';
import fc from 'fast-check';
import { type Engine, Engines } from '../../proxy/engines.js';
import { idFilter } from '../../proxy/id-filter.js';
import { StepCounter } from '../../proxy/step-counter.js';
import { Telemetry } from '../../proxy/telemetry.js';
import { RequestTracker } from '../../proxy/tracking.js';
import { ListedRow, OutputBatch } from '../../proxy/vllm/output-batch.js';
import { budget, isComplete, same } from './budget.js';
import { type Batch, CountingModel, type Counts, type Row } from './counting-model.js';

const KNOWN = [0, 1];

/** Where a version of vLLM puts what it says about the prompt (protocol.md, "Outputs"). */
interface Layout {
  readonly length: number;
  readonly finishAt: number;
  readonly stats?: number;
  readonly cached?: number;
}

const V0_32: Layout = { length: 17, finishAt: 5, stats: 11 };
const LAYOUTS: readonly Layout[] = [
  { length: 7, finishAt: 4 },
  { length: 9, finishAt: 4, cached: 8 },
  { length: 10, finishAt: 5, cached: 9 },
  { length: 11, finishAt: 5, cached: 10 },
  { length: 14, finishAt: 5, cached: 10 },
  { length: 13, finishAt: 5, stats: 10 },
  V0_32,
];

function batchBytes({ engine, rows, finishedRequests, hasSchedulerStats }: Batch, layout: Layout): Buffer {
  const outputs = rows.map((row) => {
    const elements: unknown[] = Array.from({ length: layout.length }, () => null);
    elements[0] = row.id;
    elements[1] = Array.from({ length: row.tokens }, (_, index) => index);
    if (row.finished) elements[layout.finishAt] = row.tokens % 5;
    if (layout.cached !== undefined) elements[layout.cached] = row.cached ?? 0;
    if (layout.stats !== undefined && row.computed !== null) {
      elements[layout.stats] = { num_prompt_tokens: 9_999, num_computed_tokens: row.computed };
    }
    return elements;
  });
  const finished = finishedRequests.length === 0 ? null : finishedRequests;
  return Buffer.from(encode([engine, outputs, hasSchedulerStats ? { step: 1 } : null, 1.5, null, finished]));
}

/** The real counters: one tracker, an output connection per engine, as of one frontend client. */
class Counting {
  readonly tracker: RequestTracker;
  readonly observations: [number, number][] = [];
  readonly #telemetry = new Telemetry();
  readonly #engines: Engines;
  readonly #counters = new Map<number, StepCounter>();
  readonly #batch: OutputBatch;

  constructor(selects: (id: string) => boolean) {
    const observer = {
      addEngine: () => undefined,
      observe: (engine: number, tokens: number) => void this.observations.push([engine, tokens]),
    };
    this.tracker = new RequestTracker('0', selects);
    this.#batch = new OutputBatch(this.tracker);
    this.#engines = new Engines(observer, () => undefined);
    for (const engine of KNOWN) this.#engines.add(engine);
    for (const engine of [...KNOWN, 7]) {
      this.#counters.set(engine, new StepCounter(this.tracker, this.#engines, observer, this.#telemetry));
    }
  }

  batch(batch: Batch, layout: Layout): void {
    const bytes = batchBytes(batch, layout);
    const fault = this.#batch.read(bytes, 0, bytes.length);
    if (fault !== null) throw new Error(fault);
    this.#counters.get(batch.engine)?.count(this.#batch);
    bytes.fill(0x61); // the memory of a frame is used again
  }

  get counts(): Counts {
    const sum = (of: (engine: Engine) => number) =>
      this.#engines.all.reduce((total, engine) => total + of(engine), 0);
    return {
      observations: this.observations,
      tracked: this.tracker.trackedCount,
      adopted: this.tracker.adoptedCount,
      unknownEngineBatches: this.#telemetry.get('unknown_engine_batches_total', {}),
      untrackedOutputs: sum((engine) => engine.untrackedOutputs),
      untrackedBatches: sum((engine) => engine.untrackedBatches),
      repeatedPrefillReports: sum((engine) => engine.repeatedPrefillReports),
      steps: sum((engine) => engine.steps),
    };
  }
}

// Equal lengths, prefixes of each other, more than a fixstr holds, no ASCII; some that the filter leaves out.
const IDS = [
  'a',
  'b',
  'ab',
  'chatcmpl-0001',
  'chatcmpl-0002',
  'chatcmpl-0001-0',
  // Alike but for the middle.
  'chatcmpl-0001-0001',
  'ü-1',
  'x'.repeat(40),
  'no-1',
  'no-2',
];
const anyId = fc.constantFrom(...IDS);

const row: fc.Arbitrary<Row> = fc.record({
  id: anyId,
  tokens: fc.nat(9),
  finished: fc.nat(5).map((die) => die === 0),
  computed: fc.option(fc.nat(500), { freq: 2 }),
  cached: fc.integer({ min: -1, max: 40 }),
});

type Event =
  | { readonly kind: 'add'; readonly id: string; readonly prompt: number }
  | { readonly kind: 'abort'; readonly ids: readonly string[] }
  | { readonly kind: 'restart' }
  | { readonly kind: 'batch'; readonly batch: Batch };

const event: fc.Arbitrary<Event> = fc.oneof(
  { weight: 8, arbitrary: fc.record({ kind: fc.constant('add' as const), id: anyId, prompt: fc.nat(60) }) },
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant('abort' as const), ids: fc.array(anyId, { maxLength: 3 }) }),
  },
  { weight: 1, arbitrary: fc.constant({ kind: 'restart' as const }) },
  {
    weight: 12,
    arbitrary: fc.record({
      kind: fc.constant('batch' as const),
      batch: fc.record({
        engine: fc.constantFrom(0, 0, 0, 1, 7),
        rows: fc.array(row, { maxLength: 8 }),
        finishedRequests: fc.oneof(fc.constant([]), fc.array(anyId, { maxLength: 3 })),
        hasSchedulerStats: fc.boolean(),
      }),
    }),
  },
);

/** A row as the layout shows it. */
function shown(batch: Batch, layout: Layout): Batch {
  const rows = batch.rows.map((of) => ({
    ...of,
    computed: layout.stats === undefined ? null : of.computed,
    cached: layout.cached === undefined ? null : of.cached,
  }));
  return { ...batch, rows };
}

test('S1–S13: for any ADDs, ABORTs, batches and restarts, in any layout, the counts are those of the rules', (t) => {
  const globs = fc.constantFrom(['*'], ['*', '!no-*'], ['chatcmpl-*'], ['!*']);
  const events = fc.array(event, { minLength: 1, maxLength: 40 });
  const reached = {
    tracked: 0,
    adopted: 0,
    unknownEngineBatches: 0,
    untrackedBatches: 0,
    repeatedPrefillReports: 0,
  };
  const details = fc.check(
    fc.property(events, fc.constantFrom(...LAYOUTS), globs, (sequence, layout, filter) => {
      const selects = idFilter(filter);
      const real = new Counting(selects);
      const model = new CountingModel(KNOWN, selects);
      for (const of of sequence) {
        if (of.kind === 'add') {
          real.tracker.add(of.id, of.prompt);
          model.add(of.id, of.prompt);
        } else if (of.kind === 'abort') {
          for (const id of of.ids) real.tracker.close(id);
          for (const id of of.ids) model.end(id);
        } else if (of.kind === 'restart') {
          real.tracker.adoptUnknown();
          model.restart();
        } else {
          real.batch(of.batch, layout);
          model.batch(shown(of.batch, layout));
        }
      }
      same(t, real.counts, model.counts);
      for (const name of Object.keys(reached) as (keyof typeof reached)[])
        reached[name] += model.counts[name];
    }),
    budget(4, 4_000),
  );
  const all = isComplete(details);
  if (!all) return;
  for (const [name, count] of Object.entries(reached)) t.true(count > 20, `${name}: ${count}`);
});

test('for any order, finishes, returns and lengths of ids the places of the last batch find what a plain look-up finds', (t) => {
  const ids = Array.from(
    { length: 60 },
    (_, index) => `${index % 3 === 0 ? 'request' : 'r'}-${index}${'-'.repeat(index % 40)}`,
  );
  const step = fc.record({
    swaps: fc.array(fc.tuple(fc.nat(59), fc.nat(59)), { maxLength: 4 }),
    from: fc.nat(10),
    count: fc.nat(60),
    repeat: fc.option(fc.nat(59), { freq: 3 }),
    ended: fc.array(fc.nat(59), { maxLength: 4 }),
    added: fc.array(fc.nat(59), { maxLength: 4 }),
    /** Ended by the batch itself, right after they were found. */
    finishes: fc.array(fc.nat(59), { maxLength: 4 }),
  });
  fc.assert(
    fc.property(fc.array(step, { minLength: 2, maxLength: 8 }), (steps) => {
      const tracker = new RequestTracker('0', () => true);
      const batch = new OutputBatch(tracker);
      const listed = new ListedRow();
      for (const id of ids) tracker.add(id, 1);
      const order = [...ids];
      for (const { swaps, from, count, repeat, ended, added, finishes } of steps) {
        for (const [a, b] of swaps) [order[a], order[b]] = [order[b] as string, order[a] as string];
        for (const index of ended) tracker.close(ids[index] as string);
        for (const index of added) tracker.add(ids[index] as string, 1);
        const named = order.slice(from, from + count);
        if (repeat !== null) named.splice(repeat % (named.length + 1), 0, ids[repeat] as string);
        // Each id weighs another power of two, as far as there are bits, so that the sum tells which were found.
        const finishing = new Set(finishes.map((index) => ids[index] as string));
        const weights = named.map((_, index) => 1 + (index % 12) * 7);
        const rows = named.map((id, index) => [
          id,
          Array(weights[index]).fill(1),
          ...Array(3).fill(null),
          finishing.has(id) ? 0 : null,
        ]);
        const bytes = Buffer.from(encode([0, rows]));
        t.is(batch.read(bytes, 0, bytes.length), null);
        // A plain row is one of a request in flight that no row before it has finished.
        const plain = named.flatMap((id, index) =>
          tracker.find(id) !== undefined && !finishing.has(id) ? [weights[index] as number] : [],
        );
        t.is(
          batch.plainTokens,
          plain.reduce((sum, weight) => sum + weight, 0),
        );
        t.is(batch.listed, named.length - plain.length);
        for (let index = 0; index < batch.listed; index++) {
          batch.row(index, listed);
          const id = batch.idOf(listed);
          t.is(tracker.at(listed.slot), tracker.find(id), id);
          if (listed.finished) tracker.close(id);
        }
        bytes.fill(0);
      }
    }),
    budget(3, 3_000),
  );
});

test('a batch of ids in the order of the last one is found again without a look-up', (t) => {
  let lookups = 0;
  const tracker = new (class extends RequestTracker {
    override slotOf(id: string) {
      lookups++;
      return super.slotOf(id);
    }
  })('0', () => true);
  const ids = Array.from({ length: 256 }, (_, index) => `chatcmpl-${index}`);
  for (const id of ids) tracker.add(id, 1);
  const batch = new OutputBatch(tracker);
  const find = (of: readonly string[], finished?: string) => {
    const rows = of.map((id) => [id, [1], null, null, null, id === finished ? 0 : null]);
    const bytes = Buffer.from(encode([0, rows]));
    lookups = 0;
    batch.read(bytes, 0, bytes.length);
    t.is(batch.plainTokens, of.length - (finished === undefined ? 0 : 1));
    if (finished !== undefined) tracker.close(finished);
    return lookups;
  };
  t.is(find(ids), 256);
  t.is(find(ids), 0);
  for (const id of ids.slice(0, 100)) tracker.close(id);
  tracker.add('chatcmpl-new', 1);
  // One for the gap that the closed ones left, one for the new request.
  t.is(find([...ids.slice(100), 'chatcmpl-new']), 2);
  t.is(find([...ids.slice(100), 'chatcmpl-new']), 0);
  // One that a batch itself finishes leaves no gap.
  t.is(find(ids.slice(100), ids[150]), 0);
  t.is(find(ids.slice(100).filter((id) => id !== ids[150])), 0);
});

test('requests of two clients with the same ids are kept apart, and slots are used again', (t) => {
  const ids = ['chatcmpl-0001', 'x'.repeat(112), 'x'.repeat(113), 'x'.repeat(300)];
  const bytes = Buffer.from(encode([0, ids.map((id) => [id, [1, 2]])]));
  const [one, other] = ['0', '1'].map((client) => new RequestTracker(client, () => client === '0'));
  const reading = (tracker: RequestTracker | undefined) => {
    if (tracker === undefined) throw new Error('no tracker');
    const batch = new OutputBatch(tracker);
    batch.read(bytes, 0, bytes.length);
    batch.read(bytes, 0, bytes.length);
    return [batch.plainTokens, batch.plainUntracked, batch.listed];
  };
  for (const id of ids) one?.add(id, 1);
  t.deepEqual(reading(one), [4, 0, 2], 'two ids fit into a slot');
  t.deepEqual(reading(other), [0, 0, 4]);
  for (const id of ids) other?.add(id, 1);
  t.deepEqual(reading(other), [0, 2, 2]);
  const slots = ids.map((id) => one?.slotOf(id));
  for (const id of ids) one?.close(id);
  t.deepEqual(reading(one), [0, 0, 4]);
  t.deepEqual(reading(other), [0, 2, 2]);
  for (const id of ids) one?.add(id, 1);
  t.deepEqual(ids.map((id) => one?.slotOf(id)).sort(), slots.sort());
  one?.retire();
  t.deepEqual(reading(one), [0, 0, 4], 'they are found, but have no slots any more');
  t.not(one?.find('chatcmpl-0001'), undefined);
});

/**
 * The notation of semantics.md: `r1+3(100/28)!0` is 3 new tokens of r1, prefill computed 100, cached 28, finished
 * for reason 0.
 */
function rowsOf(text: string): Row[] {
  return text
    .split(' ')
    .filter(Boolean)
    .map((of) => {
      const match = /^(\w+)\+(\d+)(?:\((\d+)\/(\d+)\))?(!\d)?$/.exec(of);
      if (match === null) throw new Error(of);
      const [, id = '', tokens, computed, , finish] = match;
      return {
        id,
        tokens: Number(tokens),
        finished: finish !== undefined,
        computed: computed === undefined ? null : Number(computed),
        cached: null,
      };
    });
}

/** Each step is a batch of engine 0, or `ADD id`, `ABORT id`, `fin id` (an empty batch), `engine n: batch`. */
function check(
  t: ExecutionContext,
  name: string,
  steps: readonly string[],
  expected: readonly number[],
  tracked: number,
) {
  const counting = new Counting(() => true);
  for (const step of steps) {
    const [, verb, rest = ''] = /^(ADD|ABORT|fin)? ?(.*)$/.exec(step) ?? [];
    const ids = rest.split(' ').filter(Boolean);
    if (verb === 'ADD') for (const id of ids) counting.tracker.add(id, 50);
    else if (verb === 'ABORT') for (const id of ids) counting.tracker.close(id);
    else {
      const [, engine = '0', rows = '', finished = ''] =
        /^(?:engine (\d+): )?(.*?)(?: ?fin (.*))?$/.exec(step) ?? [];
      const batch = {
        rows: rowsOf(rows),
        finishedRequests: finished.split(' ').filter(Boolean),
        hasSchedulerStats: true,
      };
      counting.batch({ engine: Number(engine), ...batch }, V0_32);
    }
  }
  t.deepEqual(
    counting.observations.map(([, tokens]) => tokens),
    [...expected],
    name,
  );
  t.is(counting.tracker.trackedCount, tracked, `${name}: tracked`);
}

test('T1–T26: the cases of one client, as the table has them', (t) => {
  const many = Array.from({ length: 256 }, (_, index) => `m${index}`);
  check(t, 'T1', ['ADD r1', 'r1+3(100/28) r9+5'], [103], 1);
  check(t, 'T2', ['ADD r1 r2', 'r1+3(100/28) r2+1'], [104], 2);
  check(t, 'T3', ['ADD r1 r2 r3', 'r1+4 r2+1 r3+3'], [8], 3);
  check(t, 'T4', [`ADD ${many.join(' ')}`, many.map((id) => `${id}+1`).join(' ')], [256], 256);
  check(t, 'T6', ['ADD r1', '', '', 'r1+1(10/0)', 'r1+1!1'], [11, 1], 0);
  const eight = many.slice(0, 8);
  const computed = eight.map((id, index) => `${id}+1(${index === 0 ? 311 : 7}/0)`);
  check(t, 'T7', [`ADD ${eight.join(' ')}`, computed.join(' ')], [368], 8);
  check(t, 'T8', ['ADD p1', 'p1+0(512/0)!0', 'p1+1'], [512, 0], 0);
  check(t, 'T10', ['ADD r1 r2', 'ABORT r1', 'r1+4 r2+1'], [1], 1);
  check(t, 'T12', ['x+7 y+2(9/0)'], [0], 0);
  check(t, 'T13', ['ADD r1', ''], [], 1);
  check(t, 'T14', ['ADD r1 r2', ' fin r1', 'r1+2 r2+1'], [1], 1);
  check(t, 'T15', ['ADD r1', 'r1+2!0 r1+3'], [2], 0);
  check(t, 'T15', ['ADD r1', 'r1+2 r1+3!0'], [5], 0);
  check(t, 'T16', ['ADD r1', 'r1+2 fin r1', 'r1+1'], [2, 0], 0);
  check(t, 'T17', ['ADD r1', 'engine 7: r1+2!0', 'r1+1'], [0], 0);
  check(t, 'T18', ['ADD a b', 'engine 0: a+3', 'engine 1: b+5'], [3, 5], 2);
  check(t, 'T26', ['ADD r1', 'r1+1(10/0)', 'ADD r1', 'r1+1'], [11, 1], 1);
});

test('S13: an id from before the restart is adopted once; one that ended since is not', (t) => {
  const tracker = new RequestTracker('0', (id) => id !== 'left out');
  t.is(tracker.find('old'), undefined);
  tracker.adoptUnknown();
  tracker.close('aborted');
  t.is(tracker.find('aborted'), undefined);
  const old = tracker.find('old');
  t.not(old, undefined);
  t.is(tracker.find('old'), old);
  t.is(tracker.adoptedCount, 1);
  tracker.close('old');
  t.is(tracker.find('old'), undefined);
  t.false(tracker.find('left out')?.selected);
  t.deepEqual(
    [tracker.adoptedCount, tracker.trackedCount],
    [1, 0],
    'what the filter leaves out is not tracked',
  );
});

test('S13: the ids that ended are forgotten, oldest first, so that they take no end of memory', (t) => {
  const tracker = new RequestTracker('0', () => true);
  tracker.adoptUnknown();
  for (let index = 0; index <= 65_536; index++) tracker.close(`r${index}`);
  t.is(tracker.find('r1'), undefined);
  t.is(tracker.find('r65536'), undefined);
  t.not(tracker.find('r0'), undefined);
});

test('T24: counts that are no counts are reported, and 0', (t) => {
  const telemetry = new Telemetry();
  const observations: number[] = [];
  const observer = {
    addEngine: () => undefined,
    observe: (_: number, tokens: number) => void observations.push(tokens),
  };
  const engines = new Engines(observer, () => undefined);
  engines.add(0);
  const tracker = new RequestTracker('0', () => true);
  tracker.add('r1', 1);
  const counter = new StepCounter(tracker, engines, observer, telemetry);
  const batch = new OutputBatch();
  for (const count of [-5, 3.5, '7', 2n ** 53n + 1n, null, 3]) {
    const elements: unknown[] = [
      'r1',
      [1, 2],
      ...Array(8).fill(null),
      { num_computed_tokens: count, more: [1] },
    ];
    const bytes = Buffer.from(encode([0, [elements]], { useBigInt64: true }));
    t.is(batch.read(bytes, 0, bytes.length), null);
    counter.count(batch);
  }
  t.deepEqual(observations, [2, 2, 2, 2, 2, 5]);
  t.is(telemetry.get('decode_errors_total', { kind: 'outputs', reason: 'invalid_count' }), 5);
});
