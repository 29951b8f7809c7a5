//! Connections that have not proved yet that they know the secret: how many there may be, and what is logged about
//! them.
//!
//! Not here: which connection must end for another ([`gesta_core::newcomers`]).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gesta_core::newcomers::{Newcomer, Newcomers};
use tokio::time::Instant;

/// The greatest number of such connections at once.
const UNPROVEN_MAX: usize = 64;
/// The greatest number of such connections of one address. All nodes may be on one machine, or behind one.
const PER_ADDRESS_MAX: usize = 16;
/// The time in which one line about refused connections is logged.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The connections of a server that have not proved that they know the secret.
#[derive(Debug)]
pub(super) struct Unproven {
    places: Arc<Newcomers>,
    refusals: Mutex<Refusals>,
}

impl Default for Unproven {
    fn default() -> Self {
        Self {
            places: Newcomers::new(UNPROVEN_MAX, PER_ADDRESS_MAX),
            refusals: Mutex::default(),
        }
    }
}

/// What was refused and not logged.
#[derive(Debug, Default)]
struct Refusals {
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl Refusals {
    /// Returns how many other refusals a line about this one stands for; `None` if this one is not to be logged.
    fn count(&mut self, now: Instant) -> Option<u64> {
        let logs_at = self.logged_at.map(|at| at + LOG_EVERY);
        if logs_at.is_some_and(|at| now < at) {
            self.unlogged += 1;
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

impl Unproven {
    /// Admits a connection that has come. An older one is ended if there are too many.
    pub(super) fn admit(&self, from: SocketAddr) -> Newcomer {
        self.places.admit(from.ip())
    }

    /// Logs that a connection was refused, unless that would be too many lines.
    pub(super) fn refused(&self, from: SocketAddr, why: &dyn std::fmt::Display) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let more = refusals.count(Instant::now());
        drop(refusals);
        match more {
            Some(0) => tracing::warn!(%from, %why, "a link was refused"),
            Some(more) => tracing::warn!(%from, %why, more, "links were refused"),
            None => tracing::debug!(%from, %why, "a link was refused"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_refusals_are_logged() {
        let mut refusals = Refusals::default();
        let (first, later) = (Instant::now(), Instant::now() + LOG_EVERY);
        let counts = [first, first, first, later, later].map(|now| refusals.count(now));
        assert_eq!(counts, [Some(0), None, None, Some(2), None]);
    }
}
