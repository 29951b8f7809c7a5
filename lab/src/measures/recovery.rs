//! `recovery`: after a restart, how fast do entities come to memory, and how fast does a projection catch up?
//!
//! One population of entities per number of events, made by commands, with snapshots on the way. Each cell opens the
//! store anew, so nothing is known to the process; the database's cache is warm. The same entities are loaded with the
//! snapshots and without looking at them.

use std::time::Duration;

use gesta_load::entities::calls::Calls;
use gesta_load::entities::population::{Population, ask_all, make};
use gesta_load::entities::start;
use gesta_load::event_ids::Run;
use gesta_load::machine::store::{self, NEW_SERVER, Opened};
use gesta_report::failure::{Result, fail};
use gesta_report::histogram::{Latencies, median};
use gesta_report::host::CpuMeter;
use gesta_report::numbers::several;
use gesta_report::units::{self, grouped};
use gesta_report::{Chart, Report, ReportArgs, Scale, Table, Unit};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::workload::read;

/// Entities that come to memory, and a projection that catches up.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct RecoveryArgs {
    /// The store: `sqlite:PATH`, `postgres://…`, or `postgres:new`, a server that is started for this run.
    #[arg(long, default_value = NEW_SERVER)]
    #[serde(skip)]
    store: String,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
    /// Events per entity, one population for each.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1_000], value_parser = clap::value_parser!(u64).range(1..))]
    lengths: Vec<u64>,
    /// Events of a population: it has as many entities as that makes, at least one.
    #[arg(long, default_value = "100k", value_parser = units::count)]
    events: u64,
    /// Events of one long entity.
    #[arg(long, default_value = "100k", value_parser = units::count)]
    long: u64,
    /// Callers at once.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1_000], value_parser = clap::value_parser!(u32).range(1..))]
    callers: Vec<u32>,
    /// Events from one snapshot to the next.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    snapshot_every: u64,
    /// How often each is measured; the middle one counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seed of the order of the entities.
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

/// The table of the cells.
const LOADED: &str = "Entities loaded";
/// Most wrong answers that are told.
const WRONGS_TOLD: usize = 20;

/// A population, loaded in one way: figures of the middle round, latencies of all.
#[derive(Debug, Clone)]
struct Cell {
    entities: u32,
    events_each: u64,
    snapshots: bool,
    callers: u32,
    seconds: f64,
    /// Those before a snapshot were not.
    events_read: u64,
    p50_ms: f64,
    p99_ms: f64,
    cores: f64,
}

impl Cell {
    fn per_second(&self, count: f64) -> f64 {
        count / self.seconds.max(0.000_001)
    }

    fn entities_per_second(&self) -> f64 {
        self.per_second(f64::from(self.entities))
    }

    /// How they were loaded.
    fn how(&self) -> String {
        let callers = several(f64::from(self.callers), "caller");
        let how = if self.snapshots {
            "with snapshots"
        } else {
            "from events"
        };
        format!("{how}, {callers}")
    }
}

/// What was measured.
#[derive(Debug, Default)]
struct Found {
    cells: Vec<Cell>,
    /// Events of the log, and how many a second a consumer gets by pages and by a subscription.
    catch_up: Option<(u64, f64, f64)>,
    wrongs: Vec<String>,
}

/// The command. True if every entity was there with all of its events.
pub(crate) async fn run(args: &RecoveryArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("recovery", "Recovery after a restart", args.seed);
    let mut server = None;
    let url = store::resolve(&args.store, &mut server)?;
    let opened = store::open_url(&url, Duration::ZERO, 1).await?;
    report.store = Some(opened.facts.clone());
    report.workload = json!(args);
    let mut lab = Lab {
        args,
        url,
        found: Found::default(),
    };
    let populations = populations(args);
    lab.make_all(opened, &populations, stop).await?;
    lab.measure_all(&populations, stop).await?;
    let (found, complete) = (lab.found, !stop.is_cancelled());
    if complete && found.cells.is_empty() {
        return fail("there was nothing to measure");
    }
    report.problems = found.wrongs.iter().take(WRONGS_TOLD).cloned().collect();
    tell(&mut report, &found);
    report.finish(&args.report, complete)
}

/// The populations, the long entity last; their ids are of this run alone.
fn populations(args: &RecoveryArgs) -> Vec<Population> {
    let run = Run::random();
    let of = |events: u64, total: u64| Population {
        prefix: format!("{run}-{events}-"),
        entities: u32::try_from(total / events).unwrap_or(u32::MAX).max(1),
        events,
    };
    let lengths = args.lengths.iter().filter(|each| **each != args.long);
    let populations = lengths.map(|each| of(*each, args.events));
    populations.chain([of(args.long, args.long)]).collect()
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
        populations: &[Population],
        stop: &CancellationToken,
    ) -> Result<()> {
        let every = self.args.snapshot_every;
        for population in populations {
            let (entities, events) = (population.entities, population.events);
            eprintln!("storing {entities} entities of {events} events");
            let entities = start(&opened.owner()?, population.config()?, Some(every))?;
            make(&entities, population, stop).await?;
            entities.shutdown().await;
            let due = u64::from(population.entities) * (population.events / every);
            let written = entities.stats().snapshots_written;
            if !stop.is_cancelled() && written < due.min(u64::from(population.entities)) {
                let wrong = format!("{written} of {due} snapshots were written");
                self.found.wrongs.push(wrong);
            }
        }
        opened.store.shutdown().await?;
        Ok(())
    }

    async fn measure_all(
        &mut self,
        populations: &[Population],
        stop: &CancellationToken,
    ) -> Result<()> {
        for population in populations {
            // More callers than entities are no other case.
            let callers = self.args.callers.iter();
            let mut callers: Vec<u32> = callers
                .map(|count| (*count).min(population.entities))
                .collect();
            callers.dedup();
            for callers in callers {
                for snapshots in [false, true] {
                    if stop.is_cancelled() {
                        return Ok(());
                    }
                    // Entities that have none load the same way.
                    if !snapshots || population.events >= self.args.snapshot_every {
                        self.cell(population, callers, snapshots, stop).await?;
                    }
                }
            }
        }
        self.catch_up(stop).await
    }

    async fn cell(
        &mut self,
        population: &Population,
        callers: u32,
        snapshots: bool,
        stop: &CancellationToken,
    ) -> Result<()> {
        let (mut rounds, mut latencies) = (Vec::new(), Latencies::default());
        for _ in 0..self.args.rounds {
            let (calls, events_read, cores) =
                self.round(population, callers, snapshots, stop).await?;
            latencies.merge(&calls.latencies);
            self.found.wrongs.extend(calls.wrongs);
            rounds.push((calls.seconds, events_read, cores));
            if stop.is_cancelled() {
                return Ok(());
            }
        }
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (seconds, events_read, cores) = rounds[rounds.len() / 2];
        let latency = latencies.percentiles();
        let cell = Cell {
            entities: population.entities,
            events_each: population.events,
            snapshots,
            callers,
            seconds,
            events_read,
            p50_ms: latency.p50,
            p99_ms: latency.p99,
            cores,
        };
        let (each, rate) = (cell.events_each, rate(cell.entities_per_second()));
        let with = if snapshots { ", snapshots" } else { "" };
        eprintln!("  {each} events each, {callers} callers{with}: {rate} entities/s");
        self.found.cells.push(cell);
        Ok(())
    }

    /// A new process as far as the database can tell: nothing is known. Gives the events that were read, and the cores
    /// that were busy.
    async fn round(
        &mut self,
        population: &Population,
        callers: u32,
        snapshots: bool,
        stop: &CancellationToken,
    ) -> Result<(Calls, u64, f64)> {
        let opened = store::open_url(&self.url, Duration::ZERO, 1).await?;
        let every = snapshots.then_some(self.args.snapshot_every);
        let entities = start(&opened.owner()?, population.config()?, every)?;
        let meter = CpuMeter::start();
        let calls = ask_all(&entities, population, callers, self.args.seed, stop).await;
        let cores = meter.used().machine_cores;
        let (read, total) = (entities.stats().loaded_events, population.total());
        if !snapshots && !stop.is_cancelled() && read != total {
            let wrong = format!("{read} events were read for {total}");
            self.found.wrongs.push(wrong);
        }
        entities.shutdown().await;
        opened.store.shutdown().await?;
        Ok((calls, read, cores))
    }

    async fn catch_up(&mut self, stop: &CancellationToken) -> Result<()> {
        let opened = store::open_url(&self.url, Duration::ZERO, 1).await?;
        let (mut all, mut pages, mut subscriptions) = (0, Vec::new(), Vec::new());
        for _ in 0..self.args.rounds {
            let (events, rate) = read::by_pages(&opened.store).await?;
            let (again, subscription_rate) =
                read::by_subscription(opened.store.as_ref(), stop).await?;
            if stop.is_cancelled() {
                return Ok(());
            }
            if events != again {
                let wrong = format!("pages have {events} events, a subscription {again}");
                self.found.wrongs.push(wrong);
            }
            all = events;
            pages.push(rate);
            subscriptions.push(subscription_rate);
        }
        self.found.catch_up = Some((all, median(&pages), median(&subscriptions)));
        opened.store.shutdown().await?;
        Ok(())
    }
}

fn tell(report: &mut Report, found: &Found) {
    report.finding = sentence(found);
    let over = |title, y| {
        let (x, y) = (("events each", Scale::Log), (&[y][..], Scale::Log));
        Chart::lines(title, LOADED, x, y).by("loaded")
    };
    report.chart(over("Entities loaded per second", "entities/s"));
    report.chart(over("Time until an entity answers (p99)", "p99"));
    let table = Table::of(LOADED, &found.cells)
        .column("loaded", Unit::Words, Cell::how)
        .column("events each", Unit::Count, |cell| cell.events_each)
        .column("entities", Unit::Count, |cell| cell.entities)
        .column("callers", Unit::Count, |cell| cell.callers)
        .column("entities/s", Unit::Count, Cell::entities_per_second)
        .column("events/s", Unit::Count, |cell| {
            cell.per_second(cell.events_read as f64)
        })
        .column("events read", Unit::Count, |cell| cell.events_read)
        .column("p50", Unit::Millis, |cell| cell.p50_ms)
        .column("p99", Unit::Millis, |cell| cell.p99_ms)
        .column("cores busy", Unit::Cores, |cell| cell.cores);
    report.table(table.table());
    let title = "A projection that reads the whole log after a restart";
    let table = Table::of(title, found.catch_up.as_slice())
        .column("events in the log", Unit::Count, |(events, ..)| *events)
        .column("events/s, page by page", Unit::Count, |(_, pages, _)| {
            *pages
        })
        .column("events/s, by a subscription", Unit::Count, |(.., live)| {
            *live
        });
    report.table(table.table());
}

/// A rate, with decimals if it is small.
fn rate(per_second: f64) -> String {
    if per_second < 10.0 {
        return format!("{per_second:.2}");
    }
    grouped(per_second)
}

/// The figures in words: of each number of events the best, with and without snapshots.
fn sentence(found: &Found) -> String {
    let mut lengths: Vec<u64> = found.cells.iter().map(|cell| cell.events_each).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let best = |each: u64, snapshots: bool| {
        let of = found.cells.iter();
        let of = of.filter(|cell| cell.events_each == each && cell.snapshots == snapshots);
        of.min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    };
    let mut told = Vec::new();
    for each in lengths {
        let Some(plain) = best(each, false) else {
            continue;
        };
        let tell = |cell: &Cell| match cell.entities {
            1 => format!("{:.0} ms", cell.p50_ms),
            _ => rate(cell.entities_per_second()),
        };
        let with = best(each, true).map(|cell| format!(", with snapshots {}", tell(cell)));
        let (with, plain_told, events) =
            (with.unwrap_or_default(), tell(plain), grouped(each as f64));
        told.push(match plain.entities {
            1 => format!("one entity of {events} events answers after {plain_told}{with}"),
            _ => format!("{plain_told} entities/s of {events} events{with}"),
        });
    }
    if let Some((_, pages, subscription)) = found.catch_up {
        told.push(format!(
            "a projection catches up at {} events/s by pages and {} by a subscription",
            grouped(pages),
            grouped(subscription)
        ));
    }
    format!("After a restart: {}.", told.join("; "))
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

    /// Small populations, and what the line then tells.
    async fn small(store: &str) {
        let dir = tempfile::tempdir().unwrap();
        let results = dir.path().join("results.jsonl");
        let line = format!(
            "recovery --store {store} --lengths 3,20 --events 60 --long 150 --callers 2,9 --snapshot-every 10 --rounds 2 --results {}",
            results.display()
        );
        let args = Cli::parse_from(line.split_whitespace()).args;
        assert!(run(&args, &CancellationToken::new()).await.unwrap());
        let text = std::fs::read_to_string(results).unwrap();
        let report: Report = serde_json::from_str(&text).unwrap();
        let tables: Vec<&Table> = report.tables().collect();
        let rows = tables[0].rows.iter().map(|row| {
            let number = |at: usize| row.cells[at].number().unwrap();
            let [each, entities, callers, rate, _, read] = [1, 2, 3, 4, 5, 6].map(number);
            let snapshots = row.cells[0].told(Unit::Words).starts_with("with snapshots");
            // With snapshots fewer events are read.
            assert!(rate > 0.0 && snapshots == (read < entities * each) && read <= entities * each);
            (entities, each, callers, snapshots)
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
    async fn entities_come_to_memory() {
        let dir = tempfile::tempdir().unwrap();
        small(&format!("sqlite:{}", dir.path().join("lab.db").display())).await;
        // Loud if PostgreSQL is not installed; a failure where `CI` is set.
        if let Some(server) = gesta_rig::shared() {
            let schema = gesta_rig::fresh_schema();
            small(&format!("{}?schema={schema}", server.url())).await;
        }
    }
}
