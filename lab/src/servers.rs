//! `servers`: several processes append to one database under equal load: does each get its share?
//!
//! Each "server" is a store of its own, with its own connections and caches, at its own distance from
//! the database; for the database they are different processes. First one of them is measured alone.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::append::{self, Measured};
use crate::failure::{Result, fail};
use crate::load::{self, LoadArgs, Outcome};
use crate::read_back;
use crate::report::{Record, ReportArgs, Table};
use crate::store::{self, Opened, StoreArgs};
use crate::units::{self, grouped};
use crate::workload::{Run, Workload, WorkloadArgs};

/// Equal load on several stores that share a database (PostgreSQL only).
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ServersArgs {
    /// `--rtt` is that of the first server.
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// `--waiters` is the total.
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    /// Number of servers.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=16))]
    pub(crate) servers: u16,
    /// Extra round trip of the last server, for example 5ms.
    #[arg(long, default_value = "0", value_parser = units::duration)]
    pub(crate) far: Duration,
    /// Share of the total that each must have.
    #[arg(long, default_value_t = 0.1)]
    pub(crate) floor: f64,
}

/// The command. True if none starved and nothing was lost or wrongly refused.
pub(crate) async fn run(args: &ServersArgs, stop: &CancellationToken) -> Result<bool> {
    let mut record = Record::begin("servers", args.workload.seed);
    let first = store::open(&args.store).await?;
    if first.facts.backend != "postgres" {
        return fail("servers is about PostgreSQL");
    }
    eprintln!("one server alone");
    let alone = append::measure(&first, &args.load, &args.workload, stop).await?;
    let mut all: Vec<Opened> = Vec::new();
    for number in 1..args.servers {
        let rtt = if number + 1 == args.servers {
            args.far
        } else {
            Duration::ZERO
        };
        all.push(store::open_url(&first.url, rtt, args.store.logs).await?);
    }
    let stores: Vec<_> = std::iter::once(&first)
        .chain(&all)
        .map(|o| Arc::clone(&o.store))
        .collect();
    eprintln!("{} servers", stores.len());
    let workload = Arc::new(Workload::new(&args.workload, Run::random()));
    let from = read_back::mark(first.store.as_ref()).await?;
    let stores_before: Vec<_> = std::iter::once(&first)
        .chain(&all)
        .map(Opened::pipelines)
        .collect();
    let outcomes = load::run(&stores, &workload, &args.load, stop).await?;

    let pipelines: Vec<_> = std::iter::once(&first)
        .chain(&all)
        .map(Opened::pipelines)
        .zip(stores_before)
        .map(|(now, before)| now.zip(before).map(|(now, before)| now.since(before)))
        .collect();

    let rates: Vec<f64> = outcomes
        .iter()
        .map(|o| o.appends_per_second() * f64::from(args.load.events))
        .collect();
    let latencies: Vec<_> = outcomes.iter().map(|o| o.latencies.percentiles()).collect();
    let outcome = Outcome::merged(outcomes);
    let events = u64::from(args.load.events);
    let read_back = read_back::check(&first.store, from, &workload, events, &outcome).await?;
    let together = Measured {
        outcome,
        read_back,
        pipelines: None,
    };

    let total: f64 = rates.iter().sum();
    let shares: Vec<f64> = rates
        .iter()
        .map(|rate| if total > 0.0 { rate / total } else { 0.0 })
        .collect();
    let starved = shares.iter().any(|share| *share < args.floor);
    let sound = alone.is_valid() && together.is_valid();
    let alone_rate = alone.outcome.appends_per_second() * f64::from(args.load.events);
    record.store = Some(first.facts.clone());
    record.workload = append::parameters(&args.load, &args.workload);
    record.workload["far_ms"] = json!(args.far.as_secs_f64() * 1_000.0);
    record.result = json!({
        "events_per_second_each": rates, "shares": shares, "latency_ms_each": latencies, "events_per_second_total": total,
        "events_per_second_alone": alone_rate, "pipelines_each": pipelines, "floor": args.floor, "starved": starved,
        "together": together.figures(args.load.events), "alone": alone.figures(args.load.events),
    });
    record.errors = json!(together.outcome.errors);
    (record.complete, record.valid) = (!stop.is_cancelled(), sound);
    record.save(&args.report)?;

    let mut table = Table::new([
        "server", "events/s", "share", "p50 ms", "p99 ms", "batches", "missed",
    ]);
    for (number, rate) in rates.iter().enumerate() {
        table.row([
            format!("server {number}"),
            grouped(*rate),
            format!("{:.0} %", shares[number] * 100.0),
            format!("{:.2}", latencies[number].p50),
            format!("{:.2}", latencies[number].p99),
            pipelines[number].map_or(0, |p| p.batches).to_string(),
            pipelines[number].map_or(0, |p| p.misses).to_string(),
        ]);
    }
    table.row(["total".into(), grouped(total)]);
    table.row(["one alone".into(), grouped(alone_rate)]);
    print!("{table}");
    for run in [&alone, &together] {
        append::verdict(run);
    }
    if starved {
        println!(
            "STARVED: a server got less than {:.0} %",
            args.floor * 100.0
        );
    }
    for opened in std::iter::once(&first).chain(&all) {
        opened.store.shutdown().await?;
    }
    Ok(sound && (!starved || stop.is_cancelled()))
}
