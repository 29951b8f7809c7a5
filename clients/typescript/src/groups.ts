/** Consumer groups: events that are shared out among consumers, each to one of them. */

import { Consumer } from "./consumer.js";
import { checked, type Names } from "./options.js";
import { queriesOf, type Filter } from "./requests.js";
import { segment, type Call, type Transport } from "./transport.js";

/** How a group works; what is left out has its default (docs/reference/http.md has a table). */
export interface GroupSettings {
  /** Where it begins. */
  readonly start?: "start" | "end" | { readonly at: number };
  readonly message_timeout_ms?: number;
  readonly max_retry_count?: number;
  readonly checkpoint_after_ms?: number;
  readonly min_checkpoint_count?: number;
  readonly max_checkpoint_count?: number;
  readonly max_subscriber_count?: number;
  readonly live_buffer_size?: number;
  readonly history_buffer_size?: number;
  readonly read_batch_size?: number;
  readonly strategy?: "round_robin" | "dispatch_to_single" | "pinned" | "pinned_by_correlation";
  readonly extra_statistics?: boolean;
  readonly resolve_links?: boolean;
}

/** What a server tells of a group, by the names of the HTTP API. */
export interface GroupInfo {
  readonly source: string;
  readonly group: string;
  readonly status: "idle" | "catching_up" | "live" | "replaying" | "halted";
  readonly checkpoint: number | null;
  readonly parked: number;
  readonly settings: Required<GroupSettings>;
  readonly [more: string]: unknown;
}

/** A group in a list. `stream` is `null` for a group on all events. */
export interface GroupName {
  readonly stream: string | null;
  readonly group: string;
}

export interface JoinOptions {
  /** How many events the consumer holds at most; 10 if absent. */
  readonly buffer?: number;
  /** Shown to people who look at the group. */
  readonly name?: string;
  /** Leaves the group. */
  readonly signal?: AbortSignal;
}

const JOIN: Names<JoinOptions> = { buffer: true, name: true, signal: true };

/**
 * A group on a stream, or on all events; it need not exist yet.
 *
 * ```ts
 * const group = store.group("cart-1", "mail");
 * await group.create({ max_retry_count: 5 });
 * const consumer = await group.join();
 * for await (const delivery of consumer) {
 *   await sendMail(delivery.event.data);
 *   await consumer.ack(delivery);
 * }
 * ```
 */
export class Group {
  readonly #transport: Transport;
  readonly #path: string;

  /** @internal */
  constructor(
    transport: Transport,
    readonly stream: string | null,
    readonly name: string,
  ) {
    this.#transport = transport;
    this.#path = `${sourcePath(stream)}/groups/${segment(name)}`;
  }

  /** Creates the group; a `filter` is for groups on all events. Throws `GroupExists` if there is one already. */
  async create(settings: GroupSettings = {}, filter?: Filter): Promise<GroupInfo> {
    const queries = filter === undefined ? [] : queriesOf(filter);
    const body = queries.length === 0 ? { settings } : { settings, filter: queries };
    return (await this.#change("PUT", "", body)) as GroupInfo;
  }

  /** Replaces all settings; those that are left out get their defaults. Consumers join again by themselves. */
  async update(settings: GroupSettings): Promise<GroupInfo> {
    return (await this.#change("POST", "", { settings })) as GroupInfo;
  }

  /** Settings, checkpoint, status, the number of parked events, and what the group does if it runs. */
  async info(): Promise<GroupInfo> {
    const call: Call = { method: "GET", path: this.#path, effect: "reads" };
    return (await this.#transport.send(call)).document as GroupInfo;
  }

  /** Deletes the group with its checkpoint and its parked events. */
  async delete(): Promise<void> {
    await this.#change("DELETE", "", undefined);
  }

  /** Delivers parked events again: those before this revision of the parked stream, or all. */
  async replayParked(stopAt?: number): Promise<void> {
    await this.#change("POST", "/replay-parked", stopAt === undefined ? {} : { stop_at: stopAt });
  }

  /**
   * Lets the group go on at "start", "end", "surviving" (the last place that it knows of before a loss), or at a
   * number, which is the first that is delivered.
   */
  async reset(to: "start" | "end" | "surviving" | number): Promise<GroupInfo> {
    const body = { to: typeof to === "number" ? { at: to } : to };
    return (await this.#change("POST", "/reset", body)) as GroupInfo;
  }

  /** Joins the group as a consumer. */
  async join<Data = unknown>(options: JoinOptions = {}): Promise<Consumer<Data>> {
    const { buffer = 10, name, signal } = checked("join", options, JOIN);
    return Consumer.join<Data>(this.#transport, this.#path, { buffer, name }, signal);
  }

  async #change(method: "PUT" | "POST" | "DELETE", path: string, body: unknown): Promise<unknown> {
    const call: Call = { method, path: this.#path + path, effect: "changes", body };
    return (await this.#transport.send(call)).document;
  }
}

/** The groups on a source, or all groups, page after page. */
export async function* listGroups(transport: Transport, path: string): AsyncGenerator<GroupName, void> {
  let after: string | undefined;
  for (;;) {
    const call: Call = { method: "GET", path, effect: "reads", parameters: { after, limit: 1000 } };
    const found = (await transport.send(call)).document as {
      readonly groups: readonly { readonly source: string; readonly group: string }[];
      readonly end: boolean;
    };
    for (const { source, group } of found.groups) yield { stream: source === "$all" ? null : source, group };
    const last = found.groups.at(-1);
    if (found.end || last === undefined) return;
    after = path === "/groups" ? `${last.source}::${last.group}` : last.group;
  }
}

function sourcePath(stream: string | null): string {
  return stream === null ? "/all" : `/streams/${segment(stream)}`;
}
