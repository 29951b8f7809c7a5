//! The line that shows on a terminal how far a long command has come.
//!
//! Why one for all commands: each shows it at the same place and pace, and takes it away at its end.
//! Invariants: it stands on standard error, and only if that is a terminal and data are for people, so neither a log
//! nor a program that reads JSON finds it. It is drawn some times a second at most, whatever the command says; on a
//! terminal that cannot write over a line it is said every few seconds. Text of others cannot drive the terminal. What
//! is said meanwhile (`say!`) stands above it.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{
    HumanBytes, HumanCount, HumanFloatCount, ProgressBar, ProgressDrawTarget, ProgressStyle,
};

use super::{Output, say, visible};

/// How often the line is drawn, so that it shows that the command lives.
const DRAWN_EVERY: Duration = Duration::from_millis(200);
/// How often the line is said on a terminal that cannot write over it.
const SAID_EVERY: Duration = Duration::from_secs(5);

/// The line that is drawn now, above which everything else is said.
static DRAWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Shows how far a command has come, until it is dropped. A command has one at a time.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    shown: Shown,
    begun: Instant,
}

#[derive(Debug)]
enum Shown {
    /// Nobody would see it, or a program would.
    No,
    /// On a line that is written over.
    Drawn(ProgressBar),
    /// As a line from time to time; this is when it was said last.
    Said(Mutex<Instant>),
}

impl ProgressLine {
    /// Begins to show what a command does. With `--output json` it shows nothing.
    pub(crate) fn begin<W: Write>(output: &Output<W>, doing: impl Into<String>) -> Self {
        Self::show(output.is_for_people(), doing.into())
    }

    /// Shows nothing.
    pub(crate) fn none() -> Self {
        Self::show(false, String::new())
    }

    /// Begins to show how far an export has come, in either form, but not among the data themselves.
    pub(crate) fn beside_data<W: Write>(output: &Output<W>, doing: impl Into<String>) -> Self {
        Self::show(!output.is_terminal, doing.into())
    }

    fn show(is_wanted: bool, doing: String) -> Self {
        let begun = Instant::now();
        if !is_wanted || !std::io::stderr().is_terminal() {
            let shown = Shown::No;
            return Self { shown, begun };
        }
        let target = ProgressDrawTarget::stderr();
        if target.is_hidden() {
            say!("{doing} …");
            let shown = Shown::Said(Mutex::new(begun));
            return Self { shown, begun };
        }
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
            bar.set_style(style);
        }
        bar.set_message(visible(&doing));
        bar.enable_steady_tick(DRAWN_EVERY);
        *DRAWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
        Self {
            shown: Shown::Drawn(bar),
            begun,
        }
    }

    /// Tells whether anything is shown.
    pub(crate) fn is_shown(&self) -> bool {
        !matches!(self.shown, Shown::No)
    }

    /// Shows how far the command has come. The text is made of the time since the line was begun, and only if somebody
    /// will see it.
    pub(crate) fn tell(&self, text: impl FnOnce(Duration) -> String) {
        match &self.shown {
            Shown::No => {}
            Shown::Drawn(bar) => bar.set_message(visible(&text(self.begun.elapsed()))),
            Shown::Said(last) => {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                if last.elapsed() >= SAID_EVERY {
                    *last = Instant::now();
                    say!("{}", text(self.begun.elapsed()));
                }
            }
        }
    }

    /// Does work that writes a file, and shows meanwhile how long the file at `path` is by now, until it is as long as
    /// it will be, if that is known (`all`): what is done then, the work shows itself.
    pub(crate) async fn watching<T>(
        &self,
        path: &Path,
        all: Option<u64>,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = std::pin::pin!(work);
        let mut looks = tokio::time::interval(DRAWN_EVERY);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = looks.tick() => {}
            }
            let bytes = std::fs::metadata(path).map_or(0, |found| found.len());
            if bytes > 0 && all.is_none_or(|all| bytes < all) {
                self.tell(|_| copied(bytes, all));
            }
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if let Shown::Drawn(bar) = &self.shown {
            bar.finish_and_clear();
            *DRAWN.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

/// Says how much of a file was copied.
pub(crate) fn copied(bytes: u64, all: Option<u64>) -> String {
    match all {
        Some(all) => format!(
            "copied {} of {}",
            HumanBytes(bytes.min(all)),
            HumanBytes(all)
        ),
        None => format!("copied {}", HumanBytes(bytes)),
    }
}

/// Says how many things were done, how many a second, and if it is known how many there are, how long the others will
/// take. `what` is said of several things, such as `events read`; its first word has an s that one thing has not.
pub(crate) fn rate(what: &str, done: u64, all: Option<u64>, time: Duration) -> String {
    let seconds = time.as_secs_f64().max(0.001);
    let a_second = done as f64 / seconds;
    let shown = HumanFloatCount(a_second);
    let Some(all) = all.filter(|all| *all > 0) else {
        let one = what.replacen("s ", " ", 1);
        let one = one.strip_suffix('s').unwrap_or(&one);
        let what = if done == 1 { one } else { what };
        return format!("{} {what}, {shown:.0} a second", HumanCount(done));
    };
    let left = all.saturating_sub(done) as f64 / a_second.max(1.0);
    let left = humane(Duration::from_secs_f64(left.min(1e9)));
    let percent = (done as f64 / all as f64 * 100.0).min(100.0);
    let (done, all) = (HumanCount(done), HumanCount(all));
    format!("{done} of {all} {what} ({percent:.0} %), {shown:.0} a second, about {left} left")
}

/// Says how long something takes, in the two largest units.
pub(crate) fn humane(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
    }
}

/// Says something so that it stands above the line, if there is one.
pub(super) fn above(say: impl FnOnce()) {
    let drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match drawn {
        Some(bar) => bar.suspend(say),
        None => say(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_is_told_with_its_rate_and_what_is_left() {
        let ten = Duration::from_secs(10);
        for (done, all, expected) in [
            (
                120_000,
                None,
                "120,000 events read, 12,000 a second".to_owned(),
            ),
            (
                120_000,
                Some(1_000_000),
                "120,000 of 1,000,000 events read (12 %), 12,000 a second, about 1 min 13 s left"
                    .to_owned(),
            ),
            (0, Some(0), "0 events read, 0 a second".to_owned()),
            (1, None, "1 event read, 0 a second".to_owned()),
            (
                7,
                Some(5),
                "7 of 5 events read (100 %), 1 a second, about 0 s left".to_owned(),
            ),
        ] {
            assert_eq!(rate("events read", done, all, ten), expected);
        }
        assert_eq!(rate("streams", 1, None, ten), "1 stream, 0 a second");
        let none = rate("events read", 3, Some(9), Duration::ZERO);
        assert!(
            none.starts_with("3 of 9 events read (33 %), 3,000"),
            "{none}"
        );
    }

    #[test]
    fn a_copy_is_told_in_bytes_and_never_more_than_all() {
        assert_eq!(copied(2_048, None), "copied 2.00 KiB");
        assert_eq!(
            copied(4_096, Some(2_048)),
            "copied 2.00 KiB of 2.00 KiB",
            "a file may grow while it is copied"
        );
    }

    #[test]
    fn times_have_two_units() {
        for (seconds, text) in [(59, "59 s"), (61, "1 min 1 s"), (7_260, "2 h 1 min")] {
            assert_eq!(humane(Duration::from_secs(seconds)), text);
        }
    }
}
