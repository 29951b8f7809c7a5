//! Taking turns between processes that append to the same log.
//!
//! Why: a batch misses whenever another process has appended since. The process with the shorter way to
//! the database would win every time and starve the others. So a process that missed asks for a turn; the
//! one that appends finishes its slice of time, stops, and says so.
//! Everything here is a courtesy: safety rests on the chained insert alone, signals may be lost, and a
//! process that waits in vain goes on after [`GRANT_MAX`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use gesta_core::LogId;
use gesta_core::backend::Signal;
use uuid::Uuid;

/// How long a process appends before it lets another go.
const SLICE: Duration = Duration::from_millis(25);
/// How long a process waits for its turn before it tries regardless.
const GRANT_MAX: Duration = Duration::from_millis(150);
/// Misses in a row before a process asks for a turn.
const MISSES_BEFORE_ASKING: u32 = 2;
/// Time between two requests of a process that still waits.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// State of one process for one log.
pub(crate) struct Turns {
    me: Uuid,
    log: LogId,
    misses: u32,
    asked: Option<Instant>,
    run_began: Instant,
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
            requests: VecDeque::new(),
            yielding_until: None,
        }
    }

    /// While this is set, nothing may be sent; look again at that time.
    pub(crate) fn yielding_until(&mut self, now: Instant) -> Option<Instant> {
        if self.yielding_until.is_some_and(|until| until <= now) {
            self.begin_run(now);
        }
        self.yielding_until
    }

    /// A batch of ours was stored.
    pub(crate) fn committed(&mut self) {
        self.misses = 0;
        self.asked = None;
    }

    /// A batch of ours missed. May ask for a turn.
    pub(crate) fn missed(&mut self, now: Instant) -> Option<Signal> {
        self.misses += 1;
        let due = self
            .asked
            .is_none_or(|asked| now.duration_since(asked) >= ASK_AGAIN);
        if self.misses < MISSES_BEFORE_ASKING || !due {
            return None;
        }
        self.asked = Some(now);
        Some(self.request())
    }

    /// True if our time is up and another process waits: send nothing more, and [`grant`](Self::grant) when nothing is in flight.
    pub(crate) fn should_stop(&self, now: Instant, has_work: bool) -> bool {
        !self.requests.is_empty() && (!has_work || now.duration_since(self.run_began) >= SLICE)
    }

    /// Lets the next process go. With work of our own left, asks for the turn after it.
    pub(crate) fn grant(&mut self, now: Instant, has_work: bool) -> Vec<Signal> {
        let Some(next) = self.requests.pop_front() else {
            return Vec::new();
        };
        self.yielding_until = Some(now + GRANT_MAX);
        let mut signals = Vec::with_capacity(2);
        if has_work {
            // First, so that the other knows that someone waits when its turn begins.
            self.asked = Some(now);
            signals.push(self.request());
        }
        signals.push(Signal::TurnGranted {
            log: self.log,
            to: next,
        });
        signals
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
                // Another process goes first: leave it alone for its slice.
                self.requests.retain(|waiting| *waiting != to);
                if self.asked.is_some() {
                    self.yielding_until = Some(now + GRANT_MAX);
                }
                false
            }
            _ => false,
        }
    }

    fn begin_run(&mut self, now: Instant) {
        self.yielding_until = None;
        self.run_began = now;
        self.misses = 0;
        self.asked = None;
    }

    fn request(&self) -> Signal {
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
        assert_eq!(turns.missed(t), None);
        assert!(matches!(
            turns.missed(t),
            Some(Signal::TurnRequested { .. })
        ));
        assert_eq!(turns.missed(t), None);
        assert!(turns.missed(t + ASK_AGAIN).is_some());
        turns.committed();
        assert_eq!(turns.missed(t + ASK_AGAIN * 2), None);
    }

    /// Goal: two processes with work alternate, each for a slice.
    #[test]
    fn the_turn_goes_there_and_back() {
        let t = Instant::now();
        let (mut a, mut b) = (Turns::new(LOG, t), Turns::new(LOG, t));
        b.missed(t);
        let ask = b.missed(t).expect("asks");
        a.heard(ask, t);
        assert!(!a.should_stop(t, true), "a finishes its slice");
        let t = t + SLICE;
        assert!(a.should_stop(t, true));
        let signals = a.grant(t, true);
        assert!(a.yielding_until(t).is_some());
        let granted: Vec<bool> = signals
            .into_iter()
            .map(|signal| b.heard(signal, t))
            .collect();
        assert_eq!(granted, [false, true]);
        let t = t + SLICE;
        assert!(b.should_stop(t, true), "a asked for the turn after");
        for signal in b.grant(t, false) {
            a.heard(signal, t);
        }
        assert!(a.yielding_until(t).is_none());
    }

    #[test]
    fn a_grant_that_is_lost_delays_only() {
        let t = Instant::now();
        let mut a = Turns::new(LOG, t);
        a.heard(
            Signal::TurnRequested {
                log: LOG,
                by: Uuid::from_u128(1),
            },
            t,
        );
        a.grant(t + SLICE, true);
        assert!(a.yielding_until(t + SLICE).is_some());
        assert!(a.yielding_until(t + SLICE + GRANT_MAX).is_none());
    }
}
