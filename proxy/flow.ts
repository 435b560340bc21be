/** What one direction of one connection has carried since it was last folded into the telemetry. */
import type { Telemetry } from './telemetry.js';

export type Direction = 'to_engine' | 'to_frontend';

export class Flow {
  readonly direction: Direction;
  bytes = 0;
  messages = 0;

  constructor(direction: Direction) {
    this.direction = direction;
  }

  fold(telemetry: Telemetry, engine: string, client: string): void {
    if (this.bytes === 0 && this.messages === 0) return;
    const labels = { engine, client, direction: this.direction };
    telemetry.add('bytes_total', labels, this.bytes);
    telemetry.add('messages_total', labels, this.messages);
    this.bytes = 0;
    this.messages = 0;
  }
}
