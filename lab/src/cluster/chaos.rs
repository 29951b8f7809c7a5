//! `cluster chaos`: nodes under load, one fault per round, and a verdict after each.
//!
//! Each round has a load of its own, so that its check reads only what the round has stored. A round is over when all
//! logs have owners that live and every writer has had an append acknowledged that it began after the fault had healed.
//! Then the writers end, the tails reach the end of the log, and everything is compared. In the end, left alone, the
//! nodes must come to equal shares of the logs, and the store must pass `gesta verify`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gesta_core::Checkpoint;
use gesta_testkit::history::{self, Violation};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::SizeArgs;
use super::fault::{Field, NodeFault};
use super::load::{Load, read_on};
use super::nodes::{Links, Nodes};
use super::owners::{Moves, Owners};
use crate::cells;
use crate::child::{Program, ProgramArgs};
use crate::failure::{Failure, Result};
use crate::histogram::Latencies;
use crate::random::{Bag, Random};
use crate::report::{Report, ReportArgs, Table, Unit, causes};

/// Logs of a node that died or hangs have other owners within this time.
const OWNED_WITHIN: Duration = Duration::from_secs(15);
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

/// The command. True if no promise was broken.
pub(super) async fn run(args: &ChaosArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("cluster-chaos", "Nodes that share a database", args.seed);
    let program = args.program.find()?;
    let mut chaos = Chaos::start(args, &program).await?;
    chaos.rounds(args, stop).await;
    if chaos.outcome.problems.is_empty() && !stop.is_cancelled() {
        chaos.end(args, &program).await;
    }
    report.workload = json!(args);
    report.workload["links"] = json!(format!("{:?}", chaos.links));
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
    links: Links,
    owners: Owners,
    random: Random,
    /// What was stored before the present round ends here.
    at: Option<Checkpoint>,
    outcome: Outcome,
}

impl Chaos {
    async fn start(args: &ChaosArgs, program: &Path) -> Result<Self> {
        let links = match args.wanted().iter().any(|fault| fault.needs_proxies()) {
            true => Links::Proxied,
            false => Links::Direct,
        };
        let nodes = Nodes::start(&Program::gesta(program), &args.size, links).await?;
        let owners = Owners::watch(&nodes);
        Ok(Self {
            nodes,
            links,
            owners,
            random: Random::fork(args.seed, 2),
            at: None,
            outcome: Outcome::default(),
        })
    }

    /// Until all rounds are over or something was found.
    async fn rounds(&mut self, args: &ChaosArgs, stop: &CancellationToken) {
        let mut bag = Bag::new(args.wanted().to_vec(), Random::fork(args.seed, 1));
        while self.outcome.rounds < args.rounds && !stop.is_cancelled() {
            let Some(fault) = bag.draw() else { break };
            self.outcome.rounds += 1;
            let number = self.outcome.rounds;
            let found = self.outcome.problems.len();
            if let Err(failure) = self.round(args, fault).await {
                let text = format!("round {number} ({}): {failure}", fault.name());
                self.outcome.problems.push(text);
            }
            if self.outcome.problems.len() > found {
                eprintln!("{}", self.nodes.logs());
                break;
            }
        }
    }

    async fn round(&mut self, args: &ChaosArgs, fault: NodeFault) -> Result<()> {
        let seed = args.seed ^ (u64::from(self.outcome.rounds) << 32);
        let writers = usize::from(args.writers);
        let ways = self.nodes.ways();
        let mut load = Load::start(&ways, &ways, writers, seed, self.at.as_ref())?;
        self.owners.complete(BALANCED_WITHIN).await?;
        load.goes_on().await?;
        let moved = self.owners.begin_round().await?;
        let mut field = Field {
            nodes: &mut self.nodes,
            owners: &self.owners,
            owned_within: OWNED_WITHIN,
        };
        let hurt = field.inflict(fault, &mut self.random).await?;
        let back_after = load.goes_on().await?;
        self.owners.complete(OWNED_WITHIN).await?;
        let after = Duration::from_millis(self.random.next() % 1_000);
        tokio::time::sleep(after).await;
        load.end_writers().await?;
        let longest = load.longest();
        let without_owner = self.owners.longest();
        let moves = self.owners.moves_since(moved).await?;
        let stored = read_on(&ways[0], &mut self.at).await?;
        let record = load.record.clone();
        let report = load.judge(&stored).await?;
        let (violations, _) = record.violations();
        let name = format!("round {} ({})", self.outcome.rounds, fault.name());
        self.outcome
            .problems
            .extend(violations.iter().map(|text| format!("{name}: {text}")));
        let per = self.outcome.take(fault, &name, &report);
        let elsewhere = longest
            .iter()
            .filter(|(asked, _)| !hurt.iter().any(|node| asked.contains(node)));
        let elsewhere = elsewhere.map(|(_, longest)| *longest).max();
        let anywhere = longest.values().copied().max().unwrap_or_default();
        per.longest.record(anywhere);
        if let Some(elsewhere) = elsewhere {
            per.longest_elsewhere.record(elsewhere);
        }
        per.without_owner.record(without_owner);
        per.back_after.record(back_after);
        for (reason, count) in &moves {
            *per.moves.entry(reason.clone()).or_default() += count;
        }
        eprintln!(
            "{name}: {report}; longest append {anywhere:.1?}, elsewhere {:.1?}, without owner \
             {without_owner:.1?}, back after {back_after:.1?}, moved {moves:?}",
            elsewhere.unwrap_or_default()
        );
        // For balance logs may move at any time.
        if fault.moves_nothing() && moves.keys().any(|reason| reason != "balance") {
            let text = format!("{name}: logs moved without need: {moves:?}");
            self.outcome.problems.push(text);
        }
        if let Some(pause) = elsewhere.filter(|pause| fault.leaves_others() && *pause > PAUSE_MAX) {
            let text = format!("{name}: an append through a node that lives took {pause:.1?}");
            self.outcome.problems.push(text);
        }
        Ok(())
    }

    /// Equal shares after a while, and the store is healthy.
    async fn end(&mut self, args: &ChaosArgs, program: &Path) {
        let balanced = self.owners.balanced(&args.size, BALANCED_WITHIN);
        match balanced.await {
            Ok(after) => self.outcome.balanced_after = Some(after),
            Err(failure) => self.outcome.problems.push(failure.to_string()),
        }
        self.nodes.stop().await;
        let url = self.nodes.postgres.url();
        let verified = tokio::task::block_in_place(|| {
            let mut command = Command::new(program);
            command.args(["verify", "--store", &url]).output()
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
    fn wanted(&self) -> &[NodeFault] {
        match self.faults.is_empty() {
            true => NodeFault::ALL,
            false => &self.faults,
        }
    }
}

impl Outcome {
    /// Counts what a check has found.
    fn take(&mut self, fault: NodeFault, name: &str, report: &history::Report) -> &mut PerFault {
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
