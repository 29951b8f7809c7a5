//! When a batch smaller than those under way is worth sending: when the way to the database is long and its work short.
//!
//! While a batch is under way the next one gathers, and normally waits until it is as large: near the database that is
//! right, for commits follow one another there without a pause, and many small ones only cost more. Far from it the
//! database is idle most of the time that a batch is under way, and waiting only adds to the latency.
//! So two times are measured: how long a batch is under way, and how long after the one before it the answer of a batch
//! comes that was sent without waiting for that one. The shorter ones of these are the time that the database itself
//! needs; the longer ones were sent later.

use std::time::Duration;

use tokio::time::Instant;

/// Batches under way at once near the database: enough to hide a round trip, few enough to lose little by a miss.
pub(crate) const NEAR_IN_FLIGHT_MAX: usize = 4;

/// What was measured, as moving averages.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// From sending a batch to its answer.
    under_way: Duration,
    /// From one answer to the next, when both batches were on their way at once: near the shortest.
    between: Duration,
    last_answer: Option<Instant>,
}

impl Pace {
    /// A batch sent at that time was stored.
    pub(crate) fn committed(&mut self, sent: Instant, now: Instant) {
        average(&mut self.under_way, now.saturating_duration_since(sent));
        if let Some(last) = self.last_answer.filter(|last| sent < *last) {
            let gap = now.saturating_duration_since(last);
            self.between = match self.between {
                Duration::ZERO => gap,
                // Falls fast and rises slowly.
                between if gap < between => (between * 3 + gap) / 4,
                between => (between * 15 + gap) / 16,
            };
        }
        self.last_answer = Some(now);
    }

    /// True if the database would be idle for part of the time that another batch, however small, is under way: for half
    /// of it at first; once more batches are under way than a near database is given, any of it.
    pub(crate) fn leaves_room_for_one_more(&self, in_flight: usize) -> bool {
        let batches = u32::try_from(in_flight + 1).unwrap_or(u32::MAX);
        let work = self.between.saturating_mul(batches);
        match in_flight {
            0..NEAR_IN_FLIGHT_MAX => work < self.under_way / 2,
            _ => work < self.under_way,
        }
    }
}

/// Moves an average an eighth of the way.
fn average(average: &mut Duration, value: Duration) {
    *average = if average.is_zero() {
        value
    } else {
        (*average * 7 + value) / 8
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Batches sent `apart` from each other, each answered `under_way` later.
    fn after(apart: Duration, under_way: Duration) -> Pace {
        let mut pace = Pace::default();
        let start = Instant::now();
        for n in 0..50 {
            let sent = start + apart * n;
            pace.committed(sent, sent + under_way);
        }
        pace
    }

    #[test]
    fn far_away_small_batches_go_while_the_database_is_idle() {
        let pace = after(MS / 2, MS * 6);
        assert!(pace.leaves_room_for_one_more(1));
        assert!(pace.leaves_room_for_one_more(3));
        assert!(pace.leaves_room_for_one_more(10));
        assert!(!pace.leaves_room_for_one_more(11));
    }

    #[test]
    fn batches_that_were_sent_late_do_not_count_as_work() {
        let mut pace = Pace::default();
        let start = Instant::now();
        let mut sent = start;
        // Three at once, then nothing for a while, again and again.
        for n in 0..60 {
            sent += if n % 3 == 0 { MS * 4 } else { MS / 5 };
            pace.committed(sent, sent + MS * 5);
        }
        assert!(pace.leaves_room_for_one_more(2));
    }

    #[test]
    fn near_the_database_they_wait() {
        // Two on their way at once: each answer comes one commit after the one before it.
        let pace = after(MS, MS * 2);
        assert!(!pace.leaves_room_for_one_more(1));
        assert!(!pace.leaves_room_for_one_more(4));
    }

    #[test]
    fn large_batches_far_away_keep_the_database_busy() {
        let pace = after(MS * 7, MS * 20);
        assert!(!pace.leaves_room_for_one_more(1));
    }
}
