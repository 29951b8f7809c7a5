//! Reads the names that are not in memory (`names`).
//!
//! Invariant: a name is remembered only if its checksum is right.

use std::collections::HashMap;
use std::sync::Arc;

use gesta_core::backend::RowId;
use gesta_core::{Error, LogId, StreamId};
use gesta_sql::{name_checksum, row_id_from_sql};

use crate::connect::pool::{PooledReader, ReadResult};
use crate::names::{Cache, Names};
use crate::sql_numbers::log_number;

const READ_STREAM_NAMES_OF_LOGS: &str = include_str!("../../sql/read_stream_names_of_logs.sql");

impl Names {
    /// Reads the names of streams of several logs in one statement, so that [`Cache::resolve`] finds them in memory.
    /// What is not there, or is damaged, is left to whoever needs that name.
    ///
    /// # Errors
    /// The errors of the database.
    pub(crate) async fn prefetch_streams(
        &self,
        reader: &mut PooledReader,
        rows: &[(LogId, i64)],
    ) -> ReadResult<()> {
        let missing = self.streams.missing(rows);
        let is_of_several = missing.first().map(|row| row.0) != missing.last().map(|row| row.0);
        if !is_of_several {
            return Ok(());
        }
        let logs = missing.iter().map(|(log, _)| log_number(*log));
        let logs: Vec<i16> = logs.collect::<Result<_, _>>()?;
        let ids: Vec<i64> = missing.iter().map(|(_, id)| *id).collect();
        let statement = reader.statement(READ_STREAM_NAMES_OF_LOGS).await?;
        let client = &reader.connection.client;
        let rows = client.query(&statement, &[&logs, &ids]).await?;
        let mut read: HashMap<LogId, HashMap<i64, StreamId>> = HashMap::new();
        for row in &rows {
            let place = usize::try_from(row.try_get::<_, i64>(0)? - 1).unwrap_or(usize::MAX);
            let name: &str = row.try_get(1)?;
            let Some((log, id)) = missing.get(place) else {
                continue;
            };
            let is_right = row_id_from_sql(*id).is_ok_and(|id| {
                row.try_get(2)
                    .is_ok_and(|sum: i64| sum == name_checksum(*log, id, name))
            });
            if is_right {
                let names = read.entry(*log).or_default();
                names.insert(*id, StreamId::from_stored(Arc::from(name)));
            }
        }
        for (log, names) in &read {
            self.streams
                .remember(*log, reader.connection.generation, names);
        }
        Ok(())
    }
}

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
