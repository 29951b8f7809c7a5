/** Following a stream or all events: a subscription that is resumed whenever its connection breaks. */

import { FellBehind, Problem } from "./errors.js";
import { recordedEvent, type EventDocument, type RecordedEvent } from "./events.js";
import { NoAnswerOfGesta } from "./reasons.js";
import { pauseAfter } from "./retry.js";
import { serverEvents, type ServerEvent } from "./sse.js";
import type { Call, Transport } from "./transport.js";

/**
 * What comes while following: an event, a checkpoint (a filter has passed over much), `caught_up` (what follows is
 * live), or `fell_behind` (the reader was too slow; what follows is read from the database until `caught_up`).
 *
 * Whoever follows again after the `checkpoint` misses nothing and gets nothing twice: store it together with what was
 * made of the events.
 */
export type Message<Data = unknown> =
  | { readonly kind: "event"; readonly checkpoint: string; readonly event: RecordedEvent<Data> }
  | { readonly kind: "checkpoint" | "caught_up" | "fell_behind"; readonly checkpoint: string };

export interface FollowOptions {
  /** A checkpoint, "start" or "end"; for a stream also a revision. "start" if absent. */
  readonly after?: string | number;
  /** Ends following, without an error. */
  readonly signal?: AbortSignal;
  /** Whether a reader that was too slow to follow live gets a message ("tell") or the error `FellBehind` ("throw"). */
  readonly behind?: "tell" | "throw";
}

/** Yields messages until it is told to stop. Refusals, as of a checkpoint of another history, are thrown. */
export async function* follow<Data>(
  transport: Transport,
  of: Call,
  { after = "start", signal, behind = "tell" }: FollowOptions,
): AsyncGenerator<Message<Data>, void> {
  let place = String(after);
  for (let attempt = 0; !signal?.aborted; attempt += 1) {
    const server = transport.servers.present();
    const call: Call = { ...of, parameters: { ...of.parameters, after: place }, signal };
    let pause: number | undefined;
    const began = Date.now();
    try {
      const answer = await transport.open(server, call);
      try {
        for await (const received of serverEvents(answer)) {
          if (signal?.aborted) return;
          place = received.id;
          if (received.kind === "fell_behind" && behind === "throw") throw new FellBehind(place);
          yield messageOf<Data>(received);
        }
        throw new NoAnswerOfGesta("the subscription ended without a reason");
      } finally {
        answer.close();
      }
    } catch (error) {
      if (signal?.aborted) return;
      const problem = transport.broken(server, call, error);
      if (!(problem instanceof Problem) || !transport.mayRepeat(problem, "reads")) throw problem;
      transport.told(server, problem);
      pause = problem.retryAfter;
    }
    // If the connection held, this is not the same trouble again.
    if (Date.now() - began > transport.policy.longestPause) attempt = 0;
    await transport.sleep(pause ?? pauseAfter(attempt, transport.policy), signal).catch(() => undefined);
  }
}

function messageOf<Data>({ kind, id, document }: ServerEvent): Message<Data> {
  if (kind === "event") return { kind, checkpoint: id, event: recordedEvent<Data>(document as EventDocument) };
  return { kind: kind as "checkpoint" | "caught_up" | "fell_behind", checkpoint: id };
}
