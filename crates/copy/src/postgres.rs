//! A PostgreSQL database as the target of a copy: rows go in by `COPY … FROM STDIN BINARY`.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use futures::SinkExt;
use gesta_core::backend::RowId;
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{Error, ErrorKind, LogId, Result};
use gesta_postgres::{Config, MOVED, Notices};
use gesta_sql::verify::{AuditName, AuditRow};
use gesta_sql::{UNFINISHED_COPY, name_checksum};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use uuid::Uuid;

use crate::batch::{Batch, Floor, NewName, State};
use crate::part::{
    Finish, Found, Names, Part, READ_ROWS, Which, disturbed, is_own, state_of, state_text, used,
};

mod access;
mod arrival;

pub(crate) use access::{answers, identity};
use access::{connect, others_end};

/// The name of the sessions of a copy. Those of other programs are named `gesta`, unless their URL says otherwise.
pub(crate) const COPY_NAME: &str = "gesta-copy";
/// How long a copy waits for the session of another one, which may have just ended.
const LOCK_WAIT: &str = "5s";
/// Microseconds from 1970 to 2000, from where PostgreSQL counts.
const MICROS_OF_2000: i64 = 946_684_800_000_000;
/// The position of the row that closes a log in a database; it is no event.
const CLOSED: i64 = i64::MAX;
/// Rows are sent in pieces of about this size, in bytes.
const PIECE_BYTES: usize = 1024 * 1024;

/// Finds the store in the catalog, which everybody may read: whether this user may use its schema. $1 text schema. No
/// row if there is no store.
const FIND_STORE: &str = "SELECT has_schema_privilege(n.oid, 'USAGE') FROM pg_catalog.pg_class AS c \
                          JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
                          WHERE n.nspname = $1 AND c.relname = 'store' AND c.relkind = 'r'";

type Driver<T> = std::result::Result<T, tokio_postgres::Error>;

/// A database.
pub(crate) struct PostgresPart {
    client: Client,
    notices: Arc<Notices>,
    name: String,
    logs: u16,
    own: Vec<u16>,
    read_rows: Statement,
    read_ends: Statement,
}

fn log_number(log: u16) -> i16 {
    i16::try_from(log).unwrap_or(i16::MAX)
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn failed(error: &tokio_postgres::Error) -> Error {
    let db = error.as_db_error();
    if let Some(db) = db.filter(|db| db.constraint() == Some(MOVED)) {
        // Waiting does not help: the copy that this store has left behind is not written over.
        let text = format!(
            "the target holds the old data of a store that has moved away ({}): name an empty database, or another schema \
             (?schema=…), or drop the old schema if nothing there is needed any more",
            db.message()
        );
        return ErrorKind::Unsupported(text).into();
    }
    let text = match db {
        Some(db) if db.code().code() == "42501" => format!(
            "the target: {}: its role must own the tables there, or may make them (GRANT CREATE ON DATABASE …, or GRANT USAGE, \
             CREATE ON SCHEMA …)",
            db.message()
        ),
        Some(db) => format!("the target: {}", db.message()),
        None => format!("the target: {error}"),
    };
    let class = error.code().and_then(|code| code.code().get(..2));
    match class {
        // Connection, resources, operator's intervention, conflicts, a primary that is a standby now.
        None | Some("08" | "25" | "53" | "57" | "40" | "55") => Error::unavailable(text),
        Some(_) => ErrorKind::Refused(text).into(),
    }
}

impl PostgresPart {
    /// Opens the store in a database, and keeps other copies out of it until the connection is closed. Returns `None`
    /// if there is no store; whatever is refused to this user may be one.
    pub(crate) async fn open(config: &Config) -> Result<Option<Self>> {
        let Some((client, notices)) = connect(config).await? else {
            return Ok(None);
        };
        // As for all connections, statements are to walk an index. Without `jit = off` the price that is put on other
        // plans would have each statement compiled, which takes longer than what it does.
        let set = format!(
            "SET search_path TO {}; SET application_name TO '{COPY_NAME}'; SET synchronous_commit TO off; SET statement_timeout TO 0; \
             SET jit TO off; SET enable_seqscan TO off; SET enable_bitmapscan TO off; \
             SET lock_timeout TO '{LOCK_WAIT}'; SET tcp_keepalives_idle TO 15; SET tcp_keepalives_interval TO 5; \
             SET tcp_keepalives_count TO 3; SET tcp_user_timeout TO 20000",
            quoted(&config.schema)
        );
        client
            .batch_execute(&set)
            .await
            .map_err(|error| failed(&error))?;
        let sql = "SELECT pg_advisory_lock(hashtext('gesta copy'), hashtext($1))";
        let locked = client.query_one(sql, &[&config.schema]).await;
        locked.map_err(|error| match error.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE) => Error::unavailable(format!(
                "another process copies into {}, or has died and its session there has not ended yet",
                config.name()
            )),
            _ => failed(&error),
        })?;
        let set = "SET lock_timeout TO '30s'";
        client
            .batch_execute(set)
            .await
            .map_err(|error| failed(&error))?;
        let store = client.query_opt(FIND_STORE, &[&config.schema]).await;
        let Some(store) = store.map_err(|error| failed(&error))? else {
            return Ok(None);
        };
        if !store.get::<_, bool>(0) {
            let text = format!("the target: permission denied for schema {}", config.schema);
            return Err(ErrorKind::Refused(text).into());
        }
        let read = async |sql: &str| client.query(sql, &[]).await.map_err(|error| failed(&error));
        let store = read("SELECT logs FROM store").await?;
        let logs: i16 = store
            .first()
            .ok_or_else(|| Error::corrupt("the target has no row in table store"))?
            .get(0);
        let homes = "SELECT h.log FROM homes h JOIN databases d ON d.number = h.database \
                     JOIN map m ON m.here = d.id ORDER BY h.log";
        let homes = read(homes).await?;
        let own = homes.iter().map(|row| row.get::<_, i16>(0));
        let own = own.map(|log| u16::try_from(log).unwrap_or(0)).collect();
        let prepare = async |sql: &str| client.prepare(sql).await.map_err(|error| failed(&error));
        // The sizes are known without reading the values, so the page is measured first. It ends when rows before it
        // are large enough together.
        let rows = format!(
            "SELECT position, stream, revision, type, (extract(epoch FROM created) * 1000000)::int8, writer, checksum, \
             event_id, content_type, data, metadata, tags FROM events \
             WHERE log = $1 AND position > $2 AND position <= ( \
               SELECT max(position) FROM ( \
                 SELECT position, sum(bytes) OVER (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) \
                   AS bytes_before FROM ( \
                   SELECT position, octet_length(data) + octet_length(metadata) AS bytes FROM events \
                   WHERE log = $1 AND position > $2 AND position < {CLOSED} ORDER BY position LIMIT {READ_ROWS}) AS page \
               ) AS sized WHERE coalesce(bytes_before, 0) < {PAGE_BYTES_MAX}) ORDER BY position"
        );
        let ends = format!(
            "SELECT l.log, coalesce((SELECT max(position) FROM events AS e WHERE e.log = l.log AND e.position < {CLOSED}), 0) \
             FROM unnest($1::smallint[]) AS l(log)"
        );
        Ok(Some(Self {
            read_rows: prepare(&rows).await?,
            read_ends: prepare(&ends).await?,
            logs: u16::try_from(logs).unwrap_or(0),
            own,
            name: config.name(),
            client,
            notices,
        }))
    }

    async fn run(&self, sql: &str) -> Result<()> {
        let run = self.client.batch_execute(sql).await;
        run.map_err(|error| failed(&error))
    }

    /// Ends the transaction: commits what went well, and takes back what did not.
    async fn end(&self, outcome: Result<()>) -> Result<()> {
        match outcome {
            Ok(()) => {
                let committed = self.notices.commit(&self.client).await;
                committed.map_err(|error| failed(&error))?
            }
            Err(error) => {
                // If this fails the connection is gone, and the transaction with it.
                let _ = self.run("ROLLBACK").await;
                Err(error)
            }
        }
    }

    async fn found(&self) -> Result<Found> {
        let sql = "SELECT to_regclass('copying') IS NOT NULL, to_regclass('moved_here') IS NOT NULL, \
                   EXISTS (SELECT FROM events WHERE position < 9223372036854775807) OR EXISTS (SELECT FROM streams)";
        let row = self.client.query_one(sql, &[]).await;
        let row = row.map_err(|error| failed(&error))?;
        let (has_state, has_arrived, is_used): (bool, bool, bool) =
            (row.get(0), row.get(1), row.get(2));
        let state = async |sql: &str| {
            let row = self.client.query_one(sql, &[]).await;
            let text: String = row.map_err(|error| failed(&error))?.get(0);
            state_of(&text)
        };
        Ok(match (has_state, has_arrived) {
            (true, _) => Found::Unfinished(state("SELECT state FROM copying").await?),
            (false, true) => Found::Arrived(state("SELECT state FROM moved_here").await?),
            (false, false) if is_used => Found::Used,
            (false, false) => Found::Empty,
        })
    }

    async fn mark(&self, state: &State) -> Result<()> {
        // Under the lock nobody appends, so what was empty before is looked at again.
        self.run("LOCK TABLE events IN EXCLUSIVE MODE").await?;
        if !matches!(self.found().await?, Found::Empty | Found::Unfinished(_)) {
            return Err(used(&self.name));
        }
        let mark = format!(
            "UPDATE store SET schema_version = schema_version + {UNFINISHED_COPY}; \
             CREATE TABLE copying (one boolean PRIMARY KEY DEFAULT true CHECK (one), state text NOT NULL); \
             INSERT INTO copying (state) VALUES ('')"
        );
        self.run(&mark).await?;
        self.put_state(state).await
    }

    async fn write_rows(&self, batch: &Batch, state: &State) -> Result<()> {
        self.check_ends(&batch.before).await?;
        for (sql, pieces) in copies(batch, &self.own) {
            copy_in(&self.client, sql, pieces).await?;
        }
        self.put_state(state).await
    }

    /// Refuses to go on if a log has a row that the copy has not written, or lacks one. No program that opens the store
    /// writes to it, whatever it calls itself, but one that was connected before does not look at the mark. What it
    /// appends after the last look, before the opening, follows the last row as if it was appended after the opening.
    pub(crate) async fn check_ends(&self, last: &[i64]) -> Result<()> {
        for (log, found) in self.read_ends().await? {
            let expected = last[usize::from(log)];
            if found != expected {
                return Err(disturbed(&self.name, log, expected, found));
            }
        }
        Ok(())
    }

    async fn read_ends(&self) -> Result<Vec<(u16, i64)>> {
        let own: Vec<i16> = self.own.iter().map(|log| log_number(*log)).collect();
        let rows = self.client.query(&self.read_ends, &[&own]).await;
        let end = |row: &Row| (row.get::<_, i16>(0).unsigned_abs(), row.get(1));
        Ok(rows
            .map_err(|error| failed(&error))?
            .iter()
            .map(end)
            .collect())
    }

    async fn put_state(&self, state: &State) -> Result<()> {
        let state = state_text(state)?;
        let sql = "UPDATE copying SET state = $1";
        let put = self.client.execute(sql, &[&state]).await;
        put.map(drop).map_err(|error| failed(&error))
    }
}

/// Rows in the binary form of `COPY`.
struct Form {
    bytes: BytesMut,
}

impl Form {
    fn new() -> Self {
        let mut bytes = BytesMut::with_capacity(2 * PIECE_BYTES);
        bytes.put_slice(b"PGCOPY\n\xff\r\n\0");
        // No flags, no extension.
        bytes.put_slice(&[0; 8]);
        Self { bytes }
    }

    fn row(&mut self, columns: i16) {
        self.bytes.put_i16(columns);
    }

    fn bytes(&mut self, value: &[u8]) {
        // Values are smaller than 2^31 bytes: an event has at most 16 MiB.
        self.bytes
            .put_i32(i32::try_from(value.len()).unwrap_or(i32::MAX));
        self.bytes.put_slice(value);
    }

    fn i64(&mut self, value: i64) {
        self.bytes(&value.to_be_bytes());
    }

    fn i16(&mut self, value: i64) {
        self.bytes(&i16::try_from(value).unwrap_or(i16::MAX).to_be_bytes());
    }

    fn null(&mut self) {
        self.bytes.put_i32(-1);
    }

    /// A list of texts, which no value of is NULL.
    fn texts(&mut self, texts: &[String]) {
        let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        let size: usize = texts.iter().map(|text| 4 + text.len()).sum();
        self.bytes.put_i32(count(20 + size));
        // One dimension, no NULL, elements of type text (25), from index 1.
        for number in [1, 0, 25, count(texts.len()), 1] {
            self.bytes.put_i32(number);
        }
        for text in texts {
            self.bytes(text.as_bytes());
        }
    }
}

/// Writes rows down in the form of `COPY`, in pieces; none if there are no rows.
fn pieces<T>(rows: impl Iterator<Item = T>, mut write: impl FnMut(&mut Form, T)) -> Vec<Bytes> {
    let (mut pieces, mut form, mut is_empty) = (Vec::new(), Form::new(), true);
    for row in rows {
        is_empty = false;
        write(&mut form, row);
        if form.bytes.len() >= PIECE_BYTES {
            pieces.push(form.bytes.split().freeze());
        }
    }
    if is_empty {
        return Vec::new();
    }
    form.bytes.put_i16(-1);
    pieces.push(form.bytes.freeze());
    pieces
}

/// Sends rows to a table.
async fn copy_in(client: &Client, sql: &str, pieces: Vec<Bytes>) -> Result<()> {
    if pieces.is_empty() {
        return Ok(());
    }
    let send = async {
        let sink = client.copy_in(sql).await?;
        futures::pin_mut!(sink);
        for piece in pieces {
            sink.send(piece).await?;
        }
        sink.finish().await
    };
    let sent: Driver<u64> = send.await;
    sent.map(drop).map_err(|error| failed(&error))
}

/// Returns what is sent for a batch: each statement with its rows.
fn copies(batch: &Batch, own: &[u16]) -> Vec<(&'static str, Vec<Bytes>)> {
    let names = |names: &[NewName]| {
        let names = names.iter().filter(|name| is_own(own, name.log));
        pieces(names, write_name)
    };
    let floors = batch.floors.iter().filter(|floor| is_own(own, floor.log));
    let rows = || batch.rows.iter().filter(|(log, _)| is_own(own, *log));
    let tags =
        rows().flat_map(|(log, row)| row.tags.iter().map(move |tag| (*log, row.position, tag)));
    let tags = pieces(tags, |form, (log, position, tag)| {
        form.row(3);
        form.i64(position);
        form.i16(log.into());
        form.bytes(tag.as_bytes());
    });
    vec![
        (COPY_STREAMS, names(&batch.streams)),
        (COPY_TYPES, names(&batch.types)),
        (COPY_FLOORS, pieces(floors, write_floor)),
        (
            COPY_EVENTS,
            pieces(rows(), |form, (log, row)| write_event(form, *log, row)),
        ),
        (COPY_TAGS, tags),
    ]
}

const COPY_STREAMS: &str = "COPY streams (id, checksum, log, name) FROM STDIN BINARY";
const COPY_TYPES: &str = "COPY types (id, checksum, log, name) FROM STDIN BINARY";
const COPY_TAGS: &str = "COPY tags (position, log, tag) FROM STDIN BINARY";
const COPY_EVENTS: &str = "COPY events (position, stream, revision, type, created, writer, checksum, event_id, log, \
                           content_type, data, metadata, tags) FROM STDIN BINARY";

fn write_event(form: &mut Form, log: u16, row: &AuditRow) {
    form.row(13);
    for number in [row.position, row.stream, row.revision, row.event_type] {
        form.i64(number);
    }
    form.i64(row.created - MICROS_OF_2000);
    form.i64(row.writer);
    form.i64(row.checksum);
    form.bytes(&row.event_id);
    form.i16(log.into());
    form.i16(row.content_type);
    form.bytes(&row.data);
    form.bytes(&row.metadata);
    match row.tags.is_empty() {
        true => form.null(),
        false => form.texts(&row.tags),
    }
}

const COPY_FLOORS: &str = "COPY scavenges (stream, last_revision, last_position, events, payload_bytes, log) \
                           FROM STDIN BINARY";

fn write_floor(form: &mut Form, floor: &Floor) {
    form.row(6);
    form.i64(floor.stream);
    form.i64(floor.revision - 1);
    form.i64(floor.position);
    form.i64(floor.revision);
    // How large they were is not known any more.
    form.i64(0);
    form.i16(floor.log.into());
}

fn write_name(form: &mut Form, name: &NewName) {
    let sum = name_checksum(LogId(name.log), RowId(name.id.cast_unsigned()), &name.name);
    form.row(4);
    form.i64(name.id);
    form.i64(sum);
    form.i16(name.log.into());
    form.bytes(name.name.as_bytes());
}

#[async_trait]
impl Part for PostgresPart {
    fn name(&self) -> &str {
        &self.name
    }

    fn logs(&self) -> u16 {
        self.logs
    }

    fn own(&self) -> &[u16] {
        &self.own
    }

    async fn look(&mut self) -> Result<Found> {
        self.found().await
    }

    async fn begin(&mut self, state: &State) -> Result<()> {
        self.run("BEGIN").await?;
        let marked = self.mark(state).await;
        self.end(marked).await?;
        // A session that began before the mark was there would not notice it.
        others_end(&self.client, &self.name).await
    }

    async fn write(&mut self, batch: &Arc<Batch>, state: &State) -> Result<()> {
        self.run("BEGIN").await?;
        let written = self.write_rows(batch, state).await;
        self.end(written).await
    }

    async fn put(&mut self, state: &State) -> Result<()> {
        // On the disk, with all before it, before any other database is opened, or a source that moves is shut.
        self.run("BEGIN; SET LOCAL synchronous_commit TO on")
            .await?;
        let put = self.put_state(state).await;
        self.end(put).await
    }

    async fn names(&mut self, names: Names, log: u16, after: i64) -> Result<Vec<AuditName>> {
        let table = match names {
            Names::Streams => "streams",
            Names::Types => "types",
        };
        let sql = format!(
            "SELECT id, name, checksum FROM {table} WHERE log = $1 AND id > $2 ORDER BY id LIMIT {READ_ROWS}"
        );
        let number = log_number(log);
        let rows = self.client.query(&sql, &[&number, &after]).await;
        let name = |row: &Row| AuditName {
            id: row.get(0),
            name: row.get(1),
            checksum: row.get(2),
        };
        Ok(rows
            .map_err(|error| failed(&error))?
            .iter()
            .map(name)
            .collect())
    }

    async fn rows(&mut self, log: u16, after: i64) -> Result<Vec<AuditRow>> {
        let number = log_number(log);
        let binds: [&(dyn ToSql + Sync); 2] = [&number, &after];
        let rows = self.client.query(&self.read_rows, &binds).await;
        let rows = rows.map_err(|error| failed(&error))?;
        let row = |row: &Row| AuditRow {
            position: row.get(0),
            stream: row.get(1),
            revision: row.get(2),
            event_type: row.get(3),
            created: row.get(4),
            writer: row.get(5),
            checksum: row.get(6),
            event_id: Bytes::copy_from_slice(row.get::<_, Uuid>(7).as_bytes()),
            content_type: row.get::<_, i16>(8).into(),
            data: Bytes::copy_from_slice(row.get(9)),
            metadata: Bytes::copy_from_slice(row.get(10)),
            tags: row.get::<_, Option<Vec<String>>>(11).unwrap_or_default(),
        };
        Ok(rows.iter().map(row).collect())
    }

    async fn floors(&mut self, log: u16) -> Result<Vec<Floor>> {
        let sql = "SELECT stream, last_revision, last_position FROM scavenges WHERE log = $1";
        let number = log_number(log);
        let rows = self.client.query(sql, &[&number]).await;
        let floor = |row: &Row| Floor {
            log,
            stream: row.get(0),
            revision: row.get::<_, i64>(1) + 1,
            position: row.get(2),
        };
        Ok(rows
            .map_err(|error| failed(&error))?
            .iter()
            .map(floor)
            .collect())
    }

    async fn alone(&mut self) -> Result<()> {
        others_end(&self.client, &self.name).await
    }

    async fn ends(&mut self) -> Result<Vec<(u16, i64)>> {
        self.read_ends().await
    }

    async fn count_tags(&mut self, log: u16, which: Which) -> Result<u64> {
        let number = log_number(log);
        let row = match which {
            Which::All => {
                let sql = "SELECT count(*) FROM tags WHERE log = $1";
                self.client.query_one(sql, &[&number]).await
            }
            Which::After(after, tags) => {
                let sql =
                    "SELECT count(*) FROM tags WHERE log = $1 AND tag = ANY ($2) AND position > $3";
                self.client.query_one(sql, &[&number, &tags, &after]).await
            }
        };
        let count: i64 = row.map_err(|error| failed(&error))?.get(0);
        Ok(count.unsigned_abs())
    }

    async fn finish(&mut self, finish: Finish) -> Result<()> {
        self.run("ANALYZE events; ANALYZE streams; ANALYZE types; ANALYZE tags; BEGIN")
            .await?;
        let opened = self.open_copy(finish).await;
        self.end(opened).await
    }
}
