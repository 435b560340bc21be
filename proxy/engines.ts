/** The engines that ever connected, and what each of them did, in plain numbers. */
import type { Telemetry } from './telemetry.js';

/** Where steps end up: metrics' iteration histogram. */
export interface StepObserver {
  /** The engine's series stand at zero from now on (S8). */
  addEngine(index: number): void;
  /** One engine step of `tokens` tokens. */
  observe(engine: number, tokens: number): void;
}

export class Engine {
  readonly index: number;
  readonly label: string;
  /** Request connections open now. */
  connections = 0;
  vllmVersion: string | null = null;

  // Since the last fold.
  steps = 0;
  untrackedOutputs = 0;
  untrackedBatches = 0;
  repeatedPrefillReports = 0;

  constructor(index: number) {
    this.index = index;
    this.label = String(index);
  }

  fold(telemetry: Telemetry): void {
    const engine = { engine: this.label };
    telemetry.add('engine_dead_total', engine, 0);
    telemetry.add('engine_steps_total', engine, this.steps);
    telemetry.add('untracked_outputs_total', engine, this.untrackedOutputs);
    telemetry.add('untracked_batches_total', engine, this.untrackedBatches);
    telemetry.add('repeated_prefill_reports_total', engine, this.repeatedPrefillReports);
    this.steps = 0;
    this.untrackedOutputs = 0;
    this.untrackedBatches = 0;
    this.repeatedPrefillReports = 0;
  }
}

export class Engines {
  readonly #byIndex = new Map<number, Engine>();
  readonly #observer: StepObserver;
  readonly #onNew: (engine: Engine) => void;

  constructor(observer: StepObserver, onNew: (engine: Engine) => void) {
    this.#observer = observer;
    this.#onNew = onNew;
  }

  /** The engine of that index, known from now on. */
  add(index: number): Engine {
    let engine = this.#byIndex.get(index);
    if (engine === undefined) {
      engine = new Engine(index);
      this.#byIndex.set(index, engine);
      this.#observer.addEngine(index);
      this.#onNew(engine);
    }
    return engine;
  }

  get(index: number): Engine | undefined {
    return this.#byIndex.get(index);
  }

  get all(): Engine[] {
    return [...this.#byIndex.values()].sort((a, b) => a.index - b.index);
  }
}
