//! Rows in PostgreSQL, over tokio-postgres. The other files are of all its drivers: `gesta-projection-sqlx` uses them
//! too.

use gesta_core::Filter;
use gesta_projection::{ApplyError, Batch, Projection};
pub(crate) use gesta_projection_postgres::Limits;
use gesta_projection_postgres::{Options, PostgresTarget, Transaction};

pub(crate) use crate::databases::{
    Database, END_LEASES, EVERY, HISTORIES, SET_AHEAD, SET_BACK, TAKES_ZERO,
};
use crate::databases::{INSERT_JOURNAL, JOURNAL};
use crate::kit::fixtures::{amounts, of_category};

/// The target under test.
pub(crate) type Target = PostgresTarget;

/// Makes a target whose tables are in a schema.
pub(crate) fn target(url: &str, schema: &str, limits: Limits) -> Target {
    let options = Options {
        connections_max: 4,
        schema: Some(schema.to_owned()),
        limits,
        ..Options::default()
    };
    PostgresTarget::with(url, options).expect("a plain URL")
}

/// Sends a statement that fails within a transaction, and forgets it, as careless code would.
pub(crate) async fn fail_and_forget(transaction: &mut Transaction) {
    let failed = transaction.batch_execute("SELECT 1 / 0").await;
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

    async fn create(&self, transaction: &mut Transaction) -> Result<(), ApplyError> {
        transaction.batch_execute(JOURNAL).await?;
        Ok(())
    }

    async fn clear(&self, transaction: &mut Transaction) -> Result<(), ApplyError> {
        transaction.batch_execute("DELETE FROM journal_v1").await?;
        Ok(())
    }

    async fn apply(&self, transaction: &mut Transaction, batch: &Batch) -> Result<(), ApplyError> {
        let (positions, numbers) = amounts(batch)?;
        transaction
            .execute(INSERT_JOURNAL, &[&positions, &numbers])
            .await?;
        Ok(())
    }
}
