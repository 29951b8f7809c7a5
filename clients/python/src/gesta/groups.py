"""Consumer groups: events that are shared out among consumers, each to one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, TypedDict, Union

from .consumer import Answered, Consumer, Delivery
from .errors import Problem
from .requests import Filter, queries_of
from .retry import Effect
from .transport import Call, Transport, json_of, segment

__all__ = ["Answered", "Consumer", "Delivery", "Group", "GroupName", "GroupSettings", "list_groups"]


class GroupSettings(TypedDict, total=False):
    """How a group works; what is left out has its default (docs/reference/http.md has a table)."""

    # "start", "end" or {"at": N}: where it begins.
    start: Union[str, Dict[str, int]]
    message_timeout_ms: int
    max_retry_count: int
    checkpoint_after_ms: int
    min_checkpoint_count: int
    max_checkpoint_count: int
    max_subscriber_count: int
    live_buffer_size: int
    history_buffer_size: int
    read_batch_size: int
    # "round_robin", "dispatch_to_single", "pinned" or "pinned_by_correlation".
    strategy: str
    extra_statistics: bool
    resolve_links: bool


@dataclass(frozen=True)
class GroupName:
    """A group in a list. `stream` is `None` for a group on all events."""

    stream: Optional[str]
    group: str


class Group:
    """A group on a stream, or on all events; it need not exist yet.

    >>> group = store.group("cart-1", "mail")                   # doctest: +SKIP
    >>> group.create({"max_retry_count": 5})                    # doctest: +SKIP
    >>> with group.join() as consumer:                          # doctest: +SKIP
    ...     for delivery in consumer:
    ...         send_mail(delivery.event.data)
    ...         consumer.ack(delivery)
    """

    def __init__(self, transport: Transport, stream: Optional[str], group: str) -> None:
        self.stream = stream
        self.name = group
        self._transport = transport
        self._path = f"{_source(stream)}/groups/{segment(group)}"

    def create(self, settings: Optional[GroupSettings] = None, filter: Filter = None) -> Dict[str, Any]:
        """Creates the group; a `filter` is for groups on all events. Raises `GroupExists` if there is one already."""
        body: Dict[str, Any] = {"settings": settings or {}}
        queries = queries_of(filter)
        if queries:
            body["filter"] = queries
        return self._change("PUT", "", body)

    def update(self, settings: GroupSettings) -> Dict[str, Any]:
        """Replaces all settings; those that are left out get their defaults. Consumers join again by themselves."""
        return self._change("POST", "", {"settings": settings})

    def info(self) -> Dict[str, Any]:
        """Settings, checkpoint, status, the number of parked events, and what the group does if it runs."""
        return self._send(Call("GET", self._path))

    def delete(self) -> None:
        """Deletes the group with its checkpoint and its parked events."""
        self._send(Call("DELETE", self._path, Effect.CHANGES))

    def replay_parked(self, stop_at: Optional[int] = None) -> None:
        """Delivers parked events again: those before this revision of the parked stream, or all."""
        self._change("POST", "/replay-parked", {} if stop_at is None else {"stop_at": stop_at})

    def reset(self, to: Union[str, int]) -> Dict[str, Any]:
        """Lets the group go on at "start", "end", "surviving" (the last place that it knows of before a loss), or at a
        number, which is the first that is delivered."""
        return self._change("POST", "/reset", {"to": {"at": to} if isinstance(to, int) else to})

    def join(self, buffer: int = 10, name: Optional[str] = None) -> Consumer:
        """Joins the group as a consumer that holds at most `buffer` events; `name` is shown to people."""
        return Consumer(self._transport, self._path, {"buffer": buffer, "name": name})

    def _change(self, method: str, path: str, body: Dict[str, Any]) -> Dict[str, Any]:
        return self._send(Call(method, self._path + path, Effect.CHANGES, body=json_of(body)))

    def _send(self, call: Call) -> Dict[str, Any]:
        document: Dict[str, Any] = self._transport.send(call).document
        return document


def list_groups(transport: Transport, path: str) -> Iterator[GroupName]:
    """The groups at this path, page after page."""
    after: Optional[str] = None
    while True:
        found = transport.send(Call("GET", path, parameters={"after": after, "limit": 1000})).document
        for item in found["groups"]:
            source = item["source"]
            yield GroupName(None if source == "$all" else source, item["group"])
        if found["end"] or not found["groups"]:
            return
        last = found["groups"][-1]
        after = f"{last['source']}::{last['group']}" if path == "/groups" else last["group"]


def _source(stream: Optional[str]) -> str:
    return "/all" if stream is None else f"/streams/{segment(stream)}"
