/** Whatever cuts and delays the bytes: they arrive as they were sent, and are counted the same. */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import test, { type ExecutionContext } from 'ava';
import { eventually } from '../support/in-process.js';
import { parsePrometheusText } from '../support/prometheus-text.js';
import type { Toxics } from '../support/toxic-relay.js';
import { type Rig, startRig, WAYS } from '../support/toxic-rig.js';
import type { RawEngine } from '../support/toxic-vllm.js';

interface Recorded {
  readonly dir: string;
  readonly eng: number;
  readonly frames: readonly string[];
}

const FIXTURES = fileURLToPath(new URL('../../../test/fixtures/', import.meta.url));

/** Traffic of a real frontend, and what that frontend (or the same rule in another program) counted. */
interface Recording {
  readonly engines: number;
  readonly messages: readonly Recorded[];
  readonly counted: ReadonlyMap<string, number>;
}

function readRecording(name: string, counted: string, engines: number): Recording {
  const messages = readFileSync(`${FIXTURES}${name}.jsonl`, 'utf8')
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Recorded)
    .filter(({ dir }) => dir === 'in' || dir === 'out');
  const samples = parsePrometheusText(readFileSync(`${FIXTURES}${counted}`, 'utf8'));
  const named = [...samples].map(([series, value]) => [withModel(series), value] as const);
  return { engines, messages, counted: new Map(named) };
}

const TWO_ENGINES = readRecording('rust-0.33.0-dp2', 'rust-0.33.0-dp2.metrics.txt', 2);
/** 38 KB: a byte costs a turn of the event loop. */
const SMALL = readRecording('rust-0.22.1', 'rust-0.22.1.reference.txt', 1);

const ARRIVAL_MS = 60_000;

const CUTS: readonly {
  readonly name: string;
  readonly recording: Recording;
  readonly toxics: Partial<Toxics>;
}[] = [
  { name: 'cut into single bytes', recording: SMALL, toxics: { slice: () => 1 } },
  { name: 'cut anywhere', recording: TWO_ENGINES, toxics: { slice: anywhere } },
  { name: 'delayed piece by piece', recording: TWO_ENGINES, toxics: { delay: 1, slice: () => 4096 } },
];

for (const way of WAYS) {
  for (const { name, recording, toxics } of CUTS) {
    test(`bytes ${name} before and behind steptap arrive unchanged and are counted the same (${way})`, async (t) => {
      const rig = await startRig(t, way, { engineSide: toxics, frontendSide: toxics });
      await replay(t, rig, recording);
      if (recording !== SMALL) return;
      const outputs = rig.frontend.peers.outputs[0]?.received;
      t.is(outputs?.chunks, outputs?.bytes, 'one byte at a time');
    });
  }
}

test('a stop of both neighbours for a while delays the bytes and changes none of them', async (t) => {
  const rig = await startRig(t, 'directory', { engineSide: {}, frontendSide: {} });
  const stopAndGo = setInterval(() => {
    const areStopped = rig.relays[0]?.toxics.stopped === true;
    for (const relay of rig.relays) areStopped ? relay.go() : relay.stop();
  }, 100);
  t.teardown(() => clearInterval(stopAndGo));
  await replay(t, rig, TWO_ENGINES);
});

/** A request waits for the outputs before it and the outputs for the request, so that all is seen in this order. */
async function replay(t: ExecutionContext, rig: Rig, recording: Recording): Promise<void> {
  const engines: RawEngine[] = [];
  while (engines.length < recording.engines) engines.push(await rig.join(engines.length));
  await eventually('registration', () => rig.frontend.registrations === engines.length, ARRIVAL_MS);
  const expected: number[] = [];
  let outputs = 0;
  for (const { dir, eng, frames } of recording.messages) {
    const engine = engines[eng] as RawEngine;
    const bytes = frames.map((frame) => Buffer.from(frame, 'base64'));
    if (dir === 'in') {
      await eventually('outputs at the frontend', () => rig.frontend.batches.length === outputs, ARRIVAL_MS);
      rig.frontend.peers.requests[eng]?.send(...bytes);
      const count = (expected[eng] ?? 0) + 1;
      expected[eng] = count;
      await eventually('request at its engine', () => engine.requests.messages === count, ARRIVAL_MS);
    } else {
      engine.outputs.send(...bytes);
      outputs++;
    }
  }
  await compare(t, rig, engines, recording.counted);
}

async function compare(
  t: ExecutionContext,
  { frontend, sidecar }: Rig,
  engines: readonly RawEngine[],
  counted: ReadonlyMap<string, number>,
): Promise<void> {
  for (const [index, engine] of engines.entries()) {
    for (const purpose of ['requests', 'outputs'] as const) {
      const ours = engine.peers[purpose];
      const theirs = frontend.peers[purpose][index];
      if (theirs === undefined) throw new Error(`no connection for ${purpose} of engine ${index}`);
      await eventually(
        'all bytes there',
        () => theirs.received.bytes === ours.sent.bytes && ours.received.bytes === theirs.sent.bytes,
        ARRIVAL_MS,
      );
      t.is(theirs.received.digest, ours.sent.digest, `${purpose} of engine ${index}, to the frontend`);
      t.is(ours.received.digest, theirs.sent.digest, `${purpose} of engine ${index}, to the engine`);
    }
  }
  const samples = await sidecar.samples();
  for (const [series, value] of counted) t.is(samples.get(series), value, series);
  t.deepEqual(
    [...samples].filter(
      ([series, value]) => /_(decode_errors|opaque_connections)_total/.test(series) && value > 0,
    ),
    [],
  );
}

/** A reference has no `model_name`. */
function withModel(series: string): string {
  return series.includes('model_name=') ? series : series.replace(/}$/, ',model_name="tiny"}');
}

/** Some 300 bytes on average, most pieces small; the same in every run. */
function anywhere(offset: number): number {
  const random = ((Math.imul(offset + 1, 0x9e37_79b1) >>> 0) / 0x1_0000_0000) ** 4;
  return Math.ceil(random * 1500);
}
