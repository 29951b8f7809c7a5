//! Reads the names that are not in memory (`names`).

use std::collections::HashMap;
use std::sync::Arc;

use gesta_core::backend::RowId;
use gesta_core::{Error, LogId};
use gesta_sql::{name_checksum, row_id_from_sql};

use crate::names::Cache;
use crate::pool::{PooledReader, ReadResult};
use crate::sql_numbers::log_number;

impl<T: Clone> Cache<T> {
    /// Returns the names of these rows, in their order. Names that are not in memory are read, all in one statement.
    ///
    /// # Errors
    /// `Corrupt` if a row has no name or its name was changed; the errors of the database.
    pub(crate) async fn resolve(
        &self,
        reader: &mut PooledReader,
        log: LogId,
        rows: impl Iterator<Item = i64> + Clone + Send,
    ) -> ReadResult<Vec<T>> {
        let (mut found, missing) = self.remembered(log, rows.clone());
        let read = if missing.is_empty() {
            HashMap::new()
        } else {
            self.read(reader, log, missing).await?
        };
        for (place, row) in found.iter_mut().zip(rows) {
            if place.is_none() {
                *place = read.get(&row).cloned();
            }
            if place.is_none() {
                let text = format!("{} row {row} of log {log} does not exist", self.kind);
                return Err(Error::corrupt(text).into());
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    async fn read(
        &self,
        reader: &mut PooledReader,
        log: LogId,
        missing: Vec<i64>,
    ) -> ReadResult<HashMap<i64, T>> {
        let statement = reader.statement(self.sql).await?;
        let number = log_number(log)?;
        let rows = reader
            .connection
            .client
            .query(&statement, &[&number, &missing])
            .await?;
        let mut read = HashMap::with_capacity(rows.len());
        for row in &rows {
            let id: i64 = row.try_get(0)?;
            let name: &str = row.try_get(1)?;
            if row.try_get::<_, i64>(2)? != name_checksum(log, self.row_id(id)?, name) {
                let text = format!(
                    "{} row {id} of log {log}: wrong checksum of its name",
                    self.kind
                );
                return Err(Error::corrupt(text).into());
            }
            read.insert(id, (self.make)(Arc::from(name)));
        }
        self.remember(log, reader.connection.generation, &read);
        Ok(read)
    }

    fn row_id(&self, id: i64) -> ReadResult<RowId> {
        Ok(row_id_from_sql(id)?)
    }
}
