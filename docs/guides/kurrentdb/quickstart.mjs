// An order, written, read and followed with the Node client: node quickstart.mjs 127.0.0.1:2113

import { randomUUID } from "node:crypto";
import { KurrentDBClient, NO_STREAM, START, eventTypeFilter, jsonEvent } from "@kurrent/kurrentdb-client";

const client = KurrentDBClient.connectionString(`kurrentdb://${process.argv[2]}?tls=false`);

const stream = `order-${randomUUID()}`;
const created = jsonEvent({ type: "OrderCreated", data: { order: 1 } });
const shipped = jsonEvent({ type: "OrderShipped", data: { order: 1 } });
await client.appendToStream(stream, created, { streamState: NO_STREAM });
await client.appendToStream(stream, shipped, { streamState: 0n });

for await (const { event } of client.readStream(stream)) {
  console.log(Number(event.revision), event.type);
}

const filter = eventTypeFilter({ prefixes: ["Order"] });
const subscription = client.subscribeToAll({ fromPosition: START, filter });
for await (const { event } of subscription) {
  if (event.id === shipped.id) {
    console.log("followed", event.type);
    break;
  }
}
await subscription.unsubscribe();
await client.dispose();
