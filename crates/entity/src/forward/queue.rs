//! The requests for one entity that go to the node that owns its stream: what is sent when, what comes back, and what
//! is done here instead. The module is pure: the shard says what it sees and carries out the [`Step`]s.
//!
//! Invariants: requests are decided in the order in which they came. So they are answered in that order. A request that
//! came back waits until no later request is under way, and is refused if another node has answered a later one
//! meanwhile. Nothing is sent while the entity has something in flight here. Whatever another node may have done of a
//! request is passed on (`in_doubt`).
//! Not here: the forms of requests and answers (`forms`), and what an answer in doubt says (`ask`).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use gesta_core::peers::{PeerAnswer, Unanswered, UnansweredReason};
use tokio::time::Instant;

/// The pause before a request is sent again whose owner could not be reached.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The requests for one entity, oldest first.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    entries: VecDeque<Entry<T>>,
    numbers: u64,
}

#[derive(Debug)]
struct Entry<T> {
    number: u64,
    request: T,
    /// The moment after which the request is not sent. This moment stays the same however often the request comes back.
    deadline: Instant,
    /// Whether another node may have done the request, or may do it later.
    in_doubt: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The request waits to be sent, or to be done here, but not before this moment.
    Waits(Option<Instant>),
    /// The request must be done here, whichever node owns the stream.
    Here,
    /// The request is under way.
    Sent,
    Answered(Bytes),
    Refused(Refusal),
}

/// The reason why a request ends without an answer of another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The owner was not reached in time.
    Unreachable,
    /// The answer of the owner cannot be read.
    Unreadable,
    /// The answer of the owner is too large to be sent.
    AnswerTooLarge,
    /// The owner did not answer in time.
    Late,
    /// The request came back after a later request was answered. To do the request now would change the order of the
    /// two.
    Overtaken,
    /// Too many requests wait for the owner.
    Overloaded,
    /// This node is shutting down.
    Closed,
}

/// What is to be done with a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<T> {
    /// The request of this number must be sent, see [`Queue::sending`].
    Send(u64),
    /// The request must be done here.
    Here { request: T, in_doubt: bool },
    /// Another node has answered the request.
    Answer {
        request: T,
        body: Bytes,
        in_doubt: bool,
    },
    Refuse {
        request: T,
        refusal: Refusal,
        in_doubt: bool,
    },
}

/// What the shard knows about the entity.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// Whether this node owns the stream.
    pub(crate) is_here: bool,
    /// Whether the entity has something in flight on this node.
    pub(crate) is_busy: bool,
    pub(crate) now: Instant,
}

/// Where a request may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestPlace {
    /// The request may be done on the node that owns the stream.
    Owner,
    /// The request can only be done here: it has no form in which it could be sent.
    Here,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            numbers: 0,
        }
    }
}

impl<T> Queue<T> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes a request after all others.
    pub(crate) fn push(&mut self, request: T, place: RequestPlace, deadline: Instant) {
        let entry = self.entry(request, place, deadline);
        self.entries.push_back(entry);
    }

    /// Takes requests that came before all others, and that were tried here. No request may be under way.
    pub(crate) fn push_front(&mut self, requests: VecDeque<(T, RequestPlace, Instant)>) {
        for (request, place, deadline) in requests.into_iter().rev() {
            let entry = self.entry(request, place, deadline);
            self.entries.push_front(entry);
        }
    }

    fn entry(&mut self, request: T, place: RequestPlace, deadline: Instant) -> Entry<T> {
        let state = match place {
            RequestPlace::Owner => State::Waits(None),
            RequestPlace::Here => State::Here,
        };
        self.numbers += 1;
        Entry {
            number: self.numbers,
            request,
            deadline,
            in_doubt: false,
            state,
        }
    }

    /// Returns a request that [`Step::Send`] names, the moment until which it may be answered, and whether it is in
    /// doubt.
    pub(crate) fn sending(&mut self, number: u64) -> Option<(&mut T, Instant, bool)> {
        let entry = self.entries.iter_mut().find(|entry| entry.number == number);
        entry.map(|entry| (&mut entry.request, entry.deadline, entry.in_doubt))
    }

    /// Takes the outcome of a request that was sent.
    pub(crate) fn outcome(
        &mut self,
        number: u64,
        outcome: Result<PeerAnswer, Unanswered>,
        now: Instant,
    ) {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.number == number) else {
            return;
        };
        entry.state = match outcome {
            Ok(answer) => {
                entry.in_doubt |= answer.is_in_doubt;
                State::Answered(answer.body)
            }
            Err(unanswered) => {
                entry.in_doubt |= unanswered.was_written;
                match unanswered.reason {
                    // Without an owner nobody else decides, or the store accepts the faster one.
                    UnansweredReason::Here
                    | UnansweredReason::NoOwner
                    | UnansweredReason::NotServed
                    | UnansweredReason::TooLarge => State::Here,
                    UnansweredReason::Unreachable if now < entry.deadline => {
                        State::Waits(Some(entry.deadline.min(now + AGAIN_AFTER)))
                    }
                    UnansweredReason::Unreachable => State::Refused(Refusal::Unreachable),
                    UnansweredReason::Unreadable => State::Refused(Refusal::Unreadable),
                    UnansweredReason::AnswerTooLarge => State::Refused(Refusal::AnswerTooLarge),
                    UnansweredReason::Late => State::Refused(Refusal::Late),
                    UnansweredReason::Overloaded => State::Refused(Refusal::Overloaded),
                    UnansweredReason::Closed => State::Refused(Refusal::Closed),
                }
            }
        };
    }

    /// Returns the next step, if there is one now.
    pub(crate) fn next(&mut self, seen: Seen) -> Option<Step<T>> {
        if let Some(ended) = self.ended() {
            return Some(ended);
        }
        let at = self.entries.iter().position(Entry::is_open)?;
        let after = || self.entries.iter().skip(at + 1);
        if after().any(|entry| matches!(entry.state, State::Sent)) {
            return None;
        }
        let is_overtaken = after().any(|entry| matches!(entry.state, State::Answered(_)));
        let entry = self.entries.get_mut(at)?;
        let (is_first, is_sendable) = (at == 0, !seen.is_here && !seen.is_busy);
        let refusal = match entry.state {
            _ if is_overtaken => Refusal::Overtaken,
            State::Waits(_) if seen.now >= entry.deadline => Refusal::Unreachable,
            State::Waits(Some(earliest)) if seen.now < earliest && !seen.is_here => return None,
            State::Waits(_) if is_sendable => {
                entry.state = State::Sent;
                return Some(Step::Send(entry.number));
            }
            State::Waits(_) if !seen.is_here => return None,
            // What was sent before it comes back, or is answered.
            _ if !is_first => return None,
            _ => {
                let Entry {
                    request, in_doubt, ..
                } = self.entries.pop_front()?;
                return Some(Step::Here { request, in_doubt });
            }
        };
        if is_first {
            entry.state = State::Refused(refusal);
            return self.ended();
        }
        None
    }

    /// Returns the answer or the refusal of the oldest request, if that request has ended.
    fn ended(&mut self) -> Option<Step<T>> {
        let is_ended =
            |entry: &mut Entry<T>| matches!(entry.state, State::Answered(_) | State::Refused(_));
        let Entry {
            request,
            in_doubt,
            state,
            ..
        } = self.entries.pop_front_if(is_ended)?;
        match state {
            State::Answered(body) => Some(Step::Answer {
                request,
                body,
                in_doubt,
            }),
            State::Refused(refusal) => Some(Step::Refuse {
                request,
                refusal,
                in_doubt,
            }),
            State::Waits(_) | State::Here | State::Sent => None,
        }
    }

    /// Returns the moment at which to ask for the next step if nothing happens before.
    pub(crate) fn wake_at(&self, now: Instant) -> Option<Instant> {
        let waiting = self.entries.iter().flat_map(|entry| match entry.state {
            State::Waits(earliest) => [earliest, Some(entry.deadline)],
            _ => [None, None],
        });
        waiting.flatten().filter(|moment| *moment > now).min()
    }
}

impl<T> Entry<T> {
    /// Returns whether the request must still be sent or done here.
    fn is_open(&self) -> bool {
        matches!(self.state, State::Waits(_) | State::Here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNREACHABLE: UnansweredReason = UnansweredReason::Unreachable;

    struct Game {
        queue: Queue<u32>,
        seen: Seen,
    }

    impl Game {
        fn new(requests: u32) -> Self {
            let seen = Seen {
                is_here: false,
                is_busy: false,
                now: Instant::now(),
            };
            let mut game = Self {
                queue: Queue::default(),
                seen,
            };
            (1..=requests).for_each(|request| game.push(request, RequestPlace::Owner));
            game
        }

        fn push(&mut self, request: u32, place: RequestPlace) {
            let deadline = self.seen.now + Duration::from_secs(10);
            self.queue.push(request, place, deadline);
        }

        /// All that is done now, as text.
        fn steps(&mut self) -> String {
            let mut told = Vec::new();
            while let Some(step) = self.queue.next(self.seen) {
                told.push(match step {
                    Step::Send(number) => format!("send {number}"),
                    Step::Here { request, in_doubt } => format!("here {request} {in_doubt}"),
                    Step::Answer {
                        request, in_doubt, ..
                    } => format!("answer {request} {in_doubt}"),
                    Step::Refuse {
                        request,
                        refusal,
                        in_doubt,
                    } => format!("refuse {request} {refusal:?} {in_doubt}"),
                });
            }
            told.join(", ")
        }

        fn answered(&mut self, number: u64) {
            let answer = PeerAnswer {
                body: Bytes::new(),
                is_in_doubt: false,
            };
            self.queue.outcome(number, Ok(answer), self.seen.now);
        }

        fn came_back(&mut self, number: u64, reason: UnansweredReason, was_written: bool) {
            let unanswered = Unanswered {
                reason,
                was_written,
            };
            self.queue.outcome(number, Err(unanswered), self.seen.now);
        }
    }

    #[test]
    fn answers_leave_in_order() {
        let mut game = Game::new(3);
        assert_eq!(game.steps(), "send 1, send 2, send 3");
        game.answered(3);
        game.answered(2);
        assert_eq!(game.steps(), "");
        game.answered(1);
        assert_eq!(
            game.steps(),
            "answer 1 false, answer 2 false, answer 3 false"
        );
        assert_eq!(game.queue.len(), 0);
    }

    #[test]
    fn what_came_back_waits_until_nothing_after_it_is_under_way() {
        let mut game = Game::new(3);
        game.steps();
        game.came_back(1, UnansweredReason::Here, true);
        game.seen.is_here = true;
        assert_eq!(game.steps(), "");
        game.push(4, RequestPlace::Owner);
        assert_eq!(game.steps(), "");
        game.came_back(3, UnansweredReason::Here, false);
        assert_eq!(game.steps(), "");
        game.came_back(2, UnansweredReason::Here, false);
        assert_eq!(
            game.steps(),
            "here 1 true, here 2 false, here 3 false, here 4 false"
        );
    }

    #[test]
    fn what_was_overtaken_is_refused() {
        let mut game = Game::new(3);
        game.steps();
        game.came_back(1, UNREACHABLE, false);
        game.came_back(2, UnansweredReason::NotServed, true);
        game.answered(3);
        let told = "refuse 1 Overtaken false, refuse 2 Overtaken true, answer 3 false";
        assert_eq!(game.steps(), told);
    }

    #[test]
    fn while_the_owner_cannot_be_reached_it_is_tried_again_until_its_time_is_over() {
        let mut game = Game::new(2);
        game.steps();
        game.came_back(1, UNREACHABLE, true);
        game.came_back(2, UNREACHABLE, false);
        assert_eq!(game.steps(), "");
        let again = game.queue.wake_at(game.seen.now).expect("it waits");
        assert_eq!(again, game.seen.now + AGAIN_AFTER);
        game.seen.now = again;
        assert_eq!(game.steps(), "send 1, send 2");
        game.came_back(1, UNREACHABLE, false);
        game.came_back(2, UNREACHABLE, false);
        game.seen.now += Duration::from_secs(10);
        assert_eq!(game.queue.wake_at(game.seen.now), None);
        assert_eq!(
            game.steps(),
            "refuse 1 Unreachable true, refuse 2 Unreachable false"
        );
    }

    /// Goal: nobody waits for an owner that does not exist, and what the last owner may have done is known to be in
    /// doubt.
    #[test]
    fn without_an_owner_it_is_done_here() {
        let mut game = Game::new(2);
        game.steps();
        game.came_back(1, UnansweredReason::NoOwner, true);
        assert_eq!(game.steps(), "", "the second is under way");
        game.came_back(2, UnansweredReason::NoOwner, false);
        assert_eq!(game.steps(), "here 1 true, here 2 false");
    }

    #[test]
    fn nothing_is_sent_while_the_entity_is_busy_here() {
        let mut game = Game::new(2);
        game.seen.is_busy = true;
        assert_eq!(game.steps(), "");
        let deadline = game.seen.now + Duration::from_secs(1);
        let first = [7, 8].map(|request| (request, RequestPlace::Owner, deadline));
        game.queue.push_front(first.into());
        game.seen.is_busy = false;
        assert_eq!(game.steps(), "send 4, send 3, send 1, send 2");
        for number in 1..=4 {
            game.answered(number);
        }
        let told = "answer 7 false, answer 8 false, answer 1 false, answer 2 false";
        assert_eq!(game.steps(), told);
    }

    #[test]
    fn what_has_no_form_is_done_here_in_its_turn() {
        let mut game = Game::new(1);
        game.push(2, RequestPlace::Here);
        game.push(3, RequestPlace::Owner);
        assert_eq!(game.steps(), "send 1");
        game.answered(1);
        assert_eq!(game.steps(), "answer 1 false, here 2 false, send 3");
    }

    #[test]
    fn a_request_that_ends_does_not_hold_the_others() {
        for reason in [
            UnansweredReason::Late,
            UnansweredReason::Unreadable,
            UnansweredReason::AnswerTooLarge,
            UnansweredReason::Overloaded,
            UnansweredReason::Closed,
        ] {
            let mut game = Game::new(3);
            game.steps();
            game.came_back(2, reason, true);
            game.push(4, RequestPlace::Owner);
            assert_eq!(game.steps(), "send 4");
            game.answered(1);
            let told = game.steps();
            assert!(told.starts_with("answer 1 false, refuse 2") && told.ends_with("true"));
        }
    }
}
