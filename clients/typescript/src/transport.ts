/** Sends calls to servers and takes their answers: one attempt, and attempts until the outcome is known. */

import { setTimeout as sleep } from "node:timers/promises";

import type { Fetch } from "./authority.js";
import {
  GroupElsewhere,
  NoTls,
  NotTrusted,
  OutcomeUnknown,
  Overloaded,
  Problem,
  Unavailable,
  noTls,
  notTrusted,
  outcomeUnknown,
  problemOf,
  unavailable,
  unreadable,
} from "./errors.js";
import { NoAnswerOfGesta, Silence, isNoTls, isNotSent, isNotTrusted, isOfConnection, reasonOf } from "./reasons.js";
import { afterDoubt, isOfThisServer, mayBeRepeated, pauseAfter, type Effect, type Policy } from "./retry.js";
import type { Server, Servers } from "./servers.js";

const EVENT_STREAM = "text/event-stream";

/** The longest pause, in milliseconds, that a server can ask for. */
const RETRY_AFTER_MAX = 60_000;

/** A call before it is sent. Parameters that are not defined are left out. */
export interface Call {
  readonly method: "GET" | "POST" | "PUT" | "DELETE";
  readonly path: string;
  readonly effect: Effect;
  readonly parameters?: Readonly<Record<string, string | number | undefined>>;
  readonly body?: unknown;
  readonly signal?: AbortSignal | undefined;
}

/** A whole answer that is no error. */
export interface Answer {
  readonly headers: Headers;
  readonly document: unknown;
}

/** An answer that does not end. */
export interface OpenAnswer {
  readonly body: AsyncIterable<Uint8Array>;
  close(): void;
}

/** A name as a segment of a path. */
export function segment(name: string): string {
  // An address loses such segments, even encoded ones, and would name something else.
  if (name === "." || name === "..") throw new TypeError(`${JSON.stringify(name)} cannot be sent in an address`);
  return encodeURIComponent(name);
}

/** The way to the servers. */
export class Transport {
  constructor(
    readonly servers: Servers,
    readonly policy: Policy,
    readonly fetch: Fetch,
    readonly authorization: string | undefined,
  ) {}

  /** Sends a call until its outcome is known, to any server; or to `only` one, while that is there. */
  async send(call: Call, only?: Server): Promise<Answer> {
    const deadline = Date.now() + (only === undefined ? this.policy.giveUpAfter : this.policy.answerMax);
    let server = only ?? this.servers.present();
    let askedSincePause = 0;
    let isInDoubt = false;
    for (let attempt = 0; ; ) {
      let last: Problem;
      let failure: Problem;
      try {
        return await this.#exchange(server, call);
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        isInDoubt ||= error instanceof OutcomeUnknown;
        failure = isInDoubt ? afterDoubt(error) : error;
        if (!this.#goesOn(error, call.effect, only)) throw failure;
        last = error;
      }
      askedSincePause += 1;
      if (only === undefined && isOfThisServer(last)) {
        server = this.servers.after(server);
        if (askedSincePause < this.servers.given.length) continue;
      }
      if (last instanceof GroupElsewhere) this.servers.waits(server, last);
      const pause = last.retryAfter ?? pauseAfter(attempt, this.policy);
      if (Date.now() + pause > deadline) throw failure;
      await this.sleep(pause, call.signal);
      attempt += 1;
      askedSincePause = 0;
    }
  }

  /** Sends a call whose answer does not end. */
  async open(server: Server, call: Call): Promise<OpenAnswer> {
    const watch = new Watch(this.policy.silenceMax, call.signal);
    try {
      const answer = await this.#begin(server, call, watch.signal);
      const kind = answer.headers.get("Content-Type");
      if (kind?.split(";")[0]?.trim().toLowerCase() !== EVENT_STREAM) {
        const title = "The answer is no event stream";
        const came = `${server} gave ${kind ?? "no Content-Type"} in place of ${EVENT_STREAM}`;
        throw new Problem({ title, detail: `${came}: is it a server of Gesta?`, status: answer.status });
      }
      this.servers.answered(server);
      const body = answer.body as AsyncIterable<Uint8Array> | null;
      if (body === null) throw new NoAnswerOfGesta("an answer without a body");
      watch.rest();
      return { body: watch.over(body), close: () => watch.close() };
    } catch (error) {
      watch.close();
      throw this.broken(server, call, error);
    }
  }

  /** What a call throws for an error: a connection that broke becomes the problem of the call. */
  broken(server: Server, call: Call, error: unknown): unknown {
    if (call.signal?.aborted) return call.signal.reason;
    if (error instanceof Problem || !isOfConnection(error)) return error;
    const reason = reasonOf(error);
    const problem = problemOfConnection(server, call, error, reason);
    this.servers.failed(server, reason, this.#isHopeless(problem));
    return problem;
  }

  /** Notes what a server says of itself: one that is not available is left, one that is overloaded waited for. */
  told(server: Server, problem: Problem): void {
    if (problem instanceof Overloaded) this.servers.waits(server, problem);
    if (problem instanceof Unavailable && problem.status !== undefined) this.servers.failed(server, problem.detail);
  }

  /** Whether the same call may succeed later, with the servers that there are, and can do no harm. */
  mayRepeat(problem: Problem, effect: Effect): boolean {
    return mayBeRepeated(problem, effect) && !this.#isHopeless(problem);
  }

  /** Waits. */
  async sleep(pause: number, signal: AbortSignal | undefined): Promise<void> {
    await sleep(pause, undefined, signal === undefined ? {} : { signal });
  }

  #isHopeless(problem: Problem): boolean {
    return (problem instanceof NotTrusted || problem instanceof NoTls) && this.servers.given.length === 1;
  }

  #goesOn(problem: Problem, effect: Effect, only: Server | undefined): boolean {
    if (problem instanceof GroupElsewhere) return only === undefined && this.servers.given.length > 1;
    return !(problem instanceof Unavailable && only !== undefined) && this.mayRepeat(problem, effect);
  }

  /** One attempt. */
  async #exchange(server: Server, call: Call): Promise<Answer> {
    const watch = new Watch(this.policy.answerMax, call.signal);
    try {
      const answer = await this.#begin(server, call, watch.signal);
      const text = await answer.text();
      const document: unknown = text === "" ? undefined : parse(text, answer, call);
      this.servers.answered(server);
      return { headers: answer.headers, document };
    } catch (error) {
      throw this.broken(server, call, error);
    } finally {
      watch.close();
    }
  }

  /** Sends a call and takes the head of the answer. An answer that is an error becomes an exception. */
  async #begin(server: Server, call: Call, signal: AbortSignal): Promise<Response> {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(call.parameters ?? {})) {
      if (value !== undefined) query.append(name, String(value));
    }
    const question = Object.values(call.parameters ?? {}).some((value) => value !== undefined) ? `?${query}` : "";
    const headers: Record<string, string> = {};
    if (this.authorization !== undefined) headers["Authorization"] = this.authorization;
    if (call.body !== undefined) headers["Content-Type"] = "application/json";
    const answer = await this.fetch(`${server}${call.path}${question}`, {
      method: call.method,
      headers,
      signal,
      redirect: "manual",
      ...(call.body === undefined ? {} : { body: jsonOf(call.body) }),
    });
    if (answer.ok) return answer;
    const problem = problemIn(answer, await answer.text(), server);
    this.told(server, problem);
    throw problem;
  }
}

function problemOfConnection(server: Server, call: Call, error: unknown, reason: string): Problem {
  const detail = `cannot connect to ${server}: ${reason}`;
  if (isNotTrusted(error)) return notTrusted(detail);
  if (isNoTls(error)) return noTls(detail);
  if (isNotSent(error)) return unavailable(detail);
  return call.effect === "reads" ? unavailable(`${server}: ${reason}`) : outcomeUnknown(`${server}: ${reason}`);
}

function parse(text: string, answer: Response, call: Call): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    const saysJson = /^application\/json *(;|$)/i.test(answer.headers.get("Content-Type") ?? "");
    // The server has answered, and would give the same again.
    if (call.effect === "reads" && saysJson) throw unreadable(error, answer.status);
    throw new NoAnswerOfGesta("the answer is no JSON");
  }
}

/** A document as the body of a call. Numbers that JSON does not have are refused: they would be stored as `null`. */
function jsonOf(document: unknown): string {
  return JSON.stringify(document, (name, value: unknown) => {
    if (typeof value === "bigint") {
      throw new TypeError(`${JSON.stringify(name)} is a BigInt, which JSON cannot say: give it as a text`);
    }
    if (typeof value !== "number" || Number.isFinite(value)) return value;
    throw new TypeError(`${JSON.stringify(name)} is ${value}, which JSON cannot say`);
  });
}

function problemIn(answer: Response, text: string, server: Server): Problem {
  const asked = answer.headers.get("Retry-After") ?? "";
  const retryAfter = /^\d+$/.test(asked) ? Math.min(Number(asked) * 1_000, RETRY_AFTER_MAX) : 0;
  try {
    const document: unknown = JSON.parse(text);
    if (typeof document === "object" && document !== null) return problemOf(document, retryAfter || undefined);
  } catch {
    // Not of this API: a proxy in between answers.
  }
  const title = `HTTP status ${answer.status} without a problem document`;
  if (answer.status >= 500) throw new NoAnswerOfGesta(title);
  return new Problem({ title, detail: server, status: answer.status });
}

/** Ends a request when nothing comes for too long while somebody waits for it, or when its caller wants that. */
class Watch {
  readonly #controller = new AbortController();
  readonly #caller: AbortSignal | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(
    readonly silenceMax: number,
    caller: AbortSignal | undefined,
  ) {
    this.#caller = caller;
    if (caller?.aborted) this.#ended();
    caller?.addEventListener("abort", this.#ended);
    this.begin();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** The time begins, perhaps again. */
  begin(): void {
    clearTimeout(this.#timer);
    const silent = (): void => this.#controller.abort(new Silence("nothing came in time"));
    // A program that has forgotten an answer may end: the connection alone keeps it running.
    this.#timer = setTimeout(silent, this.silenceMax).unref();
  }

  /** The time stands still: nobody waits for the server. */
  rest(): void {
    clearTimeout(this.#timer);
  }

  /** A body whose reader may take its time: the server's time runs only while the reader waits for more. */
  async *over(body: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void> {
    this.begin();
    for await (const bytes of body) {
      this.rest();
      yield bytes;
      this.begin();
    }
  }

  /** Ends the request, if it has not ended by itself. */
  close(): void {
    clearTimeout(this.#timer);
    this.#caller?.removeEventListener("abort", this.#ended);
    this.#controller.abort();
  }

  readonly #ended = (): void => this.#controller.abort(this.#caller?.reason);
}
