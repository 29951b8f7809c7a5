//! Consumer groups: consumers that compete for the events of a stream, or of all streams.
//!
//! Why: a subscription gives every event to one reader, which has to keep its own checkpoint. A group shares the events
//! out among any number of consumers, remembers which of them are finished, and delivers the others again.
//! Invariants: every event is delivered until a consumer has acknowledged or skipped it, or until it is parked; a
//! checkpoint never passes an event of which neither is true; what a group holds in memory is bounded in events and in
//! bytes.
//!
//! * `machine`: what a group decides, without I/O and without a clock; `lane`, `progress`, `consumers` are its parts;
//! * `settings`, `names`: what a group is asked to do, and what it is called.

mod machine;
mod names;
mod settings;

pub use machine::{
    Action, ConsumerCounts, ConsumerId, Counts, FailedBy, Limits, Machine, ParkOrder,
    REASON_CHARS_MAX, Refused, ReplayRunning, Sent, Token, Which,
};
pub use names::{ALL, GROUP_NAME_BYTES_MAX, GroupId, Source, keeps_state_of_groups};
pub use settings::{
    BUFFER_EVENTS_MAX, CONSUMER_EVENTS_MAX, CONSUMERS_MAX, NUMBER_MAX, Settings, Start, Strategy,
};
