//! `latency`: what does distance to the database cost, and which way of appending pays it how often?
//!
//! Three ways on the same database behind a proxy that delays: a transaction of separate statements, which holds the
//! lock on the global order across the network; one bundled statement; and Gesta's pipeline. The experiment was
//! published for the Elixir EventStore (docs/benchmarks.md): streams in tens, workers that append batches to streams
//! of their own, and a distance that grows.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::failure::{Context, Result, fail};
use crate::journals;
use crate::report::{Record, ReportArgs, Table};
use crate::sizes::Sizes;
use crate::store;
use crate::target::{self, Embedded, Events, GestaTarget, Load, Phase, ReadBack, Target};
use crate::units::{self, grouped};
use crate::workload::PayloadKind;

/// Events per stream at most; then a worker goes on with a new stream.
const STREAM_EVENTS_MAX: u64 = 4_000;
/// Round trips in a phase at least: workers that wait for the same answer append together, so that a count is off by
/// one round of all workers.
const ROUND_TRIPS_MIN: u32 = 100;

/// Separate statements, one bundled statement, and Gesta's pipeline, at growing distances from the database.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct LatencyArgs {
    /// The database: `postgres://…`, or `postgres:new`, a server started for this run.
    #[arg(long, default_value = "postgres:new")]
    #[serde(skip)]
    store: String,
    /// Round trips to inject, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "0,1.5ms,5ms,10ms,50ms", value_parser = units::duration)]
    #[serde(skip)]
    rtt: Vec<Duration>,
    /// Numbers of workers.
    #[arg(long, value_delimiter = ',', default_value = "1,10,40,400", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    workers: Vec<u32>,
    /// Events per append.
    #[arg(long, value_delimiter = ',', default_value = "5,100", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    events: Vec<u64>,
    /// Streams that all workers fill by turns, each worker its own: at least one per worker.
    #[arg(long, default_value_t = 80)]
    streams: u32,
    /// Bytes of data per event.
    #[arg(long, default_value_t = 100)]
    payload: usize,
    /// Time on the clock for each figure; at least 100 round trips.
    #[arg(long, default_value = "2s", value_parser = units::duration)]
    #[serde(skip)]
    phase: Duration,
    /// Most workers of the ways that need a connection for each; more workers are tried with Gesta alone.
    #[arg(long, default_value_t = 400)]
    connections_max: u32,
    /// Seed of the contents.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// A way of appending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Form {
    /// BEGIN, INSERT, UPDATE of the stream, UPDATE of the whole, COMMIT: five round trips.
    Separate,
    /// The same in one statement.
    Bundled,
    /// Gesta.
    Gesta,
}

/// One figure.
#[derive(Debug, Serialize)]
struct Cell {
    form: Form,
    workers: u32,
    events: u64,
    round_trip_ms: f64,
    phase: Phase,
    read_back: ReadBack,
}

/// The command. True if the run is a result.
pub(crate) async fn run(args: &LatencyArgs, stop: &CancellationToken) -> Result<bool> {
    let sizes = Sizes::fixed(args.payload)?;
    let mut record = Record::begin("latency", args.seed);
    let mut server = None;
    let url = if args.store == store::NEW_SERVER {
        let server = server.insert(store::new_server_for(args.connections_max + 40)?);
        server.url()
    } else {
        args.store.clone()
    };
    if !url.starts_with("postgres") {
        return fail(format!(
            "{url:?}: distance matters to a database behind a network, postgres://…"
        ));
    }
    record.store = Some(store::database_facts(&url, Duration::ZERO).await?);
    let mut cells = Vec::new();
    'all: for rtt in &args.rtt {
        for events in &args.events {
            for workers in &args.workers {
                for form in [Form::Separate, Form::Bundled, Form::Gesta] {
                    if stop.is_cancelled() {
                        break 'all;
                    }
                    if form != Form::Gesta && *workers > args.connections_max {
                        continue;
                    }
                    let cell = Measure {
                        args,
                        url: &url,
                        sizes: &sizes,
                        rtt: *rtt,
                    };
                    cells.push(cell.cell(form, *workers, *events, stop).await?);
                }
            }
        }
    }
    record.workload = json!(args);
    record.workload["phase_seconds"] = json!(args.phase.as_secs_f64());
    record.workload["payload_bytes"] = json!(args.payload);
    record.result = json!({ "cells": cells });
    record.complete = !stop.is_cancelled();
    record.problems = problems(&cells);
    record.valid = record.problems.is_empty();
    record.save(&args.report)?;
    print!("{}", table(args, &cells));
    for problem in &record.problems {
        println!("NO RESULT: {problem}");
    }
    Ok(record.valid)
}

struct Measure<'a> {
    args: &'a LatencyArgs,
    url: &'a str,
    sizes: &'a Sizes,
    rtt: Duration,
}

impl Measure<'_> {
    fn target(&self, form: Form) -> Result<Arc<dyn Target>> {
        let journal = |name| journals::named(name, self.url, self.rtt, None);
        match form {
            Form::Separate => journal("eventstore-separate"),
            Form::Bundled => journal("eventstore"),
            Form::Gesta => Ok(Arc::new(GestaTarget::new(self.url, self.rtt, None))),
        }
    }

    async fn cell(
        &self,
        form: Form,
        workers: u32,
        events: u64,
        stop: &CancellationToken,
    ) -> Result<Cell> {
        let target = self.target(form)?;
        target.prepare().await.context(target.name().to_owned())?;
        let made = Events::new(self.sizes.clone(), PayloadKind::Json, 1, self.args.seed);
        let made = Arc::new(made);
        let streams = (self.args.streams / workers).max(1);
        let load = Load {
            first_worker: 0,
            workers,
            events,
            events_per_stream: STREAM_EVENTS_MAX / events * events,
            streams,
            rate: None,
            // Each worker meets each of its streams for the first time, which may take several round trips, before the
            // clock starts; and what is far away takes time to begin.
            warm_up: Duration::from_millis(300) + self.rtt * (10 + 3 * streams),
            duration: self.args.phase.max(self.rtt * ROUND_TRIPS_MIN),
        };
        let (run, claims) = target::run(&target, &made, &load, stop).await?;
        let read_back = target::check(target.as_ref(), &made, &claims).await?;
        target.remove().await?;
        let embedded = match form {
            Form::Gesta => Embedded::Yes,
            _ => Embedded::No,
        };
        let phase = run.figures(workers, embedded);
        let round_trip_ms = self.rtt.as_secs_f64() * 1_000.0;
        eprintln!(
            "{round_trip_ms:>5} ms, {workers:>3} workers x {events:>3} events, {form:?}: {} events/s, p50 {:.1} ms, p99 {:.1} ms",
            grouped(phase.events_per_second),
            phase.latency_ms.p50,
            phase.latency_ms.p99
        );
        Ok(Cell {
            form,
            workers,
            events,
            round_trip_ms,
            phase,
            read_back,
        })
    }
}

fn problems(cells: &[Cell]) -> Vec<String> {
    let mut problems = Vec::new();
    for cell in cells {
        let what = format!(
            "{:?}, {} workers x {} events at {} ms",
            cell.form, cell.workers, cell.events, cell.round_trip_ms
        );
        if let Some(complaint) = cell.read_back.complaint() {
            problems.push(format!("{what}: {complaint}"));
        }
        if let Some(limit) = &cell.phase.generator_limit {
            problems.push(format!("{what}: {limit}"));
        }
        if let Some((cause, count)) = cell.phase.errors.iter().next() {
            problems.push(format!("{what}: {count} appends failed: {cause}"));
        }
    }
    problems
}

/// One row per distance, batch and number of workers; a column per form, and the ratios.
fn table(args: &LatencyArgs, cells: &[Cell]) -> Table {
    let mut table = Table::new([
        "round trip",
        "workers x events",
        "separate events/s",
        "bundled",
        "gesta",
        "p50 ms: separate",
        "bundled",
        "gesta",
        "bundled : separate",
        "gesta : bundled",
        "gesta : separate",
    ]);
    for rtt in &args.rtt {
        for events in &args.events {
            for workers in &args.workers {
                let round_trip_ms = rtt.as_secs_f64() * 1_000.0;
                let find = |form| {
                    cells.iter().find(|cell| {
                        (cell.form, cell.workers, cell.events) == (form, *workers, *events)
                            && (cell.round_trip_ms - round_trip_ms).abs() < 1e-9
                    })
                };
                let all = [Form::Separate, Form::Bundled, Form::Gesta].map(find);
                if all.iter().all(Option::is_none) {
                    continue;
                }
                let mut row = vec![
                    format!("{round_trip_ms} ms"),
                    format!("{workers} x {events}"),
                ];
                row.extend(
                    all.map(|c| c.map_or("-".into(), |c| grouped(c.phase.events_per_second))),
                );
                row.extend(
                    all.map(|c| c.map_or("-".into(), |c| format!("{:.1}", c.phase.latency_ms.p50))),
                );
                for (over, under) in [(1, 0), (2, 1), (2, 0)] {
                    row.push(ratio(all[over], all[under]));
                }
                table.row(row);
            }
        }
    }
    table
}

fn ratio(over: Option<&Cell>, under: Option<&Cell>) -> String {
    match (over, under) {
        (Some(over), Some(under)) if under.phase.events_per_second > 0.0 => format!(
            "{:.1}",
            over.phase.events_per_second / under.phase.events_per_second
        ),
        _ => "-".into(),
    }
}
