/**
 * A client of the event store Gesta, over HTTP, in nothing but what Node.js 18 or newer has.
 *
 * ```ts
 * import { connect, EventData } from "gesta-client";
 *
 * const store = connect("http://127.0.0.1:2113");
 * await store.append("cart-1", [new EventData("item-added", { item: "book" })], { expected: "no_stream" });
 * for await (const event of store.readStream("cart-1")) console.log(event.revision, event.data);
 * ```
 *
 * `Store` has all calls. Errors are `Problem` and its subclasses.
 *
 * @packageDocumentation
 */

export { connect, type ConnectOptions } from "./connect.js";
export { Consumer, type Answered, type Delivery, type NackOptions } from "./consumer.js";
export {
  ConditionFailed,
  ConsumerNotFound,
  ConsumerSilent,
  EventNotFound,
  FellBehind,
  Forbidden,
  GroupDropped,
  GroupElsewhere,
  GroupExists,
  GroupFull,
  GroupHalted,
  GroupNotFound,
  HistoryChanged,
  InvalidArgument,
  NoTls,
  NotTrusted,
  OutcomeUnknown,
  Overloaded,
  Problem,
  StoredAndDeleted,
  StreamNotFound,
  StreamTombstoned,
  Unauthenticated,
  Unavailable,
  WrongExpectedRevision,
  type ProblemDocument,
} from "./errors.js";
export { EventData, type EventOptions, type Link, type RecordedEvent } from "./events.js";
export { type FollowOptions, type Message } from "./follow.js";
export { Group, type GroupInfo, type GroupName, type GroupSettings, type JoinOptions } from "./groups.js";
export {
  type Appended,
  type AppendedToStreams,
  type Changed,
  type Condition,
  type Direction,
  type Expected,
  type Filter,
  type NoMatch,
  type Page,
  type Query,
  type StreamAppend,
  type StreamInfo,
  type StreamMetadata,
} from "./requests.js";
export { type Policy } from "./retry.js";
export {
  Store,
  type AppendOptions,
  type AppendToStreamsOptions,
  type CallOptions,
  type ReadAllOptions,
  type ReadStreamOptions,
} from "./store.js";
