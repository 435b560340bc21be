import { readdirSync, readFileSync } from 'node:fs';

/** CPU time a process has used so far, all threads, in microseconds (from schedstat: no 10 ms ticks). */
export function cpuMicros(pid: number): number {
  let total = 0;
  for (const thread of readdirSync(`/proc/${pid}/task`)) total += threadCpuMicros(pid, Number(thread));
  return total;
}

/** CPU time of the thread that runs the event loop, in microseconds. */
export function mainThreadCpuMicros(pid: number): number {
  return threadCpuMicros(pid, pid);
}

/** Resident set of a process now, in MB (10^6 bytes). */
export function rssMegabytes(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  return (Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1] ?? Number.NaN) * 1024) / 1e6;
}

function threadCpuMicros(pid: number, thread: number): number {
  try {
    return Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[0]) / 1000;
  } catch {
    return 0; // the thread ended between listing and reading
  }
}
