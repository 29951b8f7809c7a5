"""A consumer of a group: it gets events, answers for them, and joins again whenever it has lost its group."""

from __future__ import annotations

import http.client
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from .connections import Connection
from .errors import (
    ConsumerNotFound,
    ConsumerSilent,
    GroupDropped,
    GroupElsewhere,
    GroupFull,
    OutcomeUnknown,
    Problem,
    Unavailable,
)
from .events import RecordedEvent
from .retry import Effect
from .servers import Server, logger
from .sse import ServerEvent, server_events
from .transport import BROKEN, Call, Transport, json_of


@dataclass(frozen=True)
class Delivery:
    """An event for a consumer. `retries` is how often it was delivered before without success."""

    number: int
    retries: int
    event: RecordedEvent
    consumer: str


@dataclass(frozen=True)
class Answered:
    """For how many events an answer came in time. The `unknown` ones come again, to this consumer or to another."""

    answered: int
    unknown: int


class Consumer:
    """A consumer of a group, as `Group.join` gives it. Iterate over it, and answer for what comes.

    A connection that breaks is made again; what the consumer held then comes again. One thread iterates; others may
    answer meanwhile, and `leave`.
    """

    def __init__(self, transport: Transport, path: str, parameters: Mapping[str, Any]) -> None:
        self._transport = transport
        self._path = path
        self._parameters = parameters
        self._session: Optional[_Session] = None
        self._has_left = False
        # Times of joining in a row that held for a moment only.
        self._attempt = 0
        self._session = self._join(is_first=True)

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        while not self._has_left:
            session = self._session = self._session or self._join(is_first=False)
            if session is None:
                break
            # Whoever left while this joined has found no connection to cut.
            if self._has_left:
                self._end(session)
                break
            try:
                return session.next()
            except BROKEN as error:
                self._end(session)
                if not self._has_left:
                    self._transport.lost(session.server, Effect.READS, error)
            except Problem as problem:
                self._end(session)
                if not _passes(problem, self._transport):
                    raise
                if isinstance(problem, ConsumerSilent):
                    logger.warning("joining again: %s", problem)
                self._transport.told(session.server, problem)
        raise StopIteration

    def ack(self, *deliveries: Delivery) -> Answered:
        """These events are finished. After a crash of the server they may come again all the same."""
        return self._answer("/ack", Effect.APPENDS, deliveries, {})

    def nack(self, *deliveries: Delivery, action: str = "retry", reason: str = "") -> Answered:
        """Refuses these events: "retry" (deliver them again), "park" (put them aside) or "skip" (take them as
        finished). The reason is stored with parked events."""
        return self._answer("/nack", Effect.CHANGES, deliveries, {"action": action, "reason": reason})

    def leave(self) -> None:
        """Leaves the group; others get at once what this consumer holds. Iterating ends."""
        self._has_left = True
        session = self._session
        if session is not None:
            session.connection.cut()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        if self._session is not None:
            self._session.close()

    def _answer(
        self, path: str, effect: Effect, deliveries: Tuple[Delivery, ...], more: Dict[str, Any]
    ) -> Answered:
        session = self._session
        held = [delivery for delivery in deliveries if session is not None and delivery.consumer == session.consumer]
        others = len(deliveries) - len(held)
        if session is None or not held:
            return Answered(0, others)
        body = json_of({"consumer": session.consumer, "deliveries": [delivery.number for delivery in held], **more})
        # An ack that comes twice does no harm. A nack would: an event that is delivered again keeps its number, and is
        # refused twice then. Only the server of the consumer can take either: if that is gone, so is the consumer.
        call = Call("POST", self._path + path, effect, body=body)
        try:
            document = self._transport.send(call, only=session.server).document
        except (ConsumerNotFound, GroupDropped, GroupElsewhere, OutcomeUnknown, Unavailable) as error:
            logger.info("%d answers came too late, the events come again: %s", len(held), error)
            return Answered(0, len(deliveries))
        return Answered(document["answered"], document["unknown"] + others)

    def _join(self, is_first: bool) -> Optional[_Session]:
        """Joins the group, and tries until that succeeds; the first time not for ever. `None` if this has left."""
        policy = self._transport.policy
        deadline = time.monotonic() + policy.give_up_after
        servers = self._transport.servers
        server, refusals = servers.present(), 0
        if not is_first:
            time.sleep(policy.pause(self._attempt))
            self._attempt += 1
        while not self._has_left:
            call = Call("GET", f"{self._path}/consume", parameters=self._parameters)
            try:
                return _Session(self._transport, call, server)
            except BROKEN as error:
                problem = self._transport.lost(server, Effect.READS, error)
            except Problem as refused:
                problem = refused
            # The server may not have noticed yet that the lost connection of this consumer is gone.
            is_full = isinstance(problem, GroupFull) and not is_first
            if not (is_full or _passes(problem, self._transport)):
                raise problem
            if is_first and time.monotonic() > deadline:
                raise problem
            refusals += 1
            # Whoever was sent on by every server waits, too.
            if is_full or (isinstance(problem, GroupElsewhere) and refusals >= len(servers.given)):
                servers.waits(server, problem)
            goes_elsewhere = isinstance(problem, (GroupElsewhere, Unavailable))
            server = servers.after(server) if goes_elsewhere else server
            time.sleep(problem.retry_after or policy.pause(self._attempt))
            self._attempt += 1
        return None

    def _end(self, session: _Session) -> None:
        session.close()
        self._session = None
        if time.monotonic() - session.began > self._transport.policy.longest_pause:
            self._attempt = 0


class _Session:
    """One connection of a consumer: from joining to its end."""

    def __init__(self, transport: Transport, call: Call, server: Server) -> None:
        self.server = server
        self.began = time.monotonic()
        self._open = ExitStack()
        try:
            self.connection, response = self._open.enter_context(transport.open(call, server))
            self._events: Iterator[ServerEvent] = server_events(response)
            joined = self._next()
            self.consumer: str = joined.document["consumer"]
        except BaseException:
            self._open.close()
            raise

    def next(self) -> Delivery:
        """The next event."""
        document = self._next().document
        event = RecordedEvent.of(document["event"])
        return Delivery(document["delivery"], document["retries"], event, self.consumer)

    def close(self) -> None:
        """Closes the connection, by which the consumer leaves."""
        self._open.close()

    def _next(self) -> ServerEvent:
        event = next(self._events, None)
        if event is None:
            raise http.client.IncompleteRead(b"")
        return event


def _passes(problem: Problem, transport: Transport) -> bool:
    """Whether joining again can succeed."""
    if isinstance(problem, GroupElsewhere):
        return len(transport.servers.given) > 1
    joins_again = (GroupDropped, ConsumerSilent, ConsumerNotFound)
    return isinstance(problem, joins_again) or transport.may_repeat(problem, Effect.READS)
