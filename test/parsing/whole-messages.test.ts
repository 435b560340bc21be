/** A message goes on when it is whole, and no byte is lost, doubled or out of order. */
import test from 'ava';
import fc from 'fast-check';
import { ReadBuffer } from '../../proxy/read-buffer.js';
import { WholeMessages } from '../../proxy/whole-messages.js';
import { GREETING_LENGTH } from '../../proxy/zmtp/greeting.js';
import { greeting, message, ready } from '../transparency/zmtp-writer.js';
import { budget } from './budget.js';
import { frameBytes, stream } from './zmtp-stream.js';

const OPENING = Buffer.concat([greeting(), ready('PUSH')]);
const WAITING = 64 * 1024;

/** What a socket does with its buffer: reads into it, as much as there is or fits, and asks for the next one. */
class Reading {
  readonly reads = new ReadBuffer();
  readonly whole = new WholeMessages();
  /** What went on. */
  readonly out: Buffer[] = [];
  /** Whether the next piece is still needed when other bytes are read: it is then not copied here. */
  isKept = false;
  #region = this.reads.buffer();

  constructor() {
    this.reads.sink = (chunk) => {
      const passing = this.whole.push(chunk);
      const piece = chunk.subarray(0, passing);
      if (this.isKept) this.reads.keep();
      this.out.push(this.isKept ? piece : Buffer.from(piece));
      return passing;
    };
  }

  /** Bytes that come at once; returns how many went on. */
  read(bytes: Buffer): number {
    const before = this.sent;
    for (let at = 0; at < bytes.length; ) {
      const length = bytes.copy(this.#region, 0, at);
      at += length;
      this.reads.callback(length);
      this.#region = this.reads.buffer();
      if (this.#region.length === 0) throw new Error('no room for a read');
    }
    return this.sent - before;
  }

  get sent(): number {
    return this.out.reduce((sum, { length }) => sum + length, 0);
  }
}

test('for any messages in any cut: every byte comes out once and in order, and small messages only whole', (t) => {
  const messages = fc.array(fc.array(fc.integer({ min: 0, max: 400 }), { minLength: 1, maxLength: 4 }), {
    maxLength: 12,
  });
  const size = fc.record({ length: fc.integer({ min: 1, max: 700 }), isKept: fc.boolean() });
  fc.assert(
    fc.property(messages, fc.array(size, { minLength: 1, maxLength: 10 }), (lengths, cuts) => {
      const parts = [
        OPENING,
        ...lengths.map((frames) => message(frames.map((length) => Buffer.alloc(length, 7)))),
      ];
      const ends = new Set<number>();
      let total = 0;
      for (const part of parts) {
        total += part.length;
        ends.add(total);
      }
      const stream = Buffer.concat(parts);
      const reading = new Reading();
      for (let at = 0, i = 0; at < stream.length; i++) {
        const { length, isKept } = cuts[i % cuts.length] as { length: number; isKept: boolean };
        reading.isKept = isKept;
        reading.read(stream.subarray(at, at + length));
        at += length;
        const { sent } = reading;
        if (sent > greeting().length && !ends.has(sent)) t.fail(`stopped inside a message, at ${sent}`);
        if (!reading.whole.atBoundary) t.fail('says that it stopped inside a message');
      }
      if (!Buffer.concat(reading.out).equals(stream)) t.fail('bytes differ');
    }),
    budget(1, 3000),
  );
  t.pass();
});

test('of any stream all but the message that has begun goes on, and of that one what is more than may wait', (t) => {
  const scaled = fc.tuple(stream, fc.constantFrom(1, 1, 3, 40));
  const cuts = fc.array(fc.integer({ min: 1, max: 40_000 }), { minLength: 1, maxLength: 8 });
  let streamed = 0;
  fc.assert(
    fc.property(scaled, cuts, ([frames, scale], lengths) => {
      const reading = new Reading();
      const parts = [greeting()];
      const boundaries = [GREETING_LENGTH];
      let inside = false;
      let total = GREETING_LENGTH;
      for (const frame of frames) {
        const bytes = frameBytes({ ...frame, body: Buffer.concat(Array(scale).fill(frame.body)) });
        parts.push(bytes);
        total += bytes.length;
        if (frame.kind === 'message') inside = frame.more;
        if (!inside) boundaries.push(total);
      }
      const bytes = Buffer.concat(parts);
      for (let at = 0, i = 0; at < total; i++) {
        const length = lengths[i % lengths.length] as number;
        reading.read(bytes.subarray(at, at + length));
        at = Math.min(at + length, total);
        const boundary = boundaries.findLast((offset) => offset <= at) ?? at;
        const { sent, whole } = reading;
        const isStreaming = at - boundary > WAITING;
        if (isStreaming) streamed++;
        // A header that is not whole waits.
        if (isStreaming ? at - sent > 8 : sent !== boundary) t.fail(`${sent} of ${at}, boundary ${boundary}`);
        if (whole.atBoundary === isStreaming) t.fail(`at ${at}: at boundary ${whole.atBoundary}`);
      }
      if (!Buffer.concat(reading.out).equals(bytes)) t.fail('bytes differ');
    }),
    budget(3, 500),
  );
  t.true(streamed > 20, `${streamed} times`);
});

test('a message above 64 KiB streams, and the next one is whole again', (t) => {
  const reading = new Reading();
  reading.read(OPENING);
  const large = message([Buffer.alloc(3 * WAITING, 5)]);
  t.is(reading.read(large.subarray(0, WAITING)), 0);
  t.is(reading.read(large.subarray(WAITING, WAITING + 10)), WAITING + 10);
  t.false(reading.whole.atBoundary);
  const small = message([Buffer.alloc(100, 6)]);
  const rest = Buffer.concat([large.subarray(WAITING + 10), small.subarray(0, 30)]);
  t.is(reading.read(rest), rest.length - 30);
  t.true(reading.whole.atBoundary);
  t.false(reading.whole.isIdle);
  t.is(reading.read(small.subarray(30)), small.length);
  t.true(reading.whole.isIdle);
  t.deepEqual(Buffer.concat(reading.out), Buffer.concat([OPENING, large, small]));
});

test('what waits can be had when nothing will come behind it, once', (t) => {
  const reading = new Reading();
  const { reads } = reading;
  reading.read(OPENING);
  const part = message([Buffer.alloc(100, 7)]).subarray(0, 40);
  t.is(reading.read(part), 0);
  const rest: Buffer[] = [];
  reads.sink = (chunk) => {
    rest.push(Buffer.from(chunk));
    return chunk.length;
  };
  reads.show();
  reads.show();
  t.deepEqual(rest, [part]);
});

test('what is no ZMTP 3 passes as it comes, with what waited before it', (t) => {
  const reading = new Reading();
  reading.read(OPENING);
  const part = message([Buffer.alloc(100)]).subarray(0, 1);
  t.is(reading.read(part), 0);
  const garbage = Buffer.concat([Buffer.alloc(101), Buffer.of(0xf8, 1, 2)]);
  t.is(reading.read(garbage), 1 + garbage.length);
  t.is(reading.read(Buffer.of(9, 9)), 2);
  t.deepEqual(Buffer.concat(reading.out), Buffer.concat([OPENING, part, garbage, Buffer.of(9, 9)]));
});

test('the buffer grows with what comes, and not above 128 KiB', (t) => {
  const reading = new Reading();
  reading.read(OPENING);
  t.true(reading.reads.buffer().length <= 1024);
  reading.read(message([Buffer.alloc(60_000)]).subarray(0, -1));
  t.true(reading.reads.buffer().length >= 64 * 1024, 'room for a read behind the largest that waits');
  reading.read(Buffer.alloc(10_000_000));
  t.true(reading.reads.buffer().length <= 128 * 1024);
});
