//! The log of refused calls and of calls by administrators: target `gesta::audit`.
//!
//! Invariants: at most [`LINES_MAX`] lines are written at once and [`LINES_PER_SECOND`] after that, and lines that are
//! left out are counted in the next line, so that nobody fills a disk by being refused; names are escaped, so that no
//! name makes a line of its own; no secret comes here.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gesta_core::uptime;

const LINES_MAX: u32 = 200;
const LINES_PER_SECOND: u32 = 20;
/// The longest name in a line, in characters.
const SHOWN_MAX: usize = 200;

/// Counts how many lines may be written now.
#[derive(Debug)]
struct Bucket {
    lines: f64,
    at: Duration,
    unwritten: u64,
}

impl Bucket {
    /// Takes a line from the bucket. Returns how many lines were left out since the last written one; `None` if this
    /// one must be left out too.
    fn take(&mut self, now: Duration) -> Option<u64> {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = now;
        self.lines = (self.lines + passed * f64::from(LINES_PER_SECOND)).min(f64::from(LINES_MAX));
        if self.lines < 1.0 {
            self.unwritten += 1;
            return None;
        }
        self.lines -= 1.0;
        Some(std::mem::take(&mut self.unwritten))
    }
}

#[derive(Debug)]
pub(crate) struct Audit {
    refused: Mutex<Bucket>,
    /// A bucket of its own, so that refusals do not hide what administrators do.
    done: Mutex<Bucket>,
}

impl Default for Audit {
    fn default() -> Self {
        let bucket = || {
            Mutex::new(Bucket {
                lines: f64::from(LINES_MAX),
                at: uptime(),
                unwritten: 0,
            })
        };
        Self {
            refused: bucket(),
            done: bucket(),
        }
    }
}

fn take(bucket: &Mutex<Bucket>) -> Option<u64> {
    bucket
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take(uptime())
}

/// Shows a name as it stands in a line: shortened and escaped.
fn shown(name: &str) -> String {
    let cut: String = name.chars().take(SHOWN_MAX).collect();
    cut.escape_debug().to_string()
}

impl Audit {
    pub(crate) fn refused(
        &self,
        who: &str,
        from: Option<IpAddr>,
        verb: &str,
        what: &str,
        why: &str,
    ) {
        let Some(unwritten) = take(&self.refused) else {
            return;
        };
        let from = from.map(tracing::field::display);
        tracing::warn!(target: "gesta::audit", who = shown(who), from, call = verb, what = shown(what), why = shown(why), unwritten, "refused");
    }

    pub(crate) fn done(&self, who: &str, from: Option<IpAddr>, verb: &str, what: &str) {
        let Some(unwritten) = take(&self.done) else {
            return;
        };
        let from = from.map(tracing::field::display);
        tracing::info!(target: "gesta::audit", who = shown(who), from, call = verb, what = shown(what), unwritten, "administrative");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_the_others_counted() {
        let second = Duration::from_secs(1);
        let mut bucket = Bucket {
            lines: 2.0,
            at: second,
            unwritten: 0,
        };
        let takes: Vec<_> = (0..4).map(|_| bucket.take(second)).collect();
        assert_eq!(takes, [Some(0), Some(0), None, None]);
        assert_eq!(bucket.take(second * 2), Some(2));
        let after_long = (0..1_000)
            .filter(|_| bucket.take(second * 1_000).is_some())
            .count();
        assert_eq!(after_long, 200);
    }

    #[test]
    fn names_make_no_lines() {
        assert_eq!(shown("a\nb\u{1b}[0m\u{2028}"), r"a\nb\u{1b}[0m\u{2028}");
        assert_eq!(shown(&"x".repeat(5_000)).len(), SHOWN_MAX);
    }
}
