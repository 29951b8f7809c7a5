"""Events, before and after they are stored, and how they are written as JSON."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Dict, Iterable, Mapping, Optional, Tuple, Union

from . import documents
from .texts import texts


@dataclass(frozen=True)
class EventData:
    """An event before it is stored.

    `data` and `metadata` are anything that `json.dumps` takes, or `bytes` for anything else. The id is drawn here, so
    appending the same object again is a retry: the server stores it once. With `id=None` the server draws one, and a
    retry would store the event again; such appends are not repeated by the client.

    >>> EventData("item-added", {"item": "book"}, tags=["customer:7"]).to_document()["tags"]
    ['customer:7']
    """

    type: str
    data: Any
    metadata: Any = None
    tags: Iterable[str] = ()
    id: Union[uuid.UUID, str, None] = field(default_factory=uuid.uuid4)
    # Only with data in bytes: "application/json" if the bytes are JSON.
    content_type: Optional[str] = None

    def to_document(self) -> Dict[str, Any]:
        """The event as the HTTP API takes it."""
        document: Dict[str, Any] = {"type": self.type, **_payload("data", self.data)}
        if self.id is not None:
            document["id"] = str(self.id)
        if self.metadata is not None:
            document.update(_payload("metadata", self.metadata))
        tags = texts("tags", self.tags)
        if tags:
            document["tags"] = tags
        if self.content_type is not None:
            document["content_type"] = self.content_type
        return document


@dataclass(frozen=True)
class Link:
    """Where the link stands that led to an event."""

    stream: str
    revision: int
    position: int
    id: uuid.UUID


@dataclass(frozen=True)
class RecordedEvent:
    """An event that is stored.

    `data` is the JSON value, or `bytes` if the data are not JSON, or nested deeper than Python reads; so is `metadata`,
    which is `None` if there are none. An integer of more digits than Python takes for an `int` (4,300, unless the
    program has set another limit) is a `Decimal`.
    """

    stream: str
    revision: int
    log: int
    position: int
    id: uuid.UUID
    type: str
    created: datetime
    content_type: str
    data: Any
    metadata: Any
    tags: Tuple[str, ...]
    # Where the link stands, if the event came in its place.
    link: Optional[Link]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> RecordedEvent:
        """The event of a document of the HTTP API."""
        link = document.get("link")
        is_json = document["content_type"] == "application/json"
        return cls(
            stream=document["stream"],
            revision=document["revision"],
            log=document["log"],
            position=document["position"],
            id=uuid.UUID(document["id"]),
            type=document["type"],
            created=datetime.fromisoformat(document["created"].replace("Z", "+00:00")),
            content_type=document["content_type"],
            data=_value(document, "data", is_json),
            metadata=_value(document, "metadata", True),
            tags=tuple(document["tags"]),
            link=Link(link["stream"], link["revision"], link["position"], uuid.UUID(link["id"])) if link else None,
        )


def _payload(name: str, value: Any) -> Dict[str, Any]:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}
    return {name: value}


def _value(document: Mapping[str, Any], name: str, may_be_json: bool) -> Any:
    """A payload. JSON that contains line breaks comes in base64 where the answer is made of lines."""
    encoded = document.get(f"{name}_base64")
    if encoded is None:
        return document.get(name)
    payload = base64.b64decode(encoded)
    if may_be_json:
        try:
            return documents.read(payload)
        except ValueError:
            pass
    return payload
