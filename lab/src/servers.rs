//! `servers`: several processes append to one database under equal load: does each get its share?
//!
//! Each "server" is a store of its own, with its own connections and caches, at its own distance from
//! the database; for the database they are different processes. First one of them is measured alone with all callers, and
//! with its share of them; so is the one that is far away. A server starves if it has little of what it has alone.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::append::{self, Measured};
use crate::failure::{Result, fail};
use crate::histogram::Percentiles;
use crate::load::{self, LoadArgs, Outcome};
use crate::read_back;
use crate::record::{Record, Table};
use crate::report::ReportArgs;
use crate::store::{self, Opened, Pipelines, StoreArgs};
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
    /// Part of its fair share that each must have: of what it has alone, with as many callers, divided by the servers.
    #[arg(long, default_value_t = 0.2)]
    pub(crate) floor: f64,
}

/// What the servers have without the others.
struct Alone {
    /// One with all callers.
    all_callers: Measured,
    /// Events per second of each, with its share of the callers.
    each: Vec<f64>,
    sound: bool,
}

/// What one of them has beside the others.
struct Each {
    /// Events per second.
    rate: f64,
    /// The same without the others.
    alone: f64,
    latencies: Percentiles,
    pipeline: Option<Pipelines>,
}

impl Each {
    fn of_alone(&self) -> f64 {
        part(self.rate, self.alone)
    }
}

fn part(of: f64, whole: f64) -> f64 {
    if whole > 0.0 { of / whole } else { 0.0 }
}

fn table(servers: &[Each], total: f64) -> Table {
    let mut table = Table::new([
        "server", "events/s", "share", "alone", "of that", "p50 ms", "p99 ms", "batches", "missed",
    ]);
    for (number, server) in servers.iter().enumerate() {
        table.row([
            format!("server {number}"),
            grouped(server.rate),
            format!("{:.0} %", part(server.rate, total) * 100.0),
            grouped(server.alone),
            format!("{:.0} %", server.of_alone() * 100.0),
            format!("{:.2}", server.latencies.p50),
            format!("{:.2}", server.latencies.p99),
            server.pipeline.map_or(0, |p| p.batches).to_string(),
            server.pipeline.map_or(0, |p| p.misses).to_string(),
        ]);
    }
    table.row(["total".into(), grouped(total)]);
    table
}

async fn measure_alone(
    opened: &[Opened],
    args: &ServersArgs,
    stop: &CancellationToken,
) -> Result<Alone> {
    let events = f64::from(args.load.events);
    let rate = |measured: &Measured| measured.outcome.appends_per_second() * events;
    let share = LoadArgs {
        waiters: (args.load.waiters / u32::from(args.servers)).max(1),
        ..args.load.clone()
    };
    eprintln!("one server alone");
    let all_callers = append::measure(&opened[0], &args.load, &args.workload, stop).await?;
    eprintln!("the same with {} callers", share.waiters);
    let near = append::measure(&opened[0], &share, &args.workload, stop).await?;
    let mut each = vec![rate(&near); opened.len()];
    let mut sound = all_callers.is_valid() && near.is_valid();
    if !args.far.is_zero() {
        eprintln!("the far one alone");
        let far = append::measure(&opened[opened.len() - 1], &share, &args.workload, stop).await?;
        each[opened.len() - 1] = rate(&far);
        sound &= far.is_valid();
    }
    Ok(Alone {
        all_callers,
        each,
        sound,
    })
}

/// The command. True if none starved and nothing was lost or wrongly refused.
pub(crate) async fn run(args: &ServersArgs, stop: &CancellationToken) -> Result<bool> {
    let mut record = Record::begin("servers", args.workload.seed);
    let first = store::open(&args.store).await?;
    if first.facts.backend != "postgres" {
        return fail("servers is about PostgreSQL");
    }
    let url = first.url.clone();
    let mut opened = vec![first];
    for number in 1..args.servers {
        let rtt = if number + 1 == args.servers {
            args.far
        } else {
            Duration::ZERO
        };
        opened.push(store::open_url(&url, rtt, args.store.logs).await?);
    }
    let alone = measure_alone(&opened, args, stop).await?;
    let first = &opened[0];
    let stores: Vec<_> = opened.iter().map(|o| Arc::clone(&o.store)).collect();
    eprintln!("{} servers", stores.len());
    let workload = Arc::new(Workload::new(&args.workload, Run::random()));
    let from = read_back::mark(first.store.as_ref()).await?;
    let stores_before: Vec<_> = opened.iter().map(Opened::pipelines).collect();
    let outcomes = load::run(&stores, &workload, &args.load, stop).await?;

    let pipelines: Vec<_> = opened
        .iter()
        .map(Opened::pipelines)
        .zip(stores_before)
        .map(|(now, before)| now.zip(before).map(|(now, before)| now.since(before)))
        .collect();

    let each = |(number, outcome): (usize, &Outcome)| Each {
        rate: outcome.appends_per_second() * f64::from(args.load.events),
        alone: alone.each[number],
        latencies: outcome.latencies.percentiles(),
        pipeline: pipelines[number],
    };
    let each: Vec<Each> = outcomes.iter().enumerate().map(each).collect();
    let outcome = Outcome::merged(outcomes);
    let events = u64::from(args.load.events);
    let read_back = read_back::check(&first.store, from, &workload, events, &outcome).await?;
    let together = Measured {
        outcome,
        read_back,
        pipelines: None,
    };

    let total: f64 = each.iter().map(|server| server.rate).sum();
    let servers = f64::from(args.servers);
    let starved = each
        .iter()
        .any(|server| server.of_alone() * servers < args.floor);
    let sound = alone.sound && together.is_valid();
    let alone_rate = alone.all_callers.outcome.appends_per_second() * f64::from(args.load.events);
    record.store = Some(first.facts.clone());
    record.workload = append::parameters(&args.load, &args.workload);
    record.workload["far_ms"] = json!(args.far.as_secs_f64() * 1_000.0);
    let of = |what: fn(&Each) -> f64| each.iter().map(what).collect::<Vec<_>>();
    let latencies: Vec<_> = each.iter().map(|server| &server.latencies).collect();
    let pipelines: Vec<_> = each.iter().map(|server| &server.pipeline).collect();
    let shares: Vec<f64> = each.iter().map(|server| part(server.rate, total)).collect();
    record.result = json!({
        "events_per_second_each": of(|server| server.rate), "shares": shares, "latency_ms_each": latencies,
        "events_per_second_total": total, "events_per_second_alone": alone_rate, "events_per_second_alone_each": alone.each,
        "of_alone_each": of(Each::of_alone), "pipelines_each": pipelines, "floor": args.floor, "starved": starved,
        "together": together.figures(args.load.events), "alone": alone.all_callers.figures(args.load.events),
    });
    record.errors = json!(together.outcome.errors);
    (record.complete, record.valid) = (!stop.is_cancelled(), sound);
    record.save(&args.report)?;

    let mut table = table(&each, total);
    table.row(["one with all callers".into(), grouped(alone_rate)]);
    print!("{table}");
    for run in [&alone.all_callers, &together] {
        append::verdict(run);
    }
    if starved {
        println!(
            "STARVED: a server got less than {:.0} % of its fair share of what it has alone",
            args.floor * 100.0
        );
    }
    for opened in &opened {
        opened.store.shutdown().await?;
    }
    Ok(sound && (!starved || stop.is_cancelled()))
}
