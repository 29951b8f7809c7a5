//! Projections in an SQLite file, with rusqlite.
//!
//! Why: an application that embeds a store keeps its read models in a file beside it, and queries them with SQL.
//! Invariants: those of `gesta_projection::Target`. Each batch is one `BEGIN IMMEDIATE` transaction whose first
//! statement is the fence. The file is in WAL mode, so readers are never blocked.
//! Not here: the file of the store itself, which belongs to the server.
//!
//! * `target`: the target; `session`: a session; `connections`: the connections to the file;
//! * `statements`: the statements, which lie in `sql/`; `rows`: the rows of projections; `tables`: the tables of views;
//!   `values`: values of columns; `error`: its errors.

mod connections;
mod error;
mod rows;
mod session;
mod statements;
mod tables;
mod target;
mod values;

pub use connections::Synchronous;
pub use rusqlite;
pub use session::SqliteSession;
pub use target::{Options, SqliteTarget};
