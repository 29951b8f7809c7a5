//! `cluster hop`, `cluster share` and `cluster databases`: what it costs to ask a node that does not own the log, what
//! several nodes of one database carry together, and what stores on one, two and more PostgreSQL servers carry.
//!
//! Each command names its cases, which are measured by turns; a table has the medians of the rounds. Of `hop` and
//! `share` the store has one log, so which node owns it is all that there is to placement. Everything that was
//! acknowledged is read back.
//! Not here: what happens when nodes or databases die (`chaos`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gesta_chaos::world::{Database, Plan, World};
use gesta_load::machine::child::{Program, ProgramArgs};
use gesta_load::machine::processes::Tree;
use gesta_load::sizes::Sizes;
use gesta_load::target::{
    self, Beside, Events, Expected, GestaTarget, Load, Phase, Protocol, Target,
};
use gesta_report::cells;
use gesta_report::failure::{Result, fail};
use gesta_report::histogram::{median, noise};
use gesta_report::host::busy_of;
use gesta_report::units;
use gesta_report::{Cell, Report, ReportArgs, Table, Unit};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::SizeArgs;

/// Streams that all connections share.
const STREAMS: u32 = 10_000;
/// Events of a stream at most.
const STREAM_EVENTS_MAX: u64 = 4_000;
/// Bytes of data per event.
const PAYLOAD: usize = 50;
/// The longest load before the one that counts.
const WARM_UP: Duration = Duration::from_secs(2);
/// Cores of the machine that the cost of an event is put into terms of.
const CORES: f64 = 16.0;

/// What all loads on nodes have.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct LoadArgs {
    /// Connections, each with one append of one event under way.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    connections: u32,
    /// Time on the clock, for each load.
    #[arg(long, default_value = "8s", value_parser = units::duration)]
    #[serde(skip)]
    duration: Duration,
    /// How often everything is measured, by turns; medians count.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seed of names and contents.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    program: ProgramArgs,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// Appends through the owner of the log, through another node, and by the owner's hints, by turns.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct HopArgs {
    /// Appends per second, on a schedule; 0 is as many as there can be.
    #[arg(long, value_delimiter = ',', default_value = "1000,3000,6000,10000")]
    rates: Vec<u32>,
    #[command(flatten)]
    load: LoadArgs,
}

/// Appends through one server alone, through both of two nodes, and through either, by turns.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct ShareArgs {
    /// Extra round trip between the second node and the database, for example 5ms.
    #[arg(long, default_value = "0", value_parser = units::duration)]
    #[serde(skip)]
    far: Duration,
    #[command(flatten)]
    load: LoadArgs,
}

/// Appends of one event to stores of several databases, by turns.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct DatabasesArgs {
    /// Databases of each store, each on a PostgreSQL server of its own.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3", value_parser = clap::value_parser!(u16).range(1..=16))]
    databases: Vec<u16>,
    /// Logs of each store.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    logs: u16,
    /// Servers in front of each store; the load is shared equally among them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=20))]
    nodes: u16,
    #[command(flatten)]
    load: LoadArgs,
}

/// A load that is measured again and again.
struct Case {
    name: String,
    /// Which of the benches.
    bench: usize,
    /// The nodes that are asked; connections are shared equally among them.
    nodes: Vec<usize>,
    /// Where clients reach the node of each address in hints; none if connections stay where they are.
    hints: Vec<(String, SocketAddr)>,
    /// Appends per second; 0 is as many as there can be.
    rate: u32,
    /// What was measured.
    rounds: Vec<Round>,
}

/// What was measured of one node in one round.
#[derive(Clone)]
struct Measured {
    phase: Phase,
    /// Processor time per append, of all nodes together: of the nodes, of the databases, and of all but nodes and
    /// generator.
    nodes_micros: f64,
    databases_micros: f64,
    rest_micros: f64,
}

/// One for each node that was asked.
type Round = Vec<Measured>;

/// What is told of a case.
const COLUMNS: [(&str, Unit); 13] = [
    ("appends", Unit::Words),
    ("appends/s wanted", Unit::Count),
    ("appends/s", Unit::Count),
    ("±", Unit::Share),
    ("of the first", Unit::Share),
    ("p50", Unit::Millis),
    ("p99", Unit::Millis),
    ("p99.9", Unit::Millis),
    ("nodes, µs per event", Unit::Count),
    ("databases, µs per event", Unit::Count),
    ("all but nodes, µs per event", Unit::Count),
    ("cores busy", Unit::Cores),
    ("generator late (p99)", Unit::Millis),
];

impl Case {
    /// As many appends as there can be, at these nodes.
    fn of(name: impl Into<String>, bench: usize, nodes: Vec<usize>) -> Self {
        Self {
            name: name.into(),
            bench,
            nodes,
            hints: Vec::new(),
            rate: 0,
            rounds: Vec::new(),
        }
    }

    /// The median of the rounds.
    fn middle(&self, value: impl Fn(&Round) -> f64) -> f64 {
        median(&self.rounds.iter().map(value).collect::<Vec<_>>())
    }

    /// The median of the largest value of each round.
    fn largest(&self, value: fn(&Measured) -> f64) -> f64 {
        self.middle(|round| round.iter().map(value).fold(f64::NAN, f64::max))
    }

    /// Appends per second, of all nodes together.
    fn rate(&self) -> f64 {
        self.middle(rate)
    }

    fn cells(&self, first: f64) -> Vec<Cell> {
        cells![
            &self.name,
            (self.rate > 0).then_some(self.rate),
            self.rate(),
            (self.rounds.len() > 1)
                .then(|| noise(&self.rounds.iter().map(rate).collect::<Vec<_>>())),
            (self.rate == 0).then(|| self.rate() / first),
            self.largest(|one| one.phase.latency_ms.p50),
            self.largest(|one| one.phase.latency_ms.p99),
            self.largest(|one| one.phase.latency_ms.p999),
            self.largest(|one| one.nodes_micros),
            self.largest(|one| one.databases_micros),
            self.largest(|one| one.rest_micros),
            self.largest(|one| one.phase.cpu.machine_cores),
            self.largest(|one| one.phase.lag_ms.p99),
        ]
    }

    /// Each of several nodes as a case of its own.
    fn each_node(&self) -> impl Iterator<Item = Case> {
        let nodes = self.nodes.iter().enumerate();
        nodes
            .filter(|_| self.nodes.len() > 1)
            .map(|(at, node)| Case {
                rounds: self
                    .rounds
                    .iter()
                    .map(|round| vec![round[at].clone()])
                    .collect(),
                ..Case::of(
                    format!("{}: node {node}", self.name),
                    self.bench,
                    vec![*node],
                )
            })
    }
}

fn rate(round: &Round) -> f64 {
    let rates = round.iter().map(|one| one.phase.appends_per_second);
    rates.sum()
}

/// Measures the cases by turns, and adds a table with the medians.
async fn measure(
    benches: &mut [Bench<'_>],
    cases: &mut [Case],
    report: &mut Report,
    stop: &CancellationToken,
) -> Result<()> {
    for _ in 0..benches[0].args.rounds {
        for case in &mut *cases {
            if !stop.is_cancelled() {
                let round = benches[case.bench].load(case, report).await?;
                case.rounds.push(round);
            }
        }
    }
    let mut table = Table::new("Medians of the rounds", COLUMNS);
    for case in &*cases {
        table.row(case.cells(cases[0].rate()));
        case.each_node()
            .for_each(|node| table.row(node.cells(cases[0].rate())));
    }
    report.table(table);
    Ok(())
}

/// Nodes under measurement.
struct Bench<'a> {
    nodes: &'a World,
    databases: Vec<Tree>,
    args: &'a LoadArgs,
    stop: &'a CancellationToken,
    /// Loads so far; each has streams of its own.
    loads: u64,
}

impl<'a> Bench<'a> {
    fn new(nodes: &'a World, args: &'a LoadArgs, stop: &'a CancellationToken) -> Self {
        let databases = nodes.databases.iter();
        let trees = databases.filter_map(|one| {
            let server = Database::server(one)?;
            Tree::listening_on("database", server.addr())
        });
        Self {
            nodes,
            databases: trees.collect(),
            args,
            stop,
            loads: 0,
        }
    }

    fn target(&self, node: usize, hints: &[(String, SocketAddr)]) -> GestaTarget {
        let target = GestaTarget::new(&self.nodes.members[node].server.url(), Duration::ZERO, None);
        target
            .appending(Expected::Any, Bytes::new())
            .by(Protocol::Bare)
            .following(hints.to_vec())
    }

    /// Events that no load had before.
    fn events(&mut self) -> Result<Arc<Events>> {
        self.loads += 1;
        let seed = self.args.seed ^ (self.loads << 32);
        Ok(Arc::new(Events::new(Sizes::exactly(PAYLOAD)?, 1, seed)))
    }

    /// One measurement of a case, for each of its nodes.
    async fn load(&mut self, case: &Case, report: &mut Report) -> Result<Round> {
        let target = |node: &usize| Arc::new(self.target(*node, &case.hints)) as Arc<dyn Target>;
        let targets: Vec<Arc<dyn Target>> = case.nodes.iter().map(target).collect();
        let rate = case.rate;
        let mut load = Load {
            first_worker: 0,
            workers: self.args.connections,
            events: 1,
            events_per_stream: STREAM_EVENTS_MAX,
            streams: (STREAMS / self.args.connections).max(1),
            rate: (rate > 0).then_some(f64::from(rate)),
            warm_up: Duration::ZERO,
            duration: WARM_UP.min(self.args.duration),
        };
        let (warm_up, events) = (self.events()?, self.events()?);
        target::run_all(&targets, &warm_up, &load, Beside::default(), self.stop).await?;
        load.duration = self.args.duration;
        let before = [self.nodes_busy(), self.databases_busy()];
        let (runs, claims) =
            target::run_all(&targets, &events, &load, Beside::default(), self.stop).await?;
        let nodes = self.nodes_busy().saturating_sub(before[0]);
        let databases = self.databases_busy().saturating_sub(before[1]);
        let read_back = target::check(targets[0].as_ref(), &events, &claims).await?;
        report.check(case.name.clone(), &read_back);
        let appends: u64 = runs.iter().map(|run| run.appends).sum();
        let share = load.workers / u32::try_from(targets.len())?;
        let measured = runs.iter().map(|run| {
            let phase = run.figures(share, false);
            let others = phase.cpu.machine_cores - phase.cpu.own_cores;
            let rest = others * run.seconds - nodes.as_secs_f64();
            let per_append = |seconds: f64| seconds * 1e6 / (appends.max(1) as f64);
            eprintln!("{}, {rate}/s: {}", case.name, phase.told());
            Measured {
                nodes_micros: per_append(nodes.as_secs_f64()),
                databases_micros: per_append(databases.as_secs_f64()),
                rest_micros: per_append(rest),
                phase,
            }
        });
        Ok(measured.collect())
    }

    /// Processor time of all nodes so far.
    fn nodes_busy(&self) -> Duration {
        let pids = self
            .nodes
            .members
            .iter()
            .filter_map(|node| node.server.pid());
        pids.map(busy_of).sum()
    }

    /// Processor time of all databases so far.
    fn databases_busy(&self) -> Duration {
        self.databases.iter().map(Tree::busy).sum()
    }
}

/// `cluster hop`. True if it is a result.
pub(super) async fn hop(args: &HopArgs, stop: &CancellationToken) -> Result<bool> {
    let title = "Appends through the owner of a log and through another node";
    let mut report = Report::begin("cluster-hop", title, args.load.seed);
    let size = SizeArgs::of(2, 1);
    let program = Program::gesta(&args.load.program.find()?);
    let mut nodes = World::start(&size.plan(&program)).await?;
    let owner = nodes.owner_of_the_only_log().await?;
    let mut cases = Vec::new();
    for rate in &args.rates {
        for (way, node) in [
            ("direct", owner),
            ("forwarded", 1 - owner),
            ("hints", 1 - owner),
        ] {
            let mut case = Case::of(way, 0, vec![node]);
            case.rate = *rate;
            if way == "hints" {
                case.hints = addresses(&nodes);
            }
            cases.push(case);
        }
    }
    let mut benches = [Bench::new(&nodes, &args.load, stop)];
    measure(&mut benches, &mut cases, &mut report, stop).await?;
    let told = cases.chunks(3).map(|ways| {
        let p99 = |case: &Case| case.largest(|one| one.phase.latency_ms.p99);
        let micros = |case: &Case| case.largest(|one| one.nodes_micros).max(f64::MIN_POSITIVE);
        let (rate, times) = (ways[0].rate, micros(&ways[1]) / micros(&ways[0]));
        let [direct, forwarded, hints] = [0, 1, 2].map(|way| p99(&ways[way]));
        format!(
            "{rate}/s: p99 {direct:.1} ms direct, {forwarded:.1} forwarded, {hints:.1} by hints, nodes' processor time {times:.2} times"
        )
    });
    report.finding = format!("{}.", told.collect::<Vec<_>>().join("; "));
    report.workload = json!(args);
    nodes.stop().await?;
    report.finish(&args.load.report, !stop.is_cancelled())
}

/// `cluster share`. True if it is a result.
pub(super) async fn share(args: &ShareArgs, stop: &CancellationToken) -> Result<bool> {
    let title = "Two nodes of one database against one server";
    let mut report = Report::begin("cluster-share", title, args.load.seed);
    let program = Program::gesta(&args.load.program.find()?);
    let one = SizeArgs::of(1, 1);
    let mut alone = World::start(&one.plan(&program)).await?;
    let two = SizeArgs::of(2, 1);
    // The first one to start owns the log: the one that is near the database.
    let apart = Plan {
        far: args.far,
        ..two.plan(&program)
    };
    let mut both = World::start(&apart).await?;
    let mut cases = [
        Case::of("one alone", 0, vec![0]),
        Case::of("both", 1, vec![0, 1]),
        Case::of("the first of two", 1, vec![0]),
        Case::of("the second of two", 1, vec![1]),
    ];
    let mut benches = [&alone, &both].map(|nodes| Bench::new(nodes, &args.load, stop));
    measure(&mut benches, &mut cases, &mut report, stop).await?;
    let told = cases.iter().map(|case| {
        let (name, rate) = (&case.name, case.rate());
        format!("{name} {rate:.0} ({:.0} %)", rate / cases[0].rate() * 100.0)
    });
    let told: Vec<String> = told.collect();
    report.finding = format!("Appends per second: {}.", told.join(", "));
    report.workload = json!(args);
    report.workload["far_ms"] = json!(args.far.as_secs_f64() * 1_000.0);
    alone.stop().await?;
    both.stop().await?;
    report.finish(&args.load.report, !stop.is_cancelled())
}

/// `cluster databases`. True if it is a result.
pub(super) async fn databases(args: &DatabasesArgs, stop: &CancellationToken) -> Result<bool> {
    if args
        .databases
        .iter()
        .any(|databases| *databases > args.logs)
    {
        return fail("every database needs a log: choose more --logs");
    }
    let title = "Stores on several databases";
    let mut report = Report::begin("cluster-databases", title, args.load.seed);
    let program = Program::gesta(&args.load.program.find()?);
    let (mut stores, mut cases) = (Vec::new(), Vec::new());
    for (number, databases) in args.databases.iter().enumerate() {
        let size = SizeArgs {
            nodes: args.nodes,
            logs: args.logs,
            databases: *databases,
        };
        stores.push(World::start(&size.plan(&program)).await?);
        let name = format!("databases: {databases}");
        cases.push(Case::of(name, number, (0..args.nodes.into()).collect()));
    }
    let benches = stores
        .iter()
        .map(|nodes| Bench::new(nodes, &args.load, stop));
    let mut benches: Vec<Bench<'_>> = benches.collect();
    measure(&mut benches, &mut cases, &mut report, stop).await?;
    let columns = [
        ("databases", Unit::Count),
        ("events/s by 16 cores of each database", Unit::Count),
        ("events/s by 16 cores of nodes", Unit::Count),
    ];
    let (mut table, mut told) = (Table::new("By processor time alone", columns), Vec::new());
    for (databases, case) in args.databases.iter().zip(&cases) {
        let nodes = case.largest(|one| one.nodes_micros);
        let database = case.largest(|one| one.databases_micros);
        let carried = |cores: f64, micros: f64| cores * 1e6 / micros;
        let (rate, cores) = (case.rate(), CORES * f64::from(*databases));
        table.row(cells![
            *databases,
            carried(cores, database),
            carried(CORES, nodes)
        ]);
        told.push(format!(
            "{databases}: {rate:.0} ({:.0} %, {nodes:.0} + {database:.0} µs per event)",
            rate / cases[0].rate() * 100.0
        ));
    }
    report.table(table);
    report.finding = format!(
        "Appends per second by the number of databases (share of the first; processor time of nodes + databases): {}.",
        told.join(", ")
    );
    report.workload = json!(args);
    drop(benches);
    for nodes in &mut stores {
        nodes.stop().await?;
    }
    report.finish(&args.load.report, !stop.is_cancelled())
}

/// Where clients reach the node of each address that nodes use among each other.
fn addresses(nodes: &World) -> Vec<(String, SocketAddr)> {
    let all = nodes.members.iter();
    all.map(|node| (node.address.clone(), node.server.address()))
        .collect()
}
