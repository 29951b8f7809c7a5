//! How far the database is, and how long it works on a batch (`gesta_core::pace` says what is measured and why).
//! *Probes* are empty batches that are sent after connecting while nothing else is under way, one in any case before
//! the first batch, so that the distance is measured where nothing queues.

use std::time::Duration;

use gesta_core::Moment;

use super::connected::Connected;

/// The number of probes after connecting, while the answers are so quick that a delay of this process could be most of
/// them.
const PROBES: u32 = 4;
/// The time of an answer from which on the distance is surely long.
const FAR: Duration = Duration::from_millis(20);

/// What was measured on the present connection.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    pace: gesta_core::pace::Pace,
    /// The number of empty batches that were answered.
    probes: u32,
    is_gathered: bool,
}

impl Pace {
    /// Begins to measure a connection of which nothing is known yet.
    pub(crate) fn on(connected: Connected) -> Self {
        Self {
            is_gathered: connected.is_gathered,
            ..Self::default()
        }
    }

    /// Returns whether the backend decides when batches leave, and puts batches of several logs together.
    pub(crate) fn is_gathered(&self) -> bool {
        self.is_gathered
    }

    /// Returns whether the round trip is not known well, so that an empty batch should be sent while nothing else is
    /// under way.
    pub(crate) fn wants_probe(&self) -> bool {
        self.probes < PROBES && self.pace.round_trip().is_none_or(|trip| trip < FAR)
    }

    /// Notes that a batch of `rows` rows was answered. The batch was sent at `sent`, as the last of `queue` batches
    /// under way.
    pub(crate) fn committed(&mut self, sent: Moment, queue: usize, rows: usize, now: Moment) {
        self.pace.answered(sent, queue, now);
        self.probes = self.probes.saturating_add(u32::from(rows == 0));
    }

    /// Returns what [`gesta_core::pace::Pace::database_would_be_idle`] says.
    pub(crate) fn database_would_be_idle(&self, in_flight: usize, oldest: Duration) -> bool {
        self.pace.database_would_be_idle(in_flight, oldest)
    }

    /// Returns what [`gesta_core::pace::Pace::is_near`] says.
    pub(crate) fn is_near(&self) -> bool {
        self.pace.is_near()
    }

    /// Returns what [`gesta_core::pace::Pace::round_trip`] says.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.pace.round_trip()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A connection to a database so far away, of which nothing else is known.
    fn connected(distance: Duration) -> (Pace, Moment) {
        let mut pace = Pace::default();
        let mut now = Moment::START;
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
        let start = Moment::START;
        for n in 0..400 {
            let (burst, nth) = (MS * 40 * (n / 4), n % 4);
            pace.committed(
                start + burst + MS * nth,
                4,
                10,
                start + burst + MS * 10 + MS * 7 * (nth + 1),
            );
        }
        assert!(pace.pace.work() > MS * 6, "{pace:?}");
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
        assert_eq!(pace.pace.work(), Duration::ZERO);
    }
}
