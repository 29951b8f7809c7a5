//! Closes a store for good, since it moves to another database; tells every program where it is now; and opens it again
//! if the move is undone.
//!
//! Why two steps: from *closing* on nothing can be appended, by the same row that closes a log when it moves alone
//! (`relocation`), while the rest is copied; reads that ask for the end of a log fail too, others do not, and what they
//! show is right, since nothing is appended elsewhere either. *Shutting* takes the tables away from everybody just
//! before the new place opens, so nobody reads here what is out of date. It works on what programs have prepared too,
//! of whatever version, and its error names the new place. Invariants: each step is
//! one transaction, which waits for what is under way and is conditional on what the caller has seen; closing is
//! refused if the rows that were copied are not those of the store any more. Not here: copying, and the order of the
//! steps (`gesta-copy`).

use gesta_core::{Error, ErrorKind, Incarnation, LogId, Result};
use gesta_sql::MOVED_AWAY;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::config::Config;
use crate::connection::{Connection, Connector, Role};
use crate::error::{self, is_wait_given_up};
use crate::schema::MIGRATIONS;
use crate::sql_numbers::log_number;

const READ_SCHEMA: &str = include_str!("../sql/read_schema.sql");
const READ_STORE: &str = include_str!("../sql/read_store.sql");
const READ_STAND: &str = include_str!("../sql/read_stand.sql");
const READ_MOVED: &str = include_str!("../sql/read_moved.sql");
const READ_MARKS: &str = include_str!("../sql/read_marks.sql");
const READ_CHECKSUM: &str = include_str!("../sql/read_checksum.sql");
const READ_SCAVENGED: &str = include_str!("../sql/read_scavenged.sql");
const LOCK_MOVERS: &str = include_str!("../sql/lock_movers.sql");
const LOCK_ALL_EVENTS: &str = include_str!("../sql/lock_all_events.sql");
const NOTE_MOVE: &str = include_str!("../sql/note_move.sql");
const INSERT_MOVED: &str = include_str!("../sql/insert_moved.sql");
const CLOSE_LOG: &str = include_str!("../sql/close_log.sql");
const OPEN_LOG: &str = include_str!("../sql/open_log.sql");
const SHUT_STORE: &str = include_str!("../sql/shut_store.sql");
const NOTE_SHUT: &str = include_str!("../sql/note_shut.sql");
const RAISE_SCHEMA_VERSION: &str = include_str!("../sql/raise_schema_version.sql");
const UNSHUT_STORE: &str = include_str!("../sql/unshut_store.sql");
const LOCK_MOVED: &str = include_str!("../sql/lock_moved.sql");

/// How long another process that moves something of the store is waited for.
const MOVERS_TIMEOUT: &str = "SET LOCAL lock_timeout = '10s'";
/// How long statements that are under way are waited for. Those that begin later wait meanwhile.
const WAIT_TIMEOUT: &str = "SET LOCAL lock_timeout = '1s'";

type Driver<T> = std::result::Result<T, tokio_postgres::Error>;

/// What a store says about its move to another database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// The id of the move.
    pub id: Uuid,
    /// Where the store goes, for people.
    pub place: String,
    /// What was copied, as the mover has noted it; `None` before the store was shut.
    pub copied: Option<String>,
}

/// How far a store has gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stand {
    /// It is open.
    Open,
    /// Nothing can be appended any more.
    Closed(Moved),
    /// Nothing can be appended or read any more.
    Shut(Moved),
}

/// A row of a log. Position 0 stands for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogMark {
    /// The position of the row.
    pub position: i64,
    /// Its checksum.
    pub checksum: i64,
}

/// What a store holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The incarnation.
    pub incarnation: Incarnation,
    /// The last row of each log.
    pub marks: Vec<LogMark>,
    /// How many events were scavenged.
    pub scavenged: u64,
    /// Whether virtual streams are switched on.
    pub virtual_streams: bool,
}

/// Why a store was not closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotClosed {
    /// Statements of others are under way that last. Nothing is wrong.
    Busy,
    /// Events were scavenged since.
    Scavenged,
    /// The store does not have what was copied, or has another incarnation: commits were lost.
    OtherHistory,
}

/// A connection to the database of a store that moves to another one.
///
/// # Cancel safety
/// If the future of a change is dropped before its end, this value must be dropped as well. The database then takes
/// back what was not committed; whether a commit was done, the next [`Departure::stand`] tells.
#[derive(Debug)]
pub struct Departure {
    connection: Connection,
    config: Config,
}

fn never(never: std::convert::Infallible) -> Error {
    never.into()
}

fn general(error: tokio_postgres::Error) -> Error {
    error::general(&error)
}

impl Departure {
    /// Connects to the database of a store, in whatever state the store is.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer; `Schema` if there is no store.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn open(config: &Config) -> Result<Self> {
        let connector = Connector::new(config.clone())?;
        let connection = connector.connect(Role::Admin).await?;
        let this = Self {
            connection,
            config: config.clone(),
        };
        let found = this
            .client()
            .query_one(READ_SCHEMA, &[&config.schema])
            .await
            .map_err(general)?;
        if !found.try_get::<_, bool>("has_store").map_err(general)? {
            let text = format!("there is no store in {}", config.name());
            return Err(ErrorKind::Schema(text).into());
        }
        Ok(this)
    }

    fn client(&self) -> &Client {
        &self.connection.client
    }

    /// Names the database for people.
    #[must_use]
    pub fn name(&self) -> String {
        self.config.name()
    }

    /// Keeps all others from moving this store, or logs of it, until this value is dropped and the session has ended.
    ///
    /// # Errors
    /// `Unavailable` if another process does not end within 10 s, or the database does not answer.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock may be held until this value is dropped.
    pub async fn lock(&self) -> Result<()> {
        let locked = self.transaction(async |client: &Client| {
            client.batch_execute(MOVERS_TIMEOUT).await?;
            client.execute(LOCK_MOVERS, &[&self.config.schema]).await?;
            Ok(Ok(()))
        });
        match locked.await {
            Err(error) if is_wait_given_up(&error) => Err(Error::unavailable(format!(
                "another process moves the store in {}, or has died and its session there has not ended: try again",
                self.name()
            ))),
            done => done.map_err(general)?.map_err(never),
        }
    }

    /// Returns how many logs the store has.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn logs(&self) -> Result<u16> {
        let store = self.client().query_one(READ_STORE, &[]).await;
        let logs: i16 = store.map_err(general)?.try_get(1).map_err(general)?;
        u16::try_from(logs)
            .map_err(|_| Error::corrupt(format!("the store says that it has {logs} logs")))
    }

    /// Reads how far the store has gone.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer; `Schema` if the store is of another version; `Unsupported` if it
    /// cannot be moved: it lies in several databases, a log of it is being moved, or this user does not own it.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn stand(&self) -> Result<Stand> {
        let store = self.client().query_one(READ_STORE, &[]).await;
        let version: i32 = store.map_err(general)?.try_get(0).map_err(general)?;
        let version = u32::try_from(version).unwrap_or(0);
        MIGRATIONS.on_open(Some(match version {
            moved if moved > MOVED_AWAY => moved - MOVED_AWAY,
            version => version,
        }))?;
        let role = self.config.retention_role();
        let row = self.client().query_one(READ_STAND, &[&role]).await;
        let row = row.map_err(general)?;
        self.may_move(&row)?;
        if !row.try_get::<_, bool>("has_note").map_err(general)? {
            return Ok(Stand::Open);
        }
        let row = self.client().query_one(READ_MOVED, &[]).await;
        let row = row.map_err(general)?;
        let (moved, is_shut) = moved(&row).map_err(general)?;
        Ok(match is_shut {
            true => Stand::Shut(moved),
            false => Stand::Closed(moved),
        })
    }

    fn may_move(&self, row: &Row) -> Result<()> {
        let is = |what: &str| row.try_get::<_, bool>(what).map_err(general);
        let databases: i64 = row.try_get("databases").map_err(general)?;
        let role = self.config.retention_role();
        let name = self.name();
        let why = if databases > 1 {
            format!(
                "the store in {name} lies in {databases} databases: `gesta cluster move-log` moves its logs one by one"
            )
        } else if is("moves_log")? {
            format!(
                "a log of the store in {name} is being moved: end that first (`gesta cluster move-log`)"
            )
        } else if !is("is_owner")? {
            format!(
                "moving a store needs the user that owns its tables in {name}, and that may make others in its schema"
            )
        } else if !is("has_retention")? {
            format!(
                "moving a store needs the role {role} in {name}, without which a move cannot be undone: let an \
                 administrator grant it (GRANT {role} TO …) to the user that owns the tables; if there is no such role, the \
                 retention part of `gesta schema print` makes it"
            )
        } else {
            return Ok(());
        };
        Err(ErrorKind::Unsupported(why).into())
    }

    /// Reads what the store holds. It must not be shut.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn ends(&self) -> Result<Ends> {
        ends(self.client(), &self.config.retention_role())
            .await
            .map_err(general)
    }

    /// Tells whether the store has this row of a log.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn has(&self, log: LogId, mark: LogMark) -> Result<bool> {
        has(self.client(), log_number(log)?, mark)
            .await
            .map_err(general)
    }

    /// Closes all logs for good, and notes where the store goes, if the incarnation and what was scavenged are those of
    /// `seen`, and the store has the rows of `seen`. There may be more rows. Returns why it was not closed, if it was
    /// not.
    ///
    /// # Errors
    /// `Unavailable`; the store may have been closed or not.
    ///
    /// # Cancel safety
    /// If the future is dropped, the store may have been closed or not; see [`Departure`].
    pub async fn close(
        &self,
        to: &Moved,
        seen: &Ends,
    ) -> Result<std::result::Result<(), NotClosed>> {
        let mut marks = Vec::new();
        for (log, mark) in (0..).map(LogId).zip(&seen.marks) {
            marks.push((log_number(log)?, *mark));
        }
        let role = self.config.retention_role();
        let closed = self.transaction(async |client: &Client| {
            client.batch_execute(WAIT_TIMEOUT).await?;
            client.batch_execute(LOCK_ALL_EVENTS).await?;
            let found = ends(client, &role).await?;
            if found.incarnation != seen.incarnation || found.marks.len() != marks.len() {
                return Ok(Err(NotClosed::OtherHistory));
            }
            if found.scavenged != seen.scavenged {
                return Ok(Err(NotClosed::Scavenged));
            }
            for (log, mark) in &marks {
                if !has(client, *log, *mark).await? {
                    return Ok(Err(NotClosed::OtherHistory));
                }
            }
            client.batch_execute(NOTE_MOVE).await?;
            client.execute(INSERT_MOVED, &[&to.id, &to.place]).await?;
            for (log, _) in &marks {
                client.execute(CLOSE_LOG, &[log]).await?;
            }
            Ok(Ok(()))
        });
        match closed.await {
            Err(error) if is_wait_given_up(&error) => Ok(Err(NotClosed::Busy)),
            done => done.map_err(general),
        }
    }

    /// Takes the events of a closed store away from all who read, and notes what was copied. Returns false if
    /// statements of others are under way that last.
    ///
    /// # Errors
    /// `Unavailable`; the store may have been shut or not. `Unsupported` if the store moves by another move.
    ///
    /// # Cancel safety
    /// If the future is dropped, the store may have been shut or not; see [`Departure`].
    pub async fn shut(&self, id: Uuid, copied: &str) -> Result<bool> {
        let shut = self.transaction(async |client: &Client| {
            client.batch_execute(WAIT_TIMEOUT).await?;
            match client.query_opt(LOCK_MOVED, &[&id]).await? {
                None => return Ok(Err(())),
                Some(row) if row.try_get(0)? => return Ok(Ok(())),
                Some(_) => {}
            }
            client.batch_execute(SHUT_STORE).await?;
            client.execute(NOTE_SHUT, &[&id, &copied]).await?;
            client
                .execute(RAISE_SCHEMA_VERSION, &[&moved_version()])
                .await?;
            Ok(Ok(()))
        });
        match shut.await {
            Err(error) if is_wait_given_up(&error) => Ok(false),
            done => match done.map_err(general)? {
                Ok(()) => Ok(true),
                Err(()) => Err(self.other_move()),
            },
        }
    }

    /// Opens the store again, as it was before it was closed. Returns false if statements of others are under way that
    /// last.
    ///
    /// # Errors
    /// `Unavailable`; the store may have been opened or not. `Unsupported` if the store moves by another move.
    ///
    /// # Cancel safety
    /// If the future is dropped, the store may have been opened or not; see [`Departure`].
    pub async fn reopen(&self, id: Uuid) -> Result<bool> {
        let store = self.client().query_one(READ_STORE, &[]).await;
        let logs: i16 = store.map_err(general)?.try_get(1).map_err(general)?;
        let become_retention = format!("SET LOCAL ROLE {}", self.config.retention_role());
        let opened = self.transaction(async |client: &Client| {
            client.batch_execute(WAIT_TIMEOUT).await?;
            let Some(row) = client.query_opt(LOCK_MOVED, &[&id]).await? else {
                return Ok(Err(()));
            };
            if row.try_get(0)? {
                client.batch_execute(UNSHUT_STORE).await?;
                let binds: [&(dyn ToSql + Sync); 1] = [&-moved_version()];
                client.execute(RAISE_SCHEMA_VERSION, &binds).await?;
            }
            client.batch_execute(LOCK_ALL_EVENTS).await?;
            client.batch_execute(&become_retention).await?;
            for log in 0..logs {
                client.execute(OPEN_LOG, &[&log]).await?;
            }
            client.batch_execute("RESET ROLE; DROP TABLE moved").await?;
            Ok(Ok(()))
        });
        match opened.await {
            Err(error) if is_wait_given_up(&error) => Ok(false),
            done => match done.map_err(general)? {
                Ok(()) => Ok(true),
                Err(()) => Err(self.other_move()),
            },
        }
    }

    fn other_move(&self) -> Error {
        let text = format!(
            "the store in {} moves by another move than this one",
            self.name()
        );
        ErrorKind::Unsupported(text).into()
    }

    /// Runs statements in one transaction, and commits them if they end well.
    async fn transaction<T, E>(
        &self,
        work: impl AsyncFnOnce(&Client) -> Driver<std::result::Result<T, E>>,
    ) -> Driver<std::result::Result<T, E>> {
        let client = self.client();
        client.batch_execute("BEGIN").await?;
        let outcome = work(client).await;
        let ending = match outcome {
            Ok(Ok(_)) => "COMMIT",
            _ => "ROLLBACK",
        };
        client.batch_execute(ending).await?;
        outcome
    }
}

fn moved_version() -> i32 {
    i32::try_from(MOVED_AWAY).unwrap_or(i32::MAX)
}

fn moved(row: &Row) -> Driver<(Moved, bool)> {
    let moved = Moved {
        id: row.try_get("id")?,
        place: row.try_get("place")?,
        copied: row.try_get("copied")?,
    };
    Ok((moved, row.try_get("is_shut")?))
}

async fn ends(client: &Client, role: &str) -> Driver<Ends> {
    let store = client.query_one(READ_STORE, &[]).await?;
    let stand = client.query_one(READ_STAND, &[&role]).await?;
    let scavenged = client.query_one(READ_SCAVENGED, &[]).await?;
    let marks = client.query(READ_MARKS, &[]).await?;
    let mark = |row: &Row| {
        Ok(LogMark {
            position: row.try_get::<_, Option<i64>>(0)?.unwrap_or(0),
            checksum: row.try_get::<_, Option<i64>>(1)?.unwrap_or(0),
        })
    };
    Ok(Ends {
        incarnation: Incarnation(store.try_get(2)?),
        marks: marks.iter().map(mark).collect::<Driver<_>>()?,
        scavenged: scavenged.try_get::<_, i64>(0)?.unsigned_abs(),
        virtual_streams: stand.try_get("virtual_streams")?,
    })
}

async fn has(client: &Client, log: i16, mark: LogMark) -> Driver<bool> {
    if mark.position == 0 {
        return Ok(true);
    }
    let row = client
        .query_opt(READ_CHECKSUM, &[&log, &mark.position])
        .await?;
    let found: Option<i64> = row.map(|row| row.try_get(0)).transpose()?;
    Ok(found == Some(mark.checksum))
}
