//! When a batch smaller than those under way is worth sending: when the way to the database is long and its work short.
//!
//! While a batch is under way the next one gathers, and normally waits until it is as large: near the database that is
//! right, for commits follow one another there without a pause, and many small ones only cost more. Far from it the
//! database is idle most of the time that a batch is under way, and waiting only adds to the latency.
//! Two are enough there, one that the database works on and one that waits: every further one takes its events from
//! those two, and makes three commits of what could be two.
//! So two times are measured. *Work*: how long after the one before it the answer of a batch comes that was sent without
//! waiting for that one. It is never longer; and it is that long if the two were sent much closer together, for then the
//! second one waited in the database. *Distance*: how long a batch is under way beyond the work for it and for those that
//! were before it. Where processors are busy, answers are noticed late, by milliseconds, and a database near by looks
//! distant; so what is near is told by the shortest times of late.

use std::time::Duration;

use tokio::time::Instant;

/// A distance that is near whatever the work: the times that tell it from work are guesses of this size.
const NEAR: Duration = Duration::from_millis(1);
/// Batches under way that are many: a further one waits for the next answer, if that comes soon, and grows meanwhile.
const MANY: usize = 16;

/// What was measured, as moving averages.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    distance: Duration,
    /// The distance if answers were never noticed late: of late, the shortest. None before the first.
    shortest: Option<Duration>,
    work: Duration,
    /// When the last batch that was answered was sent, and when its answer came.
    last: Option<(Instant, Instant)>,
}

impl Pace {
    /// A batch sent at that time, as the last of so many under way, was stored.
    pub(crate) fn committed(&mut self, sent: Instant, queue: usize, now: Instant) {
        if let Some((last_sent, last_answer)) = self.last
            && sent < last_answer
        {
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
        let under_way = now.saturating_duration_since(sent);
        let distance = under_way.saturating_sub(self.work_of(queue));
        self.distance = (self.distance * 7 + distance) / 8;
        self.shortest = Some(match self.shortest {
            None => distance,
            // Falls fast and rises slowly, too.
            Some(shorter) if distance >= shorter => (shorter * 255 + distance) / 256,
            Some(longer) => (longer * 3 + distance) / 4,
        });
    }

    /// True if the database would be idle for a while before another batch, however small, arrives. `oldest` is how long
    /// the oldest of those under way has been so.
    pub(crate) fn leaves_room_for_one_more(&self, in_flight: usize, oldest: Duration) -> bool {
        let an_answer_comes_soon = oldest > self.distance / 2;
        !self.is_near()
            && self.work_of(in_flight + 1) < self.distance
            && (in_flight < MANY || !an_answer_comes_soon)
    }

    /// True if a batch is worked on for longer than it travels: then one that waits keeps the database busy. So it does
    /// where it travels for so short a time that nothing better can be told by measuring.
    pub(crate) fn is_near(&self) -> bool {
        self.shortest.unwrap_or_default() <= self.work.max(NEAR)
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

    /// A database that works so long on each batch, and is so far away; `count` batches are sent at once, again and again.
    fn after(work: Duration, distance: Duration, count: u32) -> Pace {
        let mut pace = Pace::default();
        let mut sent = Instant::now();
        for _ in 0..50 {
            for n in 1..=count {
                let queue = usize::try_from(n).expect("small");
                pace.committed(sent, queue, sent + distance + work * n);
            }
            sent += distance + work * (count + 1);
        }
        pace
    }

    #[test]
    fn far_away_small_batches_go_while_the_database_is_idle() {
        let pace = after(MS / 2, MS * 5, 3);
        assert!(pace.leaves_room_for_one_more(1, MS));
        assert!(pace.leaves_room_for_one_more(8, MS));
        assert!(!pace.leaves_room_for_one_more(10, MS));
    }

    #[test]
    fn many_small_batches_are_under_way_only_while_no_answer_comes_soon() {
        let pace = after(MS / 2, MS * 50, 3);
        assert!(pace.leaves_room_for_one_more(40, MS));
        assert!(!pace.leaves_room_for_one_more(40, MS * 40));
        assert!(pace.leaves_room_for_one_more(8, MS * 40));
    }

    #[test]
    fn near_the_database_they_wait_however_many_are_under_way() {
        for count in 2..10 {
            let pace = after(MS, MS / 5, count);
            for in_flight in 1..16 {
                assert!(!pace.leaves_room_for_one_more(in_flight, MS), "{pace:?}");
            }
        }
        // Very short work: what looks like distance is the time that a task takes to wake up.
        let pace = after(MS / 20, MS / 2, 3);
        assert!(!pace.leaves_room_for_one_more(1, MS), "{pace:?}");
    }

    #[test]
    fn a_database_near_by_does_not_move_away_when_answers_are_noticed_late() {
        let mut random = 7_u32;
        let mut late = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Up to 5 ms, mostly little.
            let share = f64::from(random >> 16) / 65_536.0;
            MS.mul_f64(5.0 * share * share)
        };
        for (way, is_near) in [(Duration::ZERO, true), (MS * 5, false)] {
            let mut pace = Pace::default();
            let start = Instant::now();
            // Two under way: each is sent when the one before the last is answered, and waits for the last.
            let (mut done, mut answers) = (start, [start, start]);
            for round in 0..2_000 {
                let sent = answers[0];
                done = done.max(sent + way / 2) + MS / 2;
                let answer = answers[1].max(done + way / 2 + late());
                pace.committed(sent, 2, answer);
                answers = [answers[1], answer];
                assert!(round < 50 || pace.is_near() == is_near, "{round}: {pace:?}");
            }
        }
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
    fn batches_that_were_sent_late_do_not_count_as_work() {
        let mut pace = Pace::default();
        let mut sent = Instant::now();
        // Three in a row, then nothing for a while, again and again.
        for n in 0..60 {
            sent += if n % 3 == 0 { MS * 4 } else { MS / 5 };
            pace.committed(sent, n % 3 + 1, sent + MS * 5);
        }
        assert!(pace.leaves_room_for_one_more(4, MS));
    }

    #[test]
    fn batches_that_come_in_bursts_do_not_count_the_time_between_as_work() {
        let mut pace = Pace::default();
        let start = Instant::now();
        // Sixteen at intervals, each sent when the one a round before was answered: half of a round is without any.
        for n in 0..=320 {
            let sent = start + MS * 50 * (n / 16) + MS * (n % 16);
            pace.committed(sent, 16, sent + MS * 50 + MS / 4);
        }
        assert!(pace.leaves_room_for_one_more(15, MS), "{pace:?}");
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
                start + burst + MS * 10 + MS * 7 * (nth + 1),
            );
        }
        assert!(pace.work > MS * 6, "{pace:?}");
    }

    #[test]
    fn large_batches_far_away_keep_the_database_busy() {
        let pace = after(MS * 7, MS * 10, 3);
        assert!(!pace.leaves_room_for_one_more(1, MS));
    }
}
