//! A connection with the names that it has cached.

use rusqlite::Connection;

use crate::error::Outcome;
use crate::names::Names;

/// A connection with the names that it has cached.
#[derive(Debug)]
pub(crate) struct ReadConnection {
    pub(crate) conn: Connection,
    pub(crate) names: Names,
}

impl ReadConnection {
    pub(crate) fn new(conn: Connection) -> Self {
        Self {
            conn,
            names: Names::default(),
        }
    }

    /// Runs `job` in one snapshot: in the open transaction, or else in one of its own.
    pub(crate) fn in_snapshot<T>(
        &mut self,
        job: impl FnOnce(&Connection, &mut Names) -> Outcome<T>,
    ) -> Outcome<T> {
        if !self.conn.is_autocommit() {
            return job(&self.conn, &mut self.names);
        }
        self.conn
            .prepare_cached(include_str!("../sql/begin_read.sql"))?
            .execute([])?;
        let result = job(&self.conn, &mut self.names);
        self.conn
            .prepare_cached(include_str!("../sql/commit.sql"))?
            .execute([])?;
        result
    }
}
