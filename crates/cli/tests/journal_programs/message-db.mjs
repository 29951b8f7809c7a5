// Fills Message DB by its own functions, as the role that it makes, and prints what they read back: a line of JSON for
// each message, stream by stream. The arguments are the URL of the database, in which Message DB is installed, for this
// role, and for the owner of its tables.
//
// Ten writers write to streams of four categories, one message or some in a transaction, with versions that they expect.
// They are refused if another one was there first, and one is for sure; and some transactions are rolled back, so that
// numbers are drawn for messages that never are. One stream loses its beginning.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import pg from "pg";

const writers = 10;
const rounds = 30;
const streams = ["account-1", "account-2", "account:command-1+2", "order-x|7", "ordérs-ä b", "lone-"];

// As its documentation says.
const options = "-c search_path=message_store,public";
const pool = new pg.Pool({ connectionString: process.argv[2], max: writers, options });
const call = (client, text, values) => client.query(text, values).then(({ rows }) => rows);

const write = async (client, stream, type, data, metadata, expected) => {
  const values = [randomUUID(), stream, type, data, metadata, expected];
  const [row] = await call(client, "SELECT write_message($1, $2, $3, $4, $5, $6)", values);
  return row.write_message;
};

async function work(writer) {
  for (let round = 0; round < rounds; round += 1) {
    const stream = streams[(writer * 7 + round) % streams.length];
    const client = await pool.connect();
    try {
      await client.query("BEGIN");
      const [{ stream_version }] = await call(client, "SELECT stream_version($1)", [stream]);
      let expected = stream_version === null ? -1 : Number(stream_version);
      for (let n = 0; n <= round % 3; n += 1) {
        const data = { writer, round, n, text: "ä \" \\ \u2028", amount: 10.5, none: null };
        const metadata = n === 0 ? { correlationStreamName: `signup-${writer}`, traceId: "t" } : null;
        await write(client, stream, n === 1 ? "Deposited" : "Account.Opened", data, metadata, n < 2 ? expected : null);
        expected += 1;
      }
      // A message that is numbered and never comes, before others that do.
      await client.query(round % 10 === 9 ? "ROLLBACK" : "COMMIT");
    } catch (error) {
      assert.match(error.message, /Wrong expected version/);
      await client.query("ROLLBACK");
    } finally {
      client.release();
    }
  }
}

await Promise.all(Array.from({ length: writers }, (_, writer) => work(writer)));
await assert.rejects(write(pool, streams[0], "Empty", "{}", "{}", -1), /Wrong expected version/);
await write(pool, "lone-", "Empty", "{}", "{}", null);
const owner = new pg.Client({ connectionString: process.argv[3], options });
await owner.connect();
const { rowCount } = await owner.query("DELETE FROM messages WHERE stream_name = 'account-2' AND position < 3");
assert.equal(rowCount, 3);
await owner.end();

for (const stream of streams) {
  const rows = await call(
    pool,
    `SELECT *, to_char(time, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS stored FROM get_stream_messages($1, 0, -1)`,
    [stream],
  );
  for (const { id, type, position, data, metadata, stored } of rows) {
    const told = { key: stream, stream, sequence: Number(position), type, id, time: stored };
    console.log(JSON.stringify({ ...told, data: JSON.parse(data), metadata: JSON.parse(metadata) ?? {} }));
  }
}
await pool.end();
