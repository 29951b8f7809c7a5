/** A store behind one or more servers: all calls of the HTTP API that applications need. */

import { recordedEvent, type EventData, type EventDocument, type RecordedEvent } from "./events.js";
import { follow, type FollowOptions, type Message } from "./follow.js";
import { Group, listGroups, type GroupName } from "./groups.js";
import { checked, type Names } from "./options.js";
import {
  conditionDocument,
  filterParameter,
  type Appended,
  type AppendedToStreams,
  type Changed,
  type Condition,
  type Direction,
  type Expected,
  type Filter,
  type NoMatch,
  type Page,
  type StreamAppend,
  type StreamInfo,
  type StreamMetadata,
} from "./requests.js";
import type { Effect } from "./retry.js";
import { segment, type Call, type Transport } from "./transport.js";

/** Events that are asked for at once while reading without end. */
const PAGE = 1000;

export interface CallOptions {
  /** Gives the call up. What was sent may have been done. */
  readonly signal?: AbortSignal;
}

export interface AppendOptions extends CallOptions {
  /** The claim about the stream; "any" if absent. */
  readonly expected?: Expected;
}

export interface AppendToStreamsOptions extends CallOptions {
  readonly conditions?: readonly (Condition | NoMatch)[];
}

export interface ReadStreamOptions extends CallOptions {
  /** The first revision that is read, or "start" or "end". */
  readonly from?: number | "start" | "end";
  readonly direction?: Direction;
  /** The most events; of a page 1,000 if absent, and 10,000 at most. */
  readonly limit?: number;
  readonly resolveLinks?: boolean;
}

type ReadEventOptions = Pick<ReadStreamOptions, "resolveLinks" | "signal">;
type FollowAllOptions = FollowOptions & { readonly filter?: Filter };
type FollowStreamOptions = FollowOptions & { readonly resolveLinks?: boolean };

export interface ReadAllOptions extends CallOptions {
  /** A checkpoint, or "start" or "end". */
  readonly from?: string;
  readonly direction?: Direction;
  readonly limit?: number;
  readonly filter?: Filter;
}

const CALL: Names<CallOptions> = { signal: true };
const APPEND: Names<AppendOptions> = { expected: true, ...CALL };
const APPEND_TO_STREAMS: Names<AppendToStreamsOptions> = { conditions: true, ...CALL };
const STREAM_APPEND: Names<StreamAppend> = { stream: true, events: true, expected: true };
const READ_EVENT: Names<ReadEventOptions> = { resolveLinks: true, ...CALL };
const READ_STREAM: Names<ReadStreamOptions> = { from: true, direction: true, limit: true, ...READ_EVENT };
const READ_ALL: Names<ReadAllOptions> = { from: true, direction: true, limit: true, filter: true, ...CALL };
const FOLLOW: Names<FollowOptions> = { after: true, signal: true, behind: true };
const FOLLOW_ALL: Names<FollowAllOptions> = { ...FOLLOW, filter: true };
const FOLLOW_STREAM: Names<FollowStreamOptions> = { ...FOLLOW, resolveLinks: true };

/**
 * A store behind one or more servers, as `connect` gives it.
 *
 * Calls wait while no server answers, and are repeated as the policy says; a call that may have changed something is
 * repeated only if the server recognises it. Whatever is refused is thrown at once, as a `Problem`.
 */
export class Store {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /**
   * Appends events to a stream, all or none; they are durable when it resolves. Appending the same `EventData` again
   * gives the first answer and stores nothing. Throws `WrongExpectedRevision` if somebody else came first,
   * `OutcomeUnknown` if the server did not come back in time.
   *
   * ```ts
   * await store.append("cart-1", [new EventData("item-added", { item: "pen" })], { expected: 0 });
   * ```
   */
  async append(stream: string, events: readonly EventData[], options: AppendOptions = {}): Promise<Appended> {
    const { expected = "any", signal } = checked("append", options, APPEND);
    const body = { expected, events: documents(events) };
    const answer = await this.#post(`/streams/${segment(stream)}`, body, effectOf(events), signal);
    return appended(answer as AppendedDocument);
  }

  /**
   * Appends to several streams of one log, all or nothing, provided that all conditions hold.
   *
   * ```ts
   * const reserve = [{ stream: "stock-{7}", events: [new EventData("reserved", {})] }];
   * await store.appendToStreams(reserve, { conditions: [{ stream: "order-{7}", expected: 1 }] });
   * ```
   */
  async appendToStreams(
    appends: readonly StreamAppend[],
    options: AppendToStreamsOptions = {},
  ): Promise<AppendedToStreams> {
    const { conditions = [], signal } = checked("appendToStreams", options, APPEND_TO_STREAMS);
    const parts = appends.map((append, index) => {
      const { stream, expected = "any", events } = checked(`appends[${index}]`, append, STREAM_APPEND);
      return { stream, expected, events: documents(events) };
    });
    const required = conditions.map(conditionDocument);
    const body = required.length === 0 ? { appends: parts } : { appends: parts, conditions: required };
    const effect = effectOf(appends.flatMap(({ events }) => events));
    const answer = (await this.#post("/append", body, effect, signal)) as Changed & {
      readonly streams: readonly Omit<AppendedDocument, "log" | "checkpoint">[];
    };
    const { log, position, checkpoint } = answer;
    const streams = answer.streams.map((part) => appended({ ...part, log, checkpoint }));
    return { streams, log, position, checkpoint };
  }

  /** Yields the events of a stream, page after page. */
  readStream<Data = unknown>(
    stream: string,
    options: ReadStreamOptions = {},
  ): AsyncGenerator<RecordedEvent<Data>, void> {
    checked("readStream", options, READ_STREAM);
    const page = (of: PageOf<number>) => this.readStreamPage<Data>(stream, { ...options, ...of });
    return allPages<RecordedEvent<Data>, number>(page, options.limit);
  }

  /** One page of a stream. */
  async readStreamPage<Data = unknown>(
    stream: string,
    options: ReadStreamOptions = {},
  ): Promise<Page<RecordedEvent<Data>, number>> {
    const given = checked("readStreamPage", options, READ_STREAM);
    const { from, direction, limit = PAGE, resolveLinks = false, signal } = given;
    const parameters = { from, direction, limit, resolve_links: flag(resolveLinks) };
    return this.#page<Data, number>(`/streams/${segment(stream)}`, parameters, signal);
  }

  /** One event of a stream. */
  async readEvent<Data = unknown>(
    stream: string,
    revision: number,
    options: ReadEventOptions = {},
  ): Promise<RecordedEvent<Data>> {
    const { resolveLinks = false, signal } = checked("readEvent", options, READ_EVENT);
    const parameters = { resolve_links: flag(resolveLinks) };
    const answer = await this.#get(`/streams/${segment(stream)}/${revision}`, parameters, signal);
    return recordedEvent<Data>(answer as EventDocument);
  }

  /**
   * Yields all events that a filter lets pass, page after page.
   *
   * ```ts
   * const filter = { categories: ["cart"], tags: ["customer:7"] };
   * for await (const event of store.readAll({ filter })) console.log(event.stream, event.type);
   * ```
   */
  readAll<Data = unknown>(options: ReadAllOptions = {}): AsyncGenerator<RecordedEvent<Data>, void> {
    checked("readAll", options, READ_ALL);
    const page = (of: PageOf<string>) => this.readAllPage<Data>({ ...options, ...of });
    return allPages<RecordedEvent<Data>, string>(page, options.limit);
  }

  /** One page of all events. With a filter it can be short, even empty, before the end. */
  async readAllPage<Data = unknown>(options: ReadAllOptions = {}): Promise<Page<RecordedEvent<Data>, string>> {
    const { from, direction, limit = PAGE, filter, signal } = checked("readAllPage", options, READ_ALL);
    const parameters = { from, direction, limit, filter: filterParameter(filter) };
    return this.#page<Data, string>("/all", parameters, signal);
  }

  /** Yields the streams whose names begin with this, in the order of their names. */
  async *listStreams(prefix = "", options: CallOptions = {}): AsyncGenerator<StreamInfo, void> {
    const { signal } = checked("listStreams", options, CALL);
    let after: string | null | undefined;
    while (after !== null) {
      const parameters = { prefix: prefix || undefined, after, limit: PAGE };
      const found = (await this.#get("/streams", parameters, signal)) as {
        readonly streams: readonly { readonly stream: string; readonly last_revision: number }[];
        readonly next: string | null;
      };
      for (const { stream, last_revision } of found.streams) yield { stream, lastRevision: last_revision };
      after = found.next;
    }
  }

  /**
   * Yields all events that a filter lets pass, first the stored ones, then live ones, without end. A connection that
   * breaks is made again, and nothing is missed or comes twice. Throws `HistoryChanged` if the checkpoint is of another
   * history.
   *
   * ```ts
   * for await (const message of store.followAll({ after: checkpoint, filter: { categories: ["cart"] } })) {
   *   if (message.kind === "event") count(message.event);
   *   await save(message.checkpoint);
   * }
   * ```
   */
  followAll<Data = unknown>(options: FollowAllOptions = {}): AsyncGenerator<Message<Data>, void> {
    const { filter } = checked("followAll", options, FOLLOW_ALL);
    const parameters = { filter: filterParameter(filter) };
    return follow<Data>(this.#transport, get("/all/subscribe", parameters), options);
  }

  /** The same of one stream, which need not exist. */
  followStream<Data = unknown>(
    stream: string,
    options: FollowStreamOptions = {},
  ): AsyncGenerator<Message<Data>, void> {
    const { resolveLinks = false } = checked("followStream", options, FOLLOW_STREAM);
    const parameters = { resolve_links: flag(resolveLinks) };
    return follow<Data>(this.#transport, get(`/streams/${segment(stream)}/subscribe`, parameters), options);
  }

  /** A consumer group on a stream. Nothing is sent yet. */
  group(stream: string, group: string): Group {
    return new Group(this.#transport, stream, group);
  }

  /** A consumer group on all events. Nothing is sent yet. */
  groupOnAll(group: string): Group {
    return new Group(this.#transport, null, group);
  }

  /** Yields the names of all groups, or of those on a stream. */
  listGroups(stream?: string): AsyncGenerator<GroupName, void> {
    return listGroups(this.#transport, stream === undefined ? "/groups" : `/streams/${segment(stream)}/groups`);
  }

  /** Deletes a stream: it is gone for readers, and a later append begins it again with the next revision. */
  async deleteStream(stream: string, options: AppendOptions = {}): Promise<Changed> {
    const { expected = "any", signal } = checked("deleteStream", options, APPEND);
    return this.#change("DELETE", `/streams/${segment(stream)}`, { expected }, undefined, signal);
  }

  /** Closes a stream for ever. */
  async tombstoneStream(stream: string, options: AppendOptions = {}): Promise<Changed> {
    const { expected = "any", signal } = checked("tombstoneStream", options, APPEND);
    return this.#change("DELETE", `/streams/${segment(stream)}`, { expected, tombstone: "true" }, undefined, signal);
  }

  /** The metadata of a stream; an empty document if none were set. */
  async streamMetadata(stream: string, options: CallOptions = {}): Promise<StreamMetadata> {
    const { signal } = checked("streamMetadata", options, CALL);
    const answer = await this.#transport.send({ ...get(`/streams/${segment(stream)}/metadata`), signal });
    const tag = answer.headers.get("ETag")?.replaceAll('"', "");
    return { document: answer.document as StreamMetadata["document"], revision: tag ? Number(tag) : null };
  }

  /** Replaces the metadata of a stream. `expected` is a claim about the revision of the metadata. */
  async setStreamMetadata(
    stream: string,
    document: Readonly<Record<string, unknown>>,
    options: AppendOptions = {},
  ): Promise<Changed> {
    const { expected = "any", signal } = checked("setStreamMetadata", options, APPEND);
    return this.#change("PUT", `/streams/${segment(stream)}/metadata`, { expected }, document, signal);
  }

  /** What the server tells of itself and of the store: versions, durability, limits, nodes. */
  async info(options: CallOptions = {}): Promise<Readonly<Record<string, unknown>>> {
    const { signal } = checked("info", options, CALL);
    return (await this.#get("/info", {}, signal)) as Readonly<Record<string, unknown>>;
  }

  async #get(path: string, parameters: Call["parameters"], signal: AbortSignal | undefined): Promise<unknown> {
    return (await this.#transport.send({ ...get(path, parameters), signal })).document;
  }

  async #post(path: string, body: unknown, effect: Effect, signal: AbortSignal | undefined): Promise<unknown> {
    return (await this.#transport.send({ method: "POST", path, effect, body, signal })).document;
  }

  async #change(
    method: "PUT" | "DELETE",
    path: string,
    parameters: Call["parameters"],
    body: unknown,
    signal: AbortSignal | undefined,
  ): Promise<Changed> {
    const call: Call = { method, path, effect: "changes", parameters: parameters ?? {}, body, signal };
    const { log, position, checkpoint } = (await this.#transport.send(call)).document as Changed;
    return { log, position, checkpoint };
  }

  async #page<Data, Place>(
    path: string,
    parameters: Call["parameters"],
    signal: AbortSignal | undefined,
  ): Promise<Page<RecordedEvent<Data>, Place>> {
    const found = (await this.#get(path, parameters, signal)) as {
      readonly events: readonly EventDocument[];
      readonly end: boolean;
      readonly next: Place | null;
      readonly last_revision?: number;
    };
    const { end, next, last_revision } = found;
    const items = found.events.map((document) => recordedEvent<Data>(document));
    return { items, end, next, ...(last_revision === undefined ? {} : { lastRevision: last_revision }) };
  }
}

interface AppendedDocument {
  readonly stream: string;
  readonly first_revision: number;
  readonly last_revision: number;
  readonly log: number;
  readonly position: number;
  readonly checkpoint: string;
}

function appended({ stream, first_revision, last_revision, log, position, checkpoint }: AppendedDocument): Appended {
  return { stream, firstRevision: first_revision, lastRevision: last_revision, log, position, checkpoint };
}

function get(path: string, parameters: Call["parameters"] = {}): Call {
  return { method: "GET", path, effect: "reads", parameters };
}

function flag(value: boolean): string | undefined {
  return value ? "true" : undefined;
}

function documents(events: readonly EventData[]): object[] {
  if (!Array.isArray(events)) {
    throw new TypeError("events must be a list of EventData, such as [new EventData(…)]: brackets are missing");
  }
  return events.map((event, index) => {
    // Without its own id a retry would store an event twice, so a plain object is not taken for one.
    if (typeof event?.toDocument !== "function") throw new TypeError(`events[${index}] is no EventData`);
    return event.toDocument();
  });
}

/** An append is recognised when it comes again only if each event has an id. */
function effectOf(events: readonly EventData[]): Effect {
  return events.every(({ id }) => id !== null) ? "appends" : "changes";
}

/** Which page: the first one begins where its caller wants. */
interface PageOf<Place> {
  readonly from?: Place;
  readonly limit: number;
}

async function* allPages<Item, Place>(
  pageAt: (of: PageOf<Place>) => Promise<Page<Item, Place>>,
  limit: number | undefined,
): AsyncGenerator<Item, void> {
  let next: { from?: Place } = {};
  for (let left = limit ?? Infinity; left > 0; ) {
    const page = await pageAt({ ...next, limit: Math.min(PAGE, left) });
    yield* page.items;
    if (page.end || page.next === null) return;
    left -= page.items.length;
    next = { from: page.next };
  }
}
