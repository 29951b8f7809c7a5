//! What has hindered calls on their way to owners. The tasks of the logs count it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::route::Hint;

/// What has hindered the calls of a forwarder since it was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ForwarderStats {
    /// The number of answers *not here* that named another owner.
    pub moved: u64,
    /// The number of answers *not here* that named no owner.
    pub without_owner: u64,
    /// The number of those answers whose hint was not newer than what this node knew.
    pub outdated_hints: u64,
    /// How long calls have waited because the owner had as many unanswered calls of their log as it takes. This is the
    /// sum of the waits of all logs; each wait counts once, however many calls waited.
    pub credit_wait: Duration,
}

/// The counts behind [`ForwarderStats`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    moved: AtomicU64,
    without_owner: AtomicU64,
    outdated_hints: AtomicU64,
    credit_wait_micros: AtomicU64,
}

impl Counts {
    /// Counts that an owner has refused calls with this hint. `is_newer` says whether the hint is newer than what this
    /// node knew.
    pub(crate) fn not_here(&self, hint: &Hint, is_newer: bool) {
        let count = match hint.owner {
            Some(_) => &self.moved,
            None => &self.without_owner,
        };
        count.fetch_add(1, Ordering::Relaxed);
        if !is_newer {
            self.outdated_hints.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn waited_for_credit(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.credit_wait_micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> ForwarderStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ForwarderStats {
            moved: read(&self.moved),
            without_owner: read(&self.without_owner),
            outdated_hints: read(&self.outdated_hints),
            credit_wait: Duration::from_micros(read(&self.credit_wait_micros)),
        }
    }
}

#[cfg(test)]
mod tests {
    use gesta_core::Incarnation;
    use uuid::Uuid;

    use super::*;
    use crate::route::{Address, Epoch};

    #[test]
    fn refusals_are_told_apart_by_what_they_say() {
        let counts = Counts::default();
        let hint = |owner: Option<&str>| Hint {
            owner: owner.map(Address::new),
            epoch: Epoch {
                incarnation: Incarnation(Uuid::nil()),
                number: 1,
            },
        };
        counts.not_here(&hint(Some("a:1")), true);
        counts.not_here(&hint(Some("a:1")), false);
        counts.not_here(&hint(None), false);
        let stats = counts.read();
        assert_eq!((stats.moved, stats.without_owner), (2, 1));
        assert_eq!(stats.outdated_hints, 2);
    }
}
