//! Giving way: what processes that append to the same log do for each other.
//!
//! Why: a batch misses whenever another process has appended since the row that the batch follows. The process with the
//! shorter way to the database would win every time, and the others would never get anything stored. So a process whose
//! batches miss asks the others to give way, and says for how long and how long it has waited. A process that hears
//! this, and has not waited longer itself, sends nothing new until the asking process says that it has committed, or
//! until the time is over.
//!
//! Invariants: a process gives way for at most [`LONGEST`] upon one request. In the long run it can send for at least
//! half of the time that it has something to send, whatever messages come: after giving way it goes on for as long. It
//! gives way again earlier by the time that the asking process has been waiting, at most [`EARLIER_MAX`], so that all
//! give way to a process that waits for long. Safety rests on the chained insert alone: a message that is lost, late,
//! repeated or invented costs a batch that misses, or some of that time.

use std::time::Duration;

use gesta_core::backend::Signal;
use gesta_core::{LogId, Moment};
use uuid::Uuid;

/// The longest time for which a process gives way upon a request, and for which a process may ask.
pub(crate) const LONGEST: Duration = Duration::from_millis(500);
/// The longest time by which a process gives way again before it is due to.
pub(crate) const EARLIER_MAX: Duration = Duration::from_secs(1);
/// The factor by which a process multiplies the time that its last batch took, to know for how long it must ask: for
/// reading the log, for looking up streams, and for the batch.
const TRIPS: u32 = 3;
/// The time for which a process asks in addition. In it the others finish what they have in flight, and what they have
/// stored is read.
const MARGIN: Duration = Duration::from_millis(50);
/// The number of misses in sequence before a process asks, if it is nearer than [`FAR`].
const MISSES_BEFORE_ASKING: u32 = 2;
/// The distance from the database from which on a process asks after its first miss, because the next batch would miss
/// too.
const FAR: Duration = Duration::from_millis(5);
/// The time after asking at which such a distant process reads the log. What it would read at once is outdated by the
/// batches that others have in flight, and the process would know only a round trip later.
const READ_AFTER: Duration = Duration::from_millis(10);
/// The longest time after which a process that still waits asks again.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(1);

/// What one process knows about giving way in one log.
#[derive(Debug)]
pub(crate) struct GivingWay {
    me: Uuid,
    log: LogId,
    /// The number of batches that have missed since the last commit.
    misses: u32,
    /// The time since which the process has stored nothing although it wanted to, or since which it gives way.
    waits_since: Option<Moment>,
    /// The time at which the process last asked, if it has not committed since.
    asked: Option<Moment>,
    gives_way: Option<GivesWay>,
    /// The time at which the process has gone on for as long as it gave way.
    is_even_at: Moment,
}

#[derive(Debug, Clone, Copy)]
struct GivesWay {
    /// The process to which this one gives way.
    to: Uuid,
    since: Moment,
    until: Moment,
}

/// What is to be done after a miss.
#[derive(Debug, PartialEq)]
pub(crate) struct Ask {
    /// The message that is sent to the others.
    pub(crate) signal: Signal,
    /// The time after which the log is read; `None` if it is read at once.
    pub(crate) read_after: Option<Duration>,
}

impl GivingWay {
    pub(crate) fn new(log: LogId, now: Moment) -> Self {
        Self {
            me: Uuid::new_v4(),
            log,
            misses: 0,
            waits_since: None,
            asked: None,
            gives_way: None,
            is_even_at: now,
        }
    }

    /// Notes that a batch of this process, which was sent at `sent`, has missed. `distance` is the round trip to the
    /// database, if it is known; a process whose batches have all missed does not know it. Returns what must be asked
    /// of the others, if a request is due.
    pub(crate) fn missed(
        &mut self,
        sent: Moment,
        distance: Option<Duration>,
        now: Moment,
    ) -> Option<Ask> {
        self.misses += 1;
        let since = *self.waits_since.get_or_insert(sent);
        let is_due = self.asked.is_none_or(|asked| {
            // Ever more slowly, so that whoever did not give way the first time may.
            let pause = asked.since(since) / 2;
            now.since(asked) >= pause.min(ASK_AGAIN_MAX)
        });
        let took = now.since(sent);
        let is_far = distance.unwrap_or(took) >= FAR;
        let has_missed_enough = is_far || self.misses >= MISSES_BEFORE_ASKING;
        if self.gives_way(true, now) || !has_missed_enough || !is_due {
            return None;
        }
        self.asked = Some(now);
        let needed = (took * TRIPS + MARGIN).min(LONGEST);
        Some(Ask {
            signal: self.signal(needed, now.since(since)),
            read_after: is_far.then_some(READ_AFTER),
        })
    }

    /// Notes that a batch of this process has committed. If the process had asked, returns the message that the others
    /// may go on.
    pub(crate) fn committed(&mut self, now: Moment) -> Option<Signal> {
        self.misses = 0;
        // If it gives way, the batch was sent before, and the waiting begins now.
        self.waits_since = self.gives_way.map(|_| now);
        self.asked.take()?;
        Some(self.signal(Duration::ZERO, Duration::ZERO))
    }

    /// Takes a message of another process. `has_work` says whether there is something to send.
    pub(crate) fn heard(&mut self, signal: Signal, has_work: bool, now: Moment) {
        let Signal::GiveWay {
            log,
            by,
            needed,
            waited,
        } = signal
        else {
            return;
        };
        if log != self.log || by == self.me {
            return;
        }
        // A time that is over ends first.
        self.gives_way(has_work, now);
        if needed.is_zero() {
            if self.gives_way.is_some_and(|way| way.to == by) {
                self.go_on(has_work, now);
            }
            return;
        }
        let is_even_in = self.is_even_at.since(now);
        let is_due = self.gives_way.is_some() || is_even_in <= waited.min(EARLIER_MAX);
        let has_waited = |since| now.since(since);
        if !is_due || waited <= self.waits_since.map_or(Duration::ZERO, has_waited) {
            return;
        }
        self.waits_since.get_or_insert(now);
        let present = self.gives_way;
        let since = present.map_or(now, |present| present.since);
        let until = (now + needed.min(LONGEST)).min(since + LONGEST);
        if present.is_none_or(|present| present.until < until) {
            let to = by;
            self.gives_way = Some(GivesWay { to, since, until });
        }
    }

    /// Returns whether nothing may be sent now. `has_work` says whether there is something to send.
    pub(crate) fn gives_way(&mut self, has_work: bool, now: Moment) -> bool {
        if let Some(way) = self.gives_way
            && way.until <= now
        {
            self.go_on(has_work, way.until);
        }
        self.gives_way.is_some()
    }

    /// Returns the time at which [`gives_way`](Self::gives_way) changes if nothing is heard before.
    pub(crate) fn wake_at(&self) -> Option<Moment> {
        self.gives_way.map(|way| way.until)
    }

    fn go_on(&mut self, has_work: bool, at: Moment) {
        let Some(way) = self.gives_way.take() else {
            return;
        };
        if has_work {
            let gave_way = at.since(way.since);
            self.is_even_at = self.is_even_at.max(way.since) + gave_way * 2;
        } else {
            // It has lost nothing.
            self.waits_since = None;
        }
    }

    fn signal(&self, needed: Duration, waited: Duration) -> Signal {
        Signal::GiveWay {
            log: self.log,
            by: self.me,
            needed,
            waited,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: LogId = LogId(0);
    const MS: Duration = Duration::from_millis(1);
    const NEAR: Option<Duration> = Some(MS);

    /// A request of another process.
    fn ask(by: u128, needed: Duration, waited: Duration) -> Signal {
        Signal::GiveWay {
            log: LOG,
            by: Uuid::from_u128(by),
            needed,
            waited,
        }
    }

    fn go_on(by: u128) -> Signal {
        ask(by, Duration::ZERO, Duration::ZERO)
    }

    fn giving_way() -> (GivingWay, Moment) {
        let now = Moment::START;
        (GivingWay::new(LOG, now), now)
    }

    /// For how long this asks the others to give way, and how long it has waited.
    fn said(ask: Option<Ask>) -> Option<(Duration, Duration)> {
        match ask?.signal {
            Signal::GiveWay { needed, waited, .. } => Some((needed, waited)),
            _ => None,
        }
    }

    #[test]
    fn it_asks_after_misses_and_ever_more_slowly() {
        let (mut c, t) = giving_way();
        assert_eq!(c.missed(t, NEAR, t + MS), None);
        let first = c.missed(t + MS * 2, NEAR, t + MS * 4);
        assert_eq!(said(first), Some((MS * 6 + MARGIN, MS * 4)));
        assert_eq!(c.missed(t + MS * 4, NEAR, t + MS * 5), None);
        let second = c.missed(t + MS * 5, NEAR, t + MS * 6);
        assert_eq!(said(second), Some((MS * 3 + MARGIN, MS * 6)));
        assert_eq!(c.missed(t + MS * 7, NEAR, t + MS * 8), None);
        assert!(c.missed(t + MS * 8, NEAR, t + MS * 9).is_some());
        // At last once a second.
        let late = t + ASK_AGAIN_MAX * 100;
        assert!(c.missed(late, NEAR, late).is_some());
        let later = late + ASK_AGAIN_MAX;
        assert_eq!(c.missed(later, NEAR, later - MS), None);
        assert!(c.missed(later, NEAR, later).is_some());
        // A commit ends it: the others are told, once, and everything begins anew.
        let go_on = c.signal(Duration::ZERO, Duration::ZERO);
        assert_eq!(c.committed(later), Some(go_on));
        assert_eq!(c.committed(later), None);
        assert_eq!(c.missed(later, NEAR, later), None);
    }

    #[test]
    fn far_away_it_asks_at_once_and_for_longer() {
        let (mut c, t) = giving_way();
        let asked = c.missed(t, Some(FAR), t + MS * 30).expect("asks");
        assert_eq!(asked.read_after, Some(READ_AFTER));
        assert_eq!(said(Some(asked)), Some((MS * 90 + MARGIN, MS * 30)));
        c.committed(t);
        let farther = c.missed(t, Some(FAR), t + MS * 400);
        assert_eq!(said(farther), Some((LONGEST, MS * 400)));
        c.committed(t);
        assert!(c.missed(t, None, t + MS * 30).is_some(), "seems to be far");
        c.committed(t);
        assert_eq!(
            c.missed(t, NEAR, t + MS * 30),
            None,
            "the database was busy"
        );
    }

    #[test]
    fn it_gives_way_until_it_is_told_or_the_time_is_over() {
        let (mut c, t) = giving_way();
        assert!(!c.gives_way(true, t));
        assert_eq!(c.wake_at(), None);
        c.heard(ask(1, MS * 60, MS), true, t);
        assert!(c.gives_way(true, t + MS * 59));
        assert_eq!(c.wake_at(), Some(t + MS * 60));
        assert!(!c.gives_way(true, t + MS * 60));
        assert_eq!(c.wake_at(), None);

        let (mut c, t) = giving_way();
        c.heard(ask(1, MS * 60, MS), true, t);
        c.heard(go_on(2), true, t + MS);
        assert!(c.gives_way(true, t + MS), "another process has committed");
        c.heard(go_on(1), true, t + MS * 2);
        assert!(!c.gives_way(true, t + MS * 2));
    }

    /// Goal: it goes on for as long as it gave way before it does so again; earlier only for one that has waited.
    #[test]
    fn it_does_not_give_way_again_at_once() {
        let (mut c, t) = giving_way();
        c.heard(ask(1, MS * 60, MS), true, t);
        c.heard(go_on(1), true, t + MS * 20);
        c.committed(t + MS * 21);
        c.heard(ask(2, MS * 60, MS * 5), true, t + MS * 34);
        assert!(!c.gives_way(true, t + MS * 34));
        c.heard(ask(2, MS * 60, MS * 5), true, t + MS * 35);
        assert!(c.gives_way(true, t + MS * 35));

        let (mut c, t) = giving_way();
        for (second, gives_way) in [(0, true), (1, true), (2, true), (3, false), (4, true)] {
            let now = t + LONGEST * second;
            c.heard(ask(1, LONGEST, LONGEST * 100), true, now);
            assert_eq!(c.gives_way(true, now), gives_way, "{second}");
        }
    }

    /// Goal: who had nothing to send has lost nothing.
    #[test]
    fn without_work_it_gives_way_again_at_once() {
        let (mut c, t) = giving_way();
        c.heard(ask(1, MS * 60, MS), false, t);
        assert!(!c.gives_way(false, t + MS * 60));
        c.heard(ask(1, MS * 60, MS), false, t + MS * 60);
        assert!(c.gives_way(true, t + MS * 60));
        assert_eq!(
            c.missed(t, Some(FAR), t + MS * 61),
            None,
            "asks for nothing now"
        );
    }

    /// Goal: of several that wait, the one that has waited for longest gives way to nobody, and all others to it.
    #[test]
    fn who_has_waited_longer_goes_first() {
        let (mut c, t) = giving_way();
        c.missed(t, NEAR, t + MS);
        c.missed(t, NEAR, t + MS * 10);
        c.heard(ask(1, MS * 60, MS * 10), true, t + MS * 10);
        assert!(
            !c.gives_way(true, t + MS * 10),
            "both wait for as long: both try"
        );
        c.heard(ask(1, MS * 60, MS * 11), true, t + MS * 10);
        assert!(c.gives_way(true, t + MS * 10));
        // The time in which it gives way counts as waiting, also if a batch sent before commits meanwhile.
        c.committed(t + MS * 20);
        c.heard(ask(2, MS * 100, MS * 9), true, t + MS * 30);
        assert_eq!(c.wake_at(), Some(t + MS * 70));
        c.heard(ask(2, MS * 100, MS * 11), true, t + MS * 30);
        assert_eq!(c.wake_at(), Some(t + MS * 130), "now to the second one");
        c.heard(go_on(1), true, t + MS * 40);
        assert!(c.gives_way(true, t + MS * 40));
        c.heard(go_on(2), true, t + MS * 50);
        assert!(!c.gives_way(true, t + MS * 50));
    }

    /// Goal: whatever is said, it gives way for half of the time in the long run, and never for long in a row.
    #[test]
    fn messages_that_are_made_up_take_half_of_the_time_at_most() {
        let (mut c, start) = giving_way();
        let (mut now, mut sends, mut in_a_row, mut longest) = (start, 0, 0, 0);
        for by in 0..10_000 {
            now += MS;
            c.heard(ask(by % 3, Duration::MAX, Duration::MAX), true, now);
            if c.gives_way(true, now) {
                in_a_row += 1;
                longest = longest.max(in_a_row);
            } else {
                c.committed(now);
                (sends, in_a_row) = (sends + 1, 0);
            }
        }
        assert!(sends >= 4_000, "{sends}");
        assert!(MS * longest <= EARLIER_MAX + LONGEST, "{longest}");
    }

    /// Goal: what is said about another log, and what this process has said itself, changes nothing.
    #[test]
    fn messages_about_other_logs_and_of_its_own_do_not_count() {
        let (mut c, t) = giving_way();
        let me = c.me.as_u128();
        c.heard(ask(me, MS * 60, MS), true, t);
        let other = Signal::GiveWay {
            log: LogId(1),
            by: Uuid::from_u128(1),
            needed: MS * 60,
            waited: MS,
        };
        c.heard(other, true, t);
        c.heard(Signal::Interrupted, true, t);
        c.heard(go_on(1), true, t);
        assert!(!c.gives_way(true, t));
    }
}
