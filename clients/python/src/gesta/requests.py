"""What callers ask for and what they get, apart from events."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Generic, Iterable, Iterator, List, Mapping, Optional, Tuple, TypeVar, Union

from .events import EventData
from .texts import texts

Item = TypeVar("Item")

# What a writer claims about a stream: one of these, or the last revision that it knows.
Expected = Union[str, int]
ANY: Expected = "any"
NO_STREAM: Expected = "no_stream"
STREAM_EXISTS: Expected = "stream_exists"


@dataclass(frozen=True)
class StreamAppend:
    """One stream's part of an append to several streams."""

    stream: str
    events: Iterable[EventData]
    expected: Expected = ANY


@dataclass(frozen=True)
class Condition:
    """What must hold of a stream to which nothing is appended: `NO_STREAM`, `STREAM_EXISTS` or its last revision."""

    stream: str
    expected: Expected

    def to_document(self) -> Dict[str, Any]:
        """The condition as the HTTP API takes it."""
        return {"stream": self.stream, "expected": self.expected}


@dataclass(frozen=True)
class NoMatch:
    """What no event may be: none of the log meets any of the queries after the checkpoint, or at all without one.

    With the query and the end of the read on which a decision rests it says that a read would still show the same.

    >>> NoMatch([Query(tags=["name:ada"])]).to_document()
    {'no_match': [{'tags': ['name:ada']}]}
    """

    queries: Iterable[Query]
    after: Optional[str] = None

    def to_document(self) -> Dict[str, Any]:
        """The condition as the HTTP API takes it."""
        document: Dict[str, Any] = {"no_match": [query.to_document() for query in self.queries]}
        if self.after is not None:
            document["after"] = self.after
        return document


@dataclass(frozen=True)
class Appended:
    """Where events were stored. `checkpoint` is right after the last of them: a reader that is there has seen them."""

    stream: str
    first_revision: int
    last_revision: int
    log: int
    position: int
    checkpoint: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Appended:
        """The answer to an append to one stream."""
        return cls(**{name: document[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class AppendedToStreams:
    """Where the events of several streams were stored, in the order of the request."""

    streams: Tuple[Appended, ...]
    log: int
    position: int
    checkpoint: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> AppendedToStreams:
        """The answer to an append to several streams, all of which are of one log."""
        log, checkpoint = document["log"], document["checkpoint"]
        parts = ({**part, "log": log, "checkpoint": checkpoint} for part in document["streams"])
        return cls(tuple(map(Appended.of, parts)), log, document["position"], checkpoint)


@dataclass(frozen=True)
class Changed:
    """Where a delete or a change of metadata was stored."""

    log: int
    position: int
    checkpoint: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Changed:
        """The answer to a change."""
        return cls(document["log"], document["position"], document["checkpoint"])


@dataclass(frozen=True)
class StreamInfo:
    """A stream in a list."""

    stream: str
    last_revision: int


@dataclass(frozen=True)
class StreamMetadata:
    """The metadata of a stream; `revision` is theirs, `None` if none were set."""

    document: Dict[str, Any]
    revision: Optional[int]


@dataclass(frozen=True)
class Page(Generic[Item]):
    """A part of an answer. If it is not the `end`, `next` is where the next page begins."""

    items: Tuple[Item, ...]
    end: bool
    next: Any
    # Of a page of a stream: the stream's last revision.
    last_revision: Optional[int] = None

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)


@dataclass(frozen=True)
class Query:
    """Which events pass: those of any of the types, that carry all tags, in streams of any of the prefixes and of any
    of the categories (the text before the first `-` of a stream's name). What is left out lets everything pass.

    >>> Query(categories=["cart"], types=["item-added"]).to_document()
    {'types': ['item-added'], 'categories': ['cart']}
    """

    types: Iterable[str] = ()
    tags: Iterable[str] = ()
    stream_prefixes: Iterable[str] = ()
    categories: Iterable[str] = ()

    def to_document(self) -> Dict[str, List[str]]:
        """The query as the HTTP API takes it."""
        fields = {name: texts(name, getattr(self, name)) for name in ("types", "tags", "stream_prefixes", "categories")}
        return {name: values for name, values in fields.items() if values}


# One query, or several of which any must match.
Filter = Union[Query, Iterable[Query], None]


def queries_of(filter: Filter) -> List[Dict[str, List[str]]]:
    """The queries of a filter, as the HTTP API takes them; an empty list lets everything pass."""
    if filter is None:
        return []
    queries = [filter] if isinstance(filter, Query) else list(filter)
    return [query.to_document() for query in queries]


def filter_parameter(filter: Filter) -> Optional[str]:
    """The same as the parameter of an address."""
    queries = queries_of(filter)
    return json.dumps(queries) if queries else None
