import test, { type ExecutionContext } from 'ava';
import fc from 'fast-check';
import { FrameCutter, type FrameSink } from '../../proxy/zmtp/frame-cutter.js';
import { judgeOpening, mechanismOf, nullGreeting } from '../../proxy/zmtp/greeting.js';
import { budget, isComplete, same } from './budget.js';
import { chunkSizes, chunksOf, frameBytes, greeting, type StreamFrame, stream } from './zmtp-stream.js';

const MAX_COMMAND_BYTES = 4_096;

type Event =
  | ['wants', index: number, length: number]
  | ['frame', index: number, wanted: string, length: number]
  | ['message', frames: number]
  | ['command', body: string];

/** How many bytes of a frame to ask for: none, all, more than there are, a part. */
type Policy = (index: number, length: number) => number;
const policies: readonly Policy[] = [
  () => 0,
  (_, length) => length,
  (_, length) => length + 1_000,
  (_, length) => length >> 1,
  () => 1,
  (index, length) => (index === 0 ? length : 0),
  (index, length) => [0, length, 16_384, 5][(index + length) % 4] as number,
];
const policy = fc.constantFrom(...policies);

class Recorder implements FrameSink {
  readonly events: Event[] = [];
  readonly wants: Policy;

  constructor(wanted: Policy) {
    this.wants = (index, length) => {
      this.events.push(['wants', index, length]);
      return wanted(index, length);
    };
  }

  frame(index: number, bytes: Buffer, start: number, end: number, length: number): void {
    this.events.push(['frame', index, bytes.toString('hex', start, end), length]);
  }

  message(frames: number): void {
    this.events.push(['message', frames]);
  }

  command(body: Buffer): void {
    this.events.push(['command', body.toString('hex')]);
  }
}

/** What has to come out, and behind which offsets of the stream a new message or command begins. */
function expectedOf(
  frames: readonly StreamFrame[],
  wanted: Policy,
): { events: Event[]; boundaries: number[] } {
  const events: Event[] = [];
  const boundaries = [64];
  let at = 64;
  let index = 0;
  for (const frame of frames) {
    const { kind, body, more } = frame;
    at += frameBytes(frame).length;
    if (kind === 'command') {
      if (body.length > 0) events.push(['command', body.toString('hex', 0, MAX_COMMAND_BYTES)]);
      if (index === 0) boundaries.push(at);
      continue;
    }
    events.push(['wants', index, body.length]);
    const share = Math.min(wanted(index, body.length), body.length);
    if (share > 0) events.push(['frame', index, body.toString('hex', 0, share), body.length]);
    index++;
    if (more) continue;
    events.push(['message', index]);
    boundaries.push(at);
    index = 0;
  }
  return { events, boundaries };
}

function bytesOf(frames: readonly StreamFrame[]): Buffer {
  return Buffer.concat([greeting(), ...frames.map(frameBytes)]);
}

/** Pushes each chunk out of a larger buffer that is overwritten behind it, as a socket may do with its memory. */
function pushAll(
  cutter: FrameCutter,
  chunks: readonly Buffer[],
  after: (chunk: Buffer) => void = () => undefined,
) {
  for (const chunk of chunks) {
    const memory = Buffer.alloc(chunk.length + 32, 0x01);
    chunk.copy(memory, 16);
    cutter.push(memory.subarray(16, 16 + chunk.length));
    after(chunk);
    memory.fill(0xee);
  }
}

test('any messages in any chunks come out as the same frames, as much of each as was asked for', (t) => {
  fc.assert(
    fc.property(stream, chunkSizes, policy, (frames, sizes, wanted) => {
      const recorder = new Recorder(wanted);
      const cutter = new FrameCutter(recorder);
      pushAll(cutter, chunksOf(bytesOf(frames), sizes));
      t.is(cutter.fault, null);
      same(t, recorder.events, expectedOf(frames, wanted).events);
    }),
    budget(4, 1_000),
  );
});

test('after each chunk atBoundary says whether a message has begun', (t) => {
  fc.assert(
    fc.property(stream, chunkSizes, policy, (frames, sizes, wanted) => {
      const { boundaries } = expectedOf(frames, wanted);
      const cutter = new FrameCutter(new Recorder(wanted));
      let at = 0;
      const seen: unknown[] = [];
      const expected: unknown[] = [];
      pushAll(cutter, chunksOf(bytesOf(frames), sizes), (chunk) => {
        at += chunk.length;
        seen.push([at, cutter.atBoundary]);
        // No message has begun while the greeting is not over.
        expected.push([at, at < 64 || boundaries.includes(at)]);
      });
      same(t, seen, expected);
    }),
    budget(3, 1_000),
  );
});

/** Everything a cutter shows of these bytes. */
function outcome(bytes: Buffer, sizes: readonly number[], wanted: Policy) {
  const recorder = new Recorder(wanted);
  const cutter = new FrameCutter(recorder);
  pushAll(cutter, chunksOf(bytes, sizes));
  const { fault, atBoundary } = cutter;
  return { events: recorder.events, fault, atBoundary: fault === null && atBoundary };
}

test('whatever bytes come, in whatever chunks, nothing throws and the cut makes no difference', (t) => {
  const flags = fc.constantFrom(0, 1, 2, 3, 4, 5, 6, 7, 8, 0x80);
  const garbage = fc.array(
    fc.oneof(
      fc.tuple(flags, fc.nat(9), fc.nat(255)).map((bytes) => Buffer.from(bytes)),
      fc.constantFrom(0, 0x1f_ffff, 0x20_0000, 0xffff_ffff).map((high) => {
        const head = Buffer.from([2, 0, 0, 0, 0, 0, 0, 0, 3]);
        head.writeUInt32BE(high, 1);
        return head;
      }),
      fc.uint8Array({ maxLength: 40 }).map((bytes) => Buffer.from(bytes)),
    ),
    { maxLength: 12 },
  );
  const opening = fc.oneof(
    { weight: 6, arbitrary: fc.constant(greeting()) },
    { weight: 1, arbitrary: fc.constantFrom(greeting('PLAIN'), greeting('NULL', 1), Buffer.of(0xff)) },
    { weight: 1, arbitrary: fc.constant(Buffer.alloc(0)) },
  );
  const faults = new Set<string | null>();
  const details = fc.check(
    fc.property(opening, garbage, chunkSizes, policy, (start, rest, sizes, wanted) => {
      const bytes = Buffer.concat([start, ...rest]);
      const whole = outcome(bytes, [1_000_000], wanted);
      faults.add(whole.fault);
      same(t, outcome(bytes, sizes, wanted), whole);
    }),
    budget(4, 5_000),
  );
  if (!isComplete(details)) return;
  t.deepEqual([...faults].sort(), ['frame_length', 'mechanism', 'not_zmtp', 'reserved_flags', null].sort());
});

test('after a fault nothing more is read', (t) => {
  const recorder = new Recorder(() => 100);
  const cutter = new FrameCutter(recorder);
  cutter.push(Buffer.concat([greeting(), Buffer.of(0, 1, 65), Buffer.of(0x08, 1, 65)]));
  t.is(cutter.fault, 'reserved_flags');
  t.deepEqual(recorder.events.at(-1), ['message', 1]);
  const before = recorder.events.length;
  cutter.push(Buffer.of(0, 1, 65));
  t.is(recorder.events.length, before);
  t.is(cutter.fault, 'reserved_flags');
});

test('a command with `more` and every reserved flag are faults, at the flag byte already', (t) => {
  for (const flags of [5, 7, 8, 0x10, 0x20, 0x40, 0x80, 0xff]) {
    const cutter = new FrameCutter(new Recorder(() => 0));
    cutter.push(greeting());
    cutter.push(Buffer.of(flags));
    t.is(cutter.fault, 'reserved_flags', String(flags));
  }
});

test('a length is taken up to 2^53 - 1 and is a fault above', (t) => {
  const lengths: [bigint, string | null][] = [
    [2n ** 53n - 1n, null],
    [2n ** 53n, 'frame_length'],
    [2n ** 64n - 1n, 'frame_length'],
  ];
  for (const [length, fault] of lengths) {
    const head = Buffer.alloc(9);
    head[0] = 2;
    head.writeBigUInt64BE(length, 1);
    for (const sizes of [[1], [100]]) {
      const { fault: found, events } = outcome(
        Buffer.concat([greeting(), head, Buffer.alloc(5)]),
        sizes,
        () => 0,
      );
      t.is(found, fault as never);
      t.deepEqual(events, fault === null ? [['wants', 0, Number(length)]] : []);
    }
  }
});

test('a huge claimed length takes no memory before its bytes have come', (t) => {
  const claim = Buffer.alloc(9);
  claim[0] = 2;
  claim.writeBigUInt64BE(2n ** 52n, 1);
  const before = process.memoryUsage().arrayBuffers;
  const cutters = Array.from({ length: 100 }, () => {
    const cutter = new FrameCutter({ ...idle, wants: (_, length) => length });
    cutter.push(Buffer.concat([greeting(), claim]));
    return cutter;
  });
  const claimed = process.memoryUsage().arrayBuffers - before;
  t.true(claimed < 2_000_000, `${claimed} bytes for 100 claims`);

  const [cutter] = cutters as [FrameCutter];
  const chunk = Buffer.alloc(65_536);
  for (let i = 0; i < 16; i++) cutter.push(chunk);
  const grown = process.memoryUsage().arrayBuffers - before - claimed;
  // Doubling from 4 KiB to the MiB that came: 2 MiB and what was outgrown.
  t.true(grown < 6_000_000, `${grown} bytes for 1 MiB`);
  t.is(cutter.fault, null);
});

test('a frame that nobody wants is never buffered', (t) => {
  const claim = Buffer.alloc(9);
  claim[0] = 2;
  claim.writeBigUInt64BE(2n ** 40n, 1);
  let frames = 0;
  const cutter = new FrameCutter({ ...idle, wants: () => 10, frame: () => frames++ });
  cutter.push(Buffer.concat([greeting(), claim]));
  const chunk = Buffer.alloc(1_000_000);
  const before = process.memoryUsage().arrayBuffers;
  for (let i = 0; i < 100; i++) cutter.push(chunk);
  const grown = process.memoryUsage().arrayBuffers - before;
  t.true(grown < 1_000_000, `${grown} bytes for 100 MB`);
  t.is(frames, 0, 'handed over only when the frame is whole');
});

const idle: FrameSink = {
  wants: () => 0,
  frame: () => undefined,
  message: () => undefined,
  command: () => undefined,
};

test('a frame that lies whole in its chunk is handed over in place', (t) => {
  const chunk = Buffer.concat([greeting(), Buffer.of(0, 3, 1, 2, 3)]);
  let handed: [Buffer, number, number] | null = null;
  const frame: FrameSink['frame'] = (_, bytes, start, end) => {
    handed = [bytes, start, end];
  };
  new FrameCutter({ ...idle, wants: () => 3, frame }).push(chunk);
  t.deepEqual(handed, [chunk, 66, 69]);
  t.is((handed as unknown as [Buffer])[0], chunk);
});

test('the sink can be changed between two messages', (t) => {
  const [first, second] = [new Recorder(() => 9), new Recorder(() => 9)];
  const cutter = new FrameCutter(first);
  first.message = (frames) => {
    first.events.push(['message', frames]);
    cutter.sink = second;
  };
  cutter.push(Buffer.concat([greeting(), Buffer.of(0, 1, 1), Buffer.of(0, 1, 2)]));
  t.deepEqual(first.events.slice(1), [
    ['frame', 0, '01', 1],
    ['message', 1],
  ] as Event[]);
  t.deepEqual(second.events.slice(1), [
    ['frame', 0, '02', 1],
    ['message', 1],
  ] as Event[]);
});

/** The fault, and how many bytes of `bytes` it took to find it. */
function faultOf(t: ExecutionContext, bytes: Buffer): [string | null, number] {
  const cutter = new FrameCutter(idle);
  let taken = 0;
  for (const byte of bytes) {
    cutter.push(Buffer.of(byte));
    taken++;
    if (cutter.fault !== null) break;
  }
  const whole = new FrameCutter(idle);
  whole.push(bytes);
  t.is(whole.fault, cutter.fault);
  return [cutter.fault, taken];
}

test('a greeting is judged byte by byte, as soon as it can be', (t) => {
  t.deepEqual(faultOf(t, greeting()), [null, 64]);
  t.deepEqual(faultOf(t, nullGreeting()), [null, 64]);
  t.deepEqual(faultOf(t, Buffer.from('GET / HTTP/1.1\r\n\r\n')), ['not_zmtp', 1]);
  t.deepEqual(faultOf(t, Buffer.of(1, 0, 1, 0, 0)), ['not_zmtp', 1]); // ZMTP 1, anonymous
  t.deepEqual(faultOf(t, Buffer.of(0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x00)), ['not_zmtp', 10]); // ZMTP 1, long length
  t.deepEqual(faultOf(t, greeting('NULL', 1).subarray(0, 12)), ['not_zmtp', 11]); // ZMTP 2 sends revision 1
  t.deepEqual(faultOf(t, greeting('NULL', 2).subarray(0, 12)), ['not_zmtp', 11]);
  t.deepEqual(faultOf(t, greeting('NULL', 4)), [null, 64]);
  for (const mechanism of ['PLAIN', 'CURVE', 'GSSAPI', 'NULLX', 'null', '']) {
    t.deepEqual(faultOf(t, greeting(mechanism)), ['mechanism', 64], mechanism);
  }
});

test('the opening of a connection is zmtp3 once its signature is whole, and what comes behind decides no later', (t) => {
  const bytes = greeting();
  for (let length = 0; length <= 64; length++) {
    t.is(judgeOpening(bytes.subarray(0, length)), length < 10 ? 'incomplete' : 'zmtp3', String(length));
  }
  t.is(judgeOpening(greeting('NULL', 2).subarray(0, 10)), 'zmtp3');
  t.is(judgeOpening(greeting('NULL', 2).subarray(0, 11)), 'not_zmtp');
  t.is(judgeOpening(Buffer.of(0xfe)), 'not_zmtp');
  t.is(mechanismOf(greeting('CURVE')), 'CURVE');
});
