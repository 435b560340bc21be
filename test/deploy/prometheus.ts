import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { waitFor } from '../support/wait.js';
import { Container } from './container.js';

export interface Sample {
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

interface Answer {
  readonly status: string;
  readonly error?: string;
  readonly data: { readonly result: readonly { metric: Record<string, string>; value: [number, string] }[] };
}

export interface Alert {
  readonly labels: Readonly<Record<string, string>>;
  readonly annotations: Readonly<Record<string, string>>;
  readonly state: string;
}

export interface Target {
  readonly job: string;
  readonly port: number;
  readonly relabelConfigs: readonly Readonly<Record<string, unknown>>[];
}

/** A real Prometheus in a folder of its own, scraping every second, with the rule files of deploy/prometheus. */
export class Prometheus {
  readonly container: Container;
  readonly #url: string;

  private constructor(container: Container, port: number) {
    this.container = container;
    this.#url = `http://127.0.0.1:${port}`;
  }

  static async start(folder: string, port: number, targets: readonly Target[]): Promise<Prometheus> {
    const rules = readFileSync('deploy/prometheus/recording-rules.yaml', 'utf8');
    const alerts = readFileSync('deploy/prometheus/alerting-rules.yaml', 'utf8');
    // Here a second is as good as a minute; what the alerts look at is left as it is.
    writeFileSync(join(folder, 'recording-rules.yaml'), rules.replaceAll(/interval: \d+s/g, 'interval: 1s'));
    writeFileSync(join(folder, 'alerting-rules.yaml'), alerts.replaceAll(/for: \d+m/g, 'for: 2s'));
    const config = {
      global: { scrape_interval: '1s', scrape_timeout: '1s', evaluation_interval: '1s' },
      rule_files: ['recording-rules.yaml', 'alerting-rules.yaml'],
      scrape_configs: targets.map((target) => ({
        job_name: target.job,
        static_configs: [
          { targets: [`127.0.0.1:${target.port}`], labels: { namespace: 'test', pod: 'vllm-0' } },
        ],
        relabel_configs: target.relabelConfigs,
      })),
    };
    writeFileSync(join(folder, 'prometheus.yaml'), stringify(config));
    const container = new Container(
      'prometheus',
      [
        'prometheus',
        `--config.file=${join(folder, 'prometheus.yaml')}`,
        `--storage.tsdb.path=${join(folder, 'data')}`,
        `--web.listen-address=127.0.0.1:${port}`,
        '--log.level=warn',
      ],
      {},
    );
    await container.untilPasses({ path: '/-/ready', port, periodSeconds: 1, failureThreshold: 30 });
    return new Prometheus(container, port);
  }

  async query(expr: string): Promise<readonly Sample[]> {
    const answer = await this.#get<Answer>(`/api/v1/query?query=${encodeURIComponent(expr)}`);
    if (answer.status !== 'success') throw new Error(`${expr}: ${answer.error}`);
    return answer.data.result.map(({ metric, value }) => ({ labels: metric, value: Number(value[1]) }));
  }

  /** The value of a query that has exactly one result, undefined while it has none. */
  async value(expr: string): Promise<number | undefined> {
    const samples = await this.query(expr);
    if (samples.length > 1) throw new Error(`${expr}: ${samples.length} results`);
    return samples[0]?.value;
  }

  /** Waits for a scrape or an evaluation to bring the value, up to rounding. */
  async untilValue(expr: string, expected: number): Promise<void> {
    let last: number | undefined;
    const reached = async (): Promise<boolean> => {
      last = await this.value(expr);
      return last !== undefined && Math.abs(last - expected) <= 1e-9 * Math.max(1, Math.abs(expected));
    };
    await waitFor(reached, { deadlineMs: 30_000, what: expr }).catch((cause: unknown) => {
      throw new Error(`${expr} is ${last} instead of ${expected}`, { cause });
    });
  }

  async untilFiring(name: string): Promise<Alert> {
    const ask = async (): Promise<Alert | undefined> => {
      const answer = await this.#get<{ data: { alerts: readonly Alert[] } }>('/api/v1/alerts');
      return answer.data.alerts.find(
        ({ state, labels }) => state === 'firing' && labels['alertname'] === name,
      );
    };
    return waitFor(ask, { deadlineMs: 30_000, what: `alert ${name} fires` });
  }

  /**
   * Waits until no alert is left. One may fire for a moment here, where alerts don't wait as long as they are meant to:
   * `increase` extrapolates, and a few samples in, two series that are scraped at other moments look different.
   */
  async untilQuiet(): Promise<void> {
    let firing: string[] = [];
    const isQuiet = async (): Promise<boolean> => {
      const samples = await this.query('ALERTS{alertstate="firing"}');
      firing = [...new Set(samples.map((sample) => sample.labels['alertname'] ?? ''))].sort();
      return firing.length === 0;
    };
    await waitFor(isQuiet, { deadlineMs: 30_000, what: 'no alert' }).catch((cause: unknown) => {
      throw new Error(`${firing.join(', ')} while all is well`, { cause });
    });
  }

  async #get<T>(path: string): Promise<T> {
    const response = await fetch(this.#url + path, { signal: AbortSignal.timeout(10_000) });
    return (await response.json()) as T;
  }
}
