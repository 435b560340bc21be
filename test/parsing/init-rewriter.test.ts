import test from 'ava';
import fc from 'fast-check';
import { InitRewriter, type Rewrite } from '../../proxy/init-rewriter.js';
import { budget, isComplete } from './budget.js';
import { chunkSizes, chunksOf, frameBytes, greeting, type StreamFrame, stream } from './zmtp-stream.js';

const MAX_INIT_BYTES = 1024 * 1024;
const unchanged: Rewrite = async () => null;

/** A message of one frame. */
function message(body: string | Buffer, more = false): Buffer {
  return frameBytes({ kind: 'message', body: Buffer.from(body as string), long: false, more });
}

/** One chunk after the other, as the relay does: it reads no further while INIT is being rewritten. */
async function relayed(rewriter: InitRewriter, chunks: readonly Buffer[]): Promise<Buffer> {
  const out: Buffer[] = [];
  for (const chunk of chunks) out.push(Buffer.from(await rewriter.push(chunk)));
  return Buffer.concat(out);
}

/** All chunks at once; what each of them gave is sent in the order it was ready. */
async function relayedAtOnce(rewriter: InitRewriter, chunks: readonly Buffer[]): Promise<Buffer> {
  const out: Buffer[] = [];
  const send = (bytes: Buffer) => void out.push(Buffer.from(bytes));
  await Promise.all(
    chunks.map((chunk) => {
      const result = rewriter.push(chunk);
      if (result instanceof Promise) return result.then(send);
      send(result);
      return undefined;
    }),
  );
  return Buffer.concat(out);
}

// One after the other: the tests of a file share its time, and a property whose time is over before it began fails.
test.serial('while nothing is INIT every byte comes out as it came, in any chunks', async (t) => {
  await fc.assert(
    fc.asyncProperty(
      stream,
      chunkSizes,
      fc.boolean(),
      fc.boolean(),
      async (frames, sizes, hasGreeting, atOnce) => {
        const bytes = Buffer.concat([...(hasGreeting ? [greeting()] : []), ...frames.map(frameBytes)]);
        const rewriter = new InitRewriter(unchanged, hasGreeting ? 64 : 0);
        const relay = atOnce ? relayedAtOnce : relayed;
        t.true((await relay(rewriter, chunksOf(bytes, sizes))).equals(bytes));
      },
    ),
    budget(3, 400),
  );
});

/** Frames whose first byte is even are "INIT" and get another body, longer or shorter. */
function changed(body: Buffer): Buffer | null {
  return body.length > 0 && (body[0] as number) % 2 === 0
    ? Buffer.concat([body.subarray(3), Buffer.alloc(200, 7)])
    : null;
}

test.serial(
  'the body of INIT is replaced and framed anew, with its `more`; all other frames stay, in order',
  async (t) => {
    let replaced = 0;
    const details = await fc.check(
      fc.asyncProperty(
        stream,
        chunkSizes,
        fc.boolean(),
        fc.boolean(),
        async (frames, sizes, isSlow, atOnce) => {
          const rewrite: Rewrite = async (body) => {
            if (isSlow) await new Promise((resolve) => setImmediate(resolve));
            return changed(body);
          };
          const bytes = Buffer.concat([greeting(), ...frames.map(frameBytes)]);
          const expected = Buffer.concat([
            greeting(),
            ...frames.map((frame: StreamFrame) => {
              const body = frame.kind === 'message' ? changed(frame.body) : null;
              if (body === null) return frameBytes(frame);
              replaced++;
              return frameBytes({ ...frame, body, long: false });
            }),
          ]);
          const relay = atOnce ? relayedAtOnce : relayed;
          t.true((await relay(new InitRewriter(rewrite), chunksOf(bytes, sizes))).equals(expected));
        },
      ),
      budget(3, 400),
    );
    if (isComplete(details)) t.true(replaced > 20);
  },
);

test('the greeting goes on at once, piece by piece; so does a command', async (t) => {
  const rewriter = new InitRewriter(unchanged);
  for (const byte of greeting()) t.deepEqual(await rewriter.push(Buffer.of(byte)), Buffer.of(byte));
  const ready = frameBytes({ kind: 'command', body: Buffer.from('\x05READY'), long: false, more: false });
  const out = rewriter.push(ready);
  t.false(out instanceof Promise);
  t.deepEqual(out, ready);
});

test('a message is held until it is whole and shown to rewrite once, as a whole', async (t) => {
  const seen: string[] = [];
  const rewriter = new InitRewriter(async (body) => {
    seen.push(body.toString());
    return null;
  }, 0);
  const bytes = message('INIT');
  t.is((await rewriter.push(bytes.subarray(0, 4))).length, 0);
  t.deepEqual(seen, []);
  t.deepEqual(await rewriter.push(bytes.subarray(4)), bytes);
  t.deepEqual(seen, ['INIT']);
});

test('what comes while INIT is being rewritten follows behind it, each byte once', async (t) => {
  const released: (() => void)[] = [];
  const rewriter = new InitRewriter(async (body) => {
    await new Promise<void>((resolve) => released.push(resolve));
    return Buffer.from(`${body.toString()}!`);
  }, 0);
  const out: string[] = [];
  const push = async (text: string) => out.push((await rewriter.push(message(text))).toString('latin1', 2));
  const all = Promise.all([push('one'), push('two'), push('three')]);
  for (let done = 0; done < 3; done++) {
    for (let turns = 0; released.length <= done && turns < 1_000; turns++)
      await new Promise((resolve) => setImmediate(resolve));
    t.is(released.length, done + 1, 'one at a time');
    released[done]?.();
  }
  await all;
  t.deepEqual(out, ['one!', 'two!', 'three!']);
});

test('after a rewrite the next chunk is passed on at once again', async (t) => {
  const rewriter = new InitRewriter(unchanged, 0);
  await Promise.all([rewriter.push(message('one')), rewriter.push(message('two'))]);
  const ping = frameBytes({ kind: 'command', body: Buffer.from('\x04PING'), long: false, more: false });
  t.deepEqual(rewriter.push(ping), ping);
});

test('a frame larger than any INIT, or with reserved flags, makes it transparent for good', async (t) => {
  const large = Buffer.alloc(9);
  large[0] = 2;
  large.writeBigUInt64BE(BigInt(MAX_INIT_BYTES + 1), 1);
  const endless = Buffer.from(large);
  endless.writeBigUInt64BE(2n ** 64n - 1n, 1);
  for (const opening of [large, endless, Buffer.of(0x08, 4), Buffer.of(0x80)]) {
    let shown = 0;
    const rewriter = new InitRewriter(async () => {
      shown++;
      return Buffer.from('changed');
    }, 0);
    const first = await rewriter.push(Buffer.concat([message('INIT'), opening]));
    t.deepEqual(first, Buffer.concat([message('changed'), opening]));
    for (const chunk of [Buffer.from([1, 2, 3]), message('INIT'), Buffer.alloc(100_000, 5)]) {
      const out = rewriter.push(chunk);
      t.is(out, chunk);
    }
    t.is(shown, 1);
  }
});

test('an INIT of exactly the largest size is still rewritten', async (t) => {
  const rewriter = new InitRewriter(async () => Buffer.alloc(0), 0);
  const bytes = message(Buffer.alloc(MAX_INIT_BYTES, 1));
  t.deepEqual(await relayed(rewriter, chunksOf(bytes, [60_000])), Buffer.of(0, 0));
});

test.serial('bytes that are no ZMTP at all come out as they came', async (t) => {
  await fc.assert(
    fc.asyncProperty(fc.uint8Array({ maxLength: 200 }), chunkSizes, async (random, sizes) => {
      const bytes = Buffer.concat([greeting(), random]);
      const rewriter = new InitRewriter(unchanged);
      const out = await relayed(rewriter, chunksOf(bytes, sizes));
      // The last frame may still be waiting for its end.
      t.true(out.length >= 64);
      t.true(bytes.subarray(0, out.length).equals(out));
    }),
    budget(2, 1_000),
  );
});
