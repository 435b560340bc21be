import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { Container, until } from './container.js';

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
  readonly #container: Container;
  readonly #url: string;

  private constructor(container: Container, port: number) {
    this.#container = container;
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

  async untilValue(expr: string, expected: number): Promise<void> {
    await until(
      expr,
      () => this.value(expr),
      (value) => value !== undefined && Math.abs(value - expected) <= 1e-9 * Math.max(1, Math.abs(expected)),
    );
  }

  async untilFiring(name: string): Promise<Alert> {
    const ask = async (): Promise<readonly Alert[]> => {
      const answer = await this.#get<{ data: { alerts: readonly Alert[] } }>('/api/v1/alerts');
      return answer.data.alerts.filter((alert) => alert.state === 'firing');
    };
    const named = (alert: Alert): boolean => alert.labels['alertname'] === name;
    const alerts = await until(`alert ${name}`, ask, (firing) => firing.some(named));
    return alerts.find(named) as Alert;
  }

  async firing(): Promise<readonly string[]> {
    const samples = await this.query('ALERTS{alertstate="firing"}');
    return [...new Set(samples.map((sample) => sample.labels['alertname'] ?? ''))].sort();
  }

  async stop(): Promise<void> {
    await this.#container.end('SIGTERM', 10_000);
  }

  async #get<T>(path: string): Promise<T> {
    const response = await fetch(this.#url + path, { signal: AbortSignal.timeout(10_000) });
    return (await response.json()) as T;
  }
}
