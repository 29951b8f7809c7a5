//! `schemas`: how many events does this database carry with each of the field's journal schemas, and with Gesta?
//!
//! The method is that of the published comparison: looping appends of events whose sizes are drawn from a
//! distribution, with more and more connections, until a schema's average latency passes a limit; the best rate with a
//! good 99th percentile counts. Rounds go through the schemas forwards and backwards, so that none has the machine's
//! best mood to itself, and their differences are the noise that is reported.
//! Read `steps` first (when what ends), then `contest` (what happens).

mod contest;
mod line_up;
mod steps;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::failure::Result;
use crate::histogram::median;
use crate::record::{Record, Table};
use crate::report::ReportArgs;
use crate::sizes::Sizes;
use crate::store;
use crate::target::ReadBack;
use crate::units::{self, grouped};
use crate::workload::PayloadKind;

use contest::{Contest, Round};
use steps::{Best, Limits, Steps};

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
    /// Servers to measure beside them: Gesta's, `http://host:port`, or an application with the cinema's HTTP interface,
    /// `cinema://host:port`.
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
    let result = Ranking::of(&contest, args);
    let mut record = Record::begin("schemas", args.seed);
    if url.starts_with("postgres") {
        record.store = Some(store::database_facts(&url, args.rtt).await?);
    }
    record.workload = parameters(args, contest.sizes());
    record.result = result.figures();
    record.errors = json!({});
    record.complete = contest.is_complete();
    record.problems = result.problems.clone();
    record.valid = result.problems.is_empty();
    record.save(&args.report)?;
    result.print();
    Ok(record.valid)
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

/// All schemas with what their rounds came to.
struct Ranking<'a> {
    contest: &'a Contest,
    rows: Vec<Row<'a>>,
    noise: f64,
    problems: Vec<String>,
}

struct Row<'a> {
    name: &'a str,
    title: &'a str,
    rounds: &'a [Round],
    /// Of the round in the middle.
    best: Option<Best>,
    best_by_round: Vec<f64>,
    noise: f64,
}

impl<'a> Ranking<'a> {
    fn of(contest: &'a Contest, args: &SchemasArgs) -> Self {
        let limits = limits(args);
        let mut rows: Vec<Row> = contest
            .entries()
            .map(|(target, rounds)| Row::of(target.name(), target.title(), rounds, &limits))
            .collect();
        rows.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
        let noise = rows.iter().map(|row| row.noise).fold(0.0, f64::max);
        let problems = problems(&rows, contest);
        Self {
            contest,
            rows,
            noise,
            problems,
        }
    }

    fn figures(&self) -> Value {
        let targets: Vec<Value> = self
            .rows
            .iter()
            .map(|row| row.figures(self.contest))
            .collect();
        json!({
            "targets": targets,
            "control_events_per_second": self.contest.controls(),
            "control_noise": steps::noise(self.contest.controls()),
            "noise": self.noise,
        })
    }

    fn print(&self) {
        let mut table = Table::new([
            "schema",
            "best events/s",
            "+-",
            "connections",
            "p99 ms",
            "of the best",
            "retries",
            "disk bytes/event",
            "ended by",
        ]);
        let first = self.rows.first().map_or(0.0, Row::rate);
        for row in &self.rows {
            table.row(row.cells(first));
        }
        print!("{table}");
        println!(
            "noise: rounds of one schema differ by up to ±{:.0} %, the machine itself (a bare INSERT in between) by ±{:.0} %",
            self.noise * 100.0,
            steps::noise(self.contest.controls()) * 100.0
        );
        for problem in &self.problems {
            println!("NO RESULT: {problem}");
        }
    }
}

impl<'a> Row<'a> {
    fn of(name: &'a str, title: &'a str, rounds: &'a [Round], limits: &Limits) -> Self {
        let bests: Vec<Option<Best>> = rounds.iter().map(|r| limits.best(&r.phases)).collect();
        let best_by_round: Vec<f64> = bests
            .iter()
            .map(|best| best.map_or(0.0, |best| best.events_per_second))
            .collect();
        let middle = median(&best_by_round);
        let distance = |best: &Best| (best.events_per_second - middle).abs();
        let best = bests
            .into_iter()
            .flatten()
            .min_by(|a, b| distance(a).total_cmp(&distance(b)))
            .map(|best| Best {
                events_per_second: middle,
                ..best
            });
        Self {
            name,
            title,
            rounds,
            best,
            noise: steps::noise(&best_by_round),
            best_by_round,
        }
    }

    fn rate(&self) -> f64 {
        self.best.map_or(0.0, |best| best.events_per_second)
    }

    fn figures(&self, contest: &Contest) -> Value {
        json!({
            "name": self.name,
            "title": self.title,
            "facts": contest.facts(self.name),
            "rounds": self.rounds.iter().map(Round::figures).collect::<Vec<_>>(),
            "best": self.best,
            "best_by_round": self.best_by_round,
            "noise": self.noise,
        })
    }

    fn cells(&self, first: f64) -> Vec<String> {
        let phases = self.rounds.iter().flat_map(|round| &round.phases);
        let retries: u64 = phases.flat_map(|phase| phase.retries.values()).sum();
        let disk = self
            .rounds
            .iter()
            .find_map(|round| round.disk_bytes_per_event);
        let ended: BTreeSet<String> = self.rounds.iter().map(Round::ended_at).collect();
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        vec![
            self.name.to_owned(),
            grouped(self.rate()),
            format!("{:.0} %", self.noise * 100.0),
            or_dash(self.best.map(|best| best.connections.to_string())),
            or_dash(self.best.map(|best| format!("{:.1}", best.p99_ms))),
            format!(
                "{:.2}",
                if first > 0.0 {
                    self.rate() / first
                } else {
                    0.0
                }
            ),
            retries.to_string(),
            or_dash(disk.map(grouped)),
            ended.into_iter().collect::<Vec<_>>().join("; "),
        ]
    }
}

/// What keeps this from being a result.
fn problems(rows: &[Row<'_>], contest: &Contest) -> Vec<String> {
    let mut problems = Vec::new();
    for row in rows {
        for round in row.rounds {
            if let Some(complaint) = round.read_back.as_ref().and_then(ReadBack::complaint) {
                problems.push(format!("{}: {complaint}", row.name));
            }
        }
        // A phase in which the generator was the limit says little about a schema's best.
        let best = row.best.map(|best| best.connections);
        let phases = row.rounds.iter().flat_map(|round| &round.phases);
        let limited = phases
            .filter(|phase| Some(phase.connections) == best)
            .find_map(|phase| phase.generator_limit.clone());
        if let Some(limit) = limited {
            problems.push(format!("{}: at its best, {limit}", row.name));
        }
    }
    let durabilities: BTreeSet<String> = contest
        .all_facts()
        .map(|(name, facts)| format!("{name} {}", facts.durability))
        .collect();
    let kinds: BTreeSet<&str> = contest
        .all_facts()
        .map(|(_, facts)| facts.durability.as_str())
        .collect();
    if kinds.len() > 1 {
        let all: Vec<String> = durabilities.into_iter().collect();
        problems.push(format!("durability differs: {}", all.join(", ")));
    }
    problems
}

fn limits(args: &SchemasArgs) -> Limits {
    Limits {
        average_max: args.average_max,
        p99_max: args.p99_max,
    }
}
