//! When nothing can be committed any more at or before a number.
//!
//! A number of a sequence is drawn before its row is committed, so a row can appear before rows that were read already.
//! A fence notes which transactions can have drawn a number up to the greatest one, and is open once all of them have
//! ended. No time-out takes part in this where the number is drawn by the insert: whoever inserts has locked the table
//! before, and everybody can see locks (`pg_locks`). A journal may draw numbers in a statement before; then every
//! transaction of the database is waited for, within bounds of time, and what comes later is looked for again.

use std::collections::HashSet;
use std::time::Duration;

use gesta_core::Result;
use tokio::time::Instant;

use super::postgres::{Pg, failed};

/// Which transactions can have drawn a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// Rows become visible in the order of their numbers.
    InOrder,
    /// Numbers are drawn by the statement that inserts, which has locked the table before.
    ByInsert,
    /// Numbers may be drawn earlier.
    Earlier,
}

/// Transactions that ran at a moment.
#[derive(Clone, Debug)]
pub(super) struct Fence {
    /// The number up to which nothing can appear once they have ended.
    pub(super) upto: i64,
    holders: HashSet<(String, Option<i32>)>,
    pub(super) since: Instant,
}

/// Sessions that hold the lock of writers on a table or a partition of it. Bind value: the table.
const WRITERS: &str = "\
SELECT l.virtualtransaction, l.pid FROM pg_locks l
WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND (l.relation = $1 OR l.relation IN (SELECT p.relid FROM pg_partition_tree($1::oid::regclass) p))
  AND l.pid IS DISTINCT FROM pg_backend_pid()";

/// All transactions of this database, also those that are prepared. The bind value is not used.
const ALL: &str = "\
SELECT l.virtualtransaction, l.pid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND a.pid <> pg_backend_pid() AND $1::oid IS NOT NULL
  AND a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
UNION ALL
SELECT 'prepared ' || x.gid, NULL FROM pg_prepared_xacts x WHERE x.database = current_database()";

impl Fence {
    /// Notes who can have drawn a number up to `upto`, which was read before.
    pub(super) async fn note(pg: &Pg, rule: Rule, table: u32, upto: i64) -> Result<Self> {
        Ok(Self {
            upto,
            holders: holders(pg, rule, table).await?,
            since: Instant::now(),
        })
    }

    /// Forgets those that have ended. Returns true if all have.
    pub(super) async fn is_open(&mut self, pg: &Pg, rule: Rule, table: u32) -> Result<bool> {
        if !self.holders.is_empty() {
            let now = holders(pg, rule, table).await?;
            let before = self.holders.len();
            self.holders.retain(|holder| now.contains(holder));
            if self.holders.len() < before {
                // One that was prepared meanwhile has another name now, and belongs to no process.
                self.holders
                    .extend(now.into_iter().filter(|(_, process)| process.is_none()));
            }
        }
        Ok(self.holders.is_empty())
    }

    /// Returns how long ago it was noted.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Says who is waited for.
    pub(super) fn told(&self) -> String {
        let mut who: Vec<String> = self
            .holders
            .iter()
            .map(|(transaction, pid)| match pid {
                Some(pid) => format!("process {pid}"),
                None => format!("transaction {transaction:?}"),
            })
            .collect();
        who.sort();
        match who.is_empty() {
            true => "numbers that are missing in the source".to_owned(),
            false => format!(
                "transactions of the source that may still write before its end: {}",
                who.join(", ")
            ),
        }
    }
}

async fn holders(pg: &Pg, rule: Rule, table: u32) -> Result<HashSet<(String, Option<i32>)>> {
    let sql = match rule {
        Rule::InOrder => return Ok(HashSet::new()),
        Rule::ByInsert => WRITERS,
        Rule::Earlier => ALL,
    };
    let rows = pg
        .client
        .query(sql, &[&table])
        .await
        .map_err(|error| failed(&error))?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}
