//! The connections for reads: few, opened when needed, reused, replaced when they break.
//!
//! An answer counts only if the database has not changed over meanwhile (`history`): else the read runs again on a new
//! connection. A read that finds its pooled connection dead is tried once more on a new one, since reads change
//! nothing. A read may take long, so a connection that does not answer is dead only if the server says so, or says
//! nothing (`silence`). Appends wait for some reads; one connection is kept for those, however many others are slow.
//! Another one is kept for what the server itself has to read, however much callers read. Invariants: there are never
//! more than `readers_max` connections and those two, and short-lived ones to ask about them; after a failure to
//! connect, the next attempt waits, up to a second or until another connection was made, so that a dead database is not
//! overloaded with attempts.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gesta_core::backend::{Purpose, WriterEpoch};
use gesta_core::shares::{self, Shares};
use gesta_core::{BackOff, Error, LogId, Position, Result};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Statement;

use crate::connect::connection::{Connection, Connector, Role};
use crate::connect::history::Ledger;
use crate::connect::history::witness::Mark;
use crate::connect::silence::{SessionWatch, Silence};
use crate::error;

/// How long a read may take while the server works for it. The server gives up a little earlier.
const READ_TIMEOUT: Duration = Duration::from_secs(40);
/// How long a read may take for which appends wait. It is short, so a longer silence means that the connection is dead.
const DECISION_TIMEOUT: Duration = Duration::from_secs(10);
/// About how many reads without an answer the server is asked at once. They are as many as there are by default.
const LOOKS_MAX: usize = 6;
/// How many new connections are opened for one read, if the database changes over while it runs.
const CONNECTS_MAX: u32 = 3;
const BACK_OFF_MIN: Duration = Duration::from_millis(50);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);

/// Why a read failed: an error of the driver, or one of ours.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Driver(#[from] tokio_postgres::Error),
    #[error(transparent)]
    Ours(#[from] Error),
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The host was given up, or the server does nothing for the session.
    #[error("{0}")]
    Lost(String),
    /// The store has another incarnation than this process knows.
    #[error("another incarnation of the store has begun")]
    OtherIncarnation,
    /// Rows of a log that this process has seen are not there any more.
    #[error("rows of a log are gone")]
    RowsAreGone,
}

impl ReadError {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Driver(driver) => error::general(&driver),
            Self::Ours(ours) => ours,
            other @ (Self::Silent(_)
            | Self::Lost(_)
            | Self::OtherIncarnation
            | Self::RowsAreGone) => Error::unavailable(other.to_string()),
        }
    }
}

pub(crate) type ReadResult<T> = std::result::Result<T, ReadError>;

/// A read, which may run twice.
pub(crate) trait Read: Sync {
    /// What the read returns.
    type Answer: Send;

    /// Runs the read on a connection.
    fn run(
        &self,
        reader: &mut PooledReader,
    ) -> impl Future<Output = ReadResult<Self::Answer>> + Send;
}

/// A connection with its prepared statements.
#[derive(Debug)]
pub(crate) struct PooledReader {
    pub(crate) connection: Connection,
    /// For each log, the last row that the present read has seen.
    seen: Vec<Mark>,
    /// The version of the map that the present read has seen; 0 if it has seen none.
    seen_map: u64,
    statements: Vec<(&'static str, Statement)>,
}

impl PooledReader {
    /// Notes that the read has seen this row, and hands over what rests on it.
    pub(crate) fn saw(&mut self, log: LogId, position: Position, writer: WriterEpoch) {
        let mark = Mark {
            log,
            position,
            writer,
        };
        match self.seen.iter_mut().find(|seen| seen.log == log) {
            Some(seen) if seen.position < position => *seen = mark,
            Some(_) => {}
            None => self.seen.push(mark),
        }
    }

    /// Notes that the read has seen this version of the map.
    pub(crate) fn saw_map(&mut self, version: u64) {
        self.seen_map = version;
    }

    /// Returns the prepared form of a statement.
    pub(crate) async fn statement(&mut self, sql: &'static str) -> ReadResult<Statement> {
        if let Some((_, found)) = self
            .statements
            .iter()
            .find(|(known, _)| std::ptr::eq(*known, sql))
        {
            return Ok(found.clone());
        }
        let statement = self.connection.client.prepare(sql).await?;
        self.statements.push((sql, statement.clone()));
        Ok(statement)
    }
}

/// Where the connection of a read comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Pool,
    New,
}

#[derive(Debug)]
struct PoolState {
    idle: Vec<PooledReader>,
    closed: bool,
    back_off: BackOff,
    next_attempt: Option<Instant>,
}

/// The pool of connections for reads.
#[derive(Debug)]
pub(crate) struct Pool {
    connector: Arc<Connector>,
    ledger: Arc<Ledger>,
    /// The permits for all reads: one more than for ordinary reads.
    all: Semaphore,
    /// The permits for ordinary reads, for which no append waits: one more than for callers.
    ordinary: Semaphore,
    /// Turns of the callers for whom ordinary reads run.
    turns: Arc<Shares>,
    /// The permits to ask the server about a read that has no answer.
    looks: Semaphore,
    state: Mutex<PoolState>,
}

impl Pool {
    pub(crate) fn new(connector: Arc<Connector>, ledger: Arc<Ledger>) -> Self {
        let readers_max = connector.config.readers_max;
        Self {
            connector,
            ledger,
            all: Semaphore::new(readers_max + 2),
            ordinary: Semaphore::new(readers_max + 1),
            turns: Shares::of_few(readers_max),
            looks: Semaphore::new(LOOKS_MAX),
            state: Mutex::new(PoolState {
                idle: Vec::new(),
                closed: false,
                back_off: BackOff::new(BACK_OFF_MIN, BACK_OFF_MAX),
                next_attempt: None,
            }),
        }
    }

    /// Runs a read on a connection. If the future is dropped before its end, the connection is closed.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer; the errors of the read itself.
    pub(crate) async fn read<R: Read>(
        &self,
        operation: &'static str,
        purpose: Purpose,
        read: R,
    ) -> Result<R::Answer> {
        let outcome = self.try_read(purpose, read).await;
        outcome.map_err(|error| error.during(operation))
    }

    async fn try_read<R: Read>(&self, purpose: Purpose, read: R) -> Result<R::Answer> {
        let closed = |_| Error::unavailable("the store is closed");
        let _ordinary = match purpose {
            Purpose::Append => None,
            Purpose::Read => {
                let turn = self.turns.turn(&shares::current()).await;
                Some((turn, self.ordinary.acquire().await.map_err(closed)?))
            }
        };
        let _permit = self.all.acquire().await.map_err(closed)?;
        while let Some(mut reader) = self.take_idle() {
            let ran = self.limited(&read, purpose, &mut reader, Origin::Pool);
            match ran.await {
                // The connection broke while it was idle, so this read goes on with another one.
                Err(ReadError::Driver(error)) if error::is_lost(&error) => {}
                // Other connections of the pool may be lost as well.
                Err(ReadError::Lost(_)) => break,
                outcome if !self.counts(&mut reader, &outcome) => {}
                outcome => return self.finish(reader, outcome),
            }
        }
        for _ in 0..CONNECTS_MAX {
            let mut reader = self.connect().await?;
            let ran = self.limited(&read, purpose, &mut reader, Origin::New);
            let outcome = ran.await;
            if self.counts(&mut reader, &outcome) {
                return self.finish(reader, outcome);
            }
        }
        Err(Error::unavailable(
            "the database changes over again and again",
        ))
    }

    /// Tells whether the outcome is of the present history. Otherwise the read must run on a new connection, which
    /// finds out what has changed.
    fn counts<T>(&self, reader: &mut PooledReader, outcome: &ReadResult<T>) -> bool {
        let (generation, map) = (
            reader.connection.generation,
            std::mem::take(&mut reader.seen_map),
        );
        let is_outdated = matches!(
            outcome,
            Err(ReadError::OtherIncarnation | ReadError::RowsAreGone)
        );
        !is_outdated
            && self.ledger.observe(generation, reader.seen.drain(..))
            && (map == 0 || self.ledger.observe_map(generation, map))
    }

    fn finish<T>(&self, reader: PooledReader, outcome: ReadResult<T>) -> Result<T> {
        let usable = match &outcome {
            Ok(_) => true,
            Err(ReadError::Driver(error)) => !error::is_lost(error),
            Err(ReadError::Ours(_) | ReadError::Silent(_)) => false,
            Err(ReadError::Lost(_) | ReadError::OtherIncarnation | ReadError::RowsAreGone) => false,
        };
        let mut state = self.state();
        if matches!(outcome, Err(ReadError::Silent(_))) {
            // The other connections lead to the same server, so no read must wait for each of them.
            state.idle.clear();
        }
        if usable && !state.closed && !reader.connection.is_lost() {
            state.idle.push(reader);
        }
        drop(state);
        outcome.map_err(ReadError::into_error)
    }

    /// Runs a read on one connection, for as long as it may take.
    async fn limited<R: Read>(
        &self,
        read: &R,
        purpose: Purpose,
        reader: &mut PooledReader,
        origin: Origin,
    ) -> ReadResult<R::Answer> {
        let limit = match purpose {
            Purpose::Append => DECISION_TIMEOUT,
            Purpose::Read => READ_TIMEOUT,
        };
        let host_lost = reader.connection.host_lost();
        let dead = self.dead(reader.connection.session_watch(), origin);
        tokio::select! {
            biased;
            outcome = timeout(limit, read.run(reader)) => match outcome {
                Ok(outcome) => outcome,
                Err(_) => Err(ReadError::Silent(limit)),
            },
            reason = host_lost => Err(ReadError::Lost(reason)),
            error = dead => Err(error),
        }
    }

    /// Waits until a session that does not answer proves dead. This never ends while the server works for it.
    async fn dead(&self, session: SessionWatch, origin: Origin) -> ReadError {
        let patience = self.connector.config.answer_timeout / 2;
        loop {
            sleep(patience).await;
            let Ok(_look) = self.looks.try_acquire() else {
                continue;
            };
            match (session.look(patience).await, origin) {
                (Silence::ServerSilent, _) => {
                    return ReadError::Silent(patience + self.connector.hosts.timeout);
                }
                (Silence::SessionLost(why), Origin::Pool) => {
                    tracing::warn!(why, "a session for reads is lost; the read begins again");
                    self.state().idle.clear();
                    return ReadError::Lost(why.to_owned());
                }
                // A read begins again once: on a very slow network an answer that is on its way looks as if it was
                // lost.
                (Silence::SessionLost(_), Origin::New) | (Silence::AtWork, _) => {}
            }
        }
    }

    fn take_idle(&self) -> Option<PooledReader> {
        let mut state = self.state();
        while let Some(reader) = state.idle.pop() {
            let connection = &reader.connection;
            if !connection.is_lost() && self.ledger.is_current(connection.generation) {
                return Some(reader);
            }
        }
        None
    }

    async fn connect(&self) -> Result<PooledReader> {
        let wait = self.state().next_attempt;
        if let Some(moment) = wait {
            self.connector.hosts.pause(moment).await;
        }
        let outcome = self.connector.connect(Role::Reader).await;
        let mut state = self.state();
        match outcome {
            Ok(connection) => {
                state.back_off.reset();
                state.next_attempt = None;
                Ok(PooledReader {
                    connection,
                    seen: Vec::new(),
                    seen_map: 0,
                    statements: Vec::new(),
                })
            }
            Err(error) => {
                state.next_attempt = Some(Instant::now() + state.back_off.pause());
                Err(error)
            }
        }
    }

    /// Closes all connections. Those in use close when their read ends.
    pub(crate) fn close(&self) {
        self.all.close();
        self.ordinary.close();
        let mut state = self.state();
        state.closed = true;
        state.idle.clear();
    }

    fn state(&self) -> std::sync::MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
