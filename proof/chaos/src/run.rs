//! The command: worlds one after the other, in each the loads, and one verdict.

use gesta_report::Report;
use gesta_report::failure::Result;
use gesta_report::name_of;
use gesta_report::numbers::plural;
use gesta_report::units::grouped;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::args::ChaosArgs;
use crate::round::{self, Until};

/// The command. True if no promise was broken, and nobody has interrupted it.
pub(crate) async fn run(args: &ChaosArgs, stop: &CancellationToken) -> Result<bool> {
    args.check()?;
    args.check_machine()?;
    let mut report = Report::begin("chaos", "Faults under load", args.seed);
    let program = args.program.find()?;
    let history = args.history.create()?;
    report.workload = json!(args);
    let (mut rounds, mut acknowledged, mut events, mut complete) = (0, 0, 0, true);
    let mut conditions = Vec::new();
    'all: for world in &args.worlds {
        for kind in &args.loads {
            if stop.is_cancelled() {
                complete = false;
                break 'all;
            }
            let until = match args.duration {
                Some(time) => Until::Passed(time / u32::try_from(args.loads.len())?),
                None => Until::Rounds(args.rounds),
            };
            let scene = args.scene(*world, *kind);
            let name = format!("{}, {}", world.name(), name_of(*kind));
            eprintln!("{name}");
            let load = round::load(args, &scene, &program, &history);
            let outcome = round::run(args, scene, until, load, &program, stop).await?;
            rounds += outcome.rounds;
            acknowledged += outcome.acknowledged;
            events += outcome.events;
            complete &= outcome.is_complete;
            conditions.push(json!({ "world": world, "load": kind, "has": outcome.conditions }));
            outcome.tell(&mut report, &name);
        }
    }
    report.workload["conditions"] = json!(conditions);
    report.finding = format!(
        "{}, {} acknowledged, {} events compared, seed {}: {}.",
        plural(rounds as usize, "round"),
        grouped(acknowledged as f64),
        grouped(events as f64),
        args.seed,
        verdict(report.problems.is_empty(), complete)
    );
    Ok(report.finish(&args.report, complete)? && complete)
}

/// What has come of the promises, in words.
fn verdict(is_kept: bool, is_complete: bool) -> &'static str {
    match (is_kept, is_complete) {
        (false, _) => "PROMISES WERE BROKEN",
        (true, true) => "every promise was kept",
        (true, false) => "interrupted; nothing wrong was found until then",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happened: a run that was interrupted after 4 of 500 rounds said that every promise was kept.
    #[test]
    fn an_interrupted_run_does_not_say_that_every_promise_was_kept() {
        assert!(verdict(true, false).starts_with("interrupted"));
        assert_eq!(verdict(true, true), "every promise was kept");
        assert_eq!(verdict(false, false), "PROMISES WERE BROKEN");
    }
}
