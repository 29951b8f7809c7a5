//! What a server tells about its cluster: in `/info`, and as a hint beside answers to appends.
//!
//! Why this is a trait of its own: the API is the same over any store, and a store knows nothing of nodes.
//! Invariant: it is advice. Every node answers every call, so a hint that is out of date costs a call between nodes and
//! nothing else.
//! Not here: who owns which log (the caller's `Cluster`).

use gesta_core::LogId;
use serde::Serialize;

/// The cluster of which a server is a node.
pub trait Cluster: Send + Sync + 'static {
    /// Returns who owns which log, as this node knows it now. It must not block.
    fn placement(&self) -> ClusterPlacement;

    /// Returns the owner of a log, unless that is this node or the log has none. It must not block.
    fn owner_elsewhere(&self, log: LogId) -> Option<LogOwner>;
}

/// A cluster as `/info` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ClusterPlacement {
    /// Number of the node that answers; `None` while it is not registered.
    pub node: Option<u32>,
    /// All nodes that have not left, in the order of their numbers.
    pub nodes: Vec<ClusterNode>,
    /// The owner of each log, in the order of the logs.
    pub logs: Vec<LogOwner>,
}

/// A node of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ClusterNode {
    /// Number of the node.
    pub node: u32,
    /// Address at which the other nodes reach the node.
    pub address: String,
    /// Address at which clients reach the node; `None` as long as it has not told one.
    pub api: Option<String>,
    /// State of the node: `up` or `draining`.
    pub state: &'static str,
    /// Version of the program that the node runs.
    pub build: String,
}

/// The owner of a log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LogOwner {
    /// Number of the log.
    pub log: u16,
    /// Number of the node that owns the log; `None` if the log has no owner.
    pub node: Option<u32>,
    /// Address at which the other nodes reach the owner.
    pub address: Option<String>,
    /// Lease epoch of the log. Of two owners of a log, the one with the greater epoch is the newer.
    pub epoch: u64,
}

/// Returns host and port of an address. The host of an IPv6 address has no brackets.
pub(crate) fn host_and_port(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), port.parse().ok()?))
}
