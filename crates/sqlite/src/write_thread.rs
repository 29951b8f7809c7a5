//! The writing thread: it runs jobs on the one connection that writes, in the order in which they were sent.
//!
//! Why a thread: SQLite blocks while it writes and syncs, and a tokio worker must not.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use gesta_core::{Error, Result};
use rusqlite::Connection;

use crate::checkpoint::WalWatch;
use crate::end_note::EndNote;
use crate::error::{FaultMark, closed};
use crate::read_connection::ReadConnection;

/// What the writing thread owns: its connection, and the state of the store.
pub(crate) struct WriteState {
    pub(crate) reader: ReadConnection,
    pub(crate) fault: FaultMark,
    wal: Option<WalWatch>,
    /// The note of the end of the log; `None` in memory and with weakened durability.
    pub(crate) note: Option<Arc<EndNote>>,
    stopping: bool,
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
    /// Starts the thread. `keep` is dropped after the connection was closed.
    ///
    /// # Errors
    /// `Unavailable` if the system gives no thread.
    pub(crate) fn start(
        conn: Connection,
        fault: FaultMark,
        wal: Option<WalWatch>,
        note: Option<Arc<EndNote>>,
        keep: impl Send + 'static,
    ) -> Result<(Self, JoinHandle<()>)> {
        let (jobs, receiver) = mpsc::channel();
        let state = WriteState {
            reader: ReadConnection::new(conn),
            fault,
            wal,
            note,
            stopping: false,
        };
        let handle = std::thread::Builder::new()
            .name("gesta-sqlite-write".into())
            .spawn(move || {
                work(state, &receiver);
                drop(keep);
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
    while let Ok(job) = jobs.recv() {
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
    if let Err((_, error)) = state.reader.conn.close() {
        tracing::warn!(%error, "closing the database");
    }
}
