// Fills a server with the published client of KurrentDB, or reads one: `kurrentdb.mjs fill|read ADDRESS`.
//
// `fill` appends to streams of several categories from many callers, JSON and bytes, with metadata and ids of their own,
// hides events by metadata, deletes a stream, writes to it again, and closes one for ever. It prints what the client
// reads of all events then, but those of the system: a line of JSON for each. `read` prints what the client reads of each
// stream that `fill` has made, and the streams' metadata.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { ANY, KurrentDBClient, NO_STREAM, binaryEvent, excludeSystemEvents, jsonEvent } from "@kurrent/kurrentdb-client";

const [what, address] = process.argv.slice(2);
const options = "tls=false&defaultDeadline=60000&keepAliveTimeout=60000";
const client = KurrentDBClient.connectionString(`kurrentdb://${address}?${options}`);
const streams = ["cart-1", "cart-2", "größe-3", "no_category", "capped-4", "cut-5", "deleted-6", "again-7", "closed-8"];

const event = (type, n) =>
  n % 5 === 4
    ? binaryEvent({ id: randomUUID(), type, data: Uint8Array.from({ length: 64 }, (_, byte) => (byte * 7 + n) % 256), metadata: { n } })
    : jsonEvent({ id: randomUUID(), type, data: { n, text: "ä \" \\ \u2028", list: [1.5, null] }, metadata: { $correlationId: `c${n}`, by: "x" } });

async function fill() {
  await Promise.all(
    streams.map(async (stream, number) => {
      await client.appendToStream(stream, event("Opened", number), { streamState: NO_STREAM });
      for (let round = 0; round < 20; round += 1) {
        const events = Array.from({ length: 1 + (round % 5) }, (_, n) => event(`kind-${n}`, round + n));
        await client.appendToStream(stream, events, { streamState: ANY });
      }
    }),
  );
  await client.setStreamMetadata("cart-1", { owner: "x", acl: { readRoles: ["$all"] } });
  await client.setStreamMetadata("capped-4", { maxCount: 5 });
  await client.setStreamMetadata("cut-5", { truncateBefore: 11 });
  await client.deleteStream("deleted-6");
  await client.deleteStream("again-7");
  await client.appendToStream("again-7", [event("Opened", 1), event("Added", 2)], { streamState: ANY });
  await client.tombstoneStream("closed-8");
  await client.appendToStream("cart-2", event("Last", 1));
}

const told = ({ streamId, revision, type, id, isJson, data, metadata, created }) => ({
  key: streamId,
  stream: streamId,
  sequence: Number(revision),
  type,
  id,
  data: isJson ? data : { base64: Buffer.from(data).toString("base64") },
  metadata: metadata ?? {},
  // The client tells seconds.
  time: created.toISOString().slice(0, 19),
});

if (what === "fill") {
  await fill();
  for await (const { event } of client.readAll({ filter: excludeSystemEvents() })) {
    if (!event.streamId.startsWith("$") && event.type !== "$streamDeleted") console.log(JSON.stringify(told(event)));
  }
} else {
  assert.equal(what, "read");
  for (const stream of streams) {
    const { metadata } = await client.getStreamMetadata(stream).catch((error) => ({ metadata: error.type }));
    console.log(stream, JSON.stringify(metadata));
    try {
      for await (const { event } of client.readStream(stream)) {
        const { time, sequence, metadata: { $source, ...own }, ...same } = told(event);
        console.log(JSON.stringify({ ...same, sequence, metadata: own }));
      }
    } catch (error) {
      console.log(stream, error.type);
    }
  }
}
await client.dispose();
