/**
 * What steptap does with an INIT: learns from it which sockets carry requests and which outputs, and of which
 * client; where these are TCP addresses it puts its own listeners in their place.
 */
import type { Logger } from 'pino';
import { parseAddress } from './address.js';
import type { DataListeners } from './data-listeners.js';
import type { Endpoint, EndpointKind } from './endpoint.js';
import { messageOf } from './errors.js';
import type { Frontend } from './frontend.js';
import type { Telemetry } from './telemetry.js';
import { type AddressSpan, readInitAddresses, spliceAddresses } from './vllm/handshake.js';

export interface InitOptions {
  readonly frontend: Frontend;
  readonly listeners: DataListeners;
  /** The endpoint that took over a unix socket; undefined while there is none. */
  readonly findTaken: (path: string) => Endpoint | undefined;
  /** Whether a socket directory is watched at all. */
  readonly hasDirectory: boolean;
  readonly telemetry: Telemetry;
  readonly logger: Logger;
}

export class InitHandler {
  readonly #options: InitOptions;
  /** Engines get their INIT at the same moment; listeners are made once. */
  #queue: Promise<unknown> = Promise.resolve();

  constructor(options: InitOptions) {
    this.#options = options;
  }

  /** INIT with steptap's addresses, or null when `body` is not INIT or stays as it is. Never rejects. */
  handle(body: Buffer): Promise<Buffer | null> {
    const result = this.#queue.then(() => this.#handle(body));
    this.#queue = result;
    return result;
  }

  async #handle(body: Buffer): Promise<Buffer | null> {
    const { frontend, listeners, telemetry, logger } = this.#options;
    try {
      const init = readInitAddresses(body);
      if (init === null) return null;
      const inputs = init.inputs.map(({ address }) => address);
      const outputs = init.outputs.map(({ address }) => address);
      frontend.begin({ inputs, outputs });
      listeners.keepOnly(new Set([...inputs, ...outputs]));
      const replacements = new Map<AddressSpan, string>();
      for (const [client, span] of init.inputs.entries())
        await this.#place(span, 'requests', client, replacements);
      for (const [client, span] of init.outputs.entries())
        await this.#place(span, 'outputs', client, replacements);
      return replacements.size === 0 ? null : spliceAddresses(body, replacements);
    } catch (error) {
      telemetry.add('decode_errors_total', { kind: 'handshake', reason: 'init' });
      logger.error(
        { error: messageOf(error) },
        'INIT is passed on unchanged: engines go past steptap and are not counted',
      );
      return null;
    }
  }

  async #place(
    span: AddressSpan,
    kind: EndpointKind,
    client: number,
    replacements: Map<AddressSpan, string>,
  ): Promise<void> {
    const { findTaken, hasDirectory, listeners, logger } = this.#options;
    const address = parseAddress(span.address);
    if (address !== null && 'host' in address) {
      const endpoint = await listeners.get(span.address, address);
      endpoint.assign(kind, String(client));
      replacements.set(span, listeners.advertised(endpoint));
      return;
    }
    const taken = address === null ? undefined : findTaken(address.path);
    const detail = { address: span.address, kind, client };
    if (taken !== undefined) taken.assign(kind, String(client));
    // vLLM up to 0.15 binds its data sockets behind the handshake; they are known by name when they come.
    else if (hasDirectory) logger.info(detail, 'INIT names a socket that is not there yet');
    else logger.error(detail, 'this socket is not relayed: its traffic is not counted');
  }
}
