//! The reference store: the simplest correct [`EventStore`](gesta_core::EventStore), and the model of all tests.
//!
//! Why: what the contract means is decided here, in plain collections under one mutex, where it can be read. Every
//! other store must give the same answers (`gesta-kit` compares them). Invariants: an append is stored under one
//! lock, so it is whole or absent and no reader sees a part of it; the state of streams is derived from the events
//! alone. Not here: durability, bounds on memory, speed for its own sake. Retries are recognised for ever, and virtual
//! streams are always on in a store of one log.
//! This crate shares no code with the databases of the tests (`gesta_kit::database`): a model must not share the
//! mistakes of what it judges.

mod append;
mod read;
mod shared;
mod state;
mod store;
mod subscribe;

pub use shared::Config;
pub use store::MemoryStore;
