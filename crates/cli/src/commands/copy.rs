//! `gesta copy`: copies a whole store into an empty one.

use std::time::{Duration, Instant};

use gesta_copy::{Copy, Progress, Report, Settings, Step};
use serde::Serialize;

use super::{interrupts, is_server};
use crate::args::CopyStore;
use crate::exit::{Failure, Outcome};
use crate::output::{Output, ProgressLine, count, humane, rate, say};

/// From so many events on it is told how many were copied a second.
const RATE_EVENTS_MIN: u64 = 10_000;

/// What is told at the end.
#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    report: Report,
    seconds: f64,
    events_per_second: f64,
}

pub(super) async fn run(args: &CopyStore, output: &mut Output) -> Outcome {
    refuse_servers("copy", &args.source, &args.target)?;
    let begun = Instant::now();
    let mut interrupts = interrupts()?;
    let line = ProgressLine::begin(output, "opening both stores");
    let copied = tokio::select! {
        copied = copy(args, &line) => copied,
        _ = interrupts.recv() => {
            let text = "stopped: the target is not whole, and is not served; repeat the copy, which goes on where it was";
            Err(Failure::interrupted(text))
        }
    };
    drop(line);
    let copied = copied?;
    let seconds = begun.elapsed().as_secs_f64();
    let told = Summary {
        events_per_second: copied.events as f64 / seconds.max(0.001),
        report: copied,
        seconds,
    };
    output.record(&told, pretty)
}

/// Refuses servers where databases are needed.
pub(super) fn refuse_servers(command: &str, source: &str, target: &str) -> Outcome {
    let wrong = [("SOURCE", source), ("TARGET", target)];
    let wrong = wrong.into_iter().find(|(_, url)| is_server(url));
    match wrong {
        None => Ok(()),
        Some((name, _)) => Err(Failure::usage(format!(
            "{name} must be sqlite:PATH or postgres://…, and names a server: {command} works on the databases themselves"
        ))),
    }
}

async fn copy(args: &CopyStore, line: &ProgressLine) -> Outcome<Report> {
    let settings = Settings {
        logs: args.logs,
        ..Settings::default()
    };
    let mut copy = Copy::open(&args.source, &args.target, settings).await?;
    let (first, begun) = (copy.progress(), Instant::now());
    if first.events > 0 {
        say!("goes on after {}", count(first.events, "event"));
    }
    while let Step::Copied(now) = copy.step().await? {
        line.tell(|_| copied(now, first, begun.elapsed()));
    }
    let events = copy.progress().events;
    say!("copied {}; reads them back", count(events, "event"));
    let begun = Instant::now();
    let report = copy.finish(|read| {
        line.tell(|_| rate("events compared", read, Some(events), begun.elapsed()));
    });
    Ok(report.await?)
}

/// Says how far a copy is that began at `first`, `time` ago.
pub(super) fn copied(now: Progress, first: Progress, time: Duration) -> String {
    let seconds = time.as_secs_f64().max(0.001);
    let done = now.positions.saturating_sub(first.positions) as f64;
    let rate = (now.events - first.events) as f64 / seconds;
    let left = now.positions_all.saturating_sub(now.positions) as f64;
    let left = Duration::from_secs_f64((left * seconds / done.max(1.0)).min(1e9));
    let percent = now.positions as f64 / now.positions_all.max(1) as f64 * 100.0;
    format!(
        "copied {} ({percent:.0} %), {rate:.0} a second, about {} left",
        count(now.events, "event"),
        humane(left)
    )
}

fn pretty(told: &Summary) -> String {
    let report = &told.report;
    // Of a small copy it would say how long the stores take to open.
    let rate = match report.events >= RATE_EVENTS_MIN {
        true => format!(", {:.0} a second", told.events_per_second),
        false => String::new(),
    };
    let mut lines = vec![format!(
        "copied {} of {} in {:.1} s{rate}; both stores show the same (digest {})",
        count(report.events, "event"),
        count(report.streams, "stream"),
        told.seconds,
        report.digest
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
