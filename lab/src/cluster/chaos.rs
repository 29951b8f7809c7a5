//! `cluster chaos`: nodes under load, one fault per round, and a verdict after each.
//!
//! Each round has a load of its own, so that its check reads only what the round has stored. A round is over when all
//! logs have owners that live and every writer has had an append acknowledged that it began after the fault had healed.
//! Then the writers end, the tails reach the end of the log, and everything is compared. With cinemas instead of event
//! stores the load is reservations, and every answer, reads included, must fit one order of them for each seat. With
//! `--pay-within` some seats are paid and the rest is given back, which the events alone must show (`payments`). At the
//! end, left alone, the nodes must come to equal shares of the logs, and the store must pass `gesta verify`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum as _;
use gesta_core::Checkpoint;
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use gesta_report::failure::{Result, fail};
use gesta_report::{Report, ReportArgs, Table, Unit, causes};
use gesta_report::units;
use gesta_load::machine::child::{self, Program, ProgramArgs};
use gesta_load::random::{Bag, Random};
use gesta_load::cinema::{Wrong, Wrongs};

use super::SizeArgs;
use super::fault::{Field, LoadKind, NodeFault};
use super::load::{Load, Prober, client};
use super::nodes::{Conditions, Nodes};
use super::owners::{Moves, Owners};
use super::payments::{Counts, Payments, Users};
use super::seats::Seats;
use crate::faults::per_fault::{PerFault, lost_and_doubled};
use crate::faults::promises;
use crate::history_file::{HistoryArgs, HistoryFile};

/// Pause of a writer between two appends.
const PAUSE: Duration = Duration::from_millis(10);
/// Logs of a node that died or hangs have other owners within this time.
const OWNED_WITHIN: Duration = Duration::from_secs(15);
/// They have them within this time with `--any-time`.
const OWNED_AT_ALL_WITHIN: Duration = Duration::from_secs(180);
/// The load goes on this soon after all is healed.
const PROGRESS_WITHIN: Duration = Duration::from_secs(60);
/// It goes on this soon with `--any-time`.
const PROGRESS_AT_ALL_WITHIN: Duration = Duration::from_secs(300);
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
    /// The cinemas give back what is not paid for so long; users pay some of their seats, and a judge reads every
    /// event.
    #[arg(long, value_name = "TIME", requires = "cinema", value_parser = units::duration)]
    #[serde(skip)]
    pay_within: Option<Duration>,
    /// No time counts as too long, as long as everything ends within minutes: for a machine that does other things,
    /// too. All times are told.
    #[arg(long)]
    #[serde(skip)]
    any_time: bool,
    #[command(flatten)]
    #[serde(skip)]
    history: HistoryArgs,
    #[command(flatten)]
    #[serde(skip)]
    program: ProgramArgs,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// What happened in a run.
#[derive(Debug)]
struct Outcome {
    rounds: u32,
    per_fault: PerFault<NodeFault>,
    moves: BTreeMap<NodeFault, Moves>,
    problems: Vec<String>,
    events: u64,
    attempts: usize,
    balanced_after: Option<Duration>,
    /// What became of the seats, if they are paid.
    paid: Option<Counts>,
}

/// What a round has shown; each fault has its sums.
struct Shown {
    /// In the order of [`COUNTS`].
    counts: [u64; 5],
    /// The longest append that was asked of nodes only that were not hurt, and of any.
    longest: [Option<Duration>; 2],
    back_after: Duration,
    events: u64,
    problems: Vec<String>,
    /// In words.
    told: String,
}

const COUNTS: [&str; 5] = ["acknowledged", "lost", "doubled", "stale", "unknown"];
/// What counts as doubled.
const DOUBLED: [Wrong; 6] = [
    Wrong::HeldTwice,
    Wrong::CancelledTwice,
    Wrong::StoredTwice,
    Wrong::Uninvited,
    Wrong::GivenBackTwice,
    Wrong::GivenBackWrongly,
];
const TIMES: [&str; 4] = [
    "longest append elsewhere",
    "longest through any node",
    "a log without owner",
    "all go on after",
];

/// How often these were found.
fn count(wrongs: &Wrongs, kinds: &[Wrong]) -> u64 {
    kinds.iter().map(|kind| wrongs.count(*kind)).sum()
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
    let outcome = chaos.outcome;
    outcome.tell(&mut report);
    report.finish(&args.report, outcome.rounds >= args.rounds)
}

struct Chaos {
    nodes: Nodes,
    conditions: Conditions,
    owners: Owners,
    random: Random,
    /// What was stored before the present round ends here.
    at: Option<Checkpoint>,
    payments: Option<Payments>,
    history: HistoryFile,
    outcome: Outcome,
}

impl Chaos {
    async fn start(args: &ChaosArgs, wanted: &[NodeFault], program: &Path) -> Result<Self> {
        let conditions = NodeFault::conditions(wanted);
        let program = match &args.cinema {
            Some(cinema) => args.cinema_program(cinema),
            None => Program::gesta(program),
        };
        let nodes = Nodes::start(&program, &args.size, conditions).await?;
        let owners = Owners::watch(&nodes);
        let payments = match args.pay_within {
            Some(within) => Some(Payments::start(&nodes.url(), within, args.any_time).await?),
            None => None,
        };
        Ok(Self {
            nodes,
            conditions,
            owners,
            random: Random::fork(args.seed, 2),
            at: None,
            payments,
            history: args.history.create()?,
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

    /// A round, and what it has shown.
    async fn round(&mut self, args: &ChaosArgs, fault: NodeFault) -> Result<()> {
        let (inflicted, shown) = match &args.cinema {
            None => self.appends(args, fault).await?,
            Some(_) if self.payments.is_some() => self.pay(args, fault).await?,
            Some(_) => self.seats(args, fault).await?,
        };
        let name = &inflicted.name;
        let problems = shown.problems.iter();
        let problems = problems.map(|problem| format!("{name}: {problem}"));
        self.outcome.problems.extend(problems);
        self.outcome.events += shown.events;
        let told = self.settle(args, &inflicted, &shown).await?;
        eprintln!(
            "{name}: {}; {told}, back after {:.1?}",
            shown.told, shown.back_after
        );
        Ok(())
    }

    /// A round with appends.
    async fn appends(&mut self, args: &ChaosArgs, fault: NodeFault) -> Result<(Inflicted, Shown)> {
        let ways = self.nodes.ways();
        let (writers, seed) = (usize::from(args.writers), self.seed(args));
        let mut load = Load::start(&ways, writers, seed, self.at.as_ref(), PAUSE)?;
        load.history = self.history.clone();
        self.owners.complete(BALANCED_WITHIN).await?;
        load.goes_on_within(args.progress_within()).await?;
        let prober = Prober::new(&load, &ways, args.size.logs, args.probe_patience())?;
        let inflicted = self.inflict(args, fault, Some(&prober)).await?;
        let back_after = load.goes_on_within(args.progress_within()).await?;
        self.quiet(args).await?;
        load.end_writers().await?;
        let (longest, errors) = (load.longest(), load.errors());
        let (verdict, problems) = load.load.verdict(&*client(&ways[0])?, &mut self.at).await?;
        self.outcome.attempts += verdict.attempts;
        let [lost, doubled] = lost_and_doubled(&verdict);
        let unknown = errors
            .iter()
            .filter(|(told, _)| told.contains("outcome unknown"));
        let unknown = unknown.map(|(_, count)| count).sum();
        let is_hurt = |node: &usize| inflicted.hurt.contains(node);
        let elsewhere = longest
            .iter()
            .filter(|(asked, _)| !asked.iter().any(is_hurt));
        let shown = Shown {
            counts: [verdict.acknowledged as u64, lost, doubled, 0, unknown],
            longest: [
                elsewhere.map(|(_, longest)| *longest).max(),
                longest.values().copied().max(),
            ],
            back_after,
            events: verdict.events_stored as u64,
            problems,
            told: verdict.to_string(),
        };
        Ok((inflicted, shown))
    }

    /// A round with reservations at cinemas.
    async fn seats(&mut self, args: &ChaosArgs, fault: NodeFault) -> Result<(Inflicted, Shown)> {
        let targets = self.nodes.all.iter().map(|node| node.server.address());
        let url = self.nodes.url();
        let seats = Seats::start(targets.collect(), args.writers, self.seed(args), &url).await?;
        self.owners.complete(BALANCED_WITHIN).await?;
        seats.goes_on(args.progress_within()).await?;
        let inflicted = self.inflict(args, fault, None).await?;
        let back_after = seats.goes_on(args.progress_within()).await?;
        self.quiet(args).await?;
        let verdict = seats.judge(&self.history).await?;
        let shown = Shown {
            counts: [
                verdict.acknowledged,
                count(&verdict.wrongs, &[Wrong::Lost, Wrong::NotStored]),
                count(&verdict.wrongs, &DOUBLED),
                count(&verdict.wrongs, &[Wrong::Stale]),
                verdict.unknown,
            ],
            longest: [None; 2],
            back_after,
            events: verdict.events.unwrap_or_default(),
            problems: verdict.wrongs.told(),
            told: verdict.sentence(),
        };
        Ok((inflicted, shown))
    }

    /// A round with reservations of which some are paid.
    async fn pay(&mut self, args: &ChaosArgs, fault: NodeFault) -> Result<(Inflicted, Shown)> {
        let targets = self.nodes.all.iter().map(|node| node.server.address());
        let Some(payments) = &self.payments else {
            return fail("nobody reads the payments");
        };
        let seed = self.seed(args);
        let users = Users::start(targets.collect(), args.writers, seed, payments).await?;
        self.owners.complete(BALANCED_WITHIN).await?;
        users.goes_on().await?;
        let inflicted = self.inflict(args, fault, None).await?;
        let back_after = users.goes_on().await?;
        self.quiet(args).await?;
        let Some(payments) = &self.payments else {
            return fail("nobody reads the payments");
        };
        let judged = payments
            .judge(users, self.nodes.clock_readings(), &self.history)
            .await?;
        let counts = judged.counts;
        self.outcome.paid = Some(counts);
        let told = format!(
            "{} commands were acknowledged, {} outcomes stayed unknown; {counts}, all done {:.1?} after the last was \
             due",
            judged.acknowledged, judged.unknown, judged.done_after
        );
        let shown = Shown {
            counts: [
                judged.acknowledged,
                count(&judged.wrongs, &[Wrong::NotStored]),
                count(&judged.wrongs, &DOUBLED),
                count(&judged.wrongs, &[Wrong::Stale]),
                judged.unknown,
            ],
            longest: [None; 2],
            back_after,
            events: judged.events - self.outcome.events,
            problems: judged.wrongs.told(),
            told,
        };
        Ok((inflicted, shown))
    }

    fn seed(&self, args: &ChaosArgs) -> u64 {
        args.seed ^ (u64::from(self.outcome.rounds) << 32)
    }

    /// Makes the fault of this round and heals it.
    async fn inflict(
        &mut self,
        args: &ChaosArgs,
        fault: NodeFault,
        prober: Option<&Prober>,
    ) -> Result<Inflicted> {
        let moved = self.owners.begin_round().await?;
        let owned = self.owners.owned().await?;
        let mut field = Field {
            nodes: &mut self.nodes,
            owners: &self.owners,
            prober,
            owned_within: args.owned_within(),
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
    async fn quiet(&mut self, args: &ChaosArgs) -> Result<()> {
        self.owners.complete(args.owned_within()).await?;
        let after = Duration::from_millis(self.random.next() % 1_000);
        tokio::time::sleep(after).await;
        Ok(())
    }

    /// Adds up what a round has shown, and what has become of the logs; gives that in words.
    async fn settle(
        &mut self,
        args: &ChaosArgs,
        inflicted: &Inflicted,
        shown: &Shown,
    ) -> Result<String> {
        let Inflicted { fault, name, .. } = inflicted;
        let without_owner = self.owners.longest();
        let moves = self.owners.moves_since(&inflicted.moved).await?;
        let [elsewhere, anywhere] = shown.longest;
        let times = [
            elsewhere,
            anywhere,
            Some(without_owner),
            Some(shown.back_after),
        ];
        self.outcome.per_fault.add(*fault, &shown.counts, &times);
        let all = self.outcome.moves.entry(*fault).or_default();
        for (reason, count) in &moves {
            *all.entry(reason.clone()).or_default() += count;
        }
        let mut wrong = |text: String| self.outcome.problems.push(format!("{name}: {text}"));
        let is_too_long = |time: Duration, max: Duration| !args.any_time && time > max;
        let elsewhere_too_long = elsewhere.filter(|pause| is_too_long(*pause, PAUSE_MAX));
        if let Some(pause) = elsewhere_too_long.filter(|_| fault.leaves_others()) {
            wrong(format!(
                "an append through a node that lives took {pause:.1?}"
            ));
        }
        // For balance logs may move at any time.
        let needed = moves.iter().filter(|(reason, _)| *reason != "balance");
        let needed: u64 = needed.map(|(_, count)| count).sum();
        if needed > fault.moves_max(inflicted.owned) {
            wrong(format!("logs moved without need: {moves:?}"));
        }
        if fault.kills() && is_too_long(without_owner, WITHOUT_OWNER_MAX) {
            wrong(format!(
                "a log was without an owner for {without_owner:.1?}"
            ));
        }
        let [elsewhere, anywhere] = shown.longest.map(Option::unwrap_or_default);
        Ok(format!(
            "longest append {anywhere:.1?}, elsewhere {elsewhere:.1?}, without owner {without_owner:.1?}, moved {moves:?}"
        ))
    }

    /// Equal shares after a while, and the store is healthy.
    async fn end(&mut self, args: &ChaosArgs, program: &Path) {
        let balanced = self.owners.balanced(&args.size, BALANCED_WITHIN);
        match balanced.await {
            Ok(after) => self.outcome.balanced_after = Some(after),
            Err(failure) => self.outcome.problems.push(failure.to_string()),
        }
        if let Some(payments) = &self.payments {
            match payments.end(self.nodes.clock_readings()).await {
                Ok((wrongs, counts)) => {
                    self.outcome.problems.extend(wrongs.told());
                    self.outcome.paid = Some(counts);
                }
                Err(failure) => self.outcome.problems.push(failure.to_string()),
            }
        }
        self.nodes.stop().await;
        if let Err(complaint) = child::verify(program, self.nodes.urls()) {
            self.outcome.problems.push(complaint.to_string());
        }
    }
}

impl ChaosArgs {
    /// The program of a cinema, with its arguments.
    fn cinema_program(&self, path: &Path) -> Program {
        let mut program = Program::cinema(path);
        if let Some(within) = self.pay_within {
            let within = format!("{}ms", within.as_millis());
            program.arguments.extend(["--pay-within".into(), within]);
        }
        program
    }

    /// How soon all logs must have owners that live.
    fn owned_within(&self) -> Duration {
        match self.any_time {
            true => OWNED_AT_ALL_WITHIN,
            false => OWNED_WITHIN,
        }
    }

    /// How soon the load must go on once all is healed.
    fn progress_within(&self) -> Duration {
        match self.any_time {
            true => PROGRESS_AT_ALL_WITHIN,
            false => PROGRESS_WITHIN,
        }
    }

    /// For how long a probe is tried again that was not answered.
    fn probe_patience(&self) -> Duration {
        match self.any_time {
            true => OWNED_AT_ALL_WITHIN,
            false => Duration::ZERO,
        }
    }

    /// The faults that are wanted and can be had.
    ///
    /// # Errors
    /// One that was asked for cannot be had.
    fn wanted(&self) -> Result<Vec<NodeFault>> {
        let load = match (&self.cinema, self.pay_within) {
            (None, _) => LoadKind::Appends,
            (Some(_), None) => LoadKind::Seats,
            (Some(_), Some(_)) => LoadKind::Payments,
        };
        let fits = |fault: NodeFault| fault.fits(&self.size, load);
        if self.faults.is_empty() {
            let all = NodeFault::value_variants().iter().copied();
            return Ok(all.filter(|fault| fits(*fault)).collect());
        }
        let one_away = NodeFault::OneDatabaseAway;
        if self.faults.contains(&one_away) && !fits(one_away) {
            return fail("--faults one-database-away needs --databases 2 or more, and no --cinema");
        }
        let of_timers = [NodeFault::TimersKill, NodeFault::TimersHang];
        if load != LoadKind::Payments && of_timers.iter().any(|of| self.faults.contains(of)) {
            return fail("--faults timers-kill and timers-hang need --pay-within");
        }
        Ok(self.faults.clone())
    }
}

impl Default for Outcome {
    fn default() -> Self {
        Self {
            rounds: 0,
            per_fault: PerFault::new(&COUNTS, &TIMES),
            moves: BTreeMap::new(),
            problems: Vec::new(),
            events: 0,
            attempts: 0,
            balanced_after: None,
            paid: None,
        }
    }
}

impl Outcome {
    /// Tables of the faults, and every promise that was broken.
    fn tell(&self, report: &mut Report) {
        report.table(self.per_fault.table("Faults"));
        let moves: Vec<_> = self
            .moves
            .iter()
            .filter(|(_, moves)| !moves.is_empty())
            .collect();
        let moved = Table::of("Logs that moved, by the reason", &moves)
            .column("fault", Unit::Words, |(fault, _)| fault.name())
            .column("moves", Unit::Words, |(_, moves)| causes(*moves));
        report.table(moved.table());
        report.fact("attempts", Unit::Count, self.attempts, "of all appends");
        let balanced = self.balanced_after.map(|after| after.as_secs_f64());
        report.fact("equal shares after", Unit::Seconds, balanced, "of quiet");
        if let Some(paid) = self.paid {
            report.text(format!("{paid}."));
        }
        report.problems.clone_from(&self.problems);
        let (rounds, events) = (self.rounds, self.events);
        let acknowledged = self.per_fault.sum("acknowledged");
        let found =
            format!("{rounds} rounds, {acknowledged} appends acknowledged, {events} events stored");
        promises(report, found);
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
