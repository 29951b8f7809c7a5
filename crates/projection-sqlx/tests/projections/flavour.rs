//! What is of the driver sqlx alone.

use std::str::FromStr;
use std::time::Duration;

use gesta_core::Filter;
use gesta_projection::{ApplyError, Batch, Projection};
pub(crate) use gesta_projection_sqlx::Limits;
use gesta_projection_sqlx::sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use gesta_projection_sqlx::sqlx::{self, Acquire as _, PgConnection};
use gesta_projection_sqlx::{SqlxTarget, Synchronous, target_with};

use crate::databases::{INSERT_JOURNAL, JOURNAL};
pub(crate) use crate::databases::{
    Database, END_LEASES, EVERY, HISTORIES, SET_AHEAD, SET_BACK, TAKES_ZERO,
};
use crate::kit::fixtures::{amounts, of_category};

/// The target under test.
pub(crate) type Target = SqlxTarget;

/// Makes a target whose tables are in a schema.
pub(crate) fn target(url: &str, schema: &str, limits: Limits) -> Target {
    let options = PgConnectOptions::from_str(url).expect("a plain URL");
    let options = options.options([("search_path", schema)]);
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .acquire_timeout(Duration::from_secs(5))
        .connect_lazy_with(options);
    target_with(pool, limits, Synchronous::AsSet)
}

/// Sends a statement that fails within a transaction, and forgets it, as careless code would.
pub(crate) async fn fail_and_forget(transaction: &mut PgConnection) {
    let failed = sqlx::query("SELECT 1 / 0").execute(transaction).await;
    failed.expect_err("a division by zero");
}

/// Writes the position and the number of each event of category `account` into a table without a key: an event that was
/// applied twice, or out of order, is seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Journal;

impl Projection<Target> for Journal {
    const NAME: &'static str = "journal";
    const VERSION: u32 = 1;
    const TABLES: &'static [&'static str] = &["journal"];

    fn filter(&self) -> Filter {
        of_category("account")
    }

    async fn create(&self, transaction: &mut PgConnection) -> Result<(), ApplyError> {
        sqlx::query(JOURNAL).execute(transaction).await?;
        Ok(())
    }

    async fn clear(&self, transaction: &mut PgConnection) -> Result<(), ApplyError> {
        let delete = sqlx::query("DELETE FROM journal_v1");
        delete.execute(transaction).await?;
        Ok(())
    }

    async fn apply(&self, transaction: &mut PgConnection, batch: &Batch) -> Result<(), ApplyError> {
        let (positions, numbers) = amounts(batch)?;
        // A transaction of the author is a savepoint within Gesta's.
        let mut part = transaction.begin().await?;
        let insert = sqlx::query(INSERT_JOURNAL).bind(positions).bind(numbers);
        insert.execute(&mut *part).await?;
        part.commit().await?;
        Ok(())
    }
}
