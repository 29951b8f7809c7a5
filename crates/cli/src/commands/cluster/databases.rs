//! `gesta cluster add-database`, `move-log` and `recover-log`: the databases in which the logs of a store lie.

use gesta::databases::{self, Loss, MoveTo, Moved, Step};
use gesta_core::LogId;
use serde_json::json;

use crate::args::{ClusterMoveLog, ClusterRecoverLog};
use crate::exit::Outcome;
use crate::output::{Output, ProgressLine, count};

/// Adds an empty database to the store.
pub(super) async fn add(urls: &str, new: &str, output: &mut Output) -> Outcome {
    let map = databases::add(urls, new).await?;
    let databases = map.databases().len();
    let record = json!({"databases": databases, "version": map.version()});
    output.record(&record, |_| {
        format!(
            "the store has {} now: give the new URL to all of its processes, then move logs to it",
            count(databases as u64, "database")
        )
    })
}

/// Moves a log to another database, or takes a move back.
pub(super) async fn move_log(urls: &str, request: &ClusterMoveLog, output: &mut Output) -> Outcome {
    let log = LogId(request.log);
    let goal = match &request.to {
        Some(url) => MoveTo::Database(url),
        None => MoveTo::Back,
    };
    let line = ProgressLine::begin(output, format!("log {log}: reading the map"));
    let moved = databases::move_log(urls, log, goal, |step| tell(log, step, &line)).await;
    drop(line);
    let moved = moved?;
    let Moved {
        steps,
        home,
        before,
        ..
    } = moved;
    let record = json!({"log": log.0, "steps": steps, "undone": request.undo, "database": home});
    output.record(&record, |_| match (steps, request.undo) {
        (0, _) => format!("nothing to do: log {log} lies in {home}"),
        (_, false) => format!("log {log} has moved to {home}"),
        (_, true) if home == before => {
            format!("nothing is being moved any more: log {log} lies in {home}")
        }
        (_, true) => format!("too late to take the move back: log {log} lies in {home}"),
    })
}

/// Makes one of the copies of a log the log again.
pub(super) async fn recover_log(
    urls: &str,
    request: &ClusterRecoverLog,
    output: &mut Output,
) -> Outcome {
    let log = LogId(request.log);
    let loss = match request.accept_loss {
        true => Loss::Accepted,
        false => Loss::Refused,
    };
    let from = request.from.as_deref();
    let goal = MoveTo::Recovered { from, loss };
    let line = ProgressLine::begin(output, format!("log {log}: reading the map"));
    let done = databases::move_log(urls, log, goal, |step| tell(log, step, &line)).await;
    drop(line);
    let done = done?;
    let Moved {
        steps,
        home,
        given_up,
        ..
    } = done;
    let record = json!({"log": log.0, "steps": steps, "database": home, "given_up": given_up});
    output.record(&record, |_| match steps {
        0 => format!("nothing to do: log {log} is whole in {home}"),
        _ => {
            let events = count(given_up, "event");
            let were = if given_up == 1 { "was" } else { "were" };
            format!("log {log} lies in {home}; {events} of other copies {were} given up")
        }
    })
}

fn tell(log: LogId, step: &Step, line: &ProgressLine) {
    if *step != Step::Done {
        tracing::info!(%log, step = name(step), "done");
        line.tell(|_| format!("log {log}: {}", name(step)));
    }
}

fn name(step: &Step) -> &'static str {
    match step {
        Step::Put { .. } => "changed a copy of the map",
        Step::Close { .. } => "closed the log in a database",
        Step::Open { .. } => "opened the log in a database",
        Step::Copy { .. } => "copied rows",
        Step::Compare { .. } => "compared the copy",
        Step::GiveUp { .. } => "compared a copy, and gave up what the log has never had",
        Step::Done => "done",
    }
}
