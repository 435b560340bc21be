/** The running sidecar: relay, histogram, HTTP server and the question for the model's name, put together. */
import type { Logger } from 'pino';
import type { Settings } from '../config/settings.js';
import { IterationHistogram } from '../metrics/iteration-histogram.js';
import type { ModelNameDiscovery } from '../metrics/model-name.js';
import { createRegistry } from '../metrics/registry.js';
import { MetricsServer } from '../metrics/server.js';
import { formatAddress } from './address.js';
import { Relay } from './relay.js';
import type { TapContext } from './tap.js';
import { Telemetry } from './telemetry.js';

const READINESS_LOG_MS = 1000;

export interface SidecarOptions {
  readonly settings: Settings;
  readonly logger: Logger;
  readonly version: string;
  /** Sees all bytes of all connections; for captures. */
  readonly recorder?: TapContext['recorder'];
}

/** What was bound, for the log. */
export interface Bound {
  readonly metricsUrl: string;
  readonly ipcDir: string | null;
  readonly engineHandshake: string | null;
}

export class Sidecar {
  readonly #options: SidecarOptions;
  readonly #telemetry = new Telemetry();
  readonly #histogram = new IterationHistogram();
  readonly #relay: Relay;
  readonly #server: MetricsServer;
  #discovery: Promise<ModelNameDiscovery> | null = null;
  #isBound = false;
  #readinessTimer: NodeJS.Timeout | undefined;
  #lastReasons: string | null = null;

  constructor(options: SidecarOptions) {
    const { settings, logger, version, recorder } = options;
    this.#options = options;
    this.#relay = new Relay({
      settings,
      logger,
      observer: this.#histogram,
      telemetry: this.#telemetry,
      ...(recorder === undefined ? {} : { recorder }),
    });
    this.#server = new MetricsServer({
      registry: createRegistry(this.#telemetry, this.#histogram, { version }),
      host: settings.metrics.host,
      port: settings.metrics.port,
      health: { bound: () => this.#isBound, unreadyReasons: () => this.#relay.unreadyReasons() },
      status: () => this.#status(),
      logger,
    });
    this.#histogram.modelName = settings.model.name;
  }

  /** Binds the metrics port, then what engines connect to. Throws SteptapError when something can't be had. */
  async start(): Promise<Bound> {
    const { settings } = this.#options;
    const { port } = await this.#server.listen();
    try {
      await this.#relay.start();
    } catch (error) {
      // Nothing of it may go on listening, or the process would stay with half of what it was asked for.
      this.#relay.destroy();
      await this.#server.close();
      throw error;
    }
    this.#isBound = true;
    if (settings.model.name === null) this.#discovery = this.#askForName();
    this.#readinessTimer = setInterval(() => this.#logReadiness(), READINESS_LOG_MS);
    this.#readinessTimer.unref();
    const host = isWildcard(settings.metrics.host) ? '127.0.0.1' : settings.metrics.host;
    return {
      metricsUrl: formatAddress({ host, port }).replace('tcp://', 'http://'),
      ipcDir: settings.ipc.dir,
      engineHandshake: settings.engine.handshake,
    };
  }

  /** Drains, then closes the metrics port last, so that the final numbers can be scraped while draining. */
  async stop(): Promise<void> {
    clearInterval(this.#readinessTimer);
    await this.#relay.drain(this.#options.settings.drain.timeout);
    await (await this.#discovery)?.stop();
    await this.#server.close();
  }

  /** Ends at once what must not outlive the process: socket names are put back. */
  abort(): void {
    this.#relay.destroy();
  }

  /** Loads undici only where it is needed: it takes 20 MB and a third of the time that a start takes. */
  async #askForName(): Promise<ModelNameDiscovery> {
    const { settings, logger } = this.#options;
    const { ModelNameDiscovery } = await import('../metrics/model-name.js');
    const discovery = new ModelNameDiscovery({
      url: settings.frontend.url,
      apiKey: settings.frontend.apiKey,
      logger,
      onName: (name) => {
        this.#histogram.modelName = name;
      },
    });
    discovery.start();
    return discovery;
  }

  /** When it was ready, and why not, is what one looks for in the log afterwards. */
  #logReadiness(): void {
    const reasons = this.#relay.unreadyReasons();
    if (reasons.join() === this.#lastReasons) return;
    this.#lastReasons = reasons.join();
    const { logger } = this.#options;
    if (reasons.length === 0) logger.info('ready');
    else logger.info({ reasons }, 'not ready');
  }

  #status(): unknown {
    const { frontend } = this.#relay;
    return {
      version: this.#options.version,
      modelName: this.#histogram.modelName,
      unreadyReasons: this.#relay.unreadyReasons(),
      endpoints: this.#relay.endpoints.map(({ kind, client, listenAddress, name, connections }) => ({
        kind,
        client,
        listen: listenAddress === null ? null : formatAddress(listenAddress),
        upstream: name,
        connections: connections.size,
      })),
      engines: frontend.engines.all.map(({ index, connections, vllmVersion }) => ({
        index,
        connections,
        vllmVersion,
      })),
      clients: frontend.clients.map(({ client, trackedCount, adoptedCount }) => ({
        client,
        trackedRequests: trackedCount,
        adoptedRequests: adoptedCount,
      })),
      totals: this.#histogram
        .totals()
        .map(({ engine, count, sum }) => ({ engine, steps: count, tokens: sum })),
    };
  }
}

function isWildcard(host: string): boolean {
  return host === '0.0.0.0' || host === '::';
}
