// What a team does with the published Node client on a cluster, one node of which dies.
//
// The argument is the list of addresses. The program says when it has written half of its events; whoever runs it kills the
// leader then. It goes on by itself, and fails if an event is lost or doubled, or if the consumers of a group do not get
// all of them.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import {
  KurrentDBClient,
  NO_STREAM,
  START,
  jsonEvent,
  persistentSubscriptionToStreamSettingsFromDefaults,
} from "@kurrent/kurrentdb-client";

const addresses = process.argv[2];
const EVENTS = 200;
const PATIENCE_MS = 120_000;
const connect = () => KurrentDBClient.connectionString(`kurrentdb://${addresses}?tls=false&maxDiscoverAttempts=50`);
const pause = () => new Promise((resolve) => setTimeout(resolve, 50));

/** Calls until it works: the client itself looks for another node, or goes to the one that it is sent to. */
async function untilItWorks(call) {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    try {
      return await call();
    } catch (error) {
      if (Date.now() > deadline) throw error;
      await pause();
    }
  }
}

const stream = `order-${randomUUID()}`;
const group = "workers";
const seen = new Set();
let isOver = false;

/** Acknowledges what comes until all is over. */
async function consume() {
  const client = connect();
  while (!isOver) {
    try {
      const subscription = client.subscribeToPersistentSubscriptionToStream(stream, group);
      for await (const resolved of subscription) {
        seen.add(resolved.event.data.n);
        await subscription.ack(resolved);
      }
    } catch {
      // It ended with an error or without one: the node is gone, or it sends us to another.
    }
    await pause();
  }
}

const writer = connect();
const settings = persistentSubscriptionToStreamSettingsFromDefaults({ startFrom: START });
await untilItWorks(() => writer.createPersistentSubscriptionToStream(stream, group, settings));
for (let n = 0; n < 2; n++) consume();
for (let n = 0; n < EVENTS; n++) {
  if (n === EVENTS / 2) console.log("half");
  const event = jsonEvent({ id: randomUUID(), type: "placed", data: { n } });
  const streamState = n > 0 ? BigInt(n - 1) : NO_STREAM;
  // The same event: if it is stored already, that is the answer.
  await untilItWorks(() => writer.appendToStream(stream, event, { streamState }));
}
const stored = await untilItWorks(async () => {
  const found = [];
  for await (const { event } of writer.readStream(stream)) found.push(event.data.n);
  return found;
});
assert.deepEqual(stored, [...Array(EVENTS).keys()]);
const deadline = Date.now() + PATIENCE_MS;
while (seen.size < EVENTS) {
  assert.ok(Date.now() < deadline, `${stored.filter((n) => !seen.has(n))}`);
  await pause();
}
isOver = true;
console.log("done");
process.exit(0);
