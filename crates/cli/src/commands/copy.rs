//! `gesta copy`: copies a whole store into an empty one.

use std::time::{Duration, Instant};

use gesta_copy::{Copy, Progress, Report, Settings, Step};
use serde::Serialize;

use super::{interrupts, is_server};
use crate::args::CopyStore;
use crate::exit::{Failure, Outcome};
use crate::output::{Output, say};

/// How often a copy says how far it is.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// What is told at the end.
#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    report: Report,
    seconds: f64,
    events_per_second: f64,
}

pub(super) async fn run(args: &CopyStore, output: &mut Output) -> Outcome {
    if is_server(&args.source) || is_server(&args.target) {
        return Err(Failure::usage(
            "copy works on databases, not on servers: give sqlite:PATH or postgres://…",
        ));
    }
    let begun = Instant::now();
    let mut interrupts = interrupts()?;
    let copied = tokio::select! {
        copied = copy(args, begun) => copied?,
        _ = interrupts.recv() => {
            let text = "stopped: the target is not whole, and is not served; repeat the copy, which goes on where it was";
            return Err(Failure::interrupted(text));
        }
    };
    let seconds = begun.elapsed().as_secs_f64();
    let told = Summary {
        events_per_second: copied.events as f64 / seconds.max(0.001),
        report: copied,
        seconds,
    };
    output.record(&told, pretty)
}

async fn copy(args: &CopyStore, begun: Instant) -> Outcome<Report> {
    let settings = Settings {
        logs: args.logs,
        ..Settings::default()
    };
    let mut copy = Copy::open(&args.source, &args.target, settings).await?;
    let first = copy.progress();
    if first.events > 0 {
        say!("goes on after {} events", first.events);
    }
    let mut pace = Pace::new(begun);
    while let Step::Copied(now) = copy.step().await? {
        pace.tell(|seconds| copied(now, first, seconds));
    }
    let events = copy.progress().events;
    say!("copied {events} events; reads them back");
    let mut pace = Pace::new(Instant::now());
    let report = copy.finish(|read| pace.tell(|_| format!("compared {read} of {events} events")));
    Ok(report.await?)
}

/// Says something from time to time.
pub(super) struct Pace {
    begun: Instant,
    told: Instant,
}

impl Pace {
    pub(super) fn new(begun: Instant) -> Self {
        Self {
            begun,
            told: Instant::now(),
        }
    }

    pub(super) fn tell(&mut self, text: impl FnOnce(f64) -> String) {
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            say!("{}", text(self.begun.elapsed().as_secs_f64()));
        }
    }
}

pub(super) fn copied(now: Progress, first: Progress, seconds: f64) -> String {
    let done = now.positions.saturating_sub(first.positions) as f64;
    let rate = (now.events - first.events) as f64 / seconds.max(0.001);
    let left = now.positions_all.saturating_sub(now.positions) as f64;
    let left = Duration::from_secs_f64((left * seconds / done.max(1.0)).min(1e9));
    let percent = now.positions as f64 / now.positions_all.max(1) as f64 * 100.0;
    format!(
        "copied {} events ({percent:.0} %), {rate:.0} a second, about {} s left",
        now.events,
        left.as_secs()
    )
}

fn pretty(told: &Summary) -> String {
    let report = &told.report;
    let mut lines = vec![format!(
        "copied {} events of {} streams in {:.1} s, {:.0} a second; both stores show the same (digest {})",
        report.events, report.streams, told.seconds, told.events_per_second, report.digest
    )];
    lines.push(
        match (report.positions_kept, report.checkpoints_kept) {
            (true, true) => {
                "positions are as they were, and checkpoints of consumers stay valid: serve one of the two stores from now on"
            }
            (true, false) => "positions are as they were",
            (false, _) => "positions are new",
        }
        .into(),
    );
    lines.extend(report.changes.iter().cloned());
    for group in &report.groups_without_place {
        lines.push(format!("  group {group}"));
    }
    lines.join("\n")
}
