//! What a group tells about itself.

use crate::machine::{ConsumerCounts, Counts};
use crate::names::GroupId;
use crate::settings::Settings;
use gesta_core::Filter;
use gesta_pattern::PatternText;

/// A group, as it is now.
#[derive(Clone, PartialEq, Debug)]
pub struct GroupInfo {
    /// The group.
    pub group: GroupId,
    /// Its settings.
    pub settings: Settings,
    /// Which events it takes of all events.
    pub filter: Filter,
    /// Which of the events that the filter lets pass it takes.
    pub pattern: Option<PatternText>,
    /// Everything below this revision or position is finished, as stored; `None` if the group has no checkpoint yet.
    pub checkpoint: Option<u64>,
    /// Parked events.
    pub parked: u64,
    /// What it does; `None` while nobody has joined it lately.
    pub running: Option<Running>,
}

/// What a group does that runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Running {
    /// Everything below this revision or position was read.
    pub read_to: u64,
    /// It has read everything that is stored.
    pub is_live: bool,
    /// It delivers parked events again.
    pub is_replaying: bool,
    /// Events that wait to be delivered for the first time.
    pub waiting: usize,
    /// Events that wait to be delivered again.
    pub waiting_again: usize,
    /// Events that consumers hold.
    pub in_flight: usize,
    /// Bytes of all events that it holds.
    pub held_bytes: usize,
    /// What it has done since it began.
    pub counts: Counts,
    /// How long ago it began, in seconds.
    pub seconds: u64,
    /// Its consumers, in the order in which they came.
    pub consumers: Vec<ConsumerInfo>,
}

/// A consumer.
#[derive(Clone, PartialEq, Debug)]
pub struct ConsumerInfo {
    /// Who it is.
    pub identity: Identity,
    /// What it has done.
    pub counts: ConsumerCounts,
}

/// Who a consumer is, for people who look at the group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// The name that it gives itself, for example that of its connection.
    pub name: String,
    /// Where it connects from.
    pub address: String,
    /// The user that it is.
    pub user: String,
}
