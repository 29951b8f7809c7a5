//! Shows what a node of a cluster sees and has done.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::durations::{BOUNDS_MICROS, DurationCounts};
use gesta_core::registry::{MoveReason, NodeState};
use gesta_node::{Node, NodeStats, Timings};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::gauge;

/// The metrics of a node, `gesta_cluster_…`.
pub struct ClusterMetrics(Arc<Node>);

impl ClusterMetrics {
    /// Makes the metrics of this node, to be registered as a collector.
    #[must_use]
    pub fn new(node: Arc<Node>) -> Self {
        Self(node)
    }
}

impl fmt::Debug for ClusterMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterMetrics")
    }
}

impl Collector for ClusterMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let to = &mut encoder;
        let (node, placement) = (&self.0, self.0.placement());
        let owned = number(placement.mine().count());
        one(
            to,
            "gesta_cluster_logs_owned",
            "Logs that this node appends to",
            &owned,
        )?;
        let free = placement.logs.iter().filter(|log| log.owner.is_none());
        let help = "Logs that no node owns, as this node sees it";
        one(
            to,
            "gesta_cluster_logs_without_owner",
            help,
            &number(free.count()),
        )?;
        let states = [NodeState::Up, NodeState::Draining].map(|state| {
            let nodes = placement.nodes.iter().filter(|node| node.state == state);
            (state.name(), number(nodes.count()))
        });
        let help = "Nodes that have not left, this one included";
        many(to, "gesta_cluster_nodes", help, "state", states)?;
        let links = node.links();
        let links = links
            .iter()
            .map(|link| (&*link.address, gauge(u64::from(link.is_up))));
        let help = "Is 1 if calls can be sent to this other node";
        many(to, "gesta_cluster_link_up", help, "node", links)?;
        encode_work(node, to)
    }
}

/// Encodes what the node has done.
fn encode_work(node: &Node, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let (status, stats) = (node.status().unwrap_or_default(), node.stats());
    let moves = MoveReason::ALL.into_iter().zip(status.moves);
    let moves = moves.map(|(reason, moves)| (reason.name(), ConstCounter::new(moves)));
    let help = "Moves of logs that this node has made";
    many(to, "gesta_cluster_lease_moves", help, "reason", moves)?;
    if let Some(age) = status.look_age {
        let help = "Time since the last answer of the database to a beat of this node";
        let age = ConstGauge::new(age.as_secs_f64());
        one(to, "gesta_cluster_beat_age_seconds", help, &age)?;
    }
    let calls = stats.forwarded.iter();
    let calls = calls.map(|&(result, calls)| (result, ConstCounter::new(calls)));
    let help = "Calls for the owners of logs, by how they ended";
    many(to, "gesta_cluster_forwarded_calls", help, "result", calls)?;
    let help = "Changes made here because the owner of their log could not be reached";
    let direct = ConstCounter::new(stats.direct);
    one(to, "gesta_cluster_direct_appends", help, &direct)?;
    encode_ways(&stats, to)?;
    encode_durations(&status.took, &stats, to)
}

/// By which ways changes went, and what was in theirs.
fn encode_ways(stats: &NodeStats, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let places = [("here", stats.made_here), ("owner", stats.made_elsewhere)];
    let places = places.map(|(place, changes)| (place, ConstCounter::new(changes)));
    let help = "Changes that came to this node, by where they went";
    many(to, "gesta_cluster_changes", help, "to", places)?;
    let hindered = stats.hindered;
    let refused = [
        ("moved", hindered.moved),
        ("no_owner", hindered.without_owner),
    ];
    let refused = refused.map(|(reason, answers)| (reason, ConstCounter::new(answers)));
    let help = "Answers of nodes that a log is not theirs, to calls for it";
    many(to, "gesta_cluster_not_here", help, "reason", refused)?;
    let help = "Of these, answers that told nothing newer than was known";
    let outdated = ConstCounter::new(hindered.outdated_hints);
    one(to, "gesta_cluster_hints_outdated", help, &outdated)?;
    let help =
        "Time in which calls waited because the owner had enough unanswered ones of their log";
    let waited = ConstCounter::new(hindered.credit_wait.as_secs_f64());
    one(to, "gesta_cluster_lane_credit_wait_seconds", help, &waited)
}

fn encode_durations(
    took: &Timings,
    stats: &NodeStats,
    to: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let help = "Time that the database took to answer a beat";
    one(to, "gesta_cluster_beat_seconds", help, &Counted(took.beats))?;
    let help = "Time from when a log was seen without an owner until this node had claimed it";
    let name = "gesta_cluster_takeover_seconds";
    one(to, name, help, &Counted(took.takeovers))?;
    let phases = [
        ("prepare", took.preparing),
        ("finish", took.finishing),
        ("move", took.moving),
    ];
    let phases = phases.map(|(phase, counts)| (phase, Counted(counts)));
    let help = "Time of the phases of a hand-over by this node";
    many(to, "gesta_cluster_handover_seconds", help, "phase", phases)?;
    let help = "Time until a forwarded call was answered or came back";
    let name = "gesta_cluster_forward_seconds";
    one(to, name, help, &Counted(stats.forwarding))
}

/// Durations, as a histogram in seconds.
struct Counted(DurationCounts);

impl EncodeMetric for Counted {
    fn encode(&self, mut to: MetricEncoder<'_>) -> fmt::Result {
        let bounds = BOUNDS_MICROS.map(|bound| Duration::from_micros(bound).as_secs_f64());
        let bounds = bounds.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(self.0.buckets).collect();
        let sum = Duration::from_micros(self.0.micros).as_secs_f64();
        to.encode_histogram::<NoLabelSet>(sum, self.0.count(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

fn one(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    let encoder = to.encode_descriptor(name, help, None, metric.metric_type())?;
    metric.encode(encoder)
}

/// Encodes a metric with one label: a value for each value of the label.
fn many<'a, M: EncodeMetric>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    metrics: impl IntoIterator<Item = (&'a str, M)>,
) -> fmt::Result {
    let mut metrics = metrics.into_iter().peekable();
    let Some((_, first)) = metrics.peek() else {
        return Ok(());
    };
    let mut family = to.encode_descriptor(name, help, None, first.metric_type())?;
    for (value, metric) in metrics {
        let labels = [(label, value)];
        metric.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn number(count: usize) -> ConstGauge<i64> {
    gauge(u64::try_from(count).unwrap_or(u64::MAX))
}
