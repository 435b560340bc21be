/** The TCP listeners for the data addresses that INIT names, and their ports. */
import type { Logger } from 'pino';
import { type Address, formatAddress, parseAddress } from './address.js';
import type { Endpoint } from './endpoint.js';
import { errnoOf, messageOf, SteptapError } from './errors.js';

export interface DataListenersOptions {
  /** Host to bind; null: the host of the frontend's own address. */
  readonly bindHost: string | null;
  /** Host that engines are told; null: the host of the frontend's own address. */
  readonly advertiseHost: string | null;
  /** null: any free port. */
  readonly ports: { readonly first: number; readonly last: number } | null;
  readonly logger: Logger;
  readonly createEndpoint: (upstream: Address) => Endpoint;
  readonly removed: (endpoint: Endpoint) => void;
}

export class DataListeners {
  readonly #options: DataListenersOptions;
  readonly #byUpstream = new Map<string, Endpoint>();

  constructor(options: DataListenersOptions) {
    this.#options = options;
  }

  /** Lets go of the listeners of a vLLM that is not there any more. */
  keepOnly(upstreams: ReadonlySet<string>): void {
    for (const [upstream, endpoint] of this.#byUpstream) {
      if (upstreams.has(upstream)) continue;
      endpoint.stopListening();
      this.#byUpstream.delete(upstream);
      this.#options.removed(endpoint);
    }
  }

  /** The endpoint that relays to `upstream` (`tcp://host:port`). Throws STEPTAP_PORTS when no port is left. */
  async get(upstream: string, address: Address & { readonly host: string }): Promise<Endpoint> {
    const known = this.#byUpstream.get(upstream);
    if (known !== undefined) return known;
    const endpoint = this.#options.createEndpoint(address);
    await this.#bind(endpoint, this.#options.bindHost ?? address.host);
    this.#byUpstream.set(upstream, endpoint);
    return endpoint;
  }

  /** What engines are told in place of the endpoint's upstream. */
  advertised(endpoint: Endpoint): string {
    const { listenAddress, upstream } = endpoint;
    if (listenAddress === null || !('port' in listenAddress) || !('host' in upstream)) return endpoint.name;
    return formatAddress({ host: this.#options.advertiseHost ?? upstream.host, port: listenAddress.port });
  }

  /** After a restart: listens again where engines will look. A port that is taken is logged, not fatal. */
  async recover(upstream: string, listen: string): Promise<Endpoint | null> {
    const address = parseAddress(upstream);
    const at = parseAddress(listen);
    if (address === null || at === null || 'path' in address || 'path' in at) return null;
    const endpoint = this.#options.createEndpoint(address);
    try {
      await endpoint.listen(at);
    } catch (error) {
      this.#options.logger.error(
        { error: messageOf(error) },
        'engines from before the restart will not find this',
      );
      this.#options.removed(endpoint);
      return null;
    }
    this.#byUpstream.set(upstream, endpoint);
    return endpoint;
  }

  async #bind(endpoint: Endpoint, host: string): Promise<void> {
    const { ports } = this.#options;
    if (ports === null) {
      await endpoint.listen({ host, port: 0 });
      return;
    }
    for (let port = ports.first; port <= ports.last; port++) {
      if (this.#isOwn(port)) continue;
      try {
        await endpoint.listen({ host, port });
        return;
      } catch (error) {
        if (!(error instanceof SteptapError) || errnoOf(error.cause) !== 'EADDRINUSE') throw error;
      }
    }
    throw new SteptapError(
      'STEPTAP_PORTS',
      `engine.ports ${ports.first}-${ports.last} has no free port left for ${endpoint.name}; each frontend client takes two: widen the range`,
    );
  }

  #isOwn(port: number): boolean {
    for (const { listenAddress } of this.#byUpstream.values()) {
      if (listenAddress !== null && 'port' in listenAddress && listenAddress.port === port) return true;
    }
    return false;
  }
}
