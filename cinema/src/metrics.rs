//! The metrics that Prometheus reads at `GET /metrics`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use gesta::metrics::{ClusterMetrics, EntityMetrics, PipelineMetrics};
use gesta::projection::Progress;
use gesta::timers::{Phase, Status};
use gesta::{DatabaseStore, Node};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::watch;

use crate::shows::Shows;

/// Media type of the metrics.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Upper bounds of the times, in seconds.
const BOUNDS: [f64; 14] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RouteLabel {
    route: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct AnswerLabels {
    route: String,
    status: u16,
}

/// All metrics of the application.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<AnswerLabels, Counter>,
    durations: Family<RouteLabel, Histogram>,
    in_flight: Gauge,
}

impl Metrics {
    /// Makes metrics of the requests to come, and of what the store, its node, the shows, the read model and, if there
    /// are any, the timers of unpaid reservations do.
    pub(crate) fn new(
        store: &Arc<DatabaseStore>,
        node: Option<&Arc<Node>>,
        shows: &Shows,
        seats: watch::Receiver<Progress>,
        timers: Option<watch::Receiver<Status>>,
    ) -> Arc<Self> {
        let (requests, in_flight) = (Family::default(), Gauge::default());
        let durations: Family<RouteLabel, Histogram> =
            Family::new_with_constructor(|| Histogram::new(BOUNDS));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(PipelineMetrics::new(Arc::clone(store))));
        if let Some(node) = node {
            registry.register_collector(Box::new(ClusterMetrics::new(Arc::clone(node))));
        }

        let entities = registry.sub_registry_with_prefix("cinema_entity");
        let shows = shows.clone();
        entities.register_collector(Box::new(EntityMetrics::new(move || shows.stats())));

        let http = registry.sub_registry_with_prefix("cinema_http");
        http.register("requests", "Requests answered", requests.clone());
        let help = "Time from a request's head to its answer";
        http.register_with_unit("request_duration", help, Unit::Seconds, durations.clone());
        let help = "Requests in flight";
        http.register("requests_in_flight", help, in_flight.clone());

        let of_seats = registry.sub_registry_with_prefix("cinema_available_seats");
        of_seats.register_collector(Box::new(SeatsMetrics(seats)));
        if let Some(timers) = timers {
            let of_timers = registry.sub_registry_with_prefix("cinema_unpaid_reservations");
            of_timers.register_collector(Box::new(TimersMetrics(timers)));
        }
        Arc::new(Self {
            registry,
            requests,
            durations,
            in_flight,
        })
    }

    /// Returns the text that Prometheus reads.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        if let Err(error) = text::encode(&mut out, &self.registry) {
            tracing::error!(%error, "metrics cannot be shown");
        }
        out
    }
}

/// The metrics of the read model.
#[derive(Debug)]
struct SeatsMetrics(watch::Receiver<Progress>);

impl Collector for SeatsMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let seats = self.0.borrow().clone();
        let resets = u64::try_from(seats.resets).unwrap_or(0);
        for (name, help, value) in [
            ("events", "Events counted", seats.events),
            ("batches", "Transactions that stored them", seats.batches),
            ("rebuilds", "Times that all were counted again", resets),
            ("failures", "Failures, tried again", seats.failures),
        ] {
            let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(counter)?;
        }
        Ok(())
    }
}

/// The metrics of the timers of unpaid reservations.
#[derive(Debug)]
struct TimersMetrics(watch::Receiver<Status>);

impl Collector for TimersMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let status = self.0.borrow().clone();
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let fires = u64::from(status.phase == Phase::Firing);
        for (name, help, value) in [
            ("owned", "Is 1 in the process that gives back", fires),
            ("pending", "Timers pending there", count(status.pending)),
            (
                "failing",
                "Timers that failed there and are tried again",
                count(status.failing),
            ),
        ] {
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(gauge)?;
        }
        let help = "Timers that have fired in this process";
        let fired = encoder.encode_descriptor("fired", help, None, MetricType::Counter)?;
        ConstCounter::new(status.fired).encode(fired)
    }
}

/// Counts a request and measures the time that it takes.
pub(crate) async fn count(
    State(metrics): State<Arc<Metrics>>,
    request: Request,
    next: Next,
) -> Response {
    let begun = Instant::now();
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("unknown", MatchedPath::as_str).to_owned();
    metrics.in_flight.inc();
    let in_flight = InFlight(&metrics.in_flight);
    let response = next.run(request).await;
    drop(in_flight);
    let status = response.status().as_u16();
    let seconds = begun.elapsed().as_secs_f64();
    let label = RouteLabel {
        route: route.clone(),
    };
    metrics.durations.get_or_create(&label).observe(seconds);
    let labels = AnswerLabels { route, status };
    metrics.requests.get_or_create(&labels).inc();
    response
}

/// Counts a request that is not answered yet, until it is dropped.
struct InFlight<'a>(&'a Gauge);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}
