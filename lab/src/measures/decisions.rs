//! `decisions`: what does a condition by tags cost, and what does contention on one tag do?
//!
//! The same callers, by turns: plain appends; appends on the condition that nobody has used the caller's own tag since
//! the caller's last append; and the rules of courses and students (a user name is taken once, a course has so many
//! places, a student takes so many courses), each found by tags of its own, and all found by one tag that everybody
//! shares. On one store in this process, or through several nodes of which one owns the log.
//!
//! Afterwards everything is read, and the rules and the answers are held against what is stored.
//! Read `courses` first (the rules), then `ways`.

mod courses;
mod ways;

use std::sync::Arc;
use std::time::Duration;

use gesta_chaos::world::World;
use gesta_client::{Config, HttpStore};
use gesta_core::EventStore;
use gesta_load::event_ids::Run;
use gesta_load::machine::child::{Program, ProgramArgs};
use gesta_load::machine::store::{self, NEW_SERVER};
use gesta_report::failure::{Failure, Result};
use gesta_report::units::{self, grouped};
use gesta_report::{Report, ReportArgs, Table, Unit};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cluster::SizeArgs;

use ways::{Measured, Way};

/// Decisions by tags: what a condition costs, and what contention on one tag does.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct DecisionsArgs {
    /// The store: `sqlite:PATH`, `postgres://…`, or `postgres:new`, a server that is started for this run.
    #[arg(long, default_value = NEW_SERVER)]
    #[serde(skip)]
    store: String,
    /// Instead, so many nodes of a new PostgreSQL server, over HTTP; callers are spread over all of them. The store has
    /// one log, which one node owns.
    #[arg(long, conflicts_with = "store", value_parser = clap::value_parser!(u16).range(1..=20))]
    nodes: Option<u16>,
    /// Callers, each with one decision under way.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64], value_parser = clap::value_parser!(u32).range(1..))]
    callers: Vec<u32>,
    /// How long each is measured.
    #[arg(long, default_value = "5s", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "duration_seconds")]
    duration: Duration,
    #[command(flatten)]
    #[serde(skip)]
    program: ProgramArgs,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// One way with so many callers.
struct Row {
    way: Way,
    callers: u32,
    measured: Measured,
    /// Of the rate of plain appends by the same callers.
    of_plain: f64,
}

/// The stores that callers ask, by turns.
#[derive(Clone)]
struct Stores(Vec<Arc<dyn EventStore>>);

impl Stores {
    fn of(&self, caller: u32) -> &Arc<dyn EventStore> {
        let Self(stores) = self;
        &stores[usize::try_from(caller).unwrap_or(0) % stores.len()]
    }
}

/// The command. True if every answer is what is stored, and no rule is broken.
pub(crate) async fn run(args: &DecisionsArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("decisions", "Decisions by tags", 0);
    report.workload = json!(args);
    let Some(count) = args.nodes else {
        let mut server = None;
        let url = store::resolve(&args.store, &mut server)?;
        let opened = store::open_url(&url, Duration::ZERO, 1).await?;
        report.store = Some(opened.facts.clone());
        let stores = Stores(vec![Arc::clone(&opened.store)]);
        let rows = measure(args, &stores, &mut report, stop).await?;
        opened.store.shutdown().await?;
        return ended(args, report, &rows, stop);
    };
    report.setting = format!("{count} nodes");
    let program = Program::gesta(&args.program.find()?);
    let size = SizeArgs::of(count, 1);
    let mut nodes = World::start(&size.plan(&program)).await?;
    report.store = Some(store::database_facts(&nodes.url(), Duration::ZERO).await?);
    let ways = nodes.ways().into_iter();
    let stores = ways.map(|way| {
        let store = HttpStore::with_config(&way.url, Config::default())?;
        Ok(Arc::new(store) as Arc<dyn EventStore>)
    });
    let stores = Stores(stores.collect::<Result<_>>()?);
    let rows = measure(args, &stores, &mut report, stop).await;
    let rows = rows.map_err(|failure| Failure(format!("{failure}\n{}", nodes.last_words())))?;
    nodes.stop().await?;
    ended(args, report, &rows, stop)
}

fn ended(
    args: &DecisionsArgs,
    mut report: Report,
    rows: &[Row],
    stop: &CancellationToken,
) -> Result<bool> {
    tell(&mut report, rows);
    report.finish(&args.report, !stop.is_cancelled())
}

async fn measure(
    args: &DecisionsArgs,
    stores: &Stores,
    report: &mut Report,
    stop: &CancellationToken,
) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    for callers in &args.callers {
        let mut plain = None;
        for way in Way::ALL {
            if stop.is_cancelled() {
                return Ok(rows);
            }
            // Names of this measurement alone.
            let run = Run::random().to_string();
            let measured = ways::measure(way, *callers, stores, &run, args.duration, stop).await?;
            let title = format!("{} by {callers} callers", way.title());
            report.check(
                &title,
                &courses::checked(way, stores, &run, &measured).await?,
            );
            let rate = measured.stored_per_second();
            eprintln!("{title}: {} stored a second", grouped(rate));
            let plain = plain.get_or_insert(rate);
            rows.push(Row {
                way,
                callers: *callers,
                of_plain: rate / plain.max(0.001),
                measured,
            });
        }
    }
    Ok(rows)
}

fn tell(report: &mut Report, rows: &[Row]) {
    let found = rows.iter().filter(|row| row.way != Way::Plain).map(|row| {
        let (title, callers, share) = (row.way.title(), row.callers, row.of_plain * 100.0);
        format!("{title} by {callers}: {share:.0} % of plain appends")
    });
    let found: Vec<String> = found.collect();
    report.finding = format!("{}.", found.join("; "));
    let table = Table::of("Decisions", rows)
        .column("what", Unit::Words, |row| row.way.title())
        .column("callers", Unit::Count, |row| row.callers)
        .column("stored/s", Unit::Count, |row| {
            row.measured.stored_per_second()
        })
        .column("of plain appends", Unit::Share, |row| row.of_plain)
        .column("rejected/s", Unit::Count, |row| {
            row.measured.rejected_per_second()
        })
        .column("decided again/s", Unit::Count, |row| {
            row.measured.again_per_second()
        })
        .column("times decided per stored", Unit::Times, |row| {
            row.measured.tries()
        })
        .column("gave up", Unit::Count, |row| row.measured.gave_up)
        .column("p50", Unit::Millis, |row| row.measured.p50())
        .column("p99", Unit::Millis, |row| row.measured.p99())
        .column("failed", Unit::Count, |row| row.measured.calls.wrongs.len());
    report.table(table.table());
}
