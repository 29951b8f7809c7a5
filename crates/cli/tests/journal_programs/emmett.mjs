// Fills a journal with Emmett's own event store for PostgreSQL, whose URL is the first argument, and prints what Emmett
// reads back: a line of JSON for each event, stream by stream.
//
// Twelve writers append to streams that they share, one event or some, with claims that are refused if another one was
// there first, and one that is refused for sure. In the end some transactions get their ids first and append last, so
// that their events stand before earlier ones of their streams.

import assert from "node:assert/strict";
import { getPostgreSQLEventStore } from "@event-driven-io/emmett-postgresql";
import pg from "pg";

const url = process.argv[2];
const writers = 12;
const rounds = 25;
const streams = ["cart-1", "cart-2", "cart:with|odd+name-3", "order-ä"];

const pool = new pg.Pool({ connectionString: url, max: writers });
const store = getPostgreSQLEventStore(url, { connectionOptions: { pool } });
await store.schema.migrate();

const event = (writer, round, n) => ({
  type: ["item-added", "item.removed", "Ünusual Type"][(writer + n) % 3],
  data: { writer, round, n, text: "ä \" \\ \u2028", deep: { list: [1, null, "x"], big: 9007199254740991 } },
  ...(n % 2 === 0 ? { metadata: { by: `user-${writer}`, correlation: { id: round } } } : {}),
});

/** Appends at the end that it sees, until nobody else was there first. */
async function append(stream, events) {
  for (;;) {
    const { currentStreamVersion, streamExists } = await store.readStream(stream);
    const expectedStreamVersion = streamExists ? currentStreamVersion : "STREAM_DOES_NOT_EXIST";
    try {
      return await store.appendToStream(stream, events, { expectedStreamVersion });
    } catch (error) {
      if (error.errorCode !== 412) throw error;
    }
  }
}

async function write(writer) {
  for (let round = 0; round < rounds; round += 1) {
    const stream = streams[(writer + round) % streams.length];
    await append(
      stream,
      Array.from({ length: 1 + (round % 4) }, (_, n) => event(writer, round, n)),
    );
  }
}

/** A transaction gets its id first, others append, and then it appends to a stream of theirs. */
async function late(stream) {
  const client = await pool.connect();
  try {
    await client.query("BEGIN");
    await client.query("SELECT pg_current_xact_id()");
    await append(stream, [event(90, 0, 0)]);
    const connectionOptions = { client, pooled: false };
    const inside = getPostgreSQLEventStore(url, { connectionOptions, schema: { autoMigration: "None" } });
    // It commits, too.
    await inside.appendToStream(stream, [event(91, 0, 1)]);
  } finally {
    client.release();
  }
}

await Promise.all(Array.from({ length: writers }, (_, writer) => write(writer)));
for (const stream of streams.slice(0, 2)) await late(stream);
const claim = { expectedStreamVersion: "STREAM_DOES_NOT_EXIST" };
await assert.rejects(store.appendToStream(streams[0], [event(92, 0, 0)], claim), { errorCode: 412 });

for (const stream of streams) {
  const { events } = await store.readStream(stream);
  const rows = await pool.query(
    `SELECT stream_position AS at, to_char(created AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS time
     FROM emt_messages WHERE stream_id = $1`,
    [stream],
  );
  const times = new Map(rows.rows.map(({ at, time }) => [BigInt(at), time]));
  for (const { type, data, metadata } of events) {
    const { messageId, streamName, streamPosition, globalPosition, ...own } = metadata;
    assert.equal(streamName, stream);
    const time = times.get(BigInt(streamPosition));
    const line = { key: stream, sequence: Number(streamPosition), type, data, metadata: own, id: messageId, time };
    console.log(JSON.stringify(line, (_, value) => (typeof value === "bigint" ? Number(value) : value)));
  }
}
await store.close();
await pool.end();
