import test from 'ava';
import { parsePrometheusText, seriesKey } from '../support/prometheus-text.js';

test('reads names, labels in any order, values, timestamps and exemplars', (t) => {
  const samples = parsePrometheusText(
    [
      '# HELP a_total what it is',
      '# TYPE a_total counter',
      'a_total 3',
      'b{y="2",x="1"} 4.5 1700000000000',
      'c_bucket{le="+Inf",} 7 # {trace="1"} 0.5 1.5',
      'd -Inf',
      'e 1.7961922336927195e+09',
      '',
      '# EOF',
    ].join('\n'),
  );
  t.deepEqual(
    [...samples],
    [
      ['a_total', 3],
      ['b{x="1",y="2"}', 4.5],
      ['c_bucket{le="+Inf"}', 7],
      ['d', Number.NEGATIVE_INFINITY],
      ['e', 1796192233.6927195],
    ],
  );
});

test('undoes the three escapes, and only these', (t) => {
  const samples = parsePrometheusText(String.raw`m{name="a\"b\\n\nc} ü"} NaN`);
  t.deepEqual([...samples], [[seriesKey('m', { name: 'a"b\\n\nc} ü' }), Number.NaN]]);
  t.throws(() => parsePrometheusText(String.raw`m{name="\t"} 1`), { message: /^line 1: bad label/ });
});

test('refuses a broken line, naming its number', (t) => {
  const broken: [line: string, what: string][] = [
    ['{x="1"} 1', 'no metric name'],
    ['m', 'no value'],
    ['m one', 'bad value'],
    ['m{x="1" 1', 'bad label'],
    ['m{x="1",x="2"} 1', 'label x twice'],
    ['ok 2', 'series twice'],
  ];
  for (const [line, what] of broken) {
    t.throws(() => parsePrometheusText(`ok 1\n${line}`), { message: `line 2: ${what}: ${line}` });
  }
});
