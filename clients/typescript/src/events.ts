/** Events, before and after they are stored, and how they are written as JSON. */

import { randomUUID } from "node:crypto";
import { checked, type Names } from "./options.js";

/** What an event may have beside its type and data. */
export interface EventOptions {
  /** Data about the event: anything that `JSON.stringify` takes, or a `Uint8Array`. */
  readonly metadata?: unknown;
  readonly tags?: readonly string[];
  /** A UUID. If absent it is drawn; with `null` the server draws one, and such an append is not repeated. */
  readonly id?: string | null;
  /** Only with data in a `Uint8Array`: `application/json` if the bytes are JSON. */
  readonly contentType?: string;
}

const EVENT: Names<EventOptions> = { metadata: true, tags: true, id: true, contentType: true };

/**
 * An event before it is stored.
 *
 * `data` is anything that `JSON.stringify` takes, or a `Uint8Array` for anything else. The id is drawn here, so
 * appending the same object again is a retry: the server stores it once.
 */
export class EventData {
  readonly id: string | null;
  readonly metadata: unknown;
  readonly tags: readonly string[];
  readonly contentType: string | undefined;

  constructor(
    readonly type: string,
    readonly data: unknown,
    options: EventOptions = {},
  ) {
    const { metadata, tags = [], id = randomUUID(), contentType } = checked("EventData", options, EVENT);
    checkValue(`the data of ${type}`, data);
    if (metadata != null) checkValue(`the metadata of ${type}`, metadata);
    this.metadata = metadata;
    this.tags = tags;
    this.id = id;
    this.contentType = contentType;
  }

  /** The event as the HTTP API takes it. */
  toDocument(): object {
    return {
      type: this.type,
      ...payload("data", this.data),
      ...(this.metadata == null ? {} : payload("metadata", this.metadata)),
      ...(this.id === null ? {} : { id: this.id }),
      ...(this.tags.length === 0 ? {} : { tags: this.tags }),
      ...(this.contentType === undefined ? {} : { content_type: this.contentType }),
    };
  }
}

/** Where the link stands that led to an event. */
export interface Link {
  readonly stream: string;
  readonly revision: number;
  readonly position: number;
  readonly id: string;
}

/** An event that is stored. */
export interface RecordedEvent<Data = unknown> {
  readonly stream: string;
  readonly revision: number;
  readonly log: number;
  readonly position: number;
  readonly id: string;
  readonly type: string;
  readonly created: Date;
  readonly contentType: string;
  /** The JSON value, or a `Uint8Array` if the data are not JSON. */
  readonly data: Data;
  /** The same; `null` if there are none. */
  readonly metadata: unknown;
  readonly tags: readonly string[];
  /** Where the link stands, if the event came in its place. */
  readonly link?: Link;
}

/** An event in an answer of the HTTP API. */
export interface EventDocument {
  readonly stream: string;
  readonly revision: number;
  readonly log: number;
  readonly position: number;
  readonly id: string;
  readonly type: string;
  readonly created: string;
  readonly content_type: string;
  readonly data?: unknown;
  readonly data_base64?: string;
  readonly metadata?: unknown;
  readonly metadata_base64?: string;
  readonly tags: readonly string[];
  readonly link?: Link;
}

/** The event of a document of the HTTP API. */
export function recordedEvent<Data>(document: EventDocument): RecordedEvent<Data> {
  const { content_type, data, data_base64, metadata, metadata_base64, created, ...same } = document;
  return {
    ...same,
    created: new Date(created),
    contentType: content_type,
    data: value(data, data_base64, content_type === "application/json") as Data,
    metadata: value(metadata ?? null, metadata_base64, true),
  };
}

/** Refuses what JSON would leave out without a word: `undefined`, functions and symbols; and BigInts, which it has not. */
function checkValue(what: string, given: unknown): void {
  if (!["undefined", "function", "symbol", "bigint"].includes(typeof given)) return;
  const cure = typeof given === "bigint" ? "; give it as a text" : "";
  throw new TypeError(`${what} must be a value of JSON, or a Uint8Array, and is of type ${typeof given}${cure}`);
}

function payload(name: string, given: unknown): object {
  if (given instanceof Uint8Array) {
    const bytes = Buffer.from(given.buffer, given.byteOffset, given.byteLength);
    return { [`${name}_base64`]: bytes.toString("base64") };
  }
  return { [name]: given };
}

/** A payload. JSON that contains line breaks comes in base64 where the answer is made of lines. */
function value(json: unknown, base64: string | undefined, mayBeJson: boolean): unknown {
  if (base64 === undefined) return json;
  const bytes = Uint8Array.from(Buffer.from(base64, "base64"));
  if (mayBeJson) {
    try {
      return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    } catch {
      // It is not JSON.
    }
  }
  return bytes;
}
