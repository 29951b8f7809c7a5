//! The raw rows of a store in one snapshot, for the audit.
//!
//! One `REPEATABLE READ READ ONLY` transaction on a connection of its own. It may last for minutes: appends do
//! not wait for it, and the chained insert does not slow down under an open snapshot.

use async_trait::async_trait;
use bytes::Bytes;
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{Error, LogId, Position, Result};
use gesta_sql::verify::{AuditFloor, AuditName, AuditRow, AuditSource, AuditTag};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::compression::unpack;
use crate::connect::connection::{Connection, Connector, Role};
use crate::databases::copies;
use crate::error;
use crate::log_map::MapCopy;
use crate::map;
use crate::moment::Moment;
use crate::sql_numbers::log_number;

const AUDIT_VIRTUAL: &str = include_str!("../sql/audit_virtual.sql");
const AUDIT_SIZES: &str = include_str!("../sql/audit_sizes.sql");
const AUDIT_EVENTS: &str = include_str!("../sql/audit_events.sql");
const AUDIT_STREAMS: &str = include_str!("../sql/audit_streams.sql");
const AUDIT_TYPES: &str = include_str!("../sql/audit_types.sql");
const AUDIT_TAGS: &str = include_str!("../sql/audit_tags.sql");
const AUDIT_SCAVENGES: &str = include_str!("../sql/audit_scavenges.sql");
const AUDIT_STREAM_NAME: &str = include_str!("../sql/audit_stream_name.sql");

type Driver<T> = std::result::Result<T, tokio_postgres::Error>;

/// The snapshot of a store. Dropping it ends the snapshot.
#[derive(Debug)]
pub struct PostgresAudit {
    connection: Connection,
    logs: u16,
}

impl PostgresAudit {
    pub(crate) async fn begin(connector: &Connector, logs: u16) -> Result<Self> {
        let connection = connector.connect(Role::Admin).await?;
        let begin = connection
            .client
            .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
        begin.await.map_err(|error| failed(&error))?;
        Ok(Self { connection, logs })
    }

    /// Reads the copy of the map that the database keeps.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer; `Corrupt` if what it keeps is no map.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn read_map(&self) -> Result<MapCopy> {
        map::read(&self.connection.client, self.logs).await
    }

    /// Returns the last position of a log in this snapshot.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn last_position(&self, log: LogId) -> Result<Position> {
        copies::last_position(&self.connection.client, log).await
    }

    /// Returns the first position, up to `up_to`, at which a copy of a log in another database has a row that this
    /// database neither has nor has scavenged, told by position and writer; `None` if there is no such row.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn first_unknown(
        &self,
        copy: &Self,
        log: LogId,
        up_to: Position,
    ) -> Result<Option<Position>> {
        let (home, copy) = (&self.connection.client, &copy.connection.client);
        copies::first_unknown(home, copy, log, up_to).await
    }

    async fn page<T>(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
        convert: impl Fn(&Row) -> Driver<T>,
    ) -> Result<Vec<T>> {
        let rows = self
            .connection
            .client
            .query(sql, params)
            .await
            .map_err(|error| failed(&error))?;
        rows.iter()
            .map(convert)
            .collect::<Driver<_>>()
            .map_err(|error| failed(&error))
    }

    /// Returns the last position of a page that is not too large.
    async fn page_end(&self, log: i16, after: i64, limit: i64) -> Result<Option<i64>> {
        let size = |row: &Row| -> Driver<(i64, i64)> { Ok((row.try_get(0)?, row.try_get(1)?)) };
        let sizes = self
            .page(AUDIT_SIZES, &[&log, &after, &limit], size)
            .await?;
        let page_bytes = i64::try_from(PAGE_BYTES_MAX).unwrap_or(i64::MAX);
        let mut bytes = 0_i64;
        let mut end = None;
        for (position, size) in sizes {
            bytes = bytes.saturating_add(size);
            // Rows that share a position stay together.
            if bytes > page_bytes && end.is_some_and(|end| end != position) {
                break;
            }
            end = Some(position);
        }
        Ok(end)
    }
}

fn failed(error: &tokio_postgres::Error) -> Error {
    error::general(error).during("audit")
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn name(row: &Row) -> Driver<AuditName> {
    Ok(AuditName {
        id: row.try_get(0)?,
        name: row.try_get(1)?,
        checksum: row.try_get(2)?,
    })
}

fn event(row: &Row) -> Driver<AuditRow> {
    let bytes = |index: usize| row.try_get::<_, &[u8]>(index).map(Bytes::copy_from_slice);
    // Data that cannot be unpacked is left as it is. Then its checksum is wrong, and the audit says so.
    let (code, data): (i16, Bytes) = (row.try_get(8)?, bytes(10)?);
    let (content_type, data) = unpack(code, &data).unwrap_or((i64::from(code), data));
    Ok(AuditRow {
        position: row.try_get(0)?,
        stream: row.try_get(1)?,
        revision: row.try_get(2)?,
        event_type: row.try_get(3)?,
        created: row.try_get::<_, Moment>(4)?.0.0,
        writer: row.try_get(5)?,
        checksum: row.try_get(6)?,
        event_id: Bytes::copy_from_slice(row.try_get::<_, Uuid>(7)?.as_bytes()),
        content_type,
        tags: row
            .try_get::<_, Option<Vec<String>>>(9)?
            .unwrap_or_default(),
        data,
        metadata: bytes(11)?,
    })
}

#[async_trait]
impl AuditSource for PostgresAudit {
    fn logs(&self) -> u16 {
        self.logs
    }

    async fn rows(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
        let log = log_number(log)?;
        let Some(end) = self.page_end(log, after, count(limit)).await? else {
            return Ok(Vec::new());
        };
        self.page(AUDIT_EVENTS, &[&log, &after, &end], event).await
    }

    async fn streams(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditName>> {
        self.page(
            AUDIT_STREAMS,
            &[&log_number(log)?, &after, &count(limit)],
            name,
        )
        .await
    }

    async fn types(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditName>> {
        self.page(
            AUDIT_TYPES,
            &[&log_number(log)?, &after, &count(limit)],
            name,
        )
        .await
    }

    async fn tags(
        &mut self,
        log: LogId,
        after: Option<&AuditTag>,
        limit: usize,
    ) -> Result<Vec<AuditTag>> {
        let (tag, position) = after.map_or(("", i64::MIN), |after| (&after.tag, after.position));
        let entry = |row: &Row| {
            Ok(AuditTag {
                tag: row.try_get(0)?,
                position: row.try_get(1)?,
            })
        };
        self.page(
            AUDIT_TAGS,
            &[&log_number(log)?, &tag, &position, &count(limit)],
            entry,
        )
        .await
    }

    async fn floors(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditFloor>> {
        let floor = |row: &Row| -> Driver<AuditFloor> {
            let last: i64 = row.try_get(1)?;
            Ok(AuditFloor {
                stream: row.try_get(0)?,
                revision: last.saturating_add(1),
                position: row.try_get(2)?,
            })
        };
        self.page(
            AUDIT_SCAVENGES,
            &[&log_number(log)?, &after, &count(limit)],
            floor,
        )
        .await
    }

    async fn virtual_findings(&mut self, limit: usize) -> Result<Vec<String>> {
        self.page(AUDIT_VIRTUAL, &[&count(limit)], |row| row.try_get(0))
            .await
    }

    async fn stream_name(&mut self, log: LogId, row: i64) -> Result<Option<String>> {
        let text = |row: &Row| row.try_get::<_, String>(0);
        let found = self
            .page(AUDIT_STREAM_NAME, &[&log_number(log)?, &row], text)
            .await?;
        Ok(found.into_iter().next())
    }
}
