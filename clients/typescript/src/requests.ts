/** What callers ask for and what they get, apart from events. */

import type { EventData } from "./events.js";
import { checked, type Names } from "./options.js";

/** What a writer claims about a stream: one of these, or the last revision that it knows. */
export type Expected = "any" | "no_stream" | "stream_exists" | number;

export type Direction = "forwards" | "backwards";

/** One stream's part of an append to several streams. */
export interface StreamAppend {
  readonly stream: string;
  readonly events: readonly EventData[];
  readonly expected?: Expected;
}

/** What must hold of a stream to which nothing is appended. */
export interface Condition {
  readonly stream: string;
  readonly expected: "no_stream" | "stream_exists" | number;
}

/**
 * What no event may be: none of the log passes the filter after the checkpoint, or at all without one.
 *
 * With the filter and the end of the read on which a decision rests it says that a read would still show the same.
 */
export interface NoMatch {
  readonly noMatch: Filter;
  readonly after?: string;
}

const CONDITION: Names<Condition> = { stream: true, expected: true };
const NO_MATCH: Names<NoMatch> = { noMatch: true, after: true };

/** The condition as the HTTP API takes it. */
export function conditionDocument(condition: Condition | NoMatch, index: number): object {
  const of = `conditions[${index}]`;
  if (!("noMatch" in condition)) return checked(of, condition, CONDITION);
  checked(of, condition, NO_MATCH);
  return defined({ no_match: queriesOf(condition.noMatch), after: condition.after });
}

/** Where events were stored. `checkpoint` is right after the last of them: a reader that is there has seen them. */
export interface Appended {
  readonly stream: string;
  readonly firstRevision: number;
  readonly lastRevision: number;
  readonly log: number;
  readonly position: number;
  readonly checkpoint: string;
}

/** Where the events of several streams were stored, in the order of the request. */
export interface AppendedToStreams extends Changed {
  readonly streams: readonly Appended[];
}

/** Where a delete or a change of metadata was stored. */
export interface Changed {
  readonly log: number;
  readonly position: number;
  readonly checkpoint: string;
}

/** A stream in a list. */
export interface StreamInfo {
  readonly stream: string;
  readonly lastRevision: number;
}

/** The metadata of a stream; `revision` is theirs, `null` if none were set. */
export interface StreamMetadata {
  readonly document: Readonly<Record<string, unknown>>;
  readonly revision: number | null;
}

/** A part of an answer. If it is not the `end`, `next` is where the next page begins. */
export interface Page<Item, Place> {
  readonly items: readonly Item[];
  readonly end: boolean;
  readonly next: Place | null;
  /** Of a page of a stream: the stream's last revision. */
  readonly lastRevision?: number;
}

/**
 * Which events pass: those of any of the types, that carry all tags, in streams of any of the prefixes and of any of
 * the categories (the text before the first `-` of a stream's name). What is left out lets everything pass.
 */
export interface Query {
  readonly types?: readonly string[];
  readonly tags?: readonly string[];
  readonly streamPrefixes?: readonly string[];
  readonly categories?: readonly string[];
}

/** One query, or several of which any must match. */
export type Filter = Query | readonly Query[];

const QUERY: Names<Query> = { types: true, tags: true, streamPrefixes: true, categories: true };

/** The queries of a filter, as the HTTP API takes them. */
export function queriesOf(filter: Filter): object[] {
  const queries: readonly Query[] = Array.isArray(filter) ? (filter as readonly Query[]) : [filter as Query];
  return queries.map((query) => {
    const { types, tags, streamPrefixes, categories } = checked("a filter", query, QUERY);
    return defined({ types, tags, stream_prefixes: streamPrefixes, categories });
  });
}

/** The same as the parameter of an address. */
export function filterParameter(filter: Filter | undefined): string | undefined {
  if (filter === undefined) return undefined;
  const queries = queriesOf(filter);
  return queries.length === 0 ? undefined : JSON.stringify(queries);
}

/** An object without the members that are not defined. */
export function defined(members: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined));
}
