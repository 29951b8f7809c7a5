//! Batches as the binds of their statement.
//!
//! What a batch alone decides, its checksums among it, is made when it is submitted ([`Prepared`]); the statement that
//! carries it, alone or with others, writes its columns straight from the rows ([`Binds`]). Invariants: positions follow
//! the row that the batch is chained to, without a gap; every number fits the column that it goes to; the parts of a
//! statement are in order of log, so that two of them in two sessions cannot wait for each other.
//! Not here: sending (`appender`), the binary form of arrays (`values`).

use std::sync::Arc;

use gesta_core::backend::{Batch, RowId, WriterEpoch};
use gesta_core::{Error, LogId, Result};
use gesta_sql::{checksum, name_checksum, to_sql};
use tokio_postgres::types::ToSql;

use crate::gather::{Part, Place};
use crate::values::{Column, Field};

/// Which statement a batch, or several, need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StatementKind {
    /// No events of one log: is the row the last?
    Confirm,
    /// One event alone.
    One,
    /// Events of one log alone.
    Plain,
    /// Events of one log, with compressed data among them.
    Packed,
    /// Events of one log, of any kind, with new streams, new types or tags.
    Names,
    /// Events of several logs alone.
    Logs,
    /// Events of several logs, of any kind, with new streams, new types or tags.
    LogsAndNames,
}

/// A batch, ready for a statement.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) batch: Arc<Batch>,
    pub(crate) log: i16,
    pub(crate) epoch: i64,
    pub(crate) checksums: Vec<i64>,
    after_position: i64,
    after_writer: i64,
    streams: Names,
    types: Names,
    has_tags: bool,
}

/// What of new names is not written straight from the batch.
#[derive(Default, Debug)]
struct Names {
    ids: Vec<i64>,
    checksums: Vec<i64>,
}

impl Names {
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
            streams: Names::new(log, streams)?,
            types: Names::new(log, types)?,
            has_tags: batch.rows.iter().any(|row| !row.tags.as_slice().is_empty()),
            batch,
        })
    }

    /// Number of events.
    pub(crate) fn events(&self) -> usize {
        self.batch.rows.len()
    }

    /// Its last row; the row that it follows if it has none.
    pub(crate) fn end(&self) -> Place {
        match self.batch.rows.last() {
            Some(row) => (row.position, WriterEpoch(self.epoch)),
            None => (self.batch.after.position, self.batch.after.writer),
        }
    }

    /// Size of data and metadata.
    pub(crate) fn bytes(&self) -> usize {
        let rows = self.batch.rows.iter();
        rows.map(|row| row.data.len() + row.metadata.len()).sum()
    }

    fn has_names(&self) -> bool {
        self.has_tags || !self.streams.ids.is_empty() || !self.types.ids.is_empty()
    }

    fn has_packed(&self) -> bool {
        self.batch.rows.iter().any(|row| row.packed.is_some())
    }
}

/// The statement that these parts need.
pub(crate) fn kind_of(parts: &[Part<Arc<Prepared>>]) -> StatementKind {
    let batches = || parts.iter().flat_map(|part| &part.batches);
    let names = batches().any(|batch| batch.has_names());
    let packed = || batches().any(|batch| batch.has_packed());
    if parts.len() > 1 {
        return match names || packed() {
            true => StatementKind::LogsAndNames,
            false => StatementKind::Logs,
        };
    }
    match batches().map(|batch| batch.events()).sum() {
        0 => StatementKind::Confirm,
        _ if names => StatementKind::Names,
        _ if packed() => StatementKind::Packed,
        1 => StatementKind::One,
        _ => StatementKind::Plain,
    }
}

/// The binds of a statement.
#[derive(Debug)]
pub(crate) struct Binds<'a> {
    kind: StatementKind,
    /// One element per log.
    links: Links,
    epoch: i64,
    columns: Vec<Column<'a>>,
    streams: NewNames<'a>,
    types: NewNames<'a>,
    tags: Tags<'a>,
}

/// The row that must be the last, of each log.
#[derive(Default, Debug)]
struct Links {
    logs: Vec<i16>,
    positions: Vec<i64>,
    writers: Vec<i64>,
}

#[derive(Default, Debug)]
struct NewNames<'a> {
    logs: Vec<i16>,
    ids: Vec<i64>,
    names: Vec<&'a str>,
    checksums: Vec<i64>,
}

impl<'a> NewNames<'a> {
    fn add(&mut self, log: i16, known: &Names, names: impl Iterator<Item = &'a str>) {
        self.ids.extend(&known.ids);
        self.checksums.extend(&known.checksums);
        self.names.extend(names);
        self.logs.resize(self.ids.len(), log);
    }
}

#[derive(Default, Debug)]
struct Tags<'a> {
    logs: Vec<i16>,
    texts: Vec<&'a str>,
    positions: Vec<i64>,
}

impl<'a> Tags<'a> {
    fn add(&mut self, batch: &'a Prepared) {
        for row in &batch.batch.rows {
            for tag in row.tags.as_slice() {
                self.logs.push(batch.log);
                self.texts.push(tag.as_str());
                // Positions were checked: they fit.
                self.positions
                    .push(i64::try_from(row.position.0).unwrap_or(i64::MAX));
            }
        }
    }
}

/// The columns of the events, as the statements of one log take them.
const OF_ONE_LOG: &[Field] = &[
    Field::Position,
    Field::Stream,
    Field::Revision,
    Field::EventType,
    Field::Created,
    Field::Checksum,
    Field::EventId,
    Field::ContentType,
    Field::Data,
    Field::Metadata,
];
/// The same, as the statements of several logs take them.
const OF_LOGS: &[Field] = &[
    Field::Position,
    Field::Stream,
    Field::Revision,
    Field::EventType,
    Field::Created,
    Field::Writer,
    Field::Checksum,
    Field::EventId,
    Field::Log,
    Field::ContentType,
    Field::Data,
    Field::Metadata,
];

impl<'a> Binds<'a> {
    pub(crate) fn new(kind: StatementKind, parts: &'a [Part<Arc<Prepared>>]) -> Self {
        let fields: Vec<Field> = match kind {
            StatementKind::Confirm => Vec::new(),
            StatementKind::One | StatementKind::Plain => OF_ONE_LOG.to_vec(),
            StatementKind::Packed => [OF_ONE_LOG, &[Field::Packed]].concat(),
            StatementKind::Names => [OF_ONE_LOG, &[Field::Packed, Field::Tags]].concat(),
            StatementKind::Logs => OF_LOGS.to_vec(),
            StatementKind::LogsAndNames => [OF_LOGS, &[Field::Packed, Field::Tags]].concat(),
        };
        let mut binds = Self {
            kind,
            links: Links::default(),
            epoch: 0,
            columns: fields
                .into_iter()
                .map(|field| Column { parts, field })
                .collect(),
            streams: NewNames::default(),
            types: NewNames::default(),
            tags: Tags::default(),
        };
        for part in parts {
            binds.add(part);
        }
        binds
    }

    fn add(&mut self, part: &'a Part<Arc<Prepared>>) {
        if let Some(first) = part.batches.first() {
            self.links.logs.push(first.log);
            self.links.positions.push(first.after_position);
            self.links.writers.push(first.after_writer);
            self.epoch = first.epoch;
        }
        if !self.has_names() {
            return;
        }
        for batch in &part.batches {
            let names = batch.batch.new_streams.iter();
            let names = names.map(|(_, name)| name.as_str());
            self.streams.add(batch.log, &batch.streams, names);
            let names = batch.batch.new_types.iter();
            let names = names.map(|(_, name)| name.as_str());
            self.types.add(batch.log, &batch.types, names);
            self.tags.add(batch);
        }
    }

    fn has_names(&self) -> bool {
        matches!(
            self.kind,
            StatementKind::Names | StatementKind::LogsAndNames
        )
    }

    /// In the order of the statement.
    pub(crate) fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        let several = matches!(self.kind, StatementKind::Logs | StatementKind::LogsAndNames);
        let mut params: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(28);
        let Links {
            logs,
            positions,
            writers,
        } = &self.links;
        match (logs.as_slice(), positions.as_slice(), writers.as_slice()) {
            ([log], [position], [writer]) if !several => {
                params.extend([log as &(dyn ToSql + Sync), position, writer]);
                if self.kind != StatementKind::Confirm {
                    params.push(&self.epoch);
                }
            }
            _ => params.extend([logs as &(dyn ToSql + Sync), positions, writers]),
        }
        params.extend(
            self.columns
                .iter()
                .map(|column| column as &(dyn ToSql + Sync)),
        );
        if !self.has_names() {
            return params;
        }
        for new in [&self.streams, &self.types] {
            if several {
                params.push(&new.logs);
            }
            params.extend([&new.ids as &(dyn ToSql + Sync), &new.names, &new.checksums]);
        }
        if several {
            params.push(&self.tags.logs);
        }
        params.extend([
            &self.tags.texts as &(dyn ToSql + Sync),
            &self.tags.positions,
        ]);
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
        if row.position != expected || row.position > gesta_core::Position::MAX {
            return Err(Error::invalid(
                "position",
                format!("must be {expected}, found {}", row.position),
            ));
        }
    }
    Ok(())
}
