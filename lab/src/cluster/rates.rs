//! `cluster hop` and `cluster share`: what it costs to ask a node that does not own the log, and what several nodes of
//! one database carry together.
//!
//! The store has one log, so which node owns it is all that there is to placement. Everything that was acknowledged is
//! read back.
//! Not here: what happens when nodes die (`chaos`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::SizeArgs;
use super::nodes::{Conditions, Nodes};
use crate::cells;
use crate::child::{Program, ProgramArgs};
use crate::failure::{Failure, Result};
use crate::histogram::median;
use crate::host::{CpuUse, busy_of};
use crate::postgres;
use crate::read_back::ReadBack;
use crate::report::{Report, ReportArgs, Table, Unit};
use crate::reservation::Tree;
use crate::sizes::Sizes;
use crate::target::{self, Events, Expected, GestaTarget, Load, Phase, Protocol, Target};
use crate::units;

/// Streams that all connections share.
const STREAMS: u32 = 10_000;
/// Events of a stream at most.
const STREAM_EVENTS_MAX: u64 = 4_000;
/// Bytes of data per event.
const PAYLOAD: usize = 50;
/// The longest load before the one that counts.
const WARM_UP: Duration = Duration::from_secs(2);

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
    pub(super) rounds: u32,
    /// Seed of names and contents.
    #[arg(long, default_value_t = 7)]
    pub(super) seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    pub(super) program: ProgramArgs,
    #[command(flatten)]
    #[serde(skip)]
    pub(super) report: ReportArgs,
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

/// A load that was measured.
pub(super) struct Measured {
    way: &'static str,
    /// Appends per second that were wanted.
    wanted: u32,
    pub(super) phase: Phase,
    /// Processor time per append: of the nodes, of the databases, and of all but nodes and generator.
    pub(super) nodes_micros: f64,
    pub(super) databases_micros: f64,
    rest_micros: f64,
}

/// Nodes under measurement.
pub(super) struct Bench<'a> {
    nodes: &'a Nodes,
    databases: Vec<Tree>,
    args: &'a LoadArgs,
    stop: &'a CancellationToken,
    /// Loads so far; each has streams of its own.
    loads: u64,
    pub(super) checks: Vec<(String, ReadBack)>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        nodes: &'a Nodes,
        args: &'a LoadArgs,
        stop: &'a CancellationToken,
    ) -> Result<Self> {
        let databases = nodes.databases();
        let trees = databases.filter_map(|one| Tree::listening_on("database", one.addr()));
        Ok(Self {
            nodes,
            databases: trees.collect(),
            args,
            stop,
            loads: 0,
            checks: Vec::new(),
        })
    }

    pub(super) fn target(&self, node: usize) -> GestaTarget {
        let target = GestaTarget::new(&self.nodes.all[node].server.url(), Duration::ZERO, None);
        target
            .appending(Expected::Any, Bytes::new())
            .by(Protocol::Bare)
    }

    /// Events that no load had before.
    fn events(&mut self) -> Result<Arc<Events>> {
        self.loads += 1;
        let seed = self.args.seed ^ (self.loads << 32);
        Ok(Arc::new(Events::new(Sizes::exactly(PAYLOAD)?, 1, seed)))
    }

    /// Appends through these targets, whose connections are equally many; one measurement for each target.
    pub(super) async fn load(
        &mut self,
        way: &'static str,
        targets: Vec<GestaTarget>,
        rate: u32,
    ) -> Result<Vec<Measured>> {
        let targets: Vec<Arc<dyn Target>> = targets
            .into_iter()
            .map(|target| Arc::new(target) as Arc<dyn Target>)
            .collect();
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
        target::run_all(&targets, &warm_up, &load, None, self.stop).await?;
        load.duration = self.args.duration;
        let before = [self.nodes_busy(), self.databases_busy()];
        let (runs, claims) = target::run_all(&targets, &events, &load, None, self.stop).await?;
        let nodes = self.nodes_busy().saturating_sub(before[0]);
        let databases = self.databases_busy().saturating_sub(before[1]);
        let read_back = target::check(targets[0].as_ref(), &events, &claims).await?;
        self.checks.push((way.to_owned(), read_back));
        let appends: u64 = runs.iter().map(|run| run.appends).sum();
        let share = load.workers / u32::try_from(targets.len())?;
        let measured = runs.iter().map(|run| {
            let phase = run.figures(share, false);
            let rest = rest(phase.cpu, run.seconds) - nodes.as_secs_f64();
            let per_append = |seconds: f64| seconds * 1e6 / (appends.max(1) as f64);
            let measured = Measured {
                way,
                wanted: rate,
                nodes_micros: per_append(nodes.as_secs_f64()),
                databases_micros: per_append(databases.as_secs_f64()),
                rest_micros: per_append(rest),
                phase,
            };
            eprintln!(
                "{way}, {rate}/s: {}, {:.0} µs of the nodes",
                measured.phase.told(),
                measured.nodes_micros
            );
            measured
        });
        Ok(measured.collect())
    }

    /// Processor time of all nodes so far.
    fn nodes_busy(&self) -> Duration {
        let pids = self.nodes.all.iter().filter_map(|node| node.server.pid());
        pids.map(busy_of).sum()
    }

    /// Processor time of all databases so far.
    fn databases_busy(&self) -> Duration {
        self.databases.iter().map(Tree::busy).sum()
    }
}

/// Seconds of processor time of the machine without this process.
fn rest(cpu: CpuUse, seconds: f64) -> f64 {
    (cpu.machine_cores - cpu.own_cores) * seconds
}

/// `cluster hop`. True if it is a result.
pub(super) async fn hop(args: &HopArgs, stop: &CancellationToken) -> Result<bool> {
    let title = "Appends through the owner of a log and through another node";
    let mut report = Report::begin("cluster-hop", title, args.load.seed);
    let size = SizeArgs::of(2, 1);
    let program = Program::gesta(&args.load.program.find()?);
    let mut nodes = Nodes::start(&program, &size, Conditions::default()).await?;
    let owner = owner_of_the_log(&nodes).await?;
    let mut bench = Bench::new(&nodes, &args.load, stop)?;
    let mut all = Vec::new();
    for _ in 0..args.load.rounds {
        for rate in &args.rates {
            for way in ["direct", "forwarded", "hints"] {
                let target = match way {
                    "direct" => bench.target(owner),
                    "forwarded" => bench.target(1 - owner),
                    _ => bench.target(1 - owner).following(addresses(&nodes)?),
                };
                if stop.is_cancelled() {
                    break;
                }
                all.extend(bench.load(way, vec![target], *rate).await?);
            }
        }
    }
    for (what, read_back) in &bench.checks {
        report.check(what.clone(), read_back);
    }
    report.workload = json!(args);
    report.finding = tell_hop(&mut report, args, &all);
    nodes.stop().await;
    report.finish(&args.load.report, !stop.is_cancelled())
}

/// A table with a row per rate and way; gives the finding.
fn tell_hop(report: &mut Report, args: &HopArgs, all: &[Measured]) -> String {
    let columns = [
        ("appends/s wanted", Unit::Count),
        ("way", Unit::Words),
        ("appends/s", Unit::Count),
        ("p50", Unit::Millis),
        ("p99", Unit::Millis),
        ("p99.9", Unit::Millis),
        ("nodes, µs per append", Unit::Count),
        ("database and system, µs per append", Unit::Count),
        ("cores busy", Unit::Cores),
        ("generator late (p99)", Unit::Millis),
    ];
    let mut table = Table::new("Medians of the rounds", columns);
    let mut told = Vec::new();
    for rate in &args.rates {
        let mut p99 = Vec::new();
        let mut micros = Vec::new();
        for way in ["direct", "forwarded", "hints"] {
            let of: Vec<&Measured> = (all.iter())
                .filter(|one| one.way == way && one.wanted == *rate)
                .collect();
            let middle = |value: fn(&Measured) -> f64| {
                median(&of.iter().map(|one| value(one)).collect::<Vec<_>>())
            };
            table.row(cells![
                *rate,
                way,
                middle(|one| one.phase.appends_per_second),
                middle(|one| one.phase.latency_ms.p50),
                middle(|one| one.phase.latency_ms.p99),
                middle(|one| one.phase.latency_ms.p999),
                middle(|one| one.nodes_micros),
                middle(|one| one.rest_micros),
                middle(|one| one.phase.cpu.machine_cores),
                middle(|one| one.phase.lag_ms.p99),
            ]);
            p99.push(middle(|one| one.phase.latency_ms.p99));
            micros.push(middle(|one| one.nodes_micros));
        }
        told.push(format!(
            "{rate}/s: p99 {:.1} ms direct, {:.1} forwarded, {:.1} by hints, nodes' processor time {:.2} times",
            p99[0],
            p99[1],
            p99[2],
            micros[1] / micros[0].max(f64::MIN_POSITIVE)
        ));
    }
    report.table(table);
    format!("{}.", told.join("; "))
}

/// `cluster share`. True if it is a result.
pub(super) async fn share(args: &ShareArgs, stop: &CancellationToken) -> Result<bool> {
    let title = "Two nodes of one database against one server";
    let mut report = Report::begin("cluster-share", title, args.load.seed);
    let program = Program::gesta(&args.load.program.find()?);
    let one = SizeArgs::of(1, 1);
    let mut alone = Nodes::start(&program, &one, Conditions::default()).await?;
    let two = SizeArgs::of(2, 1);
    // The first one to start owns the log: the one that is near the database.
    let mut both = Nodes::start_apart(&program, &two, args.far).await?;
    let mut single = Bench::new(&alone, &args.load, stop)?;
    let mut pair = Bench::new(&both, &args.load, stop)?;
    let mut all: Vec<Vec<Measured>> = Vec::new();
    for _ in 0..args.load.rounds {
        if stop.is_cancelled() {
            break;
        }
        let target = single.target(0);
        all.push(single.load("one alone", vec![target], 0).await?);
        let targets = vec![pair.target(0), pair.target(1)];
        all.push(pair.load("both", targets, 0).await?);
        let target = pair.target(0);
        all.push(pair.load("the first of two", vec![target], 0).await?);
        let target = pair.target(1);
        all.push(pair.load("the second of two", vec![target], 0).await?);
    }
    for (what, read_back) in single.checks.iter().chain(&pair.checks) {
        report.check(what.clone(), read_back);
    }
    report.workload = json!(args);
    report.workload["far_ms"] = json!(args.far.as_secs_f64() * 1_000.0);
    report.finding = tell_share(&mut report, &all);
    alone.stop().await;
    both.stop().await;
    report.finish(&args.load.report, !stop.is_cancelled())
}

/// A table with a row per way, and one per node where both are asked; gives the finding.
fn tell_share(report: &mut Report, all: &[Vec<Measured>]) -> String {
    let columns = [
        ("asked", Unit::Words),
        ("appends/s", Unit::Count),
        ("of one alone", Unit::Share),
        ("p50", Unit::Millis),
        ("p99", Unit::Millis),
        ("nodes, µs per append", Unit::Count),
        ("cores busy", Unit::Cores),
    ];
    let mut table = Table::new("Medians of the rounds", columns);
    let (mut told, mut alone) = (Vec::new(), f64::NAN);
    for way in ["one alone", "both", "the first of two", "the second of two"] {
        let of: Vec<&Vec<Measured>> = (all.iter()).filter(|one| one[0].way == way).collect();
        let middle = |value: &dyn Fn(&[Measured]) -> f64| {
            median(&of.iter().map(|one| value(one)).collect::<Vec<_>>())
        };
        let total = middle(&|one| one.iter().map(|node| node.phase.appends_per_second).sum());
        if way == "one alone" {
            alone = total;
        }
        let nodes = of.first().map_or(0, |one| one.len());
        for node in 0..nodes {
            let name = match nodes {
                1 => way.to_owned(),
                _ => format!("{way}: node {node}"),
            };
            let rate = middle(&|one| one[node].phase.appends_per_second);
            table.row(cells![
                name,
                rate,
                rate / alone,
                middle(&|one| one[node].phase.latency_ms.p50),
                middle(&|one| one[node].phase.latency_ms.p99),
                middle(&|one| one[node].nodes_micros),
                middle(&|one| one[node].phase.cpu.machine_cores),
            ]);
        }
        told.push(format!("{way} {total:.0} ({:.0} %)", total / alone * 100.0));
    }
    report.table(table);
    format!("Appends per second: {}.", told.join(", "))
}

/// Which node owns the only log.
async fn owner_of_the_log(nodes: &Nodes) -> Result<usize> {
    let client = postgres::connect(&nodes.postgres.url()).await?;
    let sql = "SELECT n.address FROM gesta.leases AS l \
         JOIN gesta.nodes AS n ON n.id = l.owner AND n.generation = l.generation";
    let address: String = client.query_one(sql, &[]).await?.get(0);
    let found = nodes.all.iter().position(|node| node.address == address);
    found.ok_or_else(|| Failure(format!("no node of this run has the address {address}")))
}

/// Where clients reach the node of each address that nodes use among each other.
fn addresses(nodes: &Nodes) -> Result<Vec<(String, SocketAddr)>> {
    let all = nodes.all.iter();
    Ok(all
        .map(|node| (node.address.clone(), node.server.address()))
        .collect())
}
