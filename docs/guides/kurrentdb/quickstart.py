"""An order, written, read and followed with the Python client: python quickstart.py 127.0.0.1:2113"""

import sys
import uuid

from kurrentdbclient import KurrentDBClient, NewEvent, StreamState

client = KurrentDBClient(uri=f"kdb://{sys.argv[1]}?Tls=false")

stream = f"order-{uuid.uuid4()}"
created = NewEvent(type="OrderCreated", data=b'{"order": 1}')
shipped = NewEvent(type="OrderShipped", data=b'{"order": 1}')
client.append_to_stream(stream, current_version=StreamState.NO_STREAM, events=[created])
client.append_to_stream(stream, current_version=0, events=[shipped])

for event in client.get_stream(stream):
    print(event.stream_position, event.type)

with client.subscribe_to_all(filter_include=["Order.*"]) as subscription:
    for event in subscription:
        if event.id == shipped.id:
            print("followed", event.type)
            break
client.close()
