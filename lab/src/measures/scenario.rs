//! `scenario`: load on any HTTP service, out of a file that says what users ask and what the answers must be.
//!
//! The language of the files and the generator are `gesta-load`'s. Here are the command, the ladder, what is watched
//! beside the load (processor times, and a PostgreSQL behind the service), and what is told of it.

mod args;
mod tell;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use gesta_load::Target;
use gesta_load::cinema::alone;
use gesta_load::counters;
use gesta_load::engine::{Engine, Limits};
use gesta_load::figures::{Figures, Outcome};
use gesta_load::machine::processes;
use gesta_load::scenario::Scenario;
use gesta_load::schedule::{Drive, Stretch, windows};
use gesta_report::failure::{Failure, Result};
use gesta_report::page;
use gesta_report::{Report, Unit};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::reservation::HEAD_START;
use crate::workload::ladder::Reached;
use crate::workload::watch::{Sampled, Watched, sample};

pub(crate) use args::ScenarioArgs;

/// A stretch of load.
#[derive(Debug)]
struct Step {
    name: String,
    drive: Drive,
    figures: Figures,
    cpu: Sampled,
    /// Requests that failed, if more did than may.
    wrong: u64,
    /// Why it was the last of a ladder, if it was.
    stopped: Option<String>,
}

impl Step {
    /// What a step of a ladder is judged by; none for a closed loop.
    fn reached(&self) -> Option<Reached> {
        let Drive::Open { rate, .. } = self.drive else {
            return None;
        };
        Some(Reached {
            offered: rate,
            done: self.figures.per_second(Outcome::Passed),
            p99_ms: self.figures.served().p99,
            refused: self.figures.over(|_, it| it == Outcome::Refused).count,
            wrong: self.wrong,
        })
    }
}

/// The command. True if the run is a result.
pub(crate) async fn run(args: &ScenarioArgs, stop: &CancellationToken) -> Result<bool> {
    args.check()?;
    args.page.as_deref().map_or(Ok(()), page::check)?;
    let scenario = Scenario::read(&args.file)?;
    let Some(url) = &args.target else {
        println!("{}", scenario.told());
        return Ok(true);
    };
    let mut report = Report::begin("scenario", scenario.name(), args.seed);
    let target = Target::resolve(url, &args.target_options()?).await;
    let target = target.map_err(Failure)?;
    let watched = watched(args, &target, &mut report).await?;
    let limits = args.limits()?;
    let connections = limits.connections;
    report.workload = json!(args);
    report.workload["connections_allowed"] = json!(connections);
    report.setting = args.load_told();
    let calls = scenario.calls();
    let (own_args, own_watched, own_stop) = (args.clone(), watched.clone(), stop.clone());
    let load = move || measure(own_args, scenario, target, limits, own_watched, own_stop);
    let steps = alone(load).await?;
    tell::tell(&mut report, args, &calls, &steps);
    if let Some(told) = processes::told(&watched.trees) {
        report.text(told);
    }
    if let Some(database) = &watched.database {
        tell::tell_of_database(&mut report, &steps, database);
    }
    let complete = steps.iter().all(|step| step.figures.complete) && !steps.is_empty();
    let is_result = report.finish(&args.report, complete)?;
    if let Some(page) = &args.page {
        page::write_one(&report, page)?;
        eprintln!("the page: {}", page.display());
    }
    Ok(is_result)
}

/// What is watched beside the load. A database that cannot be asked is no obstacle: its processor time may be known all
/// the same.
async fn watched(args: &ScenarioArgs, target: &Target, report: &mut Report) -> Result<Watched> {
    let trees = args.trees(target.address())?;
    let database = match &args.database {
        Some(url) => counters::watch(url).await,
        None => Ok(None),
    };
    let database = database.unwrap_or_else(|why| {
        let told = format!("The database could not be asked what it did: {why}.");
        eprintln!("{told}");
        report.caution(told);
        None
    });
    Ok(Watched {
        trees,
        database: database.map(Arc::new),
    })
}

/// Everything that happens between the first request and the last.
async fn measure(
    args: ScenarioArgs,
    scenario: Scenario,
    target: Target,
    limits: Limits,
    watched: Watched,
    stop: CancellationToken,
) -> Result<Vec<Step>> {
    let drives = args.drives(scenario.think_time());
    let engine = Engine::new(scenario, target, limits);
    engine.set_up(&stop).await.map_err(Failure)?;
    let mut steps = Vec::new();
    for (name, drive) in drives {
        eprintln!("{name}");
        let stretch = Stretch {
            drive,
            warm_up: args.warm_up,
            duration: args.measured(),
        };
        for window in windows(&[()], Instant::now() + HEAD_START, |()| stretch) {
            let measured = vec![(window.from, window.end)];
            let sampled = sample(measured, watched.clone(), stop.clone());
            let sampler = tokio::task::spawn_local(sampled);
            let figures = engine.run(&window, stretch, &stop).await;
            let cpu = sampler.await.unwrap_or_default().pop();
            let mut step = Step {
                name: name.clone(),
                drive,
                wrong: args.too_many(&figures),
                figures,
                cpu: cpu.unwrap_or_default(),
                stopped: None,
            };
            if args.steps.is_some() && step.figures.complete {
                let reached = step.reached();
                step.stopped = reached.and_then(|reached| reached.breaks(args.stop_p99));
                let p99 = Unit::Millis.told(step.figures.served().p99);
                eprintln!("  p99 {p99}; {}", step.stopped.as_deref().unwrap_or("held"));
            }
            steps.push(step);
        }
        if stop.is_cancelled() || steps.last().is_some_and(|step| step.stopped.is_some()) {
            break;
        }
    }
    Ok(steps)
}
