//! `copy`: how fast is a whole store copied to another database, and does everything arrive?
//!
//! A store in an SQLite file is filled with everything that a store can hold, and copied on: to PostgreSQL, from there
//! to a store of several logs on two databases, and back into a file. Beside it the rows of the store on PostgreSQL go
//! by `pg_dump` and `pg_restore` into another database, which is the usual way where a copy would do without the rest:
//! other kinds of databases, other numbers of logs, a comparison at the end.
//!
//! What readers see of the first and of the last store is compared by this program itself, beside the digests that the
//! copies compare. With `--kills` each copy is a process that is killed at random moments and goes on.
//! Read `legs` first.

mod dump;
mod fill;
mod legs;
mod places;
mod seen;

use gesta_report::failure::{Result, fail};
use gesta_report::histogram::median;
use gesta_report::read_back::ReadBack;
use gesta_report::units::{self, grouped};
use gesta_report::{Report, ReportArgs, Table, Unit};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use gesta_load::machine::child::ProgramArgs;
use gesta_load::machine::store::{self, NEW_SERVER};

use legs::{Copied, Leg};
use places::Places;

/// How fast is a whole store copied to another database, and does everything arrive?
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct CopyArgs {
    /// The PostgreSQL server: `postgres://…` of a user who may create databases, or `postgres:new`, a server that is
    /// started for this run. Databases named `gesta_lab_copy_…` are made there, and removed afterwards; a run that is
    /// killed leaves them.
    #[arg(long, default_value = NEW_SERVER)]
    #[serde(skip)]
    store: String,
    /// Events that are stored before; deletes and metadata come on top.
    #[arg(long, default_value = "200k", value_parser = units::count)]
    events: u64,
    /// Bytes of an event's data; a store is made and copied for each.
    #[arg(long, value_delimiter = ',', default_values_t = [200, 2_000], value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    bytes: Vec<u32>,
    /// Logs of the store on two databases.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    logs: u16,
    /// How often each copy is made; the middle one counts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How often each copy is killed on its way. Its time then is no figure.
    #[arg(long, default_value_t = 0)]
    kills: u32,
    #[command(flatten)]
    #[serde(skip)]
    program: ProgramArgs,
    /// Seed of contents and of the moments of the kills.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// One way of one size, over all rounds.
#[derive(Debug)]
struct Row {
    way: String,
    bytes: u32,
    events: u64,
    seconds: Vec<f64>,
    rates: Vec<f64>,
    megabytes: f64,
    kills: u32,
    digest: String,
}

impl Row {
    fn rate(&self) -> f64 {
        median(&self.rates)
    }

    fn range(&self) -> String {
        let of = |pick: fn(f64, f64) -> f64| {
            grouped(self.rates.iter().copied().reduce(pick).unwrap_or(0.0))
        };
        format!("{} to {}", of(f64::min), of(f64::max))
    }
}

/// The command. True if what readers see of the last store is what they saw of the first.
pub(crate) async fn run(args: &CopyArgs, stop: &CancellationToken) -> Result<bool> {
    if args.events == 0 || args.bytes.is_empty() {
        return fail("--events and --bytes must not be 0");
    }
    let mut server = None;
    let url = store::resolve(&args.store, &mut server)?;
    let mut report = Report::begin("copy", "Copying a store", args.seed);
    report.store = Some(store::database_facts(&url, std::time::Duration::ZERO).await?);
    report.workload = json!(args);
    let mut rows = Vec::new();
    for bytes in &args.bytes {
        if stop.is_cancelled() {
            break;
        }
        let folder = tempfile::tempdir()?;
        let places = Places::new(&url, folder.path());
        places.remove().await?;
        let done = measure(args, *bytes, &places, &mut rows, &mut report, stop).await;
        let removed = places.remove().await;
        done?;
        removed?;
    }
    tell(args, &mut report, &rows);
    report.finish(&args.report, !stop.is_cancelled())
}

/// Fills a store, copies it round, and compares.
async fn measure(
    args: &CopyArgs,
    bytes: u32,
    places: &Places,
    rows: &mut Vec<Row>,
    report: &mut Report,
    stop: &CancellationToken,
) -> Result<()> {
    eprintln!(
        "storing {} events of {bytes} bytes",
        grouped(args.events as f64)
    );
    fill::fill(&places.file(), args.events, bytes, args.seed).await?;
    let before = seen::seen(&places.file()).await?;
    let legs = Leg::all(places, args.logs);
    let mut of_size: Vec<Row> = Vec::new();
    for round in 0..args.rounds {
        places.make().await?;
        for (number, leg) in legs.iter().enumerate() {
            if stop.is_cancelled() {
                return Ok(());
            }
            let copied = if args.kills == 0 {
                legs::copy(leg).await?
            } else {
                legs::copy_killed(leg, args, (u64::from(round) << 8) | number as u64).await?
            };
            eprintln!("  {}: {} events/s", leg.title, grouped(copied.rate()));
            keep(&mut of_size, &leg.title, bytes, &copied);
        }
        let after = seen::seen(&places.last_file()).await?;
        report.check(
            format!("what readers see after all copies, events of {bytes} bytes"),
            &compared(before, after),
        );
        let dumped = dump::dump_and_restore(places).await?;
        let copied = Copied {
            events: dumped.rows,
            seconds: dumped.seconds,
            bytes: dumped.bytes,
            kills: 0,
            digest: String::new(),
        };
        eprintln!("  {}: {} events/s", dump::TITLE, grouped(copied.rate()));
        keep(&mut of_size, dump::TITLE, bytes, &copied);
        places.remove_copies().await?;
    }
    rows.extend(of_size);
    Ok(())
}

fn keep(rows: &mut Vec<Row>, way: &str, bytes: u32, copied: &Copied) {
    let known = rows.iter().position(|row| row.way == way);
    let row = match known {
        Some(at) => &mut rows[at],
        None => {
            rows.push(Row {
                way: way.to_owned(),
                bytes,
                events: copied.events,
                seconds: Vec::new(),
                rates: Vec::new(),
                megabytes: 0.0,
                kills: 0,
                digest: copied.digest.clone(),
            });
            rows.last_mut().expect("just added")
        }
    };
    row.seconds.push(copied.seconds);
    row.rates.push(copied.rate());
    row.megabytes = copied.bytes as f64;
    row.kills += copied.kills;
}

/// What was found by readers of the last store, held against the first.
fn compared(before: seen::Seen, after: seen::Seen) -> ReadBack {
    let mut found = ReadBack {
        acknowledged: before.events,
        found: after.events,
        lost: before.events.saturating_sub(after.events),
        doubled: after.events.saturating_sub(before.events),
        ..ReadBack::default()
    };
    if before.digest != after.digest && before.events == after.events {
        found.altered = 1;
    }
    if before != after {
        found.findings.push(format!("{before:?} became {after:?}"));
    }
    found
}

fn tell(args: &CopyArgs, report: &mut Report, rows: &[Row]) {
    let found: Vec<String> = rows
        .iter()
        .map(|row| {
            let rate = grouped(row.rate());
            format!("{} with {} bytes {rate} events/s", row.way, row.bytes)
        })
        .collect();
    report.finding = format!("{}.", found.join("; "));
    if args.kills > 0 {
        report.cautions.push(format!(
            "each copy was killed {} times on its way: rates are no figures",
            args.kills
        ));
    }
    let table = Table::of("Copies", rows)
        .column("way", Unit::Words, |row| row.way.as_str())
        .column("data of an event", Unit::Bytes, |row| f64::from(row.bytes))
        .column("events", Unit::Count, |row| row.events)
        .column("seconds", Unit::Seconds, |row| median(&row.seconds))
        .column("events/s", Unit::Count, Row::rate)
        .column("of all rounds", Unit::Words, Row::range)
        .column("rows of the target", Unit::Bytes, |row| row.megabytes)
        .column("kills", Unit::Count, |row| row.kills)
        .column("digest", Unit::Words, |row| row.digest.as_str());
    report.table(table.table());
}
