//! Consumer groups: consumers that compete for the events of a stream, or of all streams.
//!
//! Why: a subscription gives every event to one reader, which has to keep its own checkpoint. A group shares the events
//! out among any number of consumers, remembers which of them are finished, and delivers the others again.
//! Invariants: every event is delivered until a consumer has acknowledged or skipped it, or until it is parked; a
//! checkpoint never passes an event of which neither is true; what a group holds in memory is bounded in events and in
//! bytes.
//!
//! * `machine`: what a group decides, without I/O and without a clock;
//! * `run`: the task that connects the machine with the store; `work`: the calls of the store that the task makes;
//!   `begin`: how a process begins to run a group;
//! * `storage`: the streams that keep a group; `record`: the documents in them; `mark`, `history`: whether its place is
//!   of the present history of the store;
//! * `groups`: the groups of a process; `changes`: how they are created, changed and deleted; `reset`: how they are
//!   moved; `copy`: what becomes of them in a copy of the store; `config`: their bounds; `commands`: how their tasks
//!   are reached; `consumer`: the consumer that a caller holds; `queue`: the deliveries to a consumer;
//! * `consumer_groups`: what programs use, wherever the groups run;
//! * `settings`, `names`, `info`, `error`: the types of requests and answers; `document`: how the API shows a group.

mod begin;
mod changes;
mod commands;
mod config;
mod consumer;
mod consumer_groups;
mod copy;
#[doc(hidden)]
pub mod core;
pub mod document;
mod error;
mod groups;
mod history;
mod info;
mod machine;
mod mark;
mod names;
mod queue;
mod record;
mod reset;
mod run;
mod settings;
mod storage;
mod work;

pub use changes::Create;
pub use commands::JoinGroup;
pub use config::{Alone, Config, GroupPlacement};
pub use consumer::Consumer;
pub use consumer_groups::{ConsumerGroups, GroupConsumer};
pub use copy::{FoundGroup, GroupToMake, GroupsOfCopy};
pub use error::{Elsewhere, Error, Result};
pub use groups::Groups;
pub use info::{ConsumerInfo, GroupInfo, Identity, Running};
pub use machine::{
    Action, ConsumerCounts, ConsumerId, Counts, REASON_CHARS_MAX, Refused, ReplayRunning, Token,
    Which,
};
pub use mark::Halt;
pub use names::{
    ALL, GROUP_NAME_BYTES_MAX, GroupId, Source, keeps_state_of_a_group_on_all,
    keeps_state_of_groups,
};
pub use queue::Delivery;
pub use record::parked_event;
pub use reset::ResetTo;
pub use settings::{
    BUFFER_EVENTS_MAX, CONSUMER_EVENTS_MAX, CONSUMERS_MAX, NUMBER_MAX, Settings, Start, Strategy,
};
