import { setImmediate as nextTurn } from 'node:timers/promises';
import { Counter, collectDefaultMetrics, Gauge, type OpenMetricsContentType, Registry } from 'prom-client';
import { FAMILIES, type FamilyName, type Telemetry } from '../proxy/telemetry.js';
import type { IterationHistogram } from './iteration-histogram.js';
import { type Registrable, registrable } from './registrable.js';

/** Prometheus text 0.0.4, or OpenMetrics 1.0.0. */
export type ExpositionFormat = 'text' | 'openmetrics';

/**
 * Gauges of prom-client that end in `_total`, which is a counter's name; `promtool check metrics` objects. The
 * sum over `nodejs_active_*{type}` says the same.
 */
const MISNAMED_DEFAULTS = [
  'nodejs_active_handles_total',
  'nodejs_active_requests_total',
  'nodejs_active_resources_total',
];

/** A scrape lets waiting batches pass when it has held the event loop this long. The largest family takes about as much. */
const SLICE_MILLIS = 0.25;

/** Everything that `/metrics` shows, in either format. */
export class MetricsRegistry {
  readonly #telemetry: Telemetry;
  readonly #registries: { readonly text: Registry; readonly openmetrics: Registry<OpenMetricsContentType> };

  constructor(telemetry: Telemetry, text: Registry) {
    this.#telemetry = telemetry;
    this.#registries = { text, openmetrics: openMetricsOf(text) };
  }

  contentType(format: ExpositionFormat): string {
    return this.#registries[format].contentType;
  }

  /**
   * One scrape. Numbers that are kept elsewhere are brought in first, once. Each family is printed whole, but batches
   * pass between families, so that numbers of different families may be some batches apart.
   */
  async render(format: ExpositionFormat): Promise<string> {
    this.#telemetry.fold();
    const registry = this.#registries[format];
    const families: string[] = [];
    let begun = performance.now();
    for (const { name } of registry.getMetricsAsArray()) {
      families.push(await registry.getSingleMetricAsString(name));
      if (performance.now() - begun < SLICE_MILLIS) continue;
      await nextTurn();
      begun = performance.now();
    }
    // As Registry.metrics() joins them.
    return format === 'text' ? `${families.join('\n\n')}\n` : `${families.join('\n')}\n# EOF\n`;
  }
}

/**
 * The iteration histogram, steptap's own metrics and prom-client's process and Node defaults. Call it once per
 * process: the defaults observe garbage collection and the event loop from here on (neither keeps the process
 * alive). `version` is steptap's own.
 */
export function createRegistry(
  telemetry: Telemetry,
  histogram: IterationHistogram,
  { version }: { readonly version: string },
): MetricsRegistry {
  const registry = new Registry();
  registry.registerMetric(registrable(histogram));
  for (const name of Object.keys(FAMILIES) as FamilyName[]) registerFamily(registry, telemetry, name);
  new Gauge({
    name: 'steptap_model_name_known',
    help: 'Whether the model name is known; until it is, the vllm series are counted but held back.',
    registers: [registry],
    collect() {
      this.set(histogram.modelName === null ? 0 : 1);
    },
  });
  new Gauge({
    name: 'steptap_build_info',
    help: 'Always 1; the labels tell the versions of steptap and Node.',
    labelNames: ['version', 'node'],
    registers: [registry],
  }).set({ version, node: process.versions.node }, 1);
  collectDefaultMetrics({ register: registry });
  for (const name of MISNAMED_DEFAULTS) registry.removeSingleMetric(name);
  return new MetricsRegistry(telemetry, registry);
}

function registerFamily(registry: Registry, telemetry: Telemetry, name: FamilyName): void {
  const { kind, labels, help } = FAMILIES[name];
  const configuration = {
    name: `steptap_${name}`,
    help,
    labelNames: labels as readonly string[],
    registers: [registry],
  };
  if (kind === 'counter') {
    new Counter({
      ...configuration,
      collect() {
        this.reset();
        for (const sample of telemetry.samples(name)) this.inc(sample.labels, sample.value);
      },
    });
  } else {
    new Gauge({
      ...configuration,
      collect() {
        this.reset();
        for (const sample of telemetry.samples(name)) this.set(sample.labels, sample.value);
      },
    });
  }
}

/**
 * The same metrics for OpenMetrics: views that give a counter's family without its `_total`, as that format wants it.
 * They stand in the same order, since some defaults set others when they are read.
 */
function openMetricsOf(text: Registry): Registry<OpenMetricsContentType> {
  const openMetrics = new Registry<OpenMetricsContentType>();
  openMetrics.setContentType(Registry.OPENMETRICS_CONTENT_TYPE);
  const metrics = text.getMetricsAsArray().map((metric) => metric as unknown as Registrable);
  const names = new Set(metrics.map(({ name }) => name));
  for (const metric of metrics) openMetrics.registerMetric(registrable(openMetricsView(metric, names)));
  return openMetrics;
}

function openMetricsView(metric: Registrable, names: ReadonlySet<string>): Registrable {
  const family = metric.type === 'counter' ? metric.name.replace(/_total$/, '') : metric.name;
  // `connections` and `connections_total` would be one family of two types. As `unknown` the counter keeps its name.
  const clashes = family !== metric.name && names.has(family);
  const name = clashes ? metric.name : family;
  const type = clashes ? 'unknown' : metric.type;
  return { name, type, help: metric.help, get: async () => ({ ...(await metric.get()), name, type }) };
}
