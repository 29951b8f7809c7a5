"""Server-sent events: an answer without an end, made of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Iterator, List

from . import documents
from .errors import problem_of


@dataclass(frozen=True)
class ServerEvent:
    """A message. `id` is empty if it has none."""

    kind: str
    id: str
    document: Any


def server_events(lines: Iterable[bytes]) -> Iterator[ServerEvent]:
    """Reads messages, which are lines of `field: value` and end with an empty line. One that breaks off is left out.

    A message of the kind `error` is raised as the `Problem` that it carries, and one that is no JSON as another.

    >>> list(server_events([b"id: 7\\n", b"event: caught_up\\n", b"data: {}\\n", b"\\n", b": heartbeat\\n", b"\\n"]))
    [ServerEvent(kind='caught_up', id='7', document={})]
    """
    kind, id = "", ""
    data: List[str] = []
    for line in lines:
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text:
            name, _, value = text.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "event":
                kind = value
            elif name == "id":
                id = value
            elif name == "data":
                data.append(value)
            continue
        if data:
            try:
                document = documents.read("\n".join(data))
            except ValueError as error:
                raise documents.unreadable(error, 200) from error
            if kind == "error":
                raise problem_of(document)
            yield ServerEvent(kind, id, document)
        kind, id, data = "", "", []
