"""The Python client over TLS as a user: secure.py ADDRESS CA_FILE USER PASSWORD."""

import sys

from kurrentdbclient import KurrentDBClient, NewEvent, StreamState, exceptions

address, ca_file, user, password = sys.argv[1:]


def connect(password):
    return KurrentDBClient(uri=f"kdb://{user}:{password}@{address}?tlsCaFile={ca_file}")


with connect(password) as client:
    event = NewEvent(type="item-added", data=b"{}")
    client.append_to_stream("cart-1", current_version=StreamState.NO_STREAM, events=event)
    print([e.type for e in client.get_stream("cart-1")])
    try:
        client.get_stream("$settings")
    except exceptions.AccessDeniedError:
        print("denied")
with connect("wrong") as client:
    try:
        client.get_stream("cart-1")
    except exceptions.UnauthenticatedError:
        print("unauthenticated")
