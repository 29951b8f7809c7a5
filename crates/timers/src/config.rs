//! The bounds and times of a service of timers.

use std::time::Duration;

use gesta_core::{Error, Result};

use crate::book::{Bounds, TIMER_BYTES_MAX};

/// The least value of [`Config::pending_bytes_max`].
const PENDING_BYTES_LEAST: usize = 16 * 1024;
// A book that is empty must have room for a timer, whatever that carries.
const _: () = assert!(TIMER_BYTES_MAX <= PENDING_BYTES_LEAST);

/// The bounds and times of a service of timers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// For how long a process that is not heard keeps the timers, while some are pending: 30 s unless said otherwise.
    /// It says that it lives by an event, three times as often.
    pub lease: Duration,
    /// The greatest number of timers that fire at once: 64 unless said otherwise.
    pub firing_max: usize,
    /// The greatest number of pending timers in memory: a million unless said otherwise. What is set or cancelled
    /// beyond that is stored as always, and read once some have fired. Until then a timer may fire late, or although it
    /// was cancelled or replaced.
    pub pending_max: usize,
    /// The most bytes of memory that the pending timers may take together, with their keys and what they carry: 1 GiB
    /// unless said otherwise, at least 16 KiB. A timer takes some 750 bytes, twice the length of its key, and the
    /// length of what it carries. What is beyond this bound is treated as what is beyond `pending_max`.
    pub pending_bytes_max: usize,
    /// The number of events of both streams after which the pending timers are stored together, so that the next start
    /// does not read all of them: 10,000 unless said otherwise. With more pending timers it is their number.
    pub kept_every: u64,
    /// The first and the longest pause before a timer fires again whose handler has failed: 1 s and 60 s unless said
    /// otherwise.
    pub back_off: (Duration, Duration),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            firing_max: 64,
            pending_max: 1_000_000,
            pending_bytes_max: 1024 * 1024 * 1024,
            kept_every: 10_000,
            back_off: (Duration::from_secs(1), Duration::from_secs(60)),
        }
    }
}

impl Config {
    /// Returns how much may be pending.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            timers: self.pending_max,
            bytes: self.pending_bytes_max,
        }
    }

    /// Checks that nothing is zero or the wrong way round.
    pub(crate) fn validate(&self) -> Result<()> {
        let (first, longest) = self.back_off;
        let rules = [
            (
                "lease",
                self.lease >= Duration::from_millis(30),
                "must be at least 30 ms",
            ),
            ("firing_max", self.firing_max > 0, "must be at least 1"),
            ("pending_max", self.pending_max > 0, "must be at least 1"),
            (
                "pending_bytes_max",
                self.pending_bytes_max >= PENDING_BYTES_LEAST,
                "must be at least 16384, which one timer may take",
            ),
            ("kept_every", self.kept_every > 0, "must be at least 1"),
            (
                "back_off",
                !first.is_zero() && first <= longest,
                "must begin above zero, and not with the longer one",
            ),
        ];
        match rules.into_iter().find(|(_, holds, _)| !holds) {
            Some((field, _, rule)) => Err(Error::invalid(field, rule)),
            None => Ok(()),
        }
    }
}
