//! One backend out of several databases, each of which holds some logs of the store.
//!
//! Why: a store can outgrow one database server. Each log lies whole in one database, and nothing is joined across
//! them, so every one stays a plain server with its own backups and its own fail-over. All that is above a
//! [`Backend`](gesta_core::backend::Backend) sees one backend with all logs.
//! Invariants: a call about a log touches the database of that log and no other, so that a database that is away stops
//! only its own logs; what is about all logs asks all databases at once, and fails if one is away; the databases agree
//! on the map of the logs, which is checked before anything is served.
//! What routes calls and decides about moves knows a database by [`Backend`](gesta_core::backend::Backend) and
//! `KeepsMap` alone, so that random tests put a model in its place. Not here: what one database does.

mod backend;
mod check;
mod contents;
mod info;
mod leases;
pub mod moving;
mod route;
mod writer;

pub use backend::Several;
pub use check::{OpenCopy, arrange};
pub use route::DatabasePart;
