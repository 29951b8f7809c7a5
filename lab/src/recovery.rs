//! `recovery`: after a restart, how fast do entities come to memory, and how fast does a projection catch up?
//!
//! One crowd of entities per number of events, made by commands, with snapshots on the way. Each cell opens the store
//! anew, so nothing is known to the process; the database's cache is warm. The same entities are loaded with the
//! snapshots and without looking at them.
//! Not here: what an entity costs in memory (`entities`).

use std::time::{Duration, Instant};

use gesta::entity::Stats;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cells;
use crate::entities::crowd::{Crowd, ask_all, make};
use crate::entities::start_with;
use crate::failure::{Result, fail};
use crate::histogram::{Latencies, Percentiles};
use crate::host::{CpuMeter, CpuUse};
use crate::read;
use crate::report::numbers::several;
use crate::report::{Chart, Report, ReportArgs, Scale, Table, Unit};
use crate::run::Run;
use crate::store::{self, NEW_SERVER, Opened};
use crate::units::{self, grouped};

/// Entities that come to memory, and a projection that catches up.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RecoveryArgs {
    /// The store: `sqlite:PATH`, `postgres://…`, or `postgres:new`, a server that is started for this run.
    #[arg(long, default_value = NEW_SERVER)]
    pub(crate) store: String,
    /// Extra round trip to the database, for example 10ms; half of it each way.
    #[arg(long, default_value = "0", value_parser = units::duration)]
    pub(crate) rtt: Duration,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    /// Events per entity, one crowd for each.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1_000], value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) lengths: Vec<u64>,
    /// Events of a crowd: it has as many entities as that makes, at least one.
    #[arg(long, default_value = "100k", value_parser = units::count)]
    pub(crate) events: u64,
    /// Events of one long entity.
    #[arg(long, default_value = "100k", value_parser = units::count)]
    pub(crate) long: u64,
    /// Callers at once.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1_000], value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) callers: Vec<u32>,
    /// Events from one snapshot to the next.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) snapshot_every: u64,
    /// How often each is measured; the middle one counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Entities loaded by one statement.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) load_batch: u32,
    /// Statements that load entities at once.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) loads: u32,
    /// Seed of the order of the entities.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
}

/// The table of the cells.
const LOADED: &str = "Entities loaded";
/// Most wrong answers that are told.
const WRONGS_TOLD: usize = 20;

/// One round of a cell.
#[derive(Debug, Clone, Copy)]
struct Round {
    seconds: f64,
    cpu: CpuUse,
    stats: Stats,
}

/// A crowd, loaded in one way.
#[derive(Debug, Clone)]
struct Cell {
    entities: u32,
    events_each: u64,
    snapshots: bool,
    callers: u32,
    /// Of the middle round.
    entities_per_second: f64,
    /// Events that were read; those before a snapshot were not.
    events_per_second: f64,
    /// Events that were read for it.
    events_read: u64,
    /// Of all rounds: from the question to the answer.
    latency_ms: Percentiles,
    cpu: CpuUse,
}

/// How fast a consumer gets the whole log.
#[derive(Debug, Clone, Copy, Default)]
struct CatchUp {
    events: u64,
    /// The middle of the rounds.
    pages_per_second: f64,
    /// The middle of the rounds.
    subscription_per_second: f64,
}

/// What was measured.
#[derive(Debug, Default)]
struct Found {
    cells: Vec<Cell>,
    catch_up: CatchUp,
    wrongs: Vec<String>,
}

/// The command. True if every entity was there with all of its events.
pub(crate) async fn run(args: &RecoveryArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("recovery", "Recovery after a restart", args.seed);
    let mut server = None;
    let url = store::resolve(&args.store, &mut server)?;
    let opened = store::open_url(&url, args.rtt, 1).await?;
    report.store = Some(opened.facts.clone());
    report.workload = json!({
        "lengths": args.lengths, "events": args.events, "long": args.long, "callers": args.callers,
        "snapshot_every": args.snapshot_every, "rounds": args.rounds, "load_batch": args.load_batch, "loads": args.loads,
    });
    let mut lab = Lab {
        args,
        url,
        found: Found::default(),
    };
    let crowds = crowds(args);
    lab.make_all(opened, &crowds, stop).await?;
    lab.measure_all(&crowds, stop).await?;
    let found = lab.found;
    let complete = !stop.is_cancelled();
    if complete && found.cells.is_empty() {
        return fail("there was nothing to measure");
    }
    report.problems = found.wrongs.iter().take(WRONGS_TOLD).cloned().collect();
    tell(&mut report, &found);
    report.finish(&args.report, complete)
}

/// The crowds, the long entity last; their ids are of this run alone.
fn crowds(args: &RecoveryArgs) -> Vec<Crowd> {
    let run = Run::random();
    let of = |events: u64, total: u64| Crowd {
        prefix: format!("{run}-{events}-"),
        entities: u32::try_from(total / events).unwrap_or(u32::MAX).max(1),
        events,
    };
    let lengths = args.lengths.iter().filter(|each| **each != args.long);
    let mut crowds: Vec<Crowd> = lengths.map(|each| of(*each, args.events)).collect();
    crowds.push(of(args.long, args.long));
    crowds
}

struct Lab<'a> {
    args: &'a RecoveryArgs,
    url: String,
    found: Found,
}

impl Lab<'_> {
    async fn make_all(
        &mut self,
        opened: Opened,
        crowds: &[Crowd],
        stop: &CancellationToken,
    ) -> Result<()> {
        for crowd in crowds {
            eprintln!(
                "storing {} entities of {} events",
                crowd.entities, crowd.events
            );
            let every = Some(self.args.snapshot_every);
            let entities = start_with(&opened.owner()?, self.config(crowd)?, every)?;
            make(&entities, crowd, stop).await?;
            entities.shutdown().await;
            let due = crowd.total_snapshots(self.args.snapshot_every);
            let written = entities.stats().snapshots_written;
            if !stop.is_cancelled() && written < due.min(u64::from(crowd.entities)) {
                let wrong = format!("{written} of {due} snapshots were written");
                self.found.wrongs.push(wrong);
            }
        }
        opened.store.shutdown().await?;
        Ok(())
    }

    async fn measure_all(&mut self, crowds: &[Crowd], stop: &CancellationToken) -> Result<()> {
        for crowd in crowds {
            let mut callers = self.args.callers.clone();
            // More callers than entities are no other case.
            callers
                .iter_mut()
                .for_each(|count| *count = (*count).min(crowd.entities));
            callers.dedup();
            for callers in callers {
                for snapshots in [false, true] {
                    if stop.is_cancelled() {
                        return Ok(());
                    }
                    // Entities that have none load the same way.
                    if !snapshots || crowd.events >= self.args.snapshot_every {
                        self.cell(crowd, callers, snapshots, stop).await?;
                    }
                }
            }
        }
        self.catch_up(stop).await
    }

    fn config(&self, crowd: &Crowd) -> Result<gesta::entity::Config> {
        crowd.config(self.args.loads as usize, self.args.load_batch as usize)
    }

    async fn cell(
        &mut self,
        crowd: &Crowd,
        callers: u32,
        snapshots: bool,
        stop: &CancellationToken,
    ) -> Result<()> {
        let (mut rounds, mut latencies) = (Vec::new(), Latencies::default());
        for _ in 0..self.args.rounds {
            let round = self
                .round(crowd, callers, snapshots, &mut latencies, stop)
                .await?;
            if stop.is_cancelled() {
                return Ok(());
            }
            rounds.push(round);
        }
        let cell = Cell::of(crowd, callers, snapshots, &latencies, rounds);
        eprintln!(
            "  {} events each, {callers} callers{}: {} entities/s",
            crowd.events,
            if snapshots { ", snapshots" } else { "" },
            rate(cell.entities_per_second)
        );
        self.found.cells.push(cell);
        Ok(())
    }

    /// A new process as far as the database can tell: nothing is known.
    async fn round(
        &mut self,
        crowd: &Crowd,
        callers: u32,
        snapshots: bool,
        latencies: &mut Latencies,
        stop: &CancellationToken,
    ) -> Result<Round> {
        let opened = store::open_url(&self.url, self.args.rtt, 1).await?;
        let every = snapshots.then_some(self.args.snapshot_every);
        let entities = start_with(&opened.owner()?, self.config(crowd)?, every)?;
        let (meter, begin) = (CpuMeter::start(), Instant::now());
        let (some, wrongs) = ask_all(&entities, crowd, callers, self.args.seed, stop).await;
        let (seconds, cpu) = (begin.elapsed().as_secs_f64(), meter.used());
        latencies.merge(&some);
        self.found.wrongs.extend(wrongs);
        let stats = entities.stats();
        if !snapshots && !stop.is_cancelled() && stats.loaded_events != crowd.total() {
            let read = stats.loaded_events;
            let wrong = format!("{read} events were read for {}", crowd.total());
            self.found.wrongs.push(wrong);
        }
        entities.shutdown().await;
        opened.store.shutdown().await?;
        Ok(Round {
            seconds,
            cpu,
            stats,
        })
    }

    async fn catch_up(&mut self, stop: &CancellationToken) -> Result<()> {
        let opened = store::open_url(&self.url, self.args.rtt, 1).await?;
        let (mut pages, mut subscriptions) = (Vec::new(), Vec::new());
        for _ in 0..self.args.rounds {
            let store = opened.store.as_ref();
            let (events, rate) = read::by_pages(store, stop).await?;
            let (again, subscription_rate) = read::by_subscription(store, stop).await?;
            if stop.is_cancelled() {
                break;
            }
            if events != again {
                let wrong = format!("pages have {events} events, a subscription {again}");
                self.found.wrongs.push(wrong);
            }
            self.found.catch_up.events = events;
            pages.push(rate);
            subscriptions.push(subscription_rate);
        }
        self.found.catch_up.pages_per_second = middle(pages).round();
        self.found.catch_up.subscription_per_second = middle(subscriptions).round();
        opened.store.shutdown().await?;
        Ok(())
    }
}

fn middle(values: Vec<f64>) -> f64 {
    crate::histogram::median(&values)
}

impl Cell {
    fn of(
        crowd: &Crowd,
        callers: u32,
        snapshots: bool,
        latencies: &Latencies,
        mut rounds: Vec<Round>,
    ) -> Self {
        rounds.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let middle = rounds[rounds.len() / 2];
        // Few long entities make less than one per second.
        let per_second =
            |count: f64| (count / middle.seconds.max(0.000_001) * 100.0).round() / 100.0;
        Self {
            entities: crowd.entities,
            events_each: crowd.events,
            snapshots,
            callers,
            entities_per_second: per_second(f64::from(crowd.entities)),
            events_per_second: per_second(exact(middle.stats.loaded_events)).round(),
            events_read: middle.stats.loaded_events,
            latency_ms: latencies.percentiles(),
            cpu: middle.cpu,
        }
    }
}

fn tell(report: &mut Report, found: &Found) {
    report.finding = sentence(&found.cells, &found.catch_up);
    if found
        .cells
        .iter()
        .any(|cell| cell.events_each != found.cells[0].events_each)
    {
        let over = |title, y| {
            Chart::lines(
                title,
                LOADED,
                ("events each", Scale::Log),
                (&[y], Scale::Log),
            )
            .by("loaded")
        };
        report.chart(over("Entities loaded per second", "entities/s"));
        report.chart(over("Time until an entity answers (p99)", "p99"));
    }
    let columns = [
        ("loaded", Unit::Words),
        ("events each", Unit::Count),
        ("entities", Unit::Count),
        ("callers", Unit::Count),
        ("entities/s", Unit::Count),
        ("events/s", Unit::Count),
        ("events read", Unit::Count),
        ("p50", Unit::Millis),
        ("p99", Unit::Millis),
        ("cores busy", Unit::Cores),
        ("of them in this process", Unit::Cores),
    ];
    let mut table = Table::new(LOADED, columns);
    for cell in &found.cells {
        let how = if cell.snapshots {
            "with snapshots"
        } else {
            "from events"
        };
        let callers = several(f64::from(cell.callers), "caller");
        table.row(cells![
            format!("{how}, {callers}"),
            cell.events_each,
            cell.entities,
            cell.callers,
            cell.entities_per_second,
            cell.events_per_second,
            cell.events_read,
            cell.latency_ms.p50,
            cell.latency_ms.p99,
            cell.cpu.machine_cores,
            cell.cpu.own_cores,
        ]);
    }
    report.table(table);
    let columns = [
        ("events in the log", Unit::Count),
        ("events/s, page by page", Unit::Count),
        ("events/s, by a subscription", Unit::Count),
    ];
    let mut table = Table::new(
        "A projection that reads the whole log after a restart",
        columns,
    );
    let catch_up = found.catch_up;
    if catch_up.events > 0 {
        table.row(cells![
            catch_up.events,
            catch_up.pages_per_second,
            catch_up.subscription_per_second
        ]);
    }
    report.table(table);
}

/// A rate, with decimals if it is small.
fn rate(per_second: f64) -> String {
    if per_second < 10.0 {
        return format!("{per_second:.2}");
    }
    grouped(per_second)
}

/// The figures in words: of each number of events the best, with and without snapshots.
fn sentence(cells: &[Cell], catch_up: &CatchUp) -> String {
    let mut lengths: Vec<u64> = cells.iter().map(|cell| cell.events_each).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let best = |each: u64, snapshots: bool| {
        let of = cells
            .iter()
            .filter(|c| c.events_each == each && c.snapshots == snapshots);
        of.max_by(|a, b| a.entities_per_second.total_cmp(&b.entities_per_second))
    };
    let mut told = Vec::new();
    for each in lengths {
        let (Some(plain), with) = (best(each, false), best(each, true)) else {
            continue;
        };
        let events = grouped(exact(each));
        if plain.entities == 1 {
            let of = |cell: &Cell| format!("{:.0} ms", cell.latency_ms.p50);
            let with = with.map_or(String::new(), |cell| {
                format!(", with snapshots {}", of(cell))
            });
            told.push(format!(
                "one entity of {events} events answers after {} ({} events/s){with}",
                of(plain),
                grouped(plain.events_per_second),
            ));
        } else {
            let with = with.map_or(String::new(), |cell| {
                format!(", with snapshots {}", rate(cell.entities_per_second))
            });
            let plain = rate(plain.entities_per_second);
            told.push(format!("{plain} entities/s of {events} events{with}"));
        }
    }
    if catch_up.events > 0 {
        told.push(format!(
            "a projection catches up at {} events/s by pages and {} by a subscription",
            grouped(catch_up.pages_per_second),
            grouped(catch_up.subscription_per_second)
        ));
    }
    if told.is_empty() {
        return "interrupted before anything was measured".into();
    }
    format!("After a restart: {}.", told.join("; "))
}

#[expect(clippy::cast_precision_loss, reason = "counts of minutes fit")]
fn exact(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: RecoveryArgs,
    }

    fn args(line: &str) -> RecoveryArgs {
        Cli::parse_from(std::iter::once("recovery").chain(line.split_whitespace())).args
    }

    /// Small crowds, and what the line then tells.
    async fn small(store: &str) -> Report {
        let dir = tempfile::tempdir().unwrap();
        let store = match store {
            "" => format!("sqlite:{}", dir.path().join("lab.db").display()),
            other => other.to_owned(),
        };
        let results = dir.path().join("results.jsonl");
        let line = format!(
            "--store {store} --lengths 3,20 --events 60 --long 150 --callers 2,9 --snapshot-every 10 --rounds 2 --results {}",
            results.display()
        );
        assert!(run(&args(&line), &CancellationToken::new()).await.unwrap());
        let text = std::fs::read_to_string(results).unwrap();
        assert_eq!(text.lines().count(), 1);
        serde_json::from_str(&text).unwrap()
    }

    fn look(report: &Report) {
        assert!(report.kind == "recovery" && report.is_valid(), "{report}");
        let tables: Vec<&Table> = report.tables().collect();
        let rows = tables[0].rows.iter().map(|row| {
            let number = |column: &str| {
                row.cells[tables[0].column(column).unwrap()]
                    .number()
                    .unwrap()
            };
            assert!(number("entities/s") > 0.0);
            let [entities, each, read] = ["entities", "events each", "events read"].map(number);
            let snapshots = row.cells[0].told(Unit::Words).starts_with("with snapshots");
            // With snapshots fewer events are read.
            assert!(if snapshots {
                read < entities * each
            } else {
                read == entities * each
            });
            (entities, each, number("callers"), snapshots)
        });
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [
                (20.0, 3.0, 2.0, false),
                (20.0, 3.0, 9.0, false),
                (3.0, 20.0, 2.0, false),
                (3.0, 20.0, 2.0, true),
                (3.0, 20.0, 3.0, false),
                (3.0, 20.0, 3.0, true),
                (1.0, 150.0, 1.0, false),
                (1.0, 150.0, 1.0, true),
            ]
        );
        // Snapshots are events too.
        assert!(tables[1].rows[0].cells[0].number().unwrap() >= 60.0 + 60.0 + 150.0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn entities_of_sqlite_come_to_memory() {
        look(&small("").await);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn entities_of_postgres_come_to_memory() {
        // Loud if PostgreSQL is not installed; a failure where `CI` is set.
        if let Some(server) = gesta_pgtest::shared() {
            let schema = gesta_pgtest::fresh_schema();
            look(&small(&format!("{}?schema={schema}", server.url())).await);
        }
    }

    #[test]
    fn the_sentence_tells_the_best_of_each_length() {
        let cell = |entities, events_each, snapshots, entities_per_second| Cell {
            entities,
            events_each,
            snapshots,
            callers: 64,
            entities_per_second,
            events_per_second: 90_000.0,
            events_read: 0,
            latency_ms: Percentiles {
                p50: 800.4,
                ..Percentiles::default()
            },
            cpu: CpuUse::default(),
        };
        let cells = [
            cell(10, 10, false, 4_000.0),
            cell(10, 10, false, 5_000.0),
            cell(10, 100, false, 700.0),
            cell(10, 100, true, 3_000.0),
            cell(1, 100_000, false, 1.2),
        ];
        let catch_up = CatchUp {
            events: 1,
            pages_per_second: 300_000.0,
            subscription_per_second: 200_000.0,
        };
        assert_eq!(
            sentence(&cells, &catch_up),
            "After a restart: 5,000 entities/s of 10 events; 700 entities/s of 100 events, with snapshots 3,000; \
             one entity of 100,000 events answers after 800 ms (90,000 events/s); \
             a projection catches up at 300,000 events/s by pages and 200,000 by a subscription."
        );
        assert!(sentence(&[], &CatchUp::default()).starts_with("interrupted"));
    }
}
