import { readFileSync } from 'node:fs';
import { decode, encode } from '@msgpack/msgpack';
import test from 'ava';
import fc from 'fast-check';
import {
  type AddressSpan,
  readInitAddresses,
  readStatus,
  readVllmVersion,
  spliceAddresses,
} from '../../proxy/vllm/handshake.js';
import { engineIndexOf, readReady } from '../../proxy/zmtp/ready.js';
import * as mp from '../support/msgpack-encoder.js';
import { budget, same } from './budget.js';
import { text, value, width } from './msgpack-values.js';

type Pair = readonly [Buffer, Buffer];

/** Lengths around the limits of fixstr and str 8; str 16 comes from the width. */
const address = fc
  .tuple(fc.constantFrom(0, 5, 12, 30, 31, 32, 33, 100, 255, 256, 300), fc.nat(65_535))
  .map(([length, port]) => `tcp://h${'x'.repeat(length)}:${port}`);
const addressList = fc.array(fc.tuple(address, width), { maxLength: 18 });

/** Pairs whose key is none that steptap looks for. */
const otherPairs = fc.array(
  fc.tuple(
    fc.oneof(
      text(),
      fc.constantFrom(0.5, 1).map((key) => mp.float(key)),
      fc.constant(mp.int(7, 8)),
    ),
    value,
  ),
  { maxLength: 4 },
);

interface Init {
  readonly inputs: [string, mp.Width][];
  readonly outputs: [string, mp.Width][];
  readonly coordinator: Buffer;
  readonly inner: Pair[];
  readonly outer: Pair[];
  readonly widths: mp.Width[];
  readonly order: number;
}

const init: fc.Arbitrary<Init> = fc.record({
  inputs: addressList,
  outputs: addressList,
  coordinator: fc.oneof(fc.constant(mp.NIL), text()),
  inner: otherPairs,
  outer: otherPairs,
  widths: fc.array(width, { minLength: 5, maxLength: 5 }),
  order: fc.nat(9),
});

/** INIT as bytes, its keys turned about by `order`. */
function initBytes({ inputs, outputs, coordinator, inner, outer, widths, order }: Init): Buffer {
  const listOf = (addresses: Init['inputs'], bytes: mp.Width | undefined) =>
    mp.array(
      addresses.map(([of, ownWidth]) => mp.str(of, ownWidth)),
      bytes,
    );
  const addresses = rotated(
    [
      [mp.str('inputs', widths[0]), listOf(inputs, widths[1])],
      [mp.str('outputs'), listOf(outputs, widths[2])],
      [mp.str('coordinator_input'), coordinator],
      ...inner,
    ],
    order,
  );
  const pairs = rotated(
    [
      [mp.str('addresses', widths[3]), mp.map(addresses, widths[4])],
      [
        mp.str('parallel_config'),
        mp.map([
          [mp.str('ratio'), mp.float(3)],
          [mp.str('port'), mp.int(2n ** 63n, 8)],
        ]),
      ],
      ...outer,
    ],
    order,
  );
  return mp.map(pairs);
}

function rotated(pairs: readonly Pair[], by: number): Pair[] {
  const at = by % pairs.length;
  return [...pairs.slice(at), ...pairs.slice(0, at)];
}

test('the addresses of any INIT are found, in the order of the frontend clients', (t) => {
  fc.assert(
    fc.property(init, (of) => {
      const addresses = readInitAddresses(initBytes(of));
      same(
        t,
        addresses?.inputs.map(({ address }) => address),
        of.inputs.map(([text]) => text),
      );
      same(
        t,
        addresses?.outputs.map(({ address }) => address),
        of.outputs.map(([text]) => text),
      );
    }),
    budget(2, 1_000),
  );
});

test('splicing changes the chosen addresses; every other byte stays as it came', (t) => {
  fc.assert(
    fc.property(init, address, fc.nat(), (of, replacement, chosen) => {
      const bytes = initBytes(of);
      const before = Buffer.from(bytes);
      const found = readInitAddresses(bytes);
      const spans = [...(found?.inputs ?? []), ...(found?.outputs ?? [])];
      const replacements = new Map<AddressSpan, string>();
      // The map's order is not that of the spans.
      for (const [index, span] of [...spans.entries()].reverse()) {
        if (((chosen >> (index % 30)) & 1) === 1) replacements.set(span, `${replacement}${index}`);
      }
      const place = (index: number, [old, oldWidth]: [string, mp.Width]): [string, mp.Width] => {
        const text = replacements.get(spans[index] as AddressSpan);
        return text === undefined ? [old, oldWidth] : [text, 0];
      };
      const expected = initBytes({
        ...of,
        inputs: of.inputs.map((old, index) => place(index, old)),
        outputs: of.outputs.map((old, index) => place(of.inputs.length + index, old)),
      });
      const spliced = spliceAddresses(bytes, replacements);
      t.true(spliced.equals(expected), `${spliced.toString('hex')}\n${expected.toString('hex')}`);
      t.true(bytes.equals(before));
    }),
    budget(3, 1_000),
  );
});

test('a float stays a float, a 64-bit integer, a binary and an unknown key stay as they are', (t) => {
  const rest: Pair[] = [
    [mp.str('float'), mp.float(3)],
    [mp.str('float32'), mp.float(3, 4)],
    [mp.str('wide'), mp.int(2n ** 63n + 1n)],
    [mp.str('small, but wide'), mp.int(5, 8)],
    [mp.str('binary'), mp.bin(Buffer.from('tcp://127.0.0.1:1'), 4)],
    [mp.int(-1), mp.ext(3, Buffer.alloc(5))],
    [mp.str('the same text elsewhere'), mp.str('tcp://127.0.0.1:1')],
  ];
  const bytes = (input: string) =>
    mp.map([
      ...rest,
      [
        mp.str('addresses'),
        mp.map([
          [mp.str('frontend_stats_publish_address'), mp.str('tcp://127.0.0.1:1')],
          [mp.str('inputs'), mp.array([mp.str(input)])],
          [mp.str('outputs'), mp.array([mp.str('tcp://127.0.0.1:1')])],
        ]),
      ],
      ...rest,
    ]);
  const before = bytes('tcp://127.0.0.1:1');
  const [span] = (readInitAddresses(before)?.inputs ?? []) as [AddressSpan];
  const after = `tcp://[fd00::1]:29600${'0'.repeat(300)}`;
  t.true(spliceAddresses(before, new Map([[span, after]])).equals(bytes(after)));
});

test('what is not INIT has no addresses, and no bytes make the reader throw', (t) => {
  const addresses = { inputs: ['tcp://a:1'], outputs: ['tcp://a:2'] };
  t.not(readInitAddresses(Buffer.from(encode({ addresses }))), null);
  const others: unknown[] = [
    { status: 'HELLO' },
    { addresses: null },
    { addresses: { inputs: ['tcp://a:1'] } },
    { addresses: { ...addresses, outputs: 'tcp://a:2' } },
    { addresses: { ...addresses, inputs: [1] } },
    { other: addresses },
    [addresses],
    'addresses',
  ];
  for (const other of others)
    t.is(readInitAddresses(Buffer.from(encode(other))), null, JSON.stringify(other));
  const whole = Buffer.from(encode({ addresses }));
  for (let length = 0; length < whole.length; length++)
    t.is(readInitAddresses(whole.subarray(0, length)), null);
  t.is(readInitAddresses(Buffer.concat([whole, Buffer.of(0)])), null);
  fc.assert(
    fc.property(init, fc.array(fc.tuple(fc.nat(), fc.nat(255)), { maxLength: 4 }), (of, changes) => {
      const bytes = initBytes(of);
      for (const [at, byte] of changes) bytes[at % bytes.length] = byte;
      readInitAddresses(bytes);
      readStatus(bytes);
      readVllmVersion(bytes);
    }),
    budget(2),
  );
});

test('status and version are read from maps and from nothing else', (t) => {
  t.is(readStatus(Buffer.from(encode({ status: 'HELLO', local: true }))), 'HELLO');
  t.is(readStatus(Buffer.from(encode({ status: 1 }))), null);
  t.is(readStatus(Buffer.from(encode(['status', 'HELLO']))), null);
  t.is(
    readVllmVersion(
      Buffer.from(encode({ max_model_len: 2n ** 63n, vllm_version: '0.32.0' }, { useBigInt64: true })),
    ),
    '0.32.0',
  );
  for (const bytes of [
    Buffer.alloc(0),
    Buffer.of(0xc1),
    Buffer.of(0xdf, 0xff, 0xff, 0xff, 0xff),
    Buffer.of(0xc0),
  ]) {
    t.is(readStatus(bytes), null);
    t.is(readVllmVersion(bytes), null);
  }
});

test('the INIT of every captured vLLM names one input and one output per frontend client', (t) => {
  const captures = [
    'python-0.12.0',
    'python-0.22.1',
    'python-0.32.0',
    'rust-0.22.1',
    'rust-0.33.0',
    'rust-0.33.0-dp2',
  ];
  for (const capture of captures) {
    const file = new URL(`../../../test/fixtures/${capture}.jsonl`, import.meta.url);
    const line = readFileSync(file, 'utf8')
      .split('\n')
      .find((text) => text.includes('"hs-down"')) as string;
    const body = Buffer.from(JSON.parse(line).frames.at(-1), 'base64');
    const found = readInitAddresses(body);
    const { addresses } = decode(body) as { addresses: { inputs: string[]; outputs: string[] } };
    t.deepEqual(
      found?.inputs.map(({ address }) => address),
      addresses.inputs,
      capture,
    );
    t.deepEqual(
      found?.outputs.map(({ address }) => address),
      addresses.outputs,
      capture,
    );
    t.is(addresses.inputs.length, 1);
  }
});

/** READY as libzmq writes it: names and values with their lengths in front. */
function readyBody(properties: readonly (readonly [string, Uint8Array])[]): Buffer {
  const parts: Uint8Array[] = [Buffer.from('\x05READY', 'latin1')];
  for (const [name, bytes] of properties) {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(bytes.length);
    parts.push(Buffer.of(name.length), Buffer.from(name, 'latin1'), length, bytes);
  }
  return Buffer.concat(parts);
}

test('READY tells socket type and identity, whatever the order and case of its properties', (t) => {
  const socketType = fc.constantFrom('ROUTER', 'DEALER', 'PULL', 'PUSH', 'XPUB');
  const name = fc
    .string({ minLength: 1, maxLength: 12 })
    .filter((of) => !/^(socket-type|identity)$/i.test(of));
  const others = fc.array(fc.tuple(name, fc.uint8Array({ maxLength: 300 })), { maxLength: 3 });
  const identity = fc.option(fc.uint8Array({ maxLength: 255 }));
  fc.assert(
    fc.property(socketType, identity, others, fc.boolean(), fc.nat(4), (type, id, more, upper, order) => {
      const cased = (text: string) => (upper ? text.toUpperCase() : text);
      const properties: (readonly [string, Uint8Array])[] = [
        [cased('Socket-Type'), Buffer.from(type)],
        ...more,
      ];
      if (id !== null) properties.splice(order, 0, [cased('Identity'), id]);
      const body = readyBody(properties);
      const ready = readReady(body);
      t.is(ready?.socketType, type);
      t.true(id === null ? ready?.identity === null : ready?.identity?.equals(id) === true);
    }),
    budget(1, 1_000),
  );
});

test('READY cut inside a property, another command and any bytes give null or a READY, and never throw', (t) => {
  const body = readyBody([
    ['Socket-Type', Buffer.from('DEALER')],
    ['Identity', Buffer.of(1, 0)],
  ]);
  const ends = [6, 6 + 1 + 11 + 4 + 6, body.length];
  for (let length = 0; length <= body.length; length++) {
    t.is(readReady(body.subarray(0, length)) !== null, ends.includes(length), String(length));
  }
  t.is(readReady(Buffer.from('\x04PING\0\0', 'latin1')), null);
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 60 }), fc.boolean(), (bytes, isReady) => {
      readReady(Buffer.concat([Buffer.from(isReady ? '\x05READY' : ''), bytes]));
    }),
    budget(1),
  );
});

test('an identity of two bytes is an engine index, little-endian; any other is none', (t) => {
  t.is(engineIndexOf(Buffer.of(1, 0)), 1);
  t.is(engineIndexOf(Buffer.of(0x34, 0x12)), 0x1234);
  t.is(engineIndexOf(Buffer.of(1)), null);
  t.is(engineIndexOf(Buffer.of(1, 0, 0)), null);
  t.is(engineIndexOf(Buffer.alloc(0)), null);
  t.is(engineIndexOf(null), null);
});
