//! A clock that follows that of tokio, so that a test that pauses or advances tokio's time moves this one too.

use gesta_core::{Clock, Timestamp};
use tokio::time::Instant;

/// The moment 2026-01-01T00:00:00Z.
const BEGIN: Timestamp = Timestamp(1_767_225_600_000_000);

/// A clock that begins in 2026 when it is made, and goes on as tokio's clock does.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    begun: Instant,
}

impl TokioClock {
    /// Makes a clock that begins now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            begun: Instant::now(),
        }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let passed = i64::try_from(self.begun.elapsed().as_micros()).unwrap_or(i64::MAX);
        Timestamp(BEGIN.0.saturating_add(passed))
    }
}
