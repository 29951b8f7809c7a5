//! Moves a log, as far as one database is concerned: looks at it, closes it, opens it, copies it, and changes the copy
//! of the map.
//!
//! Why a row closes a log: its position is after every other one. While it is there it is the last row, so every
//! chained insert misses, whichever process sends it and whatever that process believes; and no position is left to
//! chain to it. It is written under the lock that scavenging takes: every append that is under way has ended before,
//! and each that begins later sees the row.
//! Invariants: what is conditional on the version of the map holds the row of the map until it commits; rows are copied
//! byte for byte, and the names of a page with its events; a page is copied whole or not at all.
//! Not here: the order of the steps (`gesta_several::moving`).

use futures::{SinkExt, TryStreamExt};
use gesta_core::{Error, ErrorKind, LogId, LogMap, MapCopy, Position, Result};
use tokio_postgres::Client;

use crate::config::Config;
use crate::connection::{Connection, Connector, Role};
use crate::sql_numbers::{CLOSED, bound, log_number};
use crate::{error, map, schema};

const READ_COPY_STATE: &str = include_str!("../sql/read_copy_state.sql");
const READ_POSITIONS: &str = include_str!("../sql/read_positions.sql");
const CLOSE_LOG: &str = include_str!("../sql/close_log.sql");
const OPEN_LOG: &str = include_str!("../sql/open_log.sql");
const LOCK_EVENTS: &str = include_str!("../sql/lock_events.sql");
const LOCK_MAP: &str = include_str!("../sql/lock_map.sql");
const DELETE_SURPLUS: &str = include_str!("../sql/delete_surplus.sql");
const DELETE_SCAVENGES: &str = include_str!("../sql/delete_scavenges.sql");

/// How many rows are copied in one transaction.
const PAGE_ROWS: i64 = 1_000;
/// How many rows are compared at once, by their positions.
const COMPARED_ROWS: i64 = 10_000;

type Driver<T> = std::result::Result<T, tokio_postgres::Error>;

/// What a database holds of a log that is being moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyState {
    /// The copy of the map that the database keeps.
    pub copy: MapCopy,
    /// Whether the log is closed in the database.
    pub closed: bool,
    /// The last position of the log; the row that closes the log does not count.
    pub last: Position,
    /// How many nodes are registered in the database and have not left.
    pub nodes: u64,
    /// How many events of the log scavenging has removed here. The number grows whenever scavenging removes something.
    pub scavenged: u64,
}

/// A connection to one database of a store, for moving logs.
///
/// # Cancel safety
/// If the future of a change is dropped before its end, the connection may still be inside of a transaction, so this
/// value must be dropped as well. The database then takes back what was not committed.
#[derive(Debug)]
pub struct Relocation {
    connection: Connection,
    config: Config,
    logs: u16,
}

impl Relocation {
    /// Connects to a database that is part of a store.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer; `Schema` if there is no store, or one of another version.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn open(config: &Config) -> Result<Self> {
        let mut config = config.clone();
        (config.must_exist, config.is_part) = (true, true);
        let connector = Connector::new(config.clone())?;
        let connection = connector.connect(Role::Admin).await?;
        let store = schema::open(&connection, &config).await?;
        Ok(Self {
            connection,
            config,
            logs: store.logs,
        })
    }

    /// Names the database for people.
    #[must_use]
    pub fn name(&self) -> String {
        self.config.name()
    }

    fn client(&self) -> &Client {
        &self.connection.client
    }

    /// Reads what the database holds of a log.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer; `Unsupported` if this user may not take the retention role,
    /// without which no log can be opened.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn look(&self, log: LogId) -> Result<CopyState> {
        let copy = map::read(self.client(), self.logs).await?;
        let (number, role) = (log_number(log)?, self.config.retention_role());
        let row = self
            .client()
            .query_one(READ_COPY_STATE, &[&number, &role])
            .await;
        let row = row.map_err(|error| error::general(&error))?;
        let read = || -> Driver<(bool, i64, i64, bool, i64)> {
            Ok((
                row.try_get(0)?,
                row.try_get(1)?,
                row.try_get(2)?,
                row.try_get(3)?,
                row.try_get(4)?,
            ))
        };
        let (closed, last, nodes, has_retention, scavenged) =
            read().map_err(|error| error::general(&error))?;
        if !has_retention {
            let text = format!(
                "moving a log needs the role {role} in {}, which nobody has by default: let an administrator grant it \
                 (GRANT {role} TO …) to the user that moves logs, who owns the tables; if there is no such role, the \
                 retention part of `gesta schema print` makes it",
                self.name()
            );
            return Err(ErrorKind::Unsupported(text).into());
        }
        Ok(CopyState {
            copy,
            closed,
            last: gesta_sql::position_from_sql(last)?,
            nodes: nodes.unsigned_abs(),
            scavenged: scavenged.unsigned_abs(),
        })
    }

    /// Replaces the copy of the map, if it is still of version `expected`. Returns whether it was replaced.
    ///
    /// # Errors
    /// `Unavailable`; the copy may have been replaced or not.
    ///
    /// # Cancel safety
    /// If the future is dropped, the copy may have been replaced or not.
    pub async fn put(&self, expected: u64, map: &LogMap) -> Result<bool> {
        let done = map::replace(self.client(), expected, map).await;
        done.map_err(|error| error::general(&error))
    }

    /// Closes a log here, if the copy of the map is still of version `expected`. Returns whether it was closed.
    ///
    /// # Errors
    /// `Unavailable`; the log may have been closed or not.
    ///
    /// # Cancel safety
    /// If the future is dropped, the log may have been closed or not; see [`Relocation`].
    pub async fn close(&self, log: LogId, expected: u64) -> Result<bool> {
        let number = log_number(log)?;
        self.if_version(expected, async |client: &Client| {
            client.batch_execute(LOCK_EVENTS).await?;
            client.execute(CLOSE_LOG, &[&number]).await.map(drop)
        })
        .await
    }

    /// Opens a log here, if the copy of the map is still of version `expected`. Returns whether it was opened.
    ///
    /// # Errors
    /// `Unavailable`; the log may have been opened or not.
    ///
    /// # Cancel safety
    /// If the future is dropped, the log may have been opened or not; see [`Relocation`].
    pub async fn reopen(&self, log: LogId, expected: u64) -> Result<bool> {
        let number = log_number(log)?;
        let become_retention = format!("SET LOCAL ROLE {}", self.config.retention_role());
        self.if_version(expected, async |client: &Client| {
            client.batch_execute(&become_retention).await?;
            client.execute(OPEN_LOG, &[&number]).await?;
            client.batch_execute("RESET ROLE").await
        })
        .await
    }

    /// Runs statements in one transaction that locks the map, if the map has version `expected`.
    async fn if_version(
        &self,
        expected: u64,
        work: impl AsyncFnOnce(&Client) -> Driver<()>,
    ) -> Result<bool> {
        let version = bound(expected);
        let outcome = self
            .transaction(async |client: &Client| {
                if client.query_opt(LOCK_MAP, &[&version]).await?.is_none() {
                    return Ok(false);
                }
                work(client).await.map(|()| true)
            })
            .await;
        outcome.map_err(|error| error::general(&error))
    }

    async fn transaction<T>(&self, work: impl AsyncFnOnce(&Client) -> Driver<T>) -> Driver<T> {
        let client = self.client();
        client.batch_execute("BEGIN").await?;
        let outcome = work(client).await;
        let ending = if outcome.is_ok() {
            "COMMIT"
        } else {
            "ROLLBACK"
        };
        client.batch_execute(ending).await?;
        outcome
    }

    /// Copies the next rows of a log after a position to another database, with their names and tags. Returns the last
    /// position that was copied; `None` if there is no row after it.
    ///
    /// # Errors
    /// `Unavailable`; either all rows of the page were copied, or none. `Refused` if some rows are there already.
    ///
    /// # Cancel safety
    /// If the future is dropped, the page may have been copied, whole, or not; see [`Relocation`].
    pub async fn copy_page(
        &self,
        to: &Self,
        log: LogId,
        after: Position,
    ) -> Result<Option<Position>> {
        let general = |error: tokio_postgres::Error| error::general(&error);
        let number = log_number(log)?;
        let found = self.positions(log, after, Position::MAX, PAGE_ROWS).await?;
        let Some(last) = found.last() else {
            return Ok(None);
        };
        let range = |column: &str| {
            let after = bound(after.0);
            format!("log = {number} AND {column} > {after} AND {column} <= {last}")
        };
        let tables = [
            ("streams", "id, checksum, log, name", range("id")),
            ("types", "id, checksum, log, name", range("id")),
            ("tags", "position, log, tag", range("position")),
            (
                "events",
                "position, stream, revision, type, created, writer, checksum, event_id, log, content_type, data, \
                 metadata, tags, packed",
                range("position"),
            ),
        ];
        let copied = to.transaction(async |client: &Client| {
            for (table, columns, range) in &tables {
                pipe(self.client(), client, table, columns, range).await?;
            }
            Ok(())
        });
        copied.await.map_err(general)?;
        gesta_sql::position_from_sql(*last).map(Some)
    }

    async fn positions(
        &self,
        log: LogId,
        after: Position,
        to: Position,
        rows: i64,
    ) -> Result<Vec<i64>> {
        let number = log_number(log)?;
        let (after, to) = (bound(after.0), bound(to.0).min(CLOSED - 1));
        let row = self
            .client()
            .query_one(READ_POSITIONS, &[&number, &after, &to, &rows])
            .await;
        let row = row.map_err(|error| error::general(&error))?;
        row.try_get(0).map_err(|error| error::general(&error))
    }

    /// Compares the rows after `after` up to `up_to` that were copied to another database. Rows that were scavenged
    /// here since are removed there, and how far streams were scavenged is copied.
    ///
    /// # Errors
    /// `Corrupt` if rows are missing there; `Unavailable` if a database does not answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, a part of the changes may have been made; see [`Relocation`].
    pub async fn compare(
        &self,
        to: &Self,
        log: LogId,
        after: Position,
        up_to: Position,
    ) -> Result<()> {
        let mut after = after;
        while after < up_to {
            let there = to.positions(log, after, up_to, COMPARED_ROWS).await?;
            let end = match there.last() {
                Some(last) if i64::try_from(there.len()).is_ok_and(|n| n == COMPARED_ROWS) => {
                    gesta_sql::position_from_sql(*last)?
                }
                _ => up_to,
            };
            let here = self.positions(log, after, end, i64::MAX).await?;
            if here != there {
                to.remove_surplus(log, after, end, &here, &there).await?;
            }
            after = end;
        }
        self.copy_scavenges(to, log).await
    }

    async fn remove_surplus(
        &self,
        log: LogId,
        after: Position,
        end: Position,
        here: &[i64],
        there: &[i64],
    ) -> Result<()> {
        if let Some(missing) = here
            .iter()
            .find(|position| there.binary_search(position).is_err())
        {
            let name = self.name();
            return Err(Error::corrupt(format!(
                "position {missing} of log {log} is missing in its copy in {name}"
            )));
        }
        let number = log_number(log)?;
        let (after, end) = (bound(after.0), bound(end.0));
        let become_retention = format!("SET LOCAL ROLE {}", self.config.retention_role());
        let removed = self.transaction(async |client: &Client| {
            client.batch_execute(&become_retention).await?;
            client
                .execute(DELETE_SURPLUS, &[&number, &after, &end, &here])
                .await
        });
        removed.await.map_err(|error| error::general(&error))?;
        Ok(())
    }

    async fn copy_scavenges(&self, to: &Self, log: LogId) -> Result<()> {
        let number = log_number(log)?;
        let copied = to.transaction(async |client: &Client| {
            client.execute(DELETE_SCAVENGES, &[&number]).await?;
            let columns =
                "stream, last_revision, last_position, events, payload_bytes, scavenged, log";
            let range = format!("log = {number}");
            pipe(self.client(), client, "scavenges", columns, &range).await
        });
        copied.await.map_err(|error| error::general(&error))
    }
}

/// Copies rows of a table from one connection to another, as they are.
async fn pipe(from: &Client, to: &Client, table: &str, columns: &str, range: &str) -> Driver<()> {
    let out =
        format!("COPY (SELECT {columns} FROM {table} WHERE {range}) TO STDOUT (FORMAT binary)");
    let into = format!("COPY {table} ({columns}) FROM STDIN (FORMAT binary)");
    let mut rows = std::pin::pin!(from.copy_out(&out).await?);
    let mut sink = std::pin::pin!(to.copy_in::<_, bytes::Bytes>(&into).await?);
    while let Some(chunk) = rows.try_next().await? {
        sink.send(chunk).await?;
    }
    sink.finish().await.map(drop)
}
