//! `schemas`: how many events does this database carry with each of the field's journal schemas, and with Gesta?
//!
//! The method is that of the published comparison: looping appends of events whose sizes are drawn from a
//! distribution, with more and more connections, until a schema's average latency passes a limit; the best rate with a
//! good 99th percentile counts. Rounds go through the schemas forwards and backwards, so that none has the machine's
//! best mood to itself, and their differences are the noise that is reported.
//! Read `steps` first (when what ends), then `contest` (what happens).

mod contest;
mod line_up;
mod published;
mod ranking;
mod steps;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::failure::Result;
use crate::report::{Report, ReportArgs};
use crate::sizes::Sizes;
use crate::store;
use crate::units;
use crate::workload::PayloadKind;

use contest::Contest;
use ranking::Ranking;
use steps::{Limits, Steps};

/// Events per second of the field's journal schemas and of Gesta, over rising numbers of connections.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct SchemasArgs {
    /// The database: `postgres://…`, `postgres:new` (a server started for this run), or `sqlite:PATH`.
    /// Everything is made in schemas named `gesta_lab_…` and removed afterwards.
    #[arg(long, default_value = "postgres:new")]
    #[serde(skip)]
    store: String,
    /// Only these, by name, separated by commas; the default is all.
    #[arg(long, value_delimiter = ',')]
    schemas: Vec<String>,
    /// Gesta with these numbers of logs: a log is one order of events with one writing connection.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    gesta_logs: Vec<u16>,
    /// Gesta's servers to measure beside them, `http://host:port`.
    #[arg(long)]
    also: Vec<String>,
    /// Extra round trip to the database, for example 5ms.
    #[arg(long, default_value = "0", value_parser = units::duration)]
    rtt: Duration,
    /// Sizes of the events: `published`, a number of bytes, or a file of classes (see `gesta-lab sizes`).
    #[arg(long, default_value = "published")]
    sizes: String,
    /// What the data look like; schemas that store JSON take only JSON.
    #[arg(long, value_enum, default_value_t = PayloadKind::Json)]
    payload_kind: PayloadKind,
    /// Compression of the data, the same for all; `own`: as each comes (PostgreSQL's default costs large events dearly).
    #[arg(long, value_enum, default_value_t = Compression::Lz4)]
    compression: Compression,
    /// Connections that each phase adds.
    #[arg(long, default_value_t = 8)]
    step: u32,
    /// Most connections.
    #[arg(long, default_value_t = 64)]
    max: u32,
    /// Length of a phase.
    #[arg(long, default_value = "5s", value_parser = units::duration)]
    phase: Duration,
    /// Time before the clock starts in each phase.
    #[arg(long, default_value = "500ms", value_parser = units::duration)]
    warm_up: Duration,
    /// Times that everything is measured.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Events per append.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    events: u64,
    /// Events per stream; then a worker goes on with a new one.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=4_000))]
    events_per_stream: u64,
    /// Categories of the streams (Message DB writes one append per category at a time).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    categories: u32,
    /// A schema whose average latency passes this is stopped.
    #[arg(long, default_value = "500ms", value_parser = units::duration)]
    average_max: Duration,
    /// The best rate is the highest with a 99th percentile up to this.
    #[arg(long, default_value = "100ms", value_parser = units::duration)]
    p99_max: Duration,
    /// Seed of sizes and contents.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// How large data are compressed in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Compression {
    /// Fast.
    Lz4,
    /// PostgreSQL's default.
    Pglz,
    /// Not at all.
    None,
    /// As each schema comes.
    Own,
}

impl Compression {
    /// The method's name; none: leave it.
    pub(crate) fn method(self) -> Option<&'static str> {
        match self {
            Compression::Lz4 => Some("lz4"),
            Compression::Pglz => Some("pglz"),
            Compression::None => Some("none"),
            Compression::Own => None,
        }
    }

    /// Gesta's data are compressed by LZ4, so who does it may differ.
    pub(crate) fn is_lz4_for_gesta(self) -> bool {
        matches!(self, Compression::Lz4 | Compression::Own)
    }
}

/// The command. True if the run is a result.
pub(crate) async fn run(args: &SchemasArgs, stop: &CancellationToken) -> Result<bool> {
    let steps = Steps::new(args.step, args.max)?;
    let sizes = Sizes::named(&args.sizes)?;
    let mut server = None;
    let url = if args.store == store::NEW_SERVER {
        let server = server.insert(store::new_server_for(steps.most() + 40)?);
        server.url()
    } else {
        args.store.clone()
    };
    let targets = line_up::targets(args, &url, steps).await?;
    let mut contest = Contest::new(args, steps, sizes, targets, &url);
    contest.run(stop).await?;
    let mut report = Report::begin("schemas", "Journal schemas", args.seed);
    if url.starts_with("postgres") {
        report.store = Some(store::database_facts(&url, args.rtt).await?);
    }
    report.workload = parameters(args, contest.sizes());
    Ranking::of(&contest, args).tell(&mut report);
    report.finish(&args.report, contest.is_complete())
}

fn parameters(args: &SchemasArgs, sizes: &Sizes) -> Value {
    let mut value = json!(args);
    value["phase_seconds"] = json!(args.phase.as_secs_f64());
    value["events_per_append"] = json!(args.events);
    value["average_ms_max"] = json!(args.average_max.as_secs_f64() * 1_000.0);
    value["p99_ms_max"] = json!(args.p99_max.as_secs_f64() * 1_000.0);
    value["round_trip_ms"] = json!(args.rtt.as_secs_f64() * 1_000.0);
    value["sizes"] = json!(sizes);
    value["sizes"]["mean_bytes"] = json!(sizes.mean().round());
    for text in ["rtt", "phase", "warm_up", "average_max", "p99_max"] {
        value.as_object_mut().expect("an object").remove(text);
    }
    value
}

fn limits(args: &SchemasArgs) -> Limits {
    Limits {
        average_max: args.average_max,
        p99_max: args.p99_max,
    }
}
