/**
 * Recomputes the histogram from a capture: one message a line, `t` microseconds, `dir` (hs-up, hs-down, reg, in,
 * out), `eng` engine index, `cli` frontend client index, `frames` base64. Everything goes through the readers that
 * the sidecar uses, as ZMTP frames.
 */
import { createReadStream } from 'node:fs';
import { createInterface } from 'node:readline';
import pino from 'pino';
import { IterationHistogram } from '../metrics/iteration-histogram.js';
import { errnoOf, messageOf, SteptapError } from './errors.js';
import { Flow } from './flow.js';
import { Frontend } from './frontend.js';
import type { MessageReader } from './message-reader.js';
import { OutputsReader } from './outputs-reader.js';
import { AddAbortReader } from './requests-reader.js';
import { Telemetry } from './telemetry.js';

const DIRECTIONS: readonly string[] = ['hs-up', 'hs-down', 'reg', 'in', 'out'];
const MAX_FRAME_BYTES = 64 * 1024 * 1024;

interface CapturedMessage {
  readonly dir: string;
  readonly eng: number;
  readonly cli: number;
  readonly frames: readonly Buffer[];
}

export interface ReplayResult {
  readonly histogram: IterationHistogram;
  readonly telemetry: Telemetry;
  readonly messages: number;
}

/** Throws STEPTAP_CAPTURE naming file and line when the file can't be read or a line is no captured message. */
export async function replay(path: string, modelName: string): Promise<ReplayResult> {
  const histogram = new IterationHistogram();
  histogram.modelName = modelName;
  const telemetry = new Telemetry();
  const frontend = new Frontend({
    observer: histogram,
    telemetry,
    logger: pino({ level: 'silent' }),
    selects: () => true,
    onInit: async () => null,
    onChange: () => undefined,
  });
  const readers = new Map<string, MessageReader>();
  let messages = 0;
  for await (const message of readCapture(path)) {
    messages++;
    frontend.engines.add(message.eng);
    if (message.dir !== 'in' && message.dir !== 'out') continue;
    const key = `${message.dir} ${message.eng} ${message.cli}`;
    let reader = readers.get(key);
    if (reader === undefined) {
      reader = createReader(message, frontend, telemetry);
      readers.set(key, reader);
    }
    for (const [index, frame] of message.frames.entries()) {
      const wanted = Math.min(reader.wants(index, frame.length), frame.length);
      if (wanted > 0) reader.frame(index, frame, 0, wanted, frame.length);
    }
    reader.message(message.frames.length);
  }
  telemetry.fold();
  return { histogram, telemetry, messages };
}

function createReader(
  { dir, cli }: CapturedMessage,
  frontend: Frontend,
  telemetry: Telemetry,
): MessageReader {
  const client = String(cli);
  const ignore = () => undefined;
  if (dir === 'in') {
    return new AddAbortReader(
      new Flow('to_engine'),
      ignore,
      frontend.tracker(client),
      telemetry,
      MAX_FRAME_BYTES,
      ignore,
    );
  }
  return new OutputsReader(
    new Flow('to_frontend'),
    ignore,
    frontend,
    client,
    telemetry,
    MAX_FRAME_BYTES,
    ignore,
  );
}

async function* readCapture(path: string): AsyncGenerator<CapturedMessage> {
  const lines = createInterface({ input: createReadStream(path), crlfDelay: Number.POSITIVE_INFINITY });
  let number = 0;
  try {
    for await (const line of lines) {
      number++;
      if (line.trim() !== '') yield parseLine(line);
    }
  } catch (error) {
    const where = errnoOf(error)?.startsWith('E') === true ? path : `${path}, line ${number}`;
    throw new SteptapError('STEPTAP_CAPTURE', `${where}: ${messageOf(error)}`, { cause: error });
  }
}

function parseLine(line: string): CapturedMessage {
  const value: unknown = JSON.parse(line);
  const { dir, eng, cli, frames } = (value ?? {}) as Partial<Record<keyof CapturedMessage, unknown>>;
  if (
    typeof dir !== 'string' ||
    !DIRECTIONS.includes(dir) ||
    !isIndex(eng) ||
    !isIndex(cli) ||
    !isListOfStrings(frames)
  ) {
    throw new TypeError('not a captured message: expected t, dir, eng, cli and frames');
  }
  return { dir, eng, cli, frames: frames.map((frame) => Buffer.from(frame, 'base64')) };
}

function isIndex(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= 0xffff;
}

function isListOfStrings(value: unknown): value is string[] {
  return Array.isArray(value) && value.every((element) => typeof element === 'string');
}
