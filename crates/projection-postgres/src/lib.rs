//! Projections whose rows live in PostgreSQL (14 or newer).
//!
//! Why: the database that a team already runs keeps the read models too, and the checkpoint commits with the rows.
//! All that a target does is written once, in statements over a small interface ([`Driver`]); this crate implements
//! that
//! with tokio-postgres, `gesta-projection-sqlx` with sqlx. Values travel in PostgreSQL's binary format, column by
//! column:
//! a batch is one statement for the rows that it writes, and one for those that it deletes.
//!
//! Invariants: the first statement of a batch is the fence. A transaction that waits for a lock, or for its own
//! process,
//! ends before the lease of its process does ([`Limits`]); then its row is free, and its commit impossible. A commit
//! whose answer is lost is in doubt, and is not sent anew.
//! Not here: who runs which projection, folding, retries (`gesta-projection`).
//!
//! * `target`, `session`: the two traits of `gesta-projection`; `versions`: registration, switching, retiring;
//! * `tables`: the tables of views; `rows`: the tables of Gesta; `statements`: their SQL;
//! * `driver`: what a driver has to offer; `open`: a transaction with its deadline; `binary`: values on the wire;
//!   `failure`: what an error means;
//! * `connections`: the driver tokio-postgres, with its few connections.

mod binary;
#[cfg(feature = "tokio-postgres")]
mod connections;
mod driver;
mod failure;
mod open;
mod rows;
mod session;
mod statements;
mod tables;
mod target;
mod versions;

pub use binary::Param;
#[cfg(feature = "tokio-postgres")]
pub use connections::{Options, PostgresTarget, TokioPostgres, Transaction};
pub use driver::{Driver, Limits, RowBytes, Synchronous};
pub use failure::Failure;
pub use session::PostgresSession;
pub use target::Postgres;
#[cfg(feature = "tokio-postgres")]
pub use tokio_postgres;
