//! Consumer groups: consumers that compete for the events of a stream, or of all streams.
//!
//! A subscription gives every event to one reader, which has to keep its own checkpoint. A group shares the events out
//! among any number of consumers, remembers which of them are finished, and delivers the others again.
//! [`Store::join`](crate::Store::join) makes a consumer; [`Store::groups`](crate::Store::groups) creates, shows and
//! changes groups.

pub use gesta_groups::document::{
    Consumer as ConsumerInfo, Group, Halted, Latencies, Name, RunningGroup,
};
pub use gesta_groups::{
    Action, CONSUMER_EVENTS_MAX, CONSUMERS_MAX, ConsumerGroups, ConsumerId, Counts, Create,
    Delivery, Elsewhere, Error, GROUP_NAME_BYTES_MAX, GroupConsumer, GroupId, Halt, Refused,
    ResetTo, Result, Settings, Source, Start, Strategy, Token, Which,
};
