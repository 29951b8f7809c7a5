"""What a call raises: a `Problem`, or the subclass for its kind.

The server answers every error with a problem document (RFC 9457). Where no answer comes, the client makes the document
by itself: `Unavailable` if nothing was written, `OutcomeUnknown` if something may have been.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Type

TYPE_PREFIX = "urn:gesta:problem:"


class Problem(Exception):
    """An answer that is not a success.

    `kind` is the last part of `type`, by which programs decide; `title` and `detail`, which name the rule and the value
    that breaks it, are for people. What only some kinds tell is `None` otherwise: `field` (the part of the request that
    is wrong), `stream`, `revision`, `expected`, `actual`, `position`, `owner` and `max`. `document` has everything.

    >>> Problem({"type": "urn:gesta:problem:corrupt", "title": "Stored data cannot be read", "detail": "cart-1@7"})
    Problem('Stored data cannot be read: cart-1@7')
    """

    def __init__(self, document: Mapping[str, Any], retry_after: Optional[float] = None) -> None:
        self.document: Dict[str, Any] = dict(document)
        self.type: str = str(document.get("type", ""))
        self.kind: str = self.type.rpartition(":")[2]
        self.title: str = str(document.get("title", ""))
        self.detail: str = str(document.get("detail", ""))
        self.status: Optional[int] = document.get("status")
        self.field: Optional[str] = document.get("field")
        self.stream: Optional[str] = document.get("stream")
        self.revision: Optional[int] = document.get("revision")
        self.expected: Any = document.get("expected")
        self.actual: Optional[int] = document.get("actual")
        self.position: Optional[int] = document.get("position")
        self.owner: Optional[Dict[str, Any]] = document.get("owner")
        self.max: Optional[int] = document.get("max")
        # Seconds after which the server wants to be asked again.
        self.retry_after = retry_after
        super().__init__(": ".join(text for text in (self.title, self.detail) if text) or self.type)


class InvalidArgument(Problem):
    """The request breaks a rule; `field` names the part of it."""


class Unauthenticated(Problem):
    """It is not known who calls: there is no token or password, or a wrong one."""


class Forbidden(Problem):
    """The caller may not do this."""


class StreamNotFound(Problem):
    """There is no such stream: it never existed, or it was deleted."""


class EventNotFound(Problem):
    """The stream has no readable event of this `revision`."""


class StreamTombstoned(Problem):
    """The stream is closed for ever."""


class WrongExpectedRevision(Problem):
    """Another writer came first. Read on from `actual` (`None`: no such stream), decide again, make new events."""


class StoredAndDeleted(Problem):
    """The events were stored before, at `position`, and the stream was deleted since. New events need new ids."""


class ConditionFailed(Problem):
    """An event, at `position` of `log`, is what a condition excludes. Read on, decide again, send the new end."""


class HistoryChanged(Problem):
    """The store has another history than the one of the checkpoint: it was restored, or a fail-over lost commits.

    Events that the reader has seen are gone, and their positions are used again. Drop what was made of them, and begin
    at the start; or go on from a checkpoint of before the backup, with the data of that time.
    """


class Overloaded(Problem):
    """A queue of the server is full. Nothing was written."""


class Unavailable(Problem):
    """The store or its server does not answer. Nothing was written."""


class NotTrusted(Unavailable):
    """The certificate of the server is not trusted, and no trying again changes that. Nothing was sent."""


class NoTls(Unavailable):
    """The server does not speak TLS, or none that both know, and no trying again changes that. Nothing was sent."""


class OutcomeUnknown(Problem):
    """No answer came, so the change was stored or not. An append with the same events tells."""


class GroupNotFound(Problem):
    """There is no such consumer group."""


class GroupExists(Problem):
    """There is such a consumer group already."""


class GroupFull(Problem):
    """The consumer group has as many consumers as it may have (`max`)."""


class GroupHalted(Problem):
    """The place of the consumer group was lost, in a restore or a fail-over. `Group.reset` says where it goes on."""


class GroupDropped(Problem):
    """The consumer group was changed, restarted or taken over. A `Consumer` joins again by itself."""


class GroupElsewhere(Problem):
    """Another node runs the consumer group: `owner` names it. A client that is given all nodes goes there by itself."""


class ConsumerNotFound(Problem):
    """The consumer has left its group."""


class ConsumerSilent(Problem):
    """The consumer answered for nothing that it held, twice in a row. A `Consumer` joins again by itself."""


class FellBehind(Exception):
    """A reader that followed live was too slow (only if it asked for this exception). Go on after `checkpoint`."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        super().__init__(f"this reader was too slow to follow live; it can go on after checkpoint {checkpoint}")


KINDS: Dict[str, Type[Problem]] = {
    "invalid_argument": InvalidArgument,
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "stream_not_found": StreamNotFound,
    "event_not_found": EventNotFound,
    "stream_tombstoned": StreamTombstoned,
    "wrong_expected_revision": WrongExpectedRevision,
    "stored_and_deleted": StoredAndDeleted,
    "condition_failed": ConditionFailed,
    "invalid_checkpoint": HistoryChanged,
    "overloaded": Overloaded,
    "unavailable": Unavailable,
    "outcome_unknown": OutcomeUnknown,
    "group_not_found": GroupNotFound,
    "group_exists": GroupExists,
    "group_full": GroupFull,
    "group_halted": GroupHalted,
    "group_dropped": GroupDropped,
    "group_elsewhere": GroupElsewhere,
    "consumer_not_found": ConsumerNotFound,
    "consumer_silent": ConsumerSilent,
}


def problem_of(document: Mapping[str, Any], retry_after: Optional[float] = None) -> Problem:
    """The exception for a problem document.

    >>> problem_of({"type": "urn:gesta:problem:overloaded", "title": "A queue is full; nothing was written"})
    Overloaded('A queue is full; nothing was written')
    """
    kind = str(document.get("type", "")).rpartition(":")[2]
    return KINDS.get(kind, Problem)(document, retry_after)


def unavailable(detail: str) -> Problem:
    """The exception for a call that has reached no server."""
    title = "No server answers; nothing was written"
    return Unavailable({"type": TYPE_PREFIX + "unavailable", "title": title, "detail": detail})


def not_trusted(detail: str) -> Problem:
    """The exception for a call that no server may get, since none shows who it is."""
    title = "The server is not trusted; nothing was sent"
    return NotTrusted({"type": TYPE_PREFIX + "unavailable", "title": title, "detail": detail})


def no_tls(detail: str) -> Problem:
    """The exception for a call to `https` where TLS is not spoken."""
    title = "The server does not speak TLS; nothing was sent"
    return NoTls({"type": TYPE_PREFIX + "unavailable", "title": title, "detail": detail})


def outcome_unknown(detail: str) -> Problem:
    """The exception for a change that was sent and not answered."""
    title = "It is not known whether the change was stored"
    return OutcomeUnknown({"type": TYPE_PREFIX + "outcome_unknown", "title": title, "detail": detail})
