//! SQLite backend: a store in one file, owned by one process.
//!
//! Why: a store without set-up, as safe as the larger ones. One thread writes; its transactions are the batches of the
//! append pipeline, and each is durable when it is answered (`synchronous=FULL`). Invariants: one process at a time (a
//! lock of the file, and one beside it); checksums are checked on every event that is read; no read transaction
//! outlives the page that it serves; an I/O error while writing closes the store for appends. Not here: the append
//! pipeline, subscriptions, `EventStore` (`gesta-store` makes one of this backend).
//!
//! Each SQL statement stands in a file of its own in `sql/`. The tables are described in `docs/internals/schema.md`.

mod append;
mod audit;
mod backup;
mod checkpoint;
mod config;
mod connection;
mod end_note;
mod error;
mod files;
mod filter;
mod lock;
mod lookup;
mod names;
mod page;
mod payload;
mod place;
mod read;
mod read_connection;
mod reader;
mod restore;
mod row;
mod scavenge;
mod schema;
mod store;
mod tries;
mod virtual_index;
mod write_thread;

pub use audit::SqliteAudit;
pub use config::{Location, Missing, SqliteConfig, Synchronous};
pub use restore::Restoring;
pub use schema::{Migrated, schema_text};
pub use store::SqliteBackend;
