// A client of Gesta's HTTP API, in nothing but what Node.js 18 or newer has. Copy it into your program.
//
// `append` repeats an append until its outcome is known; `follow` resumes a subscription until it is told to stop.
// A server with users is told the API token in the environment variable GESTA_TOKEN.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

// After these answers the same request may succeed.
const PASSING = new Set(["overloaded", "unavailable", "outcome_unknown", "request_timeout"]);
// Longest wait for the answer to an append, in milliseconds.
const ANSWER_MAX = 30_000;
// A subscription that is silent for longer than three heartbeats of the server is dead, in milliseconds.
const SILENCE_MAX = 45_000;

/** An answer of the server that is not a success. `kind` is the last part of the problem's type. */
export class Problem extends Error {
  constructor(document, retryAfter) {
    super(document.detail ?? document.title ?? "no problem document");
    this.document = document;
    this.kind = (document.type ?? "").split(":").at(-1);
    this.retryAfter = retryAfter;
  }
}

/**
 * Appends events to a stream and returns the server's answer, with `first_revision` and `checkpoint`.
 *
 * Each event has `type` and `data`; one without `id` gets an id here, before the first attempt. A repeated attempt has
 * the same ids, so the server stores the events once and answers all attempts alike.
 */
export async function append(base, stream, events, { expected = "any", giveUpAfter = 300_000 } = {}) {
  const withIds = events.map((event) => ({ id: randomUUID(), ...event }));
  const request = {
    method: "POST",
    headers: { "Content-Type": "application/json", ...credentials() },
    body: JSON.stringify({ expected, events: withIds }),
  };
  const url = new URL(`${base}/streams/${encodeURIComponent(stream)}`);
  const deadline = Date.now() + giveUpAfter;
  for (let attempt = 0; ; attempt += 1) {
    try {
      const answer = await open(url, { ...request, signal: AbortSignal.timeout(ANSWER_MAX) });
      return await answer.json();
    } catch (failure) {
      // Without an answer, or with a part of one, the events may be stored or not.
      const isFinal = failure instanceof Problem && !PASSING.has(failure.kind);
      if (isFinal || Date.now() > deadline) throw failure;
      await sleep(failure.retryAfter ?? backOff(attempt));
    }
  }
}

/**
 * Yields `{ kind, checkpoint, document }` without end; kinds are `event`, `checkpoint` and `caught_up`.
 *
 * `after` is `start`, `end` or a checkpoint; parameters are those of the subscription, as `{ category: "cart" }`. The
 * subscription is resumed when the connection is lost. A refusal, as of a checkpoint that the store does not know, is thrown.
 */
export async function* follow(base, { after = "start", path = "/all", parameters = {} } = {}) {
  const url = new URL(`${base}${path}/subscribe`);
  for (let attempt = 0; ; attempt += 1) {
    url.search = new URLSearchParams({ ...parameters, after });
    const silence = new AbortController();
    const abortWhenSilent = () => setTimeout(() => silence.abort(), SILENCE_MAX);
    let timer = abortWhenSilent();
    const received = () => {
      clearTimeout(timer);
      timer = abortWhenSilent();
    };
    try {
      const answer = await open(url, { headers: credentials(), signal: silence.signal });
      for await (const message of messages(answer.body, received)) {
        attempt = 0;
        if (message.event === "error") throw new Problem(message.data);
        after = message.id;
        yield { kind: message.event, checkpoint: after, document: message.data };
      }
    } catch (failure) {
      if (failure instanceof Problem ? !PASSING.has(failure.kind) : !isLost(failure)) throw failure;
    } finally {
      clearTimeout(timer);
    }
    await sleep(backOff(attempt));
  }
}

function credentials() {
  const token = process.env.GESTA_TOKEN;
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function open(url, request) {
  const answer = await fetch(url, request);
  if (answer.ok) return answer;
  const retryAfter = answer.headers.get("Retry-After");
  const nothing = { type: answer.status >= 500 ? "unavailable" : "", title: `HTTP status ${answer.status}` };
  const document = await answer.json().catch(() => nothing);
  throw new Problem(document, retryAfter ? Number(retryAfter) * 1_000 || undefined : undefined);
}

/** What `fetch` throws when it cannot connect, when a connection is lost and when a request is aborted. */
function isLost(failure) {
  return failure instanceof TypeError || failure.name === "AbortError";
}

/** Server-sent events: lines of `field: value`, and an empty line that ends a message. */
async function* messages(body, received) {
  const decoder = new TextDecoder();
  let rest = "";
  let message = {};
  for await (const bytes of body) {
    received();
    const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if ("data" in message) yield { ...message, data: JSON.parse(message.data) };
        message = {};
        continue;
      }
      const colon = line.indexOf(":");
      message[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
    }
  }
}

function backOff(attempt) {
  return Math.min(5_000, 50 * 2 ** Math.min(attempt, 10)) * (0.5 + Math.random() / 2);
}
