/**
 * node dist/test/bench/walker.js
 *
 * Time per batch in one process, without sockets: steptap's walker alone, walker with tracking and counting, and
 * @msgpack/msgpack with the plainest count there is. Ids of 22 bytes (Rust frontend; 256 outputs are 12 KB) and of
 * 48 bytes (Python frontend).
 */
import { decode } from '@msgpack/msgpack';
import { Engines } from '../../proxy/engines.js';
import { StepCounter } from '../../proxy/step-counter.js';
import { Telemetry } from '../../proxy/telemetry.js';
import { RequestTracker } from '../../proxy/tracking.js';
import { OutputBatch } from '../../proxy/vllm/output-batch.js';
import { outputBatch, requestId } from './messages.js';
import { machine, table } from './report.js';

const rounds = 15;
const roundMillis = 50;
/** Different steps before the same bytes come again. */
const steps = 16;

interface Load {
  readonly name: string;
  readonly ids: readonly string[];
  readonly frames: readonly Buffer[];
}

const loads = [1, 16, 256].flatMap((size) => [
  load(`${size}, ids of 22 bytes`, shortIds(size)),
  load(`${size}, ids of 48 bytes`, longIds(size)),
]);
loads.push(load('256, with logprobs', longIds(256), { withLogprobs: true }));
loads.push(load('256, other ids each time', longIds(512), { alternate: true }));

const rows = loads.map((each) => {
  const walk = measure(each.frames, walkOnly());
  const count = measure(each.frames, walkAndCount(each.ids));
  const library = measure(each.frames, decodeAndCount(each.ids));
  const bytes = each.frames[0]?.length ?? 0;
  return [
    each.name,
    String(bytes),
    walk.toFixed(2),
    count.toFixed(2),
    library.toFixed(2),
    (library / count).toFixed(1),
  ];
});
console.log(machine());
console.log(`\nMicroseconds per batch, best of ${rounds} rounds of ${roundMillis} ms.\n`);
console.log(
  table(['outputs', 'bytes', 'walk', 'walk and count', '@msgpack/msgpack and count', 'times'], rows),
);

/** One function is compiled for all loads, as it is in steptap, where all of them flow. */
function walkOnly(): (frame: Buffer) => void {
  const batch = new OutputBatch();
  return (frame) => {
    if (batch.read(frame, 0, frame.length) !== null) throw new Error('the walker does not read this batch');
  };
}

function walkAndCount(ids: readonly string[]): (frame: Buffer) => void {
  const tracker = new RequestTracker('0', () => true);
  const batch = new OutputBatch(tracker);
  for (const id of ids) tracker.add(id, 15);
  let tokens = 0;
  const observer = {
    addEngine: () => {},
    observe: (_engine: number, count: number) => {
      tokens += count;
    },
  };
  const engines = new Engines(observer, () => {});
  engines.add(0);
  const counter = new StepCounter(tracker, engines, observer, new Telemetry());
  return (frame) => {
    const before = tokens;
    if (batch.read(frame, 0, frame.length) !== null) throw new Error('the walker does not read this batch');
    counter.count(batch);
    if (tokens - before !== batch.length) throw new Error('not one token for each output');
  };
}

function decodeAndCount(ids: readonly string[]): (frame: Buffer) => void {
  const tracked = new Set(ids);
  return (frame) => {
    let tokens = 0;
    const [, outputs] = decode(frame) as [number, [string, number[]][]];
    for (const [id, newTokens] of outputs) if (tracked.has(id)) tokens += newTokens.length;
    if (tokens !== outputs.length) throw new Error('not one token for each output');
  };
}

/** Microseconds per call in the best round: whatever else runs on the machine only makes a round longer. */
function measure(frames: readonly Buffer[], run: (frame: Buffer) => void): number {
  const times = Array.from({ length: rounds + 1 }, () => {
    const start = performance.now();
    let calls = 0;
    while (performance.now() - start < roundMillis) {
      for (const frame of frames) run(frame);
      calls += frames.length;
    }
    return ((performance.now() - start) / calls) * 1000;
  });
  return Math.min(...times.slice(1));
}

function load(name: string, ids: readonly string[], { withLogprobs = false, alternate = false } = {}): Load {
  const half = ids.length / 2;
  const frames = Array.from({ length: steps }, (_, step) => {
    const inBatch = alternate ? ids.slice((step % 2) * half, (step % 2) * half + half) : ids;
    const [frame] = outputBatch({ ids: inBatch, engine: 0, step, withLogprobs }).frames;
    return Buffer.from(frame ?? []);
  });
  return { name, ids, frames };
}

function longIds(size: number): string[] {
  return Array.from({ length: size }, (_, index) => requestId(0, index));
}

/** As the Rust frontend makes them: `cmpl-<8 hex>-<8 hex>`. */
function shortIds(size: number): string[] {
  return longIds(size).map((id) => `cmpl-${id.slice(5, 13)}-${id.slice(13, 21)}`);
}
