//! When a batch smaller than those under way is worth sending: when the way to the database is long and its work short.
//!
//! While a batch is under way the next one gathers, and normally waits until it is as large: near the database that is
//! right, for commits follow one another there without a pause, and many small ones only cost more. Far from it the
//! database is idle most of the time that a batch is under way, and waiting only adds to the latency.
//! Two are enough there, one that the database works on and one that waits: every further one takes its events from
//! those two, and makes three commits of what could be two.
//!
//! So two times are measured. *Work*: how long after the one before it the answer of a batch comes that was sent
//! without waiting for that one. It is never longer; and it is that long if the two were sent much closer together, for
//! then the second one waited in the database. *Round trip*: how long an answer takes where nothing queues. Under load
//! this time cannot be measured: what waits, in the database or for a busy processor here, looks like distance. So it
//! is measured by *probes*, empty batches that are sent after connecting while nothing else is under way, and by
//! whatever else was sent then. Of a connection the shortest of these counts: a database does not move away while the
//! connection stands, but answers are often noticed late.

use std::time::Duration;

use tokio::time::Instant;

/// A distance that is near whatever the work: the times that tell it from work are guesses of this size.
const NEAR: Duration = Duration::from_millis(1);
/// Batches under way that are many: a further one waits for the next answer, if that comes soon, and grows meanwhile.
const MANY: usize = 16;
/// Probes after connecting, while the answers are so quick that a delay of our own could be most of them.
const PROBES: u32 = 4;
/// An answer that takes longer than this shows a long distance for sure.
const FAR: Duration = Duration::from_millis(20);

/// What was measured on the present connection.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// The shortest time in which an answer came while nothing else was under way. None before the first.
    round_trip: Option<Duration>,
    /// Empty batches answered.
    probes: u32,
    work: Duration,
    /// When the last batch that was answered was sent, and when its answer came.
    last: Option<(Instant, Instant)>,
}

impl Pace {
    /// True if the round trip is not known well: an empty batch should be sent while nothing else is under way.
    pub(crate) fn wants_probe(&self) -> bool {
        self.probes < PROBES && self.round_trip.is_none_or(|trip| trip < FAR)
    }

    /// A batch of so many rows, sent at that time as the last of `queue` under way, was answered.
    pub(crate) fn committed(&mut self, sent: Instant, queue: usize, rows: usize, now: Instant) {
        self.measure_work(sent, now);
        self.last = Some((sent, now));
        self.probes = self.probes.saturating_add(u32::from(rows == 0));
        if queue == 1 {
            let trip = now.saturating_duration_since(sent);
            self.round_trip = Some(self.round_trip.map_or(trip, |known| known.min(trip)));
        }
    }

    fn measure_work(&mut self, sent: Instant, now: Instant) {
        let Some((last_sent, last_answer)) = self.last.filter(|(_, answer)| sent < *answer) else {
            return;
        };
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

    /// True if the database would be idle for a while before another batch, however small, arrives. `oldest` is how
    /// long the oldest of those under way has been so.
    pub(crate) fn database_would_be_idle(&self, in_flight: usize, oldest: Duration) -> bool {
        let an_answer_comes_soon = oldest > self.distance() / 2;
        !self.is_near()
            && self.work_of(in_flight + 1) < self.distance()
            && (in_flight < MANY || !an_answer_comes_soon)
    }

    /// True if a batch is worked on for longer than it travels: then one that waits keeps the database busy. So it does
    /// where it travels for so short a time that nothing better can be told by measuring.
    pub(crate) fn is_near(&self) -> bool {
        self.distance() <= self.work.max(NEAR)
    }

    fn distance(&self) -> Duration {
        self.round_trip.unwrap_or_default()
    }

    fn work_of(&self, batches: usize) -> Duration {
        self.work
            .saturating_mul(u32::try_from(batches).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A connection to a database so far away, of which nothing else is known.
    fn connected(distance: Duration) -> (Pace, Instant) {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        while pace.wants_probe() {
            pace.committed(now, 1, 0, now + distance);
            now += distance;
        }
        (pace, now)
    }

    /// A database that works so long on each batch, and is so far away; `count` batches are sent at once, again and
    /// again.
    fn after(work: Duration, distance: Duration, count: u32) -> Pace {
        let (mut pace, mut sent) = connected(distance);
        for _ in 0..50 {
            for n in 1..=count {
                let queue = usize::try_from(n).expect("small");
                pace.committed(sent, queue, 10, sent + distance + work * n);
            }
            sent += distance + work * (count + 1);
        }
        pace
    }

    #[test]
    fn far_away_small_batches_go_while_the_database_is_idle() {
        let pace = after(MS / 2, MS * 5, 3);
        assert!(pace.database_would_be_idle(1, MS));
        assert!(pace.database_would_be_idle(8, MS));
        assert!(!pace.database_would_be_idle(10, MS));
    }

    #[test]
    fn many_small_batches_are_under_way_only_while_no_answer_comes_soon() {
        let pace = after(MS / 2, MS * 50, 3);
        assert!(pace.database_would_be_idle(40, MS));
        assert!(!pace.database_would_be_idle(40, MS * 40));
        assert!(pace.database_would_be_idle(8, MS * 40));
    }

    #[test]
    fn near_the_database_they_wait_however_many_are_under_way() {
        for count in 2..10 {
            let pace = after(MS, MS / 5, count);
            for in_flight in 1..16 {
                assert!(!pace.database_would_be_idle(in_flight, MS), "{pace:?}");
            }
        }
        // Very short work: what looks like distance is the time that a task takes to wake up.
        let pace = after(MS / 20, MS / 2, 3);
        assert!(!pace.database_would_be_idle(1, MS), "{pace:?}");
    }

    /// Goal: however late answers are noticed under load, for however long, near stays near and far stays far.
    ///
    /// The distance was once taken from the time that batches were under way under load. On busy processors every
    /// answer is noticed milliseconds late, so a database near by looked distant, small batches were sent, the
    /// processors became busier with them, and it stayed so.
    #[test]
    fn a_database_near_by_does_not_move_away_when_answers_are_noticed_late() {
        for (way, is_near) in [(MS / 10, true), (MS * 5, false)] {
            let (mut pace, start) = connected(way);
            let (mut done, mut answers) = (start, [start, start]);
            // Two under way: each is sent when the one before the last is answered, and waits for the last.
            for round in 0..2_000 {
                let sent = answers[0];
                done = done.max(sent + way / 2) + MS / 2;
                let answer = answers[1].max(done + way / 2 + MS * 3);
                pace.committed(sent, 2, 100, answer);
                answers = [answers[1], answer];
                if round > 50 {
                    assert_eq!(pace.is_near(), is_near, "{round}: {pace:?}");
                }
            }
        }
    }

    /// Goal: a connection that is opened while the processors are busy is not taken for a long one for good.
    #[test]
    fn one_quick_answer_is_enough_to_be_near() {
        let (mut pace, now) = connected(MS * 8);
        assert!(!pace.is_near());
        pace.committed(now, 1, 5, now + MS / 2);
        assert!(pace.is_near());
    }

    #[test]
    fn near_is_where_the_work_takes_longer_than_the_way() {
        for count in 2..10 {
            assert!(after(MS, MS / 5, count).is_near());
        }
        assert!(!after(MS * 7, MS * 10, 3).is_near());
        assert!(!after(MS / 2, MS * 5, 3).is_near());
        assert!(after(MS / 10, MS / 2, 3).is_near());
        assert!(!after(MS / 10, MS * 2, 3).is_near());
        assert!(Pace::default().is_near(), "before anything is known");
    }

    #[test]
    fn probes_end_soon_and_sooner_far_away() {
        let (near, _) = connected(MS / 10);
        assert_eq!(near.probes, PROBES);
        let (far, _) = connected(FAR);
        assert_eq!(far.probes, 1);
    }

    #[test]
    fn batches_that_were_sent_late_do_not_count_as_work() {
        let (mut pace, mut sent) = connected(MS * 5);
        // Three in a row, then nothing for a while, again and again.
        for n in 0..60 {
            sent += if n % 3 == 0 { MS * 4 } else { MS / 5 };
            pace.committed(sent, n % 3 + 1, 10, sent + MS * 5);
        }
        assert!(pace.database_would_be_idle(4, MS));
    }

    #[test]
    fn batches_that_come_in_bursts_do_not_count_the_time_between_as_work() {
        let (mut pace, start) = connected(MS * 50);
        // Sixteen at intervals, each sent when the one a round before was answered: half of a round is without any.
        for n in 0..=320 {
            let sent = start + MS * 50 * (n / 16) + MS * (n % 16);
            pace.committed(sent, 16, 10, sent + MS * 50 + MS / 4);
        }
        assert!(pace.database_would_be_idle(15, MS), "{pace:?}");
    }

    #[test]
    fn work_that_grows_is_noticed_once_batches_are_sent_faster_than_answered() {
        let mut pace = after(MS / 4, MS * 10, 4);
        let start = Instant::now();
        for n in 0..400 {
            let (burst, nth) = (MS * 40 * (n / 4), n % 4);
            pace.committed(
                start + burst + MS * nth,
                4,
                10,
                start + burst + MS * 10 + MS * 7 * (nth + 1),
            );
        }
        assert!(pace.work > MS * 6, "{pace:?}");
    }

    #[test]
    fn large_batches_far_away_keep_the_database_busy() {
        let pace = after(MS * 7, MS * 10, 3);
        assert!(!pace.database_would_be_idle(1, MS));
    }

    /// Goal: a batch that is sent when the answer of the one before it comes has not waited for it: the time until its
    /// own answer is the way.
    #[test]
    fn a_batch_that_is_sent_on_an_answer_does_not_count_as_work() {
        let (mut pace, mut now) = connected(MS * 5);
        for _ in 0..10 {
            pace.committed(now, 1, 10, now + MS * 5);
            now += MS * 5;
        }
        assert_eq!(pace.work, Duration::ZERO);
    }

    /// Goal: one quick answer counts for much, one slow answer for little, and none if the batch was sent too late to
    /// have waited.
    #[test]
    fn work_falls_fast_and_rises_slowly() {
        let t = Instant::now();
        let mut pace = Pace {
            work: MS * 8,
            last: Some((t, t + MS * 10)),
            ..Pace::default()
        };
        pace.committed(t + MS, 2, 10, t + MS * 14);
        assert_eq!(pace.work, MS * 7, "4 ms after the one before");
        pace.committed(t + MS * 2, 2, 10, t + MS * 37);
        assert_eq!(pace.work, MS * 8, "23 ms after the one before");
        pace.committed(t + MS * 14, 2, 10, t + MS * 57);
        assert_eq!(pace.work, MS * 8, "sent 12 ms after the one before");
    }

    /// Goal: a batch has waited for the one before it only if it was answered more than twice as long after it as it
    /// was sent.
    #[test]
    fn an_answer_twice_as_long_after_the_one_before_is_no_sign_of_waiting() {
        let t = Instant::now();
        for (gap, has_waited) in [(MS * 20, false), (MS * 21, true)] {
            let mut pace = Pace {
                work: MS * 4,
                last: Some((t, t + MS * 15)),
                ..Pace::default()
            };
            pace.committed(t + MS * 10, 2, 10, t + MS * 15 + gap);
            assert_eq!(pace.work > MS * 4, has_waited, "{pace:?}");
        }
    }
}
