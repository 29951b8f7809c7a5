//! What a server tells about the cluster that it is a node of: in `/info`, and as a hint beside answers to appends.
//!
//! Why a trait of its own: the API is the same over any store, and a store knows nothing of nodes.
//! Invariant: it is advice. Every node answers every call, so a hint that is outdated costs a hop and nothing else.
//! Not here: who owns which log (the caller's `Cluster`).

use gesta_core::LogId;
use serde::Serialize;

/// The cluster that a server is a node of.
pub trait Cluster: Send + Sync + 'static {
    /// Who owns which log, as this node knows it now. Must not block.
    fn placement(&self) -> ClusterPlacement;

    /// The owner of a log, unless it is this node or nobody. Must not block.
    fn owner_elsewhere(&self, log: LogId) -> Option<LogOwner>;
}

/// A cluster, as `/info` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ClusterPlacement {
    /// The number of the node that answers; `None` while it is not registered.
    pub node: Option<u32>,
    /// All nodes that have not left, by number.
    pub nodes: Vec<ClusterNode>,
    /// The owner of each log, in the order of the logs.
    pub logs: Vec<LogOwner>,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ClusterNode {
    /// Its number.
    pub node: u32,
    /// Where the other nodes reach it.
    pub address: String,
    /// Where clients reach it; `None` as long as it has not told.
    pub api: Option<String>,
    /// `up` or `draining`.
    pub state: &'static str,
    /// Version of its program.
    pub build: String,
}

/// The owner of a log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LogOwner {
    /// The log.
    pub log: u16,
    /// The number of its owner; `None` if nobody owns it.
    pub node: Option<u32>,
    /// Where the other nodes reach the owner.
    pub address: Option<String>,
    /// The tenure: of two owners of a log the one with the greater epoch is the newer.
    pub epoch: u64,
}

/// The parts of an address, without the brackets around one of IPv6.
pub(crate) fn host_and_port(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), port.parse().ok()?))
}
