// A writer, a follower and the consumers of a group on a cluster, one node of which dies.
//
// Usage: cluster.mjs URL...
//
// It says "half" when half is written; whoever runs it kills a node then. It goes on by itself, and fails if an event
// is lost, or is stored or followed twice, or if the consumers do not get all.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { EventData, connect } from "gesta-client";

const EVENTS = 200;
const numbers = Array.from({ length: EVENTS }, (_, number) => number);

const store = connect(process.argv.slice(2));
const stream = `order-${randomUUID()}`;
const group = store.group(stream, "workers");
await group.create();

const seen = new Set();
const consumers = [await group.join(), await group.join()];
const consuming = consumers.map(async (consumer) => {
  for await (const delivery of consumer) {
    seen.add(delivery.event.data);
    await consumer.ack(delivery);
    if (seen.size === EVENTS) consumers.forEach((each) => each.leave());
  }
});
const followed = [];
async function follow() {
  for await (const message of store.followStream(stream)) {
    if (message.kind === "event") followed.push(message.event.data);
    if (followed.length === EVENTS) return;
  }
}
const following = follow();

for (const number of numbers) {
  if (number === EVENTS / 2) console.log("half");
  const expected = number === 0 ? "no_stream" : number - 1;
  await store.append(stream, [new EventData("placed", number)], { expected });
}
const stored = [];
for await (const event of store.readStream(stream)) stored.push(event.data);
assert.deepEqual(stored, numbers);
await Promise.all([...consuming, following]);
assert.deepEqual(followed, numbers);
console.log("done");
