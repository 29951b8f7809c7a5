//! Gesta's backend for PostgreSQL (14 or newer) and databases that speak its protocol and keep its semantics.
//!
//! Why: the database that a team already runs keeps the events. One connection appends, a few read, one carries
//! messages between processes. Invariants: an append is stored only after the row that its author believed to be the
//! last; what is acknowledged was committed with the server's full durability, which every connection sets and
//! verifies.
//!
//! `store` says which module answers which call of the backend. `connect` finds the primary, opens connections to
//! it, and notices that the database has lost something; `append` writes batches, `read` reads pages, heads and names;
//! `cluster` keeps what processes on one store share, `databases` what one database of several, or of a store that
//! moves, needs beside that; `several` puts databases together.
//!
//! Not here: batching and retries (`gesta-append`), the tail hub, anything that another database could share
//! (`gesta-sql`).

mod append;
mod audit;
mod cluster;
mod compression;
mod config;
mod connect;
#[doc(hidden)]
pub mod core;
mod databases;
mod error;
mod log_map;
mod map;
mod message;
mod moment;
mod names;
mod read;
mod received;
mod scavenge;
pub mod schema;
pub mod several;
mod sql_numbers;
mod store;
mod tls;
mod virtual_index;

pub use audit::PostgresAudit;
pub use compression::Compression;
pub use config::{Config, RequiredDurability};
pub use connect::hosts::connections;
pub use connect::notices::Notices;
pub use databases::blockers::Blocker;
pub use databases::departure::{Departure, Ends, LogMark, Moved, NotClosed, Stand};
pub use databases::relocation::{Compared, CopiedPage, CopyState, Relocation};
pub use error::MOVED;
pub use log_map::{
    Arrival, DatabaseId, Held, HeldRow, Home, LogMap, MapCopy, Moving, NamedDatabase, RowMark,
};
pub use store::PostgresBackend;
