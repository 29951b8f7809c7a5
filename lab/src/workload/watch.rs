//! What a load takes of the processors, and what the database does meanwhile: a look at the beginning and the end of
//! its measured part, by the thread that makes the load.

use std::sync::Arc;
use std::time::Duration;

use gesta_report::host::{CpuMeter, CpuUse};
use nix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use gesta_load::counters::{DatabaseFigures, Watch};
use gesta_load::machine::processes::Tree;

/// A generator that is busier is the limit.
const OWN_SHARE_MAX: f64 = 0.9;
/// A generator that is later is the limit. Its timers are up to 1 ms late by nature.
const LAG_P99_MS_MAX: f64 = 3.0;

/// What is watched while a load runs, beside the generator.
#[derive(Clone, Default)]
pub(crate) struct Watched {
    /// Processes of this machine.
    pub(crate) trees: Vec<Tree>,
    /// The database behind the application, wherever it is.
    pub(crate) database: Option<Arc<Watch>>,
}

/// Cores that were busy in the measured part of a phase.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sampled {
    pub(crate) machine: CpuUse,
    /// The generator's thread.
    pub(crate) own: f64,
    trees: Vec<(&'static str, f64)>,
    /// What the database did.
    pub(crate) database: Option<DatabaseFigures>,
}

impl Sampled {
    /// The processes of this name together; none if none of them is on this machine.
    pub(crate) fn of(&self, name: &str) -> Option<f64> {
        let of = self.trees.iter().filter(|(tree, _)| *tree == name);
        of.map(|(_, cores)| *cores).reduce(|sum, cores| sum + cores)
    }

    /// Why the figures are those of the generator, if they are. `lag_p99_ms`: how late it was, if it had a schedule.
    pub(crate) fn limit(&self, lag_p99_ms: Option<f64>) -> Option<&'static str> {
        if self.own > OWN_SHARE_MAX {
            return Some("the generator's thread was busy");
        }
        let is_late = lag_p99_ms.is_some_and(|lag| lag > LAG_P99_MS_MAX);
        is_late.then_some("the generator was late")
    }
}

/// Looks at the beginning and the end of each stretch of time.
pub(crate) async fn sample(
    measured: Vec<(Instant, Instant)>,
    watched: Watched,
    stop: CancellationToken,
) -> Vec<Sampled> {
    let Watched { trees, database } = watched;
    let mut samples = Vec::new();
    for (from, end) in measured {
        let until = async |moment| {
            tokio::select! {
                () = sleep_until(moment) => {}
                () = stop.cancelled() => {}
            }
        };
        until(from).await;
        let (began, own, machine) = (Instant::now(), own_time(), CpuMeter::start());
        let before = busy(&trees).await;
        // A database that does not answer now does not end the run.
        let looked = match &database {
            Some(database) => database.look().await.ok(),
            None => None,
        };
        until(end).await;
        let seconds = began.elapsed().as_secs_f64().max(0.001);
        let cores = |used: Duration| (used.as_secs_f64() / seconds * 1e4).round() / 1e4;
        let (machine, own) = (machine.used(), cores(own_time().saturating_sub(own)));
        let after = busy(&trees).await;
        let counted = match database.as_ref().zip(looked) {
            Some((database, before)) => database.since(&before).await.ok(),
            None => None,
        };
        let used = trees.iter().zip(before.into_iter().zip(after));
        samples.push(Sampled {
            machine,
            own,
            trees: used
                .map(|(tree, (before, after))| (tree.name, cores(after.saturating_sub(before))))
                .collect(),
            database: counted,
        });
    }
    samples
}

/// Processor times so far; read on another thread, since it takes a while.
async fn busy(trees: &[Tree]) -> Vec<Duration> {
    let trees = trees.to_vec();
    let look = move || trees.iter().map(Tree::busy).collect();
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

fn own_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
