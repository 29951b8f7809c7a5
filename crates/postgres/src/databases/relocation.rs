//! Moves a log, as far as one database is concerned: looks at it, closes it, opens it, copies it, and changes the copy
//! of the map.
//!
//! Why a row closes a log: its position is after every other one. While it is there it is the last row, so every
//! chained insert misses, whichever process sends it and whatever that process believes; and no position is left to
//! chain to it. It is written under the lock that scavenging takes: every append that is under way has ended before,
//! and each that begins later sees the row. Invariants: what is conditional on the version of the map holds the row of
//! the map until it commits; rows are copied byte for byte, and the names of a page with its events; a page is copied
//! whole or not at all, and only into a log that is closed; a row is compared by its position and its writer, never by
//! its position alone; a copy whose end is removed loses the names of what was there in the same transaction; one
//! process at a time moves logs of a store, and one that has died counts until its sessions have ended. Not here: the
//! order of the steps (`several::moving`).

use futures::{SinkExt, TryStreamExt};
use gesta_core::{Error, ErrorKind, LogId, Position, Result};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use crate::config::Config;
use crate::connect::connection::{Connection, Connector, Role};
use crate::connect::pool::ReadResult;
use crate::databases::copies;
use crate::databases::copies::{COMPARED_ROWS, CopiedRow};
use crate::error;
use crate::log_map::{Held, HeldRow, LogMap, MapCopy, RowMark};
use crate::map;
use crate::map::{Shown, SoughtRow};
use crate::schema;
use crate::sql_numbers::{CLOSED, bound, log_number};

const READ_COPY_STATE: &str = include_str!("../../sql/read_copy_state.sql");
const CLOSE_LOG: &str = include_str!("../../sql/close_log.sql");
const OPEN_LOG: &str = include_str!("../../sql/open_log.sql");
const READ_INDEX: &str = include_str!("../../sql/read_virtual_index.sql");
const LOCK_EVENTS: &str = include_str!("../../sql/lock_events.sql");
const LOCK_MAP: &str = include_str!("../../sql/lock_map.sql");
const LOCK_CLOSED_LOG: &str = include_str!("../../sql/lock_closed_log.sql");
const LOCK_MOVERS: &str = include_str!("../../sql/lock_movers.sql");
const READ_NEWEST_PAGE: &str = include_str!("../../sql/read_newest_page.sql");
const DELETE_NEWEST_ROWS: &str = include_str!("../../sql/delete_newest_rows.sql");
const DELETE_SURPLUS: &str = include_str!("../../sql/delete_surplus.sql");
const DELETE_SCAVENGES: &str = include_str!("../../sql/delete_scavenges.sql");

/// How many rows are copied in one transaction.
const PAGE_ROWS: i64 = 1_000;
/// How long a process waits for another one that moves logs of the store, or that has died while it did.
const LOCK_TIMEOUT: &str = "10s";

/// A commit that changes nothing, and waits for synchronous standbys as every commit does. One row.
const CONFIRM: &str = "SELECT pg_logical_emit_message(true, 'gesta', ''::text)";

type Driver<T> = std::result::Result<T, tokio_postgres::Error>;

/// What a database holds of a log that is being moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyState {
    /// The copy of the map that the database keeps.
    pub copy: MapCopy,
    /// Whether the log is closed in the database, and its last row.
    pub held: Held,
    /// Whether the database has names of events after that row, which are gone.
    pub later_names: bool,
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

    /// Waits until no other process moves logs of the store in this database, and keeps others from that until this
    /// connection is closed. A process that has died counts until its session has ended: so whatever it has begun is
    /// stored or taken back before the next one looks; and what it has stored is wherever an acknowledged append is,
    /// also if its commit was cut off while it waited for a synchronous standby.
    ///
    /// # Errors
    /// `Unavailable` if another process does not end within 10 s, or the database does not answer; `OutcomeUnknown` if
    /// the wait for a synchronous standby is cut off.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock may be held until this value is dropped.
    pub async fn lock(&self) -> Result<()> {
        let locked = self.transaction(async |client: &Client| {
            let timeout = format!("SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'");
            client.batch_execute(&timeout).await?;
            client.execute(LOCK_MOVERS, &[&self.config.schema]).await?;
            client.execute(CONFIRM, &[]).await
        });
        match locked.await? {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                let name = self.name();
                Err(Error::unavailable(format!(
                    "another process moves logs of this store, or has died and its last statement in {name} has not ended: \
                     pg_stat_activity shows its session; try again when it has ended"
                )))
            }
            Err(error) => Err(error::general(&error)),
        }
    }

    /// Returns how to connect to the database.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Tells whether virtual streams are switched on in this database.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn keeps_virtual_streams(&self) -> Result<bool> {
        let row = self.client().query_one(READ_INDEX, &[]).await;
        let row = row.map_err(|error| error::general(&error))?;
        row.try_get(0).map_err(|error| error::general(&error))
    }

    /// Reads the copy of the map.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer; `Corrupt` if what it keeps is no map.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn read_map(&self) -> Result<MapCopy> {
        map::read(self.client(), self.logs).await
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
        let copy = self.read_map().await?;
        let (number, role) = (log_number(log)?, self.config.retention_role());
        let row = self
            .client()
            .query_one(READ_COPY_STATE, &[&number, &role])
            .await;
        let row = row.map_err(|error| error::general(&error))?;
        let state = copy_state(&row, copy).map_err(crate::connect::pool::ReadError::into_error)?;
        let has_retention: bool = row
            .try_get("has_retention")
            .map_err(|error| error::general(&error))?;
        if !has_retention {
            let text = format!(
                "moving a log needs the role {role} in {}, which nobody has by default: let an administrator grant it \
                 (GRANT {role} TO …) to the user that moves logs, who owns the tables; if there is no such role, the \
                 retention part of `gesta schema print` makes it",
                self.name()
            );
            return Err(ErrorKind::Unsupported(text).into());
        }
        Ok(state)
    }

    /// Tells for each of these rows of a log whether the database has it, or has scavenged it; and the latter of the
    /// row that is known by its mark alone.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub(crate) async fn shows(
        &self,
        log: LogId,
        rows: &[HeldRow],
        mark: RowMark,
    ) -> Result<(Vec<Shown>, bool)> {
        let mut asked: Vec<SoughtRow> = rows.iter().map(|row| SoughtRow::of(log, row)).collect();
        let event = None;
        asked.push(SoughtRow { log, mark, event });
        let shown = map::shows(self.client(), &asked).await;
        let mut shown = shown.map_err(crate::connect::pool::ReadError::into_error)?;
        let mark_shown = shown.pop().is_some_and(|row| row.shows);
        Ok((shown, mark_shown || mark == RowMark::NONE))
    }

    /// Replaces the copy of the map, if it is still of version `expected`. If a log comes to this database with this
    /// change, `arriving` names it, and the database notes that; nothing else writes this note. Returns whether the
    /// copy was replaced.
    ///
    /// # Errors
    /// `Unavailable`; the copy may have been replaced or not.
    ///
    /// # Cancel safety
    /// If the future is dropped, the copy may have been replaced or not.
    pub async fn put(&self, expected: u64, map: &LogMap, arriving: Option<LogId>) -> Result<bool> {
        let replaced = self.transaction(async |client: &Client| {
            map::replace(client, expected, map, arriving).await
        });
        replaced.await?.map_err(|error| error::general(&error))
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

    /// Runs statements in one transaction, if the map has version `expected` and the log is closed, and keeps both so.
    async fn if_closed(
        &self,
        log: LogId,
        expected: u64,
        work: impl AsyncFnOnce(&Client) -> Driver<()>,
    ) -> Result<bool> {
        let (number, version) = (log_number(log)?, bound(expected));
        let outcome = self
            .transaction(async |client: &Client| {
                let is_closed = client.query_opt(LOCK_MAP, &[&version]).await?.is_some()
                    && client
                        .query_opt(LOCK_CLOSED_LOG, &[&number])
                        .await?
                        .is_some();
                if !is_closed {
                    return Ok(false);
                }
                work(client).await.map(|()| true)
            })
            .await;
        outcome?.map_err(|error| error::general(&error))
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
        outcome?.map_err(|error| error::general(&error))
    }

    /// Runs statements in one transaction, and commits them if they end well. A commit of which the server warns is an
    /// error: a log must not be opened elsewhere that is closed on one server only.
    async fn transaction<T>(
        &self,
        work: impl AsyncFnOnce(&Client) -> Driver<T>,
    ) -> Result<Driver<T>> {
        let client = self.client();
        let general = |error| error::general(&error);
        client.batch_execute("BEGIN").await.map_err(general)?;
        let outcome = work(client).await;
        if outcome.is_ok() {
            let committed = self.connection.notices.commit(client).await;
            committed.map_err(general)??;
        } else {
            client.batch_execute("ROLLBACK").await.map_err(general)?;
        }
        Ok(outcome)
    }

    /// Copies the next rows of a log after a position to another database, with their names and tags, if its copy of
    /// the map is of version `expected` and the log is closed there. Returns the last position that was copied. The
    /// caller must have made sure that the copy ends at that position with a row of this log, and has no later names.
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
        expected: u64,
    ) -> Result<CopiedPage> {
        let number = log_number(log)?;
        let found = copies::rows(self.client(), log, after, Position::MAX, PAGE_ROWS).await?;
        let Some(last) = found.last().map(|row| row.position) else {
            return Ok(CopiedPage::None);
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
        let copied = to.if_closed(log, expected, async |client: &Client| {
            for (table, columns, range) in &tables {
                pipe(self.client(), client, table, columns, range).await?;
            }
            Ok(())
        });
        Ok(match copied.await? {
            true => CopiedPage::UpTo(gesta_sql::position_from_sql(last)?),
            false => CopiedPage::Refused,
        })
    }

    /// Compares the rows after `after` up to `up_to` with those in the copy in another database, by position and
    /// writer. Rows that were scavenged here since are removed there, and names after the last row that stays; how far
    /// streams were scavenged is copied. All this only if the copy of the map there is of version `expected` and the
    /// log is closed there.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, a part of the changes may have been made; see [`Relocation`].
    pub async fn compare(
        &self,
        to: &Self,
        log: LogId,
        after: Position,
        up_to: Position,
        expected: u64,
    ) -> Result<Compared> {
        let mut after = after;
        while after < up_to {
            let there = copies::rows(to.client(), log, after, up_to, COMPARED_ROWS).await?;
            let end = match there.last() {
                Some(last) if i64::try_from(there.len()).is_ok_and(|n| n == COMPARED_ROWS) => {
                    gesta_sql::position_from_sql(last.position)?
                }
                _ => up_to,
            };
            let here = copies::rows(self.client(), log, after, end, i64::MAX).await?;
            if let Some(differs) =
                copies::first_difference(self.client(), log, &here, &there).await?
            {
                return gesta_sql::position_from_sql(differs).map(Compared::Differs);
            }
            let done = here.len() == there.len()
                || to.remove_surplus(log, after, end, &here, expected).await?;
            if !done {
                return Ok(Compared::Refused);
            }
            after = end;
        }
        Ok(match self.copy_scavenges(to, log, expected).await? {
            true => Compared::Same,
            false => Compared::Refused,
        })
    }

    async fn remove_surplus(
        &self,
        log: LogId,
        after: Position,
        end: Position,
        here: &[CopiedRow],
        expected: u64,
    ) -> Result<bool> {
        let number = log_number(log)?;
        let here: Vec<i64> = here.iter().map(|row| row.position).collect();
        let (after, end) = (bound(after.0), bound(end.0).min(CLOSED - 1));
        let become_retention = format!("SET LOCAL ROLE {}", self.config.retention_role());
        self.if_closed(log, expected, async |client: &Client| {
            client.batch_execute(&become_retention).await?;
            let binds: [&(dyn ToSql + Sync); 4] = [&number, &after, &end, &here];
            client.execute(DELETE_SURPLUS, &binds).await?;
            client.batch_execute("RESET ROLE").await?;
            self.remove_later_names(client, number).await
        })
        .await
    }

    /// Removes the names of events after the last row of a log, within a transaction. The log may have used their ids
    /// for other names since.
    async fn remove_later_names(&self, client: &Client, number: i16) -> Driver<()> {
        let role = self.config.retention_role();
        let binds: [&(dyn ToSql + Sync); 2] = [&number, &role];
        let state = client.query_one(READ_COPY_STATE, &binds).await?;
        if !state.try_get::<_, bool>("later_names")? {
            return Ok(());
        }
        let last = state.try_get::<_, Option<i64>>("position")?.unwrap_or(0);
        self.remove_newest(client, number, last).await.map(drop)
    }

    /// Removes the rows of a log after a position, and names with them, within a transaction. Returns how many rows
    /// were removed.
    async fn remove_newest(&self, client: &Client, number: i16, after: i64) -> Driver<i64> {
        let role = self.config.retention_role();
        // Only here names are removed, so the role has this right for this transaction alone.
        let begin = format!("GRANT DELETE ON streams, types TO {role}; SET LOCAL ROLE {role}");
        let end = format!("RESET ROLE; REVOKE DELETE ON streams, types FROM {role}");
        client.batch_execute(&begin).await?;
        let binds: [&(dyn ToSql + Sync); 2] = [&number, &after];
        let row = client.query_one(DELETE_NEWEST_ROWS, &binds).await?;
        client.batch_execute(&end).await?;
        row.try_get(0)
    }

    /// Removes the rows of a log from a position on, with their names, newest first, if the copy of the map here is of
    /// version `expected` and the log is closed here. The caller must have made sure that these rows are to be given
    /// up. Returns how many rows were removed; `None` if the map or the log has changed meanwhile.
    ///
    /// # Errors
    /// `Unavailable`; a part of the rows, the newest ones, may have been removed.
    ///
    /// # Cancel safety
    /// That of its errors; see [`Relocation`].
    pub async fn remove_from(
        &self,
        log: LogId,
        first: Position,
        expected: u64,
    ) -> Result<Option<u64>> {
        let number = log_number(log)?;
        let keep = bound(first.0.saturating_sub(1));
        let mut removed = 0;
        loop {
            let after = self.newest_page_after(log, keep).await?;
            let mut page = 0_i64;
            let done = self.if_closed(log, expected, async |client: &Client| {
                page = self.remove_newest(client, number, after).await?;
                Ok(())
            });
            if !done.await? {
                return Ok(None);
            }
            removed += page.unsigned_abs();
            if after == keep {
                return Ok(Some(removed));
            }
        }
    }

    /// Returns a position after which there are few rows, but not before `keep`.
    async fn newest_page_after(&self, log: LogId, keep: i64) -> Result<i64> {
        let number = log_number(log)?;
        let binds: [&(dyn ToSql + Sync); 3] = [&number, &keep, &PAGE_ROWS];
        let row = self.client().query_one(READ_NEWEST_PAGE, &binds).await;
        let row = row.map_err(|error| error::general(&error))?;
        row.try_get(0).map_err(|error| error::general(&error))
    }

    async fn copy_scavenges(&self, to: &Self, log: LogId, expected: u64) -> Result<bool> {
        let number = log_number(log)?;
        to.if_closed(log, expected, async |client: &Client| {
            to.remove_later_names(client, number).await?;
            client.execute(DELETE_SCAVENGES, &[&number]).await?;
            let columns =
                "stream, last_revision, last_position, events, payload_bytes, scavenged, log";
            let range = format!("log = {number}");
            pipe(self.client(), client, "scavenges", columns, &range).await
        })
        .await
    }
}

/// What comparing a copy with the log has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compared {
    /// The copy has the rows of the log, as far as it goes.
    Same,
    /// From this position on the copy holds other rows, or some that the log has never had, or lacks some.
    Differs(Position),
    /// The copy of the map is of another version, or the log is open.
    Refused,
}

/// What copying a page of rows has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopiedPage {
    /// There is no row after the position.
    None,
    /// The rows up to this position were copied.
    UpTo(Position),
    /// Nothing was copied: the copy of the map is of another version, or the log is open.
    Refused,
}

fn copy_state(row: &Row, copy: MapCopy) -> ReadResult<CopyState> {
    let held = Held {
        closed: row.try_get("closed")?,
        last: map::held_row(row)?,
    };
    Ok(CopyState {
        copy,
        held,
        later_names: row.try_get("later_names")?,
        nodes: row.try_get::<_, i64>("nodes")?.unsigned_abs(),
        scavenged: row.try_get::<_, i64>("scavenged")?.unsigned_abs(),
    })
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
