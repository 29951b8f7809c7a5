"""Ten consumers of a group that do whatever comes to their mind, with the published Python client.

Arguments: the address, or those of all nodes, the number of events, a seed. The program says twice that a part is half finished; whoever runs it
kills the server then and starts it again. The program goes on by itself, and fails if an event is neither finished by a
consumer nor parked in the end. Its last line counts what was delivered, and what of it again.
"""

import random
import sys
import threading
import time

from kurrentdbclient import KurrentDBClient, NewEvent, StreamState
from kurrentdbclient import exceptions

ADDRESS, EVENTS, SEED = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
STREAM, GROUP = "orders", "billing"
CONSUMERS = 10
BATCH = 500
# Seconds in which something must go on.
PATIENCE = 120


class Seen:
    def __init__(self):
        self.lock = threading.Lock()
        self.finished = set()
        self.deliveries = self.redeliveries = 0
        self.over = False

    def delivered(self, event):
        with self.lock:
            self.deliveries += 1
            self.redeliveries += event.retry_count > 0

    def finish(self, event):
        with self.lock:
            self.finished.add(event.stream_position)


def connect():
    return KurrentDBClient(uri=f"kdb://{ADDRESS}?Tls=false&GossipTimeout=2&MaxDiscoverAttempts=5")


def until_it_works(call):
    """Calls with a new client until the server is there."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with connect() as client:
                return call(client)
        except exceptions.KurrentDBClientError as error:
            assert time.monotonic() < deadline, error
            time.sleep(0.05)


def consume(seen, rng):
    """Joins again and again."""
    while not seen.over:
        try:
            with connect() as client:
                size = rng.randrange(1, 50)
                work(client.read_subscription_to_stream(GROUP, STREAM, event_buffer_size=size), seen, rng)
        except exceptions.KurrentDBClientError:
            time.sleep(0.05)


def work(subscription, seen, rng):
    """Answers, or not, until it occurs to the consumer to vanish."""
    for event in subscription:
        seen.delivered(event)
        draw = rng.randrange(1_000)
        if draw < 5 or seen.over:
            return
        if draw < 15:
            continue  # Its time runs out.
        if draw < 60:
            subscription.nack(event, "retry")
        elif draw < 80:
            subscription.nack(event, "park")
        elif draw < 100:
            seen.finish(event)
            subscription.nack(event, "skip")
        else:
            seen.finish(event)
            subscription.ack(event)


def append(numbers):
    for first in range(numbers.start, numbers.stop, BATCH):
        batch = range(first, min(first + BATCH, numbers.stop))
        events = [NewEvent(type="placed", data=str(n).encode()) for n in batch]
        version = first - 1 if first > 0 else StreamState.NO_STREAM
        until_it_works(lambda client: client.append_to_stream(STREAM, current_version=version, events=events))


def until(what, so):
    deadline = time.monotonic() + PATIENCE + EVENTS / 200
    while not so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def main():
    settings = dict(message_timeout=0.5, max_retry_count=5, checkpoint_after=0.1, min_checkpoint_count=1)
    until_it_works(lambda client: client.create_subscription_to_stream(GROUP, STREAM, **settings))
    seen = Seen()
    for number in range(CONSUMERS):
        threading.Thread(target=consume, args=(seen, random.Random(SEED + number)), daemon=True).start()
    parts = [0, EVENTS // 3, EVENTS * 2 // 3, EVENTS]
    for first, end in zip(parts, parts[1:]):
        append(range(first, end))
        half = first + (end - first) // 2
        until("half of the part is finished", lambda: len(seen.finished) >= half * 9 // 10)
        if end < EVENTS:
            print("kill", flush=True)
    info = lambda: until_it_works(lambda client: client.get_subscription_info(GROUP, STREAM))
    until("all is settled", lambda: info().last_checkpointed_event_position == str(EVENTS - 1))
    seen.over = True
    parked = f"$persistentsubscription-{STREAM}::{GROUP}-parked"
    links = until_it_works(lambda client: [event.data.decode() for event in client.get_stream(parked)])
    settled = seen.finished | {int(link.partition("@")[0]) for link in links}
    lost = set(range(EVENTS)) - settled
    assert not lost, f"lost: {lost}"
    assert seen.redeliveries > 0
    print(f"{EVENTS} events, {seen.deliveries} deliveries, {seen.redeliveries} of them counted as redeliveries")


main()
