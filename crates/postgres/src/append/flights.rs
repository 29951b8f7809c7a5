//! The batches that are on their way on one connection: whose answer is late, and from which batch on everything is in
//! doubt.
//!
//! Pure: the clock is passed in. Answers arrive in the order of sending, so only the oldest batch is waited for: its
//! time runs from when it was sent or from when the one before it was answered, whichever is later. When this time is
//! over, all batches on their way are in doubt at once. Invariant: after a batch in doubt, no later one is certain;
//! before a batch that was answered, none is in doubt. This holds whatever the order in which the answers are looked
//! at.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// A timer that fires this much too late shows that the process did not run, so answers may wait in the socket.
const OVERSLEPT: Duration = Duration::from_millis(500);

/// The batches that are on their way.
#[derive(Debug)]
pub(crate) struct Flights {
    /// The batches that are not answered yet, oldest first.
    waiting: VecDeque<Flight>,
    next: u64,
    /// All batches before this number have been answered.
    answered_below: u64,
    last_answer: Instant,
    doubt: Option<Doubt>,
}

#[derive(Debug)]
struct Flight {
    number: u64,
    sent: Instant,
    limit: Duration,
}

#[derive(Debug)]
struct Doubt {
    /// The number of the first batch in doubt; all after it are in doubt too.
    from: u64,
    reason: String,
}

/// What is to be done about a batch without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// Look again at this moment.
    Wait(Instant),
    /// The oldest batch is late, but has time until this moment.
    Late(Instant),
    /// The time of the oldest batch is over.
    Overdue,
}

impl Flights {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            waiting: VecDeque::new(),
            next: 0,
            answered_below: 0,
            last_answer: now,
            doubt: None,
        }
    }

    /// Notes that a batch is sent, whose answer may take `limit`. Returns the number of the batch.
    pub(crate) fn send(&mut self, limit: Duration, now: Instant) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting.push_back(Flight {
            number,
            sent: now,
            limit,
        });
        number
    }

    /// Notes that the answer to a batch has arrived. Returns the reason if the batch is in doubt nevertheless.
    pub(crate) fn answered(&mut self, number: u64, now: Instant) -> Option<String> {
        if let Some(reason) = self.doubt_of(number) {
            return Some(reason);
        }
        // The answers to the batches before have arrived too, even if they have not been looked at yet.
        while self
            .waiting
            .pop_front_if(|flight| flight.number <= number)
            .is_some()
        {}
        self.answered_below = self.answered_below.max(number + 1);
        self.last_answer = now;
        None
    }

    /// Notes that a batch was not sent after all.
    pub(crate) fn withdraw(&mut self, number: u64) {
        self.waiting.retain(|flight| flight.number != number);
    }

    /// Tells whether the answer to this batch, or to a later one, was looked at and is certain.
    pub(crate) fn is_answered(&self, number: u64) -> bool {
        number < self.answered_below
    }

    /// Puts every batch in doubt that was not answered, for good. The first reason is kept.
    pub(crate) fn raise(&mut self, reason: &str) {
        self.doubt.get_or_insert_with(|| Doubt {
            from: self.answered_below,
            reason: reason.to_owned(),
        });
    }

    /// Puts this batch and all after it in doubt, because of its answer, unless a later one was answered well.
    pub(crate) fn raise_from(&mut self, number: u64, reason: &str) {
        let from = number.max(self.answered_below);
        self.doubt.get_or_insert_with(|| Doubt {
            from,
            reason: reason.to_owned(),
        });
    }

    /// Returns the reason why nothing more may be sent; `None` if more may be sent.
    pub(crate) fn reason(&self) -> Option<String> {
        self.doubt.as_ref().map(|doubt| doubt.reason.clone())
    }

    /// Returns the reason why this batch is in doubt; `None` if it is not.
    pub(crate) fn doubt_of(&self, number: u64) -> Option<String> {
        let doubt = self.doubt.as_ref().filter(|doubt| number >= doubt.from);
        doubt.map(|doubt| doubt.reason.clone())
    }

    /// Looks at the oldest batch. `due` is the moment at which the caller meant to look.
    pub(crate) fn look(&mut self, late_after: Duration, due: Instant, now: Instant) -> Look {
        if now.saturating_duration_since(due) > OVERSLEPT {
            return Look::Wait(now + OVERSLEPT);
        }
        let Some(oldest) = self.waiting.front() else {
            return Look::Wait(now + late_after);
        };
        let begun = oldest.sent.max(self.last_answer);
        let (late, over) = (begun + late_after, begun + oldest.limit);
        if now >= over {
            Look::Overdue
        } else if now >= late {
            Look::Late(over)
        } else {
            Look::Wait(late.min(over))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Duration = Duration::from_secs(1);
    const LIMIT: Duration = Duration::from_secs(10);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// With several batches on their way, each one's time was multiplied by the number of those before it: after eight
    /// batches a silent database was waited for 80 seconds. The time runs for the oldest alone.
    #[test]
    fn the_time_of_a_batch_runs_from_the_answer_before_it() {
        let start = Instant::now();
        let mut flights = Flights::new(start);
        for _ in 0..8 {
            flights.send(LIMIT, start);
        }
        assert_eq!(flights.look(LATE, start, start), Look::Wait(start + LATE));
        let late = start + LATE;
        assert_eq!(flights.look(LATE, late, late), Look::Late(start + LIMIT));
        let answered = start + seconds(9);
        assert_eq!(flights.answered(0, answered), None);
        let end = start + LIMIT;
        assert_eq!(flights.look(LATE, end, end), Look::Late(answered + LIMIT));
        let end = answered + LIMIT;
        assert_eq!(flights.look(LATE, end, end), Look::Overdue);
    }

    #[test]
    fn a_batch_that_is_sent_late_has_its_whole_time() {
        let start = Instant::now();
        let mut flights = Flights::new(start);
        flights.send(LIMIT, start + seconds(100));
        let end = start + seconds(109);
        assert_eq!(
            flights.look(LATE, end, end),
            Look::Late(start + seconds(110))
        );
    }

    /// A process that was suspended finds its timers fired and the answers in its socket: the answers come first.
    #[test]
    fn a_timer_that_fires_far_too_late_proves_nothing() {
        let start = Instant::now();
        let mut flights = Flights::new(start);
        flights.send(LIMIT, start);
        let (due, now) = (start + LIMIT, start + seconds(60));
        let again = now + OVERSLEPT;
        assert_eq!(flights.look(LATE, due, now), Look::Wait(again));
        assert_eq!(flights.look(LATE, again, again), Look::Overdue);
    }

    /// Two batches on their way, the time of the first over while both answers wait: the first became *unknown* and the
    /// second *committed*, which cannot be. What was answered before the doubt stays certain, everything after it does
    /// not.
    #[test]
    fn after_a_batch_in_doubt_none_is_certain_and_before_an_answered_one_all_are() {
        let start = Instant::now();
        let mut flights = Flights::new(start);
        for _ in 0..4 {
            flights.send(LIMIT, start);
        }
        assert_eq!(flights.answered(1, start), None);
        flights.raise("silence");
        flights.raise("another reason");
        assert_eq!(
            flights.answered(0, start),
            None,
            "1 came after it and was answered"
        );
        for number in [2, 3] {
            assert_eq!(flights.answered(number, start).as_deref(), Some("silence"));
        }
        let mut flights = Flights::new(start);
        for _ in 0..3 {
            flights.send(LIMIT, start);
        }
        flights.raise_from(1, "a warning");
        assert_eq!(flights.answered(0, start), None);
        assert!(flights.answered(1, start).is_some() && flights.doubt_of(2).is_some());
    }
}
