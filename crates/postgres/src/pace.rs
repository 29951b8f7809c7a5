//! How far the database is, and how long it works on a statement: when a small statement is worth sending although
//! others are under way.
//!
//! The pipeline of each log measures the same for its batches (`gesta-append`, `pace`, which says why so), but cannot
//! see the statements of the other logs on a connection that several share; so they are measured here once more, for all
//! together. *Round trip*: the shortest time of an answer while nothing else was under way; the pipelines see to that
//! by empty batches after connecting. *Work*: how long after the one before it the answer of a statement comes that was
//! sent without waiting for that one. It is never longer; and it is that long if the two were sent much closer together.
//! Pure: the clock is passed in.

use std::time::Duration;

use tokio::time::Instant;

/// A distance that is near whatever the work: the times that tell it from work are guesses of this size.
const NEAR: Duration = Duration::from_millis(1);
/// Statements under way that are many: a further one waits for the next answer, if that comes soon.
const MANY: usize = 16;

/// What was measured on a connection.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    round_trip: Option<Duration>,
    work: Duration,
    /// When the last statement that was answered was sent, and when its answer came.
    last: Option<(Instant, Instant)>,
}

impl Pace {
    /// A statement, sent at that time as the last of `queue` under way, was answered.
    pub(crate) fn answered(&mut self, sent: Instant, queue: usize, now: Instant) {
        if let Some((last_sent, last_answer)) = self.last.filter(|(_, answer)| sent < *answer) {
            let gap = now.saturating_duration_since(last_answer);
            let waited = gap > sent.saturating_duration_since(last_sent) * 2;
            self.work = match self.work {
                Duration::ZERO => gap,
                // Falls fast and rises slowly.
                work if gap < work => (work * 3 + gap) / 4,
                work if waited => (work * 15 + gap) / 16,
                work => work,
            };
        }
        self.last = Some((sent, now));
        if queue == 1 {
            let trip = now.saturating_duration_since(sent);
            self.round_trip = Some(self.round_trip.map_or(trip, |known| known.min(trip)));
        }
    }

    /// True if the database would be idle for a while before another statement, however small, arrives. `oldest` is how
    /// long the oldest of those under way has been so.
    pub(crate) fn database_would_be_idle(&self, under_way: usize, oldest: Duration) -> bool {
        let an_answer_comes_soon = oldest > self.distance() / 2;
        let statements = u32::try_from(under_way + 1).unwrap_or(u32::MAX);
        !self.is_near()
            && self.work.saturating_mul(statements) < self.distance()
            && (under_way < MANY || !an_answer_comes_soon)
    }

    /// True if a statement is worked on for longer than it travels, or before anything is known.
    pub(crate) fn is_near(&self) -> bool {
        self.distance() <= self.work.max(NEAR)
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
        let (mut pace, mut sent) = (Pace::default(), Instant::now());
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
}
