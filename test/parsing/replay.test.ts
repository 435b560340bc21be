import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import test, { type ExecutionContext } from 'ava';
import { SteptapError } from '../../proxy/errors.js';
import { replay } from '../../proxy/replay.js';
import { parsePrometheusText } from '../support/prometheus-text.js';

const NAME = 'vllm:iteration_tokens_total';
const FIXTURES = fileURLToPath(new URL('../../../test/fixtures/', import.meta.url));
const captures = readdirSync(FIXTURES).filter((file) => file.endsWith('.jsonl'));
const files = new Set(readdirSync(FIXTURES));

/** What the frontend served or another program computed. */
function truth(capture: string): { kind: string; samples: Map<string, number> } {
  const base = capture.replace(/\.jsonl$/, '');
  const kind = files.has(`${base}.metrics.txt`) ? 'metrics' : 'reference';
  // The reference of rust-0.22.1 lacks the model name on sum and count.
  const text = readFileSync(path.join(FIXTURES, `${base}.${kind}.txt`), 'utf8').replaceAll(
    /\{(engine="\d+")\}/g,
    '{$1,model_name="tiny"}',
  );
  const samples = new Map(
    [...parsePrometheusText(text)].filter(
      ([key]) => key.startsWith(NAME) && !key.startsWith(`${NAME}_created`),
    ),
  );
  return { kind, samples };
}

/** The order of samples is the exporter's own. */
function sorted(samples: ReadonlyMap<string, number>): [string, number][] {
  return [...samples].sort(([a], [b]) => (a < b ? -1 : 1));
}

test('there is a capture of every kind', (t) => {
  t.true(captures.length >= 6, captures.join());
  t.is(new Set(captures.map((capture) => truth(capture).kind)).size, 2, 'served and computed');
});

for (const capture of captures) {
  test(`${capture} replays to the numbers beside it, sample by sample`, async (t) => {
    const { samples } = truth(capture);
    t.true(samples.size >= 16);
    const { histogram, telemetry, messages } = await replay(path.join(FIXTURES, capture), 'tiny');
    t.deepEqual(sorted(parsePrometheusText(await histogram.renderText())), sorted(samples));
    const lines = readFileSync(path.join(FIXTURES, capture), 'utf8').trimEnd().split('\n');
    t.is(messages, lines.length);
    for (const family of [
      'decode_errors_total',
      'unknown_engine_batches_total',
      'repeated_prefill_reports_total',
    ] as const) {
      for (const { labels, value } of telemetry.samples(family))
        t.is(value, 0, `${family} ${JSON.stringify(labels)}`);
    }
  });
}

async function withCapture<T>(text: string, use: (file: string) => Promise<T>): Promise<T> {
  const dir = mkdtempSync(path.join(tmpdir(), 'steptap-replay-'));
  try {
    const file = path.join(dir, 'capture.jsonl');
    writeFileSync(file, text);
    return await use(file);
  } finally {
    rmSync(dir, { recursive: true });
  }
}

async function refused(t: ExecutionContext, file: string): Promise<string> {
  const error = await t.throwsAsync(replay(file, 'm'), { instanceOf: SteptapError, code: 'STEPTAP_CAPTURE' });
  return error?.message ?? '';
}

const GOOD = '{"t":1,"dir":"hs-up","eng":0,"cli":0,"frames":[""]}';

test('a line that is no captured message is named with file and line', async (t) => {
  const bad = [
    '{"t":1,"dir":"out","eng":0,"cli":0,"frames":["kwA',
    'plain text',
    'null',
    '[]',
    '{}',
    '{"t":1,"dir":1,"eng":0,"cli":0,"frames":[]}',
    '{"t":1,"dir":"out","eng":-1,"cli":0,"frames":[]}',
    '{"t":1,"dir":"out","eng":65536,"cli":0,"frames":[]}',
    '{"t":1,"dir":"out","eng":0.5,"cli":0,"frames":[]}',
    '{"t":1,"dir":"out","eng":0,"cli":"0","frames":[]}',
    '{"t":1,"dir":"out","eng":0,"cli":0,"frames":"kwA="}',
    '{"t":1,"dir":"out","eng":0,"cli":0,"frames":[1]}',
    '{"t":1,"dir":"out","eng":0,"cli":0,"frames":[null]}',
  ];
  for (const line of bad) {
    await withCapture(`${GOOD}\n\n${GOOD}\n${line}\n${GOOD}\n`, async (file) => {
      const message = await refused(t, file);
      t.true(message.startsWith(`${file}, line 4: `), `${line}: ${message}`);
    });
  }
});

test('a file that is not there and one that can not be read are named', async (t) => {
  await withCapture('', async (file) => {
    t.regex(await refused(t, `${file}.not-there`), /capture\.jsonl\.not-there: .*ENOENT/);
    t.regex(await refused(t, path.dirname(file)), /steptap-replay-\w+: .*EISDIR/);
  });
});

test('empty lines, Windows line ends and a last line without an end are no errors', async (t) => {
  await withCapture(`\r\n${GOOD}\r\n\r\n${GOOD}`, async (file) => {
    const { messages, histogram } = await replay(file, 'm');
    t.is(messages, 2);
    t.deepEqual(
      histogram.totals().map(({ engine, count }) => [engine, count]),
      [[0, 0]],
    );
  });
});

test('an empty capture replays to nothing', async (t) => {
  await withCapture('', async (file) => {
    const { messages, histogram } = await replay(file, 'm');
    t.is(messages, 0);
    t.deepEqual(histogram.totals(), []);
  });
});
