import test from 'ava';
import { compare, compareLoosely, ruleFor, type Samples } from './comparison.js';

/** One engine: observations of `values` tokens each. */
function series(values: readonly number[], more: Readonly<Record<string, number>> = {}): Samples {
  const labels = 'engine="0",model_name="tiny"';
  const name = 'vllm:iteration_tokens_total';
  const bucket = (bound: number, le: string): [string, number] => [
    `${name}_bucket{engine="0",le="${le}",model_name="tiny"}`,
    values.filter((value) => value <= bound).length,
  ];
  return new Map([
    bucket(1, '1.0'),
    bucket(8, '8.0'),
    bucket(Number.POSITIVE_INFINITY, '+Inf'),
    [`${name}_count{${labels}}`, values.length],
    [`${name}_sum{${labels}}`, values.reduce((sum, value) => sum + value, 0)],
    ...Object.entries(more),
  ]);
}

test('equal series agree, and one sample that differs is named with both values', (t) => {
  t.deepEqual(compare('exact', series([1, 9]), series([1, 9])), []);
  const problems = compare('exact', series([1, 9]), series([1, 8]));
  t.is(problems.length, 2);
  t.regex(problems.join(), /le="8.0".*steptap 1, frontend 2/);
});

test('a series that only one side has is a difference, and so is none at all', (t) => {
  t.not(compare('exact', series([1]), new Map()).length, 0);
  t.deepEqual(compare('exact', new Map(), new Map()), ['neither side has the series']);
});

test('a frontend of whole prompts differs by its prefix cache hits and by nothing else', (t) => {
  const hits = { 'vllm:prefix_cache_hits_total{engine="0"}': 6 };
  t.deepEqual(compare('whole-prompt', series([1, 3]), series([1, 9], hits)), []);
  t.not(compare('whole-prompt', series([1, 3]), series([1, 10], hits)).length, 0);
  t.not(compare('whole-prompt', series([1, 3]), series([1, 9])).length, 0);
});

test('a frontend without the series is held against its token counters', (t) => {
  const counters = new Map([
    ['vllm:prompt_tokens_total{engine="0"}', 10],
    ['vllm:generation_tokens_total{engine="0"}', 4],
    ['vllm:prefix_cache_hits_total{engine="0"}', 3],
  ]);
  t.deepEqual(compare('tokens', series([8, 3]), counters), []);
  t.not(compare('tokens', series([8, 4]), counters).length, 0);
});

test('with cancelled requests steptap may count more, up to what these had left, but no step more or fewer', (t) => {
  t.deepEqual(compareLoosely('exact', series([2, 9]), series([1, 9]), 5), []);
  t.not(compareLoosely('exact', series([7, 9]), series([1, 9]), 5).length, 0, 'more than was left');
  t.not(compareLoosely('exact', series([1, 8]), series([1, 9]), 5).length, 0, 'less than the frontend');
  t.not(compareLoosely('exact', series([1, 9, 0]), series([1, 9]), 5).length, 0, 'another number of steps');
});

test('the rule follows the frontend and its version', (t) => {
  t.is(ruleFor('python', '0.22.1'), 'whole-prompt');
  t.is(ruleFor('python', '0.23.0'), 'exact');
  t.is(ruleFor('rust', '0.29.0'), 'tokens');
  t.is(ruleFor('rust', '0.30.0'), 'exact');
});
