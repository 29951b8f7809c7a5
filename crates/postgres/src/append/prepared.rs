//! The part of a statement that a batch alone decides. It is made when the batch is submitted.

use std::sync::Arc;

use gesta_core::backend::{Batch, RowId, WriterEpoch};
use gesta_core::{Error, LogId, Result};
use gesta_sql::{checksum, name_checksum, to_sql};

use crate::append::gather::RowPlace;

/// A batch, ready for a statement.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) batch: Arc<Batch>,
    pub(crate) log: i16,
    pub(crate) epoch: i64,
    pub(crate) checksums: Vec<i64>,
    pub(crate) after_position: i64,
    pub(crate) after_writer: i64,
    pub(crate) streams: NameColumns,
    pub(crate) types: NameColumns,
    pub(crate) has_tags: bool,
}

/// The columns of new names that are not written straight from the batch.
#[derive(Default, Debug)]
pub(crate) struct NameColumns {
    pub(crate) ids: Vec<i64>,
    pub(crate) checksums: Vec<i64>,
}

impl NameColumns {
    fn new<'a>(log: LogId, names: impl Iterator<Item = (RowId, &'a str)>) -> Result<Self> {
        let mut columns = Self::default();
        for (row, name) in names {
            columns.ids.push(to_sql(row.0, "row id")?);
            columns.checksums.push(name_checksum(log, row, name));
        }
        Ok(columns)
    }
}

impl Prepared {
    /// Prepares a batch.
    ///
    /// # Errors
    /// `InvalidArgument` if a number is out of range or the batch contradicts itself.
    pub(crate) fn new(batch: Arc<Batch>, log: LogId, epoch: WriterEpoch) -> Result<Self> {
        check(&batch, log)?;
        let streams = batch.new_streams.iter();
        let streams = streams.map(|(row, name)| (*row, name.as_str()));
        let types = batch.new_types.iter();
        let types = types.map(|(row, name)| (*row, name.as_str()));
        let rows = batch.rows.iter();
        Ok(Self {
            log: i16::try_from(log.0).map_err(|_| Error::invalid("log", "is out of range"))?,
            epoch: epoch.0,
            checksums: rows.map(|row| checksum(log, row, epoch)).collect(),
            after_position: to_sql(batch.after.position.0, "position")?,
            after_writer: batch.after.writer.0,
            streams: NameColumns::new(log, streams)?,
            types: NameColumns::new(log, types)?,
            has_tags: batch.rows.iter().any(|row| !row.tags.as_slice().is_empty()),
            batch,
        })
    }

    /// Returns how many events the batch has.
    pub(crate) fn events(&self) -> usize {
        self.batch.rows.len()
    }

    /// Returns the last row of the batch; if it has no events, the row that it follows.
    pub(crate) fn end(&self) -> RowPlace {
        match self.batch.rows.last() {
            Some(row) => (row.position, WriterEpoch(self.epoch)),
            None => (self.batch.after.position, self.batch.after.writer),
        }
    }

    /// Returns the size of data and metadata, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let rows = self.batch.rows.iter();
        rows.map(|row| row.data.len() + row.metadata.len()).sum()
    }

    pub(crate) fn has_names(&self) -> bool {
        self.has_tags || !self.streams.ids.is_empty() || !self.types.ids.is_empty()
    }

    pub(crate) fn has_packed(&self) -> bool {
        self.batch.rows.iter().any(|row| row.packed.is_some())
    }
}

/// Checks that the positions count on from the row that the batch follows. The statement relies on this, so another
/// batch must not reach it.
fn check(batch: &Batch, log: LogId) -> Result<()> {
    if batch.log != log {
        return Err(Error::invalid(
            "log",
            format!("must be {log}, found {}", batch.log),
        ));
    }
    let mut expected = batch.after.position;
    for row in &batch.rows {
        expected = expected.next();
        if row.position != expected || row.position > gesta_core::Position::MAX {
            return Err(Error::invalid(
                "position",
                format!("must be {expected}, found {}", row.position),
            ));
        }
    }
    Ok(())
}
