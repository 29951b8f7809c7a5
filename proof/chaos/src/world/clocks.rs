//! The system clocks that nodes see, which can be set while they run.
//!
//! It is written down how each clock was set and when, so that a judge knows what a clock may have shown at any time.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use gesta_core::{Clock as _, SystemClock, Timestamp};
use gesta_report::failure::{Failure, Result, fail};
use gesta_rig::FakeClock;

use gesta_load::machine::child::Program;

/// A setting is seen within this time: the file is read once a second.
const SEEN_WITHIN: Duration = Duration::from_secs(2);

/// How a clock is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    /// So many seconds fast; slow, if below 0.
    pub(crate) seconds: i64,
    /// Its speed in hundredths.
    pub(crate) speed: i64,
}

impl Setting {
    /// The right time.
    pub(crate) const RIGHT: Self = Self {
        seconds: 0,
        speed: 100,
    };
}

/// A time in which a clock was set in one way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// When it was set.
    pub(crate) from: Timestamp,
    /// When the process was started that reads the clock.
    pub(crate) started: Timestamp,
    /// How it was set.
    pub(crate) setting: Setting,
}

/// The clock of a node.
#[derive(Debug)]
pub(crate) struct Clock {
    fake: FakeClock,
    spans: Mutex<Vec<Span>>,
}

impl Clock {
    /// Lets a program see a clock of its own, which is right at first; its file is put into the folder.
    ///
    /// # Errors
    /// If the library is not installed.
    pub(crate) fn give(program: &mut Program, folder: &Path, name: &str) -> Result<Self> {
        let Some(fake) = told(FakeClock::in_folder(folder, name))? else {
            return fail("clocks cannot be set");
        };
        let variables = fake.variables();
        let variables = variables.map(|(name, value)| format!("{name}={value}"));
        let path = program.path.display().to_string();
        program.path = "/usr/bin/env".into();
        program
            .arguments
            .splice(0..0, variables.into_iter().chain([path]));
        Ok(Self {
            fake,
            spans: Mutex::default(),
        })
    }

    /// Sets it, for a process that was started then. It is seen within a second.
    pub(crate) fn set(&self, setting: Setting, started: Timestamp) -> Result<()> {
        let from = SystemClock.now();
        self.spans.lock().unwrap().push(Span {
            from,
            started,
            setting,
        });
        told(self.fake.set(setting.seconds, setting.speed))
    }

    /// How it was set so far, in order.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap().clone()
    }
}

fn told<T>(outcome: gesta_rig::Result<T>) -> Result<T> {
    outcome.map_err(|error| Failure(error.to_string()))
}

/// What the clocks of all nodes may have shown.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClockReadings(pub(crate) Vec<Vec<Span>>);

impl ClockReadings {
    /// The spans that may have been seen between two times, with the later of their ends and the second time.
    fn between(&self, from: i64, to: i64) -> impl Iterator<Item = (&Span, i64)> {
        let within = i64::try_from(SEEN_WITHIN.as_micros()).unwrap_or(i64::MAX);
        self.0.iter().flat_map(move |spans| {
            let nexts = spans.iter().skip(1);
            let ends = nexts.map(move |next| next.from.0.saturating_add(within));
            let ends = ends.chain([i64::MAX]);
            let seen = move |(span, end): &(&Span, i64)| span.from.0 <= to && from <= *end;
            let until = move |(span, end): (_, i64)| (span, end.min(to));
            spans.iter().zip(ends).filter(seen).map(until)
        })
    }

    /// The latest time that the clock of any node may have shown between two times, in microseconds.
    pub(crate) fn latest(&self, from: i64, to: i64) -> i64 {
        let shown = self.between(from, to).map(|(span, end)| {
            let run = end.saturating_sub(span.started.0);
            end + span.setting.seconds * 1_000_000 + run * (span.setting.speed - 100) / 100
        });
        // A clock that was not set is right.
        shown.fold(to, i64::max)
    }

    /// True if all clocks were right between two times.
    pub(crate) fn were_right(&self, from: i64, to: i64) -> bool {
        let mut shown = self.between(from, to);
        shown.all(|(span, _)| span.setting == Setting::RIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn span(from: i64, seconds: i64, speed: i64) -> Span {
        Span {
            from: Timestamp(from * SECOND),
            started: Timestamp(0),
            setting: Setting { seconds, speed },
        }
    }

    /// Goal: what is excused is what a clock may have shown, and no more: its setting, its speed since the start of the
    /// process, and both settings only while the file may not have been read.
    #[test]
    fn the_latest_time_is_that_of_the_fastest_clock() {
        let fast = vec![span(100, 30, 100), span(200, 0, 100)];
        let quick = vec![span(300, 0, 110), span(400, 0, 100)];
        let readings = ClockReadings(vec![fast, quick]);
        for (from, to, latest) in [
            (0, 99, 99),
            (0, 100, 130),
            (150, 160, 190),
            (150, 250, 250),
            (190, 205, 232),
            (203, 210, 210),
            (340, 350, 385),
            (350, 500, 500),
            (403, 500, 500),
        ] {
            let found = readings.latest(from * SECOND, to * SECOND);
            assert_eq!(found, latest * SECOND, "{from} to {to}");
        }
        for (from, to, are_right) in [
            (0, 99, true),
            (0, 100, false),
            (201, 210, false),
            (203, 210, true),
            (250, 299, true),
            (403, 999, true),
        ] {
            let found = readings.were_right(from * SECOND, to * SECOND);
            assert_eq!(found, are_right, "{from} to {to}");
        }
    }
}
