//! What Prometheus reads at `GET /metrics`.
//!
//! Why by hand: counting a request is two additions to known places, without a lock or a look-up.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gesta::entity::Stats as EntityStats;
use hyper::StatusCode;
use tokio::time::Instant;

use crate::http::{App, Route};
use crate::read_model;

/// Names of routes, as metrics show them.
const ROUTES: [&str; 7] = [
    "/shows",
    "/shows/{showId}",
    "/shows/{showId}/seats/{seatNum}",
    "/available-seats",
    "/health",
    "/metrics",
    "unknown",
];
/// All that is answered.
const STATUSES: [u16; 12] = [200, 201, 202, 400, 404, 405, 408, 409, 413, 500, 503, 504];
/// Upper bounds of the times, in microseconds.
const BOUNDS: [u64; 14] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000,
];

/// Answers and times of one route.
#[derive(Debug, Default)]
struct RouteCounts {
    answers: [AtomicU64; STATUSES.len()],
    /// One more for what is slower than all bounds.
    times: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

/// Requests that were answered.
#[derive(Debug, Default)]
pub struct Requests {
    routes: [RouteCounts; ROUTES.len()],
    in_flight: AtomicU64,
}

impl Requests {
    pub(crate) fn begin(&self) -> Begun<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Begun {
            at: Instant::now(),
            in_flight: &self.in_flight,
        }
    }

    pub(crate) fn end(&self, begun: Begun<'_>, route: Route<'_>, status: StatusCode) {
        let Some(counts) = self.routes.get(index_of(route)) else {
            return;
        };
        let taken = begun.at.elapsed();
        let status = STATUSES.iter().position(|known| *known == status.as_u16());
        if let Some(answers) = status.and_then(|status| counts.answers.get(status)) {
            answers.fetch_add(1, Ordering::Relaxed);
        }
        let micros = micros(taken);
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        if let Some(times) = counts.times.get(bucket) {
            times.fetch_add(1, Ordering::Relaxed);
        }
        counts.micros.fetch_add(micros, Ordering::Relaxed);
    }
}

/// A request that is not answered yet; it no longer counts when this is dropped.
pub(crate) struct Begun<'a> {
    at: Instant,
    in_flight: &'a AtomicU64,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

fn index_of(route: Route<'_>) -> usize {
    match route {
        Route::Shows => 0,
        Route::Show { .. } => 1,
        Route::Seat { .. } => 2,
        Route::AvailableSeats => 3,
        Route::Health => 4,
        Route::Metrics => 5,
        Route::Unknown => 6,
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The text that Prometheus reads.
pub(crate) fn text(app: &App) -> String {
    let mut out = Text(String::with_capacity(16 * 1024));
    requests(&mut out, &app.requests);
    entities(&mut out, &app.shows.stats());
    pipelines(&mut out, &app.store);
    available_seats(&mut out, app.read_model.stats());
    out.0
}

struct Text(String);

impl Text {
    fn family(&mut self, kind: &str, name: &str, help: &str) {
        // Writing to memory does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}.\n# TYPE {name} {kind}");
    }

    fn value(
        &mut self,
        name: &str,
        labels: std::fmt::Arguments<'_>,
        value: impl std::fmt::Display,
    ) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn single(&mut self, kind: &str, name: &str, help: &str, value: u64) {
        self.family(kind, name, help);
        self.value(name, format_args!(""), value);
    }
}

fn requests(out: &mut Text, requests: &Requests) {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let name = "cinema_http_requests_total";
    out.family("counter", name, "Requests answered");
    for (route, counts) in ROUTES.iter().zip(&requests.routes) {
        for (status, count) in STATUSES.iter().zip(&counts.answers) {
            if get(count) > 0 {
                let labels = format_args!("{{route=\"{route}\",status=\"{status}\"}}");
                out.value(name, labels, get(count));
            }
        }
    }
    let name = "cinema_http_request_duration_seconds";
    out.family(
        "histogram",
        name,
        "Time from a request's head to its answer",
    );
    for (route, counts) in ROUTES.iter().zip(&requests.routes) {
        histogram(out, name, route, counts);
    }
    let help = "Requests in flight";
    let name = "cinema_http_requests_in_flight";
    out.single("gauge", name, help, get(&requests.in_flight));
}

fn histogram(out: &mut Text, name: &str, route: &str, counts: &RouteCounts) {
    let mut total = 0;
    let mut bounds = BOUNDS.iter();
    for times in &counts.times {
        total += times.load(Ordering::Relaxed);
        let labels = (format!("{name}_bucket"), bounds.next());
        match labels {
            (name, Some(bound)) => {
                let bound = Duration::from_micros(*bound).as_secs_f64();
                out.value(
                    &name,
                    format_args!("{{route=\"{route}\",le=\"{bound}\"}}"),
                    total,
                );
            }
            (name, None) => {
                out.value(
                    &name,
                    format_args!("{{route=\"{route}\",le=\"+Inf\"}}"),
                    total,
                );
            }
        }
    }
    let seconds = Duration::from_micros(counts.micros.load(Ordering::Relaxed)).as_secs_f64();
    out.value(
        &format!("{name}_sum"),
        format_args!("{{route=\"{route}\"}}"),
        seconds,
    );
    out.value(
        &format!("{name}_count"),
        format_args!("{{route=\"{route}\"}}"),
        total,
    );
}

fn entities(out: &mut Text, stats: &EntityStats) {
    for (name, help, value) in [
        (
            "commands",
            "Commands accepted, their events durable",
            stats.commands,
        ),
        ("rejected", "Commands rejected", stats.rejected),
        (
            "overloaded",
            "Commands and reads refused for want of room",
            stats.overloaded,
        ),
        ("failed", "Commands that failed otherwise", stats.failed),
        (
            "repeated",
            "Commands answered from an idempotency key",
            stats.repeated,
        ),
        (
            "keys_reused",
            "Commands refused because their idempotency key was used for another",
            stats.keys_reused,
        ),
        (
            "keys_forgotten_early",
            "Idempotency keys forgotten before their time",
            stats.keys_forgotten_early,
        ),
        (
            "keys_left_out",
            "Idempotency keys left out of snapshots that would have been too large",
            stats.keys_left_out,
        ),
        ("reads", "Reads answered", stats.reads),
        (
            "confirmations",
            "Questions to the store whether a show is up to date",
            stats.confirmations,
        ),
        (
            "decided_again",
            "Decisions made again after a conflict or failure",
            stats.decided_again,
        ),
        (
            "reloads",
            "Times a show was forgotten and loaded again for that",
            stats.reloads,
        ),
        ("loads", "Shows loaded", stats.loads),
        ("loaded_events", "Events read for that", stats.loaded_events),
        ("loads_failed", "Loads that failed", stats.loads_failed),
        (
            "passivated_idle",
            "Shows that left memory because nobody used them",
            stats.passivated_idle,
        ),
        (
            "passivated_for_room",
            "Shows that left memory for others",
            stats.passivated_for_room,
        ),
        (
            "snapshots_written",
            "Snapshots written",
            stats.snapshots_written,
        ),
        (
            "snapshots_left_out",
            "Snapshots not written",
            stats.snapshots_left_out,
        ),
        (
            "snapshots_ignored",
            "Snapshots found but of no use",
            stats.snapshots_ignored,
        ),
    ] {
        out.single(
            "counter",
            &format!("cinema_entity_{name}_total"),
            help,
            value,
        );
    }
    for (name, help, value) in [
        ("active", "Shows in memory", stats.active),
        ("loading", "Shows being loaded", stats.loading),
        (
            "commands_waiting",
            "Commands that wait or are in flight",
            stats.commands_waiting,
        ),
        ("reads_waiting", "Reads that wait", stats.reads_waiting),
        ("keys", "Idempotency keys remembered", stats.keys),
        (
            "key_bytes",
            "Bytes of them and their replies",
            stats.key_bytes,
        ),
    ] {
        out.single("gauge", &format!("cinema_entity_{name}"), help, value);
    }
}

/// The names are those of `gesta serve`.
fn pipelines(out: &mut Text, store: &gesta::Store) {
    let logs = store.pipeline_stats();
    let mut family = |kind: &str, name: &str, help: &str, values: Vec<u64>| {
        out.family(kind, name, help);
        for (log, value) in values.iter().enumerate() {
            out.value(name, format_args!("{{log=\"{log}\"}}"), value);
        }
    };
    macro_rules! counters {
        ($($name:literal, $help:literal, $field:ident;)*) => {
            $(family("counter", $name, $help, logs.iter().map(|log| log.$field).collect());)*
        };
    }
    counters! {
        "gesta_pipeline_batches_total", "Batches sent to the database, missed ones included", batches;
        "gesta_pipeline_batched_events_total", "Events in these batches", events;
        "gesta_pipeline_misses_total", "Batches that missed because another process had appended", misses;
        "gesta_pipeline_failures_total", "Batches that failed for a passing reason or whose outcome was unknown at first", failures;
        "gesta_pipeline_reconnects_total", "Connections for appends opened after the first", reconnects;
        "gesta_pipeline_loads_total", "Statements that looked up streams", loads;
    }
    let queued = logs.iter().map(|log| log.queued_events).collect();
    let help = "Events that wait or are in flight";
    family("gauge", "gesta_pipeline_queued_events", help, queued);
}

fn available_seats(out: &mut Text, stats: &read_model::Stats) {
    for (name, help, counter) in [
        ("events", "Events counted", &stats.events),
        ("batches", "Transactions that stored them", &stats.batches),
        (
            "rebuilds",
            "Times they were counted anew from the first event",
            &stats.rebuilds,
        ),
        (
            "failures",
            "Times something failed and was tried again",
            &stats.failures,
        ),
        (
            "stood_by",
            "Times another process was ahead",
            &stats.stood_by,
        ),
    ] {
        let name = format!("cinema_available_seats_{name}_total");
        out.single("counter", &name, help, counter.load(Ordering::Relaxed));
    }
}
