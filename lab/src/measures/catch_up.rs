//! `catch-up`: how fast does a consumer get everything that is stored, through the library, as lines and as server-sent
//! events, beside plain statements that read the same table page by page?
//!
//! A store is made anew and filled; then all ways are tried in turn, round after round, each on a store that was opened
//! anew, with the database's cache warm. A way that does not show every event is no result.

use std::path::Path;
use std::time::Duration;

use gesta_core::{Append, EventData, EventId, EventType, ExpectedRevision, StreamId};
use gesta_load::machine::child::{ProgramArgs, Server};
use gesta_load::machine::store::{self, NEW_SERVER};
use gesta_load::sizes::Sizes;
use gesta_load::target::{Events, GestaTarget, Target as _};
use gesta_report::failure::{Result, fail};
use gesta_report::histogram::median;
use gesta_report::read_back::ReadBack;
use gesta_report::units::{self, grouped};
use gesta_report::{Report, ReportArgs, Table, Unit};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::workload::read::{self, Answer};

/// Events of one stream, which are appended at once.
const STREAM_EVENTS: u64 = 500;

/// A consumer that gets everything that is stored: library, lines, server-sent events, plain statements.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct CatchUpArgs {
    /// The database: `sqlite:PATH`, `postgres://…`, or `postgres:new`, a server that is started for this run. The store
    /// is made anew, in a folder beside PATH or in a schema, and removed afterwards.
    #[arg(long, default_value = NEW_SERVER)]
    #[serde(skip)]
    store: String,
    /// Events that are stored.
    #[arg(long, default_value = "500k", value_parser = units::count)]
    events: u64,
    /// Bytes of the data of an event.
    #[arg(long, default_value_t = 300)]
    bytes: usize,
    /// How often each way is measured; the middle one counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seed of contents.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    program: ProgramArgs,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// A way to read everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Statements,
    Pages,
    Subscription,
    Http(Answer),
}

impl Way {
    /// The bound first.
    const ALL: [Way; 5] = [
        Way::Statements,
        Way::Pages,
        Way::Subscription,
        Way::Http(Answer::Lines),
        Way::Http(Answer::ServerSentEvents),
    ];

    fn title(self) -> &'static str {
        match self {
            Way::Statements => "plain statements, page by page",
            Way::Pages => "library, page by page",
            Way::Subscription => "library, by a subscription",
            Way::Http(Answer::Lines) => "HTTP, lines (NDJSON)",
            Way::Http(Answer::ServerSentEvents) => "HTTP, server-sent events",
        }
    }
}

/// What one way carried, in events a second of each round.
#[derive(Debug)]
struct Carried {
    way: Way,
    rates: Vec<f64>,
    /// The middle one, as a share of that of plain statements.
    of_bound: f64,
}

impl Carried {
    fn range(&self) -> String {
        let of = |pick: fn(f64, f64) -> f64| {
            grouped(self.rates.iter().copied().reduce(pick).unwrap_or(0.0))
        };
        format!("{} to {}", of(f64::min), of(f64::max))
    }
}

/// The command. True if every way showed every event.
pub(crate) async fn run(args: &CatchUpArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin(
        "catch-up",
        "Catching up on everything that is stored",
        args.seed,
    );
    let mut server = None;
    let url = store::resolve(&args.store, &mut server)?;
    let target = GestaTarget::new(&url, Duration::ZERO, None).fresh()?;
    if !target.is_fresh() {
        return fail("catch-up is for postgres:// and sqlite: stores");
    }
    target.prepare().await?;
    let measured = fill_and_measure(args, &target, &mut report, stop).await;
    target.remove().await?;
    let carried = measured?;
    report.workload = json!(args);
    tell(&mut report, &carried);
    let complete = carried
        .iter()
        .all(|one| one.rates.len() == args.rounds as usize);
    report.finish(&args.report, complete)
}

async fn fill_and_measure(
    args: &CatchUpArgs,
    target: &GestaTarget,
    report: &mut Report,
    stop: &CancellationToken,
) -> Result<Vec<Carried>> {
    let program = args.program.find()?;
    let folder = tempfile::tempdir()?;
    fill(args, target, stop).await?;
    report.store = Some(target.opened().await?.facts.clone());
    target.close().await?;
    target.settle().await?;
    let mut carried: Vec<Carried> = Way::ALL
        .map(|way| Carried {
            way,
            rates: Vec::new(),
            of_bound: 0.0,
        })
        .into();
    for _ in 0..args.rounds {
        for one in &mut carried {
            if stop.is_cancelled() {
                break;
            }
            let log = folder.path().join("server.log");
            let (events, rate) = measure(one.way, target, &program, &log, stop).await?;
            let title = one.way.title();
            eprintln!("  {title}: {}/s", grouped(rate));
            if !stop.is_cancelled() {
                report.check(title, &everything(args.events, events));
            }
            one.rates.push(rate);
        }
    }
    let bound = median(&carried[0].rates).max(0.000_001);
    for one in &mut carried {
        one.of_bound = median(&one.rates) / bound;
    }
    Ok(carried)
}

/// Whether a way showed everything.
fn everything(stored: u64, shown: u64) -> ReadBack {
    ReadBack {
        acknowledged: stored,
        found: shown,
        lost: stored.abs_diff(shown),
        findings: vec![format!("{shown} of {stored} events were shown")],
        ..ReadBack::default()
    }
}

/// Stores the events, a stream after the other.
async fn fill(args: &CatchUpArgs, target: &GestaTarget, stop: &CancellationToken) -> Result<()> {
    eprintln!("storing {} events", grouped(args.events as f64));
    let opened = target.opened().await?;
    let events = Events::new(Sizes::fixed(args.bytes)?, 1, args.seed);
    let mut stored = 0;
    let mut number = 0;
    while stored < args.events && !stop.is_cancelled() {
        let stream = events.stream(0, number);
        let count = STREAM_EVENTS.min(args.events - stored);
        let made = stream.events(0..count).into_iter().map(|event| {
            EventData::json(EventType::new("Measured").expect("valid"), event.data)
                .with_id(EventId(event.id))
        });
        let name = StreamId::new(stream.name.as_str())?;
        let append = Append::to(name, ExpectedRevision::NoStream, made.collect());
        opened.store.append(append).await?;
        stored += count;
        number += 1;
    }
    Ok(())
}

async fn measure(
    way: Way,
    target: &GestaTarget,
    program: &Path,
    log: &Path,
    stop: &CancellationToken,
) -> Result<(u64, f64)> {
    let measured = match way {
        Way::Statements => return read::by_statements(target.url()).await,
        Way::Http(answer) => {
            let mut server = Server::start(program, target.url(), log).await?;
            let measured = read::by_http(server.address(), answer).await;
            server.stop().await;
            return measured;
        }
        Way::Pages => read::by_pages(&target.opened().await?.store).await,
        Way::Subscription => {
            read::by_subscription(target.opened().await?.store.as_ref(), stop).await
        }
    };
    target.close().await?;
    measured
}

fn tell(report: &mut Report, carried: &[Carried]) {
    let told = carried.iter().map(|one| {
        let (title, rate) = (one.way.title(), grouped(median(&one.rates)));
        format!("{title} {rate} ({:.0} %)", one.of_bound * 100.0)
    });
    report.finding = format!("Events a second: {}.", told.collect::<Vec<_>>().join("; "));
    let table = Table::of("Everything that is stored", carried)
        .column("read by", Unit::Words, |one| one.way.title())
        .column("events/s", Unit::Count, |one| median(&one.rates))
        .column("of the plain statements", Unit::Share, |one| one.of_bound)
        .column("of all rounds", Unit::Words, Carried::range);
    report.table(table.table());
}
