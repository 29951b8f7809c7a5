//! What people are told: one sentence for each thing that happens by itself, with its reason.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::LogId;
use gesta_core::registry::{LeaseEpoch, MoveReason, NodeId};

/// Something that the core has found or done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// This node is registered.
    Joined(NodeId),
    /// The others have declared this node dead: it was silent for too long.
    DeclaredDead,
    /// Another process has joined with this node's address.
    Displaced,
    /// This node has declared another one dead.
    NodeDead {
        /// The node that was declared dead.
        node: NodeId,
        /// Its address.
        address: Arc<str>,
        /// Whether it beats, but most others cannot call it.
        is_cut_off: bool,
    },
    /// A log has moved, and this node has moved it.
    Moved {
        /// The log.
        log: LogId,
        /// The node that had the log.
        from: Option<NodeId>,
        /// The node that has the log now.
        to: Option<NodeId>,
        /// The epoch that has begun.
        epoch: LeaseEpoch,
        /// The reason for the move.
        reason: MoveReason,
        /// How long this node had seen the log without an owner that lives, if it had.
        without_owner: Option<Duration>,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined(node) => write!(f, "this node has joined the cluster as node {node}"),
            Self::DeclaredDead => f.write_str(
                "the other nodes have declared this node dead, because its beats did not arrive: it joins again",
            ),
            Self::Displaced => f.write_str(
                "another process has joined the cluster with this node's address: waiting whether it is alive",
            ),
            Self::NodeDead {
                node,
                address,
                is_cut_off,
            } => {
                let why = match is_cut_off {
                    true => "most other nodes cannot reach it and it keeps its logs",
                    false => "its beat has not changed",
                };
                write!(f, "node {node} at {address} is declared dead, because {why}")
            }
            Self::Moved {
                log,
                from,
                to,
                epoch,
                reason,
                ..
            } => write!(
                f,
                "log {log} moves from {} to {} with epoch {epoch}, because {}",
                Name(*from),
                Name(*to),
                because(*reason)
            ),
        }
    }
}

struct Name(Option<NodeId>);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(node) => write!(f, "node {node}"),
            None => f.write_str("nobody"),
        }
    }
}

fn because(reason: MoveReason) -> &'static str {
    match reason {
        MoveReason::Claim => "it had no valid owner",
        MoveReason::Drain => "its owner is draining",
        MoveReason::Balance => "its owner had more than its share",
        MoveReason::Request => "somebody asked for it",
        MoveReason::Pin => "it is pinned there",
        MoveReason::Unreachable => "most other nodes cannot reach its owner",
        MoveReason::Stuck => "its pipeline made no progress while others did",
    }
}
