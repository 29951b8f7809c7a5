//! `latency`: separate statements, one bundled statement and Gesta at growing distances from the database.

use super::chart::{Axis, LineChart, Point, Role, Scale, Series};
use super::html::Html;
use super::lines::{Line, Lines};
use super::look::Look;
use super::numbers::{Unit, by, count, list, millis, percent, several, times};
use super::section::{
    Section, distinct, newest_first, paragraph, phase_tip, range, runs, side_by_side,
};
use super::table::{Cell, Table, details, figure, millis as millis_cell, told, words};

/// The ways to append, and how they look.
const FORMS: [(&str, &str, Role); 3] = [
    ("gesta", "Gesta", Role::Ours),
    ("bundled", "one bundled statement", Role::Other(0)),
    ("separate", "separate statements", Role::Other(1)),
];
/// From this distance on the order is expected.
const FAR_MS: f64 = 1.5;
/// A smaller difference is none: of two runs on one machine the rates differ by as much.
const LEVEL: f64 = 0.03;
/// Workers of the published experiment.
const PUBLISHED_WORKERS: f64 = 40.0;

/// Published ratios of one bundled statement to separate ones: events per append, round trip, ratio, words.
const PUBLISHED: [(f64, f64, &str); 3] = [
    (5.0, 1.5, "1.9×"),
    (5.0, 10.0, "6.1×"),
    (100.0, 50.0, "up to 5.3×"),
];

pub(super) fn section(lines: &Lines) -> Option<Section> {
    let all = newest_first(lines.of("latency"));
    let newest = all.first()?;
    Some(Section {
        lead: None,
        id: "latency",
        title: "Distance to the database",
        finding: finding(newest),
        is_result: newest.is_valid(),
        body: runs(&all, draw),
    })
}

/// The cells of a run.
struct Cells<'a>(Vec<Look<'a>>);

/// A figure's place.
#[derive(Clone, Copy, PartialEq)]
struct At {
    events: f64,
    workers: f64,
    round_trip: f64,
}

impl<'a> Cells<'a> {
    fn of(line: &'a Line) -> Self {
        Self(line.result().get("cells").items().collect())
    }

    fn distinct(&self, member: &str) -> Vec<f64> {
        distinct(self.0.iter().filter_map(|cell| cell.get(member).number()))
    }

    fn phase(&self, form: &str, at: At) -> Option<Look<'a>> {
        let found = self.0.iter().find(|cell| {
            cell.text_or_empty("form") == form
                && cell.get("events").number() == Some(at.events)
                && cell.get("workers").number() == Some(at.workers)
                && cell.get("round_trip_ms").number() == Some(at.round_trip)
        });
        found.map(|cell| cell.get("phase"))
    }

    fn rate(&self, form: &str, at: At) -> Option<f64> {
        let rate = self.phase(form, at)?.get("events_per_second").number()?;
        (rate > 0.0).then_some(rate)
    }

    fn ratio(&self, form: &str, to: &str, at: At) -> Option<f64> {
        Some(self.rate(form, at)? / self.rate(to, at)?)
    }

    /// Gesta's share of what the workers could store at most if nothing but the round trip took time.
    fn of_the_most(&self, at: At) -> Option<f64> {
        let most = at.workers * at.events / at.round_trip * 1_000.0;
        (at.round_trip > 0.0).then_some(self.rate("gesta", at)? / most)
    }

    fn places(&self) -> Vec<At> {
        let mut all = Vec::new();
        for events in self.distinct("events") {
            for workers in self.distinct("workers") {
                for round_trip in self.distinct("round_trip_ms") {
                    let at = At {
                        events,
                        workers,
                        round_trip,
                    };
                    if FORMS
                        .iter()
                        .any(|(form, ..)| self.phase(form, at).is_some())
                    {
                        all.push(at);
                    }
                }
            }
        }
        all
    }
}

fn finding(line: &Line) -> String {
    let cells = Cells::of(line);
    let (mut bundled, mut gesta) = (Vec::new(), Vec::new());
    let (mut level, mut wrong) = (Vec::new(), Vec::new());
    for at in cells
        .places()
        .into_iter()
        .filter(|at| at.round_trip >= FAR_MS)
    {
        let (Some(one), Some(ours)) = (
            cells.ratio("bundled", "separate", at),
            cells.ratio("gesta", "separate", at),
        ) else {
            continue;
        };
        bundled.push(one);
        gesta.push(ours);
        let told = format!(
            "{} with {} and {} events each",
            millis(at.round_trip),
            several(at.workers, "worker"),
            count(at.events)
        );
        match one.min(ours / one) {
            least if least < 1.0 - LEVEL => wrong.push(told),
            least if least <= 1.0 + LEVEL => level.push(told),
            _ => {}
        }
    }
    let between = |ratios: &[f64]| match range(ratios) {
        Some((least, most)) if most > least * 1.005 => {
            format!(
                "{} to {}",
                super::numbers::by(least).trim_end_matches('×'),
                times(most)
            )
        }
        Some((least, _)) => times(least),
        None => String::new(),
    };
    let all = bundled.len();
    let level_at = match level.len() {
        0 => String::new(),
        some => format!(
            "; two ways are level, within {}, at {some} of {all} places: {}",
            percent(LEVEL),
            list(&level)
        ),
    };
    match (all, wrong.len()) {
        (0, _) => "The run has too few figures to compare the three ways of appending.".into(),
        (_, 0) => format!(
            "At every round trip of {} and more, separate statements are the slowest, one bundled statement stores {} as many events, and Gesta {} as many{level_at}.",
            millis(FAR_MS),
            between(&bundled),
            between(&gesta)
        ),
        _ => format!(
            "Separate < bundled < Gesta holds at {} of {all} places with a round trip of {} and more; not at {}{level_at}.",
            all - wrong.len() - level.len(),
            millis(FAR_MS),
            list(&wrong)
        ),
    }
}

/// What of our figures stands beside the published ones: place in words, published, here.
pub(super) fn beside_published(line: &Line) -> Vec<(String, &'static str, f64)> {
    let cells = Cells::of(line);
    let find = |(events, round_trip, published): (f64, f64, &'static str)| {
        let at = At {
            events,
            workers: PUBLISHED_WORKERS,
            round_trip,
        };
        let ratio = cells.ratio("bundled", "separate", at)?;
        let what = format!("batches of {}, {}", count(events), millis(round_trip));
        Some((what, published, ratio))
    };
    PUBLISHED.into_iter().filter_map(find).collect()
}

fn draw(line: &Line) -> Html {
    let cells = Cells::of(line);
    let mut pairs: Vec<(f64, f64)> = Vec::new();
    for at in cells.places() {
        if !pairs.contains(&(at.workers, at.events)) {
            pairs.push((at.workers, at.events));
        }
    }
    // The published number of workers in the open, or the one next to it.
    let shown = pairs.iter().map(|(workers, _)| *workers).min_by(|a, b| {
        (a - PUBLISHED_WORKERS)
            .abs()
            .total_cmp(&(b - PUBLISHED_WORKERS).abs())
    });
    let (open, folded): (Vec<_>, Vec<_>) = pairs
        .into_iter()
        .partition(|(workers, _)| Some(*workers) == shown);
    let charts = |pairs: Vec<(f64, f64)>| {
        let charts = pairs
            .into_iter()
            .map(|(workers, events)| chart(&cells, workers, events));
        side_by_side(charts.collect::<Vec<_>>())
    };
    let mut all = charts(open);
    if !folded.is_empty() {
        all.push(details("Other numbers of workers", charts(folded)));
    }
    let (near, far): (Vec<At>, Vec<At>) = cells
        .places()
        .into_iter()
        .partition(|at| Some(at.workers) == shown);
    all.push(ratios(&cells, near));
    all.push(details(
        "The ratios with other numbers of workers",
        ratios(&cells, far),
    ));
    all.push(paragraph(
        "A worker waits for each answer. So the most that any way of appending can store is workers × events per append ÷ round trip. \
         Where Gesta is near that most, a bundled statement with few workers can be as near: the distance alone is the limit then.",
    ));
    all.push(paragraph(
        "[C] was measured with another programming language, another database version and another machine, and delayed the network \
         itself; here a proxy delays each answer. So compare the ratios, not the rates. With the lock of separate statements held across the \
         network, a round trip of 5 ms cannot give more than 200 batches a second, and 100 ms not more than 10, whatever the machine.",
    ));
    all.push(details("Every figure", figures(&cells)));
    all
}

fn chart(cells: &Cells<'_>, workers: f64, events: f64) -> Html {
    let round_trips = cells.distinct("round_trip_ms");
    let names: Vec<String> = round_trips.iter().map(|rtt| millis(*rtt)).collect();
    let mut told = Vec::new();
    let series = FORMS.iter().filter_map(|(form, name, role)| {
        let mut points = Vec::new();
        for (step, round_trip) in round_trips.iter().enumerate() {
            let at = At {
                events,
                workers,
                round_trip: *round_trip,
            };
            let Some(rate) = cells.rate(form, at) else {
                continue;
            };
            let phase = cells.phase(form, at)?;
            told.push(format!(
                "{name} at {}: {} events/s",
                millis(*round_trip),
                count(rate)
            ));
            let tip = format!("{} round trip: {}", millis(*round_trip), phase_tip(phase));
            points.push(Point::new(step as f64, rate, tip));
        }
        (!points.is_empty()).then(|| Series::new(*name, *role, points))
    });
    let series: Vec<Series> = series.collect();
    LineChart {
        title: format!(
            "{} workers, {} events per append",
            count(workers),
            count(events)
        ),
        description: told.join("; "),
        x: Axis::new(
            "round trip to the database (steps not to scale)",
            Scale::Steps(names),
            Unit::Count,
        ),
        y: Axis::new("events/s", Scale::Log, Unit::Count),
        series,
        limits: Vec::new(),
        marks: Vec::new(),
        note: None,
    }
    .draw()
}

fn ratios(cells: &Cells<'_>, places: Vec<At>) -> Html {
    let mut table = Table::new(
        "How many times as many events as another way",
        &[
            "workers",
            "events per append",
            "round trip",
            "bundled to separate",
            "published [C]",
            "Gesta to separate",
            "Gesta to bundled",
            "Gesta of the most",
        ],
    );
    let compared = |at: &At| cells.ratio("gesta", "bundled", *at).is_some();
    for at in places.into_iter().filter(compared) {
        let ratio = |form: &str, to: &str| {
            let ratio = cells.ratio(form, to, at);
            ratio.map_or(Cell::Unknown, |ratio| figure(by(ratio)))
        };
        let published = PUBLISHED.iter().find(|(events, round_trip, _)| {
            (*events, *round_trip, PUBLISHED_WORKERS) == (at.events, at.round_trip, at.workers)
        });
        table.row(vec![
            figure(count(at.workers)),
            figure(count(at.events)),
            figure(millis(at.round_trip)),
            ratio("bundled", "separate"),
            published.map_or(Cell::Unknown, |(.., told)| figure(*told)),
            ratio("gesta", "separate"),
            ratio("gesta", "bundled"),
            cells
                .of_the_most(at)
                .map_or(Cell::Unknown, |share| figure(percent(share))),
        ]);
    }
    table.draw()
}

fn figures(cells: &Cells<'_>) -> Html {
    let mut table = Table::new(
        "All figures",
        &[
            "way",
            "workers",
            "events per append",
            "round trip",
            "events/s",
            "appends/s",
            "p50",
            "p99",
            "errors",
            "generator",
        ],
    );
    for at in cells.places() {
        for (form, name, _) in FORMS {
            let Some(phase) = cells.phase(form, at) else {
                continue;
            };
            table.row(vec![
                words(name),
                figure(count(at.workers)),
                figure(count(at.events)),
                figure(millis(at.round_trip)),
                told(Unit::Count, phase.get("events_per_second").number()),
                told(Unit::Count, phase.get("appends_per_second").number()),
                millis_cell(phase.get("latency_ms.p50")),
                millis_cell(phase.get("latency_ms.p99")),
                super::table::causes(&[phase.get("errors")]),
                words(phase.text_or_empty("generator_limit")),
            ]);
        }
    }
    table.draw()
}
