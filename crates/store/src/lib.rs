//! An [`EventStore`](gesta_core::EventStore) is made here out of any [`Backend`](gesta_core::backend::Backend).
//!
//! Why: what the contract asks beyond storing and finding rows (group commit, visibility, checkpoints, subscriptions)
//! is the same for every database, so it is written once.
//! Invariants: every stream belongs to one log for ever, and each log has one pipeline. What a read answers rests on
//! what the primary says at that moment, so a delete by another process holds at once.
//! Not here: SQL (the backends), batching (`gesta-append`), waking subscribers (`gesta-tail`), choosing a backend by
//! URL (`gesta`).

mod all;
mod begin;
mod links;
mod owner;
mod scavenge;
mod store;
mod streams;
mod virtual_streams;

pub use scavenge::{ScavengeProgress, ScavengeReport};
pub use store::{Config, Store};
pub use virtual_streams::{VirtualStreamsStatus, indexer::Config as VirtualStreamsConfig};
