//! Entities: event-sourced state in memory that turns commands into events.
//!
//! Why: one owner per entity in a process decides without locks and optimistic retries. The owner decides before
//! earlier events are committed, so that even one busy entity is not limited by the time that a commit takes.
//! Invariants: an answer is given only after everything on which it depends is durable, and answers keep their order; a
//! reply without events is given only after the state on which it rests was confirmed.
//! Not here: SQL, the append pipeline (`gesta-append`), projections.

mod ask;
mod codec;
mod config;
mod decider;
mod entities;
mod env;
mod error;
mod forms;
mod forward;
mod guard;
mod keys;
mod kind;
mod load;
mod message;
pub mod scenario;
mod shard;
mod shared;
mod slot;
mod snapshot;
mod snapshot_writer;
mod stats;

pub use ask::{Done, PendingReply, Request};
#[cfg(feature = "cbor")]
pub use codec::{Cbor, CborEvents, CborEventsBuilder};
pub use codec::{
    CodecError, Encoded, EventCodec, Json, JsonEvents, JsonEventsBuilder, SerdeEvents,
    SerdeEventsBuilder, Stored,
};
#[cfg(feature = "proto")]
pub use codec::{ProtoEvents, ProtoEventsBuilder};
pub use config::Config;
pub use decider::{Context, Decider};
pub use entities::{Builder, Entities};
pub use error::Error;
pub use gesta_core::OwnerStore;
pub use gesta_core::peers::Peers;
pub use keys::KEY_BYTES_MAX;
pub use kind::EntityType;
pub use scenario::Scenario;
pub use snapshot::Snapshots;
pub use stats::{Stat, Stats};
