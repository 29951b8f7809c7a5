// What the client does with each answer, against a server that is scripted.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";
import * as gesta from "gesta-client";
import { EventData } from "gesta-client";
import { LOST, REFUSED_ADDRESS, answer, messages, problem, scripted } from "./scripted.mjs";

const QUICK = { giveUpAfter: 30_000, firstPause: 1, longestPause: 2 };
const STORED = { stream: "s", first_revision: 0, last_revision: 0, log: 0, position: 1, checkpoint: "c" };
const DONE = { log: 0, position: 2, checkpoint: "c" };

/** A store, and what its client has said. */
function connect(servers, policy = QUICK) {
  const said = [];
  return { said, store: gesta.connect(servers, { policy, warn: (text) => said.push(text) }) };
}

const one = () => [new EventData("t", 1)];

test("what may pass is repeated as it was", async () => {
  const passing = [
    LOST,
    answer(201, '{"stream":'),
    problem("overloaded", 503, {}, "Retry-After: 0"),
    problem("unavailable", 503),
    problem("outcome_unknown", 504),
    problem("request_timeout", 408),
    answer(502, "<html>"),
  ];
  const server = await scripted(...passing, answer(201, STORED));
  const { store } = connect(server.url);
  assert.equal((await store.append("s", one())).position, 1);
  assert.equal(server.asked.length, passing.length + 1);
  assert.equal(new Set(server.asked.map(({ body }) => body)).size, 1, "every attempt has the same ids");
  assert.equal(JSON.parse(server.asked[0].body).events[0].id.length, 36);
});

test("a refusal is thrown at once", async () => {
  const kinds = [
    [gesta.WrongExpectedRevision, "wrong_expected_revision", 409],
    [gesta.StoredAndDeleted, "stored_and_deleted", 409],
    [gesta.ConditionFailed, "condition_failed", 409],
    [gesta.Unauthenticated, "unauthenticated", 401],
    [gesta.Forbidden, "forbidden", 403],
    [gesta.InvalidArgument, "invalid_argument", 400],
    [gesta.Problem, "internal", 500],
  ];
  for (const [error, kind, status] of kinds) {
    const server = await scripted(problem(kind, status, { field: "expected", actual: 7 }));
    const refused = await connect(server.url).store.append("s", one()).catch((refusal) => refusal);
    assert(refused instanceof error, refused);
    assert.deepEqual([refused.kind, refused.status, refused.message], [kind, status, "A title: a detail"]);
    assert.deepEqual([refused.document.field, refused.document.actual], ["expected", 7]);
    assert.equal(server.asked.length, 1);
  }
});

test("without ids a lost append is not repeated", async () => {
  const server = await scripted(LOST);
  const events = [...one(), new EventData("t", 2, { id: null })];
  await assert.rejects(connect(server.url).store.append("s", events), gesta.OutcomeUnknown);
  assert.equal(server.asked.length, 1);
});

test("the same object is the same event", async () => {
  const server = await scripted(answer(201, STORED), answer(201, STORED));
  const events = one();
  for (let attempt = 0; attempt < 2; attempt += 1) await connect(server.url).store.append("s", events);
  assert.deepEqual(server.asked[0], server.asked[1]);
});

test("after a lost answer a refusal does not say that nothing was stored", async () => {
  const [lost, refusing] = [await scripted(LOST), await scripted(LOST, problem("forbidden", 403))];
  // The next server is asked at once, however long the first one took.
  const away = connect([lost.url, REFUSED_ADDRESS], { giveUpAfter: 0 });
  for (const [{ store }, reason] of [
    [away, "connection refused"],
    [connect(refusing.url), "a detail"],
  ]) {
    const failure = await store.append("s", one()).catch((error) => error);
    assert(failure instanceof gesta.OutcomeUnknown, failure);
    assert(failure.detail.includes(reason), failure.detail);
  }
  for (const [kind, error] of [
    ["wrong_expected_revision", gesta.WrongExpectedRevision],
    ["stored_and_deleted", gesta.StoredAndDeleted],
    ["condition_failed", gesta.ConditionFailed],
  ]) {
    const { store } = connect((await scripted(LOST, problem(kind, 409))).url);
    await assert.rejects(store.append("s", one()), error);
  }
});

test("it gives up", async () => {
  const { store } = connect(REFUSED_ADDRESS, { giveUpAfter: 0 });
  await assert.rejects(store.append("s", one()), (error) => {
    return error instanceof gesta.Unavailable && /cannot connect .* connection refused/.test(error.message);
  });
});

test("a call that its caller gives up ends", async () => {
  const { store } = connect(REFUSED_ADDRESS, { longestPause: 60_000, firstPause: 60_000 });
  const end = new AbortController();
  const reading = store.info({ signal: end.signal });
  end.abort();
  await assert.rejects(reading, { name: "AbortError" });
});

test("a lost delete is not repeated", async () => {
  for (const lost of [LOST, problem("outcome_unknown", 504), answer(502, "")]) {
    const server = await scripted(lost);
    await assert.rejects(connect(server.url).store.deleteStream("s"), gesta.OutcomeUnknown);
    assert.equal(server.asked.length, 1);
  }
});

test("a delete that was not done is repeated", async () => {
  const server = await scripted(problem("overloaded", 503), problem("unavailable", 503), answer(200, DONE));
  assert.equal((await connect(server.url).store.deleteStream("a/b", { expected: 3 })).position, 2);
  assert.equal(server.asked[2].line, "DELETE /streams/a%2Fb?expected=3");
});

test("a refused connection is said once, and the next server is asked", async () => {
  const server = await scripted(answer(200, DONE), answer(200, DONE));
  const { store, said } = connect([REFUSED_ADDRESS, server.url]);
  await store.deleteStream("s");
  await store.deleteStream("s");
  assert.deepEqual(said, [`no answer from ${REFUSED_ADDRESS}: connection refused; trying again`]);
});

test("a failure of TLS is said", async () => {
  const server = await scripted(LOST);
  const { store, said } = connect(server.url.replace("http:", "https:"), { giveUpAfter: 0 });
  await assert.rejects(store.info(), gesta.Unavailable);
  assert.equal(said.length, 1);
  assert(said[0].includes(server.url.slice(5)), said[0]);
});

test("a server without TLS is not waited for", async () => {
  const server = await scripted(answer(400, {}));
  const { store, said } = connect(server.url.replace("http:", "https:"));
  await assert.rejects(store.info(), gesta.NoTls);
  assert.match(said[0], /no TLS \([A-Z_]+\); is its URL http:\/\/ and not https:\/\/\?$/);
  assert.doesNotMatch(said[0], /trying again/);
});

test("what is no list of events, or no JSON, is refused with its place", async () => {
  const { store } = connect("http://127.0.0.1:9");
  await assert.rejects(store.append("s", new EventData("t", 1)), /events must be a list of EventData.*brackets/);
  await assert.rejects(store.append("s", undefined), /events must be a list/);
  await assert.rejects(store.append("s", [{ type: "t", data: 1 }]), /events\[0\] is no EventData/);
  for (const data of [undefined, () => 1, Symbol("s"), 1n]) {
    assert.throws(() => new EventData("t", data), new RegExp(`the data of t must be .* of type ${typeof data}`));
  }
  assert.throws(() => new EventData("t", 1, { metadata: 1n }), /the metadata of t .* give it as a text/);
  await assert.rejects(store.append("s", [new EventData("t", { total: 1n })]), /"total" is a BigInt/);
});

test("a server cannot ask for any pause", async () => {
  const server = await scripted(problem("overloaded", 503, {}, "Retry-After: 86400"));
  const { store, said } = connect(server.url);
  await assert.rejects(store.info(), ({ kind, retryAfter }) => kind === "overloaded" && retryAfter === 60_000);
  assert.match(said[0], /lets this client wait/);
});

test("a server that stops is left", async () => {
  const first = await scripted(problem("unavailable", 503));
  const second = await scripted(answer(200, {}), answer(200, {}));
  const { store } = connect([first.url, second.url]);
  await store.info();
  await store.info();
  assert.deepEqual([first.asked.length, second.asked.length], [1, 2]);
});

test("a group is looked for at all servers, but only where there are several", async () => {
  const elsewhere = problem("group_elsewhere", 421, { owner: { node: 2 } });
  // `fetch` asks a second time by itself after this status.
  const [first, second, alone] = [
    await scripted(elsewhere, elsewhere),
    await scripted(answer(200, { status: "idle" })),
    await scripted(elsewhere, elsewhere),
  ];
  assert.deepEqual(await connect([first.url, second.url]).store.group("s", "g").info(), { status: "idle" });
  await assert.rejects(connect(alone.url).store.group("s", "g").info(), gesta.GroupElsewhere);
});

test("following resumes after the last whole message", async () => {
  const unavailable = JSON.stringify({ type: "urn:gesta:problem:unavailable", status: 503 });
  const server = await scripted(
    messages('id: b\nevent: checkpoint\ndata: {}\n\nid: c\nevent: caught_up\ndata: {"che'),
    messages(`event: error\ndata: ${unavailable}\n\n`),
    problem("overloaded", 503),
    messages("id: d\nevent: caught_up\ndata: {}\n\n"),
  );
  const followed = connect(server.url).store.followAll({ after: "a", filter: { categories: ["cart"] } });
  const seen = [(await followed.next()).value, (await followed.next()).value];
  assert.deepEqual(seen, [
    { kind: "checkpoint", checkpoint: "b" },
    { kind: "caught_up", checkpoint: "d" },
  ]);
  assert.deepEqual(server.asked.map(({ line }) => line.split("after=")[1]), ["a", "b", "b", "b"]);
});

/** Hostile events between two good ones, as JSON, and their data. */
function hostile() {
  const same = { stream: "s", log: 0, id: "3f333df6-90a4-4fda-8dd3-9485d27cee36", type: "t", tags: [] };
  const event = (revision, payload) =>
    JSON.stringify({
      ...same,
      created: "2026-01-01T00:00:00Z",
      content_type: "application/json",
      revision,
      position: revision + 1,
      ...payload,
    });
  const digits = "1".repeat(5_000);
  const deep = "[".repeat(100_000) + "]".repeat(100_000);
  const long = "x".repeat(5_000_000);
  const base64 = (text, from = "utf8") => Buffer.from(text, from).toString("base64");
  const events = [
    event(0, { data: 1 }),
    event(1, { data: "DIGITS" }).replace('"DIGITS"', digits),
    event(2, { data: 1, metadata_base64: base64(deep) }),
    event(3, { data_base64: base64(deep) }),
    event(4, { data_base64: base64("\xff{", "latin1") }),
    event(5, { data: "\ud800" }),
    event(6, { data: long }),
    event(7, { data_base64: base64(digits) }),
    event(8, { data: 2 }),
  ];
  const isWhole = (found) => {
    assert.deepEqual(found.map(({ revision }) => revision), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert.deepEqual([found[0].data, found[1].data, found[7].data, found[8].data], [1, Infinity, Infinity, 2]);
    assert.deepEqual(found[4].data, new Uint8Array([0xff, 0x7b]));
    assert.equal(found[6].data, long);
  };
  return { events, isWhole };
}

test("hostile events stop no reader", async () => {
  const { events, isWhole } = hostile();
  const page = `{"events":[${events}],"end":true,"next":null,"last_revision":8,"checkpoint":"c"}`;
  const read = connect((await scripted(answer(200, page, "Content-Type: application/json"))).url).store;
  const found = [];
  for await (const event of read.readStream("s")) found.push(event);
  isWhole(found);

  const text = events.map((event, n) => `id: c${n}\nevent: event\ndata: ${event}\n\n`).join("");
  const followed = connect((await scripted(messages(text))).url).store.followStream("s");
  const messagesOfAll = [];
  while (messagesOfAll.length < events.length) messagesOfAll.push((await followed.next()).value.event);
  isWhole(messagesOfAll);
});

test("what cannot be read is a problem of the answer", async () => {
  const isUnreadable = (error) => {
    return !(error instanceof gesta.Unavailable) && error.title === "The answer cannot be read";
  };
  const broken = await scripted(answer(200, '{"events":[', "Content-Type: application/json"));
  await assert.rejects(connect(broken.url).store.readStream("s").next(), isUnreadable);
  assert.equal(broken.asked.length, 1);
  const message = await scripted(messages("event: event\ndata: {\n\n"));
  await assert.rejects(connect(message.url).store.followStream("s").next(), isUnreadable);
});

test("a server that is away is told once", async () => {
  const end = new AbortController();
  const said = [];
  const store = gesta.connect(REFUSED_ADDRESS, { policy: QUICK, warn: (text) => said.push(text) });
  const following = store.followAll({ signal: end.signal }).next();
  // Some more attempts by then, and many with time.
  await assert.rejects(connect(REFUSED_ADDRESS, { ...QUICK, giveUpAfter: 100 }).store.info(), gesta.Unavailable);
  end.abort();
  assert.deepEqual(await following, { done: true, value: undefined });
  assert.deepEqual(said, [`no answer from ${REFUSED_ADDRESS}: connection refused; trying again`]);
});

test("what is no event stream is thrown", async () => {
  for (const [headers, came] of [
    [[], "no Content-Type"],
    [["Content-Type: text/html"], "text/html"],
  ]) {
    for (const open of [(store) => store.followAll().next(), (store) => store.group("s", "g").join()]) {
      const server = await scripted(answer(200, "<p>app</p>", ...headers));
      await assert.rejects(open(connect(server.url).store), ({ message }) => {
        return message.startsWith(`The answer is no event stream: ${server.url} gave ${came}`);
      });
    }
  }
});

test("an end without a reason is said", async () => {
  const server = await scripted(messages(""), messages("id: d\nevent: caught_up\ndata: {}\n\n"));
  const { store, said } = connect(server.url);
  await store.followAll().next();
  assert.match(said[0], /the subscription ended without a reason/);
});

test("another history is thrown", async () => {
  const refused = await scripted(problem("invalid_checkpoint", 409));
  await assert.rejects(connect(refused.url).store.followAll().next(), gesta.HistoryChanged);
  const closed = JSON.stringify({ type: "urn:gesta:problem:stream_tombstoned", title: "closed" });
  const server = await scripted(messages(`event: error\ndata: ${closed}\n\n`));
  await assert.rejects(connect(server.url).store.followStream("s").next(), gesta.StreamTombstoned);
});

test("a reader that fell behind is told, or gets an error", async () => {
  const text = messages("id: b\nevent: fell_behind\ndata: {}\n\n");
  const told = await connect((await scripted(text)).url).store.followAll().next();
  assert.equal(told.value.kind, "fell_behind");
  const thrown = connect((await scripted(text)).url).store.followAll({ behind: "throw" }).next();
  await assert.rejects(thrown, { name: "FellBehind", checkpoint: "b" });
});

test("a reader that takes its time keeps its connection", async () => {
  const answers = [];
  const server = createServer((_, answer) => {
    answers.push(answer);
    answer.writeHead(200, { "Content-Type": "text/event-stream" });
    answer.write("id: a\nevent: checkpoint\ndata: {}\n\n");
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const { store } = connect(`http://127.0.0.1:${server.address().port}`, { ...QUICK, silenceMax: 1_000 });
  const followed = store.followAll();
  assert.equal((await followed.next()).value.checkpoint, "a");
  const connections = answers.length;
  await setTimeout(1_500);
  for (const answer of answers) answer.write("id: b\nevent: checkpoint\ndata: {}\n\n");
  assert.equal((await followed.next()).value.checkpoint, "b");
  assert.equal(answers.length, connections);
  await followed.return();
  server.close();
});

/** An answer that gives the consumer an event. */
function delivered() {
  const event = {
    ...{ stream: "s", revision: 0, log: 0, position: 1, id: "0192f0c1-2f3a-7c11-9c55-5d4e2a3b1c00", type: "t" },
    ...{ created: "2026-11-21T02:49:08.246789Z", content_type: "application/json", data: 1, metadata: null, tags: [] },
  };
  const delivery = JSON.stringify({ delivery: 0, retries: 0, event });
  const joined = 'event: joined\ndata: {"consumer": "c"}\n\n';
  return messages(`${joined}event: event\ndata: ${delivery}\n\n`);
}

test("a lost ack is sent again, and a lost nack is not", async () => {
  for (const [name, expected] of [
    ["ack", { answered: 1, unknown: 0 }],
    ["nack", { answered: 0, unknown: 1 }],
  ]) {
    const server = await scripted(delivered(), LOST, answer(200, { answered: 1, unknown: 0 }));
    const consumer = await connect(server.url).store.group("s", "g").join();
    const { value } = await consumer.next();
    assert.deepEqual(await consumer[name](value), expected);
    assert.equal(server.asked.length, 2 + expected.answered);
    consumer.leave();
    server.close();
  }
});

test("waiting for a place in the group is said once", async () => {
  const full = problem("group_full", 409);
  const server = await scripted(delivered(), full, full, delivered());
  const { store, said } = connect(server.url);
  const consumer = await store.group("s", "g").join();
  await consumer.next();
  await consumer.next();
  assert.equal(said.filter((text) => text.includes("lets this client wait")).length, 1, said.join());
  consumer.leave();
});

test("an answer to a server that is gone is unknown", async () => {
  const server = await scripted(delivered());
  const consumer = await connect(server.url).store.group("s", "g").join();
  const { value } = await consumer.next();
  assert.equal(value.event.data, 1);
  assert.deepEqual(await consumer.ack(value), { answered: 0, unknown: 1 });
  consumer.leave();
});

test("an address that is missing is told", () => {
  for (const missing of [undefined, null, [undefined]]) {
    assert.throws(() => gesta.connect(missing), /must be a text such as http:\/\/127.0.0.1:2113, found (undefined|null)/);
  }
});

test("secrets do not travel as plain text", () => {
  assert.throws(() => gesta.connect("http://a", { token: "t" }), /http:\/\/a must begin with https/);
  gesta.connect("http://a", { token: "t", plainHttp: "anywhere" });
  for (const local of ["http://localhost:1", "http://127.0.0.2:1", "http://[::1]:1"]) {
    gesta.connect(local, { user: "u", password: "p" });
  }
});

test("passwords are not shown", () => {
  for (const start of ["http://admin:se#cret@", "http://admin:1/secret@", "admin:secret@", "https://admin:se?cret@"]) {
    for (const host of ["host:2113", "host:99999"]) {
      assert.throws(() => gesta.connect(start + host), ({ message }) => {
        return message.startsWith(`the address of ${host} must not contain a user`) && !message.includes("cret");
      });
    }
  }
});

test("what cannot be meant is refused", async () => {
  for (const options of [{ user: "u" }, { token: "t", user: "u", password: "p" }, { token: "a\nb" }]) {
    assert.throws(() => gesta.connect("http://localhost", options), TypeError);
  }
  for (const url of ["", "localhost:1", "ftp://a", "http://a:b", "http://u:p@a", "http://a?b", []]) {
    assert.throws(() => gesta.connect(url), TypeError);
  }
  const { store } = connect(REFUSED_ADDRESS);
  await assert.rejects(store.append("s", [{ type: "t", data: 1 }]), /events\[0\] is no EventData/);
  await assert.rejects(store.append("s", [new EventData("t", { a: NaN })]), /"a" is NaN, which JSON cannot say/);
  await assert.rejects(store.append("..", one()), /".." cannot be sent/);
  assert.throws(() => store.followAll({ filter: { category: "cart" } }), /a filter has no option category: the options are types, tags, streamPrefixes, categories/);
});

test("an option that is not known is refused, and nothing is sent", async () => {
  const server = await scripted();
  const { store } = connect(server.url);
  const group = store.group("s", "g");
  const event = one();
  const take = async (follow) => (await follow.next()).value;
  const wrong = [
    ["append has no option expectd: the options are expected, signal", () => store.append("s", event, { expectd: 1 })],
    ["appendToStreams", () => store.appendToStreams([], { condition: [] })],
    ["appends[0] has no option expectd", () => store.appendToStreams([{ stream: "s", events: event, expectd: 1 }])],
    ["conditions[0]", () => store.appendToStreams([], { conditions: [{ stream: "s", expectd: 1 }] })],
    ["conditions[0]", () => store.appendToStreams([], { conditions: [{ noMatch: {}, from: "c" }] })],
    ["readStream", async () => take(store.readStream("s", { form: 1 }))],
    ["readStreamPage", () => store.readStreamPage("s", { form: 1 })],
    ["readEvent", () => store.readEvent("s", 0, { resolve_links: true })],
    ["readAll", async () => take(store.readAll({ filters: {} }))],
    ["readAllPage", () => store.readAllPage({ filters: {} })],
    ["listStreams", async () => take(store.listStreams("", { limit: 1 }))],
    ["followAll", async () => take(store.followAll({ from: "start" }))],
    ["followStream", async () => take(store.followStream("s", { filter: {} }))],
    ["deleteStream", () => store.deleteStream("s", { expect: 1 })],
    ["tombstoneStream", () => store.tombstoneStream("s", { expect: 1 })],
    ["streamMetadata", () => store.streamMetadata("s", { expected: 1 })],
    ["setStreamMetadata", () => store.setStreamMetadata("s", {}, { expect: 1 })],
    ["info", () => store.info({ limit: 1 })],
    ["join", () => group.join({ buffers: 1 })],
    ["EventData", async () => new EventData("t", 1, { meta: {} })],
    ["connect", async () => gesta.connect(server.url, { tokn: "t" })],
    ["policy", async () => gesta.connect(server.url, { policy: { giveUp: 1 } })],
    ["append must be an object", () => store.append("s", event, "no_stream")],
  ];
  for (const [text, call] of wrong) {
    const refused = await call().catch((error) => error);
    assert(refused instanceof TypeError && refused.message.includes(text), `${text}: ${refused}`);
  }
  assert.equal(server.asked.length, 0);
  server.close();
  // What is not defined is absent.
  const taking = await scripted(answer(201, STORED));
  await connect(taking.url).store.append("s", one(), { expected: undefined, other: undefined });
});
