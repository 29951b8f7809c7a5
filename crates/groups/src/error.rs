//! Errors of groups: answers that a caller can act on.

use gesta_core::{ErrorKind, LogId};

use crate::machine::{ConsumerId, Refused};
use crate::mark::Halt;
use crate::names::GroupId;

/// Result with the error of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The process that runs a group, if it is another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Elsewhere {
    /// Log in which the checkpoints of the group lie.
    pub log: LogId,
    /// Number of the node that owns that log.
    pub node: u32,
    /// Address at which that node is reached.
    pub address: String,
}

/// An error of a group.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is such a group already.
    #[error("group {0} exists already")]
    Exists(GroupId),
    /// There is no such group: it never existed, or it was deleted.
    #[error("group {0} not found")]
    NotFound(GroupId),
    /// The group was changed or restarted, or it stopped because no consumer was left. Join again.
    #[error("group {0} was changed or restarted: join again")]
    Dropped(GroupId),
    /// Another process has begun to run the group. Join again, at that process.
    #[error(
        "group {0} was taken over by another process, which has written a checkpoint since: join again"
    )]
    TakenOver(GroupId),
    /// The store was restored, or has lost events. Join again: the group goes on from what is left.
    #[error(
        "the store has another history now: group {0} goes on from what is left of it: join again"
    )]
    HistoryChanged(GroupId),
    /// What is before the place of the group now is not what the group has finished: the store was restored, or has
    /// lost events. The group delivers nothing until it is told where to go on
    /// ([`Groups::reset`](crate::Groups::reset)).
    #[error(
        "group {group} is halted: its place {} is not of the present history of its source ({}); say where it goes on \
         (gesta group reset)",
        halt.place, halt.why
    )]
    Halted {
        /// The group that is halted.
        group: GroupId,
        /// Reason, and the place that survives.
        halt: Halt,
    },
    /// The consumer has answered for nothing of what it held, twice in a row, within the time that the group gives.
    /// Join again.
    #[error(
        "consumer {consumer} of group {group} has answered for nothing that it held, twice in a row: it has left, so join again"
    )]
    Silent {
        /// The group that the consumer was in.
        group: GroupId,
        /// Number of the consumer.
        consumer: ConsumerId,
    },
    /// Another node runs the group. The caller must go there.
    #[error(
        "group {group} is run by node {}, the owner of log {2}, which other nodes reach at {1}: ask that node, or give the \
         URLs of all nodes",
        elsewhere.node, elsewhere.address, elsewhere.log
    )]
    NotHere {
        /// The group that was asked for.
        group: GroupId,
        /// Node that runs the group.
        elsewhere: Elsewhere,
    },
    /// The consumer cannot join.
    #[error("group {group}: {refused}")]
    Refused {
        /// The group that refuses the consumer.
        group: GroupId,
        /// Reason of the refusal.
        refused: Refused,
    },
    /// There is no such consumer in the group: it left, or its connection ended.
    #[error("group {group} has no consumer {consumer}: it has left, so join again")]
    NoConsumer {
        /// The group that was asked.
        group: GroupId,
        /// Number of the consumer that is unknown there.
        consumer: ConsumerId,
    },
    /// Parked events are being delivered again already.
    #[error("parked events of group {0} are being replayed already")]
    ReplayRunning(GroupId),
    /// More is asked for than this process can do now: too many groups run, or a group is changed all the time. Retry
    /// later.
    #[error("overloaded: {0}")]
    Overloaded(String),
    /// The groups of this process are being stopped.
    #[error("the server is stopping")]
    Stopping,
    /// The store refuses, or does not answer.
    #[error(transparent)]
    Store(#[from] gesta_core::Error),
}

impl Error {
    /// Tells a store that began another history in the middle of what was asked from a store that refuses: it is asked
    /// anew.
    #[must_use]
    pub(crate) fn or_history_changed(self, group: &GroupId) -> Self {
        match &self {
            Self::Store(error) if matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)) => {
                Self::HistoryChanged(group.clone())
            }
            _ => self,
        }
    }
}

/// For programs that have one error for all that they ask of a store. The error of the group is the cause.
impl From<Error> for gesta_core::Error {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        let kind = match &error {
            Error::Store(of_store) => return of_store.clone(),
            Error::Exists(_) | Error::NotFound(_) => {
                let rule = text.strip_prefix("group ").unwrap_or(&text).to_owned();
                return Self::invalid("group", rule).caused_by(error);
            }
            Error::Refused { .. } | Error::ReplayRunning(_) => ErrorKind::Overloaded(text),
            Error::Overloaded(detail) => ErrorKind::Overloaded(detail.clone()),
            Error::Halted { .. } => return Self::needs_administrator(text).caused_by(error),
            Error::Dropped(_)
            | Error::TakenOver(_)
            | Error::HistoryChanged(_)
            | Error::Silent { .. }
            | Error::NotHere { .. }
            | Error::NoConsumer { .. }
            | Error::Stopping => ErrorKind::Unavailable(text),
        };
        Self::new(kind).caused_by(error)
    }
}
