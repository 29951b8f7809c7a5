//! Writes batches as the binds of their statement.
//!
//! What a batch alone decides, its checksums among it, is made when it is submitted ([`Prepared`]); the statement that
//! carries it, alone or with others, writes its columns straight from the rows ([`Binds`]). Invariants: positions
//! follow the row that the batch is chained to, without a gap; every number fits the column that it goes to; the parts
//! of a statement are in the order of their logs, so that two of them in two sessions cannot wait for each other.
//! Not here: sending (`appender`), the binary form of arrays (`columns`).

use std::sync::Arc;

use tokio_postgres::types::ToSql;

use crate::append::columns::{Column, Field};
use crate::append::gather::StatementPart;
use crate::append::prepared::{NameColumns, Prepared};

/// The statement that one or several batches need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StatementKind {
    /// Batches of one log without events: asks whether the row is the last.
    Confirm,
    /// One event, without tags, new names or compressed data.
    One,
    /// Several events of one log, without tags, new names or compressed data.
    Plain,
    /// Events of one log, some of them with compressed data.
    Packed,
    /// Events of one log of any kind, with new streams, new types or tags.
    Names,
    /// Events of several logs, without tags, new names or compressed data.
    Logs,
    /// Events of several logs of any kind, with new streams, new types, tags or compressed data.
    LogsAndNames,
}

/// Returns the statement that these parts need.
pub(crate) fn kind_of(parts: &[StatementPart<Arc<Prepared>>]) -> StatementKind {
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
    /// The rows that the parts follow, one for each log.
    links: Links,
    epoch: i64,
    columns: Vec<Column<'a>>,
    streams: NewNames<'a>,
    types: NewNames<'a>,
    tags: Tags<'a>,
}

/// For each log, the row that must be the last.
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
    fn add(&mut self, log: i16, known: &NameColumns, names: impl Iterator<Item = &'a str>) {
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
                // The positions were checked, so they fit.
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
/// The columns of the events, as the statements of several logs take them.
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
    pub(crate) fn new(kind: StatementKind, parts: &'a [StatementPart<Arc<Prepared>>]) -> Self {
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

    fn add(&mut self, part: &'a StatementPart<Arc<Prepared>>) {
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

    /// Returns the binds in the order of the statement.
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
