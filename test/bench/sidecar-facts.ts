import { mainThreadCpuMicros } from './procfs.js';
import type { Sidecar } from './sidecar-process.js';

const scrapes = 100;

/**
 * Loop time of one scrape in milliseconds: CPU time of the thread that runs the event loop, HTTP included, over 100
 * scrapes in a row after 20 to warm up.
 */
export async function measureScrape(sidecar: Sidecar): Promise<number> {
  for (let i = 0; i < 20; i++) await sidecar.scrape();
  const before = mainThreadCpuMicros(sidecar.pid);
  for (let i = 0; i < scrapes; i++) await sidecar.scrape();
  return (mainThreadCpuMicros(sidecar.pid) - before) / scrapes / 1000;
}
