//! Journals on SQLite: Akka.Persistence.Sql and Emmett.
//!
//! SQLite has one writer at a time, so rows appear in the order of their numbers. But a table without AUTOINCREMENT
//! gives the number of a deleted last row to the next one. So the row at the place up to which was read is looked at
//! again, in the snapshot of the page that follows: if it is gone or is another one, everything is read again, and what
//! is there already is passed over.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use gesta_core::{Error, ErrorKind, Result, Timestamp};
use rusqlite::config::DbConfig;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row};

use super::akka::{DotNet, TICKS_FROM, TICKS_OF_1970};
use super::emmett::TENANT;
use super::field::{Cast, Field, columns};
use super::row::left_out;
use super::shape::{keyed, named};
use super::{PAGE_BYTES, PAGE_EVENTS, Page, Source};
use crate::event::{Place, Role, SourceEvent};
use crate::kind::Kind;
use crate::options::Options;

/// What stands between the tags of an event in an answer.
const TAG_SEPARATOR: char = '\u{1f}';

/// A journal in a SQLite file.
pub(super) struct Sqlite {
    connection: Arc<Mutex<Connection>>,
    path: String,
    shape: Arc<Shape>,
    /// Stream and number of the row at the place up to which was read.
    last: Option<Last>,
}

/// Place, stream and number of a row.
type Last = (Place, Arc<str>, u64);

struct Shape {
    table: String,
    columns: String,
    number: &'static str,
    key: String,
    sequence: String,
    snapshots: Option<String>,
}

impl Sqlite {
    pub(super) async fn open(options: &Options) -> Result<Self> {
        let path = options
            .url
            .strip_prefix("sqlite:")
            .unwrap_or(&options.url)
            .to_owned();
        let (opened, options) = (path.clone(), options.clone());
        let open = move || -> Result<(Connection, Shape)> {
            // Not read-only: beside a writer in WAL mode a reader writes to the shared memory.
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let wrong = match std::fs::metadata(&opened) {
                Ok(found) if found.is_file() => None,
                Ok(_) => Some("found something else there".to_owned()),
                // What cannot be looked at is not missing: the error says which it is.
                Err(error) => Some(error.to_string()),
            };
            if let Some(wrong) = wrong {
                return Err(Error::invalid(
                    "source",
                    format!("must be a file that exists, found {opened:?}: {wrong}"),
                ));
            }
            let connection =
                Connection::open_with_flags(&opened, flags).map_err(|error| failed(&error))?;
            let set_up = connection
                .busy_timeout(std::time::Duration::from_secs(30))
                .and_then(|()| connection.pragma_update(None, "query_only", true))
                // The last connection that is closed would else move what is in the log into the file.
                .and_then(|()| {
                    let keep = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
                    connection.set_db_config(keep, true)
                });
            set_up.map_err(|error| failed(&error))?;
            let shape = shape(&connection, &options)?;
            Ok((connection, shape))
        };
        let (connection, shape) = blocking(open).await?;
        Ok(Self {
            connection: Arc::new(Mutex::new(connection)),
            path,
            shape: Arc::new(shape),
            last: None,
        })
    }

    /// Works on the connection in a thread that may block.
    async fn on<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, &Shape) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (connection, shape) = (Arc::clone(&self.connection), Arc::clone(&self.shape));
        blocking(move || {
            let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            work(&connection, &shape).map_err(|error| failed(&error))
        })
        .await
    }
}

/// Tells whether the row at the place up to which was read is still the one that was read.
fn is_still_there(
    connection: &Connection,
    shape: &Shape,
    last: Option<&Last>,
) -> rusqlite::Result<bool> {
    let Some((place, key, sequence)) = last else {
        return Ok(true);
    };
    let Shape {
        table,
        number,
        key: key_column,
        sequence: sequence_column,
        ..
    } = shape;
    let sql = format!("SELECT {key_column}, {sequence_column} FROM {table} j WHERE {number} = ?1");
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?));
    let found = connection
        .query_row(&sql, [place.major_i64()], read)
        .optional()?;
    Ok(found.is_some_and(|(k, s)| k == **key && u64::try_from(s) == Ok(*sequence)))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::unavailable(format!(
            "a read of the source was stopped: {error}"
        ))),
    }
}

fn failed(error: &rusqlite::Error) -> Error {
    let text = format!("the source: {error}");
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
            Error::unavailable(text)
        }
        _ => ErrorKind::Unsupported(text).into(),
    }
}

/// Returns the columns of a table; none if there is no such table.
fn columns_of(connection: &Connection, table: &str) -> Result<Vec<String>> {
    let read = || -> rusqlite::Result<Vec<String>> {
        let mut statement = connection.prepare("SELECT name FROM pragma_table_info(?1)")?;
        let names = statement.query_map([table], |row| row.get(0))?;
        names.collect()
    };
    read().map_err(|error| failed(&error))
}

fn shape(connection: &Connection, options: &Options) -> Result<Shape> {
    let usual: &[&str] = match options.kind {
        Kind::Emmett => &["emt_messages"],
        _ => &["journal", "event_journal"],
    };
    let names: Vec<&str> = match &options.table {
        Some(table) => vec![table],
        None => usual.to_vec(),
    };
    for name in &names {
        let found = columns_of(connection, name)?;
        if found.is_empty() {
            continue;
        }
        let has = |column: &str| found.iter().any(|name| name == column);
        let made = match options.kind {
            Kind::Emmett => emmett(name, has),
            _ => akka(connection, name, &found)?,
        };
        return made.ok_or_else(|| {
            let text = format!(
                "must be a journal of {}: the table {name} has other columns",
                options.kind
            );
            Error::invalid("source", text)
        });
    }
    Err(Error::invalid(
        "source",
        format!(
            "must be a journal of {}: the file has no table {}; --table names another one",
            options.kind,
            super::either(&names)
        ),
    ))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn emmett(table: &str, has: impl Fn(&str) -> bool) -> Option<Shape> {
    let wanted = [
        "stream_id",
        "stream_position",
        "global_position",
        "message_type",
        "message_data",
        "message_id",
        "message_kind",
    ];
    if !wanted.into_iter().all(&has) {
        return None;
    }
    let mut list = named([
        (Field::Number, "j.global_position"),
        (Field::Ident, "j.stream_id"),
        (Field::Sequence, "j.stream_position"),
        (Field::Type, "j.message_type"),
        (Field::Data, "j.message_data"),
        (Field::Metadata, "j.message_metadata"),
        (Field::Id, "j.message_id"),
        (
            Field::LeftOut,
            "CASE WHEN j.message_kind <> 'E' THEN 'commands' END",
        ),
    ]);
    let key = match has("partition") {
        true => {
            list.push((Field::Tenant, TENANT.into()));
            keyed(TENANT, "j.stream_id", Cast::Plain)
        }
        false => "j.stream_id".into(),
    };
    list.push((Field::Key, key.clone()));
    if has("is_archived") {
        list.push((Field::Deleted, "j.is_archived".into()));
    }
    if has("created") {
        // Either a text in UTC or seconds since 1970.
        list.push((
            Field::Time,
            "CAST(strftime('%s', j.created) AS INTEGER) * 1000000".into(),
        ));
    }
    Some(Shape {
        table: quoted(table),
        columns: columns(&list, Cast::Plain),
        number: "j.global_position",
        key,
        sequence: "j.stream_position".into(),
        snapshots: None,
    })
}

fn akka(connection: &Connection, table: &str, found: &[String]) -> Result<Option<Shape>> {
    let has = |column: &str| found.iter().any(|name| name == column);
    let first_of = |columns: &[&'static str]| columns.iter().copied().find(|column| has(column));
    let Some(names) = DotNet::of(first_of).filter(|_| has("ordering") && has("persistence_id"))
    else {
        return Ok(None);
    };
    let mut list = named([
        (Field::Number, "j.ordering"),
        (Field::Key, "j.persistence_id"),
    ]);
    list.push((Field::Sequence, format!("j.{}", names.sequence)));
    list.push((Field::Deleted, format!("j.{}", names.deleted)));
    list.push((Field::Data, format!("j.{}", names.payload)));
    let created = format!("j.{}", names.created);
    list.push((Field::Time, format!("CASE WHEN {created} > {TICKS_FROM} THEN ({created} - {TICKS_OF_1970}) / 10 ELSE {created} * 1000 END")));
    for (field, column) in [
        (Field::Manifest, "manifest"),
        (Field::Writer, "writer_uuid"),
    ] {
        if has(column) {
            list.push((field, format!("j.{column}")));
        }
    }
    if let Some(serializer) = names.serializer {
        list.push((Field::Serializer, format!("j.{serializer}")));
    }
    let mut tags = Vec::new();
    if has("tags") {
        tags.push("replace(j.tags, ';', char(31))".to_owned());
    }
    if columns_of(connection, "tags")?
        .iter()
        .any(|name| name == "ordering_id")
    {
        tags.push(
            "(SELECT group_concat(t.tag, char(31)) FROM tags t WHERE t.ordering_id = j.ordering)"
                .to_owned(),
        );
    }
    if !tags.is_empty() {
        let all: Vec<String> = tags
            .iter()
            .map(|tags| format!("coalesce({tags}, '')"))
            .collect();
        list.push((Field::Tags, all.join(" || char(31) || ")));
    }
    let mut snapshots = None;
    for name in ["snapshot", "snapshot_store"] {
        if snapshots.is_none() && !columns_of(connection, name)?.is_empty() {
            snapshots = Some(quoted(name));
        }
    }
    Ok(Some(Shape {
        table: quoted(table),
        columns: columns(&list, Cast::Plain),
        number: "j.ordering",
        key: "j.persistence_id".into(),
        sequence: format!("j.{}", names.sequence),
        snapshots,
    }))
}

/// Makes an event of a row. SQLite gives values any type, so each is taken as what it is.
fn event(row: &Row<'_>) -> rusqlite::Result<SourceEvent> {
    let number = |field: Field| -> rusqlite::Result<Option<i64>> {
        Ok(match row.get_ref(field.at())? {
            ValueRef::Integer(number) => Some(number),
            ValueRef::Text(text) => std::str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse().ok()),
            _ => None,
        })
    };
    let text = |field: Field| -> rusqlite::Result<Option<String>> {
        Ok(match row.get_ref(field.at())? {
            ValueRef::Null => None,
            ValueRef::Text(text) | ValueRef::Blob(text) => {
                Some(String::from_utf8_lossy(text).into_owned())
            }
            ValueRef::Integer(number) => Some(number.to_string()),
            ValueRef::Real(number) => Some(number.to_string()),
        })
    };
    let bytes = |field: Field| -> rusqlite::Result<Bytes> {
        Ok(match row.get_ref(field.at())? {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Bytes::copy_from_slice(bytes),
            ValueRef::Integer(number) => Bytes::from(number.to_string()),
            ValueRef::Real(number) => Bytes::from(number.to_string()),
            ValueRef::Null => Bytes::new(),
        })
    };
    let mut tags: Vec<String> = text(Field::Tags)?
        .map(|tags| tags.split(TAG_SEPARATOR).map(str::to_owned).collect())
        .unwrap_or_default();
    tags.retain(|tag| !tag.is_empty());
    tags.sort();
    tags.dedup();
    Ok(SourceEvent {
        key: text(Field::Key)?.unwrap_or_default().into(),
        sequence: number(Field::Sequence)?
            .and_then(|number| u64::try_from(number).ok())
            .unwrap_or(0),
        place: Place::number(number(Field::Number)?.unwrap_or(0)),
        id: text(Field::Id)?.and_then(|id| id.parse().ok()),
        event_type: text(Field::Type)?,
        manifest: text(Field::Manifest)?,
        serializer: number(Field::Serializer)?.and_then(|number| i32::try_from(number).ok()),
        writer: text(Field::Writer)?,
        data: bytes(Field::Data)?,
        metadata: bytes(Field::Metadata)?,
        tags,
        ident: text(Field::Ident)?,
        tenant: text(Field::Tenant)?,
        time: number(Field::Time)?.map(Timestamp),
        deleted: number(Field::Deleted)?.is_some_and(|deleted| deleted != 0),
        role: text(Field::LeftOut)?.map_or(Role::Event, |why| left_out(&why)),
        ..SourceEvent::default()
    })
}

#[async_trait]
impl Source for Sqlite {
    fn identity(&self) -> String {
        // A relative path would be another one in another folder.
        let path = std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone().into());
        format!("{} {}", path.display(), self.shape.table)
    }

    fn mark(&self) -> Option<String> {
        let (place, key, sequence) = self.last.as_ref()?;
        Some(format!("{place} {sequence} {key}"))
    }

    fn recall(&mut self, mark: &str) {
        let mut parts = mark.splitn(3, ' ');
        let mut next = || parts.next();
        if let (Some(place), Some(sequence), Some(key)) = (next(), next(), next())
            && let (Ok(place), Ok(sequence)) = (place.parse(), sequence.parse())
        {
            self.last = Some((place, key.into(), sequence));
        }
    }

    async fn page(&mut self, after: Place) -> Result<Page> {
        let last = self.last.clone();
        let read = self.on(move |connection, shape| {
            // Both statements see one snapshot, so no row is replaced between them.
            let snapshot = connection.unchecked_transaction()?;
            let is_there = is_still_there(&snapshot, shape, last.as_ref())?;
            let from = if is_there { after.major_i64() } else { 0 };
            let Shape { columns, table, number, .. } = shape;
            let sql = format!("SELECT {columns} FROM {table} j WHERE {number} > ?1 ORDER BY {number} LIMIT {PAGE_EVENTS}");
            let mut statement = snapshot.prepare_cached(&sql)?;
            let mut rows = statement.query([from])?;
            let (mut events, mut bytes) = (Vec::new(), 0);
            while let Some(row) = rows.next()? {
                let event = event(row)?;
                bytes += event.cost_bytes();
                events.push(event);
                if bytes >= PAGE_BYTES {
                    break;
                }
            }
            Ok((is_there, from, events))
        });
        let (is_there, from, events): (bool, i64, Vec<SourceEvent>) = read.await?;
        if !is_there {
            self.last = None;
        }
        if let Some(last) = events.last() {
            self.last = Some((last.place, Arc::clone(&last.key), last.sequence));
        }
        Ok(Page {
            place: events
                .last()
                .map_or(Place::number(from), |event| event.place),
            end: events.is_empty() && is_there,
            events,
            ..Page::default()
        })
    }

    async fn between(
        &mut self,
        event: &SourceEvent,
        from: u64,
        to: u64,
    ) -> Result<Vec<SourceEvent>> {
        let (stream, key) = (event.key.to_string(), |number| {
            i64::try_from(number).unwrap_or(i64::MAX)
        });
        let (from, to) = (key(from), key(to));
        let read = self.on(move |connection, shape| {
            let Shape { columns, table, key, sequence, .. } = shape;
            let sql = format!(
                "SELECT {columns} FROM {table} j WHERE {key} = ?1 AND {sequence} >= ?2 AND {sequence} < ?3 \
                 ORDER BY {sequence} LIMIT {PAGE_EVENTS}"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let events = statement.query_map((stream, from, to), self::event)?;
            events.collect()
        });
        read.await
    }

    async fn count(&mut self, after: Place) -> Result<Option<u64>> {
        let after = after.major_i64();
        let count = self.on(move |connection, shape| {
            let sql = format!(
                "SELECT count(*) FROM {} j WHERE {} > ?1",
                shape.table, shape.number
            );
            connection.query_row(&sql, [after], |row| row.get::<_, i64>(0))
        });
        Ok(u64::try_from(count.await?).ok())
    }

    async fn snapshots(&mut self) -> Result<Option<u64>> {
        let Some(table) = self.shape.snapshots.clone() else {
            return Ok(None);
        };
        let count = self.on(move |connection, _| {
            connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| {
                row.get::<_, i64>(0)
            })
        });
        Ok(u64::try_from(count.await?).ok())
    }
}
