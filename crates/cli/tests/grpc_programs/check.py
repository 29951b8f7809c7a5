"""What a team does with the published Python client, against servers whose addresses are the first argument.

The second argument is a way to one of them that is cut whenever somebody connects to the address that is the third.
Each check stands alone, on streams of its own. The program prints a line for each and fails with the first that is wrong.
"""

import json
import socket
import sys
import threading
import time
import urllib.request
import uuid

import grpc
from kurrentdbclient import (
    DEFAULT_EXCLUDE_FILTER,
    KurrentDBClient,
    NewEvent,
    NewEvents,
    StreamState,
)
from kurrentdbclient import exceptions
from kurrentdbclient.events import NewRecord, StreamStateCheck

ADDRESS, THROUGH, CUTTER = sys.argv[1:4]
# Seconds: however long a check takes, no event of a group comes again because of that.
NEVER = 3_600


def connect(scheme="kdb", addresses=ADDRESS):
    return KurrentDBClient(uri=f"{scheme}://{addresses}?Tls=false")


def event(type="item-added", data=b'{"item":"book"}', **more):
    return NewEvent(type=type, data=data, **more)


def name(category="cart"):
    return f"{category}-{uuid.uuid4().hex}"


def raises(expected, call):
    try:
        call()
    except expected as error:
        assert type(error) is expected, error
        return error
    raise AssertionError(f"{expected.__name__} was not raised")


def read(client, stream, **options):
    return client.get_stream(stream, **options)


def read_virtual(client, stream, **options):
    """Reads again while the server says that it is not up to date, as after the machine has stood still."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return read(client, stream, **options)
        except exceptions.ServiceUnavailableError as error:
            print(f"read again: {stream}: {error}", file=sys.stderr, flush=True)
            assert time.monotonic() < deadline, f"never served: {stream}: {error}"
            time.sleep(0.1)


def expected_states(client):
    for state in (StreamState.ANY, StreamState.NO_STREAM):
        assert client.append_to_stream(name(), current_version=state, events=[event()]) > 0
    stream = name()
    wrong = exceptions.WrongCurrentVersionError
    raises(wrong, lambda: client.append_to_stream(stream, current_version=StreamState.EXISTS, events=[event()]))
    raises(wrong, lambda: client.append_to_stream(stream, current_version=0, events=[event()]))
    client.append_to_stream(stream, current_version=StreamState.NO_STREAM, events=[event()])
    raises(wrong, lambda: client.append_to_stream(stream, current_version=StreamState.NO_STREAM, events=[event()]))
    raises(wrong, lambda: client.append_to_stream(stream, current_version=5, events=[event()]))
    raises(wrong, lambda: client.append_to_stream(stream, current_version=5, events=[event(), event()]))
    client.append_to_stream(stream, current_version=0, events=[event()])
    client.append_to_stream(stream, current_version=StreamState.EXISTS, events=[event(), event()])
    client.append_to_stream(stream, current_version=StreamState.ANY, events=event())
    assert [e.stream_position for e in read(client, stream)] == [0, 1, 2, 3, 4]


def events_come_back_as_they_were(client):
    stream, id = name("größe"), uuid.uuid4()
    data, metadata = bytes(range(256)), b'{"by":"alice"}'
    stored = NewEvent(
        id=id, type="picture-taken", data=data, metadata=metadata, content_type="application/octet-stream"
    )
    position = client.append_to_stream(stream, current_version=StreamState.NO_STREAM, events=stored)
    (found,) = read(client, stream)
    assert (found.id, found.type, found.data, found.metadata) == (id, "picture-taken", data, metadata)
    assert (found.stream_name, found.stream_position, found.commit_position) == (stream, 0, position)
    assert found.content_type == "application/octet-stream", found
    assert abs(found.recorded_at.timestamp() - time.time()) < 600, found.recorded_at
    large = event(data=b"x" * 5_000_000)
    client.append_to_stream(stream, current_version=0, events=[large])
    assert len(read(client, stream, stream_position=1)[0].data) == 5_000_000


def a_retry_is_stored_once(client):
    stream, events = name(), [event(), event()]
    first = client.append_to_stream(stream, current_version=StreamState.NO_STREAM, events=events)
    client.append_to_stream(stream, current_version=1, events=[event()])
    for state in (StreamState.NO_STREAM, StreamState.ANY):
        assert client.append_to_stream(stream, current_version=state, events=events) == first
    one = event()
    first = client.append_to_stream(stream, current_version=2, events=one)
    assert client.append_to_stream(stream, current_version=2, events=one) == first
    raises(
        exceptions.WrongCurrentVersionError,
        lambda: client.append_to_stream(stream, current_version=2, events=[one, event()]),
    )
    assert len(read(client, stream)) == 4


def reads_have_directions_and_limits(client):
    stream = name()
    client.append_to_stream(
        stream, current_version=StreamState.NO_STREAM, events=[event(data=str(n).encode()) for n in range(2_500)]
    )
    numbers = lambda **options: [e.stream_position for e in read(client, stream, **options)]
    assert numbers() == list(range(2_500))
    assert numbers(backwards=True) == list(range(2_499, -1, -1))
    assert numbers(stream_position=2_490) == list(range(2_490, 2_500))
    assert numbers(stream_position=3, backwards=True) == [3, 2, 1, 0]
    assert numbers(stream_position=2_490, limit=3) == [2_490, 2_491, 2_492]
    assert numbers(stream_position=3_000) == []
    assert numbers(limit=1_234) == list(range(1_234))
    assert client.get_current_version(stream) == 2_499
    raises(exceptions.NotFoundError, lambda: read(client, name()))
    assert client.get_current_version(name()) is StreamState.NO_STREAM


def all_events_are_read_with_filters(client):
    mark = uuid.uuid4().hex
    kept, left = name(f"kept{mark}"), name(f"left{mark}")
    start = client.get_commit_position()
    client.append_to_stream(kept, current_version=StreamState.NO_STREAM, events=[event(), event(type="item-removed")])
    client.append_to_stream(left, current_version=StreamState.NO_STREAM, events=[event()])
    client.set_stream_metadata(kept, metadata={"$maxCount": 10})

    def seen(**options):
        found = client.read_all(commit_position=start, **options)
        return [(e.stream_name, e.type) for e in found if e.commit_position > start]

    everything = [(kept, "item-added"), (kept, "item-removed"), (left, "item-added")]
    assert seen() == everything, "the default leaves system events out"
    assert seen(filter_exclude=[]) == [*everything, (f"$${kept}", "$metadata")]
    assert seen(filter_exclude=[*DEFAULT_EXCLUDE_FILTER, "item-removed"]) == [everything[0], everything[2]]
    assert seen(filter_include=["item-removed"]) == everything[1:2]
    assert seen(filter_include=[f"kept{mark}-.*"], filter_by_stream_name=True) == everything[:2]
    assert seen(filter_include=["item-"], filter_by_prefix=True) == everything
    assert seen(filter_include=[f"left{mark}"], filter_by_stream_name=True, filter_by_prefix=True) == everything[2:]
    back = client.read_all(backwards=True, limit=2)
    assert [(e.stream_name, e.type) for e in back] == [everything[2], everything[1]]
    (first,) = client.read_all(limit=1, filter_exclude=[])
    assert first.commit_position >= 1
    assert client.get_commit_position() == [e.commit_position for e in client.read_all(backwards=True, limit=1)][0]
    positions = [e.commit_position for e in client.read_all(filter_exclude=[])]
    assert positions == sorted(set(positions))
    at = positions[-2]
    assert [e.commit_position for e in client.read_all(commit_position=at, filter_exclude=[])] == positions[-2:]
    assert [e.commit_position for e in client.read_all(commit_position=at, backwards=True, limit=1, filter_exclude=[])] == [
        positions[-3]
    ]


def a_subscription_catches_up_and_stays_live(client):
    stream = name()
    client.append_to_stream(
        stream, current_version=StreamState.NO_STREAM, events=[event(data=str(n).encode()) for n in range(100)]
    )
    writing = threading.Event()

    def write():
        with connect() as other:
            for n in range(100, 400):
                other.append_to_stream(stream, current_version=n - 1, events=event(data=str(n).encode()))
                if n == 150:
                    writing.set()

    writer = threading.Thread(target=write)
    writer.start()
    with client.subscribe_to_stream(stream) as subscription:
        found = []
        for e in subscription:
            found.append(int(e.data))
            if len(found) == 250:
                break
    assert found == list(range(250))
    # A second one resumes where the first one stopped, while the writer goes on.
    with client.subscribe_to_stream(stream, stream_position=249) as subscription:
        for e in subscription:
            found.append(int(e.data))
            if found[-1] == 399:
                break
    writer.join()
    assert found == list(range(400))


def all_events_are_followed_with_checkpoints(client):
    mark = uuid.uuid4().hex
    start = client.get_commit_position()
    passing, others = name(f"passing{mark}"), name("others")
    with client.subscribe_to_all(
        commit_position=start,
        filter_include=[f"passing{mark}-.*"],
        filter_by_stream_name=True,
        include_checkpoints=True,
        include_caught_up=True,
        window_size=4,
        checkpoint_interval_multiplier=2,
    ) as subscription:
        messages = iter(subscription)
        kinds = []
        client.append_to_stream(others, current_version=StreamState.NO_STREAM, events=[event() for _ in range(40)])
        client.append_to_stream(passing, current_version=StreamState.NO_STREAM, events=[event()])
        positions = []
        for message in messages:
            kind = type(message).__name__
            kinds.append(kind)
            if kind in ("Checkpoint", "RecordedEvent"):
                positions.append(message.commit_position)
            if kind == "RecordedEvent":
                assert message.stream_name == passing
                break
    assert "CaughtUp" in kinds and "Checkpoint" in kinds, kinds
    assert positions == sorted(set(positions)), positions
    # Every checkpoint can be resumed from.
    with client.subscribe_to_all(commit_position=positions[0]) as subscription:
        for e in subscription:
            if e.stream_name == passing:
                break
    # So is a filter by the beginning of names: eight events for each checkpoint, whether they pass or not.
    with client.subscribe_to_all(
        commit_position=start,
        filter_include=[f"passing{mark}"],
        filter_by_stream_name=True,
        filter_by_prefix=True,
        include_checkpoints=True,
        include_caught_up=True,
        window_size=4,
        checkpoint_interval_multiplier=2,
    ) as subscription:
        kinds = []
        for message in subscription:
            kinds.append(type(message).__name__)
            if kinds[-1] == "CaughtUp":
                break
    assert kinds.count("Checkpoint") >= 5 and kinds.count("RecordedEvent") == 1, kinds
    from_end = client.subscribe_to_all(from_end=True)
    late = name("late")
    with from_end:
        with connect() as other:
            # Nobody can know when the subscription has begun but by an event that comes.
            stop = threading.Event()

            def knock():
                while not stop.wait(0.05):
                    other.append_to_stream(late, current_version=StreamState.ANY, events=event())

            knocking = threading.Thread(target=knock)
            knocking.start()
            for e in from_end:
                assert e.stream_name == late
                break
            stop.set()
            knocking.join()


def metadata_truncate(client):
    stream = name()
    numbers = lambda: [e.stream_position for e in read(client, stream)]
    assert client.get_stream_metadata(stream) == ({}, StreamState.NO_STREAM)
    client.append_to_stream(stream, current_version=StreamState.NO_STREAM, events=[event() for _ in range(10)])
    client.set_stream_metadata(stream, metadata={"$maxCount": 3, "owner": "x"})
    assert numbers() == [7, 8, 9]
    assert client.get_stream_metadata(stream) == ({"$maxCount": 3, "owner": "x"}, 0)
    raises(
        exceptions.WrongCurrentVersionError,
        lambda: client.set_stream_metadata(stream, metadata={}, current_version=StreamState.NO_STREAM),
    )
    client.set_stream_metadata(stream, metadata={"$tb": 5}, current_version=0)
    assert numbers() == [5, 6, 7, 8, 9]
    client.set_stream_metadata(stream, metadata={"$maxAge": 1}, current_version=1)
    deadline = time.monotonic() + 60
    while read(client, stream) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert numbers() == []
    client.set_stream_metadata(stream, metadata={"$maxAge": 3_600}, current_version=2)
    assert len(numbers()) == 10


def deleted_streams_come_back_and_tombstones_do_not(client):
    stream = name()
    wrong, gone = exceptions.WrongCurrentVersionError, exceptions.NotFoundError
    raises(gone, lambda: client.delete_stream(stream, current_version=StreamState.ANY))
    client.append_to_stream(stream, current_version=StreamState.NO_STREAM, events=[event(), event()])
    raises(wrong, lambda: client.delete_stream(stream, current_version=0))
    client.delete_stream(stream, current_version=1)
    raises(gone, lambda: read(client, stream))
    client.delete_stream(stream, current_version=StreamState.ANY)
    client.delete_stream(stream, current_version=1)
    raises(
        exceptions.StreamIsDeletedError,
        lambda: client.append_to_stream(stream, current_version=StreamState.EXISTS, events=[event()]),
    )
    client.append_to_stream(stream, current_version=1, events=[event(), event()])
    assert [e.stream_position for e in read(client, stream)] == [2, 3]
    client.delete_stream(stream, current_version=StreamState.EXISTS)
    client.append_to_stream(stream, current_version=StreamState.NO_STREAM, events=[event()])
    assert [e.stream_position for e in read(client, stream)] == [4]
    raises(wrong, lambda: client.tombstone_stream(stream, current_version=1))
    client.tombstone_stream(stream, current_version=4)
    deleted = exceptions.StreamIsDeletedError
    raises(deleted, lambda: read(client, stream))
    raises(deleted, lambda: client.append_to_stream(stream, current_version=StreamState.ANY, events=[event()]))
    raises(deleted, lambda: client.append_to_stream(stream, current_version=4, events=[event(), event()]))
    raises(deleted, lambda: client.delete_stream(stream, current_version=StreamState.ANY))
    raises(deleted, lambda: client.tombstone_stream(stream, current_version=StreamState.ANY))
    raises(deleted, lambda: next(iter(client.subscribe_to_stream(stream))))
    raises(deleted, lambda: client.get_stream_metadata(stream))
    client.tombstone_stream(name(), current_version=StreamState.ANY)
    client.tombstone_stream(name(), current_version=StreamState.NO_STREAM)
    last = list(client.read_all(backwards=True, limit=1, filter_exclude=[]))[0]
    assert last.type == "$streamDeleted", last


def a_deleted_stream_is_marked_in_its_metadata(client):
    mark = {"$tb": 2**63 - 1}
    stream = name()
    # A stream that has metadata alone can be deleted by who expects no stream.
    client.set_stream_metadata(stream, metadata={"owner": "x"})
    client.delete_stream(stream, current_version=StreamState.NO_STREAM)
    assert client.get_stream_metadata(stream)[0] == mark
    client.append_events(stream, current_version=StreamState.NO_STREAM, events=[event(), event()])
    assert client.get_stream_metadata(stream)[0].get("$tb", 0) == 0
    # The mark deletes like the call for that, and the next event brings the stream back.
    client.set_stream_metadata(stream, metadata={**mark, "owner": "x"})
    raises(exceptions.NotFoundError, lambda: read(client, stream))
    assert client.get_stream_metadata(stream)[0] == {**mark, "owner": "x"}
    client.append_events(stream, current_version=StreamState.NO_STREAM, events=[event()])
    assert [e.stream_position for e in read(client, stream)] == [2]
    assert client.get_stream_metadata(stream)[0] == {"$tb": 2, "owner": "x"}


def what_is_too_large_is_told_as_that(client):
    append = lambda events: client.append_to_stream(name(), current_version=StreamState.ANY, events=events)
    too_large = exceptions.MaximumAppendSizeExceededError
    raises(too_large, lambda: append([event() for _ in range(10_001)]))
    raises(too_large, lambda: append([event(data=b"x" * (16 * 1024 * 1024 + 1)), event()]))
    append([event() for _ in range(10_000)])
    batch = lambda count: NewEvents(
        stream_name=name(), events=[event() for _ in range(count)], current_version=StreamState.ANY
    )
    too_many = exceptions.TransactionMaxSizeExceededError
    raises(too_many, lambda: client.multi_append_to_stream([batch(1), batch(10_000)]))
    raises(
        exceptions.RecordMaxSizeExceededError,
        lambda: client.append_records([NewRecord(stream_name=name(), type="a", data=b"x" * (17 * 1024 * 1024))]),
    )


def the_projections_of_the_system_are_known(client):
    client.enable_projection("$by_category")
    assert client.get_projection_statistics("$by_category").status == "Running"
    assert client.get_projection_statistics("$by_correlation_id").status == "Stopped"
    names = {each.name for each in client.list_continuous_projection_statistics()}
    assert names == {each.name for each in client.list_all_projection_statistics()} and len(names) == 5, names
    raises(exceptions.NotFoundError, lambda: client.get_projection_statistics("mine"))
    raises(exceptions.FailedPreconditionError, lambda: client.enable_projection("$by_correlation_id"))
    raises(exceptions.FailedPreconditionError, lambda: client.disable_projection("$by_category"))
    client.disable_projection("$by_correlation_id")
    raises(exceptions.GrpcError, lambda: client.create_projection(name="mine", query="fromAll()"))


def the_nodes_are_told_over_http_too(client):
    first = ADDRESS.split(",")[0]
    with urllib.request.urlopen(f"http://{first}/gossip") as answer:
        members = json.load(answer)["members"]
    told = {f"{each['httpEndPointIp']}:{each['httpEndPointPort']}" for each in members}
    assert told == set(ADDRESS.split(",")), told
    assert [each["state"] for each in members].count("Leader") == 1, members


def the_health_of_the_server_can_be_asked(client):
    with grpc.insecure_channel(ADDRESS.split(",")[0]) as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        assert next(iter(watch)) == b"\x08\x01"
        watch.cancel()


def a_filter_that_finds_nothing_for_ever_is_refused(client):
    follow = lambda: client.subscribe_to_all(filter_include=[r"\$ce-cart.*"], filter_by_stream_name=True)
    assert "such a stream itself" in str(raises(exceptions.GrpcError, lambda: next(iter(follow()))))


def a_reader_goes_on_where_it_was(client):
    """What every guide to projections shows: an own read model that remembers the position of the last event."""
    category, model = f"kind{uuid.uuid4().hex}", {"count": 0, "at": client.get_commit_position()}

    def follow(until_count):
        matching = {"filter_include": [f"{category}-.*"], "filter_by_stream_name": True}
        with client.subscribe_to_all(commit_position=model["at"], **matching) as subscription:
            for e in subscription:
                model["count"], model["at"] = model["count"] + 1, e.commit_position
                if model["count"] == until_count:
                    return

    for n in (2, 5):
        for _ in range(n - model["count"]):
            client.append_to_stream(name(category), current_version=StreamState.NO_STREAM, events=event())
        follow(n)
    assert model["count"] == 5


def a_writer_that_lost_tries_again(client):
    """What every guide to concurrency shows: read, decide, append after what was read, and again if others were faster."""
    stream, lost = name("account"), 0
    client.append_to_stream(stream, current_version=StreamState.NO_STREAM, events=event("opened"))
    for _ in range(3):
        other = True
        while True:
            last = client.get_current_version(stream)
            if other:
                client.append_to_stream(stream, current_version=last, events=event("charged"))
                other = False
            try:
                client.append_to_stream(stream, current_version=last, events=event("paid"))
                break
            except exceptions.WrongCurrentVersionError:
                lost += 1
    assert lost == 3 and len(read(client, stream)) == 7
    assert [e.type for e in read(client, stream, backwards=True, limit=1)] == ["paid"]
    assert [e.stream_position for e in read(client, stream, stream_position=5)] == [5, 6]


def links_are_resolved(client):
    target, links = name(), name("links")
    client.append_to_stream(target, current_version=StreamState.NO_STREAM, events=[event(data=b"0"), event(data=b"1")])
    link = lambda to: event(type="$>", data=to.encode(), content_type="application/octet-stream")
    client.append_to_stream(
        links,
        current_version=StreamState.NO_STREAM,
        events=[link(f"1@{target}"), event(data=b"own"), link(f"0@{target}")],
    )
    assert [e.type for e in read(client, links)] == ["$>", "item-added", "$>"]
    resolved = read(client, links, resolve_links=True)
    assert [e.data for e in resolved] == [b"1", b"own", b"0"]
    assert resolved[0].link.stream_name == links and resolved[0].stream_name == target
    client.append_to_stream(links, current_version=2, events=link(f"7@{target}"))
    client.append_to_stream(links, current_version=3, events=link(f"1@{target}"))
    # What leads nowhere is left out by this client.
    assert [e.data for e in read(client, links, resolve_links=True)] == [b"1", b"own", b"0", b"1"]
    with client.subscribe_to_stream(links, resolve_links=True) as subscription:
        found = []
        for e in subscription:
            found.append(e.data)
            if len(found) == 4:
                break
    assert found == [b"1", b"own", b"0", b"1"]


def several_streams_are_written_at_once(client):
    one, two = name(), name()
    batch = lambda stream, state, count=1: NewEvents(
        stream_name=stream, events=[event() for _ in range(count)], current_version=state
    )
    position = client.multi_append_to_stream(
        [batch(one, StreamState.NO_STREAM, 2), batch(two, StreamState.NO_STREAM)]
    )
    assert [e.stream_position for e in read(client, one)] == [0, 1]
    assert read(client, two)[0].commit_position == position
    metadata = json.loads(read(client, one)[0].metadata)
    assert metadata["$schema.name"] == "item-added" and metadata["$schema.format"] == "Json", metadata
    wrong = exceptions.WrongCurrentVersionError
    raises(wrong, lambda: client.multi_append_to_stream([batch(one, 1), batch(two, 7)]))
    assert len(read(client, one)) == 2, "all or nothing"
    client.multi_append_to_stream([batch(one, 1), batch(two, StreamState.ANY)])
    client.tombstone_stream(two, current_version=StreamState.ANY)
    raises(exceptions.StreamTombstonedError, lambda: client.multi_append_to_stream([batch(one, 2), batch(two, 1)]))
    assert len(read(client, one)) == 3


def records_are_written_with_checks(client):
    one, two = name(), name()
    record = lambda stream: NewRecord(stream_name=stream, type="item-added", data=b"{}")
    written = client.append_records(
        [record(one), record(two), record(one)], checks=[StreamStateCheck(one, StreamState.NO_STREAM)]
    )
    assert {each.stream_name: each.stream_position for each in written.stream_positions} == {one: 1, two: 0}
    assert written.commit_position == max(read(client, stream)[-1].commit_position for stream in (one, two))
    error = raises(
        exceptions.ConsistencyChecksFailedError,
        lambda: client.append_records(
            [record(one), record(two)], checks=[StreamStateCheck(one, 1), StreamStateCheck(two, 5)]
        ),
    )
    (failure,) = error.failures
    state = failure.stream_state_failure
    assert (failure.check_index, state.stream_name, state.expected_state, state.actual_state) == (1, two, 5, 0)
    assert len(read(client, one)) == 2 and len(read(client, two)) == 1, "all or nothing"
    client.append_records([record(one)], checks=StreamStateCheck(one, StreamState.EXISTS))
    client.append_records([record(one)], checks=StreamStateCheck(two, StreamState.ANY))
    # A stream that is checked need not be written to.
    client.append_records([record(one)], checks=[StreamStateCheck(two, 0)])
    raises(
        exceptions.ConsistencyChecksFailedError,
        lambda: client.append_records([record(one)], checks=[StreamStateCheck(two, 7)]),
    )


def cut():
    """Cuts what goes through the way that is cut, and waits until that is done."""
    host, port = CUTTER.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as knock:
        assert int(knock.makefile().read()) > 0, "nothing was there to be cut"


def a_group_is_joined_again_after_a_cut(client):
    stream, group = name(), "cut"
    numbers = [event(data=str(n).encode()) for n in range(10)]
    client.append_to_stream(stream, current_version=StreamState.NO_STREAM, events=numbers)
    client.create_subscription_to_stream(group, stream, message_timeout=NEVER)
    info = lambda: client.get_subscription_info(group, stream)
    with KurrentDBClient(uri=f"kdb://{THROUGH}?Tls=false") as through:
        subscription = through.read_subscription_to_stream(group, stream, event_buffer_size=10)
        found = []
        for e in subscription:
            found.append(int(e.data))
            if len(found) <= 4:
                subscription.ack(e)
            if len(found) == 10:
                break
        until("four answers have arrived", lambda: info().outstanding_messages_count == 6)
        cut()
        try:
            next(iter(subscription))
            raise AssertionError("the connection was cut")
        except (exceptions.KurrentDBClientError, StopIteration):
            pass
        until("the consumer has left", lambda: not info().connections)
        again = through.read_subscription_to_stream(group, stream)
        rest = []
        for e in again:
            rest.append((int(e.data), e.retry_count))
            again.ack(e)
            if len(rest) == 6:
                break
        until("all answers have arrived", lambda: info().outstanding_messages_count == 0)
        again.stop()
    assert sorted(found) == list(range(10)), found
    # The consumer may have been lost to the first event that it did not answer; the others cost it no try.
    assert sorted(rest) == [(n, int(n == found[4])) for n in sorted(found[4:])], (found, rest)


def collect(client, group, stream, count, answer):
    """Joins a group, takes so many deliveries, answers for each, and leaves once the answers have arrived."""
    source = {} if stream is None else {"stream_name": stream}
    subscription = join(client, group, stream)
    found = []
    for e in subscription:
        found.append((int(e.data), e.retry_count))
        answer(subscription, e)
        if len(found) == count:
            break
    # A client that leaves takes back what it has not sent yet.
    info = lambda: client.get_subscription_info(group, **source)
    until("all answers have arrived", lambda: info().outstanding_messages_count == 0)
    subscription.stop()
    return found


def join(client, group, stream, **options):
    if stream is None:
        return client.read_subscription_to_all(group, **options)
    return client.read_subscription_to_stream(group, stream, **options)


def a_group_acknowledges_retries_and_parks(client):
    stream, group = name(), "mail"
    numbers = [event(data=str(n).encode()) for n in range(20)]
    client.append_to_stream(stream, current_version=StreamState.NO_STREAM, events=numbers)
    client.create_subscription_to_stream(
        group,
        stream,
        message_timeout=NEVER,
        max_retry_count=1,
        min_checkpoint_count=1,
        checkpoint_after=0.1,
        consumer_strategy="RoundRobin",
    )
    raises(exceptions.AlreadyExistsError, lambda: client.create_subscription_to_stream(group, stream))
    raises(exceptions.NotFoundError, lambda: client.read_subscription_to_stream("none", stream))

    def answer(subscription, e):
        n = int(e.data)
        if n == 3 and e.retry_count == 0:
            subscription.nack(e, "retry")
        elif n == 4:
            subscription.nack(e, "park")
        elif n == 5:
            subscription.nack(e, "retry")
        elif n == 6:
            subscription.nack(e, "skip")
        else:
            subscription.ack(e)

    found = collect(client, group, stream, 22, answer)
    # Number 3 comes twice, number 5 twice until it is parked, everything else once.
    assert sorted(found) == sorted([(n, 0) for n in range(20)] + [(3, 1), (5, 1)]), found
    info = lambda: client.get_subscription_info(group, stream)
    until("two are parked", lambda: info().parked_message_count == 2)
    until("all are finished", lambda: info().last_checkpointed_event_position == "19")
    assert info().consumer_strategy == "RoundRobin"
    # A new consumer gets what is new, and the parked ones when they are asked for.
    client.append_to_stream(stream, current_version=19, events=event(data=b"20"))
    again = collect(client, group, stream, 1, lambda s, e: s.ack(e))
    assert again == [(20, 0)], again
    client.replay_parked_events(group, stream)
    replayed = collect(client, group, stream, 2, lambda s, e: s.ack(e))
    assert sorted(replayed) == [(4, 0), (5, 0)], replayed
    until("none is parked", lambda: info().parked_message_count == 0)
    client.update_subscription_to_stream(group, stream, max_retry_count=7)
    assert info().max_retry_count == 7
    assert [i.group_name for i in client.list_subscriptions_to_stream(stream)] == [group]
    client.delete_subscription(group, stream)
    raises(exceptions.NotFoundError, info)
    assert client.list_subscriptions_to_stream(stream) == []


def until(what, so):
    deadline = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def a_group_shares_events_among_consumers(client):
    stream, group = name(), "workers"
    client.create_subscription_to_stream(group, stream, max_subscriber_count=2, message_timeout=NEVER)
    one, two = (client.read_subscription_to_stream(group, stream, event_buffer_size=5) for _ in range(2))
    raises(
        exceptions.MaximumSubscriptionsReachedError,
        lambda: client.read_subscription_to_stream(group, stream),
    )
    numbers = [event(data=str(n).encode()) for n in range(10)]
    client.append_to_stream(stream, current_version=StreamState.NO_STREAM, events=numbers)
    # The first one takes its share and goes without an answer: the second one gets all in the end.
    taken = next(iter(one))
    one.stop()
    found = []
    for e in two:
        found.append(int(e.data))
        two.ack(e)
        if len(found) == 10:
            break
    two.stop()
    assert sorted(found) == list(range(10)), found
    assert int(taken.data) in range(10)


def a_group_on_all_events_has_a_filter(client):
    mark, group = uuid.uuid4().hex, f"all-{uuid.uuid4().hex}"
    client.create_subscription_to_all(
        group, filter_include=[f"wanted{mark}"], from_end=False, message_timeout=NEVER
    )
    for n in range(3):
        client.append_to_stream(
            name(), current_version=StreamState.ANY, events=[event(data=b"9"), event(f"wanted{mark}", str(n).encode())]
        )
    found = collect(client, group, None, 3, lambda s, e: s.ack(e))
    assert [n for n, _ in found] == [0, 1, 2], found
    assert group in [i.group_name for i in client.list_subscriptions()]
    client.delete_subscription(group)


def a_group_delivers_what_links_lead_to(client):
    target, links = name(), name("links")
    client.append_to_stream(target, current_version=StreamState.NO_STREAM, events=[event(data=b"7")])
    link = lambda to: event(type="$>", data=to.encode(), content_type="application/octet-stream")
    client.append_to_stream(
        links, current_version=StreamState.NO_STREAM, events=[link(f"9@{target}"), link(f"0@{target}")]
    )
    client.create_subscription_to_stream("follow", links, resolve_links=True, message_timeout=NEVER)
    found = collect(client, "follow", links, 1, lambda s, e: s.ack(e))
    assert found == [(7, 0)], found


def virtual_streams_are_read_followed_and_shared(client):
    category, type = f"kind{uuid.uuid4().hex}", f"type{uuid.uuid4().hex}"
    streams = [name(category) for _ in range(3)]
    for n, stream in enumerate(streams):
        client.append_to_stream(stream, current_version=StreamState.NO_STREAM, events=event(type, str(n).encode()))
    for virtual in (f"$ce-{category}", f"$et-{type}"):
        links = read_virtual(client, virtual)
        assert [(e.type, e.stream_position, e.data.decode()) for e in links] == [
            ("$>", n, f"0@{stream}") for n, stream in enumerate(streams)
        ]
        resolved = read_virtual(client, virtual, resolve_links=True)
        assert [(e.stream_name, int(e.data), e.link.stream_position) for e in resolved] == [
            (stream, n, n) for n, stream in enumerate(streams)
        ]
    virtual = f"$ce-{category}"
    with client.subscribe_to_stream(virtual, stream_position=0, resolve_links=True) as subscription:
        client.append_to_stream(streams[0], current_version=0, events=event(type, b"3"))
        found = []
        for e in subscription:
            found.append(int(e.data))
            if len(found) == 3:
                break
    assert found == [1, 2, 3], found
    client.create_subscription_to_stream("share", virtual, resolve_links=True, message_timeout=NEVER)
    found = collect(client, "share", virtual, 4, lambda s, e: s.ack(e))
    assert sorted(n for n, _ in found) == [0, 1, 2, 3], found
    raises(
        exceptions.GrpcError,
        lambda: client.append_to_stream(virtual, current_version=StreamState.ANY, events=event()),
    )


def deadlines_are_kept(client):
    # The deadline may be over before the subscription is confirmed.
    raises(exceptions.GrpcDeadlineExceededError, lambda: list(client.subscribe_to_stream(name(), timeout=0.2)))


def a_client_discovers_the_server(client):
    with connect("kdb+discover", ADDRESS.split(",")[0]) as discovering:
        stream = name()
        discovering.append_to_stream(stream, current_version=StreamState.NO_STREAM, events=[event()])
        assert len(read(discovering, stream)) == 1


CHECKS = [
    expected_states,
    events_come_back_as_they_were,
    a_retry_is_stored_once,
    reads_have_directions_and_limits,
    all_events_are_read_with_filters,
    a_subscription_catches_up_and_stays_live,
    all_events_are_followed_with_checkpoints,
    metadata_truncate,
    deleted_streams_come_back_and_tombstones_do_not,
    a_deleted_stream_is_marked_in_its_metadata,
    what_is_too_large_is_told_as_that,
    the_projections_of_the_system_are_known,
    the_nodes_are_told_over_http_too,
    the_health_of_the_server_can_be_asked,
    a_filter_that_finds_nothing_for_ever_is_refused,
    a_reader_goes_on_where_it_was,
    a_writer_that_lost_tries_again,
    links_are_resolved,
    several_streams_are_written_at_once,
    records_are_written_with_checks,
    a_group_acknowledges_retries_and_parks,
    a_group_shares_events_among_consumers,
    a_group_on_all_events_has_a_filter,
    a_group_delivers_what_links_lead_to,
    a_group_is_joined_again_after_a_cut,
    virtual_streams_are_read_followed_and_shared,
    deadlines_are_kept,
    a_client_discovers_the_server,
]

if __name__ == "__main__":
    with connect() as client:
        for check in CHECKS:
            check(client)
            print(check.__name__)
