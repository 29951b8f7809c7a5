//! Write turns: processes that append to the same log take turns.
//!
//! Why: a batch misses whenever another process has appended since. The process with the shorter way to the database
//! would win every time and starve the others. So a process that missed asks for a turn; the one that appends finishes
//! its turn, stops, and hands over. Everything here is a courtesy: safety rests on the chained insert alone, signals
//! may be lost, and a process that waits and is not handed the turn goes on after [`GRANT_MAX`].

use std::collections::VecDeque;
use std::time::Duration;

use gesta_core::LogId;
use gesta_core::backend::Signal;
use tokio::time::Instant;
use uuid::Uuid;

/// Shortest turn of a process before it hands over, from its first commit on.
const TURN_MIN: Duration = Duration::from_millis(25);
/// Longest turn of a process, from its first commit on.
const TURN_MAX: Duration = Duration::from_millis(250);
/// A turn lasts this many commits: one that is far from the database needs longer for the same work.
const TURN_COMMITS: u32 = 8;
/// A turn also lasts for this part of the time that the process had to wait, divided by the turns of others: beside one
/// that is far away and needs long, one that is near would have next to nothing otherwise. Less than one, or each would
/// add to the other's.
const TURN_OF_WAIT: u32 = 2;
/// A turn without any commit ends after this: reading what others have appended, loading streams and the
/// first commit take several round trips.
const FIRST_COMMIT_MAX: Duration = Duration::from_millis(500);
/// How long a process waits for its turn before it tries regardless: longer than a turn of one that is 100 ms away.
const GRANT_MAX: Duration = Duration::from_secs(1);
/// Misses in a row before a process asks for a turn, unless its batches are in flight for longer than [`FAR`].
const MISSES_BEFORE_ASKING: u32 = 2;
/// If batches are in flight for longer than this, a process asks after the first miss: the next batch is likely to miss
/// too.
const FAR: Duration = Duration::from_millis(5);
/// Time between two requests of a process that still waits.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// A process without work for this long hands its turn over before it ends. Not at once: callers that were just
/// answered come back with their next append.
const IDLE: Duration = Duration::from_millis(3);

/// State of one process for one log.
#[derive(Debug)]
pub(crate) struct Turns {
    me: Uuid,
    log: LogId,
    misses: u32,
    asked: Option<Instant>,
    run_began: Instant,
    /// The first commit of this turn.
    first_commit: Option<Instant>,
    /// Since when it waits for its turn, or did so before this one.
    waits_since: Option<Instant>,
    /// How long it had to wait for this turn.
    waited: Duration,
    /// Turns that others had while it waited.
    others: u32,
    /// How long a commit takes, smoothed.
    commit: Duration,
    /// The last time that a batch of this process was stored.
    active: Instant,
    requests: VecDeque<Uuid>,
    yielding_until: Option<Instant>,
}

impl Turns {
    pub(crate) fn new(log: LogId, now: Instant) -> Self {
        Self {
            me: Uuid::new_v4(),
            log,
            misses: 0,
            asked: None,
            run_began: now,
            first_commit: None,
            waits_since: None,
            waited: Duration::ZERO,
            others: 0,
            commit: Duration::ZERO,
            active: now,
            requests: VecDeque::new(),
            yielding_until: None,
        }
    }

    /// The time until which nothing may be sent, because another process has the turn; `None` if this one may send.
    pub(crate) fn yielding_until(&mut self, now: Instant) -> Option<Instant> {
        if self.yielding_until.is_some_and(|until| until <= now) {
            self.begin_run(now);
        }
        self.yielding_until
    }

    /// When to look again if nothing happens until then. It is never a time at which nothing can have changed. `busy`:
    /// an answer of the database will come anyway.
    pub(crate) fn wake_at(&self, busy: bool, has_work: bool) -> Option<Instant> {
        let stop = match has_work {
            true => self.turn_ends(),
            false => self.turn_ends().min(self.active + IDLE),
        };
        let stop = (!self.requests.is_empty() && !busy).then_some(stop);
        self.yielding_until.or(stop)
    }

    /// A batch of ours, sent at that time, was stored.
    pub(crate) fn committed(&mut self, sent: Instant, now: Instant) {
        self.commit = (self.commit * 7 + now.duration_since(sent)) / 8;
        self.misses = 0;
        self.asked = None;
        self.active = now;
        self.waits_since = None;
        self.first_commit.get_or_insert(now);
    }

    /// A batch of ours, sent at that time, missed. May ask for a turn.
    pub(crate) fn missed(&mut self, sent: Instant, now: Instant) -> Option<Signal> {
        self.misses += 1;
        let due = self
            .asked
            .is_none_or(|asked| now.duration_since(asked) >= ASK_AGAIN);
        let is_far = now.duration_since(sent) >= FAR;
        if self.misses < MISSES_BEFORE_ASKING && !is_far || !due {
            return None;
        }
        Some(self.request(now))
    }

    /// True if our time is up and another process waits: send nothing more, and [`grant`](Self::grant) when nothing is
    /// in flight.
    pub(crate) fn should_stop(&self, now: Instant, has_work: bool) -> bool {
        let is_over = now >= self.turn_ends();
        let is_idle = !has_work && now.duration_since(self.active) >= IDLE;
        !self.requests.is_empty() && (is_over || is_idle)
    }

    fn turn_ends(&self) -> Instant {
        match self.first_commit {
            Some(first) => first + self.length(),
            None => self.run_began + FIRST_COMMIT_MAX,
        }
    }

    fn length(&self) -> Duration {
        (self.commit * TURN_COMMITS)
            .max(self.waited / (TURN_OF_WAIT * self.others.max(1)))
            .clamp(TURN_MIN, TURN_MAX)
    }

    /// Hands the turn over to the next process.
    pub(crate) fn grant(&mut self, now: Instant, has_work: bool) -> Option<Signal> {
        let next = self.requests.pop_front()?;
        self.yielding_until = Some(now + GRANT_MAX);
        self.waits_since = has_work.then_some(now);
        self.others = 1;
        Some(Signal::TurnGranted {
            log: self.log,
            to: next,
        })
    }

    /// While another process has the turn and we have work: the request for the turn after it. Once, unless it seems to
    /// be lost.
    pub(crate) fn ask_while_yielding(&mut self, now: Instant) -> Option<Signal> {
        let is_asked = self
            .asked
            .is_some_and(|asked| now.duration_since(asked) < GRANT_MAX);
        if self.yielding_until.is_none() || is_asked {
            return None;
        }
        Some(self.request(now))
    }

    /// Takes a message. Returns true if it is our turn now: others have appended, look before sending.
    pub(crate) fn heard(&mut self, signal: Signal, now: Instant) -> bool {
        match signal {
            Signal::TurnRequested { log, by } if log == self.log && by != self.me => {
                if !self.requests.contains(&by) {
                    self.requests.push_back(by);
                }
                false
            }
            Signal::TurnGranted { log, to } if log == self.log && to == self.me => {
                self.begin_run(now);
                true
            }
            Signal::TurnGranted { log, to } if log == self.log => {
                // Another process goes first: this one sends nothing during that turn.
                self.requests.retain(|waiting| *waiting != to);
                if self.asked.is_some() {
                    self.yielding_until = Some(now + GRANT_MAX);
                    self.others += 1;
                }
                false
            }
            // The request may be among what was lost.
            Signal::Interrupted => {
                self.asked = None;
                false
            }
            _ => false,
        }
    }

    /// Begins a turn of this process: nobody else has it.
    pub(crate) fn begin_run(&mut self, now: Instant) {
        self.yielding_until = None;
        self.run_began = now;
        self.first_commit = None;
        self.waited = self
            .waits_since
            .map_or(Duration::ZERO, |since| now.duration_since(since));
        self.active = now;
        self.misses = 0;
        self.asked = None;
    }

    fn request(&mut self, now: Instant) -> Signal {
        self.asked = Some(now);
        if self.waits_since.is_none() {
            self.waits_since = Some(now);
            self.others = 0;
        }
        Signal::TurnRequested {
            log: self.log,
            by: self.me,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: LogId = LogId(0);

    #[test]
    fn asks_after_misses_but_not_all_the_time() {
        let t = Instant::now();
        let mut turns = Turns::new(LOG, t);
        assert_eq!(turns.missed(t, t), None);
        assert!(matches!(
            turns.missed(t, t),
            Some(Signal::TurnRequested { .. })
        ));
        assert_eq!(turns.missed(t, t), None);
        assert!(turns.missed(t + ASK_AGAIN, t + ASK_AGAIN).is_some());
        turns.committed(t, t);
        assert_eq!(turns.missed(t + ASK_AGAIN * 2, t + ASK_AGAIN * 2), None);
        turns.committed(t, t);
        assert!(turns.missed(t, t + FAR).is_some(), "far away at once");
    }

    fn asks(turns: &mut Turns, t: Instant) -> Signal {
        turns.missed(t, t);
        turns.missed(t, t).expect("asks")
    }

    /// Goal: two processes with work alternate, turn by turn.
    #[test]
    fn the_turn_goes_there_and_back() {
        let t = Instant::now();
        let (mut a, mut b) = (Turns::new(LOG, t), Turns::new(LOG, t));
        a.committed(t, t);
        let ask = asks(&mut b, t);
        a.heard(ask, t);
        assert!(!a.should_stop(t, true), "a finishes its turn");
        let t = t + TURN_MIN;
        assert!(a.should_stop(t, true));
        let granted = a.grant(t, true).expect("b waits");
        assert!(a.yielding_until(t).is_some());
        assert!(b.heard(granted, t));
        let ask = a.ask_while_yielding(t).expect("has work");
        assert_eq!(a.ask_while_yielding(t), None, "once");
        b.heard(ask, t);
        b.committed(t, t);
        assert!(!b.should_stop(t, true));
        let t = t + TURN_MIN;
        assert!(b.should_stop(t, true));
        let granted = b.grant(t, true).expect("a waits");
        assert!(a.heard(granted, t));
        assert!(a.yielding_until(t).is_none());
    }

    /// Goal: far from the database the first commit takes longer than a turn lasts. The turn counts from there.
    #[test]
    fn a_turn_begins_with_its_first_commit() {
        let t = Instant::now();
        let mut turns = Turns::new(LOG, t);
        let other = Uuid::new_v4();
        turns.heard(
            Signal::TurnRequested {
                log: LOG,
                by: other,
            },
            t,
        );
        let first = t + TURN_MIN * 5;
        assert!(!turns.should_stop(first, true));
        turns.committed(first, first);
        assert!(!turns.should_stop(first, true));
        assert!(turns.should_stop(first + TURN_MIN, true));
    }

    #[test]
    fn a_turn_without_a_commit_ends_before_the_others_stop_waiting() {
        let t = Instant::now();
        let (mut a, mut b) = (Turns::new(LOG, t), Turns::new(LOG, t));
        let ask = asks(&mut b, t);
        a.heard(ask, t);
        assert!(a.should_stop(t + FIRST_COMMIT_MAX, true));
        const { assert!(FIRST_COMMIT_MAX.as_millis() < GRANT_MAX.as_millis()) }
    }

    /// Lets `from` finish its turn, hands it to `to`, which commits `way` later; returns when.
    fn hand_over(from: &mut Turns, to: &mut Turns, way: Duration) -> Instant {
        let ask = match to.ask_while_yielding(from.turn_ends()) {
            Some(ask) => ask,
            None => asks(to, from.turn_ends()),
        };
        from.heard(ask, from.turn_ends());
        let ends = from.turn_ends();
        assert!(from.should_stop(ends, true));
        let granted = from.grant(ends, true).expect("the other waits");
        assert!(to.heard(granted, ends + way));
        to.committed(ends + way, ends + way);
        ends + way
    }

    /// Goal: beside a process whose turns are long, one that is near is not left with the shortest turns; and what two
    /// that are near wait for each other does not add up.
    #[test]
    fn who_waits_long_goes_on_for_longer() {
        let near = Duration::from_millis(3);
        let t = Instant::now();
        let (mut a, mut b) = (Turns::new(LOG, t), Turns::new(LOG, t));
        a.committed(t, t);
        for _ in 0..20 {
            hand_over(&mut a, &mut b, near);
            hand_over(&mut b, &mut a, near);
        }
        assert_eq!(a.length(), TURN_MIN);
        hand_over(&mut a, &mut b, Duration::from_millis(200));
        hand_over(&mut b, &mut a, near);
        assert!(a.length() > Duration::from_millis(100), "{:?}", a.length());
    }

    /// Goal: the waiting of several that are near does not add up either.
    #[test]
    fn turns_of_many_near_processes_stay_short() {
        let near = Duration::from_millis(3);
        let mut t = Instant::now();
        let mut all: Vec<Turns> = (0..5).map(|_| Turns::new(LOG, t)).collect();
        all[0].committed(t, t);
        for number in 1..5 {
            let ask = asks(&mut all[number], t);
            all.iter_mut().for_each(|turns| {
                turns.heard(ask, t);
            });
        }
        let mut has_turn = 0;
        for _ in 0..50 {
            t = all[has_turn].turn_ends();
            let granted = all[has_turn].grant(t, true).expect("others wait");
            let again = all[has_turn].ask_while_yielding(t).expect("has work");
            t += near;
            let before = has_turn;
            for (number, turns) in all.iter_mut().enumerate() {
                if number != before && turns.heard(granted, t) {
                    has_turn = number;
                }
                turns.heard(again, t);
            }
            assert_ne!(has_turn, before);
            all[has_turn].committed(t, t);
            assert!(all[has_turn].length() < TURN_MIN * 2, "{has_turn}");
        }
    }

    /// Goal: who waits while others go on handing the turn to each other asks again.
    #[test]
    fn a_request_that_is_lost_is_made_again() {
        let t = Instant::now();
        let mut turns = Turns::new(LOG, t);
        asks(&mut turns, t);
        let to_another = || Signal::TurnGranted {
            log: LOG,
            to: Uuid::new_v4(),
        };
        let mut now = t;
        while now < t + GRANT_MAX {
            turns.heard(to_another(), now);
            assert_eq!(turns.ask_while_yielding(now), None, "not yet");
            now += TURN_MIN;
        }
        assert!(turns.ask_while_yielding(now).is_some(), "after a while");
        assert_eq!(turns.ask_while_yielding(now), None);
        turns.heard(Signal::Interrupted, now);
        assert!(
            turns.ask_while_yielding(now).is_some(),
            "messages were lost"
        );
    }

    /// Goal: time without work is not time of waiting.
    #[test]
    fn who_gives_its_turn_away_without_work_has_not_waited() {
        let t = Instant::now();
        let (mut a, mut b) = (Turns::new(LOG, t), Turns::new(LOG, t));
        a.committed(t, t);
        let ask = asks(&mut b, t);
        a.heard(ask, t);
        a.grant(t + IDLE, false).expect("b waits");
        let later = t + GRANT_MAX * 2;
        assert_eq!(a.yielding_until(later), None);
        a.committed(later, later);
        assert_eq!(a.length(), TURN_MIN);
    }

    /// Goal: callers that come back at once keep the turn to its end; a process without work gives it away.
    #[test]
    fn a_moment_without_work_is_not_the_end_of_a_turn() {
        let t = Instant::now();
        let (mut a, mut b) = (Turns::new(LOG, t), Turns::new(LOG, t));
        let ask = asks(&mut b, t);
        a.heard(ask, t);
        a.committed(t + IDLE, t + IDLE);
        assert!(!a.should_stop(t + IDLE, false));
        assert_eq!(a.wake_at(false, false), Some(t + IDLE * 2));
        assert_eq!(a.wake_at(true, false), None);
        assert!(!a.should_stop(t + IDLE * 2, true));
        assert!(a.should_stop(t + IDLE * 2, false));
    }

    /// Goal: whenever it is woken there is something to do; who waits for a look-up does not spin.
    #[test]
    fn it_wakes_when_it_should_stop() {
        let t = Instant::now();
        let (mut a, mut b) = (Turns::new(LOG, t), Turns::new(LOG, t));
        a.committed(t, t);
        let ask = asks(&mut b, t);
        a.heard(ask, t);
        for has_work in [true, false] {
            let wake = a.wake_at(false, has_work).expect("b waits");
            assert!(wake > t);
            assert!(a.should_stop(wake, has_work));
        }
    }

    /// Goal: a process far from the database gets a longer turn, but not an endless one.
    #[test]
    fn turns_grow_with_the_time_of_a_commit() {
        let t = Instant::now();
        let mut turns = Turns::new(LOG, t);
        assert_eq!(turns.length(), TURN_MIN);
        let slow = t + Duration::from_millis(10);
        (0..100).for_each(|_| turns.committed(t, slow));
        assert!(turns.length() > Duration::from_millis(75));
        (0..100).for_each(|_| turns.committed(t, t + Duration::from_secs(9)));
        assert_eq!(turns.length(), TURN_MAX);
    }

    #[test]
    fn a_grant_that_is_lost_delays_only() {
        let t = Instant::now();
        let (mut a, mut b) = (Turns::new(LOG, t), Turns::new(LOG, t));
        let ask = asks(&mut b, t);
        a.heard(ask, t);
        a.grant(t + TURN_MIN, true);
        assert!(a.yielding_until(t + TURN_MIN).is_some());
        assert!(a.yielding_until(t + TURN_MIN + GRANT_MAX).is_none());
    }

    /// Goal: of several that wait, only the one that has got its turn waits no longer; the next turn goes to the next
    /// of them.
    #[test]
    fn who_has_got_a_turn_from_another_is_not_let_go_again() {
        let t = Instant::now();
        let mut turns = Turns::new(LOG, t);
        let [first, second] = [(); 2].map(|()| Uuid::new_v4());
        for by in [first, second, first] {
            turns.heard(Signal::TurnRequested { log: LOG, by }, t);
        }
        let granted = Signal::TurnGranted {
            log: LOG,
            to: first,
        };
        turns.heard(granted, t);
        let next = Signal::TurnGranted {
            log: LOG,
            to: second,
        };
        assert_eq!(turns.grant(t, true), Some(next));
        assert_eq!(turns.grant(t, true), None);
    }

    /// Goal: what is said about another log, and what this process has said itself, changes nothing.
    #[test]
    fn messages_about_other_logs_and_of_its_own_do_not_count() {
        let t = Instant::now();
        let mut turns = Turns::new(LOG, t);
        let (me, other) = (turns.me, LogId(1));
        let by = Uuid::new_v4();
        turns.heard(Signal::TurnRequested { log: other, by }, t);
        turns.heard(Signal::TurnRequested { log: LOG, by: me }, t);
        assert_eq!(turns.grant(t, true), None);
        assert!(!turns.heard(Signal::TurnGranted { log: other, to: me }, t));
        turns.request(t);
        turns.heard(Signal::TurnGranted { log: other, to: by }, t);
        assert_eq!(turns.yielding_until(t), None);
        turns.heard(Signal::TurnGranted { log: LOG, to: by }, t);
        assert_eq!(turns.yielding_until(t), Some(t + GRANT_MAX));
    }
}
