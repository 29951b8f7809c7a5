//! Whether calls can be sent to a node, decided from the times at which its link came and broke. The module is pure.

use gesta_core::Moment;
use uuid::Uuid;

use crate::config::Times;

/// Whether calls can be sent to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// There is no link, but not for so long yet that the node counts as unreachable.
    Connecting,
    /// There is a link, and calls are sent.
    Reachable,
    /// There has been no link for a while, or a link has not held long enough since.
    Unreachable,
}

/// The history of one node's links.
#[derive(Debug)]
pub(crate) struct History {
    times: Times,
    is_up: bool,
    /// The moment at which the link last came or broke.
    since: Moment,
    /// Whether the node was unreachable, and a link has not yet held long enough since.
    is_distrusted: bool,
    /// The id of the process to which the last link led.
    process: Option<Uuid>,
}

impl History {
    /// Begins the history of a node that is dialled from now on.
    pub(crate) fn new(times: Times, now: Moment) -> Self {
        Self {
            times,
            is_up: false,
            since: now,
            is_distrusted: false,
            process: None,
        }
    }

    /// Notes that the link is up. A process that was never linked before is trusted at once, because it has just been
    /// started.
    pub(crate) fn up(&mut self, now: Moment, process: Uuid) {
        let is_new = self.process.replace(process) != Some(process);
        self.is_distrusted = !is_new && self.reach(now) == Reach::Unreachable;
        (self.is_up, self.since) = (true, now);
    }

    /// Notes that the link broke.
    pub(crate) fn down(&mut self, now: Moment) {
        self.is_distrusted = self.reach(now) == Reach::Unreachable;
        (self.is_up, self.since) = (false, now);
    }

    pub(crate) fn reach(&self, now: Moment) -> Reach {
        let elapsed = now.since(self.since);
        match self.is_up {
            true if !self.is_distrusted || elapsed >= self.times.trusted_after => Reach::Reachable,
            false if !self.is_distrusted && elapsed < self.times.return_after => Reach::Connecting,
            _ => Reach::Unreachable,
        }
    }

    /// Returns the moment at which [`reach`](Self::reach) changes if nothing happens.
    pub(crate) fn wake_at(&self, now: Moment) -> Option<Moment> {
        match (self.is_up, self.reach(now)) {
            (true, Reach::Unreachable) => Some(self.since + self.times.trusted_after),
            (false, Reach::Connecting) => Some(self.since + self.times.return_after),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn unreachable_after_a_second_and_trusted_after_five() {
        let start = Moment::START;
        let at = |ms| start + Duration::from_millis(ms);
        let process = Uuid::from_u128(1);
        let mut history = History::new(Times::default(), start);
        assert_eq!(history.reach(at(999)), Reach::Connecting);
        assert_eq!(history.wake_at(at(0)), Some(at(1_000)));
        assert_eq!(history.reach(at(1_000)), Reach::Unreachable);
        history.up(at(2_000), process);
        assert_eq!(
            history.reach(at(2_000)),
            Reach::Reachable,
            "never linked before"
        );
        history.down(at(3_000));
        assert_eq!(history.reach(at(3_999)), Reach::Connecting);
        history.up(at(3_500), process);
        assert_eq!(history.reach(at(3_500)), Reach::Reachable, "a short break");
        history.down(at(4_000));
        history.up(at(6_000), process);
        assert_eq!(history.reach(at(10_999)), Reach::Unreachable);
        assert_eq!(history.wake_at(at(6_000)), Some(at(11_000)));
        assert_eq!(history.reach(at(11_000)), Reach::Reachable);
    }

    #[test]
    fn a_link_that_flaps_while_it_is_distrusted_stays_so() {
        let start = Moment::START;
        let at = |ms| start + Duration::from_millis(ms);
        let process = Uuid::from_u128(1);
        let mut history = History::new(Times::default(), start);
        history.up(at(0), process);
        history.down(at(10));
        history.up(at(2_000), process);
        history.down(at(3_000));
        assert_eq!(history.reach(at(3_000)), Reach::Unreachable);
        history.up(at(3_100), process);
        assert_eq!(history.reach(at(8_000)), Reach::Unreachable);
        history.down(at(8_050));
        history.up(at(8_100), Uuid::from_u128(2));
        assert_eq!(history.reach(at(8_100)), Reach::Reachable, "a new process");
    }
}
