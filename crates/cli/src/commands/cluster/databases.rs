//! `gesta cluster add-database` and `move-log`: the databases in which the logs of a store lie.

use gesta::databases::{self, MoveTo, Step};
use gesta_core::LogId;
use serde_json::json;

use crate::args::ClusterMoveLog;
use crate::exit::Outcome;
use crate::output::Output;

/// Adds an empty database to the store.
pub(super) async fn add(urls: &str, new: &str, output: &mut Output) -> Outcome {
    let map = databases::add(urls, new).await?;
    let count = map.databases().len();
    let record = json!({"databases": count, "version": map.version()});
    output.record(&record, |_| {
        format!("the store has {count} databases now: give the new URL to all of its processes, then move logs to it")
    })
}

/// Moves a log to another database, or takes a move back.
pub(super) async fn move_log(urls: &str, request: &ClusterMoveLog, output: &mut Output) -> Outcome {
    let log = LogId(request.log);
    let goal = match &request.to {
        Some(url) => MoveTo::Database(url),
        None => MoveTo::Back,
    };
    let mut steps = 0_u64;
    let moved = databases::move_log(urls, log, goal, |step| {
        if *step != Step::Done {
            steps += 1;
            tracing::info!(%log, step = name(step), "done");
        }
    });
    moved.await?;
    let record = json!({"log": log.0, "steps": steps, "undone": request.undo});
    output.record(&record, |_| match (steps, request.undo) {
        (0, _) => format!("nothing to do: log {log} lies there"),
        (_, false) => format!("log {log} has moved"),
        (_, true) => format!("log {log} stays where it was"),
    })
}

fn name(step: &Step) -> &'static str {
    match step {
        Step::Put { .. } => "changed a copy of the map",
        Step::Close { .. } => "closed the log in a database",
        Step::Open { .. } => "opened the log in a database",
        Step::Copy { .. } => "copied rows",
        Step::Compare { .. } => "compared the copy",
        Step::Done => "done",
    }
}
