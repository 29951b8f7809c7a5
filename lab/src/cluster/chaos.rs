//! `cluster chaos`: nodes under load, one fault per round, and a verdict after each.
//!
//! Each round has a load of its own, so that its check reads only what the round has stored. A round is over when all
//! logs have owners that live and every writer has had an append acknowledged that it began after the fault had healed.
//! Then the writers end, the tails reach the end of the log, and everything is compared. With cinemas instead of event
//! stores the load is reservations, and every answer, reads included, must fit one order of them for each seat. In the
//! end, left alone, the nodes must come to equal shares of the logs, and the store must pass `gesta verify`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gesta_core::Checkpoint;
use gesta_testkit::history::{self, Violation};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::SizeArgs;
use super::fault::{Field, LoadKind, NodeFault};
use super::load::{Load, Longest, Prober, read_on};
use super::nodes::{Conditions, Nodes};
use super::owners::{Moves, Owners};
use super::seats::Seats;
use crate::cells;
use crate::child::{Program, ProgramArgs};
use crate::failure::{Failure, Result, fail};
use crate::histogram::Latencies;
use crate::random::{Bag, Random};
use crate::report::{Report, ReportArgs, Table, Unit, causes};
use crate::reservation::Wrong;

/// Logs of a node that died or hangs have other owners within this time.
const OWNED_WITHIN: Duration = Duration::from_secs(15);
/// The logs of a node that was killed are without an owner for no longer.
const WITHOUT_OWNER_MAX: Duration = Duration::from_secs(10);
/// The longest append through a node that is not hurt.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Nodes that are left alone have equal shares within this time.
const BALANCED_WITHIN: Duration = Duration::from_secs(180);

/// Faults of nodes, links and their database, one per round.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct ChaosArgs {
    #[command(flatten)]
    size: SizeArgs,
    /// Rounds, one fault each.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Writers, shared equally among the nodes.
    #[arg(long, default_value_t = 18, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    writers: u16,
    /// Seed of faults, times and appends.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Only these faults. Without any of links, the nodes reach each other directly.
    #[arg(long, value_enum, value_delimiter = ',')]
    #[serde(skip)]
    faults: Vec<NodeFault>,
    /// The nodes are cinemas, by this program, and --writers are their users.
    #[arg(long, value_name = "PROGRAM")]
    #[serde(skip)]
    cinema: Option<PathBuf>,
    #[command(flatten)]
    #[serde(skip)]
    program: ProgramArgs,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// What one kind of fault has shown.
#[derive(Debug, Default)]
struct PerFault {
    acknowledged: u64,
    lost: u64,
    doubled: u64,
    stale: u64,
    unknown: u64,
    /// The longest append of each round that was asked of nodes only that were not hurt, and of any.
    longest_elsewhere: Latencies,
    longest: Latencies,
    /// The longest time of each round that some log was without an owner that lives.
    without_owner: Latencies,
    /// From the end of each fault until every writer went on.
    back_after: Latencies,
    moves: Moves,
}

/// What happened in a run.
#[derive(Debug, Default)]
struct Outcome {
    rounds: u32,
    per_fault: BTreeMap<NodeFault, PerFault>,
    problems: Vec<String>,
    acknowledged: usize,
    events: usize,
    attempts: usize,
    balanced_after: Option<Duration>,
}

/// What a fault has done, before its round is over.
struct Inflicted {
    fault: NodeFault,
    name: String,
    /// The nodes that were hurt, and how many logs they had.
    hurt: Vec<usize>,
    owned: u64,
    /// The last moves before it.
    moved: Vec<i64>,
}

/// The command. True if no promise was broken.
pub(super) async fn run(args: &ChaosArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("cluster-chaos", "Nodes that share a database", args.seed);
    let program = args.program.find()?;
    let wanted = args.wanted()?;
    let mut chaos = Chaos::start(args, &wanted, &program).await?;
    chaos.rounds(args, wanted, stop).await;
    if chaos.outcome.problems.is_empty() && !stop.is_cancelled() {
        chaos.end(args, &program).await;
    }
    report.workload = json!(args);
    report.workload["conditions"] = json!(chaos.conditions);
    report.workload["cinema"] = json!(args.cinema.is_some());
    let outcome = &chaos.outcome;
    outcome.tell(&mut report);
    report.finding = format!(
        "{} rounds, {} appends acknowledged, {} events stored, seed {}: {}.",
        outcome.rounds,
        outcome.acknowledged,
        outcome.events,
        args.seed,
        match report.problems.is_empty() {
            true => "every promise was kept",
            false => "PROMISES WERE BROKEN",
        }
    );
    report.finish(&args.report, outcome.rounds >= args.rounds)
}

struct Chaos {
    nodes: Nodes,
    conditions: Conditions,
    owners: Owners,
    random: Random,
    /// What was stored before the present round ends here.
    at: Option<Checkpoint>,
    outcome: Outcome,
}

impl Chaos {
    async fn start(args: &ChaosArgs, wanted: &[NodeFault], program: &Path) -> Result<Self> {
        let conditions = NodeFault::conditions(wanted);
        let program = match &args.cinema {
            Some(cinema) => Program::cinema(cinema),
            None => Program::gesta(program),
        };
        let nodes = Nodes::start(&program, &args.size, conditions).await?;
        let owners = Owners::watch(&nodes);
        Ok(Self {
            nodes,
            conditions,
            owners,
            random: Random::fork(args.seed, 2),
            at: None,
            outcome: Outcome::default(),
        })
    }

    /// Until all rounds are over or something was found.
    async fn rounds(&mut self, args: &ChaosArgs, wanted: Vec<NodeFault>, stop: &CancellationToken) {
        let mut bag = Bag::new(wanted, Random::fork(args.seed, 1));
        while self.outcome.rounds < args.rounds && !stop.is_cancelled() {
            let Some(fault) = bag.draw() else { break };
            self.outcome.rounds += 1;
            let number = self.outcome.rounds;
            let found = self.outcome.problems.len();
            let ended = match &args.cinema {
                None => self.round(args, fault).await,
                Some(_) => self.round_of_seats(args, fault).await,
            };
            if let Err(failure) = ended {
                let text = format!("round {number} ({}): {failure}", fault.name());
                self.outcome.problems.push(text);
            }
            if self.outcome.problems.len() > found {
                eprintln!("{}", self.nodes.logs());
                break;
            }
        }
    }

    /// A round with appends.
    async fn round(&mut self, args: &ChaosArgs, fault: NodeFault) -> Result<()> {
        let ways = self.nodes.ways();
        let (writers, seed) = (usize::from(args.writers), self.seed(args));
        let mut load = Load::start(&ways, &ways, writers, seed, self.at.as_ref())?;
        self.owners.complete(BALANCED_WITHIN).await?;
        load.goes_on().await?;
        let prober = Prober::new(&load, &ways, args.size.logs)?;
        let inflicted = self.inflict(fault, Some(&prober)).await?;
        let back_after = load.goes_on().await?;
        self.quiet().await?;
        load.end_writers().await?;
        let longest = load.longest();
        let errors = load.errors();
        let stored = read_on(&ways[0], &mut self.at).await?;
        let record = load.record.clone();
        let report = load.judge(&stored).await?;
        let name = &inflicted.name;
        let (violations, _) = record.violations();
        self.outcome
            .problems
            .extend(violations.iter().map(|text| format!("{name}: {text}")));
        let per = self.outcome.take(fault, name, &report);
        let unknown = errors
            .iter()
            .filter(|(told, _)| told.contains("outcome unknown"));
        per.unknown += unknown.map(|(_, count)| count).sum::<u64>();
        per.back_after.record(back_after);
        self.account_for_pauses(&inflicted, &longest);
        let told = self.settle(&inflicted).await?;
        eprintln!(
            "{}: {report}; {told}, back after {back_after:.1?}",
            inflicted.name
        );
        Ok(())
    }

    /// A round with reservations at cinemas.
    async fn round_of_seats(&mut self, args: &ChaosArgs, fault: NodeFault) -> Result<()> {
        let targets = self.nodes.all.iter().map(|node| node.server.address());
        let url = self.nodes.url();
        let seats = Seats::start(targets.collect(), args.writers, self.seed(args), &url).await?;
        self.owners.complete(BALANCED_WITHIN).await?;
        seats.goes_on().await?;
        let inflicted = self.inflict(fault, None).await?;
        let back_after = seats.goes_on().await?;
        self.quiet().await?;
        let verdict = seats.judge().await?;
        let name = &inflicted.name;
        let problems = verdict.wrongs.told().into_iter();
        self.outcome
            .problems
            .extend(problems.map(|problem| format!("{name}: {problem}")));
        self.outcome.acknowledged += usize::try_from(verdict.acknowledged)?;
        self.outcome.events += usize::try_from(verdict.events.unwrap_or_default())?;
        let count = |kinds: &[Wrong]| -> u64 {
            let counts = kinds.iter().map(|kind| verdict.wrongs.count(*kind));
            counts.sum()
        };
        let per = self.outcome.per_fault.entry(fault).or_default();
        per.acknowledged += verdict.acknowledged;
        per.lost += count(&[Wrong::Lost, Wrong::NotStored]);
        per.doubled += count(&[
            Wrong::HeldTwice,
            Wrong::CancelledTwice,
            Wrong::StoredTwice,
            Wrong::Uninvited,
        ]);
        per.stale += count(&[Wrong::Stale]);
        per.unknown += verdict.unknown;
        per.back_after.record(back_after);
        let told = self.settle(&inflicted).await?;
        eprintln!(
            "{}: {} {told}, back after {back_after:.1?}",
            inflicted.name,
            verdict.sentence()
        );
        Ok(())
    }

    fn seed(&self, args: &ChaosArgs) -> u64 {
        args.seed ^ (u64::from(self.outcome.rounds) << 32)
    }

    /// Makes the fault of this round and heals it.
    async fn inflict(&mut self, fault: NodeFault, prober: Option<&Prober>) -> Result<Inflicted> {
        let moved = self.owners.begin_round().await?;
        let owned = self.owners.owned().await?;
        let mut field = Field {
            nodes: &mut self.nodes,
            owners: &self.owners,
            prober,
            owned_within: OWNED_WITHIN,
        };
        let hurt = field.inflict(fault, &mut self.random).await?;
        let of_hurt = hurt.iter().map(|node| &self.nodes.all[*node].address);
        Ok(Inflicted {
            fault,
            name: format!("round {} ({})", self.outcome.rounds, fault.name()),
            owned: of_hurt.filter_map(|address| owned.get(address)).sum(),
            hurt,
            moved,
        })
    }

    /// Waits until all logs have owners, and a little while.
    async fn quiet(&mut self) -> Result<()> {
        self.owners.complete(OWNED_WITHIN).await?;
        let after = Duration::from_millis(self.random.next() % 1_000);
        tokio::time::sleep(after).await;
        Ok(())
    }

    /// Takes down the longest appends.
    fn account_for_pauses(&mut self, inflicted: &Inflicted, longest: &Longest) {
        let Inflicted { fault, name, .. } = inflicted;
        let is_hurt = |node: &usize| inflicted.hurt.contains(node);
        let elsewhere = longest
            .iter()
            .filter(|(asked, _)| !asked.iter().any(is_hurt));
        let elsewhere = elsewhere.map(|(_, longest)| *longest).max();
        let anywhere = longest.values().copied().max().unwrap_or_default();
        let per = self.outcome.per_fault.entry(*fault).or_default();
        per.longest.record(anywhere);
        if let Some(elsewhere) = elsewhere {
            per.longest_elsewhere.record(elsewhere);
        }
        eprintln!(
            "{name}: longest append {anywhere:.1?}, elsewhere {:.1?}",
            elsewhere.unwrap_or_default()
        );
        if let Some(pause) = elsewhere.filter(|pause| fault.leaves_others() && *pause > PAUSE_MAX) {
            let text = format!("{name}: an append through a node that lives took {pause:.1?}");
            self.outcome.problems.push(text);
        }
    }

    /// Takes down what has become of the logs; gives it in words.
    async fn settle(&mut self, inflicted: &Inflicted) -> Result<String> {
        let Inflicted { fault, name, .. } = inflicted;
        let without_owner = self.owners.longest();
        let moves = self.owners.moves_since(&inflicted.moved).await?;
        let per = self.outcome.per_fault.entry(*fault).or_default();
        per.without_owner.record(without_owner);
        for (reason, count) in &moves {
            *per.moves.entry(reason.clone()).or_default() += count;
        }
        // For balance logs may move at any time.
        let needed = moves.iter().filter(|(reason, _)| *reason != "balance");
        let needed: u64 = needed.map(|(_, count)| count).sum();
        if needed > fault.moves_max(inflicted.owned) {
            let text = format!("{name}: logs moved without need: {moves:?}");
            self.outcome.problems.push(text);
        }
        if fault.kills() && without_owner > WITHOUT_OWNER_MAX {
            let text = format!("{name}: a log was without an owner for {without_owner:.1?}");
            self.outcome.problems.push(text);
        }
        Ok(format!(
            "without owner {without_owner:.1?}, moved {moves:?}"
        ))
    }

    /// Equal shares after a while, and the store is healthy.
    async fn end(&mut self, args: &ChaosArgs, program: &Path) {
        let balanced = self.owners.balanced(&args.size, BALANCED_WITHIN);
        match balanced.await {
            Ok(after) => self.outcome.balanced_after = Some(after),
            Err(failure) => self.outcome.problems.push(failure.to_string()),
        }
        self.nodes.stop().await;
        let urls = self.nodes.databases().map(gesta_pgtest::Server::url);
        let stores = urls.flat_map(|url| ["--store".to_owned(), url]);
        let verified = tokio::task::block_in_place(|| {
            let mut command = Command::new(program);
            command.arg("verify").args(stores).output()
        });
        match verified {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout);
                self.outcome.problems.push(format!("gesta verify: {said}"));
            }
            Err(error) => self.outcome.problems.push(Failure::from(error).to_string()),
        }
    }
}

impl ChaosArgs {
    /// The faults that are wanted and can be had.
    ///
    /// # Errors
    /// One that was asked for cannot be had.
    fn wanted(&self) -> Result<Vec<NodeFault>> {
        let load = match self.cinema {
            None => LoadKind::Appends,
            Some(_) => LoadKind::Seats,
        };
        let fits = |fault: NodeFault| fault.fits(&self.size, load);
        if self.faults.is_empty() {
            let all = NodeFault::ALL.iter().copied();
            return Ok(all.filter(|fault| fits(*fault)).collect());
        }
        let one_away = NodeFault::OneDatabaseAway;
        if self.faults.contains(&one_away) && !fits(one_away) {
            return fail("--faults one-database-away needs --databases 2 or more, and no --cinema");
        }
        Ok(self.faults.clone())
    }
}

impl Outcome {
    /// Counts what a check has found.
    fn take(
        &mut self,
        fault: NodeFault,
        name: &str,
        report: &history::HistoryReport,
    ) -> &mut PerFault {
        self.acknowledged += report.acknowledged;
        self.events += report.events_stored;
        self.attempts += report.attempts;
        for violation in &report.violations {
            self.problems.push(format!("{name}: {violation}"));
        }
        if report.events_foreign > 0 {
            let foreign = report.events_foreign;
            self.problems
                .push(format!("{name}: {foreign} events that nobody appended"));
        }
        let per = self.per_fault.entry(fault).or_default();
        per.acknowledged += report.acknowledged as u64;
        for violation in &report.violations {
            match violation {
                Violation::AcknowledgedLost { .. } => per.lost += 1,
                Violation::StoredTwice { .. } => per.doubled += 1,
                _ => {}
            }
        }
        per
    }

    /// A table of the faults, and every promise that was broken.
    fn tell(&self, report: &mut Report) {
        let columns = [
            ("fault", Unit::Words),
            ("rounds", Unit::Count),
            ("acknowledged", Unit::Count),
            ("lost", Unit::Count),
            ("doubled", Unit::Count),
            ("stale", Unit::Count),
            ("unknown", Unit::Count),
            ("longest append elsewhere (median)", Unit::Millis),
            ("longest", Unit::Millis),
            ("through any node", Unit::Millis),
            ("a log without owner (median)", Unit::Millis),
            ("at most", Unit::Millis),
            ("all go on after", Unit::Millis),
            ("moves", Unit::Words),
        ];
        let mut table = Table::new("Faults", columns);
        for (fault, per) in &self.per_fault {
            let elsewhere = per.longest_elsewhere.percentiles();
            let without = per.without_owner.percentiles();
            let known = |value: f64| (elsewhere.count > 0).then_some(value);
            table.row(cells![
                fault.name(),
                without.count,
                per.acknowledged,
                per.lost,
                per.doubled,
                per.stale,
                per.unknown,
                known(elsewhere.p50),
                known(elsewhere.max),
                per.longest.percentiles().max,
                without.p50,
                without.max,
                per.back_after.percentiles().max,
                causes(&per.moves),
            ]);
        }
        report.table(table);
        report.fact("attempts", Unit::Count, self.attempts, "of all appends");
        let balanced = self.balanced_after.map(|after| after.as_secs_f64());
        report.fact("equal shares after", Unit::Seconds, balanced, "of quiet");
        for problem in &self.problems {
            report.problem(problem.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        chaos: ChaosArgs,
    }

    fn wanted(line: &str) -> Result<Vec<NodeFault>> {
        Line::parse_from(line.split(' ')).chaos.wanted()
    }

    /// What happened: with cinemas on several databases the round with one database away always failed, because it
    /// needs appends to logs of the others.
    #[test]
    fn with_cinemas_no_single_database_is_away() {
        let away = NodeFault::OneDatabaseAway;
        for (line, is_there) in [
            ("chaos", false),
            ("chaos --databases 3", true),
            ("chaos --databases 3 --cinema cinema", false),
        ] {
            let faults = wanted(line).expect("can be had");
            assert_eq!(faults.contains(&away), is_there, "{line}");
            assert!(faults.contains(&NodeFault::DatabaseKill), "{line}");
            let named = wanted(&format!("{line} --faults one-database-away,node-kill"));
            assert_eq!(named.is_ok(), is_there, "{line}");
        }
    }
}
