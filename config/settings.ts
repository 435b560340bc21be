/** The effective configuration, typed. Times are milliseconds, sizes bytes; null means off or not set. */
export interface Settings {
  readonly ipc: { readonly dir: string | null };
  readonly frontend: {
    /** `tcp://host:port` to dial for the handshake. */
    readonly handshake: string | null;
    readonly url: string;
    readonly apiKey: string | null;
  };
  readonly engine: {
    /** `tcp://host:port` where engines find steptap. */
    readonly handshake: string | null;
    readonly advertiseHost: string | null;
    /** Ports of the data listeners, first and last inclusive; null: any free one. */
    readonly ports: { readonly first: number; readonly last: number } | null;
  };
  readonly model: { readonly name: string | null };
  /** Globs over request ids; `!` in front excludes. */
  readonly tracking: { readonly requestIds: readonly string[] };
  readonly metrics: { readonly host: string; readonly port: number };
  readonly state: { readonly path: string | null };
  readonly decode: { readonly maxFrameBytes: number };
  readonly drain: { readonly timeout: number };
  readonly log: {
    readonly level: 'trace' | 'debug' | 'info' | 'warn' | 'error' | 'fatal' | 'silent';
    readonly format: 'json' | 'pretty';
  };
}
