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
use crate::report::numbers::{self, list, millis, percent};
use crate::report::{Chart, Report, ReportArgs, Scale, Table, Unit, Whose};
use crate::sizes::Sizes;
use crate::store;
use crate::target::{self, Events, GestaTarget, Load, Phase, ReadBack, Target};
use crate::units;

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
    /// Streams that all workers fill by turns, each worker its own: at least one per worker.
    #[arg(long, default_value_t = 80)]
    streams: u32,
    /// Bytes of data per event.
    #[arg(long, default_value_t = 100)]
    payload: usize,
    /// Time on the clock for each figure; at least 100 round trips.
    #[arg(long, default_value = "2s", value_parser = units::duration)]
    #[serde(skip)]
    phase: Duration,
    /// Most workers of the ways that need a connection for each; more workers are tried with Gesta alone.
    #[arg(long, default_value_t = 400)]
    connections_max: u32,
    /// Seed of the contents.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// A way of appending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// BEGIN, INSERT, UPDATE of the stream, UPDATE of the whole, COMMIT: five round trips.
    Separate,
    /// The same in one statement.
    Bundled,
    /// Gesta.
    Gesta,
}

impl Form {
    /// The best first.
    const ALL: [Form; 3] = [Form::Gesta, Form::Bundled, Form::Separate];

    fn title(self) -> &'static str {
        match self {
            Form::Separate => "separate statements",
            Form::Bundled => "one bundled statement",
            Form::Gesta => "Gesta",
        }
    }
}

/// Workers, events per append, and the distance.
#[derive(Debug, Clone, Copy, PartialEq)]
struct At {
    workers: u32,
    events: u64,
    round_trip_ms: f64,
}

/// One figure.
#[derive(Debug)]
struct Cell {
    form: Form,
    at: At,
    phase: Phase,
    read_back: ReadBack,
}

impl Cell {
    fn named(&self) -> String {
        let (form, at) = (self.form.title(), self.at);
        let distance = millis(at.round_trip_ms);
        format!(
            "{form}, {} workers x {} events at {distance}",
            at.workers, at.events
        )
    }
}

/// The command. True if the run is a result.
pub(crate) async fn run(args: &LatencyArgs, stop: &CancellationToken) -> Result<bool> {
    let sizes = Sizes::fixed(args.payload)?;
    let mut report = Report::begin("latency", "Distance to the database", args.seed);
    let mut server = None;
    let url = if args.store == store::NEW_SERVER {
        let server = server.insert(store::new_server_for(args.connections_max + 40)?);
        server.url()
    } else {
        args.store.clone()
    };
    if !url.starts_with("postgres") {
        return fail(format!(
            "{url:?}: distance matters to a database behind a network, postgres://…"
        ));
    }
    report.store = Some(store::database_facts(&url, Duration::ZERO).await?);
    let mut cells = Vec::new();
    'all: for rtt in &args.rtt {
        for events in &args.events {
            for workers in &args.workers {
                for form in Form::ALL.into_iter().rev() {
                    if stop.is_cancelled() {
                        break 'all;
                    }
                    if form != Form::Gesta && *workers > args.connections_max {
                        continue;
                    }
                    let cell = Measure {
                        args,
                        url: &url,
                        sizes: &sizes,
                        rtt: *rtt,
                    };
                    cells.push(cell.cell(form, *workers, *events, stop).await?);
                }
            }
        }
    }
    report.workload = json!(args);
    report.workload["phase_seconds"] = json!(args.phase.as_secs_f64());
    tell(&mut report, &Cells(cells));
    report.finish(&args.report, !stop.is_cancelled())
}

struct Measure<'a> {
    args: &'a LatencyArgs,
    url: &'a str,
    sizes: &'a Sizes,
    rtt: Duration,
}

impl Measure<'_> {
    fn target(&self, form: Form) -> Result<Arc<dyn Target>> {
        let journal = |name| journals::named(name, self.url, self.rtt, None);
        match form {
            Form::Separate => journal("eventstore-separate"),
            Form::Bundled => journal("eventstore"),
            Form::Gesta => Ok(Arc::new(GestaTarget::new(self.url, self.rtt, None))),
        }
    }

    async fn cell(
        &self,
        form: Form,
        workers: u32,
        events: u64,
        stop: &CancellationToken,
    ) -> Result<Cell> {
        let target = self.target(form)?;
        target.prepare().await.context(target.name().to_owned())?;
        let made = Events::new(self.sizes.clone(), 1, self.args.seed);
        let made = Arc::new(made);
        let streams = (self.args.streams / workers).max(1);
        let load = Load {
            first_worker: 0,
            workers,
            events,
            events_per_stream: STREAM_EVENTS_MAX / events * events,
            streams,
            rate: None,
            // Each worker meets each of its streams for the first time, which may take several round trips, before the
            // clock starts; and what is far away takes time to begin.
            warm_up: Duration::from_millis(300) + self.rtt * (10 + 3 * streams),
            duration: self.args.phase.max(self.rtt * ROUND_TRIPS_MIN),
        };
        let (run, claims) = target::run(&target, &made, &load, stop).await?;
        let read_back = target::check(target.as_ref(), &made, &claims).await?;
        target.remove().await?;
        let embedded = target.is_embedded();
        let cell = Cell {
            form,
            at: At {
                workers,
                events,
                round_trip_ms: self.rtt.as_secs_f64() * 1_000.0,
            },
            phase: run.figures(workers, embedded),
            read_back,
        };
        eprintln!("{}: {}", cell.named(), cell.phase.told());
        Ok(cell)
    }
}

/// The report of these cells.
fn tell(report: &mut Report, cells: &Cells) {
    report.finding = finding(cells);
    for cell in &cells.0 {
        let what = cell.named();
        report.check(what.clone(), &cell.read_back);
        if let Some(limit) = &cell.phase.generator_limit {
            report.problem(format!("{what}: {limit}"));
        }
        for (cause, count) in &cell.phase.errors {
            report.problem(format!("{what}: {count} appends failed: {cause}"));
        }
    }
    let places = cells.places();
    let mut charted: Vec<(u32, u64)> = places.iter().map(|at| (at.workers, at.events)).collect();
    charted.dedup();
    for (workers, events) in charted {
        let title = format!("{workers} workers, {events} events per append");
        let names = Form::ALL.map(Form::title);
        let x = ("round trip", Scale::Steps);
        let chart = Chart::lines(title, COMPARED, x, (&names, Scale::Log));
        let chart = chart.only("workers", workers);
        let chart = chart.only("events per append", events);
        report.chart(chart.y_name("events/s"));
    }
    report.table(compared(cells, &places));
    report.text(
        "A worker waits for each answer. So the most that any way of appending can store is workers × events per append ÷ round trip. \
         Where Gesta is near that most, a bundled statement with few workers can be as near: the distance alone is the limit then.",
    );
    let columns = [
        ("way", Unit::Words),
        ("workers", Unit::Count),
        ("events per append", Unit::Count),
        ("round trip", Unit::Millis),
    ];
    let mut all = Table::new("Every figure", columns.into_iter().chain(Phase::COLUMNS)).folded();
    for cell in &cells.0 {
        let whose = if cell.form == Form::Gesta {
            Whose::Ours
        } else {
            Whose::Other
        };
        let (way, at) = (cell.form.title(), cell.at);
        let place = cells![way, at.workers, at.events, at.round_trip_ms];
        all.row_of(whose, [place, cell.phase.cells()].concat());
    }
    report.table(all);
}

/// All figures.
struct Cells(Vec<Cell>);

impl Cells {
    fn places(&self) -> Vec<At> {
        let mut all: Vec<At> = self.0.iter().map(|cell| cell.at).collect();
        all.sort_by(|a, b| {
            let by_load = (a.workers, a.events).cmp(&(b.workers, b.events));
            by_load.then(a.round_trip_ms.total_cmp(&b.round_trip_ms))
        });
        all.dedup();
        all
    }

    fn rate(&self, form: Form, at: At) -> Option<f64> {
        let mut all = self.0.iter();
        let found = all.find(|cell| cell.form == form && cell.at == at)?;
        Some(found.phase.events_per_second).filter(|rate| *rate > 0.0)
    }

    fn ratio(&self, form: Form, to: Form, at: At) -> Option<f64> {
        Some(self.rate(form, at)? / self.rate(to, at)?)
    }
}

fn finding(cells: &Cells) -> String {
    let (mut bundled, mut gesta) = (Vec::new(), Vec::new());
    let (mut level, mut wrong) = (Vec::new(), Vec::new());
    for at in cells
        .places()
        .into_iter()
        .filter(|at| at.round_trip_ms >= FAR_MS)
    {
        let (Some(one), Some(ours)) = (
            cells.ratio(Form::Bundled, Form::Separate, at),
            cells.ratio(Form::Gesta, Form::Separate, at),
        ) else {
            continue;
        };
        bundled.push(one);
        gesta.push(ours);
        let workers = numbers::several(f64::from(at.workers), "worker");
        let told = format!(
            "{} with {workers} and {} events each",
            millis(at.round_trip_ms),
            at.events
        );
        match one.min(ours / one) {
            least if least < 1.0 - LEVEL => wrong.push(told),
            least if least <= 1.0 + LEVEL => level.push(told),
            _ => {}
        }
    }
    let all = bundled.len();
    let level_at = match level.len() {
        0 => String::new(),
        some => {
            let (share, places) = (percent(LEVEL), list(&level));
            format!("; two ways are level, within {share}, at {some} of {all} places: {places}")
        }
    };
    let far = millis(FAR_MS);
    match (all, wrong.len()) {
        (0, _) => "The run has too few figures to compare the three ways of appending.".into(),
        (_, 0) => format!(
            "At every round trip of {far} and more, separate statements are the slowest, one bundled statement stores {} as many events, and Gesta {} as many{level_at}.",
            numbers::times_between(&bundled),
            numbers::times_between(&gesta)
        ),
        (_, wrongs) => format!(
            "Separate < bundled < Gesta holds at {} of {all} places with a round trip of {far} and more; not at {}{level_at}.",
            all - wrongs - level.len(),
            list(&wrong)
        ),
    }
}

/// One row per number of workers, batch and distance: the rates and their ratios.
fn compared(cells: &Cells, places: &[At]) -> Table {
    let rates = Form::ALL.map(|form| (form.title(), Unit::Count));
    let place = [
        ("workers", Unit::Count),
        ("events per append", Unit::Count),
        ("round trip", Unit::Millis),
    ];
    let ratios = [
        ("bundled to separate", Unit::Times),
        ("Gesta to separate", Unit::Times),
        ("Gesta to bundled", Unit::Times),
        ("Gesta of the most", Unit::Share),
    ];
    let mut table = Table::new(COMPARED, place.into_iter().chain(rates).chain(ratios));
    for at in places {
        // What the workers could store if nothing but the round trip took time.
        let most = f64::from(at.workers) * at.events as f64 / at.round_trip_ms * 1_000.0;
        let of_most = cells.rate(Form::Gesta, *at).map(|rate| rate / most);
        let [gesta, bundled, separate] = Form::ALL;
        table.row(cells![
            at.workers,
            at.events,
            at.round_trip_ms,
            cells.rate(gesta, *at),
            cells.rate(bundled, *at),
            cells.rate(separate, *at),
            cells.ratio(bundled, separate, *at),
            cells.ratio(gesta, separate, *at),
            cells.ratio(gesta, bundled, *at),
            of_most.filter(|share| *share > 0.0),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(rates: &[(Form, f64, f64)]) -> Cells {
        let cells = rates
            .iter()
            .map(|(form, round_trip_ms, events_per_second)| Cell {
                form: *form,
                at: At {
                    workers: 40,
                    events: 5,
                    round_trip_ms: *round_trip_ms,
                },
                phase: Phase {
                    events_per_second: *events_per_second,
                    ..Phase::default()
                },
                read_back: ReadBack::default(),
            });
        Cells(cells.collect())
    }

    fn told(rates: &[(Form, f64, f64)]) -> String {
        finding(&cells(rates)).replace('\u{a0}', " ")
    }

    #[test]
    fn the_finding_names_the_places_where_the_order_is_another() {
        use Form::{Bundled, Gesta, Separate};
        let far = [
            (Separate, 5.0, 100.0),
            (Bundled, 5.0, 240.0),
            (Gesta, 5.0, 900.0),
        ];
        let farther = [
            (Separate, 10.0, 100.0),
            (Bundled, 10.0, 550.0),
            (Gesta, 10.0, 560.0),
        ];
        let order = [far, farther].concat();
        assert_eq!(
            told(&order),
            "At every round trip of 1.5 ms and more, separate statements are the slowest, one bundled statement stores 2.4 to 5.5 times as many \
             events, and Gesta 5.6 to 9 times as many; two ways are level, within 3 %, at 1 of 2 places: 10 ms with 40 workers and 5 events each."
        );
        let wrong = [far, [(Separate, 10.0, 600.0), farther[1], farther[2]]].concat();
        let wrong = told(&wrong);
        assert!(
            wrong.contains("holds at 1 of 2 places")
                && wrong.contains("not at 10 ms with 40 workers"),
            "{wrong}"
        );
        assert!(told(&far[..2]).contains("too few figures"));
    }

    #[test]
    fn ratios_and_the_share_of_the_most_are_told() {
        let cells = cells(&[
            (Form::Separate, 10.0, 100.0),
            (Form::Bundled, 10.0, 610.0),
            (Form::Gesta, 10.0, 19_800.0),
        ]);
        let mut report = Report::begin("latency", "Distance", 7);
        tell(&mut report, &cells);
        report.end(true);
        let text = report.to_string();
        assert!(text.contains("6.1×"), "{text}");
        assert!(text.contains("99 %"), "{text}");
    }
}
