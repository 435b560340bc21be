import { encode } from '@msgpack/msgpack';
import test from 'ava';
import fc from 'fast-check';
import pino from 'pino';
import { Flow } from '../../proxy/flow.js';
import { Frontend } from '../../proxy/frontend.js';
import { OutputsReader } from '../../proxy/outputs-reader.js';
import { AddAbortReader, RegistrationReader } from '../../proxy/requests-reader.js';
import { Telemetry } from '../../proxy/telemetry.js';
import { FrameCutter, type FrameSink } from '../../proxy/zmtp/frame-cutter.js';
import { budget } from './budget.js';
import { chunkSizes, chunksOf, frameBytes, greeting } from './zmtp-stream.js';

const MAX_FRAME_BYTES = 4_096;
const [ADD, ABORT, UTILITY] = [Buffer.of(0), Buffer.of(1), Buffer.of(3)];

function pack(value: unknown): Buffer {
  return Buffer.from(encode(value));
}

function messageBytes(frames: readonly Buffer[]): Buffer {
  const last = frames.length - 1;
  return Buffer.concat(
    frames.map((body, index) => frameBytes({ kind: 'message', body, long: false, more: index < last })),
  );
}

/** Both data connections of one engine and one client, as streams of bytes. */
class Connections {
  readonly telemetry = new Telemetry();
  readonly observations: number[] = [];
  readonly flow = new Flow('to_frontend');
  readonly frontend: Frontend;
  readonly requests: FrameCutter;
  readonly outputs: FrameCutter;

  constructor() {
    this.frontend = new Frontend({
      observer: { addEngine: () => undefined, observe: (_, tokens) => void this.observations.push(tokens) },
      telemetry: this.telemetry,
      logger: pino({ level: 'silent' }),
      selects: () => true,
      onInit: async () => null,
      onChange: () => undefined,
    });
    this.frontend.engines.add(0);
    const ignore = () => undefined;
    const tracker = this.frontend.tracker('0');
    const { telemetry, frontend } = this;
    const down = new AddAbortReader(
      new Flow('to_engine'),
      ignore,
      tracker,
      telemetry,
      MAX_FRAME_BYTES,
      ignore,
    );
    const up = new OutputsReader(this.flow, ignore, frontend, '0', telemetry, MAX_FRAME_BYTES, ignore);
    this.requests = started(down);
    this.outputs = started(up);
  }

  send(...frames: Buffer[]): void {
    this.requests.push(messageBytes(frames));
  }

  answer(...frames: Buffer[]): void {
    this.outputs.push(messageBytes(frames));
  }

  errors(kind: 'outputs' | 'requests', reason: string): number {
    return this.telemetry.get('decode_errors_total', { kind, reason });
  }

  get tracked(): number {
    return this.frontend.tracker('0').trackedCount;
  }
}

function started(sink: FrameSink): FrameCutter {
  const cutter = new FrameCutter(sink);
  cutter.push(greeting());
  return cutter;
}

const NILS = Array(15).fill(null);
const batch = (...outputs: unknown[]) => pack([0, outputs, null, 1.5]);

test('T21: garbage on an output connection is a decode error by its kind, and what follows is counted', (t) => {
  const connections = new Connections();
  connections.send(ADD, pack(['r1', [1, 2]]));
  const garbage: [string, Buffer][] = [
    ['truncated', batch(['r1', [1, 2, 3]]).subarray(0, 8)],
    ['empty', Buffer.alloc(0)],
    ['malformed', Buffer.of(0xc1)],
    ['truncated', Buffer.of(0xdc, 0xff, 0xff)],
    ['trailing_bytes', Buffer.concat([batch(['r1', [1]]), Buffer.of(0xc0)])],
    ['invalid_shape', pack({ outputs: [] })],
    ['frame_too_large', Buffer.alloc(MAX_FRAME_BYTES + 1)],
  ];
  for (const [reason, frame] of garbage) {
    const before = connections.errors('outputs', reason);
    connections.answer(frame);
    t.is(connections.errors('outputs', reason), before + 1, reason);
    t.deepEqual(connections.observations, []);
  }
  connections.answer(batch(['r1', [1, 2]]));
  t.deepEqual(connections.observations, [2]);
  t.is(connections.flow.messages, garbage.length + 1);
});

test('T21: ENGINE_CORE_DEAD is no error but a death, of the engine whose batches came on that connection', (t) => {
  const connections = new Connections();
  connections.answer(Buffer.from('ENGINE_CORE_DEAD'));
  connections.answer(batch(['r1', [1]]));
  connections.answer(Buffer.from('ENGINE_CORE_DEAD'));
  t.is(connections.telemetry.get('engine_dead_total', { engine: 'unknown' }), 1);
  t.is(connections.telemetry.get('engine_dead_total', { engine: '0' }), 1);
  t.is(connections.errors('outputs', 'trailing_bytes') + connections.errors('outputs', 'invalid_shape'), 0);
  connections.answer(Buffer.from('ENGINE_CORE_DEAF'));
  t.is(connections.errors('outputs', 'trailing_bytes') + connections.errors('outputs', 'invalid_shape'), 1);
});

test('T22: a message with auxiliary frames is counted from its first one, once', (t) => {
  const connections = new Connections();
  connections.send(ADD, pack(['r1', [1]]));
  const auxiliary = Array.from({ length: 4 }, (_, index) => batch(['r1', Array(index).fill(1)]));
  connections.answer(batch(['r1', [1, 2, 3]]), ...auxiliary);
  t.deepEqual(connections.observations, [3]);
});

test('T22: between the frames of a message other connections are read, and its chunk is overwritten', (t) => {
  const [one, other] = [new Connections(), new Connections()];
  one.send(ADD, pack(['r1', [1]]));
  other.send(ADD, pack(['r2', [1]]));
  // What a finished request brings is not summed up before the message is whole, unlike what r1 brings.
  const bytes = messageBytes([
    batch(['r1', [1, 2, 3], ...NILS], ['r3', [1], null, null, null, 0]),
    Buffer.alloc(100),
  ]);
  for (const left of [100, 1]) {
    const cut = bytes.length - left;
    one.send(ADD, pack(['r3', [1]]));
    const chunk = Buffer.from(bytes.subarray(0, cut));
    one.outputs.push(chunk);
    chunk.fill(0);
    other.answer(batch(['r2', [1, 2, 3, 4, 5], ...NILS], ['r9', [7]]));
    one.outputs.push(bytes.subarray(cut));
  }
  t.deepEqual(one.observations, [4, 4]);
  t.deepEqual(other.observations, [5, 5]);
});

test('chunks may come in the same buffer, one after the other', (t) => {
  const connections = new Connections();
  connections.send(ADD, pack(['r1', [1]]));
  const buffer = Buffer.alloc(1000);
  for (const tokens of [3, 1, 2]) {
    const length = messageBytes([batch(['r1', Array(tokens).fill(1), ...NILS])]).copy(buffer);
    connections.outputs.push(buffer.fill(0, length)); // and frames of no bytes behind it
  }
  t.deepEqual(connections.observations, [3, 1, 2]);
});

test('a message counts when it is whole, not before', (t) => {
  const connections = new Connections();
  connections.send(ADD, pack(['r1', [1]]));
  const bytes = messageBytes([batch(['r1', [1, 2, 3]]), Buffer.alloc(10)]);
  connections.outputs.push(bytes.subarray(0, -1));
  t.deepEqual(connections.observations, []);
  connections.outputs.push(bytes.subarray(-1));
  t.deepEqual(connections.observations, [3]);

  const add = messageBytes([ADD, pack(['r2', [1]]), Buffer.alloc(10)]);
  connections.requests.push(add.subarray(0, -1));
  t.is(connections.tracked, 1);
  connections.requests.push(add.subarray(-1));
  t.is(connections.tracked, 2);
});

test('a first frame that can not be read leaves the batch before it counted once', (t) => {
  const connections = new Connections();
  connections.send(ADD, pack(['r1', [1]]));
  connections.answer(batch(['r1', [1]]));
  for (const frame of [Buffer.alloc(0), Buffer.of(0xc1), Buffer.alloc(MAX_FRAME_BYTES + 1)])
    connections.answer(frame);
  t.deepEqual(connections.observations, [1]);
});

test('T28: the id of an ADD is read whatever comes behind its first 16 KiB, and no auxiliary frame is', (t) => {
  const connections = new Connections();
  const prompt = Array.from({ length: 100_000 }, (_, index) => index);
  const before = process.memoryUsage().arrayBuffers;
  const head = messageBytes([ADD, pack(['r1', prompt]), Buffer.alloc(0)]).subarray(0, -2);
  connections.requests.push(head);
  const auxiliary = Buffer.alloc(9);
  auxiliary[0] = 2;
  auxiliary.writeBigUInt64BE(50_000_000n, 1);
  connections.requests.push(auxiliary);
  const chunk = Buffer.alloc(1_000_000);
  for (let i = 0; i < 50; i++) connections.requests.push(chunk);
  const grown = process.memoryUsage().arrayBuffers - before;
  t.true(grown < 5_000_000, `${grown} bytes`);
  t.is(connections.tracked, 1);
  t.is(connections.frontend.tracker('0').find('r1')?.promptLength, 100_000);
});

test('an ADD or ABORT is done once: what comes behind it does not bring it back', (t) => {
  const connections = new Connections();
  connections.send(ADD, pack(['r1', [1]]));
  connections.send(ABORT, pack(['r1']));
  connections.send(UTILITY, pack([0, 1]));
  t.is(connections.tracked, 0);
  connections.send(ADD, pack(['r1', [1]]));
  connections.send(UTILITY, pack([0, 1]));
  t.is(connections.tracked, 1);
});

test('requests of other types, and what they carry, are none of the tracker’s', (t) => {
  const connections = new Connections();
  connections.send(UTILITY, pack(['r1', [1]]));
  connections.send(Buffer.of(2), pack(['r1', [1]]));
  connections.send(Buffer.of(0, 0), pack(['r1', [1]]));
  connections.send(Buffer.alloc(0), pack(['r1', [1]]));
  connections.send(ADD);
  connections.send(pack(['r1', [1]]));
  t.is(connections.tracked, 0);
  for (const reason of ['empty', 'truncated', 'invalid_shape'])
    t.is(connections.errors('requests', reason), 0, reason);
});

test('an ADD or ABORT that can not be read is a decode error, and changes nothing', (t) => {
  const connections = new Connections();
  connections.send(ADD, pack(['r1', [1]]));
  connections.send(ADD, pack([1, [1]]));
  connections.send(ABORT, pack(['r1', 1]));
  connections.send(ABORT, Buffer.alloc(0));
  connections.send(ABORT, Buffer.alloc(MAX_FRAME_BYTES + 1));
  connections.send(ABORT, Buffer.of(0xc1));
  t.is(connections.tracked, 1);
  t.is(connections.errors('requests', 'invalid_shape'), 2);
  t.is(connections.errors('requests', 'empty'), 1);
  t.is(connections.errors('requests', 'frame_too_large'), 1);
  t.is(connections.errors('requests', 'malformed'), 1);
  connections.send(ABORT, pack(['r1']));
  t.is(connections.tracked, 0);
});

test('however both streams are cut, requests and steps come out the same', (t) => {
  const requests = Buffer.concat([
    messageBytes([ADD, pack(['r1', [1, 2, 3]]), Buffer.alloc(700)]),
    messageBytes([ADD, pack(['r2', Array(6_000).fill(70_000)])]),
    messageBytes([UTILITY, pack([0, 1])]),
    messageBytes([ADD, pack(['r3', null])]),
    messageBytes([ABORT, pack(['r3'])]),
  ]);
  const outputs = Buffer.concat([
    messageBytes([batch(['r1', [1, 2]], ['r3', [1]])]),
    frameBytes({ kind: 'command', body: Buffer.from('\x04PING\0\0'), long: false, more: false }),
    messageBytes([batch(), Buffer.alloc(300)]),
    messageBytes([batch(['r1', [1], null, null, null, 0], ['r2', Array(300).fill(1)])]),
    messageBytes([batch(['r1', [1]])]),
  ]);
  fc.assert(
    fc.property(chunkSizes, chunkSizes, (requestSizes, outputSizes) => {
      const connections = new Connections();
      for (const chunk of chunksOf(requests, requestSizes)) connections.requests.push(chunk);
      for (const chunk of chunksOf(outputs, outputSizes)) connections.outputs.push(chunk);
      t.deepEqual(connections.observations, [2, 301, 0]);
      t.is(connections.tracked, 1);
      t.is(connections.flow.messages, 4);
    }),
    budget(2, 300),
  );
});

test('a registration tells the version of vLLM, an empty one or garbage none', (t) => {
  const versions: (string | null)[] = [];
  const reader = new RegistrationReader(
    new Flow('to_frontend'),
    () => undefined,
    (version) => versions.push(version),
  );
  const cutter = started(reader);
  for (const body of [pack({ vllm_version: '0.32.0' }), pack({ max_model_len: 1 }), Buffer.of(0xc1)]) {
    cutter.push(messageBytes([body]));
  }
  cutter.push(messageBytes([Buffer.alloc(100_000)]));
  t.deepEqual(versions, ['0.32.0', null, null]);
});
