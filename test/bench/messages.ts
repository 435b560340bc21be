import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { decode, ExtData, encode } from '@msgpack/msgpack';
import { packageRoot } from './toolchain.js';

/** One message as a peer replays it: which engine sends or gets it, and its frames. */
export interface ScriptedMessage {
  readonly engine: number;
  readonly frames: readonly Uint8Array[];
}

/** Outputs that carry logprobs look like this: top 5 and the sampled token, as vLLM encodes three tensors. */
const logprobs = [
  ['<i4', [1, 6], new ExtData(3, new Uint8Array(24).fill(7))],
  ['<f4', [1, 6], new ExtData(3, new Uint8Array(24).fill(9))],
  ['<i8', [1], new ExtData(3, new Uint8Array(8).fill(1))],
  null,
];

/** Sizes of the three auxiliary frames of prompt logprobs for 512 prompt tokens: ids, logprobs, ranks. */
const auxiliarySizes = [512 * 6 * 4, 512 * 6 * 4, 512 * 8];

/**
 * Where a batch's timestamp stands, in bytes before the end of frame 0: its 8 bytes, four nils and the string
 * "default" of vLLM 0.32.
 */
export const stampFromEnd = 8 + 4 + 8;

/** A value of the msgpack layouts that we copy from the fixture. */
type Fields = readonly unknown[];

interface Models {
  readonly add: Fields;
  readonly output: Fields;
  readonly batch: Fields;
  readonly registration: Uint8Array;
}

/** Takes a real ADD, output, batch and registration of vLLM 0.32 as the models of all that is sent here. */
function readModels(): Models {
  const text = readFileSync(join(packageRoot, 'test', 'fixtures', 'rust-0.33.0.jsonl'), 'utf8');
  let add: Fields | undefined;
  let batch: Fields | undefined;
  let registration: Uint8Array | undefined;
  for (const line of text.trimEnd().split('\n')) {
    const record = JSON.parse(line) as { dir: string; frames: string[] };
    const payload = Buffer.from(record.frames.at(-1) ?? '', 'base64');
    if (record.dir === 'reg') registration = payload;
    if (record.dir === 'in' && record.frames[0] === 'AA==') add ??= decode(payload) as Fields;
    if (record.dir === 'out' && batch === undefined) {
      const fields = decode(payload) as Fields;
      const [output] = fields[1] as Fields[];
      // The first output of a request has events and prefill stats; what passes all day is the plain one.
      if (output !== undefined && output[7] === null) batch = fields;
    }
  }
  const [output] = (batch?.[1] ?? []) as Fields[];
  if (add === undefined || batch === undefined || output === undefined || registration === undefined) {
    throw new Error('the fixture has no ADD, plain output batch or registration');
  }
  return { add, output, batch, registration };
}

const models = readModels();

/** A request id as the Python frontend makes them: `cmpl-<32 hex>-0-<8 hex>`, 48 bytes. */
export function requestId(engine: number, index: number): string {
  const hex = createHash('sha256').update(`${engine}/${index}`).digest('hex');
  return `cmpl-${hex.slice(0, 32)}-0-${hex.slice(32, 40)}`;
}

/** A token id of a 50,000-word vocabulary, so that msgpack widths mix as in real traffic. */
function tokenId(seed: number): number {
  return (seed * 7919 + 13) % 50_000;
}

export interface BatchShape {
  /** Request ids in batch order, one output each. */
  readonly ids: readonly string[];
  readonly engine: number;
  /** Makes the tokens differ from step to step. */
  readonly step: number;
  readonly withLogprobs: boolean;
}

/** One engine step: one token for each id, real scheduler stats. Frame 0, and three more with logprobs. */
export function outputBatch({ ids, engine, step, withLogprobs }: BatchShape): ScriptedMessage {
  const outputs = ids.map((id, position) => {
    const output = [...models.output];
    output[0] = id;
    output[1] = [tokenId(step * 257 + position)];
    if (withLogprobs) output[2] = logprobs;
    return output;
  });
  if (withLogprobs && outputs[0] !== undefined) {
    outputs[0][3] = [['<i4', [512, 6], 1], ['<f4', [512, 6], 2], ['<i8', [512], 3], null];
  }
  const batch = [...models.batch];
  batch[0] = engine;
  batch[1] = outputs;
  const frames = [encode(batch)];
  if (withLogprobs) frames.push(...auxiliarySizes.map((size) => new Uint8Array(size).fill(3)));
  return { engine, frames };
}

/** ADD of a request with this many prompt tokens. */
export function addRequest(id: string, engine: number, promptTokens: number): ScriptedMessage {
  const add = [...models.add];
  add[0] = id;
  add[1] = Array.from({ length: promptTokens }, (_, index) => tokenId(index));
  return { engine, frames: [Uint8Array.of(0), encode(add)] };
}

/** ABORT of these requests. */
export function abortRequests(ids: readonly string[], engine: number): ScriptedMessage {
  return { engine, frames: [Uint8Array.of(1), encode(ids)] };
}

/** What the peers say in the handshake, in hex. */
export const handshakePayloads = {
  hello: hex(encode({ status: 'HELLO', local: true, headless: false })),
  ready: hex(encode({ status: 'READY', local: true, headless: false })),
  registration: hex(models.registration),
  init(requests: string, outputs: string): string {
    return hex(
      encode({
        addresses: {
          inputs: [requests],
          outputs: [outputs],
          coordinator_input: null,
          coordinator_output: null,
          frontend_stats_publish_address: null,
        },
        parallel_config: {},
      }),
    );
  },
};

/** Writes messages in the format that peer.c loads. */
export function writeScript(path: string, messages: readonly ScriptedMessage[]): void {
  const parts: Uint8Array[] = [];
  for (const { engine, frames } of messages) {
    parts.push(u32(engine), u32(frames.length));
    for (const frame of frames) parts.push(u32(frame.length), frame);
  }
  writeFileSync(path, Buffer.concat(parts));
}

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

function hex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('hex');
}
