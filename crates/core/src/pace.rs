//! The pace of a connection: it tells when a statement smaller than those under way is worth sending. That is so when
//! the way to the database is long and the work of the database is short.
//!
//! While a statement is under way the next one gathers, and normally waits until it is as large. Near the database that
//! is right: commits follow one another there without a pause, and many small ones only cost more. Far from it the
//! database is idle most of the time that a statement is under way, and waiting only adds to the latency. Two
//! statements under way are enough there, one that the database works on and one that waits. Every further one takes
//! its events from those two, and makes three commits of what could be two.
//!
//! So two times are measured. *Work* is the time between the answer of a statement and the answer of the next one,
//! which was sent without waiting for the first. The work is never longer than this time. It is as long if the two were
//! sent much closer together, for then the second one waited in the database. *Round trip* is the shortest time of an
//! answer while nothing else was under way. Under load this time cannot be measured: what waits, in the database or for
//! a busy processor here, looks like distance. Of all round trips of a connection the shortest counts: a database does
//! not move away while the connection stands, but answers are often noticed late.
//!
//! Both are measured twice: by the pipeline of each log for its batches, and by a backend whose logs share a connection
//! for the statements of all of them, which a pipeline cannot see. The code is pure: the clock is passed in.

use std::time::Duration;

use crate::moment::Moment;

/// Round trip up to which a database counts as near, whatever its work. Measured times are no more exact than this.
const NEAR: Duration = Duration::from_millis(1);
/// Number of statements under way from which a further one waits for the next answer, if that comes soon, and grows
/// meanwhile.
const MANY: usize = 16;

/// Times that were measured on one connection.
#[derive(Debug, Default)]
pub struct Pace {
    /// Shortest time in which an answer came while nothing else was under way; `None` before the first.
    round_trip: Option<Duration>,
    work: Duration,
    /// Times at which the last statement that was answered was sent, and at which its answer came.
    last: Option<(Moment, Moment)>,
}

impl Pace {
    /// Takes the answer of a statement, which was sent at `sent` as the last of `queue` statements under way.
    pub fn answered(&mut self, sent: Moment, queue: usize, now: Moment) {
        self.measure_work(sent, now);
        self.last = Some((sent, now));
        if queue == 1 {
            let trip = now.since(sent);
            self.round_trip = Some(self.round_trip.map_or(trip, |known| known.min(trip)));
        }
    }

    fn measure_work(&mut self, sent: Moment, now: Moment) {
        let Some((last_sent, last_answer)) = self.last.filter(|(_, answer)| sent < *answer) else {
            return;
        };
        let gap = now.since(last_answer);
        let waited = gap > sent.since(last_sent) * 2;
        self.work = match self.work {
            Duration::ZERO => gap,
            // Falls fast and rises slowly.
            work if gap < work => (work * 3 + gap) / 4,
            work if waited => (work * 15 + gap) / 16,
            work => work,
        };
    }

    /// Returns true if the database would be idle for a while before another statement, however small, arrives.
    /// `oldest` is the time since the oldest statement under way was sent.
    #[must_use]
    pub fn database_would_be_idle(&self, under_way: usize, oldest: Duration) -> bool {
        let an_answer_comes_soon = oldest > self.distance() / 2;
        let statements = u32::try_from(under_way + 1).unwrap_or(u32::MAX);
        !self.is_near()
            && self.work.saturating_mul(statements) < self.distance()
            && (under_way < MANY || !an_answer_comes_soon)
    }

    /// Returns true if the database works on a statement for longer than the statement travels: then one that waits
    /// keeps the database busy. It is also true where the round trip is too short to tell, and before anything is
    /// known.
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.distance() <= self.work.max(NEAR)
    }

    /// Returns the shortest time in which an answer came while nothing else was under way; `None` before the first.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Returns how long the database works on a statement, as far as is known; zero before anything is known.
    #[must_use]
    pub fn work(&self) -> Duration {
        self.work
    }

    fn distance(&self) -> Duration {
        self.round_trip.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A database so far away, which an empty batch has shown, that works so long on each of two statements sent at
    /// once, again and again.
    fn after(work: Duration, distance: Duration) -> Pace {
        let (mut pace, mut sent) = (Pace::default(), Moment::START);
        pace.answered(sent, 1, sent + distance);
        sent += distance;
        for _ in 0..50 {
            pace.answered(sent, 1, sent + distance + work);
            pace.answered(sent, 2, sent + distance + work * 2);
            sent += distance + work * 3;
        }
        pace
    }

    #[test]
    fn near_the_database_small_statements_wait() {
        assert!(Pace::default().is_near(), "before anything is known");
        for (work, distance) in [(MS, MS / 5), (MS / 10, MS / 2)] {
            let pace = after(work, distance);
            assert!(pace.is_near(), "{pace:?}");
            assert!(!pace.database_would_be_idle(1, MS), "{pace:?}");
        }
    }

    #[test]
    fn far_away_they_go_while_the_database_is_idle() {
        let pace = after(MS, MS * 40);
        assert!(pace.database_would_be_idle(1, MS), "{pace:?}");
        assert!(pace.database_would_be_idle(20, MS), "{pace:?}");
        assert!(!pace.database_would_be_idle(20, MS * 30), "an answer comes");
        assert!(!pace.database_would_be_idle(50, MS), "it has enough to do");
    }

    /// Goal: one quick answer counts for much, one slow answer for little, and none if the batch was sent too late to
    /// have waited.
    #[test]
    fn work_falls_fast_and_rises_slowly() {
        let t = Moment::START;
        let mut pace = Pace {
            work: MS * 8,
            last: Some((t, t + MS * 10)),
            ..Pace::default()
        };
        pace.answered(t + MS, 2, t + MS * 14);
        assert_eq!(pace.work, MS * 7, "4 ms after the one before");
        pace.answered(t + MS * 2, 2, t + MS * 37);
        assert_eq!(pace.work, MS * 8, "23 ms after the one before");
        pace.answered(t + MS * 14, 2, t + MS * 57);
        assert_eq!(pace.work, MS * 8, "sent 12 ms after the one before");
    }

    /// Goal: a batch has waited for the one before it only if it was answered more than twice as long after it as it
    /// was sent.
    #[test]
    fn an_answer_twice_as_long_after_the_one_before_is_no_sign_of_waiting() {
        let t = Moment::START;
        for (gap, has_waited) in [(MS * 20, false), (MS * 21, true)] {
            let mut pace = Pace {
                work: MS * 4,
                last: Some((t, t + MS * 15)),
                ..Pace::default()
            };
            pace.answered(t + MS * 10, 2, t + MS * 15 + gap);
            assert_eq!(pace.work > MS * 4, has_waited, "{pace:?}");
        }
    }
}
