//! Gesta's backend for PostgreSQL (14 or newer) and databases that speak its protocol and keep its semantics.
//!
//! Why: the database that a team already runs keeps the events. One connection appends, a few read, one carries
//! messages between processes. Invariants: an append is stored only after the row that its author believed to be the
//! last; what is acknowledged was committed with the server's full durability, which every connection sets and
//! verifies. Not here: batching and retries (`gesta-append`), the tail hub, anything that another database could share
//! (`gesta-sql`).

mod append;
mod appender;
mod audit;
mod blockers;
mod compression;
mod config;
mod connection;
mod copies;
mod departure;
mod encode;
mod error;
mod filter;
mod flights;
mod gather;
mod history;
mod hosts;
mod identity;
mod lineage;
mod lookup;
mod map;
mod name_reader;
mod names;
mod notices;
mod password;
mod payload;
mod pool;
mod prepared;
mod reach;
mod read;
mod read_streams;
mod read_tails;
mod registry;
mod relocation;
mod scavenge;
pub mod schema;
mod sharing;
mod signals;
mod sql_numbers;
mod store;
mod tails;
mod tls;
mod values;
mod virtual_index;
mod witness;

pub use audit::PostgresAudit;
pub use blockers::Blocker;
pub use compression::Compression;
pub use config::{Config, RequiredDurability};
pub use departure::{Departure, Ends, LogMark, Moved, NotClosed, Stand};
pub use error::MOVED;
pub use hosts::connections;
pub use notices::Notices;
pub use relocation::{Compared, CopiedPage, CopyState, Relocation};
pub use store::PostgresBackend;
