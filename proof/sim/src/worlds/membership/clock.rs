//! A node's clock: it starts anywhere, and runs a little fast or slow.

use std::time::Duration;

use gesta_core::Moment;

#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// What it shows at the start of the simulation.
    offset: Duration,
    /// Its rate, per cent of the true one.
    percent: u32,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(Duration::from_secs(100), 100)
    }
}

impl Clock {
    pub(super) fn new(offset: Duration, percent: u32) -> Self {
        Self { offset, percent }
    }

    pub(super) fn local(&self, now: Duration) -> Moment {
        Moment(self.offset + now * self.percent / 100)
    }

    /// How long it takes, in true time, until it has advanced so far.
    pub(super) fn takes(&self, time: Duration) -> Duration {
        time * 100 / self.percent + Duration::from_nanos(2)
    }

    /// When it shows at least this, in true time.
    pub(super) fn reaches(&self, moment: Moment) -> Duration {
        self.takes(moment.0.saturating_sub(self.offset))
    }
}
