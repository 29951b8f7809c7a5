//! `cluster roll`: all nodes are restarted in order, one after the other, under load: how many logs move, for how long
//! each one is interrupted, and what clients see of it.
//!
//! Clients know all nodes and keep their connections. A connection that nobody takes is no error, for nothing was
//! asked; every other end of a request but an answer is one. *Interrupted* is a log while appends to it wait and none
//! is acknowledged.

use std::time::{Duration, Instant};

use gesta_chaos::load::appends::{Answered, NodeCrew};
use gesta_chaos::world::{Moved, Owners, World};
use gesta_core::LogId;
use gesta_load::machine::child::{Program, ProgramArgs};
use gesta_report::cells;
use gesta_report::failure::{Result, fail};
use gesta_report::histogram::Latencies;
use gesta_report::units;
use gesta_report::{Report, ReportArgs, Table, Unit};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::SizeArgs;

/// Moves of a rolling restart of three nodes with 16 logs: each log leaves its node when that one stops, and the first
/// and the last node get their share back.
const MOVES_MAX: usize = 26;
/// What belongs to a move begins and ends so long before and after it.
const AROUND: Duration = Duration::from_secs(1);
/// Nodes that are left alone have equal shares within this time.
const BALANCED_WITHIN: Duration = Duration::from_secs(180);
/// The pause of writers: so short that something waits for every log all the time.
const PAUSE: Duration = Duration::from_millis(2);

/// Rolling restarts under load.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct RollArgs {
    #[command(flatten)]
    size: SizeArgs,
    /// Rolling restarts, one after the other, each when the nodes have equal shares of the logs.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rolls: u32,
    /// Writers, shared equally among the nodes.
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    writers: u16,
    /// The longest interruption of a log that is no finding.
    #[arg(long, default_value = "200ms", value_parser = units::duration)]
    #[serde(skip)]
    interruption: Duration,
    /// Seed of appends.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    program: ProgramArgs,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// What a rolling restart has shown.
struct Roll {
    moves: Vec<Moved>,
    interrupted: Latencies,
    /// How much of each interruption had passed when the lease changed.
    until_moved: Latencies,
    /// The same around moments at which nothing moved, for comparison.
    otherwise: Latencies,
    longest_append: Duration,
    took: Duration,
    acknowledged: usize,
    problems: Vec<String>,
}

/// The command. True if every bound was kept.
pub(super) async fn run(args: &RollArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("cluster-roll", "Rolling restarts", args.seed);
    let program = Program::gesta(&args.program.find()?);
    let mut nodes = World::start(&args.size.plan(&program)).await?;
    let owners = Owners::watch(&nodes);
    let (mut rolls, mut at) = (Vec::new(), None);
    while rolls.len() < args.rolls as usize && !stop.is_cancelled() {
        owners.balanced(&nodes, BALANCED_WITHIN).await?;
        let ways = nodes.ways();
        let (writers, seed) = (usize::from(args.writers), args.seed + rolls.len() as u64);
        let load = NodeCrew::start(&ways, writers, seed, at.as_ref(), PAUSE)?;
        let (mut roll, load) = one(args, &mut nodes, &owners, load).await?;
        let (judged, problems) = load.crew.verdict(&*ways[0].client()?, &mut at).await?;
        roll.acknowledged = judged.acknowledged;
        roll.problems.extend(problems);
        eprintln!(
            "{judged}; {} moves in {:.1?}, interrupted {:.0?} ms at most, appends {:.0?} at most",
            roll.moves.len(),
            roll.took,
            roll.interrupted.percentiles().max,
            roll.longest_append,
        );
        rolls.push(roll);
    }
    nodes.stop().await?;
    report.workload = json!(args);
    report.finding = tell(&mut report, args, &rolls);
    report.finish(&args.report, rolls.len() == args.rolls as usize)
}

/// One rolling restart, until the logs are shared equally again.
async fn one(
    args: &RollArgs,
    nodes: &mut World,
    owners: &Owners,
    mut load: NodeCrew,
) -> Result<(Roll, NodeCrew)> {
    load.crew.goes_on().await?;
    let (moved, begun) = (owners.begin_round().await?, Instant::now());
    for node in &mut nodes.members {
        if !node.server.stop().await {
            return fail(format!("{} did not stop", node.name));
        }
        node.server.launch().await?;
        load.crew.goes_on().await?;
    }
    let took = begun.elapsed();
    owners.balanced(nodes, BALANCED_WITHIN).await?;
    // The last move has its second, too.
    tokio::time::sleep(AROUND).await;
    load.crew.end_writers().await?;
    let (moves, answered) = (owners.moved_since(&moved).await?, load.answered());
    let longest = load.longest();
    let mut roll = Roll {
        interrupted: Latencies::default(),
        until_moved: Latencies::default(),
        otherwise: Latencies::default(),
        longest_append: longest.values().copied().max().unwrap_or_default(),
        took,
        acknowledged: 0,
        problems: Vec::new(),
        moves,
    };
    let errors = load.errors().into_iter();
    roll.problems
        .extend(errors.map(|(error, count)| format!("{count} clients saw an error: {error}")));
    roll.judge_interruptions(args, &waits(&answered, args.size.logs));
    let size = &args.size;
    let is_known = (size.nodes, size.logs, size.databases) == (3, 16, 1);
    if is_known && roll.moves.len() > MOVES_MAX {
        let count = roll.moves.len();
        roll.problems.push(format!("{count} logs moved"));
    }
    Ok((roll, load))
}

/// A time during which appends to a log waited and none was acknowledged, and its end.
type Wait = (Duration, Instant);

/// The waits of each log, in the order of their ends.
fn waits(answered: &[Answered], logs: u16) -> Vec<Vec<Wait>> {
    let of_log = |log| {
        let mut all: Vec<&Answered> = answered.iter().filter(|one| one.log == log).collect();
        all.sort_by_key(|one| one.at);
        // From its end on, so that the first one of those that wait is known.
        let mut first: Option<Instant> = None;
        let mut waits: Vec<Wait> = Vec::new();
        for at in (0..all.len()).rev() {
            let begun = first.map_or(all[at].begun, |first| first.min(all[at].begun));
            first = Some(begun);
            let before = at.checked_sub(1).map(|before| all[before].at);
            let since = before.map_or(begun, |before| before.max(begun));
            waits.push((all[at].at.saturating_duration_since(since), all[at].at));
        }
        waits.reverse();
        waits
    };
    (0..logs).map(|log| of_log(LogId(log))).collect()
}

impl Roll {
    /// Takes down the longest wait around each move, and of each log the longest one at other times.
    fn judge_interruptions(&mut self, args: &RollArgs, waits: &[Vec<Wait>]) {
        for (log, waits) in waits.iter().enumerate() {
            let of_log = self
                .moves
                .iter()
                .filter(|moved| usize::from(moved.log.0) == log);
            let is_around = |moved: &Moved, (wait, end): &Wait| {
                *end - *wait < moved.at + AROUND && moved.at < *end + AROUND
            };
            let mut others: Vec<&Wait> = waits.iter().collect();
            for moved in of_log {
                others.retain(|wait| !is_around(moved, wait));
                let around = waits.iter().filter(|wait| is_around(moved, wait));
                let Some((longest, end)) = around.max_by_key(|(wait, _)| *wait) else {
                    let text = format!("nothing was appended to log {log} when it moved");
                    self.problems.push(text);
                    continue;
                };
                let after = end.saturating_duration_since(moved.at).min(*longest);
                self.interrupted.record(*longest);
                self.until_moved.record(*longest - after);
                if *longest >= args.interruption {
                    let reason = &moved.reason;
                    let text = format!(
                        "log {log} was interrupted for {longest:.0?} ({reason}), {after:.0?} of it after the lease changed"
                    );
                    self.problems.push(text);
                }
            }
            if let Some((longest, _)) = others.into_iter().max_by_key(|(wait, _)| *wait) {
                self.otherwise.record(*longest);
            }
        }
    }
}

/// A table with a row per rolling restart; gives the finding.
fn tell(report: &mut Report, args: &RollArgs, rolls: &[Roll]) -> String {
    let columns = [
        ("took", Unit::Seconds),
        ("moves", Unit::Count),
        ("a log interrupted (median)", Unit::Millis),
        ("at most", Unit::Millis),
        ("of it until the lease changed (median)", Unit::Millis),
        (
            "longest wait without a move, of each log (median)",
            Unit::Millis,
        ),
        ("at most", Unit::Millis),
        ("longest append", Unit::Millis),
        ("acknowledged", Unit::Count),
        ("findings", Unit::Count),
    ];
    let mut table = Table::new("Rolling restarts", columns);
    let mut all = Latencies::default();
    for roll in rolls {
        let (moved, otherwise) = (roll.interrupted.percentiles(), roll.otherwise.percentiles());
        all.merge(&roll.interrupted);
        table.row(cells![
            roll.took.as_secs_f64(),
            roll.moves.len(),
            moved.p50,
            moved.max,
            roll.until_moved.percentiles().p50,
            otherwise.p50,
            otherwise.max,
            roll.longest_append.as_secs_f64() * 1_000.0,
            roll.acknowledged,
            roll.problems.len(),
        ]);
        for problem in &roll.problems {
            report.problem(problem.clone());
        }
    }
    report.table(table);
    let (moved, most) = (all.percentiles(), rolls.iter().map(|roll| roll.moves.len()));
    format!(
        "{} rolling restarts, seed {}: at most {} moves, a log interrupted for {:.0} ms (median) and {:.0} ms at most.",
        rolls.len(),
        args.seed,
        most.max().unwrap_or_default(),
        moved.p50,
        moved.max
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a wait counts from the answer before it, or from when the first of those that wait was asked for.
    #[test]
    fn a_log_waits_while_appends_to_it_do() {
        let epoch = Instant::now();
        let at = |millis| epoch + Duration::from_millis(millis);
        let append = |begun, end, log| Answered {
            begun: at(begun),
            at: at(end),
            log: LogId(log),
        };
        let answered = [
            append(0, 5, 0),
            append(2, 40, 0),
            // Nothing waits from 40 to 100; the second of the two was asked for first.
            append(110, 120, 0),
            append(100, 130, 0),
            append(0, 130, 1),
        ];
        let millis = |waits: &[Wait]| -> Vec<u128> {
            waits.iter().map(|(wait, _)| wait.as_millis()).collect()
        };
        let waits = waits(&answered, 2);
        assert_eq!(millis(&waits[0]), [5, 35, 20, 10]);
        assert_eq!(millis(&waits[1]), [130]);
    }
}
