/**
 * What a call throws: a `Problem`, or the subclass for its kind.
 *
 * The server answers every error with a problem document (RFC 9457). Where no answer comes, the client makes the
 * document by itself: `Unavailable` if nothing was written, `OutcomeUnknown` if something may have been.
 */

/** What an error answer says; members that only some kinds have are absent otherwise. */
export interface ProblemDocument {
  readonly type?: string;
  readonly title?: string;
  readonly status?: number;
  readonly detail?: string;
  /** The part of the request that is wrong. */
  readonly field?: string;
  readonly stream?: string;
  readonly revision?: number;
  readonly expected?: string | number;
  /** The last revision of the stream; `null` if there is no such stream. */
  readonly actual?: number | null;
  readonly position?: number;
  readonly owner?: { readonly log: number; readonly node: number; readonly address: string };
  readonly max?: number;
}

const TYPE_PREFIX = "urn:gesta:problem:";

/** The last part of a problem's type. */
function kindOf(document: ProblemDocument): string {
  return (document.type ?? "").split(":").at(-1) ?? "";
}

/**
 * An answer that is not a success. `kind` is the last part of `type`, by which programs decide; `title` and `detail`,
 * which name the rule and the value that breaks it, are for people; `document` has the rest.
 */
export class Problem extends Error {
  readonly kind: string;
  readonly type: string;
  readonly title: string;
  readonly detail: string;
  readonly status: number | undefined;

  constructor(
    readonly document: ProblemDocument,
    /** Milliseconds after which the server wants to be asked again. */
    readonly retryAfter?: number,
  ) {
    super([document.title, document.detail].filter(Boolean).join(": ") || document.type || "no problem document");
    this.name = new.target.name;
    this.type = document.type ?? "";
    this.kind = kindOf(document);
    this.title = document.title ?? "";
    this.detail = document.detail ?? "";
    this.status = document.status;
  }
}

/** The request breaks a rule; `document.field` names the part of it. */
export class InvalidArgument extends Problem {}

/** It is not known who calls: there is no token or password, or a wrong one. */
export class Unauthenticated extends Problem {}

/** The caller may not do this. */
export class Forbidden extends Problem {}

/** There is no such stream: it never existed, or it was deleted. */
export class StreamNotFound extends Problem {}

/** The stream has no readable event of this revision. */
export class EventNotFound extends Problem {}

/** The stream is closed for ever. */
export class StreamTombstoned extends Problem {}

/** Another writer came first. Read on from `document.actual`, decide again, make new events. */
export class WrongExpectedRevision extends Problem {}

/** The events were stored before, at `document.position`, and the stream was deleted since. */
export class StoredAndDeleted extends Problem {}

/** An event, at `document.position`, is what a condition excludes. Read on, decide again, send the new end. */
export class ConditionFailed extends Problem {}

/**
 * The store has another history than the one of the checkpoint: it was restored, or a fail-over lost commits.
 *
 * Events that the reader has seen are gone, and their positions are used again. Drop what was made of them, and begin
 * at the start; or go on from a checkpoint of before the backup, with the data of that time.
 */
export class HistoryChanged extends Problem {}

/** A queue of the server is full. Nothing was written. */
export class Overloaded extends Problem {}

/** The store or its server does not answer. Nothing was written. */
export class Unavailable extends Problem {}

/** The certificate of the server is not trusted, and no trying again changes that. Nothing was sent. */
export class NotTrusted extends Unavailable {}

/** The server does not speak TLS, or none that both know, and no trying again changes that. Nothing was sent. */
export class NoTls extends Unavailable {}

/** No answer came, so the change was stored or not. An append with the same events tells. */
export class OutcomeUnknown extends Problem {}

/** There is no such consumer group. */
export class GroupNotFound extends Problem {}

/** There is such a consumer group already. */
export class GroupExists extends Problem {}

/** The consumer group has as many consumers as it may have. */
export class GroupFull extends Problem {}

/** The place of the consumer group was lost, in a restore or a fail-over. `Group.reset` says where it goes on. */
export class GroupHalted extends Problem {}

/** The consumer group was changed, restarted or taken over. A `Consumer` joins again by itself. */
export class GroupDropped extends Problem {}

/** Another node runs the consumer group. A client that is given all nodes goes there by itself. */
export class GroupElsewhere extends Problem {}

/** The consumer has left its group. */
export class ConsumerNotFound extends Problem {}

/** The consumer answered for nothing that it held, twice in a row. A `Consumer` joins again by itself. */
export class ConsumerSilent extends Problem {}

/** A reader that followed live was too slow (only if it asked for this error). Go on after `checkpoint`. */
export class FellBehind extends Error {
  override readonly name = "FellBehind";

  constructor(readonly checkpoint: string) {
    super(`this reader was too slow to follow live; it can go on after checkpoint ${checkpoint}`);
  }
}

const KINDS: Readonly<Record<string, typeof Problem>> = {
  invalid_argument: InvalidArgument,
  unauthenticated: Unauthenticated,
  forbidden: Forbidden,
  stream_not_found: StreamNotFound,
  event_not_found: EventNotFound,
  stream_tombstoned: StreamTombstoned,
  wrong_expected_revision: WrongExpectedRevision,
  stored_and_deleted: StoredAndDeleted,
  condition_failed: ConditionFailed,
  invalid_checkpoint: HistoryChanged,
  overloaded: Overloaded,
  unavailable: Unavailable,
  outcome_unknown: OutcomeUnknown,
  group_not_found: GroupNotFound,
  group_exists: GroupExists,
  group_full: GroupFull,
  group_halted: GroupHalted,
  group_dropped: GroupDropped,
  group_elsewhere: GroupElsewhere,
  consumer_not_found: ConsumerNotFound,
  consumer_silent: ConsumerSilent,
};

/** The error for a problem document. */
export function problemOf(document: ProblemDocument, retryAfter?: number): Problem {
  const kind = KINDS[kindOf(document)] ?? Problem;
  return new kind(document, retryAfter);
}

/** The error for a call that has reached no server. */
export function unavailable(detail: string): Problem {
  const title = "No server answers; nothing was written";
  return new Unavailable({ type: `${TYPE_PREFIX}unavailable`, title, detail });
}

/** The error for a call that no server may get, since none shows who it is. */
export function notTrusted(detail: string): Problem {
  const title = "The server is not trusted; nothing was sent";
  return new NotTrusted({ type: `${TYPE_PREFIX}unavailable`, title, detail });
}

/** The error for a call to `https` where TLS is not spoken. */
export function noTls(detail: string): Problem {
  const title = "The server does not speak TLS; nothing was sent";
  return new NoTls({ type: `${TYPE_PREFIX}unavailable`, title, detail });
}

/** The error for a change that was sent and not answered. */
export function outcomeUnknown(detail: string): Problem {
  const title = "It is not known whether the change was stored";
  return new OutcomeUnknown({ type: `${TYPE_PREFIX}outcome_unknown`, title, detail });
}

/** The error for an answer that came whole and cannot be read, which no trying again changes. */
export function unreadable(error: unknown, status: number): Problem {
  const detail = error instanceof Error ? error.message : String(error);
  return new Problem({ title: "The answer cannot be read", detail, status });
}
