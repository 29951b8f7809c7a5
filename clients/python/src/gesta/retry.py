"""Which calls are repeated, when, and for how long. Nothing is sent here.

Invariant: a change that the server may have stored is sent again only if the server recognises it, by the ids of its
events.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from .errors import (
    ConditionFailed,
    GroupElsewhere,
    OutcomeUnknown,
    Overloaded,
    Problem,
    StoredAndDeleted,
    Unavailable,
    WrongExpectedRevision,
    outcome_unknown,
)


class Effect(Enum):
    """What a call may have done when no answer comes."""

    # Nothing: it only reads.
    READS = "reads"
    # It may have stored events, and the server recognises them when they come again.
    APPENDS = "appends"
    # It may have changed something, and would change it a second time.
    CHANGES = "changes"


@dataclass(frozen=True)
class Policy:
    """How patient a client is, all in seconds.

    Appends with *any* or *stream exists* are recognised when they come again for ten minutes at least, so a client
    gives up before that. Pauses double from the first to the longest, and are random, so that many clients do not
    come back at the same moment. Following does not give up.
    """

    give_up_after: float = 300
    first_pause: float = 0.05
    longest_pause: float = 5
    # Longest wait for a connection, and for the answer to a call.
    connect_max: float = 10
    answer_max: float = 30
    # The server sends something every 15 s. A subscription that is silent for longer than three times that is dead.
    silence_max: float = 45

    def pause(self, attempt: int) -> float:
        """The pause after an attempt; the first is 0.

        >>> Policy(longest_pause=1).pause(1000) <= 1
        True
        """
        return min(self.longest_pause, self.first_pause * 2.0 ** min(attempt, 30)) * random.uniform(0.5, 1.0)


def may_be_repeated(problem: Problem, effect: Effect) -> bool:
    """Whether the same call may succeed later, and can do no harm.

    >>> from gesta.errors import outcome_unknown, unavailable
    >>> may_be_repeated(unavailable("refused"), Effect.CHANGES)
    True
    >>> may_be_repeated(outcome_unknown("lost"), Effect.CHANGES)
    False
    """
    if isinstance(problem, OutcomeUnknown):
        return effect is not Effect.CHANGES
    # A body that came too slowly was not looked at.
    return isinstance(problem, (Overloaded, Unavailable)) or problem.kind == "request_timeout"


def after_doubt(problem: Problem) -> Problem:
    """What a change ends with that an earlier attempt may have made. Only a few answers tell what became of that one.

    >>> from gesta.errors import unavailable
    >>> after_doubt(unavailable("refused")).kind
    'outcome_unknown'
    """
    if isinstance(problem, (WrongExpectedRevision, StoredAndDeleted, ConditionFailed, OutcomeUnknown)):
        return problem
    return outcome_unknown(f"an earlier attempt got no answer, and the last one: {problem}")


def is_of_this_server(problem: Problem) -> bool:
    """Whether another server may do what this one cannot."""
    return isinstance(problem, (Unavailable, OutcomeUnknown, GroupElsewhere))
