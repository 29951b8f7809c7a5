// Every call of the client against a running server.
//
// Usage: check.mjs URL [URL...]    who calls is in GESTA_USER and GESTA_PASSWORD, the authority in GESTA_CA_FILE

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import * as gesta from "gesta-client";
import { EventData } from "gesta-client";

const NAME = randomUUID();
const { GESTA_USER: user, GESTA_PASSWORD: password, GESTA_CA_FILE: caFile } = process.env;
const store = gesta.connect(process.argv.slice(2), { user, password, caFile });

const numbered = (count) =>
  Array.from({ length: count }, (_, number) => new EventData("numbered", { number }, { tags: [`tag-${NAME}`] }));

async function all(iterator) {
  const found = [];
  for await (const item of iterator) found.push(item);
  return found;
}

/** The first of these that is as wanted. */
async function first(iterator, isWanted) {
  for (;;) {
    const { value, done } = await iterator.next();
    assert(!done, "it ended");
    if (isWanted(value)) return value;
  }
}

/** What a call is refused with. */
async function refused(promise, error) {
  return promise.then(
    () => assert.fail(`it must be refused as ${error.name}`),
    (problem) => {
      assert(problem instanceof error, problem);
      return problem;
    },
  );
}

const checks = {
  async appending() {
    const stream = `cart-${NAME}/ü +%`;
    const opened = new EventData("opened", { by: "Zoë" }, { metadata: { trace: 1 }, tags: ["a", "b"] });
    const appended = await store.append(stream, [opened], { expected: "no_stream" });
    assert.equal(appended.firstRevision, 0);
    assert.deepEqual(await store.append(stream, [opened], { expected: "no_stream" }), appended, "it is a retry");
    const wrong = await refused(store.append(stream, numbered(1), { expected: 7 }), gesta.WrongExpectedRevision);
    assert.deepEqual([wrong.document.expected, wrong.document.actual, wrong.document.stream], [7, 0, stream]);
    assert.deepEqual([wrong.type, wrong.status], ["urn:gesta:problem:wrong_expected_revision", 409]);
    const raw = new EventData("raw", Uint8Array.of(0, 255), { metadata: Uint8Array.of(1), id: null });
    await store.append(stream, [raw], { expected: 0 });
    const lines = new TextEncoder().encode('{"two":\n"lines"}');
    const inLines = new EventData("lines", lines, { contentType: "application/json" });
    await store.append(stream, [inLines], { expected: "stream_exists" });

    const events = await all(store.readStream(stream));
    assert.deepEqual(events.map(({ data }) => data), [{ by: "Zoë" }, Uint8Array.of(0, 255), { two: "lines" }]);
    assert.deepEqual([events[0].id, events[0].metadata, events[0].tags], [opened.id, { trace: 1 }, ["a", "b"]]);
    assert.deepEqual(events[1].metadata, Uint8Array.of(1));
    const followed = store.followStream(stream);
    for (const event of events) {
      assert.deepEqual((await followed.next()).value.event, event, "lines show the same events");
    }
    await followed.return();
    assert.deepEqual(await store.readEvent(stream, 1), events[1]);
  },

  async appendingToStreams() {
    const [order, stock] = [`order-{${NAME}}`, `stock-{${NAME}}`];
    const parts = [
      { stream: order, events: numbered(1), expected: "no_stream" },
      { stream: stock, events: numbered(2) },
    ];
    const appended = await store.appendToStreams(parts);
    assert.deepEqual(appended.streams.map(({ lastRevision }) => lastRevision), [0, 1]);
    const reserve = [{ stream: stock, events: numbered(1) }];
    const unmet = store.appendToStreams(reserve, { conditions: [{ stream: order, expected: 1 }] });
    assert.equal((await refused(unmet, gesta.WrongExpectedRevision)).document.stream, order);
    const met = await store.appendToStreams(reserve, { conditions: [{ stream: order, expected: 0 }] });
    assert.equal(met.streams[0].lastRevision, 2);
  },

  async reading() {
    const stream = `many-${NAME}`;
    await store.append(stream, numbered(2500));
    const numbers = (await all(store.readStream(stream))).map(({ data }) => data.number);
    assert.deepEqual(numbers, Array.from({ length: 2500 }, (_, number) => number), "pages follow each other");
    const backwards = await all(store.readStream(stream, { direction: "backwards", limit: 1200 }));
    assert.deepEqual([backwards.length, backwards[0].revision, backwards.at(-1).revision], [1200, 2499, 1300]);
    const page = await store.readStreamPage(stream, { from: 2498, limit: 1 });
    assert.deepEqual([page.end, page.next, page.lastRevision, page.items.length], [false, 2499, 2499, 1]);
    const mine = { categories: ["many"], tags: [`tag-${NAME}`] };
    assert.equal((await all(store.readAll({ filter: mine }))).length, 2500);
    assert.equal((await all(store.readAll({ filter: [mine, { types: ["nothing"] }], limit: 3 }))).length, 3);
    assert.deepEqual(await all(store.listStreams(stream)), [{ stream, lastRevision: 2499 }]);
    const problem = await refused(store.readStreamPage(stream, { limit: 0 }), gesta.InvalidArgument);
    assert.equal(problem.document.field, "limit");
  },

  async following() {
    const filter = { categories: ["live"], tags: [`tag-${NAME}`] };
    await store.append("live-1", numbered(2));
    const messages = store.followAll({ filter });
    const stored = [];
    await first(messages, (message) => {
      if (message.kind === "event") stored.push(message);
      return message.kind === "caught_up";
    });
    assert.equal(stored.length, 2);
    await store.append("live-1", numbered(1));
    const live = await first(messages, ({ kind }) => kind === "event");
    await messages.return();
    const end = new AbortController();
    const again = store.followAll({ filter, after: stored[0].checkpoint, signal: end.signal });
    const seen = [];
    for await (const message of again) {
      if (message.kind !== "event") continue;
      seen.push(message.event);
      if (seen.length === 2) end.abort();
    }
    assert.deepEqual(seen, [stored[1].event, live.event], "it goes on");
    const other = store.followAll({ after: "AQACXB0eRPdBXoAi_Txe3PcaBgd3" });
    const problem = await refused(other.next(), gesta.HistoryChanged);
    assert(problem.kind === "invalid_checkpoint" && problem.title && problem.detail);
  },

  async consuming() {
    const stream = `jobs-${NAME}`;
    const group = store.group(stream, "workers/ü");
    await refused(group.join(), gesta.GroupNotFound);
    await group.create({ max_retry_count: 3, min_checkpoint_count: 1 });
    await refused(group.create(), gesta.GroupExists);
    assert.deepEqual(await all(store.listGroups(stream)), [{ stream, group: "workers/ü" }]);
    await store.append(stream, numbered(4));
    const consumer = await group.join({ buffer: 2, name: "check" });
    const next = async () => (await consumer.next()).value;
    const [one, two] = [await next(), await next()];
    assert.deepEqual([one.event.revision, two.event.revision], [0, 1]);
    const done = { answered: 1, unknown: 0 };
    assert.deepEqual(await consumer.ack(one), done);
    assert.deepEqual(await consumer.ack(one), { answered: 0, unknown: 1 }, "it is held no more");
    assert.deepEqual(await consumer.nack(two, { action: "park", reason: "no such job" }), done);
    assert.deepEqual(await consumer.nack(await next(), { reason: "later" }), done);
    const held = [await next(), await next()];
    const retried = held.find(({ event }) => event.revision === 2);
    assert.equal(retried.retries, 1);
    // A consumer whose group is changed joins again, and what it held comes again.
    await group.update({ max_retry_count: 5, min_checkpoint_count: 1 });
    for (const revision of [2, 3]) {
      const delivery = await next();
      assert.equal(delivery.event.revision, revision);
      assert.deepEqual(await consumer.ack(delivery), done);
    }
    assert.deepEqual(await consumer.ack(retried), { answered: 0, unknown: 1 }, "it is of the connection before");
    await group.replayParked();
    const parked = await next();
    assert.deepEqual(parked.event, two.event);
    await consumer.ack(parked);
    consumer.leave();
    assert.deepEqual(await all(consumer), [], "it has left");
    assert.equal((await group.info()).settings.max_retry_count, 5);
    assert((await group.reset("start")).status);
    await group.delete();
  },

  async deleting() {
    const [stream, events] = [`old-${NAME}`, numbered(1)];
    await store.append(stream, events);
    assert.deepEqual(await store.streamMetadata(stream), { document: {}, revision: null });
    const document = { $maxCount: 10, owner: "web" };
    await store.setStreamMetadata(stream, document, { expected: "no_stream" });
    assert.deepEqual(await store.streamMetadata(stream), { document, revision: 0 });
    await store.deleteStream(stream, { expected: 0 });
    await refused(store.readStream(stream).next(), gesta.StreamNotFound);
    const deleted = await refused(store.append(stream, events), gesta.StoredAndDeleted);
    assert.equal(typeof deleted.document.position, "number");
    assert.equal((await store.append(stream, numbered(1))).firstRevision, 1);
    await store.tombstoneStream(stream);
    await refused(store.followStream(stream).next(), gesta.StreamTombstoned);
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(name);
}
assert.equal((await store.info()).name, "gesta");
