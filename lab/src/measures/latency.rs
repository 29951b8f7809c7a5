//! `latency`: what does distance to the database cost, and which way of appending pays it how often?
//!
//! Three ways on the same database behind a proxy that delays: a transaction of separate statements, which holds the
//! lock on the global order across the network; one bundled statement; and Gesta's pipeline. The experiment was
//! published for the Elixir EventStore (docs/benchmarks.md): streams in tens, workers that append batches to streams
//! of their own, and a distance that grows. Rates of phases, and then, as it was published, the time for fixed work.
//! Read `work` for the latter.

mod work;

use std::sync::Arc;
use std::time::Duration;

use gesta_load::machine::network::{Network, WeatherArgs};
use gesta_load::machine::store;
use gesta_load::sizes::Sizes;
use gesta_load::target::{self, Events, GestaTarget, Load, Phase, Target};
use gesta_report::cells;
use gesta_report::endpoint;
use gesta_report::failure::{Context, Result, fail};
use gesta_report::histogram::{ends, median};
use gesta_report::numbers::{list, millis, percent, times};
use gesta_report::read_back::ReadBack;
use gesta_report::units;
use gesta_report::{Chart, Report, ReportArgs, Scale, Table, Unit, Whose};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::workload::journals;

use work::{Done, Work};

/// Streams that all workers fill by turns, each worker its own: at least one per worker.
const STREAMS: u32 = 80;
/// Bytes of data per event.
const PAYLOAD: usize = 100;
/// Events per stream at most; then a worker goes on with a new stream.
const STREAM_EVENTS_MAX: u64 = 4_000;
/// Round trips in a phase at least: workers that wait for the same answer append together, so that a count is off by
/// one round of all workers.
const ROUND_TRIPS_MIN: u32 = 100;
/// From this distance on the order is expected.
const FAR_MS: f64 = 1.5;
/// A smaller difference is none: of two runs on one machine the rates differ by as much.
const LEVEL: f64 = 0.03;
/// The table of rates and ratios.
const COMPARED: &str = "Events per second, and how many times as many as another way";

/// Separate statements, one bundled statement, and Gesta's pipeline, at growing distances from the database.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct LatencyArgs {
    /// The database: `postgres://…`, or `postgres:new`, a server started for this run.
    #[arg(long, default_value = "postgres:new")]
    #[serde(skip)]
    store: String,
    /// Round trips to inject, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "0,1.5ms,5ms,10ms,50ms,100ms", value_parser = units::duration)]
    #[serde(skip)]
    rtt: Vec<Duration>,
    #[command(flatten)]
    #[serde(flatten)]
    weather: WeatherArgs,
    /// Numbers of workers whose rates are measured; without a value: no rates.
    #[arg(long, value_delimiter = ',', num_args = 0.., default_value = "1,10,40,400", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    workers: Vec<u32>,
    /// Events per append.
    #[arg(long, value_delimiter = ',', default_value = "5,100", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    events: Vec<u64>,
    /// Time on the clock for each figure; at least 100 round trips.
    #[arg(long, default_value = "2s", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "phase_seconds")]
    phase: Duration,
    /// Fixed work, beside the rates: the time until so many batches are stored; 0: none.
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    batches: u64,
    /// Workers that store them.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch_workers: u32,
    /// Seed of the contents.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// The ways of appending, as they are measured.
const WAYS: [&str; 3] = ["separate statements", "one bundled statement", "Gesta"];

/// What the ways store from one distance, with so many workers and events per append.
#[derive(Debug)]
struct Distance {
    workers: u32,
    events: u64,
    round_trip: Duration,
    /// In the order of [`WAYS`].
    ways: Vec<(Phase, ReadBack)>,
}

impl Distance {
    fn round_trip_ms(&self) -> f64 {
        self.round_trip.as_secs_f64() * 1_000.0
    }

    /// In words.
    fn told(&self) -> String {
        let (workers, events, far) = (self.workers, self.events, millis(self.round_trip_ms()));
        format!("{workers} workers x {events} events at {far}")
    }

    fn rate(&self, way: usize) -> f64 {
        self.ways[way].0.events_per_second
    }

    /// How many times as many events one way stores as another; none if either stored nothing.
    fn ratio(&self, way: usize, to: usize) -> Option<f64> {
        let (rate, other) = (self.rate(way), self.rate(to));
        (rate > 0.0 && other > 0.0).then(|| rate / other)
    }

    /// Gesta's rate as a share of what workers could store if nothing but the round trip took time.
    fn share_of_most(&self) -> Option<f64> {
        let most = f64::from(self.workers) * self.events as f64 / self.round_trip.as_secs_f64();
        Some(self.rate(2) / most).filter(|share| *share > 0.0)
    }
}

/// The command. True if the run is a result.
pub(crate) async fn run(args: &LatencyArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("latency", "Distance to the database", args.seed);
    let mut server = None;
    let workers = args.workers.iter().chain([&args.batch_workers]);
    let connections = workers.max().unwrap_or(&0) + 40;
    let url = match args.store.as_str() {
        store::NEW_SERVER => server.insert(store::new_server_for(connections)?).url(),
        url => url.to_owned(),
    };
    if !url.starts_with("postgres") {
        let told = endpoint::redacted_url(&url);
        return fail(format!(
            "{told:?}: distance matters to a database behind a network, postgres://…"
        ));
    }
    report.store = Some(store::database_facts(&url, Duration::ZERO).await?);
    let mut places = Vec::new();
    for rtt in &args.rtt {
        for events in &args.events {
            for workers in &args.workers {
                let mut place = Distance {
                    workers: *workers,
                    events: *events,
                    round_trip: *rtt,
                    ways: Vec::new(),
                };
                for target in targets(&url, args.weather.over(*rtt))? {
                    if stop.is_cancelled() {
                        break;
                    }
                    let measured = measure(args, &place, &target, stop).await?;
                    place.ways.push(measured);
                }
                if place.ways.len() == WAYS.len() {
                    places.push(place);
                }
            }
        }
    }
    let works = works(args, &url, stop).await?;
    report.workload = json!(args);
    report.setting = args.weather.told().unwrap_or_default();
    tell(&mut report, places);
    tell_of_work(&mut report, args, &works);
    report.finish(&args.report, !stop.is_cancelled())
}

/// In the order of [`WAYS`].
fn targets(url: &str, network: Network) -> Result<[Arc<dyn Target>; 3]> {
    Ok([
        journals::named(journals::SEPARATE, url, network, None)?,
        journals::named("eventstore", url, network, None)?,
        Arc::new(GestaTarget::new(url, network, None)),
    ])
}

async fn measure(
    args: &LatencyArgs,
    at: &Distance,
    target: &Arc<dyn Target>,
    stop: &CancellationToken,
) -> Result<(Phase, ReadBack)> {
    target.prepare().await.context(target.name())?;
    let made = Arc::new(Events::new(Sizes::fixed(PAYLOAD)?, 1, args.seed));
    let streams = (STREAMS / at.workers).max(1);
    let load = Load {
        first_worker: 0,
        workers: at.workers,
        events: at.events,
        events_per_stream: STREAM_EVENTS_MAX / at.events * at.events,
        streams,
        rate: None,
        // Each worker meets each of its streams for the first time, which may take several round trips, before the
        // clock starts; and what is far away takes time to begin.
        warm_up: Duration::from_millis(300) + at.round_trip * (10 + 3 * streams),
        duration: args.phase.max(at.round_trip * ROUND_TRIPS_MIN),
    };
    let (run, claims) = target::run(target, &made, &load, stop).await?;
    let read_back = target::check(target.as_ref(), &made, &claims).await?;
    target.remove().await?;
    let phase = run.figures(at.workers, target.is_embedded());
    eprintln!("{}, {}: {}", target.title(), at.told(), phase.told());
    Ok((phase, read_back))
}

/// The report of these places.
fn tell(report: &mut Report, mut places: Vec<Distance>) {
    report.finding = finding(&places);
    places.sort_by_key(|at| (at.workers, at.events, at.round_trip));
    let mut every = Vec::new();
    for at in &places {
        for (way, (phase, read_back)) in WAYS.into_iter().zip(&at.ways) {
            let what = format!("{way}, {}", at.told());
            report.check(what.clone(), read_back);
            if let Some(limit) = &phase.generator_limit {
                report.problem(format!("{what}: {limit}"));
            }
            for (cause, count) in &phase.errors {
                report.problem(format!("{what}: {count} appends failed: {cause}"));
            }
            every.push((at, way, phase));
        }
    }
    let mut loads: Vec<_> = places.iter().map(|at| (at.workers, at.events)).collect();
    loads.dedup();
    for (workers, events) in loads {
        let title = format!("{workers} workers, {events} events per append");
        let x = ("round trip", Scale::Steps);
        let chart = Chart::lines(
            title,
            COMPARED,
            x,
            (&["Gesta", WAYS[1], WAYS[0]], Scale::Log),
        );
        let chart = chart.only("workers", workers);
        let chart = chart.only("events per append", events);
        report.chart(chart.y_name("events/s"));
    }
    let compared = Table::of(COMPARED, &places)
        .columns(&PLACE, place_cells)
        .column("Gesta", Unit::Count, |at| at.rate(2))
        .column(WAYS[1], Unit::Count, |at| at.rate(1))
        .column(WAYS[0], Unit::Count, |at| at.rate(0))
        .column("bundled to separate", Unit::Times, |at| at.ratio(1, 0))
        .column("Gesta to separate", Unit::Times, |at| at.ratio(2, 0))
        .column("Gesta to bundled", Unit::Times, |at| at.ratio(2, 1))
        .column("Gesta of the most", Unit::Share, Distance::share_of_most);
    report.table(compared.table());
    report.text(
        "A worker waits for each answer. So the most that any way of appending can store is workers × events per append ÷ round trip. \
         Where Gesta is near that most, a bundled statement with few workers can be as near: the distance alone is the limit then.",
    );
    let every = Table::of("Every figure", &every)
        .column("way", Unit::Words, |(_, way, _)| *way)
        .columns(&PLACE, |(at, ..)| place_cells(at))
        .columns(&Phase::COLUMNS, |(.., phase)| phase.cells())
        .whose(|(_, way, _)| {
            if *way == "Gesta" {
                Whose::Ours
            } else {
                Whose::Other
            }
        });
    report.table(every.table().folded());
}

/// Fixed work from one distance, with so many events in each batch; in the order of [`WAYS`].
#[derive(Debug)]
struct WorkAt {
    round_trip: Duration,
    events: u64,
    ways: Vec<Done>,
}

impl WorkAt {
    fn seconds(&self, way: usize) -> f64 {
        median(&self.ways[way].seconds)
    }

    /// How many times as fast one way is as another.
    fn ratio(&self, way: usize, to: usize) -> Option<f64> {
        let (own, other) = (self.seconds(way), self.seconds(to));
        (own > 0.0).then(|| other / own)
    }

    /// What was published of the second way against the first, where it was.
    fn published(&self) -> Option<f64> {
        let is = |&(events, micros, _): &(u64, u128, f64)| {
            (events, micros) == (self.events, self.round_trip.as_micros())
        };
        PUBLISHED.into_iter().find(is).map(|(.., gain)| gain)
    }
}

/// [C]: events of a batch, the round trip in microseconds, and how many times as fast bundling was, with 40 workers.
const PUBLISHED: [(u64, u128, f64); 3] = [(5, 1_500, 1.9), (5, 10_000, 6.1), (100, 50_000, 5.3)];

/// Does the fixed work at each distance.
async fn works(args: &LatencyArgs, url: &str, stop: &CancellationToken) -> Result<Vec<WorkAt>> {
    let mut works = Vec::new();
    for (rtt, events) in args
        .rtt
        .iter()
        .flat_map(|rtt| args.events.iter().map(move |n| (rtt, n)))
    {
        let work = Work {
            workers: args.batch_workers,
            batches: args.batches,
            events: *events,
        };
        let mut ways = Vec::new();
        for target in targets(url, args.weather.over(*rtt))? {
            if args.batches == 0 || stop.is_cancelled() {
                return Ok(works);
            }
            let made = Arc::new(Events::new(Sizes::fixed(PAYLOAD)?, 1, args.seed));
            let Some(done) = work::measure(&target, &made, work, stop).await? else {
                return Ok(works);
            };
            let (seconds, far) = (median(&done.seconds), millis(rtt.as_secs_f64() * 1_000.0));
            let batches = args.batches;
            eprintln!(
                "{}, {batches} batches x {events} events at {far}: {seconds:.3} s",
                target.title()
            );
            ways.push(done);
        }
        works.push(WorkAt {
            round_trip: *rtt,
            events: *events,
            ways,
        });
    }
    Ok(works)
}

/// Adds the fixed work to the report.
fn tell_of_work(report: &mut Report, args: &LatencyArgs, works: &[WorkAt]) {
    let Some(farthest) = works.iter().max_by_key(|at| (at.round_trip, at.events)) else {
        return;
    };
    let (batches, workers) = (args.batches, args.batch_workers);
    let far = |at: &WorkAt| at.round_trip.as_secs_f64() * 1_000.0;
    report.finding.push_str(&format!(
        " {batches} batches of {} events by {workers} workers take {} by separate statements at {}, {} bundled, {} with Gesta.",
        farthest.events,
        Unit::Seconds.told(farthest.seconds(0)),
        millis(far(farthest)),
        Unit::Seconds.told(farthest.seconds(1)),
        Unit::Seconds.told(farthest.seconds(2)),
    ));
    for at in works {
        for (way, done) in WAYS.into_iter().zip(&at.ways) {
            let what = format!(
                "{way}, {batches} batches of {} events at {}",
                at.events,
                millis(far(at))
            );
            report.check(what, &done.read_back);
        }
    }
    let title = format!("Time for {batches} batches by {workers} workers, the middle of three");
    for events in args
        .events
        .iter()
        .filter(|_| works.len() > args.events.len())
    {
        let x = ("round trip", Scale::Steps);
        let heading = format!("Time for {batches} batches of {events} events");
        let chart = Chart::lines(
            heading,
            &title,
            x,
            (&["Gesta", WAYS[1], WAYS[0]], Scale::Log),
        );
        report.chart(chart.only("events per batch", *events).y_name("seconds"));
    }
    let range = |at: &WorkAt, way: usize| {
        let (least, most) = ends(&at.ways[way].seconds);
        format!("{least:.3} to {most:.3} s")
    };
    let table = Table::of(title, works)
        .column("round trip", Unit::Millis, far)
        .column("events per batch", Unit::Count, |at| at.events)
        .column("Gesta", Unit::Seconds, |at| at.seconds(2))
        .column(WAYS[1], Unit::Seconds, |at| at.seconds(1))
        .column(WAYS[0], Unit::Seconds, |at| at.seconds(0))
        .column("bundled is faster than separate", Unit::Times, |at| {
            at.ratio(1, 0)
        })
        .column("the same, published [C]", Unit::Times, WorkAt::published)
        .column("Gesta is faster than bundled", Unit::Times, |at| {
            at.ratio(2, 1)
        })
        .column("Gesta, all three", Unit::Words, |at| range(at, 2))
        .column("bundled, all three", Unit::Words, |at| range(at, 1))
        .column("separate, all three", Unit::Words, |at| range(at, 0));
    report.table(table.table());
    report.text(
        "[C] is D. Kraan, EventStore 2x to 4x faster, 2020: 80 streams, 40 workers, batches of 5 and 100, the time for 80 batches, latency \
         made by tc; Elixir and another machine, so the gain of bundling compares and not the seconds.",
    );
}

const PLACE: [(&str, Unit); 3] = [
    ("workers", Unit::Count),
    ("events per append", Unit::Count),
    ("round trip", Unit::Millis),
];

fn place_cells(at: &Distance) -> Vec<gesta_report::Cell> {
    cells![at.workers, at.events, at.round_trip_ms()]
}

/// How many times as many events the ways store, by distance: geometric means over the loads.
fn finding(places: &[Distance]) -> String {
    let far = |at: &&Distance| at.round_trip_ms() >= FAR_MS;
    let mut distances: Vec<Duration> = places.iter().filter(far).map(|at| at.round_trip).collect();
    distances.sort();
    distances.dedup();
    let mut told = Vec::new();
    for distance in distances {
        let mean = |way, to| {
            let at = places.iter().filter(|at| at.round_trip == distance);
            let ratios: Vec<f64> = at.filter_map(|at| at.ratio(way, to)).collect();
            let logarithms: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
            times((logarithms / ratios.len() as f64).exp())
        };
        let (at, bundled) = (millis(distance.as_secs_f64() * 1_000.0), mean(1, 0));
        told.push(format!(
            "at {at} one bundled statement stores {bundled} as many events as separate statements, and Gesta {} as many as that",
            mean(2, 1)
        ));
    }
    if told.is_empty() {
        return "The run has too few figures to compare the three ways of appending.".into();
    }
    let least = |at: &Distance| at.ratio(1, 0).zip(at.ratio(2, 1)).map(|(a, b)| a.min(b));
    let places_with = |from: f64, to: f64| -> Vec<String> {
        let all = places.iter().filter(far);
        let some = all.filter(|at| least(at).is_some_and(|least| (from..to).contains(&least)));
        some.map(Distance::told).collect()
    };
    let (wrong, level) = (
        places_with(0.0, 1.0 - LEVEL),
        places_with(1.0 - LEVEL, 1.0 + LEVEL),
    );
    let told = told.join("; ");
    let mut finding = format!("Over all loads (geometric means), {told}.");
    if !wrong.is_empty() {
        finding.push_str(&format!(" The order is another with {}.", list(&wrong)));
    }
    if !level.is_empty() {
        let (share, level) = (percent(LEVEL), list(&level));
        finding.push_str(&format!(
            " Two ways are level, within {share}, with {level}."
        ));
    }
    finding
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(round_trip_ms: u64, rates: [f64; 3]) -> Distance {
        let way = |events_per_second| {
            let phase = Phase {
                events_per_second,
                ..Phase::default()
            };
            (phase, ReadBack::default())
        };
        Distance {
            workers: 40,
            events: 5,
            round_trip: Duration::from_millis(round_trip_ms),
            ways: rates.map(way).into(),
        }
    }

    #[test]
    fn the_finding_tells_the_ratios_and_where_the_order_is_another() {
        let told = |places: Vec<Distance>| finding(&places).replace('\u{a0}', " ");
        let (near, far) = (
            place(5, [100.0, 240.0, 960.0]),
            place(10, [100.0, 550.0, 560.0]),
        );
        assert_eq!(
            told(vec![near, far, place(5, [100.0, 960.0, 2_160.0])]),
            "Over all loads (geometric means), at 5 ms one bundled statement stores 4.8 times as many events as separate \
             statements, and Gesta 3 times as many as that; at 10 ms one bundled statement stores 5.5 times as many events as \
             separate statements, and Gesta 1.02 times as many as that. \
             Two ways are level, within 3 %, with 40 workers x 5 events at 10 ms."
        );
        let wrong = told(vec![place(10, [600.0, 550.0, 560.0])]);
        let said = "The order is another with 40 workers x 5 events at 10 ms.";
        assert!(wrong.contains(said), "{wrong}");
        assert!(told(vec![place(0, [1.0, 2.0, 3.0])]).contains("too few figures"));
    }

    #[test]
    fn ratios_and_the_share_of_the_most_are_told() {
        let mut report = Report::begin("latency", "Distance", 7);
        tell(&mut report, vec![place(10, [100.0, 610.0, 19_800.0])]);
        report.end(true);
        let text = report.to_string();
        assert!(text.contains("6.1×") && text.contains("99 %"), "{text}");
    }

    #[test]
    fn fixed_work_is_told_beside_what_was_published() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: LatencyArgs,
        }
        let args = <Cli as clap::Parser>::parse_from(["latency"]).args;
        assert_eq!(args.rtt.last(), Some(&Duration::from_millis(100)));
        let done = |seconds: f64| Done {
            seconds: vec![seconds * 2.0, seconds, seconds / 2.0],
            read_back: ReadBack::default(),
        };
        let at = |micros, events| WorkAt {
            round_trip: Duration::from_micros(micros),
            events,
            ways: [4.0, 0.8, 0.1].map(done).into(),
        };
        let mut report = Report::begin("latency", "Distance", 7);
        report.finding = "Found.".into();
        tell_of_work(
            &mut report,
            &args,
            &[at(1_500, 5), at(10_000, 5), at(50_000, 100), at(50_000, 5)],
        );
        report.end(true);
        let text = report.to_string();
        let said = "80 batches of 100 events by 40 workers take 4 s by separate statements at 50 ms, 0.8 s bundled, 0.1 s with Gesta.";
        assert!(text.contains(said), "{text}");
        let table = report.tables().next().unwrap();
        let published = table.column("the same, published [C]").unwrap();
        let published: Vec<_> = table
            .rows
            .iter()
            .map(|row| row.cells[published].number())
            .collect();
        assert_eq!(published, [Some(1.9), Some(6.1), Some(5.3), None]);
        let gained = table.column("bundled is faster than separate").unwrap();
        assert_eq!(table.rows[0].cells[gained].number(), Some(5.0));
    }
}
