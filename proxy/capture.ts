/**
 * Writes what passes as a capture that `steptap replay` reads: one message a line, `t` microseconds, `dir`,
 * `eng`, `cli`, `frames` base64. Messages are gathered whole, prompts included: for tests, not for production.
 */
import { appendFileSync } from 'node:fs';
import type { Endpoint } from './endpoint.js';
import type { Direction } from './flow.js';
import type { Recorder, Tap } from './tap.js';
import { FrameCutter } from './zmtp/frame-cutter.js';

const DIR = {
  handshake: { to_frontend: 'hs-up', to_engine: 'hs-down' },
  requests: { to_frontend: 'reg', to_engine: 'in' },
  outputs: { to_frontend: 'out', to_engine: null },
} as const;

/** For `SidecarOptions.recorder`: appends every message of every connection to the file at `path`. */
export function captureTo(path: string): (endpoint: Endpoint, tap: Tap) => Recorder {
  const startedAt = performance.now();
  return (endpoint, tap) => {
    const write = (direction: Direction, frames: readonly Buffer[]) => {
      const { kind } = endpoint;
      if (kind !== 'handshake' && kind !== 'requests' && kind !== 'outputs') return;
      const line = {
        t: Math.round((performance.now() - startedAt) * 1000),
        dir: DIR[kind][direction],
        eng: tap.engine ?? 0,
        cli: Number(endpoint.client ?? 0),
        frames: frames.map((frame) => frame.toString('base64')),
      };
      if (line.dir !== null) appendFileSync(path, `${JSON.stringify(line)}\n`);
    };
    const cutters = {
      to_frontend: gathering((frames) => write('to_frontend', frames)),
      to_engine: gathering((frames) => write('to_engine', frames)),
    };
    return { record: (direction, chunk) => cutters[direction].push(chunk) };
  };
}

function gathering(onMessage: (frames: readonly Buffer[]) => void): FrameCutter {
  let frames: Buffer[] = [];
  return new FrameCutter({
    wants: (_index, length) => {
      if (length === 0) frames.push(Buffer.alloc(0));
      return length;
    },
    frame: (_index, bytes, start, end) => frames.push(Buffer.from(bytes.subarray(start, end))),
    message: () => {
      onMessage(frames);
      frames = [];
    },
    command: () => undefined,
  });
}
