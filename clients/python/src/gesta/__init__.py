"""A client of the event store Gesta, over HTTP, in nothing but Python's standard library.

>>> import gesta
>>> store = gesta.connect("http://127.0.0.1:2113")                              # doctest: +SKIP
>>> added = gesta.EventData("item-added", {"item": "book"})
>>> store.append("cart-1", [added], expected=gesta.NO_STREAM).last_revision     # doctest: +SKIP
0
>>> [event.data for event in store.read_stream("cart-1")]                       # doctest: +SKIP
[{'item': 'book'}]

`Store` has all calls. Errors are `Problem` and its subclasses. What the client has to say while a server is away, it
says to the logger `gesta`, which Python prints on standard error unless the program configures logging.
"""

from .connect import connect
from .errors import (
    ConditionFailed,
    ConsumerNotFound,
    ConsumerSilent,
    EventNotFound,
    FellBehind,
    Forbidden,
    GroupDropped,
    GroupElsewhere,
    GroupExists,
    GroupFull,
    GroupHalted,
    GroupNotFound,
    HistoryChanged,
    InvalidArgument,
    NoTls,
    NotTrusted,
    OutcomeUnknown,
    Overloaded,
    Problem,
    StoredAndDeleted,
    StreamNotFound,
    StreamTombstoned,
    Unauthenticated,
    Unavailable,
    WrongExpectedRevision,
)
from .events import EventData, Link, RecordedEvent
from .follow import Message
from .groups import Answered, Consumer, Delivery, Group, GroupName, GroupSettings
from .requests import (
    ANY,
    NO_STREAM,
    STREAM_EXISTS,
    Appended,
    AppendedToStreams,
    Changed,
    Condition,
    Expected,
    NoMatch,
    Page,
    Query,
    StreamAppend,
    StreamInfo,
    StreamMetadata,
)
from .retry import Policy
from .store import Store

__all__ = [
    "ANY",
    "NO_STREAM",
    "STREAM_EXISTS",
    "Answered",
    "Appended",
    "AppendedToStreams",
    "Changed",
    "Condition",
    "ConditionFailed",
    "Consumer",
    "ConsumerNotFound",
    "ConsumerSilent",
    "Delivery",
    "EventData",
    "EventNotFound",
    "Expected",
    "FellBehind",
    "Forbidden",
    "Group",
    "GroupDropped",
    "GroupElsewhere",
    "GroupExists",
    "GroupFull",
    "GroupHalted",
    "GroupName",
    "GroupNotFound",
    "GroupSettings",
    "HistoryChanged",
    "InvalidArgument",
    "Link",
    "Message",
    "NoMatch",
    "NoTls",
    "NotTrusted",
    "OutcomeUnknown",
    "Overloaded",
    "Page",
    "Policy",
    "Problem",
    "Query",
    "RecordedEvent",
    "Store",
    "StoredAndDeleted",
    "StreamAppend",
    "StreamInfo",
    "StreamMetadata",
    "StreamNotFound",
    "StreamTombstoned",
    "Unauthenticated",
    "Unavailable",
    "WrongExpectedRevision",
    "connect",
]

__version__ = "0.1.0"
