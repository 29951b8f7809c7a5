"""A writer, a follower and the consumers of a group on a cluster, one node of which dies.

Usage: cluster.py URL...

It says "half" when half is written; whoever runs it kills a node then. It goes on by itself, and fails if an event is
lost, or is stored or followed twice, or if the consumers do not get all.
"""

import sys
import threading
import uuid
from typing import List, Set

import gesta

EVENTS = 200
PATIENCE = 120


def consume(consumer: gesta.Consumer, seen: Set[int], has_all: threading.Event) -> None:
    for delivery in consumer:
        seen.add(delivery.event.data)
        consumer.ack(delivery)
        if len(seen) == EVENTS:
            has_all.set()


def follow(store: gesta.Store, stream: str, followed: List[int], has_all: threading.Event) -> None:
    for message in store.follow_stream(stream):
        if message.event:
            followed.append(message.event.data)
        if len(followed) == EVENTS:
            has_all.set()


def main(*servers: str) -> None:
    stream, store = f"order-{uuid.uuid4().hex}", gesta.connect(*servers)
    group = store.group(stream, "workers")
    group.create()
    seen: Set[int] = set()
    followed: List[int] = []
    consumed_all, followed_all = threading.Event(), threading.Event()
    consumers = [group.join() for _ in range(2)]
    threads = [threading.Thread(target=consume, args=(consumer, seen, consumed_all)) for consumer in consumers]
    threads.append(threading.Thread(target=follow, args=(store, stream, followed, followed_all), daemon=True))
    for thread in threads:
        thread.start()
    for number in range(EVENTS):
        if number == EVENTS // 2:
            print("half", flush=True)
        store.append(stream, [gesta.EventData("placed", number)], expected=number - 1 if number else gesta.NO_STREAM)
    assert [event.data for event in store.read_stream(stream)] == list(range(EVENTS))
    assert consumed_all.wait(PATIENCE), sorted(set(range(EVENTS)) - seen)
    assert followed_all.wait(PATIENCE), followed
    assert followed == list(range(EVENTS)), followed
    for consumer in consumers:
        consumer.leave()
    for thread in threads[:2]:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    print("done", flush=True)


main(*sys.argv[1:])
