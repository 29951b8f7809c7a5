//! What the rest of a node sees: an immutable snapshot of who owns which log.
//!
//! Invariant: all of one snapshot comes from one state of the core. It is advice: a node that acts on an outdated one
//! meets a miss or another node's *not here*, never a wrong result.

use std::sync::Arc;

use gesta_core::registry::{ClusterVersion, LeaseEpoch, NodeId, NodeState};
use gesta_core::{Incarnation, LogId};

/// Who owns which log, as far as this node knows. Shared as an `Arc`: cloning is cheap.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// Grows with each change of anything here; at the start 0, when nothing is known.
    pub version: u64,
    /// The life of the store that this belongs to: epochs of different lives do not compare. `None` before the first
    /// look.
    pub incarnation: Option<Incarnation>,
    /// The version of the cluster; `None` before the first look.
    pub cluster: Option<ClusterVersion>,
    /// This node; `None` while it is not registered. Then it owns nothing, and still may serve everything.
    pub me: Option<NodeId>,
    /// Each log in order: `logs[n]` is log `n`. Empty before the first look.
    pub logs: Vec<LogPlace>,
    /// All nodes that have not left, by id.
    pub nodes: Vec<Member>,
}

/// Where a log is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogPlace {
    /// The node that appends to it; `None`: nobody, so any node may after a while.
    pub owner: Option<Owner>,
    /// To whom the owner hands it over, or is asked to.
    pub next_owner: Option<Owner>,
    /// The tenure that this is about. Of two pieces of news about a log, the one with the greater epoch counts.
    pub epoch: LeaseEpoch,
    /// True if this node is the owner, and is not handing it over.
    pub is_mine: bool,
}

impl LogPlace {
    /// What is said of a log that nothing is known about, such as one whose lease lies in another database.
    pub const UNKNOWN: LogPlace = LogPlace {
        owner: None,
        next_owner: None,
        epoch: LeaseEpoch(0),
        is_mine: false,
    };
}

/// The owner of a log. Id and address belong together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Its number.
    pub node: NodeId,
    /// Where it is reached.
    pub address: Arc<str>,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its number.
    pub id: NodeId,
    /// Where it is reached.
    pub address: Arc<str>,
    /// What it does; never [`NodeState::Left`].
    pub state: NodeState,
    /// Version of its program.
    pub build: Arc<str>,
    /// The versions of the protocol between nodes that it speaks: lowest and highest.
    pub protocol: (u16, u16),
}

impl Placement {
    /// Where a log is; `None` before the first look.
    #[must_use]
    pub fn log(&self, log: LogId) -> Option<&LogPlace> {
        self.logs.get(usize::from(log.0))
    }

    /// True if this node owns the log.
    #[must_use]
    pub fn is_mine(&self, log: LogId) -> bool {
        self.log(log).is_some_and(|place| place.is_mine)
    }

    /// The logs that this node owns, in order.
    pub fn mine(&self) -> impl Iterator<Item = LogId> {
        (0..)
            .zip(&self.logs)
            .filter(|(_, place)| place.is_mine)
            .map(|(log, _)| LogId(log))
    }

    /// True if this node may send and write forms that came with this version: every node that may take part reads
    /// them, and it has been decided that nobody goes back to a build that does not.
    #[must_use]
    pub fn may_use(&self, version: ClusterVersion) -> bool {
        self.cluster.is_some_and(|cluster| version <= cluster)
    }

    /// The node of this id.
    #[must_use]
    pub fn member(&self, id: NodeId) -> Option<&Member> {
        self.nodes.iter().find(|member| member.id == id)
    }
}
