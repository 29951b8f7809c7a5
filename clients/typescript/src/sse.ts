/** Server-sent events: an answer without an end, made of messages. */

import { problemOf, unreadable, type ProblemDocument } from "./errors.js";
import type { OpenAnswer } from "./transport.js";

/** A message. `id` is empty if it has none. */
export interface ServerEvent {
  readonly kind: string;
  readonly id: string;
  readonly document: unknown;
}

/**
 * Reads messages, which are lines of `field: value` and end with an empty line. One that breaks off is left out. A
 * message of the kind `error` is thrown as the `Problem` that it carries.
 */
export async function* serverEvents(answer: OpenAnswer): AsyncGenerator<ServerEvent, void> {
  let fields = new Map<string, string>();
  for await (const line of lines(answer)) {
    if (line !== "") {
      const colon = line.indexOf(":");
      const [name, text] = colon < 0 ? [line, ""] : [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")];
      fields.set(name, name === "data" && fields.has("data") ? `${fields.get("data")}\n${text}` : text);
      continue;
    }
    const data = fields.get("data");
    if (data !== undefined) {
      const [kind, id, document] = [fields.get("event") ?? "", fields.get("id") ?? "", read(data)];
      if (kind === "error") throw problemOf(document as ProblemDocument);
      yield { kind, id, document };
    }
    fields = new Map();
  }
}

/** The value of a message. One that is no JSON would come again, so it is no reason to connect again. */
function read(data: string): unknown {
  try {
    return JSON.parse(data);
  } catch (error) {
    throw unreadable(error, 200);
  }
}

/** The lines of an answer, without their ends. */
async function* lines(answer: OpenAnswer): AsyncGenerator<string, void> {
  const decoder = new TextDecoder();
  // The beginning of a line whose end has not come yet, in pieces: a long one is put together once.
  let begun: string[] = [];
  for await (const bytes of answer.body) {
    const [first = "", ...others] = decoder.decode(bytes, { stream: true }).split("\n");
    begun.push(first);
    for (const next of others) {
      yield begun.join("").replace(/\r$/, "");
      begun = [next];
    }
  }
}
