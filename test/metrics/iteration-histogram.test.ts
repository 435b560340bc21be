import { readdirSync, readFileSync } from 'node:fs';
import test from 'ava';
import fc from 'fast-check';
import { IterationHistogram } from '../../metrics/iteration-histogram.js';
import { parsePrometheusText, seriesKey } from '../support/prometheus-text.js';

const NAME = 'vllm:iteration_tokens_total';
const LE = '1.0 8.0 16.0 32.0 64.0 128.0 256.0 512.0 1024.0 2048.0 4096.0 8192.0 16384.0 +Inf'.split(' ');

function named(modelName: string, ...engines: number[]): IterationHistogram {
  const histogram = new IterationHistogram();
  histogram.modelName = modelName;
  for (const engine of engines) histogram.addEngine(engine);
  return histogram;
}

async function samplesOf(histogram: IterationHistogram): Promise<Map<string, number>> {
  return parsePrometheusText(await histogram.renderText());
}

/** What the definition of a histogram says, word by word. */
function modelSamples(model_name: string, observed: ReadonlyMap<number, readonly number[]>) {
  const samples = new Map<string, number>();
  for (const [engine, values] of observed) {
    const labels = { model_name, engine: String(engine) };
    for (const le of LE) {
      const bound = le === '+Inf' ? Number.POSITIVE_INFINITY : Number(le);
      const count = values.filter((value) => value <= bound).length;
      samples.set(seriesKey(`${NAME}_bucket`, { le, ...labels }), count);
    }
    samples.set(
      seriesKey(`${NAME}_sum`, labels),
      values.reduce((sum, value) => sum + value, 0),
    );
    samples.set(seriesKey(`${NAME}_count`, labels), values.length);
  }
  return samples;
}

test('every known engine stands at zero before its first batch: 14 buckets, sum and count', async (t) => {
  const samples = await samplesOf(named('tiny', 0, 3));
  t.is(samples.size, 2 * 16);
  t.deepEqual(
    samples,
    modelSamples(
      'tiny',
      new Map([
        [0, []],
        [3, []],
      ]),
    ),
  );
});

test('the text is what vLLM prints: its name, its help, its bounds as floats, labels in its order', async (t) => {
  const histogram = named('tiny', 0);
  histogram.observe(0, 103);
  const lines = (await histogram.renderText()).trimEnd().split('\n');
  t.deepEqual(lines.slice(0, 3), [
    `# HELP ${NAME} Histogram of number of tokens per engine_step.`,
    `# TYPE ${NAME} histogram`,
    `${NAME}_bucket{le="1.0",model_name="tiny",engine="0"} 0`,
  ]);
  t.deepEqual(lines.slice(-3), [
    `${NAME}_bucket{le="+Inf",model_name="tiny",engine="0"} 1`,
    `${NAME}_sum{model_name="tiny",engine="0"} 103`,
    `${NAME}_count{model_name="tiny",engine="0"} 1`,
  ]);
});

test('a value on a bound belongs to its bucket, one above to the next', (t) => {
  for (const [index, le] of LE.slice(0, -1).entries()) {
    const histogram = named('m', 0);
    histogram.observe(0, Number(le));
    histogram.observe(0, Number(le) + 1);
    const buckets = histogram.totals()[0]?.buckets;
    t.deepEqual([buckets?.[index - 1] ?? 0, buckets?.[index], buckets?.[index + 1]], [0, 1, 2], le);
  }
});

test('any sequence of observations over engines equals a naive histogram', async (t) => {
  const tokens = fc.oneof(
    fc.nat(20),
    fc.nat(40_000),
    fc.constantFrom(...LE.slice(0, -1).flatMap((le) => [Number(le) - 1, Number(le), Number(le) + 1])),
  );
  const step = fc.tuple(fc.constantFrom(0, 1, 7, 300), tokens);
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 200 }), async (steps) => {
      const histogram = named('m', 300, 0, 7);
      const observed = new Map<number, number[]>([
        [0, []],
        [7, []],
        [300, []],
      ]);
      for (const [engine, value] of steps) {
        histogram.observe(engine, value);
        observed.get(engine)?.push(value); // engine 1 is unknown
      }
      t.deepEqual(await samplesOf(histogram), modelSamples('m', observed));
    }),
    { interruptAfterTimeLimit: 5_000, numRuns: 200 },
  );
});

test('an unknown engine, whatever its index, is neither observed nor made known', (t) => {
  const histogram = named('m', 2);
  for (const engine of [0, 1, 3, 65_535, 65_536, 2 ** 40, -1, 0.5, Number.NaN]) {
    t.false(histogram.hasEngine(engine));
    histogram.observe(engine, 5);
  }
  t.true(histogram.hasEngine(2));
  t.deepEqual(
    histogram.totals().map(({ engine, count }) => [engine, count]),
    [[2, 0]],
  );
});

test('an engine index is two bytes: 65535 is one, anything else is refused', (t) => {
  const histogram = named('m', 65_535);
  histogram.observe(65_535, 9);
  t.is(histogram.totals()[0]?.sum, 9);
  for (const index of [-1, 65_536, 1.5, Number.NaN]) {
    t.throws(() => histogram.addEngine(index), { instanceOf: RangeError });
  }
});

test('an engine that is added again keeps its counts', (t) => {
  const histogram = named('m', 0);
  histogram.observe(0, 11);
  histogram.addEngine(0);
  t.is(histogram.totals()[0]?.sum, 11);
});

test('without a model name the series are held back but counted, and appear with it', async (t) => {
  const histogram = new IterationHistogram();
  histogram.addEngine(0);
  histogram.observe(0, 40);
  t.regex(await histogram.renderText(), /^# HELP .*\n# TYPE .*\n$/);
  histogram.modelName = 'late';
  t.deepEqual(await samplesOf(histogram), modelSamples('late', new Map([[0, [40]]])));
});

test('a model name with quotes, backslashes, newlines and UTF-8 is escaped', async (t) => {
  const hard = 'a"b\\c\nd/ü模\\n';
  const text = await named(hard, 0).renderText();
  t.true(text.includes(String.raw`model_name="a\"b\\c\nd/ü模\\n"`));
  t.deepEqual(parsePrometheusText(text), modelSamples(hard, new Map([[0, []]])));
});

test('the JSON form carries the same numbers', (t) => {
  const histogram = named('m', 1);
  histogram.observe(1, 8);
  histogram.observe(1, 20_000);
  const json = JSON.parse(JSON.stringify(histogram));
  t.is(json.name, NAME);
  t.is(json.model_name, 'm');
  t.is(json.engines.length, 1);
  t.like(json.engines[0], { engine: 1, count: 2, sum: 20_008 });
  t.deepEqual(Object.keys(json.engines[0].buckets), LE);
  t.like(json.engines[0].buckets, { '1.0': 0, '8.0': 1, '16384.0': 1, '+Inf': 2 });
});

test('every series that a real frontend has served is one that we would print', async (t) => {
  const ours = new Set((await samplesOf(named('tiny', 0, 1))).keys());
  const files = readdirSync('test/fixtures').filter((file) => file.endsWith('.metrics.txt'));
  t.true(files.length > 0);
  for (const file of files) {
    for (const key of parsePrometheusText(readFileSync(`test/fixtures/${file}`, 'utf8')).keys()) {
      if (!key.startsWith(`${NAME}_created`)) t.true(ours.has(key), `${file}: ${key}`);
    }
  }
});
