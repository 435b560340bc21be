/**
 * What the relay tells about itself, as plain numbers. proxy/ writes here, metrics/ reads at scrape time and
 * knows how to print it, so nothing in the data path touches a metrics library.
 */

interface Family {
  readonly kind: 'counter' | 'gauge';
  readonly labels: readonly string[];
  readonly help: string;
}

/** Names without the `steptap_` prefix. The table in README.md is checked against this one by a test. */
export const FAMILIES = {
  bytes_total: {
    kind: 'counter',
    labels: ['engine', 'client', 'direction'],
    help: 'Bytes relayed, by direction (to_engine, to_frontend).',
  },
  messages_total: {
    kind: 'counter',
    labels: ['engine', 'client', 'direction'],
    help: 'Whole ZeroMQ messages relayed, by direction (to_engine, to_frontend).',
  },
  connections: {
    kind: 'gauge',
    labels: ['kind'],
    help: 'Relayed connections open now, by what flows there (handshake, requests, outputs, other).',
  },
  connections_total: { kind: 'counter', labels: ['kind'], help: 'Connections accepted.' },
  connection_failures_total: {
    kind: 'counter',
    labels: ['kind', 'reason'],
    help: 'Connections that were refused or ended for a reason of their own.',
  },
  tracked_requests: {
    kind: 'gauge',
    labels: ['client'],
    help: 'Requests this frontend client has in flight and that tracking.requestIds selects.',
  },
  untracked_outputs_total: {
    kind: 'counter',
    labels: ['engine'],
    help: 'Outputs of requests that are not tracked.',
  },
  untracked_batches_total: {
    kind: 'counter',
    labels: ['engine'],
    help: 'Batches that observed 0 because nothing in them was tracked.',
  },
  repeated_prefill_reports_total: {
    kind: 'counter',
    labels: ['engine'],
    help: 'Prefill stats that came again for the same request; counted again, as the frontend does.',
  },
  unknown_engine_batches_total: {
    kind: 'counter',
    labels: [],
    help: 'Batches of an engine that never connected to this frontend; not observed.',
  },
  adopted_requests_total: {
    kind: 'counter',
    labels: [],
    help: 'Requests from before a restart of steptap, tracked from their first output on.',
  },
  decode_errors_total: {
    kind: 'counter',
    labels: ['kind', 'reason'],
    help: 'Messages that were relayed but could not be read.',
  },
  opaque_connections_total: {
    kind: 'counter',
    labels: ['kind', 'reason'],
    help: 'Connections that are relayed but no longer read.',
  },
  engine_dead_total: { kind: 'counter', labels: ['engine'], help: 'ENGINE_CORE_DEAD messages.' },
  engine_steps_total: {
    kind: 'counter',
    labels: ['engine'],
    help: 'Output messages that carry scheduler stats: one per engine step.',
  },
  frontend_path_usable: {
    kind: 'gauge',
    labels: [],
    help: '0 when a libzmq frontend lost the path to a reconnected engine and must be restarted.',
  },
  state_write_failures_total: {
    kind: 'counter',
    labels: ['reason'],
    help: 'Failed writes of the state file; a restart would not find its listeners.',
  },
} as const satisfies Record<string, Family>;

export type FamilyName = keyof typeof FAMILIES;
export type LabelsOf<N extends FamilyName> = Record<(typeof FAMILIES)[N]['labels'][number], string>;

export interface Sample {
  readonly labels: Readonly<Record<string, string>>;
  value: number;
}

/** One number per metric family and label set. Not for the data path: it keeps numbers of its own and folds. */
export class Telemetry {
  readonly #families = new Map<FamilyName, Map<string, Sample>>();
  readonly #beforeRead = new Set<() => void>();

  constructor() {
    for (const name of Object.keys(FAMILIES) as FamilyName[]) {
      this.#families.set(name, new Map());
      if (FAMILIES[name].labels.length === 0)
        this.#sample(name, {}).value = name === 'frontend_path_usable' ? 1 : 0;
    }
  }

  add<N extends FamilyName>(name: N, labels: LabelsOf<N>, by = 1): void {
    this.#sample(name, labels).value += by;
  }

  set<N extends FamilyName>(name: N, labels: LabelsOf<N>, value: number): void {
    this.#sample(name, labels).value = value;
  }

  get<N extends FamilyName>(name: N, labels: LabelsOf<N>): number {
    return this.#sample(name, labels).value;
  }

  /** `fold` runs before every read, to bring in numbers that are kept elsewhere. Returns its removal. */
  beforeRead(fold: () => void): () => void {
    this.#beforeRead.add(fold);
    return () => this.#beforeRead.delete(fold);
  }

  fold(): void {
    for (const fold of this.#beforeRead) fold();
  }

  samples(name: FamilyName): readonly Sample[] {
    return [...(this.#families.get(name)?.values() ?? [])];
  }

  #sample(name: FamilyName, labels: Readonly<Record<string, string>>): Sample {
    const family = this.#families.get(name) as Map<string, Sample>;
    const key = FAMILIES[name].labels.map((label) => labels[label]).join('\0');
    let sample = family.get(key);
    if (sample === undefined) {
      sample = { labels: { ...labels }, value: 0 };
      family.set(key, sample);
    }
    return sample;
  }
}
