//! A batch as the binds of its statement.
//!
//! Invariants: positions follow the row that the batch is chained to, without a gap; every number fits
//! the column that it goes to.
//! Not here: sending (`append`), the binary form of arrays (`values`).

use gesta_core::backend::{Batch, RowId, WriterEpoch};
use gesta_core::{Error, LogId, Position, Result};
use gesta_sql::{checksum, name_checksum, to_sql};
use tokio_postgres::types::ToSql;

use crate::values::{Column, Field};

/// Which statement a batch needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StatementKind {
    /// No events: is the row the last?
    Confirm,
    /// One event alone.
    One,
    /// Events alone.
    Plain,
    /// Events, with compressed data among them.
    Packed,
    /// Events of any kind with new streams, new types or tags.
    Names,
}

/// What of a batch is not written straight from its rows.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) kind: StatementKind,
    log: i16,
    after_position: i64,
    after_writer: i64,
    epoch: i64,
    checksums: Vec<i64>,
    streams: Names,
    types: Names,
    tag_texts: Vec<String>,
    tag_positions: Vec<i64>,
}

#[derive(Default, Debug)]
struct Names {
    ids: Vec<i64>,
    names: Vec<String>,
    checksums: Vec<i64>,
}

impl Names {
    fn new<'a>(log: LogId, names: impl Iterator<Item = (RowId, &'a str)>) -> Result<Self> {
        let mut columns = Self::default();
        for (row, name) in names {
            columns.ids.push(to_sql(row.0, "row id")?);
            columns.names.push(name.to_owned());
            columns.checksums.push(name_checksum(log, row, name));
        }
        Ok(columns)
    }
}

impl Encoded {
    /// # Errors
    /// `InvalidArgument` if a number is out of range or the batch contradicts itself.
    pub(crate) fn new(batch: &Batch, log: LogId, epoch: WriterEpoch) -> Result<Self> {
        check(batch, log)?;
        let mut tag_texts = Vec::new();
        let mut tag_positions = Vec::new();
        for row in &batch.rows {
            for tag in row.tags.as_slice() {
                tag_texts.push(tag.as_str().to_owned());
                tag_positions.push(to_sql(row.position.0, "position")?);
            }
        }
        let names =
            !(batch.new_streams.is_empty() && batch.new_types.is_empty() && tag_texts.is_empty());
        let streams = batch
            .new_streams
            .iter()
            .map(|(row, name)| (*row, name.as_str()));
        let types = batch
            .new_types
            .iter()
            .map(|(row, name)| (*row, name.as_str()));
        Ok(Self {
            kind: match (batch.rows.is_empty(), names) {
                (true, _) => StatementKind::Confirm,
                (false, true) => StatementKind::Names,
                _ if batch.rows.iter().any(|row| row.packed.is_some()) => StatementKind::Packed,
                _ if batch.rows.len() == 1 => StatementKind::One,
                _ => StatementKind::Plain,
            },
            log: i16::try_from(log.0).map_err(|_| Error::invalid("log", "is out of range"))?,
            after_position: to_sql(batch.after.position.0, "position")?,
            after_writer: batch.after.writer.0,
            epoch: epoch.0,
            checksums: batch
                .rows
                .iter()
                .map(|row| checksum(log, row, epoch))
                .collect(),
            streams: Names::new(log, streams)?,
            types: Names::new(log, types)?,
            tag_texts,
            tag_positions,
        })
    }

    /// The columns of the events, in the order of the statement's binds.
    pub(crate) fn columns<'a>(&'a self, batch: &'a Batch) -> [Column<'a>; 11] {
        [
            Field::Position,
            Field::Stream,
            Field::Revision,
            Field::EventType,
            Field::Created,
            Field::EventId,
            Field::ContentType,
            Field::Data,
            Field::Metadata,
            Field::Packed,
            Field::Tags,
        ]
        .map(|field| Column {
            rows: &batch.rows,
            field,
        })
    }

    /// The binds of the statement.
    pub(crate) fn params<'a>(
        &'a self,
        columns: &'a [Column<'a>; 11],
    ) -> Vec<&'a (dyn ToSql + Sync)> {
        let mut params: Vec<&(dyn ToSql + Sync)> =
            vec![&self.log, &self.after_position, &self.after_writer];
        if self.kind == StatementKind::Confirm {
            return params;
        }
        let [
            position,
            stream,
            revision,
            event_type,
            created,
            id,
            content_type,
            data,
            metadata,
            packed,
            tags,
        ] = columns;
        params.extend([
            &self.epoch as &(dyn ToSql + Sync),
            position,
            stream,
            revision,
        ]);
        let checksums: &(dyn ToSql + Sync) = match (self.kind, self.checksums.as_slice()) {
            (StatementKind::One, [checksum]) => checksum,
            _ => &self.checksums,
        };
        params.extend([event_type as &(dyn ToSql + Sync), created, checksums, id]);
        params.extend([content_type as &(dyn ToSql + Sync), data, metadata]);
        if matches!(self.kind, StatementKind::Packed | StatementKind::Names) {
            params.push(packed);
        }
        if self.kind == StatementKind::Names {
            params.push(tags);
            for names in [&self.streams, &self.types] {
                params.extend([
                    &names.ids as &(dyn ToSql + Sync),
                    &names.names,
                    &names.checksums,
                ]);
            }
            params.extend([&self.tag_texts as &(dyn ToSql + Sync), &self.tag_positions]);
        }
        params
    }
}

/// The statement trusts the positions to count on from its predecessor; a batch that counts otherwise must not reach
/// it.
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
        if row.position != expected || row.position > Position::MAX {
            return Err(Error::invalid(
                "position",
                format!("must be {expected}, found {}", row.position),
            ));
        }
    }
    Ok(())
}
