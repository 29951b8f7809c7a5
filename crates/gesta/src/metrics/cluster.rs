//! Shows what a node of a cluster sees and has done.

use std::fmt;
use std::sync::Arc;

use gesta_core::registry::{MoveReason, NodeState};
use gesta_node::Node;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
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
        let help = "1 if calls can be sent to this other node";
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
    let calls = stats.forwarded.into_iter();
    let calls = calls.map(|(result, calls)| (result, ConstCounter::new(calls)));
    let help = "Calls for the owners of logs, by how they ended";
    many(to, "gesta_cluster_forwarded_calls", help, "result", calls)?;
    let help = "Changes made here because the owner of their log could not be reached";
    let direct = ConstCounter::new(stats.direct);
    one(to, "gesta_cluster_direct_appends", help, &direct)
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
