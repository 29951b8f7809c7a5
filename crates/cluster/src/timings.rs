//! How long beats, take-overs and hand-overs take.

use std::ops::AddAssign;

use gesta_core::durations::{DurationCounts, Durations};

/// How long what a membership does has taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timings {
    /// The durations of the beats that were answered.
    pub beats: DurationCounts,
    /// The durations from the first look that showed a log without an owner that lives until this node had claimed it.
    pub takeovers: DurationCounts,
    /// The durations in which the takers of hand-overs prepare while the log is served here.
    pub preparing: DurationCounts,
    /// The durations in which what is in flight ends at hand-overs, and nothing more is begun.
    pub finishing: DurationCounts,
    /// The durations in which the database is told of hand-overs. Together with `finishing` they are the pause of the
    /// log.
    pub moving: DurationCounts,
}

impl AddAssign for Timings {
    fn add_assign(&mut self, other: Self) {
        self.beats += other.beats;
        self.takeovers += other.takeovers;
        self.preparing += other.preparing;
        self.finishing += other.finishing;
        self.moving += other.moving;
    }
}

/// The durations behind [`Timings`].
#[derive(Debug, Default)]
pub(crate) struct Timed {
    pub(crate) beats: Durations,
    pub(crate) takeovers: Durations,
    pub(crate) preparing: Durations,
    pub(crate) finishing: Durations,
    pub(crate) moving: Durations,
}

impl Timed {
    pub(crate) fn read(&self) -> Timings {
        Timings {
            beats: self.beats.read(),
            takeovers: self.takeovers.read(),
            preparing: self.preparing.read(),
            finishing: self.finishing.read(),
            moving: self.moving.read(),
        }
    }
}
