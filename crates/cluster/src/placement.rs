//! What the rest of a node sees: an immutable snapshot of who owns which log.
//!
//! Invariant: all of one snapshot comes from one state of the core. A snapshot is advice: a node that acts on an
//! outdated one meets a miss or another node's *not here*, never a wrong result.

use std::sync::Arc;

use gesta_core::registry::{ClusterVersion, LeaseEpoch, NodeId, NodeState};
use gesta_core::{Incarnation, LogId};

/// Who owns which log, as far as this node knows. A placement is shared as an `Arc`, so clones are cheap.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// A number that grows with each change of anything here. The number is 0 at the start, when nothing is known.
    pub version: u64,
    /// The life of the store to which this belongs: epochs of different lives cannot be compared. This is `None` before
    /// the first look.
    pub incarnation: Option<Incarnation>,
    /// The version of the cluster; `None` before the first look.
    pub cluster: Option<ClusterVersion>,
    /// The number of this node; `None` while it is not registered. Then it owns nothing, and may still serve
    /// everything.
    pub me: Option<NodeId>,
    /// The places of the logs, in order: `logs[n]` is that of log `n`. The list is empty before the first look.
    pub logs: Vec<LogPlace>,
    /// All nodes that have not left, by id.
    pub nodes: Vec<Member>,
}

/// Where a log is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogPlace {
    /// The node that appends to the log. `None` means nobody, so any node may after a while.
    pub owner: Option<Owner>,
    /// The node to which the owner hands the log over, or is asked to.
    pub next_owner: Option<Owner>,
    /// The epoch of the tenure. Of two pieces of news about a log, the one with the greater epoch counts.
    pub epoch: LeaseEpoch,
    /// Whether this node is the owner, and is not handing the log over.
    pub is_mine: bool,
}

impl LogPlace {
    /// What is said of a log of which nothing is known, such as one whose lease lies in another database.
    pub const UNKNOWN: LogPlace = LogPlace {
        owner: None,
        next_owner: None,
        epoch: LeaseEpoch(0),
        is_mine: false,
    };
}

/// The owner of a log. The id and the address belong together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The number of the node.
    pub node: NodeId,
    /// The address at which the node is reached.
    pub address: Arc<str>,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// The number of the node.
    pub id: NodeId,
    /// The address at which the node is reached.
    pub address: Arc<str>,
    /// What the node does; never [`NodeState::Left`].
    pub state: NodeState,
    /// The version of the node's program.
    pub build: Arc<str>,
    /// The versions of the protocol between nodes that the node speaks: the lowest and the highest.
    pub protocol: (u16, u16),
}

impl Placement {
    /// Returns where a log is; `None` before the first look.
    #[must_use]
    pub fn log(&self, log: LogId) -> Option<&LogPlace> {
        self.logs.get(usize::from(log.0))
    }

    /// Returns whether this node owns the log.
    #[must_use]
    pub fn is_mine(&self, log: LogId) -> bool {
        self.log(log).is_some_and(|place| place.is_mine)
    }

    /// Returns the logs that this node owns, in order.
    pub fn mine(&self) -> impl Iterator<Item = LogId> {
        (0..)
            .zip(&self.logs)
            .filter(|(_, place)| place.is_mine)
            .map(|(log, _)| LogId(log))
    }

    /// Returns whether this node may send and write forms that came with this version: every node that may take part
    /// reads them, and it has been decided that nobody goes back to a build that does not.
    #[must_use]
    pub fn may_use(&self, version: ClusterVersion) -> bool {
        self.cluster.is_some_and(|cluster| version <= cluster)
    }

    /// Returns the node of this id.
    #[must_use]
    pub fn member(&self, id: NodeId) -> Option<&Member> {
        self.nodes.iter().find(|member| member.id == id)
    }
}
