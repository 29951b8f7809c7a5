//! When progress is worth a write: after a number of finished events, or after a time if there are enough of them.
//!
//! Invariant: one write is under way at a time, and a place that was written last is not written again.

use gesta_core::Moment;
use std::time::Duration;

use crate::settings::Settings;

#[derive(Debug)]
pub(super) struct Progress {
    /// Place that was written last.
    written: u64,
    /// Place that is being written.
    writing: Option<u64>,
    /// Number of events that were finished since the last write began.
    finished: u32,
    /// Time at which the last write, or else the group, began.
    since: Moment,
    after: Duration,
    count_min: u32,
    /// Number of finished events that is enough for a write by itself. 0: no number is.
    count_max: u32,
}

impl Progress {
    pub(super) fn new(settings: &Settings, written: u64, now: Moment) -> Self {
        Self {
            written,
            writing: None,
            finished: 0,
            since: now,
            after: settings.checkpoint_after(),
            count_min: settings.min_checkpoint_count.max(1),
            count_max: settings.max_checkpoint_count,
        }
    }

    pub(super) fn finished(&mut self) {
        self.finished = self.finished.saturating_add(1);
    }

    /// Returns the place to write now if it is time to write. The place counts as being written from then on.
    pub(super) fn begin(&mut self, place: u64, now: Moment) -> Option<u64> {
        let many = self.count_max > 0 && self.finished >= self.count_max;
        let due = many || self.due_at().is_some_and(|at| at <= now);
        due.then(|| self.begin_at_once(place, now)).flatten()
    }

    /// Returns the place to write, whether it is time or not; `None` if it was written, or if another write is under
    /// way.
    pub(super) fn begin_at_once(&mut self, place: u64, now: Moment) -> Option<u64> {
        if self.writing.is_some() || place <= self.written {
            return None;
        }
        self.writing = Some(place);
        self.finished = 0;
        self.since = now;
        Some(place)
    }

    /// Notes that the write has succeeded.
    pub(super) fn wrote(&mut self) {
        if let Some(place) = self.writing.take() {
            self.written = place;
        }
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Returns when time alone makes a write due.
    fn due_at(&self) -> Option<Moment> {
        let enough = self.writing.is_none() && self.finished >= self.count_min;
        enough
            .then_some(self.since.checked_add(self.after))
            .flatten()
    }

    /// Returns when to ask again, if `place` may be written by then.
    pub(super) fn wake_at(&self, place: u64) -> Option<Moment> {
        self.due_at().filter(|_| place > self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn progress(now: Moment) -> Progress {
        let settings = Settings {
            checkpoint_after_ms: 1_000,
            min_checkpoint_count: 2,
            max_checkpoint_count: 4,
            ..Settings::default()
        };
        Progress::new(&settings, 10, now)
    }

    #[test]
    fn enough_events_are_written_after_a_time_and_many_at_once() {
        let now = Moment::START;
        let mut progress = progress(now);
        progress.finished();
        assert_eq!(progress.begin(11, now + SECOND), None, "too few");
        progress.finished();
        assert_eq!(progress.begin(12, now), None, "too early");
        assert_eq!(progress.wake_at(12), Some(now + SECOND));
        assert_eq!(progress.begin(12, now + SECOND), Some(12));
        for _ in 0..4 {
            progress.finished();
        }
        assert_eq!(progress.begin(16, now + SECOND), None, "one is under way");
        progress.wrote();
        assert_eq!(progress.begin(16, now + SECOND), Some(16));
        progress.wrote();
        assert_eq!(progress.written(), 16);
    }

    #[test]
    fn a_place_is_not_written_twice() {
        let now = Moment::START;
        let mut progress = progress(now);
        for _ in 0..9 {
            progress.finished();
        }
        assert_eq!(progress.begin(10, now), None, "an older event is open");
        assert_eq!(progress.wake_at(10), None);
        assert_eq!(progress.begin_at_once(11, now), Some(11));
        progress.wrote();
        assert_eq!(progress.begin_at_once(11, now), None);
    }
}
