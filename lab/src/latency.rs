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

use crate::cells;
use crate::failure::{Context, Result, fail};
use crate::journals;
use crate::read_back::ReadBack;
use crate::report::numbers::{list, millis, percent, times};
use crate::report::{Chart, Report, ReportArgs, Scale, Table, Unit, Whose};
use crate::sizes::Sizes;
use crate::store;
use crate::target::{self, Events, GestaTarget, Load, Phase, Target};
use crate::units;

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
    #[arg(long, value_delimiter = ',', default_value = "0,1.5ms,5ms,10ms,50ms", value_parser = units::duration)]
    #[serde(skip)]
    rtt: Vec<Duration>,
    /// Numbers of workers.
    #[arg(long, value_delimiter = ',', default_value = "1,10,40,400", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    workers: Vec<u32>,
    /// Events per append.
    #[arg(long, value_delimiter = ',', default_value = "5,100", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    events: Vec<u64>,
    /// Time on the clock for each figure; at least 100 round trips.
    #[arg(long, default_value = "2s", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "phase_seconds")]
    phase: Duration,
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
    let connections = args.workers.iter().max().unwrap_or(&0) + 40;
    let url = match args.store.as_str() {
        store::NEW_SERVER => server.insert(store::new_server_for(connections)?).url(),
        url => url.to_owned(),
    };
    if !url.starts_with("postgres") {
        return fail(format!(
            "{url:?}: distance matters to a database behind a network, postgres://…"
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
                for target in targets(&url, *rtt)? {
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
    report.workload = json!(args);
    tell(&mut report, places);
    report.finish(&args.report, !stop.is_cancelled())
}

/// In the order of [`WAYS`].
fn targets(url: &str, rtt: Duration) -> Result<[Arc<dyn Target>; 3]> {
    Ok([
        journals::named(journals::SEPARATE, url, rtt, None)?,
        journals::named("eventstore", url, rtt, None)?,
        Arc::new(GestaTarget::new(url, rtt, None)),
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

const PLACE: [(&str, Unit); 3] = [
    ("workers", Unit::Count),
    ("events per append", Unit::Count),
    ("round trip", Unit::Millis),
];

fn place_cells(at: &Distance) -> Vec<crate::report::Cell> {
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
}
