"""The Python client over TLS as a user: secure.py ADDRESS CA_FILE USER PASSWORD."""

import sys
import time

from kurrentdbclient import KurrentDBClient, NewEvent, StreamState, exceptions

address, ca_file, user, password = sys.argv[1:]


def connect(password):
    return KurrentDBClient(uri=f"kdb://{user}:{password}@{address}?tlsCaFile={ca_file}")


def served(call):
    """Calls again while the server has no news of the accounts, as after the machine has stood still."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return call()
        except exceptions.ServiceUnavailableError as error:
            print(f"called again: {error}", file=sys.stderr, flush=True)
            assert time.monotonic() < deadline, f"never served: {error}"
            time.sleep(0.1)


with connect(password) as client:
    event = NewEvent(type="item-added", data=b"{}")
    served(lambda: client.append_to_stream("cart-1", current_version=StreamState.NO_STREAM, events=event))
    print([e.type for e in served(lambda: client.get_stream("cart-1"))])
    try:
        served(lambda: client.get_stream("$settings"))
    except exceptions.AccessDeniedError:
        print("denied")
with connect("wrong") as client:
    try:
        served(lambda: client.get_stream("cart-1"))
    except exceptions.UnauthenticatedError:
        print("unauthenticated")
