"""Every call of the client against a running server.

Usage: check.py URL [URL...]    who calls is in GESTA_USER and GESTA_PASSWORD, the authority in GESTA_CA_FILE
"""

import os
import sys
import uuid
from typing import List

import gesta
from gesta import EventData, Query

NAME = uuid.uuid4().hex


def connect() -> gesta.Store:
    user, password, ca_file = (os.environ.get(f"GESTA_{name}") for name in ("USER", "PASSWORD", "CA_FILE"))
    return gesta.connect(*sys.argv[1:], user=user, password=password, ca_file=ca_file)


def numbered(count: int) -> List[EventData]:
    return [EventData("numbered", {"number": number}, tags=[f"tag-{NAME}"]) for number in range(count)]


def appending(store: gesta.Store) -> None:
    stream = f"cart-{NAME}/ü +%"
    opened = EventData("opened", {"by": "Zoë"}, metadata={"trace": 1}, tags=["a", "b"])
    first = store.append(stream, [opened], expected=gesta.NO_STREAM)
    assert (first.first_revision, first.stream) == (0, stream), first
    assert store.append(stream, [opened], expected=gesta.NO_STREAM) == first, "a retry gets the first answer"
    try:
        store.append(stream, numbered(1), expected=7)
        raise AssertionError("a wrong revision is refused")
    except gesta.WrongExpectedRevision as problem:
        assert (problem.expected, problem.actual, problem.stream) == (7, 0, stream), problem.document
        assert problem.type == "urn:gesta:problem:wrong_expected_revision" and problem.status == 409
    store.append(stream, [EventData("raw", b"\x00\xff", metadata=b"\x01", id=None)], expected=0)
    lines = b'{"two":\n"lines"}'
    store.append(stream, [EventData("lines", lines, content_type="application/json")], expected=gesta.STREAM_EXISTS)

    events = list(store.read_stream(stream))
    assert [event.data for event in events] == [{"by": "Zoë"}, b"\x00\xff", {"two": "lines"}], events
    assert (events[0].id, events[0].metadata, events[0].tags) == (opened.id, {"trace": 1}, ("a", "b")), events[0]
    assert events[1].metadata == b"\x01" and events[0].created.tzinfo is not None
    followed = store.follow_stream(stream)
    assert [next(followed).event for _ in events] == events, "lines show the same events"
    assert store.read_event(stream, 1) == events[1]


def appending_to_streams(store: gesta.Store) -> None:
    order, stock = f"order-{{{NAME}}}", f"stock-{{{NAME}}}"
    parts = [gesta.StreamAppend(order, numbered(1), gesta.NO_STREAM), gesta.StreamAppend(stock, numbered(2))]
    appended = store.append_to_streams(parts)
    assert [part.last_revision for part in appended.streams] == [0, 1], appended
    reserve = [gesta.StreamAppend(stock, numbered(1))]
    try:
        store.append_to_streams(reserve, [gesta.Condition(order, 1)])
        raise AssertionError("a condition that does not hold refuses")
    except gesta.WrongExpectedRevision as problem:
        assert problem.stream == order, problem.document
    assert store.append_to_streams(reserve, [gesta.Condition(order, 0)]).streams[0].last_revision == 2


def reading(store: gesta.Store) -> None:
    stream = f"many-{NAME}"
    store.append(stream, numbered(2500))
    numbers = [event.data["number"] for event in store.read_stream(stream)]
    assert numbers == list(range(2500)), "pages follow each other"
    backwards = store.read_stream(stream, direction="backwards", limit=1200)
    assert [event.revision for event in backwards] == list(range(2499, 1299, -1))
    page = store.read_stream_page(stream, from_revision=2498, limit=1)
    assert (page.end, page.next, page.last_revision, len(page.items)) == (False, 2499, 2499, 1), page
    mine = Query(categories=["many"], tags=[f"tag-{NAME}"])
    assert len(list(store.read_all(filter=mine))) == 2500
    assert len(list(store.read_all(filter=[mine, Query(types=["nothing"])], limit=3))) == 3
    assert [info.last_revision for info in store.list_streams(stream)] == [2499]
    try:
        store.read_stream_page(stream, limit=0)
        raise AssertionError("no page of nothing")
    except gesta.InvalidArgument as problem:
        assert problem.field == "limit" and "limit" in str(problem), problem.document


def following(store: gesta.Store) -> None:
    query = Query(categories=["live"], tags=[f"tag-{NAME}"])
    store.append("live-1", numbered(2))
    messages = store.follow_all(filter=query)
    events = []
    for message in messages:
        if message.event:
            events.append(message.event)
        if message.kind == "caught_up":
            break
    assert len(events) == 2, events
    store.append("live-1", numbered(1))
    live = next(message for message in messages if message.event)
    messages.close()  # type: ignore[attr-defined]
    again = store.follow_all(after=message.checkpoint, filter=query)
    assert next(message for message in again if message.event) == live, "it goes on after a checkpoint"
    try:
        next(store.follow_all(after="AQACXB0eRPdBXoAi_Txe3PcaBgd3"))
        raise AssertionError("a checkpoint of another store is refused")
    except gesta.HistoryChanged as problem:
        assert problem.kind == "invalid_checkpoint" and problem.title and problem.detail


def consuming(store: gesta.Store) -> None:
    stream = f"jobs-{NAME}"
    group = store.group(stream, "workers/ü")
    try:
        group.join()
        raise AssertionError("there is no such group")
    except gesta.GroupNotFound:
        pass
    group.create({"max_retry_count": 3, "min_checkpoint_count": 1})
    try:
        group.create()
        raise AssertionError("there is one already")
    except gesta.GroupExists:
        pass
    assert list(store.list_groups(stream)) == [gesta.GroupName(stream, "workers/ü")]
    store.append(stream, numbered(4))
    with group.join(buffer=2, name="check") as consumer:
        first, second = next(consumer), next(consumer)
        assert (first.event.revision, second.event.revision) == (0, 1)
        assert consumer.ack(first) == gesta.Answered(1, 0)
        assert consumer.ack(first) == gesta.Answered(0, 1), "it is held no more"
        assert consumer.nack(second, action="park", reason="no such job") == gesta.Answered(1, 0)
        third = next(consumer)
        assert consumer.nack(third, reason="later") == gesta.Answered(1, 0)
        held = [next(consumer), next(consumer)]
        retried = next(delivery for delivery in held if delivery.event.revision == 2)
        assert retried.retries == 1, held
        # A consumer whose group is changed joins again, and what it held comes again.
        group.update({"max_retry_count": 5, "min_checkpoint_count": 1})
        for revision in (2, 3):
            delivery = next(consumer)
            assert delivery.event.revision == revision, delivery
            assert consumer.ack(delivery) == gesta.Answered(1, 0)
        assert consumer.ack(retried) == gesta.Answered(0, 1), "it is of the connection before"
        group.replay_parked()
        parked = next(consumer)
        assert parked.event == second.event and consumer.ack(parked).answered == 1
    assert list(consumer) == [], "it has left"
    assert group.info()["settings"]["max_retry_count"] == 5
    assert group.reset("start")["status"]
    group.delete()


def deleting(store: gesta.Store) -> None:
    stream = f"old-{NAME}"
    events = numbered(1)
    store.append(stream, events)
    assert store.stream_metadata(stream) == gesta.StreamMetadata({}, None)
    store.set_stream_metadata(stream, {"$maxCount": 10, "owner": "web"}, expected=gesta.NO_STREAM)
    assert store.stream_metadata(stream) == gesta.StreamMetadata({"$maxCount": 10, "owner": "web"}, 0)
    store.delete_stream(stream, expected=0)
    try:
        next(store.read_stream(stream))
        raise AssertionError("it is deleted")
    except gesta.StreamNotFound as problem:
        assert problem.stream == stream
    try:
        store.append(stream, events)
        raise AssertionError("what was deleted does not come back")
    except gesta.StoredAndDeleted as problem:
        assert problem.position is not None
    assert store.append(stream, numbered(1)).first_revision == 1
    store.tombstone_stream(stream)
    try:
        next(store.follow_stream(stream))
        raise AssertionError("it is closed")
    except gesta.StreamTombstoned:
        pass


def main() -> None:
    with connect() as store:
        for check in (appending, appending_to_streams, reading, following, consuming, deleting):
            check(store)
            print(check.__name__, flush=True)
        assert store.info()["name"] == "gesta"


main()
