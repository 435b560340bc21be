import test from 'ava';
import fc from 'fast-check';
import { type Format, FormatError } from '../../config/format.js';
import {
  bindHost,
  dialEndpoint,
  httpUrl,
  listenEndpoint,
  parseEndpoint,
  peerHost,
  portRange,
  tcpPort,
} from '../../config/network.js';
import { globs, modelName, oneOf, path, secret } from '../../config/text.js';
import { byteSize, duration } from '../../config/units.js';

const FORMATS: Readonly<Record<string, Format<unknown>>> = {
  bindHost,
  byteSize,
  dialEndpoint,
  duration,
  globs,
  httpUrl,
  listenEndpoint,
  modelName,
  oneOf: oneOf(['json', 'pretty']),
  path,
  peerHost,
  portRange,
  secret,
  tcpPort,
};

/** Texts that look like values, so that the interesting branches are reached. */
const nearValue = fc.stringMatching(
  /^(tcp:\/\/|https?:\/\/)?[[\]:a-f0-9.*%-]{0,12}(:\d{1,6})?( ?[kKmMgG]?i?[bBsh])?$/,
);
const anything = fc.oneof(
  fc.string({ unit: 'binary' }),
  nearValue,
  fc.anything(),
  fc.double(),
  fc.array(fc.string()),
);
const BUDGET = { numRuns: 1500, interruptAfterTimeLimit: 3000, markInterruptAsFailure: false } as const;

for (const [name, format] of Object.entries(FORMATS)) {
  test(`${name}: anything is either refused or reads back from its own print`, (t) => {
    fc.assert(
      fc.property(anything, (raw) => {
        let value: unknown;
        try {
          value = format.parse(raw);
        } catch (error) {
          return error instanceof FormatError;
        }
        if (!format.holds(value)) return false;
        if (name === 'secret') return format.print(value) === '[redacted]';
        t.deepEqual(format.parse(format.print(value)), value);
        return true;
      }),
      BUDGET,
    );
    t.pass();
  });
}

test('every duration and size reads back from its print', (t) => {
  fc.assert(
    fc.property(fc.integer({ min: 0, max: 2 ** 31 - 1 }), (ms) => duration.parse(duration.print(ms)) === ms),
  );
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 2 ** 32 }),
      (size) => byteSize.parse(byteSize.print(size)) === size,
    ),
  );
  t.pass();
});

test('every port range reads back from its print', (t) => {
  const port = fc.integer({ min: 1, max: 65_535 });
  fc.assert(
    fc.property(port, port, (a, b) => {
      const range = { first: Math.min(a, b), last: Math.max(a, b) };
      t.deepEqual(portRange.parse(portRange.print(range)), range);
    }),
  );
  t.is(portRange.parse('0'), null);
  t.is(portRange.parse(0), null);
  t.is(portRange.print(null), '0');
});

test('every IP address makes an endpoint', (t) => {
  fc.assert(
    fc.property(fc.oneof(fc.ipV4(), fc.ipV6()), fc.integer({ min: 0, max: 65_535 }), (host, port) => {
      const text = `tcp://${host.includes(':') ? `[${host}]` : host}:${port}`;
      t.deepEqual(parseEndpoint(text), { host, port });
      t.is(listenEndpoint.parse(text), text);
    }),
  );
  t.pass();
});

const READ: readonly (readonly [Format<unknown>, unknown, unknown])[] = [
  [duration, '30s', 30_000],
  [duration, '500ms', 500],
  [duration, ' 2 m ', 120_000],
  [duration, '1h', 3_600_000],
  [duration, '1500', 1500],
  [duration, 0, 0],
  [byteSize, '64MiB', 67_108_864],
  [byteSize, '64 MiB', 67_108_864],
  [byteSize, '64mib', 67_108_864],
  [byteSize, '64Mi', 67_108_864],
  [byteSize, '1GB', 1e9],
  [byteSize, '10 kB', 10_000],
  [byteSize, '7', 7],
  [portRange, '29600-29699', { first: 29_600, last: 29_699 }],
  [portRange, '29600', { first: 29_600, last: 29_600 }],
  [dialEndpoint, 'tcp://localhost:5', 'tcp://localhost:5'],
  [dialEndpoint, 'tcp://[::1]:5', 'tcp://[::1]:5'],
  [dialEndpoint, 'tcp://pod_0.svc.cluster.local.:5', 'tcp://pod_0.svc.cluster.local.:5'],
  [httpUrl, 'http://[::1]:8000/', 'http://[::1]:8000'],
  [globs, 'a*, !b', ['a*', '!b']],
  [globs, '{a,b}-*,x\\,y', ['{a,b}-*', 'x\\,y']],
];

for (const [format, raw, value] of READ) {
  test(`${JSON.stringify(raw)} reads as ${JSON.stringify(value)}`, (t) => {
    t.deepEqual(format.parse(raw), value);
  });
}

test('values are printed in the largest unit that holds them exactly', (t) => {
  t.is(duration.print(30_000), '30s');
  t.is(duration.print(1_500), '1500ms');
  t.is(duration.print(0), '0s');
  t.is(byteSize.print(64 * 1024 ** 2), '64 MiB');
  t.is(byteSize.print(1e9), '1 GB');
  t.is(byteSize.print(1023), '1023 B');
});
