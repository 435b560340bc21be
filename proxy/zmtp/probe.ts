/**
 * Asks a listening socket what it is: dial, send a greeting, read its greeting and READY (which a server sends
 * unasked), close. No READY is sent, so the other side makes no peer of it.
 */
import net from 'node:net';
import { errnoOf } from '../errors.js';
import { FrameCutter } from './frame-cutter.js';
import { nullGreeting } from './greeting.js';
import { type Ready, readReady } from './ready.js';

/** `refused`: nobody listens there; `closed`: it hung up before it said what it is. */
export type ProbeAnswer = Ready | 'refused' | 'closed';

/** Waits as long as the other side takes to answer (API servers: seconds), or until `signal` aborts: `closed`. */
export function probe(path: string, signal: AbortSignal): Promise<ProbeAnswer> {
  return new Promise((resolve) => {
    let answer: ProbeAnswer = 'closed';
    const socket = net.connect({ path });
    const abort = () => socket.destroy();
    // Not net's own `signal`: it would leave a listener behind at each attempt.
    signal.addEventListener('abort', abort, { once: true });
    const cutter = new FrameCutter({
      wants: () => 0,
      frame: () => undefined,
      message: () => undefined,
      command: (body) => {
        const ready = readReady(body);
        if (ready === null) return;
        answer = ready;
        socket.destroy();
      },
    });
    socket.on('connect', () => socket.write(nullGreeting()));
    socket.on('data', (chunk) => {
      cutter.push(chunk);
      if (cutter.fault !== null) socket.destroy();
    });
    socket.on('error', (error) => {
      if (isRefusal(error)) answer = 'refused';
    });
    socket.on('close', () => {
      signal.removeEventListener('abort', abort);
      resolve(answer);
    });
  });
}

/** Whether anybody listens at `path`. Connects and hangs up. */
export function isListening(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = net.connect({ path });
    socket.on('connect', () => {
      socket.destroy();
      resolve(true);
    });
    // Anything but a refusal (a full backlog: EAGAIN) means that there is somebody.
    socket.on('error', (error) => resolve(!isRefusal(error)));
  });
}

function isRefusal(error: Error): boolean {
  return errnoOf(error) === 'ECONNREFUSED' || errnoOf(error) === 'ENOENT';
}
