/** ZeroMQ sockets as vLLM sets them up: no high-water mark, and a little time to send when they are closed. */
import { Dealer, type Message, type MessageLike, type Pull, Push, type Router, type Socket } from 'zeromq';

const LINGER_MS = 500;
export const PULL_OPTIONS = { linger: LINGER_MS, receiveHighWaterMark: 0 } as const;
export const ROUTER_OPTIONS = { ...PULL_OPTIONS, sendHighWaterMark: 0 } as const;
const DEALER_OPTIONS = { ...ROUTER_OPTIONS, reconnectInterval: 50 } as const;
const PUSH_OPTIONS = { linger: LINGER_MS, sendHighWaterMark: 0, reconnectInterval: 50 } as const;
const ZMQ_ROUTING_ID = 5;

/** A DEALER with an identity that is not text, which the `routingId` accessor would need it to be. */
export class IdentityDealer extends Dealer {
  constructor(identity: Buffer) {
    super(DEALER_OPTIONS);
    this.setStringOption(ZMQ_ROUTING_ID, identity);
  }
}

export function openPush(): Push {
  return new Push(PUSH_OPTIONS);
}

/** Connects in the background, again and again while nobody listens there. */
export function connectTo(socket: Socket, address: string): void {
  socket.ipv6 = address.includes('[');
  socket.connect(address);
}

/** Binds and gives the address with the port that was taken for port 0. */
export async function bindTo(socket: Socket, address: string): Promise<string> {
  socket.ipv6 = address.includes('[');
  await socket.bind(address);
  return socket.lastEndpoint ?? address;
}

/** Sends messages one after the other: a ZeroMQ socket refuses a send while another one waits. */
export class Outbox {
  readonly #socket: Router | Dealer | Push;
  #last: Promise<void> = Promise.resolve();

  constructor(socket: Router | Dealer | Push) {
    this.#socket = socket;
  }

  /** Resolves when ZeroMQ has taken the message; rejects when it refuses it (closed, or no such peer). */
  send(frames: readonly MessageLike[]): Promise<void> {
    const sent = this.#last.then(() => this.#socket.send([...frames]));
    this.#last = sent.catch(() => {});
    return sent;
  }

  /** Resolves when all messages so far are with ZeroMQ, or refused. */
  drained(): Promise<void> {
    return this.#last;
  }
}

/** Hands every message to `onMessage` until the socket is closed. */
export async function receiveAll(
  socket: Router | Dealer | Pull,
  onMessage: (frames: Message[]) => void,
): Promise<void> {
  for await (const frames of socket) onMessage(frames);
}
