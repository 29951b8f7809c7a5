//! `cluster databases`: what stores on one, two and more PostgreSQL servers carry, and what an event costs there.
//!
//! All of them have the same logs and the same nodes, and take turns. Everything that was acknowledged is read back.
//! Not here: what happens when one of the databases is away (`chaos --databases`).

use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::SizeArgs;
use super::nodes::{Conditions, Nodes};
use super::rates::{Bench, LoadArgs, Measured};
use crate::cells;
use crate::child::Program;
use crate::failure::{Result, fail};
use crate::histogram::median;
use crate::report::{Report, Table, Unit};

/// Cores of the machine that the cost of an event is put into terms of.
const CORES: f64 = 16.0;

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

/// The command. True if it is a result.
pub(super) async fn run(args: &DatabasesArgs, stop: &CancellationToken) -> Result<bool> {
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
    let mut stores = Vec::new();
    for databases in &args.databases {
        let size = SizeArgs {
            nodes: args.nodes,
            logs: args.logs,
            databases: *databases,
        };
        let nodes = Nodes::start(&program, &size, Conditions::default()).await?;
        stores.push(nodes);
    }
    let benches = stores
        .iter()
        .map(|nodes| Bench::new(nodes, &args.load, stop));
    let mut benches: Vec<Bench<'_>> = benches.collect::<Result<_>>()?;
    let mut all: Vec<Vec<Vec<Measured>>> = args.databases.iter().map(|_| Vec::new()).collect();
    for _ in 0..args.load.rounds {
        for (bench, of_store) in benches.iter_mut().zip(&mut all) {
            if !stop.is_cancelled() {
                let targets = (0..args.nodes.into()).map(|node| bench.target(node));
                let targets = targets.collect();
                of_store.push(bench.load("all nodes", targets, 0).await?);
            }
        }
    }
    for (databases, bench) in args.databases.iter().zip(&benches) {
        for (_, read_back) in &bench.checks {
            report.check(format!("{databases} databases"), read_back);
        }
    }
    drop(benches);
    report.workload = json!(args);
    report.finding = tell(&mut report, args, &all);
    for nodes in &mut stores {
        nodes.stop().await;
    }
    report.finish(&args.load.report, !stop.is_cancelled())
}

/// A table with a row per store; gives the finding.
fn tell(report: &mut Report, args: &DatabasesArgs, all: &[Vec<Vec<Measured>>]) -> String {
    let columns = [
        ("databases", Unit::Count),
        ("appends/s", Unit::Count),
        ("of one", Unit::Share),
        ("p50", Unit::Millis),
        ("p99", Unit::Millis),
        ("nodes, µs per event", Unit::Count),
        ("databases, µs per event", Unit::Count),
        ("cores busy", Unit::Cores),
        ("events/s by 16 cores of each database", Unit::Count),
        ("events/s by 16 cores of nodes", Unit::Count),
    ];
    let mut table = Table::new("Medians of the rounds", columns);
    let (mut told, mut first) = (Vec::new(), None);
    for (databases, rounds) in args.databases.iter().zip(all) {
        let middle = |value: &dyn Fn(&[Measured]) -> f64| {
            median(&rounds.iter().map(|one| value(one)).collect::<Vec<_>>())
        };
        let slowest = |value: fn(&Measured) -> f64| {
            middle(&|round| round.iter().map(value).fold(f64::NAN, f64::max))
        };
        let rate = middle(&|round| round.iter().map(|one| one.phase.appends_per_second).sum());
        let of_first = rate / *first.get_or_insert(rate);
        // All measurements of a round have the same processor time, which is that of all nodes.
        let nodes = middle(&|round| round[0].nodes_micros);
        let database = middle(&|round| round[0].databases_micros);
        let carried = |cores: f64, micros: f64| cores * 1e6 / micros;
        table.row(cells![
            *databases,
            rate,
            of_first,
            slowest(|one| one.phase.latency_ms.p50),
            slowest(|one| one.phase.latency_ms.p99),
            nodes,
            database,
            middle(&|round| round[0].phase.cpu.machine_cores),
            carried(CORES * f64::from(*databases), database),
            carried(CORES, nodes),
        ]);
        told.push(format!(
            "{databases}: {rate:.0} ({:.0} %, {nodes:.0} + {database:.0} µs per event)",
            of_first * 100.0
        ));
    }
    report.table(table);
    format!(
        "Appends per second by the number of databases (share of the first; processor time of nodes + databases): {}.",
        told.join(", ")
    )
}
