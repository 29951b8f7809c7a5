//! The reference store: the simplest correct [`EventStore`](gesta_core::EventStore), and the model of all tests.
//!
//! Why: what the contract means is decided here, in plain collections under one mutex, where it can be read. Every
//! other store must give the same answers (`gesta-testkit` compares them). Invariants: an append is stored under one
//! lock, so it is whole or absent and no reader sees a part; the state of streams is derived from the events alone. Not
//! here: durability, bounds on memory, speed for its own sake. Retries are recognised for ever, and virtual streams are
//! always on in a store of one log.

mod append;
mod read;
mod state;
mod store;
mod subscribe;

pub use store::{Config, MemoryStore};
