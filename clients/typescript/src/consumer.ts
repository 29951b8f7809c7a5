/** A consumer of a group: it gets events, answers for them, and joins again whenever it has lost its group. */

import {
  ConsumerNotFound,
  ConsumerSilent,
  GroupDropped,
  GroupElsewhere,
  GroupFull,
  OutcomeUnknown,
  Problem,
  Unavailable,
} from "./errors.js";
import { recordedEvent, type EventDocument, type RecordedEvent } from "./events.js";
import { checked, type Names } from "./options.js";
import { NoAnswerOfGesta } from "./reasons.js";
import { pauseAfter, type Effect } from "./retry.js";
import type { Server } from "./servers.js";
import { serverEvents, type ServerEvent } from "./sse.js";
import type { Call, OpenAnswer, Transport } from "./transport.js";

/** An event for a consumer. `retries` is how often it was delivered before without success. */
export interface Delivery<Data = unknown> {
  readonly number: number;
  readonly retries: number;
  readonly event: RecordedEvent<Data>;
  readonly consumer: string;
}

/** For how many events an answer came in time. The `unknown` ones come again, to this consumer or to another. */
export interface Answered {
  readonly answered: number;
  readonly unknown: number;
}

export interface NackOptions {
  /** "retry" (deliver it again, if absent), "park" (put it aside) or "skip" (take it as finished). */
  readonly action?: "retry" | "park" | "skip";
  /** Stored with parked events. */
  readonly reason?: string;
}

const NACK: Names<NackOptions> = { action: true, reason: true };

/**
 * A consumer of a group, as `Group.join` gives it. Iterate over it, and answer for what comes.
 *
 * A connection that breaks is made again; what the consumer held then comes again. Leaving the loop leaves the group.
 */
export class Consumer<Data = unknown> implements AsyncIterableIterator<Delivery<Data>> {
  readonly #transport: Transport;
  readonly #path: string;
  readonly #parameters: Call["parameters"];
  readonly #left = new AbortController();
  #session: Session | undefined;
  /** Times of joining in a row that held for a moment only. */
  #attempt = 0;

  private constructor(transport: Transport, path: string, parameters: Call["parameters"]) {
    this.#transport = transport;
    this.#path = path;
    this.#parameters = parameters;
  }

  /** @internal */
  static async join<Data>(
    transport: Transport,
    path: string,
    parameters: Call["parameters"],
    signal: AbortSignal | undefined,
  ): Promise<Consumer<Data>> {
    const consumer = new Consumer<Data>(transport, path, parameters);
    if (signal?.aborted) throw signal.reason;
    signal?.addEventListener("abort", () => consumer.leave(), { once: true });
    consumer.#session = await consumer.#join(true);
    return consumer;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<Delivery<Data>, undefined>> {
    while (!this.#left.signal.aborted) {
      const session = (this.#session ??= await this.#join(false));
      if (session === undefined) break;
      try {
        return { done: false, value: await session.next<Data>() };
      } catch (error) {
        session.close();
        this.#session = undefined;
        if (Date.now() - session.began > this.#transport.policy.longestPause) this.#attempt = 0;
        if (this.#left.signal.aborted) break;
        const problem = this.#transport.broken(session.server, session.call, error);
        if (!(problem instanceof Problem) || !this.#passes(problem)) throw problem;
        if (problem instanceof ConsumerSilent) this.#transport.servers.warn(`joining again: ${problem.message}`);
        this.#transport.told(session.server, problem);
      }
    }
    return { done: true, value: undefined };
  }

  async return(): Promise<IteratorResult<Delivery<Data>, undefined>> {
    this.leave();
    return { done: true, value: undefined };
  }

  /** These events are finished. After a crash of the server they may come again all the same. */
  async ack(...deliveries: readonly Delivery[]): Promise<Answered> {
    return this.#answer("/ack", "appends", deliveries, {});
  }

  /** Refuses these events. */
  async nack(
    deliveries: Delivery | readonly Delivery[],
    options: NackOptions = {},
  ): Promise<Answered> {
    const { action = "retry", reason = "" } = checked("nack", options, NACK);
    const all = Array.isArray(deliveries) ? (deliveries as readonly Delivery[]) : [deliveries as Delivery];
    return this.#answer("/nack", "changes", all, { action, reason });
  }

  /** Leaves the group; others get at once what this consumer holds. Iterating ends. */
  leave(): void {
    this.#left.abort();
    this.#session?.close();
  }

  async #answer(
    path: string,
    effect: Effect,
    deliveries: readonly Delivery[],
    more: object,
  ): Promise<Answered> {
    const session = this.#session;
    const held = deliveries.filter((delivery) => delivery.consumer === session?.consumer);
    const others = deliveries.length - held.length;
    if (session === undefined || held.length === 0) return { answered: 0, unknown: others };
    const body = { consumer: session.consumer, deliveries: held.map(({ number }) => number), ...more };
    // An ack that comes twice does no harm. A nack would: an event that is delivered again keeps its number, and is
    // refused twice then. Only the server of the consumer can take either: if that is gone, so is the consumer.
    const call: Call = { method: "POST", path: this.#path + path, effect, body };
    try {
      const { document } = await this.#transport.send(call, session.server);
      const { answered, unknown } = document as Answered;
      return { answered, unknown: unknown + others };
    } catch (error) {
      const tooLate = [ConsumerNotFound, GroupDropped, GroupElsewhere, OutcomeUnknown, Unavailable];
      if (!tooLate.some((kind) => error instanceof kind)) throw error;
      return { answered: 0, unknown: deliveries.length };
    }
  }

  /** Joins the group, and tries until that succeeds; the first time not for ever. Nothing if this has left. */
  async #join(isFirst: boolean): Promise<Session | undefined> {
    const { policy, servers } = this.#transport;
    const signal = this.#left.signal;
    const deadline = Date.now() + policy.giveUpAfter;
    const rest = async (pause: number | undefined): Promise<void> => {
      await this.#transport.sleep(pause ?? pauseAfter(this.#attempt, policy), signal).catch(() => undefined);
      this.#attempt += 1;
    };
    if (!isFirst) await rest(undefined);
    let server = servers.present();
    for (let refusals = 1; !signal.aborted; refusals += 1) {
      const path = `${this.#path}/consume`;
      const call: Call = { method: "GET", path, effect: "reads", parameters: this.#parameters ?? {}, signal };
      let pause: number | undefined;
      try {
        return await Session.open(this.#transport, server, call);
      } catch (error) {
        if (signal.aborted) return undefined;
        const problem = this.#transport.broken(server, call, error);
        // The server may not have noticed yet that the lost connection of this consumer is gone.
        const isFull = problem instanceof GroupFull && !isFirst;
        if (!(problem instanceof Problem) || !(isFull || this.#passes(problem))) throw problem;
        if (isFirst && Date.now() > deadline) throw problem;
        // Whoever was sent on by every server waits, too.
        const isSentOn = problem instanceof GroupElsewhere && refusals >= servers.given.length;
        if (isFull || isSentOn) servers.waits(server, problem);
        if (problem instanceof GroupElsewhere || problem instanceof Unavailable) server = servers.after(server);
        pause = problem.retryAfter;
      }
      await rest(pause);
    }
    return undefined;
  }

  /** Whether joining again can succeed. */
  #passes(problem: Problem): boolean {
    if (problem instanceof GroupElsewhere) return this.#transport.servers.given.length > 1;
    const joinsAgain =
      problem instanceof GroupDropped || problem instanceof ConsumerSilent || problem instanceof ConsumerNotFound;
    return joinsAgain || this.#transport.mayRepeat(problem, "reads");
  }
}

/** One connection of a consumer: from joining to its end. */
class Session {
  readonly began = Date.now();

  private constructor(
    readonly server: Server,
    readonly call: Call,
    readonly consumer: string,
    readonly events: AsyncIterator<ServerEvent, void>,
    readonly answer: OpenAnswer,
  ) {}

  static async open(transport: Transport, server: Server, call: Call): Promise<Session> {
    const answer = await transport.open(server, call);
    try {
      const events = serverEvents(answer);
      const joined = await nextOf(events);
      return new Session(server, call, (joined.document as { consumer: string }).consumer, events, answer);
    } catch (error) {
      answer.close();
      throw error;
    }
  }

  /** The next event. */
  async next<Data>(): Promise<Delivery<Data>> {
    const { document } = await nextOf(this.events);
    const { delivery, retries, event } = document as { delivery: number; retries: number; event: EventDocument };
    return { number: delivery, retries, event: recordedEvent<Data>(event), consumer: this.consumer };
  }

  /** Closes the connection, by which the consumer leaves. */
  close(): void {
    this.answer.close();
  }
}

async function nextOf(events: AsyncIterator<ServerEvent, void>): Promise<ServerEvent> {
  const next = await events.next();
  if (next.done) throw new NoAnswerOfGesta("the connection ended");
  return next.value;
}
