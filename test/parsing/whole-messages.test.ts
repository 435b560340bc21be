/** A message goes on when it is whole, and no byte is lost, doubled or out of order. */
import test from 'ava';
import fc from 'fast-check';
import { WholeMessages } from '../../proxy/whole-messages.js';
import { greeting, message, ready } from '../transparency/zmtp-writer.js';
import { budget } from './budget.js';

const OPENING = Buffer.concat([greeting(), ready('PUSH')]);
const HELD = 64 * 1024;

function cut(bytes: Buffer, sizes: readonly number[]): Buffer[] {
  const chunks: Buffer[] = [];
  let at = 0;
  for (let i = 0; at < bytes.length; i++) {
    const size = sizes[i % sizes.length] as number;
    chunks.push(bytes.subarray(at, at + size));
    at += size;
  }
  return chunks;
}

test('for any messages in any cut: every byte comes out once and in order, and small messages only whole', (t) => {
  const messages = fc.array(fc.array(fc.integer({ min: 0, max: 400 }), { minLength: 1, maxLength: 4 }), {
    maxLength: 12,
  });
  const sizes = fc.array(fc.integer({ min: 1, max: 700 }), { minLength: 1, maxLength: 10 });
  fc.assert(
    fc.property(messages, sizes, (lengths, cuts) => {
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
      const whole = new WholeMessages();
      const out: Buffer[] = [];
      let sent = 0;
      for (const chunk of cut(stream, cuts)) {
        for (const piece of whole.push(chunk)) {
          out.push(piece);
          sent += piece.length;
        }
        if (sent > greeting().length && !ends.has(sent)) t.fail(`stopped inside a message, at ${sent}`);
        if (!whole.atBoundary) t.fail('says that it stopped inside a message');
      }
      if (!Buffer.concat(out).equals(stream)) t.fail('bytes differ');
      if (whole.flush().length > 0) t.fail('something was left');
    }),
    budget(1, 3000),
  );
  t.pass();
});

test('a message above 64 KiB streams, and the next one is whole again', (t) => {
  const whole = new WholeMessages();
  whole.push(OPENING);
  const large = message([Buffer.alloc(3 * HELD)]);
  t.deepEqual(whole.push(large.subarray(0, HELD)), []);
  t.is(Buffer.concat(whole.push(large.subarray(HELD, HELD + 10))).length, HELD + 10);
  t.false(whole.atBoundary);
  const small = message([Buffer.alloc(100)]);
  const rest = Buffer.concat([large.subarray(HELD + 10), small.subarray(0, 30)]);
  t.is(Buffer.concat(whole.push(rest)).length, rest.length - 30);
  t.true(whole.atBoundary);
  t.deepEqual(Buffer.concat(whole.push(small.subarray(30))), small);
});

test('what was held is given up when nothing will come behind it', (t) => {
  const whole = new WholeMessages();
  whole.push(OPENING);
  const part = message([Buffer.alloc(100)]).subarray(0, 40);
  t.deepEqual(whole.push(part), []);
  t.deepEqual(Buffer.concat(whole.flush()), part);
  t.deepEqual(whole.flush(), []);
});

test('what is no ZMTP 3 passes as it comes, with what was held before it', (t) => {
  const whole = new WholeMessages();
  whole.push(OPENING);
  const part = message([Buffer.alloc(100)]).subarray(0, 1);
  t.deepEqual(whole.push(part), []);
  const garbage = Buffer.concat([Buffer.alloc(101), Buffer.of(0xf8, 1, 2)]);
  t.deepEqual(Buffer.concat(whole.push(garbage)), Buffer.concat([part, garbage]));
  t.deepEqual(Buffer.concat(whole.push(Buffer.of(9, 9))), Buffer.of(9, 9));
});
