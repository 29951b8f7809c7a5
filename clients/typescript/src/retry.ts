/**
 * Which calls are repeated, when, and for how long. Nothing is sent here.
 *
 * Invariant: a change that the server may have stored is sent again only if the server recognises it, by the ids of its
 * events.
 */

import {
  ConditionFailed,
  GroupElsewhere,
  OutcomeUnknown,
  Overloaded,
  Problem,
  StoredAndDeleted,
  Unavailable,
  WrongExpectedRevision,
  outcomeUnknown,
} from "./errors.js";

/**
 * What a call may have done when no answer comes: nothing (`reads`), stored events that the server recognises when they
 * come again (`appends`), or changed something that it would change a second time (`changes`).
 */
export type Effect = "reads" | "appends" | "changes";

/**
 * How patient a client is, all in milliseconds.
 *
 * Appends with *any* or *stream exists* are recognised when they come again for ten minutes at least, so a client gives
 * up before that. Pauses double from the first to the longest, and are random, so that many clients do not come back at
 * the same moment. Following does not give up.
 */
export interface Policy {
  readonly giveUpAfter: number;
  readonly firstPause: number;
  readonly longestPause: number;
  /** Longest wait for the answer to a call. */
  readonly answerMax: number;
  /** The server sends something every 15 s. A subscription that is silent for longer than three times that is dead. */
  readonly silenceMax: number;
}

export const DEFAULT_POLICY: Policy = {
  giveUpAfter: 300_000,
  firstPause: 50,
  longestPause: 5_000,
  answerMax: 30_000,
  silenceMax: 45_000,
};

/** The pause after an attempt; the first is 0. */
export function pauseAfter(attempt: number, policy: Policy): number {
  const longest = Math.min(policy.longestPause, policy.firstPause * 2 ** Math.min(attempt, 30));
  return longest * (0.5 + Math.random() / 2);
}

/** Whether the same call may succeed later, and can do no harm. */
export function mayBeRepeated(problem: Problem, effect: Effect): boolean {
  if (problem instanceof OutcomeUnknown) return effect !== "changes";
  // A body that came too slowly was not looked at.
  return problem instanceof Overloaded || problem instanceof Unavailable || problem.kind === "request_timeout";
}

/** What a change ends with that an earlier attempt may have made. Only a few answers tell what became of that one. */
export function afterDoubt(problem: Problem): Problem {
  const tells = [WrongExpectedRevision, StoredAndDeleted, ConditionFailed, OutcomeUnknown].some((kind) => problem instanceof kind);
  return tells ? problem : outcomeUnknown(`an earlier attempt got no answer, and the last one: ${problem.message}`);
}

/** Whether another server may do what this one cannot. */
export function isOfThisServer(problem: Problem): boolean {
  return problem instanceof Unavailable || problem instanceof OutcomeUnknown || problem instanceof GroupElsewhere;
}
