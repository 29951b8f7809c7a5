//! The types in which a group tells about itself.

use crate::machine::{ConsumerCounts, Counts};
use crate::mark::Halt;
use crate::names::GroupId;
use crate::settings::Settings;
use gesta_core::{Filter, StreamId};
use gesta_pattern::PatternText;

/// A group as it is now.
#[derive(Clone, PartialEq, Debug)]
pub struct GroupInfo {
    /// Name of the group.
    pub group: GroupId,
    /// Settings of the group.
    pub settings: Settings,
    /// Filter for the events that a group on all events takes.
    pub filter: Filter,
    /// Pattern that an event which passes the filter must match too, if there is one.
    pub pattern: Option<PatternText>,
    /// Revision or position below which everything is finished, as stored; `None` if the group has no checkpoint yet.
    pub checkpoint: Option<u64>,
    /// Number of parked events.
    pub parked: u64,
    /// Stream of the parked events. It is another one than [`GroupId::parked_stream`] if somebody has closed that one
    /// with a tombstone.
    pub parked_stream: StreamId,
    /// Why the group cannot go on, if it cannot.
    pub halted: Option<Halt>,
    /// What the group does; `None` if it does not run in this process, because no consumer has joined it lately.
    pub running: Option<Running>,
}

/// What a group does while it runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Running {
    /// Revision or position below which everything was read.
    pub read_to: u64,
    /// Revision or position below which everything is finished, also what no checkpoint holds yet.
    pub finished_to: u64,
    /// True if the group has read everything that is stored.
    pub is_live: bool,
    /// True while the group delivers parked events again.
    pub is_replaying: bool,
    /// Number of events that wait to be delivered for the first time.
    pub waiting: usize,
    /// Number of events that wait to be delivered again.
    pub waiting_again: usize,
    /// Number of events that consumers hold.
    pub in_flight: usize,
    /// Bytes of all events that the group holds.
    pub held_bytes: usize,
    /// What the group has done since it began to run.
    pub counts: Counts,
    /// Seconds since the group began to run.
    pub seconds: u64,
    /// Consumers of the group, in the order in which they joined.
    pub consumers: Vec<ConsumerInfo>,
}

/// What a group tells about one of its consumers.
#[derive(Clone, PartialEq, Debug)]
pub struct ConsumerInfo {
    /// What the consumer tells about itself.
    pub identity: Identity,
    /// What the consumer has done.
    pub counts: ConsumerCounts,
}

/// What a consumer tells about itself, for people who look at the group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// Name that the consumer gives itself, for example that of its connection.
    pub name: String,
    /// Address from which the consumer connects.
    pub address: String,
    /// Name of the user as whom the consumer has joined.
    pub user: String,
}
