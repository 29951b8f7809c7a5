//! What goes wrong with a group: answers that a caller can act on.

use gesta_core::LogId;

use crate::machine::{ConsumerId, Refused};
use crate::names::GroupId;

/// Result with the error of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The process that runs a group, if it is another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Elsewhere {
    /// The log of the group's checkpoints.
    pub log: LogId,
    /// The number of the node that owns it.
    pub node: u32,
    /// Where that node is reached.
    pub address: String,
}

/// What goes wrong with a group.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is such a group already.
    #[error("group {0} exists already")]
    Exists(GroupId),
    /// There is no such group: it never existed, or it was deleted.
    #[error("group {0} not found")]
    NotFound(GroupId),
    /// The group was changed or restarted. Join again.
    #[error("group {0} was changed or restarted: join again")]
    Dropped(GroupId),
    /// Another process has begun to run the group. Join again; there.
    #[error(
        "group {0} was taken over by another process, which has written a checkpoint since: join again"
    )]
    TakenOver(GroupId),
    /// Another node runs the group. Go there.
    #[error(
        "group {group} is run by node {} at {}, the owner of log {}",
        elsewhere.node, elsewhere.address, elsewhere.log
    )]
    NotHere {
        /// The group.
        group: GroupId,
        /// Who runs it.
        elsewhere: Elsewhere,
    },
    /// The consumer cannot join.
    #[error("group {group}: {refused}")]
    Refused {
        /// The group.
        group: GroupId,
        /// Why not.
        refused: Refused,
    },
    /// There is no such consumer in the group: it left, or its connection ended.
    #[error("group {group} has no consumer {consumer}: it has left, so join again")]
    NoConsumer {
        /// The group.
        group: GroupId,
        /// The consumer.
        consumer: ConsumerId,
    },
    /// Parked events are being delivered again already.
    #[error("parked events of group {0} are being replayed already")]
    ReplayRunning(GroupId),
    /// More is asked for than can be held. Retry later.
    #[error("overloaded: {0}")]
    Overloaded(String),
    /// The groups of this process are stopped.
    #[error("the server is stopping")]
    Stopping,
    /// The store refuses, or does not answer.
    #[error(transparent)]
    Store(#[from] gesta_core::Error),
}
