//! Reading connections: a small pool for files, and the writing connection for a store in memory.
//!
//! Invariants: a job runs on a blocking thread, from the beginning to the end of its transaction, and hands its whole
//! result over at once. So nothing that waits for a network holds a snapshot. Each connection serves one job at a time.
//! All connections of a file are opened with the store: one that is opened later, by name, could read another store.

use std::sync::{Arc, Mutex, PoisonError};

use gesta_core::shares::{self, Shares};
use gesta_core::{Error, Result};
use tokio::sync::{Semaphore, oneshot};

use crate::connection;
use crate::error::{Outcome, closed};
use crate::place::Place;
use crate::read_connection::ReadConnection;
use crate::write_thread::WriteThread;

/// Largest number of reads that may wait for the writing thread of a store in memory.
const SHARED_JOBS_MAX: usize = 64;

/// The connections on which reads run. It is cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum Readers {
    /// Reads have connections of their own.
    Pool(Arc<Pool>),
    /// Reads use the connection of the writing thread: a store in memory has no other.
    Shared {
        /// The writing thread.
        thread: WriteThread,
        /// Turns of the callers for whom jobs wait for the thread.
        turns: Arc<Shares>,
    },
}

/// Idle connections, and permits for as many as may be busy.
#[derive(Debug)]
pub(crate) struct Pool {
    place: Arc<Place>,
    permits: Arc<Semaphore>,
    permits_count: u32,
    /// Turns of the callers for whom reads run. Whoever has a turn gets a permit at once, unless the store is closed.
    turns: Arc<Shares>,
    idle: Mutex<Vec<ReadConnection>>,
}

impl Readers {
    /// Opens the connections: so many for callers, and one for the server itself, which waits behind no caller.
    ///
    /// # Errors
    /// Those of [`connection::open_reading`].
    pub(crate) fn pool(place: &Arc<Place>, readers: usize) -> Outcome<Self> {
        let readers = readers.clamp(1, 1_000);
        let turns = Shares::of_few(readers);
        let readers = readers + 1;
        let idle: Outcome<Vec<_>> = (0..readers)
            .map(|_| Ok(ReadConnection::new(connection::open_reading(place)?)))
            .collect();
        Ok(Readers::Pool(Arc::new(Pool {
            place: Arc::clone(place),
            permits: Arc::new(Semaphore::new(readers)),
            permits_count: u32::try_from(readers).unwrap_or(1),
            turns,
            idle: Mutex::new(idle?),
        })))
    }

    pub(crate) fn shared(thread: WriteThread) -> Self {
        Readers::Shared {
            thread,
            turns: Shares::of_few(SHARED_JOBS_MAX),
        }
    }

    /// Runs a job on a connection.
    ///
    /// # Errors
    /// The error of the job; `Unavailable` once the store is closed.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop a job that has begun: it runs to its end on its thread, and its answer is
    /// dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut ReadConnection) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        match self {
            Readers::Pool(pool) => pool.run(job).await,
            Readers::Shared { thread, turns } => {
                let _turn = turns.turn(&shares::current()).await;
                let (answer, answered) = oneshot::channel();
                thread.run(move |state| {
                    let _ = answer.send(job(&mut state.reader));
                })?;
                Ok(answered.await.map_err(|_| closed())??)
            }
        }
    }

    /// Waits for running jobs, refuses new ones, and closes all connections.
    pub(crate) async fn close(&self) {
        let Readers::Pool(pool) = self else { return };
        let all = pool.permits.acquire_many(pool.permits_count).await;
        pool.permits.close();
        pool.take_idle().clear();
        drop(all);
    }
}

impl Pool {
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        job: impl FnOnce(&mut ReadConnection) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let turn = self.turns.turn(&shares::current()).await;
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(|_| closed())?;
        let pool = Arc::clone(self);
        let work = tokio::task::spawn_blocking(move || {
            let idle = pool.take_idle().pop();
            let mut reader = match idle {
                Some(reader) => reader,
                // One was given up, because it could not end its snapshot.
                None => ReadConnection::new(connection::open_reading(&pool.place)?),
            };
            let result = job(&mut reader);
            // A connection that could not end its snapshot is not used again.
            if reader.conn.is_autocommit() {
                pool.take_idle().push(reader);
            }
            drop((permit, turn));
            result
        });
        let result = work
            .await
            .map_err(|error| Error::unavailable("reading was interrupted").caused_by(error))?;
        Ok(result?)
    }

    fn take_idle(&self) -> std::sync::MutexGuard<'_, Vec<ReadConnection>> {
        // A panic cannot leave a vector of idle connections half changed.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
