//! Closes a store for good, since it moves to another database; tells every program where it is now; and opens it again
//! if the move is undone.
//!
//! Why two steps: from *closing* on nothing can be appended, by the same row that closes a log when it moves alone
//! (`relocation`), while the rest is copied; reads that ask for the end of a log fail too, others do not, and what they
//! show is right, since nothing is appended elsewhere either. *Shutting* takes the tables away from everybody just
//! before the new place opens, so nobody reads here what is out of date. It works on what programs have prepared too,
//! of whatever version, and its error names the new place. After that the store notes that the new place is about to be
//! opened, and that it was opened. Invariants: each step is one transaction, which waits for what is under way and is
//! conditional on what the caller has seen; closing and shutting are refused if the rows that were copied are not those
//! of the store any more; a commit of which the server warns is not taken for done; a store that has noted that the new
//! place was opened is never opened again. Not here: copying, and the order of the steps (`gesta-copy`).

use gesta_core::{Error, ErrorKind, LogId, Result};
use gesta_sql::MOVED_AWAY;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::config::Config;
use crate::connect::connection::{Connection, Connector, Role};
use crate::databases::blockers::{self, Blocker};
use crate::error::{self, is_wait_given_up};
use crate::schema::{self, MIGRATIONS};
use crate::sql_numbers::log_number;

mod holdings;

pub use holdings::{Ends, LogMark, NotClosed};

const READ_STORE: &str = include_str!("../../sql/read_store.sql");
const READ_STAND: &str = include_str!("../../sql/read_stand.sql");
const READ_MOVED: &str = include_str!("../../sql/read_moved.sql");
const LOCK_MOVERS: &str = include_str!("../../sql/lock_movers.sql");
const LOCK_ALL_EVENTS: &str = include_str!("../../sql/lock_all_events.sql");
const NOTE_MOVE: &str = include_str!("../../sql/note_move.sql");
const INSERT_MOVED: &str = include_str!("../../sql/insert_moved.sql");
const CLOSE_LOG: &str = include_str!("../../sql/close_log.sql");
const OPEN_LOG: &str = include_str!("../../sql/open_log.sql");
const SHUT_STORE: &str = include_str!("../../sql/shut_store.sql");
const NOTE_SHUT: &str = include_str!("../../sql/note_shut.sql");
const RAISE_SCHEMA_VERSION: &str = include_str!("../../sql/raise_schema_version.sql");
const UNSHUT_STORE: &str = include_str!("../../sql/unshut_store.sql");
const LOCK_MOVED: &str = include_str!("../../sql/lock_moved.sql");
const NOTE_OPENING: &str = include_str!("../../sql/note_opening.sql");
const NOTE_OPENED: &str = include_str!("../../sql/note_opened.sql");
const LIMIT_WAIT: &str = include_str!("../../sql/limit_wait.sql");

/// How long another process that moves something of the store is waited for.
const MOVERS_TIMEOUT: &str = "SET LOCAL lock_timeout = '10s'";

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
    /// It is shut, and the new place may be open: its opening has this id.
    Opening(Moved, Uuid),
    /// It is shut, and the new place was opened, by the opening with this id. The store is there.
    Opened(Moved, Uuid),
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

/// Why a transaction has changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Obstacle {
    NotClosed(NotClosed),
    /// The note about the move is not there, or does not allow the change.
    OtherMove,
}

const BUSY: Obstacle = Obstacle::NotClosed(NotClosed::Busy);

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
        if !schema::has_store(this.client(), config).await? {
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
        locked.await?.map_err(|_| {
            Error::unavailable(format!(
                "another process moves the store in {}, or has died and its session there has not ended: try again",
                self.name()
            ))
        })
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
        noted(&row).map_err(general)
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
        holdings::ends(self.client(), &self.config.retention_role())
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
        holdings::has(self.client(), log_number(log)?, mark)
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
            client.execute(LIMIT_WAIT, &[]).await?;
            client.batch_execute(LOCK_ALL_EVENTS).await?;
            let found = holdings::ends(client, &role).await?;
            if let Err(why) = holdings::has_same_history(&found, seen) {
                return Ok(Err(Obstacle::NotClosed(why)));
            }
            for (log, mark) in &marks {
                if !holdings::has(client, *log, *mark).await? {
                    return Ok(Err(Obstacle::NotClosed(NotClosed::OtherHistory)));
                }
            }
            client.batch_execute(NOTE_MOVE).await?;
            client.execute(INSERT_MOVED, &[&to.id, &to.place]).await?;
            for (log, _) in &marks {
                client.execute(CLOSE_LOG, &[log]).await?;
            }
            Ok(Ok(()))
        });
        self.not_closed(closed.await?)
    }

    fn not_closed(
        &self,
        done: std::result::Result<(), Obstacle>,
    ) -> Result<std::result::Result<(), NotClosed>> {
        match done {
            Ok(()) => Ok(Ok(())),
            Err(Obstacle::NotClosed(why)) => Ok(Err(why)),
            Err(Obstacle::OtherMove) => Err(self.other_move()),
        }
    }

    /// Takes the events of a closed store away from all who read, and notes what was copied, if the store holds exactly
    /// `seen`. Returns why it was not shut, if it was not. A store that is shut already stays so.
    ///
    /// # Errors
    /// `Unavailable` or `OutcomeUnknown`; the store may have been shut or not. `Unsupported` if the store moves by
    /// another move.
    ///
    /// # Cancel safety
    /// If the future is dropped, the store may have been shut or not; see [`Departure`].
    pub async fn shut(
        &self,
        id: Uuid,
        copied: &str,
        seen: &Ends,
    ) -> Result<std::result::Result<(), NotClosed>> {
        let role = self.config.retention_role();
        let shut = self.transaction(async |client: &Client| {
            client.execute(LIMIT_WAIT, &[]).await?;
            match client.query_opt(LOCK_MOVED, &[&id]).await? {
                None => return Ok(Err(Obstacle::OtherMove)),
                Some(row) if row.try_get("is_shut")? => return Ok(Ok(())),
                Some(_) => {}
            }
            client.batch_execute(LOCK_ALL_EVENTS).await?;
            // Only now nothing is scavenged or appended any more, whatever the caller has seen.
            if let Err(why) = holdings::is_all(&holdings::ends(client, &role).await?, seen) {
                return Ok(Err(Obstacle::NotClosed(why)));
            }
            client.batch_execute(SHUT_STORE).await?;
            client.execute(NOTE_SHUT, &[&id, &copied]).await?;
            client
                .execute(RAISE_SCHEMA_VERSION, &[&moved_version()])
                .await?;
            Ok(Ok(()))
        });
        self.not_closed(shut.await?)
    }

    /// Notes that the new place is about to be opened by the opening `opening`, and makes certain that this note, and
    /// that the store is shut, are wherever an acknowledged append of this store is: also if the commits before were
    /// cut off while they waited for a synchronous standby. It is a commit although it is noted already.
    ///
    /// # Errors
    /// `Unavailable` or `OutcomeUnknown`; it may have been noted or not, and nothing is certain. `Unsupported` if the
    /// store is not shut by this move, is to be opened there by another opening, or was opened there.
    ///
    /// # Cancel safety
    /// If the future is dropped, it may have been noted or not; see [`Departure`].
    pub async fn note_opening(&self, id: Uuid, opening: Uuid) -> Result<()> {
        self.note(NOTE_OPENING, id, opening).await
    }

    /// Notes that the new place was opened, by the opening `opening`. From then on the store is not opened here any
    /// more.
    ///
    /// # Errors
    /// Those of [`Departure::note_opening`].
    ///
    /// # Cancel safety
    /// If the future is dropped, it may have been noted or not; see [`Departure`].
    pub async fn note_opened(&self, id: Uuid, opening: Uuid) -> Result<()> {
        self.note(NOTE_OPENED, id, opening).await
    }

    async fn note(&self, sql: &str, id: Uuid, opening: Uuid) -> Result<()> {
        let noted = self.transaction(async |client: &Client| {
            client.execute(LIMIT_WAIT, &[]).await?;
            Ok(match client.execute(sql, &[&id, &opening]).await? {
                1 => Ok(()),
                _ => Err(Obstacle::OtherMove),
            })
        });
        match noted.await? {
            Ok(()) => Ok(()),
            Err(Obstacle::OtherMove) => Err(self.other_move()),
            Err(Obstacle::NotClosed(_)) => Err(Error::unavailable(format!(
                "another session holds the note about the move of the store in {}",
                self.name()
            ))),
        }
    }

    /// Reads who keeps the store from being closed, shut or opened again, if that was [`NotClosed::Busy`].
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn blockers(&self) -> Result<Vec<Blocker>> {
        blockers::read(self.client()).await.map_err(general)
    }

    /// Opens the store again, as it was before it was closed. Returns false if statements of others are under way that
    /// last.
    ///
    /// # Errors
    /// `Unavailable` or `OutcomeUnknown`; the store may have been opened or not. `Unsupported` if the store moves by
    /// another move, or the new place was opened.
    ///
    /// # Cancel safety
    /// If the future is dropped, the store may have been opened or not; see [`Departure`].
    pub async fn reopen(&self, id: Uuid) -> Result<bool> {
        let store = self.client().query_one(READ_STORE, &[]).await;
        let logs: i16 = store.map_err(general)?.try_get(1).map_err(general)?;
        let become_retention = format!("SET LOCAL ROLE {}", self.config.retention_role());
        let opened = self.transaction(async |client: &Client| {
            client.execute(LIMIT_WAIT, &[]).await?;
            let Some(row) = client.query_opt(LOCK_MOVED, &[&id]).await? else {
                return Ok(Err(Obstacle::OtherMove));
            };
            if row.try_get("opened")? {
                return Ok(Err(Obstacle::OtherMove));
            }
            if row.try_get("is_shut")? {
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
        match self.not_closed(opened.await?)? {
            Ok(()) => Ok(true),
            Err(_) => Ok(false),
        }
    }

    fn other_move(&self) -> Error {
        let text = format!(
            "the store in {} moves by another move than this one, was opened again, or was opened at its new place",
            self.name()
        );
        ErrorKind::Unsupported(text).into()
    }

    /// Runs statements in one transaction, and commits them if they end well.
    async fn transaction<T>(
        &self,
        work: impl AsyncFnOnce(&Client) -> Driver<std::result::Result<T, Obstacle>>,
    ) -> Result<std::result::Result<T, Obstacle>> {
        let client = self.client();
        client.batch_execute("BEGIN").await.map_err(general)?;
        let outcome = work(client).await;
        if let Ok(Ok(_)) = outcome {
            let committed = self.connection.notices.commit(client).await;
            committed.map_err(general)??;
        } else {
            client.batch_execute("ROLLBACK").await.map_err(general)?;
        }
        match outcome {
            Err(error) if is_wait_given_up(&error) => Ok(Err(BUSY)),
            done => done.map_err(general),
        }
    }
}

fn moved_version() -> i32 {
    i32::try_from(MOVED_AWAY).unwrap_or(i32::MAX)
}

fn noted(row: &Row) -> Driver<Stand> {
    let moved = Moved {
        id: row.try_get("id")?,
        place: row.try_get("place")?,
        copied: row.try_get("copied")?,
    };
    let opening: Option<Uuid> = row.try_get("opening")?;
    Ok(match (row.try_get("is_shut")?, opening) {
        (false, _) => Stand::Closed(moved),
        (true, None) => Stand::Shut(moved),
        (true, Some(opening)) if row.try_get("opened")? => Stand::Opened(moved, opening),
        (true, Some(opening)) => Stand::Opening(moved, opening),
    })
}
