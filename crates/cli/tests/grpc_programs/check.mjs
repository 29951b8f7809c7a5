// What a team does with the published Node client, against servers whose addresses are the first argument. The second
// argument is a way to one of them that is cut whenever somebody connects to the address that is the third.
// Each check stands alone, on streams of its own. The program prints a line for each and fails with the first that is
// wrong.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { connect } from "node:net";
import {
  ANY,
  AppendConsistencyViolationError,
  BACKWARDS,
  END,
  FORWARDS,
  KurrentDBClient,
  MaxAppendSizeExceededError,
  NO_STREAM,
  NotFoundError,
  PersistentSubscriptionDoesNotExistError,
  PersistentSubscriptionExistsError,
  START,
  STREAM_EXISTS,
  STREAM_STATE,
  StreamDeletedError,
  StreamNotFoundError,
  WrongExpectedVersionError,
  binaryEvent,
  eventTypeFilter,
  excludeSystemEvents,
  jsonEvent,
  persistentSubscriptionToAllSettingsFromDefaults,
  persistentSubscriptionToStreamSettingsFromDefaults,
  streamNameFilter,
} from "@kurrent/kurrentdb-client";

const [address, through, cutter] = process.argv.slice(2);
// By default the client gives up after ten seconds, for which a machine may stand still.
const options = "tls=false&defaultDeadline=60000&keepAliveTimeout=60000";
// Milliseconds: however long a check takes, no event of a group comes again because of that.
const messageTimeout = 3_600_000;
const client = KurrentDBClient.connectionString(`kurrentdb://${address}?${options}`);

const name = (category = "cart") => `${category}-${randomUUID()}`;
const event = (type = "item-added", data = { item: "book" }, more = {}) => jsonEvent({ type, data, ...more });
const events = (count) => Array.from({ length: count }, (_, n) => event("item-added", { n }));

async function collect(stream) {
  const found = [];
  for await (const each of stream) found.push(each);
  return found;
}

/** Takes from a subscription until `enough` says so, and ends it. */
async function take(subscription, enough) {
  const found = [];
  for await (const each of subscription) {
    found.push(each);
    if (enough(found)) break;
  }
  await subscription.unsubscribe();
  return found;
}

/** Waits until something is so, but not for ever. */
async function until(what, isSo) {
  const deadline = Date.now() + 60_000;
  while (!(await isSo())) {
    assert.ok(Date.now() < deadline, what);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Cuts what goes through the way that is cut, and waits until that is done. */
async function cut() {
  const [host, port] = cutter.split(":");
  const knock = connect(Number(port), host);
  knock.resume();
  await once(knock, "close");
}

const read = (stream, options) => collect(client.readStream(stream, options));
const revisions = async (stream, options) => (await read(stream, options)).map(({ event }) => Number(event.revision));

const checks = {
  async expectedStates() {
    for (const streamState of [ANY, NO_STREAM]) {
      const { success, nextExpectedRevision } = await client.appendToStream(name(), event(), { streamState });
      assert.deepEqual([success, nextExpectedRevision], [true, 0n]);
    }
    const stream = name();
    const wrong = (streamState) =>
      assert.rejects(client.appendToStream(stream, event(), { streamState }), WrongExpectedVersionError);
    await wrong(STREAM_EXISTS);
    await wrong(0n);
    await client.appendToStream(stream, event(), { streamState: NO_STREAM });
    await wrong(NO_STREAM);
    await wrong(5n);
    await client.appendToStream(stream, events(2), { streamState: 0n });
    await client.appendToStream(stream, event(), { streamState: STREAM_EXISTS });
    assert.deepEqual(await revisions(stream), [0, 1, 2, 3]);
    const lenient = KurrentDBClient.connectionString(`kurrentdb://${address}?${options}&throwOnAppendFailure=false`);
    const told = await lenient.appendToStream(stream, event(), { streamState: 1n });
    assert.equal(told.success, false);
    await lenient.dispose();
  },

  async eventsComeBackAsTheyWere() {
    const [stream, id] = [name("größe"), randomUUID()];
    const data = Uint8Array.from({ length: 256 }, (_, n) => n);
    const { position } = await client.appendToStream(stream, [
      binaryEvent({ id, type: "picture-taken", data, metadata: { by: "alice" } }),
      event("item-added", { n: 1 }),
    ]);
    const [first, second] = (await read(stream)).map(({ event }) => event);
    assert.deepEqual([first.id, first.type, first.isJson, first.streamId], [id, "picture-taken", false, stream]);
    assert.deepEqual(Buffer.from(first.data), Buffer.from(data));
    assert.deepEqual(first.metadata, { by: "alice" });
    assert.deepEqual([second.isJson, second.data], [true, { n: 1 }]);
    assert.ok(Math.abs(Date.now() - first.created.getTime()) < 600_000, first.created);
    assert.equal(second.position.commit, position.commit);
  },

  async aRetryIsStoredOnce() {
    const [stream, batch] = [name(), events(3)];
    const first = await client.appendToStream(stream, batch, { streamState: NO_STREAM });
    await client.appendToStream(stream, event(), { streamState: 2n });
    for (const streamState of [NO_STREAM, ANY]) {
      const again = await client.appendToStream(stream, batch, { streamState });
      assert.deepEqual(again.position, first.position);
      assert.equal(again.nextExpectedRevision, 2n);
    }
    assert.equal((await read(stream)).length, 4);
  },

  async manyBatchesAtOnce() {
    const streams = Array.from({ length: 200 }, () => name());
    await Promise.all(streams.map((stream) => client.appendToStream(stream, events(10))));
    for (const stream of streams.slice(0, 5)) assert.equal((await read(stream)).length, 10);
  },

  async readsHaveDirectionsAndLimits() {
    const stream = name();
    await client.appendToStream(stream, events(1_500));
    assert.equal((await read(stream)).length, 1_500);
    assert.deepEqual(await revisions(stream, { fromRevision: 1_498n }), [1_498, 1_499]);
    assert.deepEqual(await revisions(stream, { direction: BACKWARDS, fromRevision: END, maxCount: 2 }), [1_499, 1_498]);
    assert.deepEqual(await revisions(stream, { direction: FORWARDS, fromRevision: START, maxCount: 2 }), [0, 1]);
    assert.deepEqual(await revisions(stream, { direction: BACKWARDS, fromRevision: 1n }), [1, 0]);
    await assert.rejects(read(name()), StreamNotFoundError);
  },

  async allEventsAreReadWithFilters() {
    const mark = randomUUID().replaceAll("-", "");
    const [one, two] = [name(`one${mark}`), name(`two${mark}`)];
    await client.appendToStream(one, [event(), event("item-removed")]);
    await client.appendToStream(two, event());
    await client.setStreamMetadata(one, { maxCount: 10 });
    const names = async (options) => (await collect(client.readAll(options))).map(({ event }) => [event.streamId, event.type]);
    const [metadata, last] = await names({ direction: BACKWARDS, fromPosition: END, maxCount: 2 });
    assert.deepEqual([metadata, last], [[`$$${one}`, "$metadata"], [two, "item-added"]]);
    const filtered = (filter) => names({ filter });
    assert.deepEqual(await filtered(streamNameFilter({ prefixes: [`one${mark}`] })), [
      [one, "item-added"],
      [one, "item-removed"],
    ]);
    assert.deepEqual((await filtered(eventTypeFilter({ regex: "^item-rem" }))).at(-1), [one, "item-removed"]);
    assert.ok((await filtered(excludeSystemEvents())).every(([, type]) => !type.startsWith("$")));
    const ahead = await filtered(eventTypeFilter({ regex: "^(?!\\$|item-rem)" }));
    assert.deepEqual(ahead.slice(-2), [[one, "item-added"], [two, "item-added"]]);
    await client.tombstoneStream(two);
    const closed = [two, "$streamDeleted"];
    assert.deepEqual(await filtered(streamNameFilter({ prefixes: [`two${mark}`] })), [[two, "item-added"], closed]);
    assert.deepEqual((await filtered(eventTypeFilter({ prefixes: ["$streamDeleted"] }))).at(-1), closed);
  },

  async aSubscriptionCatchesUpAndStaysLive() {
    const stream = name();
    await client.appendToStream(stream, events(100));
    const writing = (async () => {
      for (let n = 100; n < 300; n++) {
        await client.appendToStream(stream, event("item-added", { n }), { streamState: BigInt(n - 1) });
      }
    })();
    const enough = (last) => (found) => Number(found.at(-1).event.revision) === last;
    const first = await take(client.subscribeToStream(stream, { fromRevision: START }), enough(180));
    const rest = await take(client.subscribeToStream(stream, { fromRevision: 180n }), enough(299));
    await writing;
    const found = [...first, ...rest].map(({ event }) => Number(event.revision));
    assert.deepEqual(found, Array.from({ length: 300 }, (_, n) => n));
  },

  async aSubscriptionMayBeginBeyondTheEndOfItsStream() {
    const stream = name();
    await client.appendToStream(stream, events(2));
    for (const followed of [stream, name()]) {
      const [found, errors] = [[], []];
      let caughtUp = 0;
      const subscription = client.subscribeToStream(followed, { fromRevision: 4n });
      subscription.on("data", (each) => found.push(each)).on("caughtUp", () => caughtUp++);
      subscription.on("error", (error) => errors.push(error));
      await until("it waits", () => caughtUp > 0);
      await client.appendToStream(followed, events(7));
      // It says that it has seen revision 4, which is stored only now: nothing is passed over.
      await until("it is told", () => errors.length > 0);
      assert.match(errors[0].message, /revision 4 of stream .* is of an earlier history/);
      assert.equal(found.length, 0);
    }
  },

  async allEventsAreFollowedWithCheckpoints() {
    const mark = randomUUID().replaceAll("-", "");
    const others = await client.appendToStream(name("others"), events(50));
    const passing = name(`passing${mark}`);
    await client.appendToStream(passing, event());
    const [found, checkpoints] = [[], []];
    let caughtUp = 0;
    // A checkpoint for every eight events, whether they pass or not.
    const subscription = client.subscribeToAll({
      fromPosition: START,
      filter: streamNameFilter({
        prefixes: [`passing${mark}`],
        maxSearchWindow: 4,
        checkpointInterval: 2,
        checkpointReached: async (_, position) => checkpoints.push(position.commit),
      }),
    });
    subscription.on("data", (each) => found.push(each)).on("caughtUp", () => caughtUp++);
    await until("it has caught up", () => caughtUp > 0 && found.length > 0);
    assert.deepEqual(found.map(({ event }) => event.streamId), [passing]);
    assert.ok(found[0].event.position.commit > others.position.commit);
    assert.ok(checkpoints.length >= 6, `${checkpoints}`);
    assert.ok(checkpoints.every((at, n) => n === 0 || checkpoints[n - 1] < at), `${checkpoints}`);
    const before = checkpoints.length;
    await client.appendToStream(name("others"), events(8));
    await until("a checkpoint comes while nothing passes", () => checkpoints.length > before);
    await subscription.unsubscribe();
    const after = await take(client.subscribeToAll({ fromPosition: others.position }), () => true);
    assert.ok(after[0].event.position.commit > others.position.commit);
  },

  async metadataTruncate() {
    const stream = name();
    await client.appendToStream(stream, events(10));
    await client.setStreamMetadata(stream, { maxCount: 3, owner: "x" });
    assert.deepEqual(await revisions(stream), [7, 8, 9]);
    const { metadata } = await client.getStreamMetadata(stream);
    assert.deepEqual([metadata.maxCount, metadata.owner], [3, "x"]);
    await client.setStreamMetadata(stream, { truncateBefore: 5 });
    assert.deepEqual(await revisions(stream), [5, 6, 7, 8, 9]);
    await client.setStreamMetadata(stream, { maxAge: 1 });
    await until("all are too old", async () => (await read(stream)).length === 0);
    await client.setStreamMetadata(stream, { maxAge: 3_600 });
    assert.equal((await read(stream)).length, 10);
  },

  async deletedStreamsComeBackAndTombstonesDoNot() {
    const stream = name();
    await client.appendToStream(stream, events(2));
    await assert.rejects(client.deleteStream(stream, { expectedRevision: 7n }), WrongExpectedVersionError);
    await client.deleteStream(stream, { expectedRevision: 1n });
    await assert.rejects(read(stream), StreamNotFoundError);
    await client.appendToStream(stream, event(), { streamState: NO_STREAM });
    assert.deepEqual(await revisions(stream), [2]);
    await client.tombstoneStream(stream);
    await assert.rejects(read(stream), StreamDeletedError);
    await assert.rejects(client.appendToStream(stream, event()), StreamDeletedError);
    await assert.rejects(client.deleteStream(stream), StreamDeletedError);
  },

  async aDeletedStreamIsMarkedInItsMetadata() {
    const stream = name();
    await client.setStreamMetadata(stream, { owner: "x" });
    await client.deleteStream(stream, { expectedRevision: NO_STREAM });
    await client.appendToStream(stream, events(3), { streamState: NO_STREAM });
    await client.deleteStream(stream);
    const { metadata } = await client.getStreamMetadata(stream);
    // 2^63 - 1, as this language rounds it.
    assert.equal(metadata.truncateBefore, 2 ** 63);
    await client.appendToStream(stream, event(), { streamState: NO_STREAM });
    assert.equal((await client.getStreamMetadata(stream)).metadata.truncateBefore, 3);
    // Written back, it deletes once more.
    await client.setStreamMetadata(stream, metadata);
    await assert.rejects(read(stream), StreamNotFoundError);
    await client.appendToStream(stream, event());
    assert.deepEqual(await revisions(stream), [4]);
  },

  async whatIsTooLargeIsToldAsThat() {
    await assert.rejects(client.appendToStream(name(), events(10_001)), MaxAppendSizeExceededError);
    const large = binaryEvent({ type: "large", data: new Uint8Array(16 * 1024 * 1024 + 1) });
    await assert.rejects(client.appendToStream(name(), large), MaxAppendSizeExceededError);
  },

  async theProjectionsOfTheSystemAreKnown() {
    await client.enableProjection("$by_category");
    assert.equal((await client.getProjectionStatus("$by_category")).projectionStatus, "Running");
    assert.equal((await client.listProjections()).length, 5);
    await assert.rejects(client.getProjectionStatus("mine"), NotFoundError);
    await assert.rejects(client.createProjection("mine", "fromAll()"));
  },

  async linksAreResolved() {
    const [target, links] = [name(), name("links")];
    await client.appendToStream(target, events(2));
    const link = (to) => binaryEvent({ type: "$>", data: Buffer.from(to) });
    await client.appendToStream(links, [link(`1@${target}`), event("own", {}), link(`9@${target}`)]);
    const found = await read(links, { resolveLinkTos: true });
    assert.deepEqual(found.map(({ event }) => event?.data?.n), [1, undefined, undefined]);
    assert.equal(found[0].link.streamId, links);
    assert.equal(found[2].event, undefined);
    const plain = await read(links);
    assert.deepEqual(plain.map(({ event }) => event.type), ["$>", "own", "$>"]);
  },

  async severalStreamsAreWrittenAtOnce() {
    const [one, two] = [name(), name()];
    const batch = (streamName, expectedState, count) => ({ streamName, expectedState, events: events(count) });
    const answer = await client.multiStreamAppend([batch(one, NO_STREAM, 2), batch(two, NO_STREAM, 1)]);
    assert.deepEqual(answer.responses.map((each) => [each.streamName, each.revision]), [[one, 1n], [two, 0n]]);
    await assert.rejects(client.multiStreamAppend([batch(one, 1n, 1), batch(two, 7n, 1)]), WrongExpectedVersionError);
    assert.equal((await read(one)).length, 2);
  },

  async recordsAreWrittenWithChecks() {
    const [one, two] = [name(), name()];
    const to = (streamName) => ({ streamName, record: event() });
    const check = (streamName, expectedState) => ({ type: STREAM_STATE, streamName, expectedState });
    const { responses } = await client.appendRecords([to(one), to(two), to(one)], [check(one, NO_STREAM)]);
    const written = responses.map((each) => [each.streamName, each.revision]);
    assert.deepEqual(written.sort(), [[one, 1n], [two, 0n]].sort());
    await assert.rejects(client.appendRecords([to(one), to(two)], [check(one, 1n), check(two, 5n)]), (error) => {
      assert.ok(error instanceof AppendConsistencyViolationError, error);
      const [violation, ...more] = error.violations;
      assert.deepEqual([violation.checkIndex, violation.streamName, more.length], [1, two, 0]);
      return true;
    });
    assert.equal((await read(one)).length, 2);
  },

  async aGroupAcknowledgesRetriesAndParks() {
    const [stream, group] = [name(), "mail"];
    await client.appendToStream(stream, events(10));
    const defaults = { startFrom: START, maxRetryCount: 1, messageTimeout };
    const settings = persistentSubscriptionToStreamSettingsFromDefaults(defaults);
    await client.createPersistentSubscriptionToStream(stream, group, settings);
    await assert.rejects(
      client.createPersistentSubscriptionToStream(stream, group, settings),
      PersistentSubscriptionExistsError,
    );
    const join = () => client.subscribeToPersistentSubscriptionToStream(stream, group);
    const stats = async () => (await client.getPersistentSubscriptionToStreamInfo(stream, group)).stats;
    // A client that leaves takes back what it has not sent yet.
    const answersToArrive = () =>
      until("all answers have arrived", async () => Number((await stats()).outstandingMessagesCount) === 0);
    const found = [];
    const subscription = join();
    for await (const resolved of subscription) {
      const { event, retryCount } = resolved;
      found.push([event.data.n, retryCount]);
      if (event.data.n === 3 && retryCount === 0) await subscription.nack("retry", "not yet", resolved);
      else if (event.data.n === 4) await subscription.nack("park", "never", resolved);
      else await subscription.ack(resolved);
      if (found.length < 11) continue;
      await answersToArrive();
      break;
    }
    await subscription.unsubscribe();
    const expected = [...Array.from({ length: 10 }, (_, n) => [n, 0]), [3, 1]];
    assert.deepEqual(found.sort(), expected.sort());
    await until("one is parked", async () => Number((await stats()).parkedMessageCount) === 1);
    await client.replayParkedMessagesToStream(stream, group);
    const replayed = join();
    for await (const resolved of replayed) {
      assert.equal(resolved.event.data.n, 4);
      await replayed.ack(resolved);
      await answersToArrive();
      break;
    }
    await replayed.unsubscribe();
    assert.equal((await client.listPersistentSubscriptionsToStream(stream)).length, 1);
    await client.deletePersistentSubscriptionToStream(stream, group);
    await assert.rejects(stats(), PersistentSubscriptionDoesNotExistError);
  },

  async aGroupIsJoinedAgainAfterACut() {
    const [stream, group] = [name(), "cut"];
    await client.appendToStream(stream, events(10));
    const settings = persistentSubscriptionToStreamSettingsFromDefaults({ startFrom: START, messageTimeout });
    await client.createPersistentSubscriptionToStream(stream, group, settings);
    const info = () => client.getPersistentSubscriptionToStreamInfo(stream, group);
    const outstanding = async () => Number((await info()).stats.outstandingMessagesCount);
    const own = KurrentDBClient.connectionString(`kurrentdb://${through}?${options}`);
    const join = () => own.subscribeToPersistentSubscriptionToStream(stream, group, { bufferSize: 10 });
    const found = [];
    await assert.rejects(async () => {
      const subscription = join();
      for await (const resolved of subscription) {
        found.push(resolved.event.data.n);
        if (found.length <= 4) await subscription.ack(resolved);
        if (found.length < 10) continue;
        await until("four answers have arrived", async () => (await outstanding()) === 6);
        await cut();
      }
    });
    await until("the consumer has left", async () => (await info()).connections.length === 0);
    const rest = [];
    const again = join();
    for await (const resolved of again) {
      rest.push(resolved.event.data.n);
      await again.ack(resolved);
      if (rest.length < 6) continue;
      await until("all answers have arrived", async () => (await outstanding()) === 0);
      break;
    }
    await again.unsubscribe();
    await own.dispose();
    assert.deepEqual(rest.sort(), found.slice(4).sort());
  },

  async aGroupOnAllEventsHasAFilter() {
    const mark = randomUUID().replaceAll("-", "");
    const settings = persistentSubscriptionToAllSettingsFromDefaults({ startFrom: START, messageTimeout });
    const filter = streamNameFilter({ prefixes: [`wanted${mark}`] });
    await client.createPersistentSubscriptionToAll(mark, settings, { filter });
    await client.appendToStream(name(), events(3));
    await client.appendToStream(name(`wanted${mark}`), event());
    const subscription = client.subscribeToPersistentSubscriptionToAll(mark);
    for await (const resolved of subscription) {
      assert.ok(resolved.event.streamId.startsWith(`wanted${mark}`));
      await subscription.ack(resolved);
      break;
    }
    await subscription.unsubscribe();
    await client.deletePersistentSubscriptionToAll(mark);
  },

  async aClientDiscoversTheServer() {
    const discovering = KurrentDBClient.connectionString(`kurrentdb+discover://${address}?${options}`);
    const stream = name();
    await discovering.appendToStream(stream, event());
    assert.equal((await collect(discovering.readStream(stream))).length, 1);
    await discovering.dispose();
  },
};

for (const [check, run] of Object.entries(checks)) {
  await run();
  console.log(check);
}
await client.dispose();
