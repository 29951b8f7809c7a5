//! Metrics of the server, for Prometheus.

use std::sync::atomic::Ordering;
use std::time::Duration;

use gesta_core::shares::Load;
use gesta_core::{Append, Error, Result, StoreInfo};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::route::Route;

/// Upper bounds of the duration histograms, in seconds.
const DURATION_BUCKETS: [f64; 15] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    route: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: &'static str,
    route: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StoreLabels {
    backend: String,
    engine: String,
    incarnation: String,
    durability: &'static str,
    durability_settings: String,
    version: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShareLabels {
    resource: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    resource: &'static str,
    bound: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FileLabels {
    file: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LogLabels {
    log: usize,
}

/// What is in flight when the metrics are read.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    pub(crate) connections: usize,
    pub(crate) full_connections: usize,
    pub(crate) requests: usize,
    pub(crate) subscriptions: usize,
    pub(crate) bytes: usize,
    /// What is held of all that callers use together.
    pub(crate) shares: [(&'static str, Load); 9],
    /// Number of consumer groups that run, and the bytes of events that they hold.
    pub(crate) groups: (usize, usize),
    /// Number of consumer groups that were found to be halted.
    pub(crate) groups_halted: usize,
    /// What consumer groups have done.
    pub(crate) group_counts: gesta_groups::Counts,
    /// Number of lines that the audit log has left out.
    pub(crate) audit_lines_left_out: u64,
    /// File of the certificate, and how many seconds are left until it ends.
    pub(crate) certificate: Option<(String, i64)>,
}

/// The metrics, and the registry that shows them together with the metrics of the caller.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<RouteLabels, Histogram>,
    appends: Family<OutcomeLabels, Counter>,
    append_events: Counter,
    append_payload_bytes: Counter,
    subscription_events: Counter,
    store: Family<StoreLabels, Gauge>,
    heads: Family<LogLabels, Gauge>,
    newest_event_ahead: Gauge,
    connections: Gauge,
    full_connections: Gauge,
    requests_in_flight: Gauge,
    subscriptions: Gauge,
    bytes_in_flight: Gauge,
    shares: ShareMetrics,
    groups: GroupMetrics,
    audit_lines_left_out: Counter,
    certificate: Family<FileLabels, Gauge>,
}

impl Metrics {
    pub(crate) fn new(mut registry: Registry) -> Self {
        let unregistered = Self {
            registry: Registry::default(),
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(DURATION_BUCKETS)),
            appends: Family::default(),
            append_events: Counter::default(),
            append_payload_bytes: Counter::default(),
            subscription_events: Counter::default(),
            store: Family::default(),
            heads: Family::default(),
            newest_event_ahead: Gauge::default(),
            connections: Gauge::default(),
            full_connections: Gauge::default(),
            requests_in_flight: Gauge::default(),
            subscriptions: Gauge::default(),
            bytes_in_flight: Gauge::default(),
            shares: ShareMetrics::default(),
            groups: GroupMetrics::default(),
            audit_lines_left_out: Counter::default(),
            certificate: Family::default(),
        };
        let r = registry.sub_registry_with_prefix("gesta");
        unregistered.register_http(r);
        unregistered.shares.register(r);
        unregistered.register_events(r);
        unregistered.register_store(r);
        Self {
            registry,
            ..unregistered
        }
    }

    /// Registers the metrics of connections and requests.
    fn register_http(&self, r: &mut Registry) {
        r.register("http_requests", "Requests answered", self.requests.clone());
        r.register_with_unit(
            "http_request_duration",
            "Time from a request's head to the head of its answer",
            Unit::Seconds,
            self.durations.clone(),
        );
        r.register(
            "http_connections",
            "Open connections",
            self.connections.clone(),
        );
        r.register(
            "http_connections_full",
            "Connections with as many calls in flight as one may have",
            self.full_connections.clone(),
        );
        r.register(
            "http_requests_in_flight",
            "Requests in flight, subscriptions not counted",
            self.requests_in_flight.clone(),
        );
        r.register_with_unit(
            "http_in_flight",
            "Memory held by request bodies and answers to reads",
            Unit::Bytes,
            self.bytes_in_flight.clone(),
        );
        r.register(
            "audit_lines_left_out",
            "Lines of the audit log that were left out, because their callers had too many",
            self.audit_lines_left_out.clone(),
        );
        r.register_with_unit(
            "tls_certificate_remaining",
            "Time until the certificate of the server ends; less than 0 after that",
            Unit::Seconds,
            self.certificate.clone(),
        );
    }

    /// Registers the metrics of appends and subscriptions.
    fn register_events(&self, r: &mut Registry) {
        r.register("appends", "Appends by outcome", self.appends.clone());
        r.register(
            "append_events",
            "Events appended",
            self.append_events.clone(),
        );
        r.register_with_unit(
            "append_payload",
            "Data and metadata of events appended",
            Unit::Bytes,
            self.append_payload_bytes.clone(),
        );
        r.register(
            "subscriptions",
            "Open subscriptions",
            self.subscriptions.clone(),
        );
        r.register(
            "subscription_events",
            "Events sent to subscribers",
            self.subscription_events.clone(),
        );
    }

    /// Registers the metrics of the store, its consumer groups and its logs.
    fn register_store(&self, r: &mut Registry) {
        r.register(
            "store_info",
            "What the store is; always 1",
            self.store.clone(),
        );
        self.groups.register(r);
        r.register(
            "log_head_position",
            "Last position of a log",
            self.heads.clone(),
        );
        r.register_with_unit(
            "newest_event_ahead",
            "How far the newest event is ahead of the clock; 0 if it is not",
            Unit::Seconds,
            self.newest_event_ahead.clone(),
        );
    }

    pub(crate) fn request(&self, method: &'static str, route: Route, status: u16, time: Duration) {
        let route = route.template();
        self.durations
            .get_or_create(&RouteLabels { method, route })
            .observe(time.as_secs_f64());
        self.requests
            .get_or_create(&RequestLabels {
                method,
                route,
                status,
            })
            .inc();
    }

    /// Counts an append by its outcome. `size` is that of the request.
    pub(crate) fn append<T>(&self, size: AppendSize, outcome: &Result<T>) {
        let outcome = match outcome {
            Ok(_) => {
                self.append_events.inc_by(size.events);
                self.append_payload_bytes.inc_by(size.payload_bytes);
                "stored"
            }
            Err(error) => problem_name(error),
        };
        self.appends.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    pub(crate) fn subscription_events(&self, count: u64) {
        self.subscription_events.inc_by(count);
    }

    /// Returns the text that Prometheus reads.
    pub(crate) fn show(&self, in_flight: InFlight, store: Option<&StoreInfo>) -> String {
        let gauges = [
            (&self.connections, in_flight.connections),
            (&self.full_connections, in_flight.full_connections),
            (&self.requests_in_flight, in_flight.requests),
            (&self.subscriptions, in_flight.subscriptions),
            (&self.bytes_in_flight, in_flight.bytes),
        ];
        for (gauge, now) in gauges {
            gauge.set(i64::try_from(now).unwrap_or(i64::MAX));
        }
        self.groups.set(&in_flight);
        let left_out = in_flight.audit_lines_left_out;
        let counter = self.audit_lines_left_out.inner();
        counter.store(left_out, Ordering::Relaxed);
        self.shares.set(&in_flight);
        if let Some((file, left)) = in_flight.certificate {
            self.certificate
                .get_or_create(&FileLabels { file })
                .set(left);
        }
        self.store.clear();
        self.heads.clear();
        if let Some(info) = store {
            let labels = StoreLabels {
                backend: info.backend.clone(),
                engine: info.engine.clone(),
                incarnation: info.incarnation.to_string(),
                durability: info.durability.name(),
                durability_settings: info.durability.detail().to_owned(),
                version: env!("CARGO_PKG_VERSION"),
            };
            self.store.get_or_create(&labels).set(1);
            let ahead = info.newest_event_ahead.as_secs();
            self.newest_event_ahead
                .set(i64::try_from(ahead).unwrap_or(i64::MAX));
            for (log, head) in info.heads.iter().enumerate() {
                let head = i64::try_from(head.0).unwrap_or(i64::MAX);
                self.heads.get_or_create(&LogLabels { log }).set(head);
            }
        }
        let mut text = String::with_capacity(16 * 1024);
        if let Err(error) = prometheus_client::encoding::text::encode(&mut text, &self.registry) {
            tracing::error!(%error, "metrics cannot be shown");
        }
        text
    }
}

/// Metrics of what callers use together. They are set when the metrics are read.
#[derive(Debug, Default)]
struct ShareMetrics {
    max: Family<ShareLabels, Gauge>,
    taken: Family<ShareLabels, Gauge>,
    largest: Family<ShareLabels, Gauge>,
    holders: Family<ShareLabels, Gauge>,
    waiting: Family<ShareLabels, Gauge>,
    refused: Family<RefusedLabels, Counter>,
    gave_way: Family<ShareLabels, Counter>,
}

impl ShareMetrics {
    fn register(&self, r: &mut Registry) {
        for (name, help, family) in [
            (
                "share_max",
                "Most that all callers may hold together",
                &self.max,
            ),
            ("share_taken", "What all callers hold together", &self.taken),
            (
                "share_largest",
                "What the caller holds who holds most",
                &self.largest,
            ),
            (
                "share_holders",
                "Callers who hold something: users, or addresses",
                &self.holders,
            ),
            (
                "share_waiting",
                "Requests that wait for their caller's turn",
                &self.waiting,
            ),
        ] {
            r.register(name, help, family.clone());
        }
        r.register(
            "share_refused",
            "Refused, or made to wait, because all callers (bound sum) or one caller (bound caller) held too much",
            self.refused.clone(),
        );
        r.register(
            "share_gave_way",
            "Given up by the caller who held most, for one who held less",
            self.gave_way.clone(),
        );
    }

    fn set(&self, now: &InFlight) {
        let as_gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        for (resource, load) in now.shares {
            let set = |family: &Family<ShareLabels, Gauge>, value| {
                let gauge = family.get_or_create(&ShareLabels { resource });
                gauge.set(as_gauge(value));
            };
            set(&self.max, load.max);
            set(&self.taken, load.taken);
            set(&self.largest, load.largest);
            set(&self.holders, load.holders);
            set(&self.waiting, load.waiting);
            for (bound, count) in [
                ("sum", load.refused_in_sum),
                ("caller", load.refused_of_one),
            ] {
                let refused = self
                    .refused
                    .get_or_create(&RefusedLabels { resource, bound });
                refused.inner().store(count, Ordering::Relaxed);
            }
            let gave_way = self.gave_way.get_or_create(&ShareLabels { resource });
            gave_way.inner().store(load.gave_way, Ordering::Relaxed);
        }
    }
}

/// Metrics of consumer groups. They are set when the metrics are read.
#[derive(Debug, Default)]
struct GroupMetrics {
    running: Gauge,
    halted: Gauge,
    held_bytes: Gauge,
    deliveries: Counter,
    redeliveries: Counter,
    silent: Counter,
    outcomes: Family<OutcomeLabels, Counter>,
}

impl GroupMetrics {
    fn register(&self, r: &mut Registry) {
        r.register(
            "groups_running",
            "Consumer groups that run here",
            self.running.clone(),
        );
        r.register(
            "groups_halted",
            "Consumer groups that this server found to be halted, because their place was lost, and that were not reset",
            self.halted.clone(),
        );
        r.register_with_unit(
            "groups_held",
            "Memory held by events of consumer groups",
            Unit::Bytes,
            self.held_bytes.clone(),
        );
        r.register(
            "group_deliveries",
            "Deliveries to consumers of groups",
            self.deliveries.clone(),
        );
        r.register(
            "group_redeliveries",
            "Deliveries of events that were delivered before without success",
            self.redeliveries.clone(),
        );
        r.register(
            "group_silent_consumers",
            "Consumers of groups that had to leave, because they answered for nothing that they held",
            self.silent.clone(),
        );
        r.register(
            "group_outcomes",
            "What became of deliveries to consumers of groups, and of their events",
            self.outcomes.clone(),
        );
    }

    fn set(&self, now: &InFlight) {
        let (running, held) = now.groups;
        self.running.set(i64::try_from(running).unwrap_or(i64::MAX));
        let halted = i64::try_from(now.groups_halted).unwrap_or(i64::MAX);
        self.halted.set(halted);
        self.held_bytes.set(i64::try_from(held).unwrap_or(i64::MAX));
        let counts = now.group_counts;
        let set = |counter: &Counter, count| counter.inner().store(count, Ordering::Relaxed);
        set(&self.deliveries, counts.delivered);
        set(&self.redeliveries, counts.redelivered);
        set(&self.silent, counts.silent);
        for (outcome, count) in [
            ("acknowledged", counts.acknowledged),
            ("skipped", counts.skipped),
            ("refused", counts.refused),
            ("timed_out", counts.timed_out),
            ("left_behind", counts.left_behind),
            ("parked", counts.parked),
        ] {
            set(
                &self.outcomes.get_or_create(&OutcomeLabels { outcome }),
                count,
            );
        }
    }
}

/// The size of an append.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AppendSize {
    events: u64,
    payload_bytes: u64,
}

impl From<&Append> for AppendSize {
    fn from(append: &Append) -> Self {
        Self {
            events: u64::try_from(append.events()).unwrap_or(u64::MAX),
            payload_bytes: u64::try_from(append.payload_bytes()).unwrap_or(u64::MAX),
        }
    }
}

fn problem_name(error: &Error) -> &'static str {
    crate::shared::problem::kind_of(error).name
}
