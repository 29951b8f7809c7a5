"""What a team does with the published Python client on a cluster, one node of which dies.

The arguments are the list of addresses and, over TLS, user and password as user:password and the file of the authority
that is trusted. The program says when it has written half of its events; whoever runs it kills the leader then. It goes
on by itself, and fails if an event is lost or doubled, or if the consumers of a group do not get all of them.
"""

import os
import sys
import threading
import time
import uuid

from kurrentdbclient import KurrentDBClient, NewEvent, StreamState
from kurrentdbclient import exceptions

ADDRESSES, LOGIN = sys.argv[1], sys.argv[2:]
WAY = f"{LOGIN[0]}@{ADDRESSES}?tlsCaFile={LOGIN[1]}" if LOGIN else f"{ADDRESSES}?Tls=false"
EVENTS = 200
PATIENCE = 120


def connect():
    return KurrentDBClient(uri=f"kdb://{WAY}&GossipTimeout=2&MaxDiscoverAttempts=50")


class Connection:
    """A client that is made anew when it fails, as the guide says."""

    def __init__(self):
        self.client = connect()

    def until_it_works(self, call):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return call(self.client)
            except exceptions.KurrentDBClientError as error:
                assert time.monotonic() < deadline, error
                time.sleep(0.05)
                self.again()

    def again(self):
        self.client.close()
        while True:
            try:
                self.client = connect()
                return
            except exceptions.DiscoveryFailedError:
                time.sleep(0.05)


def consume(group, stream, seen, over):
    """Acknowledges what comes until all is over."""
    connection = Connection()
    while not over.is_set():
        try:
            with connection.client.read_subscription_to_stream(group, stream) as subscription:
                for event in subscription:
                    seen.add(int(event.data))
                    subscription.ack(event)
                    if over.is_set():
                        return
        except exceptions.KurrentDBClientError:
            time.sleep(0.05)
            connection.again()


def main():
    stream, group = f"order-{uuid.uuid4().hex}", "workers"
    writer = Connection()
    writer.until_it_works(lambda client: client.create_subscription_to_stream(group, stream))
    seen, over = set(), threading.Event()
    consumers = [threading.Thread(target=consume, args=(group, stream, seen, over), daemon=True) for _ in range(2)]
    for consumer in consumers:
        consumer.start()
    for number in range(EVENTS):
        if number == EVENTS // 2:
            print("half", flush=True)
        event = NewEvent(type="placed", data=str(number).encode(), content_type="application/json")
        version = number - 1 if number > 0 else StreamState.NO_STREAM
        # The same event: if it is stored already, that is the answer.
        writer.until_it_works(
            lambda client: client.append_to_stream(stream, current_version=version, events=[event])
        )
    stored = writer.until_it_works(lambda client: [int(event.data) for event in client.get_stream(stream)])
    assert stored == list(range(EVENTS)), stored
    deadline = time.monotonic() + PATIENCE
    while len(seen) < EVENTS:
        assert time.monotonic() < deadline, set(stored) - seen
        time.sleep(0.05)
    over.set()
    print("done", flush=True)
    # Clients that are still at work when the interpreter ends may wait for each other for ever.
    os._exit(0)


main()
