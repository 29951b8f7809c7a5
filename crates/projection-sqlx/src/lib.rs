//! Projections whose rows live in PostgreSQL, in transactions of sqlx 0.9.
//!
//! Why: an application that has its queries in sqlx writes its projections in it too, with the pool and the TLS that it
//! has set up. Authors get a [`PgConnection`] in which a transaction is open: sqlx knows of it, so `begin` on it makes
//! a
//! savepoint.
//! Invariants: those of `gesta-projection-postgres`, of which all statements are.
//! Not here: SQL.
//!
//! ```no_run
//! use gesta_projection::{ApplyError, Batch, Projection};
//! use gesta_projection_sqlx::{SqlxTarget, sqlx, sqlx::PgConnection};
//!
//! struct Visits;
//!
//! impl Projection<SqlxTarget> for Visits {
//!     const NAME: &'static str = "visits";
//!     const VERSION: u32 = 1;
//!     const TABLES: &'static [&'static str] = &["visits"];
//!
//!     fn filter(&self) -> gesta_core::Filter {
//!         gesta_core::Filter::ALL
//!     }
//!
//!     async fn create(&self, transaction: &mut PgConnection) -> Result<(), ApplyError> {
//!         // It may be called again: before the first event, and after a reset.
//!         let table = "CREATE TABLE IF NOT EXISTS visits_v1 (stream text PRIMARY KEY, visits bigint NOT NULL)";
//!         sqlx::query(table).execute(transaction).await?;
//!         Ok(())
//!     }
//!
//!     async fn clear(&self, transaction: &mut PgConnection) -> Result<(), ApplyError> {
//!         sqlx::query("DELETE FROM visits_v1").execute(transaction).await?;
//!         Ok(())
//!     }
//!
//!     async fn apply(&self, transaction: &mut PgConnection, batch: &Batch) -> Result<(), ApplyError> {
//!         // One statement for the batch: fold first, for a key may stand only once in an upsert.
//!         let mut visits = std::collections::BTreeMap::<String, i64>::new();
//!         for event in batch.events() {
//!             *visits.entry(event.stream.as_str().to_owned()).or_default() += 1;
//!         }
//!         let (streams, visits): (Vec<String>, Vec<i64>) = visits.into_iter().unzip();
//!         sqlx::query(
//!             "INSERT INTO visits_v1 SELECT * FROM unnest($1::text[], $2::bigint[]) \
//!              ON CONFLICT (stream) DO UPDATE SET visits = visits_v1.visits + excluded.visits",
//!         )
//!         .bind(streams)
//!         .bind(visits)
//!         .execute(transaction)
//!         .await?;
//!         Ok(())
//!     }
//! }
//! ```

mod driver;

pub use driver::SqlxPostgres;
pub use gesta_projection_postgres::{Limits, Synchronous};
pub use sqlx;

/// A PostgreSQL database in which projections live, over a pool of sqlx.
pub type SqlxTarget = gesta_projection_postgres::Postgres<SqlxPostgres>;

/// Makes a target over a pool. Its tables are where the pool's connections look for tables.
///
/// A projection takes a connection of the pool while it writes a batch. On the database of the event store give it a
/// pool
/// of its own with at most two connections, so that appends keep their commits.
#[must_use]
pub fn target(pool: sqlx::PgPool) -> SqlxTarget {
    target_with(pool, Limits::default(), Synchronous::AsSet)
}

/// Makes a target over a pool, with how long transactions may last and what a commit survives.
#[must_use]
pub fn target_with(pool: sqlx::PgPool, limits: Limits, synchronous: Synchronous) -> SqlxTarget {
    SqlxTarget::over(SqlxPostgres::of(pool), limits, synchronous)
}
