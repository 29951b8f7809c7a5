"""Following a stream or all events: a subscription that is resumed whenever its connection breaks."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Iterator, Optional

from .connections import NoAnswerOfGesta
from .errors import FellBehind, Problem
from .events import RecordedEvent
from .retry import Effect
from .sse import server_events
from .transport import BROKEN, Call, Transport


@dataclass(frozen=True)
class Message:
    """What comes while following.

    `kind` is `event`, `checkpoint` (a filter has passed over much), `caught_up` (what follows is live) or `fell_behind`
    (the reader was too slow; what follows is read from the database until `caught_up`). Whoever follows again after the
    `checkpoint` misses nothing and gets nothing twice: store it together with what was made of the events.
    """

    kind: str
    checkpoint: str
    event: Optional[RecordedEvent] = None


def follow(transport: Transport, call: Call, after: str, behind: str) -> Iterator[Message]:
    """Yields messages without end. Refusals, as of a checkpoint of another history, are raised."""
    if behind not in ("tell", "raise"):
        raise ValueError(f"behind must be 'tell' or 'raise', and is {behind!r}")
    return _messages(transport, call, after, behind == "raise")


def _messages(transport: Transport, call: Call, after: str, raises_behind: bool) -> Iterator[Message]:
    attempt = 0
    while True:
        server = transport.servers.present()
        resumed = replace(call, parameters={**call.parameters, "after": after})
        pause = None
        began = time.monotonic()
        try:
            with transport.open(resumed, server) as (_, response):
                for received in server_events(response):
                    after = received.id
                    if received.kind == "event":
                        yield Message("event", after, RecordedEvent.of(received.document))
                    elif received.kind == "fell_behind" and raises_behind:
                        raise FellBehind(after)
                    else:
                        yield Message(received.kind, after)
            raise NoAnswerOfGesta("the subscription ended without a reason")
        except BROKEN as error:
            transport.lost(server, Effect.READS, error)
        except Problem as problem:
            if not transport.may_repeat(problem, Effect.READS):
                raise
            pause = problem.retry_after
            transport.told(server, problem)
        if time.monotonic() - began > transport.policy.longest_pause:
            # The connection held: this is not the same trouble again.
            attempt = 0
        time.sleep(pause or transport.policy.pause(attempt))
        attempt += 1
