//! The writing thread: it runs jobs on the one connection that writes, in the order in which they were sent.
//!
//! Why a thread: SQLite blocks while it writes and syncs, and a tokio worker must not.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

use gesta_core::{Error, Result};
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::checkpoint::{CheckpointMode, WalWatch, checkpoint};
use crate::end_note::{EndNote, Opening};
use crate::error::{FaultMark, closed, unfit};
use crate::lock::StoreLock;
use crate::place::{Found, Place};
use crate::read_connection::ReadConnection;
use crate::schema;

/// How long the thread sleeps at most before it looks whether the files of the store are in their places.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the writing thread owns: its connection, and the state of the store.
pub(crate) struct WriteState {
    pub(crate) reader: ReadConnection,
    pub(crate) fault: FaultMark,
    wal: Option<WalWatch>,
    /// The note of the end of the log; `None` in memory and with weakened durability.
    pub(crate) note: Option<Arc<EndNote>>,
    /// The file of the store; `None` in memory.
    place: Option<Arc<Place>>,
    /// Why nothing can be written at the moment, as the last look has found.
    read_only: Option<String>,
    stopping: bool,
}

impl WriteState {
    /// Refuses to write if the store is closed for writing, or cannot be written now.
    ///
    /// # Errors
    /// `Unsupported`, with what to do.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.fault.check()?;
        match &self.read_only {
            None => Ok(()),
            Some(text) => Err(unfit(text.as_str())),
        }
    }

    /// Looks whether the names of the store still lead to it, which must be known before a commit is answered.
    ///
    /// # Errors
    /// Those of [`WriteState::check_writable`].
    pub(crate) fn check_in_place(&mut self) -> Result<()> {
        let Some(place) = &self.place else {
            return Ok(());
        };
        match place.look_at_names() {
            Found::InPlace => Ok(()),
            found => {
                self.take(found);
                self.check_writable()
            }
        }
    }

    fn look(&mut self) {
        if let Some(place) = &self.place {
            let found = place.look();
            self.take(found);
        }
    }

    fn take(&mut self, found: Found) {
        self.read_only = None;
        match found {
            Found::InPlace => {}
            Found::ReadOnly(text) => self.read_only = Some(text),
            Found::Moved(text) => self.fault.set_lost(&text),
            Found::WithoutLog => self.save_log(),
        }
    }

    /// Copies what only the write-ahead log holds into the database, because the log has lost its name and would be
    /// gone with this process.
    fn save_log(&mut self) {
        if self.fault.check().is_err() {
            return;
        }
        let conn = &self.reader.conn;
        let copied = checkpoint(conn, CheckpointMode::Full);
        let path = self.place.as_ref().map(|place| place.path().to_owned());
        let path = path.unwrap_or_default();
        self.fault.set_lost(&match copied {
            Ok(()) => format!(
                "{}-wal, its write-ahead log, was removed or replaced while the store was open. What it held was copied into \
                 the database: stop this process, and start it again",
                path.display()
            ),
            Err(error) => format!(
                "{}-wal, its write-ahead log, was removed or replaced while the store was open, and what it held cannot be \
                 copied into the database ({error}): save the store before this process ends (`gesta backup --store \
                 URL-OF-THIS-SERVER copy.db`), then stop it, and put the copy in place (`gesta restore`)",
                path.display()
            ),
        });
    }
}

type Job = Box<dyn FnOnce(&mut WriteState) + Send>;

/// A handle that sends jobs to the writing thread. It is cheap to clone; the thread ends when the last clone is gone.
#[derive(Clone)]
pub(crate) struct WriteThread {
    jobs: Sender<Job>,
}

impl fmt::Debug for WriteThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriteThread")
    }
}

impl WriteThread {
    /// Starts the thread. The file of the store and its lock are given up after the connection was closed.
    ///
    /// # Errors
    /// `Unavailable` if the system gives no thread.
    pub(crate) fn start(
        conn: Connection,
        fault: FaultMark,
        wal: Option<WalWatch>,
        note: Option<Arc<EndNote>>,
        held: Option<(Arc<Place>, StoreLock)>,
    ) -> Result<(Self, JoinHandle<()>)> {
        let (jobs, receiver) = mpsc::channel();
        let state = WriteState {
            reader: ReadConnection::new(conn),
            fault,
            wal,
            note,
            place: held.as_ref().map(|(place, _)| Arc::clone(place)),
            read_only: None,
            stopping: false,
        };
        let handle = std::thread::Builder::new()
            .name("gesta-sqlite-write".into())
            .spawn(move || {
                work(state, &receiver);
                if let Some((place, lock)) = held {
                    place.release();
                    drop(lock);
                }
            })
            .map_err(|error| Error::unavailable("no thread for writing").caused_by(error))?;
        Ok((Self { jobs }, handle))
    }

    /// Hands a job over, which runs after those that were sent before. It does not wait for the job.
    ///
    /// # Errors
    /// `Unavailable` if the thread has ended; the job is dropped.
    pub(crate) fn run(&self, job: impl FnOnce(&mut WriteState) + Send + 'static) -> Result<()> {
        self.jobs.send(Box::new(job)).map_err(|_| closed())
    }

    /// Lets the thread end once it has done the jobs that were sent before.
    pub(crate) fn stop(&self) {
        // If it has ended already, all the better.
        let _ = self.run(|state| state.stopping = true);
    }
}

fn work(mut state: WriteState, jobs: &Receiver<Job>) {
    while let Some(job) = next(&mut state, jobs) {
        job(&mut state);
        if state.stopping {
            break;
        }
        if let Some(wal) = &mut state.wal {
            wal.tend(&state.reader.conn, &state.fault);
        }
    }
    // The helper's connection first: the last one to close copies the WAL into the file and removes it.
    drop(state.wal.take());
    state.look();
    let in_order = state.check_writable().is_ok().then_some(Opening::NONE);
    close(state.reader.conn, state.place.as_deref(), in_order);
}

/// Waits for the next job. Whenever there was none yet, looks at the files of the store; `None` once there will be
/// none.
fn next(state: &mut WriteState, jobs: &Receiver<Job>) -> Option<Job> {
    match jobs.try_recv() {
        Ok(job) => return Some(job),
        Err(TryRecvError::Disconnected) => return None,
        Err(TryRecvError::Empty) => {}
    }
    if state.place.is_none() {
        return jobs.recv().ok();
    }
    loop {
        let received = jobs.recv_timeout(LOOK_EVERY);
        state.look();
        match received {
            Ok(job) => return Some(job),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// Closes the last connection of a store, and gives it the mark that a closed store has, if all is in order.
///
/// Everything else is copied into the file first: SQLite copies pages in their order, and the mark is in the first one.
/// A process that was killed between them would leave a file that says that it needs no write-ahead log.
pub(crate) fn close(conn: Connection, place: Option<&Place>, in_order: Option<Opening>) {
    let closed = match (place, in_order) {
        (None, _) => Ok(()),
        (Some(_), Some(mark)) => {
            checkpoint(&conn, CheckpointMode::Full).and_then(|()| schema::set_mark(&conn, mark))
        }
        // SQLite removes the write-ahead log by its name, where that of another store may be now.
        (Some(place), None) if place.look_at_names() != Found::InPlace => conn
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
            .map(drop),
        (Some(_), None) => Ok(()),
    };
    if let Err(error) = closed.and_then(|()| conn.close().map_err(|(_, error)| error)) {
        tracing::warn!(%error, "closing the database");
    }
}
