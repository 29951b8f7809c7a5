//! `projections`: how fast are read models built, how soon does an append show in them, and what do many of them cost?
//!
//! * Catching up: a row for each of 100,000 keys, a row for each type, and an index over two paths, on PostgreSQL and
//!   SQLite; beside the bound (the same rows written in bulk, without a store; reading alone), and beside the loop that
//!   teams write by hand, with a transaction for each event.
//! * Live, on PostgreSQL: appends at a rate; the time from an acknowledged append until its row is committed.
//! * Many: what 1 and 100 projections cost the database while nothing happens, and in a burst of which another process
//!   is the writer; 35 projections of a tag each.
//!
//! What was written is read back: the events that the rows count must be those that were stored.
//! Read `models` first (the read models and their events), then this.

mod bare;
mod catch_up;
mod live;
mod many;
mod models;
mod places;

use std::time::Duration;

use gesta_report::failure::{Result, fail};
use gesta_report::units::{self, grouped};
use gesta_report::{Report, ReportArgs, Table, Unit};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use gesta_load::machine::store::{self, NEW_SERVER};

use catch_up::Built;
use live::Shown;
use many::Cost;
use places::Place;

/// Read models: how fast they are built, how soon they show an append, what many of them cost.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct ProjectionsArgs {
    /// The database: `postgres://…`, or `postgres:new`, a server that is started for this run. Store and rows are made
    /// in schemas named `gesta_lab_…`, and removed afterwards. An SQLite store with its rows is measured beside it.
    #[arg(long, default_value = NEW_SERVER)]
    #[serde(skip)]
    store: String,
    /// Events that are stored before.
    #[arg(long, default_value = "500k", value_parser = units::count)]
    events: u64,
    /// Keys of the rows.
    #[arg(long, default_value = "100k", value_parser = units::count)]
    keys: u64,
    /// Events of the loop with a transaction for each.
    #[arg(long, default_value = "5k", value_parser = units::count)]
    by_hand: u64,
    /// Appends a second while live.
    #[arg(long, default_value = "5k", value_parser = units::count)]
    rate: u64,
    /// How long appends are made while live.
    #[arg(long, default_value = "10s", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "live_seconds")]
    live: Duration,
    /// Events of a burst for many projections.
    #[arg(long, default_value = "2k", value_parser = units::count)]
    burst: u64,
    /// How long the database is watched while nothing happens.
    #[arg(long, default_value = "10s", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "idle_seconds")]
    idle: Duration,
    /// How often each read model is built; the middle one counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only these parts, separated by commas; the default is all.
    #[arg(long, value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
    /// Seed of contents.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// A part of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Part {
    CatchUp,
    Live,
    Many,
}

impl ProjectionsArgs {
    fn wants(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }
}

/// What was measured.
#[derive(Default)]
struct Measured {
    built: Vec<Built>,
    shown: Vec<Shown>,
    costs: Vec<Cost>,
}

/// The command. True if the rows count every event that was stored.
pub(crate) async fn run(args: &ProjectionsArgs, stop: &CancellationToken) -> Result<bool> {
    if args.events == 0 || args.keys == 0 || args.rate == 0 || args.burst == 0 {
        return fail("--events, --keys, --rate and --burst must not be 0");
    }
    let mut server = None;
    let url = store::resolve(&args.store, &mut server)?;
    let folder = tempfile::tempdir()?;
    let mut report = Report::begin("projections", "Read models", args.seed);
    report.store = Some(store::database_facts(&url, Duration::ZERO).await?);
    let mut measured = Measured::default();
    for place in [Place::postgres(&url), Place::sqlite(folder.path())] {
        let done = measure(args, &place, &mut measured, &mut report, stop).await;
        let removed = place.remove().await;
        done?;
        removed?;
    }
    report.workload = json!(args);
    tell(&mut report, &measured);
    report.finish(&args.report, !stop.is_cancelled())
}

async fn measure(
    args: &ProjectionsArgs,
    place: &Place,
    measured: &mut Measured,
    report: &mut Report,
    stop: &CancellationToken,
) -> Result<()> {
    if args.wants(Part::CatchUp) {
        catch_up::measure(args, place, &mut measured.built, report, stop).await?;
    }
    if args.wants(Part::Live) && place.is_postgres() && !stop.is_cancelled() {
        live::measure(args, place, &mut measured.shown, report).await?;
    }
    if args.wants(Part::Many) && place.is_postgres() && !stop.is_cancelled() {
        many::measure(args, place, &mut measured.costs, report).await?;
    }
    Ok(())
}

fn tell(report: &mut Report, measured: &Measured) {
    let built = measured.built.iter().filter(|one| one.is_gesta());
    let built = built.map(|one| {
        let rate = grouped(one.rate());
        format!("{} on {} {rate} events/s", one.what, one.database)
    });
    let shown = measured.shown.iter().map(|one| {
        let (at, p99) = (grouped(one.rate), one.latency.p99);
        format!("live on {} at {at}/s p99 {p99:.1} ms", one.database)
    });
    let found: Vec<String> = built.chain(shown).collect();
    report.finding = format!("{}.", found.join("; "));
    let built = Table::of("Catching up", &measured.built)
        .column("database", Unit::Words, |one| one.database)
        .column("what", Unit::Words, |one| one.what)
        .column("events/s", Unit::Count, Built::rate)
        .column("of all rounds", Unit::Words, Built::range);
    report.table(built.table());
    let shown = Table::of(
        "From an acknowledged append to its committed row",
        &measured.shown,
    )
    .column("database", Unit::Words, |one| one.database)
    .column("appends/s", Unit::Count, |one| one.rate)
    .column("p50", Unit::Millis, |one| one.latency.p50)
    .column("p99", Unit::Millis, |one| one.latency.p99)
    .column("p99.9", Unit::Millis, |one| one.latency.p999)
    .column("longest", Unit::Millis, |one| one.latency.max);
    report.table(shown.table());
    let costs = Table::of("Many projections", &measured.costs)
        .column("projections", Unit::Count, |one| one.projections)
        .column("what", Unit::Words, |one| one.what)
        .column("seconds", Unit::Seconds, |one| one.seconds)
        .column("statements", Unit::Count, |one| one.statements)
        .column("reads of the log", Unit::Count, |one| one.reads)
        .column("database time", Unit::Millis, |one| one.database_ms);
    report.table(costs.table());
}
