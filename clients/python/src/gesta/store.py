"""A store behind one or more servers: all calls of the HTTP API that applications need."""

from __future__ import annotations

from itertools import islice
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

from .errors import Problem
from .events import EventData, RecordedEvent
from .follow import Message, follow
from .groups import Group, GroupName, list_groups
from .requests import (
    ANY,
    Appended,
    AppendedToStreams,
    Changed,
    Condition,
    Expected,
    Filter,
    NoMatch,
    Page,
    StreamAppend,
    StreamInfo,
    StreamMetadata,
    filter_parameter,
)
from .retry import Effect
from .transport import Call, Transport, json_of, segment

# Events that are asked for at once while reading without end.
PAGE = 1000


class Store:
    """A store behind one or more servers, as `connect` gives it. Threads may share it.

    Calls wait while no server answers, and are repeated as the policy says; a call that may have changed something is
    repeated only if the server recognises it. Whatever is refused is raised at once, as a `Problem`.

    >>> with gesta.connect("http://127.0.0.1:2113") as store:        # doctest: +SKIP
    ...     for event in store.read_stream("cart-1"):
    ...         print(event.revision, event.type, event.data)
    0 item-added {'item': 'book'}
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    # Appending

    def append(self, stream: str, events: Iterable[EventData], expected: Expected = ANY) -> Appended:
        """Appends events to a stream, all or none, and returns when they are durable.

        `expected` is the claim about the stream: `ANY`, `NO_STREAM`, `STREAM_EXISTS` or its last revision. Appending
        the same `EventData` again gives the first answer and stores nothing. Raises `WrongExpectedRevision` if
        somebody else came first, `OutcomeUnknown` if the server did not come back in time.

        >>> store.append("cart-1", [EventData("item-added", {"item": "pen"})], expected=0)     # doctest: +SKIP
        Appended(stream='cart-1', first_revision=1, last_revision=1, log=0, position=2, checkpoint='AQAC…')
        """
        events = _listed(events)
        body = {"expected": expected, "events": [event.to_document() for event in events]}
        return Appended.of(self._post(f"/streams/{segment(stream)}", body, _effect_of(events)))

    def append_to_streams(
        self, appends: Iterable[StreamAppend], conditions: Iterable[Union[Condition, NoMatch]] = ()
    ) -> AppendedToStreams:
        """Appends to several streams of one log, all or nothing, provided that all conditions hold.

        >>> store.append_to_streams(                                                         # doctest: +SKIP
        ...     [StreamAppend("stock-{7}", [EventData("reserved", {})])], [Condition("order-{7}", 1)]
        ... )
        """
        parts = [(part, _listed(part.events)) for part in appends]
        events = [event for _, events in parts for event in events]
        body: Dict[str, Any] = {
            "appends": [
                {"stream": part.stream, "expected": part.expected, "events": [event.to_document() for event in events]}
                for part, events in parts
            ]
        }
        claims = [condition.to_document() for condition in conditions]
        if claims:
            body["conditions"] = claims
        return AppendedToStreams.of(self._post("/append", body, _effect_of(events)))

    # Reading

    def read_stream(
        self,
        stream: str,
        from_revision: Union[int, str, None] = None,
        direction: str = "forwards",
        limit: Optional[int] = None,
        resolve_links: bool = False,
    ) -> Iterator[RecordedEvent]:
        """Yields the events of a stream, page after page, at most `limit`.

        `from_revision` is the first that is read, or "start" or "end"; `direction` is "forwards" or "backwards".

        >>> last = next(store.read_stream("cart-1", direction="backwards"), None)            # doctest: +SKIP
        """

        def page(at: Any, limit: int) -> Page[RecordedEvent]:
            return self.read_stream_page(stream, at, direction, limit, resolve_links)

        return _all_pages(page, from_revision, limit)

    def read_stream_page(
        self,
        stream: str,
        from_revision: Union[int, str, None] = None,
        direction: str = "forwards",
        limit: int = PAGE,
        resolve_links: bool = False,
    ) -> Page[RecordedEvent]:
        """One page of a stream: at most `limit` events (1 to 10,000) and 32 MiB."""
        parameters = _reading(from_revision, direction, limit, resolve_links)
        return self._page(f"/streams/{segment(stream)}", parameters)

    def read_event(self, stream: str, revision: int, resolve_links: bool = False) -> RecordedEvent:
        """One event of a stream."""
        path = f"/streams/{segment(stream)}/{revision}"
        return RecordedEvent.of(self._get(path, {"resolve_links": _flag(resolve_links)}))

    def read_all(
        self,
        from_checkpoint: Optional[str] = None,
        filter: Filter = None,
        direction: str = "forwards",
        limit: Optional[int] = None,
    ) -> Iterator[RecordedEvent]:
        """Yields all events that a filter lets pass, page after page, at most `limit`.

        `from_checkpoint` is a checkpoint, "start" or "end".

        >>> for event in store.read_all(filter=Query(categories=["cart"], tags=["customer:7"])):     # doctest: +SKIP
        ...     print(event.stream, event.type)
        """

        def page(at: Any, limit: int) -> Page[RecordedEvent]:
            return self.read_all_page(at, filter, direction, limit)

        return _all_pages(page, from_checkpoint, limit)

    def read_all_page(
        self,
        from_checkpoint: Optional[str] = None,
        filter: Filter = None,
        direction: str = "forwards",
        limit: int = PAGE,
    ) -> Page[RecordedEvent]:
        """One page of all events. With a filter it can be short, even empty, before the end."""
        parameters = {**_reading(from_checkpoint, direction, limit), "filter": filter_parameter(filter)}
        return self._page("/all", parameters)

    def list_streams(self, prefix: str = "") -> Iterator[StreamInfo]:
        """Yields the streams whose names begin with this, in the order of their names."""
        after: Optional[str] = None
        while True:
            found = self._get("/streams", {"prefix": prefix or None, "after": after, "limit": PAGE})
            for item in found["streams"]:
                yield StreamInfo(item["stream"], item["last_revision"])
            after = found["next"]
            if after is None:
                return

    # Following

    def follow_all(self, after: str = "start", filter: Filter = None, behind: str = "tell") -> Iterator[Message]:
        """Yields all events that a filter lets pass, first the stored ones, then live ones, without end.

        `after` is a checkpoint, "start" or "end". A connection that breaks is made again, and nothing is missed or
        comes twice. Raises `HistoryChanged` if the checkpoint is of another history. With `behind="raise"` a reader
        that was too slow to follow live gets `FellBehind`, instead of a message.

        >>> for message in store.follow_all(after=checkpoint, filter=Query(categories=["cart"])):    # doctest: +SKIP
        ...     if message.event:
        ...         count(message.event)
        ...     save(message.checkpoint)
        """
        call = Call("GET", "/all/subscribe", parameters={"filter": filter_parameter(filter)})
        return follow(self._transport, call, after, behind)

    def follow_stream(
        self, stream: str, after: Union[int, str] = "start", resolve_links: bool = False, behind: str = "tell"
    ) -> Iterator[Message]:
        """The same of one stream, which need not exist. `after` may be a revision, too."""
        parameters = {"resolve_links": _flag(resolve_links)}
        call = Call("GET", f"/streams/{segment(stream)}/subscribe", parameters=parameters)
        return follow(self._transport, call, str(after), behind)

    # Consumer groups

    def group(self, stream: str, group: str) -> Group:
        """A consumer group on a stream. Nothing is sent yet."""
        return Group(self._transport, stream, group)

    def group_on_all(self, group: str) -> Group:
        """A consumer group on all events. Nothing is sent yet."""
        return Group(self._transport, None, group)

    def list_groups(self, stream: Optional[str] = None) -> Iterator[GroupName]:
        """Yields the names of all groups, or of those on a stream."""
        return list_groups(self._transport, "/groups" if stream is None else f"/streams/{segment(stream)}/groups")

    # Deleting, metadata

    def delete_stream(self, stream: str, expected: Expected = ANY) -> Changed:
        """Deletes a stream: it is gone for readers, and a later append begins it again with the next revision."""
        return self._delete(stream, {"expected": expected})

    def tombstone_stream(self, stream: str, expected: Expected = ANY) -> Changed:
        """Closes a stream for ever."""
        return self._delete(stream, {"expected": expected, "tombstone": "true"})

    def stream_metadata(self, stream: str) -> StreamMetadata:
        """The metadata of a stream; an empty document if none were set."""
        answer = self._transport.send(Call("GET", f"/streams/{segment(stream)}/metadata"))
        tag = (answer.headers.get("ETag") or "").strip('"')
        return StreamMetadata(answer.document, int(tag) if tag.isdigit() else None)

    def set_stream_metadata(self, stream: str, document: Mapping[str, Any], expected: Expected = ANY) -> Changed:
        """Replaces the metadata of a stream. `expected` is a claim about the revision of the metadata.

        >>> store.set_stream_metadata("cart-1", {"$maxCount": 1000, "owner": "web"})         # doctest: +SKIP
        """
        parameters = {"expected": expected}
        path = f"/streams/{segment(stream)}/metadata"
        call = Call("PUT", path, Effect.CHANGES, parameters, json_of(document))
        return Changed.of(self._transport.send(call).document)

    # The server

    def info(self) -> Dict[str, Any]:
        """What the server tells of itself and of the store: versions, durability, limits, nodes."""
        return self._get("/info", {})

    def close(self) -> None:
        """Closes idle connections. What is being followed goes on until its iterator is closed."""
        self._transport.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get(self, path: str, parameters: Mapping[str, Any]) -> Dict[str, Any]:
        document: Dict[str, Any] = self._transport.send(Call("GET", path, parameters=parameters)).document
        return document

    def _page(self, path: str, parameters: Mapping[str, Any]) -> Page[RecordedEvent]:
        found = self._get(path, parameters)
        events = tuple(map(RecordedEvent.of, found["events"]))
        return Page(events, found["end"], found["next"], found.get("last_revision"))

    def _post(self, path: str, body: Mapping[str, Any], effect: Effect) -> Dict[str, Any]:
        document: Dict[str, Any] = self._transport.send(Call("POST", path, effect, body=json_of(body))).document
        return document

    def _delete(self, stream: str, parameters: Mapping[str, Any]) -> Changed:
        call = Call("DELETE", f"/streams/{segment(stream)}", Effect.CHANGES, parameters)
        return Changed.of(self._transport.send(call).document)


def _listed(events: Iterable[EventData]) -> List[EventData]:
    """The events as a list. One event alone is refused, and what is no event: without its own id a retry would store
    it twice.

    >>> _listed(EventData("opened", {}))
    Traceback (most recent call last):
    TypeError: events must be a list of EventData, such as [EventData(…)], and is of type EventData
    """
    # What callers give need not be what they should give.
    given: Any = events
    if isinstance(given, (EventData, Mapping, str, bytes)) or not isinstance(given, Iterable):
        kind = type(given).__name__
        raise TypeError(f"events must be a list of EventData, such as [EventData(…)], and is of type {kind}")
    listed = list(given)
    for index, event in enumerate(listed):
        if not isinstance(event, EventData):
            raise TypeError(f"events[{index}] must be an EventData, and is of type {type(event).__name__}")
    return listed


def _effect_of(events: Iterable[EventData]) -> Effect:
    """An append is recognised when it comes again only if each event has an id."""
    return Effect.APPENDS if all(event.id is not None for event in events) else Effect.CHANGES


def _flag(value: bool) -> Optional[str]:
    return "true" if value else None


def _reading(at: Any, direction: str, limit: int, resolve_links: bool = False) -> Dict[str, Any]:
    return {"from": at, "direction": direction, "limit": limit, "resolve_links": _flag(resolve_links)}


def _all_pages(
    page_at: Callable[[Any, int], Page[RecordedEvent]], at: Any, limit: Optional[int]
) -> Iterator[RecordedEvent]:
    def events() -> Iterator[RecordedEvent]:
        place, left = at, limit
        while left is None or left > 0:
            page = page_at(place, PAGE if left is None else min(PAGE, left))
            yield from page
            if page.end:
                return
            left = None if left is None else left - len(page.items)
            place = page.next

    return events()
