import type { Metric } from 'prom-client';

/** All that prom-client's registry asks of a metric (lib/registry.js: `name` to file it, `get` to print it). */
export interface Registrable {
  readonly name: string;
  readonly help: string;
  readonly type: string;
  get(): Promise<{ name: string; help: string; type: string; values: readonly object[] }>;
}

/** prom-client's types only admit its own four classes, its registry anything of the shape above. */
export function registrable(metric: Registrable): Metric {
  return metric as unknown as Metric;
}
