//! Checkpoints keep the write-ahead log short without making commits wait.
//!
//! How: a helper thread copies the WAL into the file (`PASSIVE`, which blocks nobody) each time it has grown by an
//! eighth of its longest length. That alone never ends a WAL that is always being written to. So at that length the
//! writing thread itself, between two batches, copies the little that is left and starts the WAL again from its
//! beginning (`RESTART`). A reader that holds an old snapshot delays that; it is tried again later, and never waits
//! longer than `RESTART_WAIT`. Invariant: the WAL is bounded by `wal_bytes_max` plus what is appended while readers
//! hold snapshots. While a backup or a check of the store holds one, no restart is tried at all, so that no append
//! waits
//! for it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use gesta_core::{Error, Result};
use rusqlite::{Connection, ffi};

use crate::connection::BUSY_TIMEOUT;
use crate::end_note::EndNote;
use crate::error::{FaultMark, WriteFault, write_fault};
use crate::lookup;

/// Size of a page in bytes, and so nearly of a frame of the WAL.
const PAGE_BYTES: u64 = 4096;
/// Number of parts of the longest WAL. After each part the helper copies, and a restart that failed is tried again.
const PARTS: i32 = 8;
/// Longest time that a restart waits for readers.
const RESTART_WAIT: Duration = Duration::from_millis(50);

thread_local! {
    /// Pages in the WAL after the last commit of this thread. The hook of the driver is a plain function, and one
    /// thread
    /// writes one store.
    static PAGES: Cell<i32> = const { Cell::new(0) };
}

/// How much a checkpoint does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CheckpointMode {
    /// It copies what it can without waiting for anybody.
    Passive,
    /// It waits for readers and writers, and copies everything.
    Full,
    /// As `Full`, and the next commit begins the WAL anew.
    Restart,
}

impl CheckpointMode {
    fn statement(self) -> &'static str {
        match self {
            Self::Passive => "PRAGMA main.wal_checkpoint(PASSIVE)",
            Self::Full => "PRAGMA main.wal_checkpoint(FULL)",
            Self::Restart => "PRAGMA main.wal_checkpoint(RESTART)",
        }
    }
}

/// Copies the WAL into the database.
///
/// # Errors
/// `SQLITE_BUSY` if others were in the way, so that not everything that the mode asks for was done; whatever else
/// SQLite
/// says.
pub(crate) fn checkpoint(conn: &Connection, mode: CheckpointMode) -> rusqlite::Result<()> {
    let mut statement = conn.prepare_cached(mode.statement())?;
    match statement.query_row([], |row| row.get::<_, i64>(0))? {
        0 => Ok(()),
        _ => Err(rusqlite::Error::SqliteFailure(
            ffi::Error::new(ffi::SQLITE_BUSY),
            None,
        )),
    }
}

/// Counts a snapshot as one that lasts, until it is dropped.
#[derive(Debug)]
pub(crate) struct CountedSnapshot(Arc<AtomicUsize>);

impl CountedSnapshot {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for CountedSnapshot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the writing thread knows of the WAL, with the helper thread.
pub(crate) struct WalWatch {
    pages_seen: i32,
    pages_max: i32,
    passive_at: i32,
    restart_at: i32,
    signal: Option<SyncSender<()>>,
    helper: Option<JoinHandle<()>>,
    note: Option<Arc<EndNote>>,
    /// Number of snapshots that last. While there are any, no restart is tried.
    snapshots: Arc<AtomicUsize>,
}

impl WalWatch {
    /// Watches the commits of `conn`. The helper thread gets `helper`, a connection of its own.
    ///
    /// # Errors
    /// `Unavailable` if the system gives no thread.
    pub(crate) fn start(
        conn: &Connection,
        helper: Connection,
        wal_bytes_max: u64,
        fault: FaultMark,
        note: Option<Arc<EndNote>>,
        snapshots: Arc<AtomicUsize>,
    ) -> Result<Self> {
        let pages_max = i32::try_from(wal_bytes_max / PAGE_BYTES)
            .unwrap_or(i32::MAX)
            .max(PARTS);
        conn.wal_hook(Some(|_, pages| {
            PAGES.set(pages);
            Ok(())
        }));
        let (signal, signals) = mpsc::sync_channel(1);
        let noting = note.clone();
        let helper = std::thread::Builder::new()
            .name("gesta-sqlite-checkpoint".into())
            .spawn(move || help(&helper, &signals, &fault, noting.as_deref()))
            .map_err(|error| Error::unavailable("no thread for checkpoints").caused_by(error))?;
        Ok(Self {
            pages_seen: 0,
            pages_max,
            passive_at: pages_max / PARTS,
            restart_at: pages_max,
            signal: Some(signal),
            helper: Some(helper),
            note,
            snapshots,
        })
    }

    /// Looks after the WAL. The writing thread, on which all commits are, calls it after each job.
    pub(crate) fn tend(&mut self, conn: &Connection, fault: &FaultMark) {
        let pages = PAGES.get();
        if pages < self.pages_seen {
            self.begin_again();
        }
        self.pages_seen = pages;
        if pages >= self.passive_at {
            // A full channel means that the helper has yet to begin anyway.
            let _ = self.signal.as_ref().map(|signal| signal.try_send(()));
            self.passive_at = pages.saturating_add(self.pages_max / PARTS);
        }
        if pages >= self.restart_at && self.snapshots.load(Ordering::Relaxed) == 0 {
            self.restart(conn, fault, pages);
        }
    }

    fn begin_again(&mut self) {
        self.passive_at = self.pages_max / PARTS;
        self.restart_at = self.pages_max;
    }

    fn restart(&mut self, conn: &Connection, fault: &FaultMark, pages: i32) {
        let result = conn
            .busy_timeout(RESTART_WAIT)
            .and_then(|()| checkpoint(conn, CheckpointMode::Restart));
        match result {
            Ok(()) => {
                PAGES.set(0);
                self.pages_seen = 0;
                if let Some(note) = &self.note {
                    note.expect_next();
                }
                self.begin_again();
            }
            Err(error) => {
                self.restart_at = pages.saturating_add(self.pages_max / PARTS);
                judge(&error, fault);
            }
        }
        if let Err(error) = conn.busy_timeout(BUSY_TIMEOUT) {
            fault.set(&error);
        }
    }
}

impl Drop for WalWatch {
    fn drop(&mut self) {
        self.signal = None;
        if let Some(helper) = self.helper.take()
            && helper.join().is_err()
        {
            tracing::error!("the checkpoint thread has panicked");
        }
    }
}

fn help(conn: &Connection, signals: &Receiver<()>, fault: &FaultMark, note: Option<&EndNote>) {
    while signals.recv().is_ok() {
        if let Err(error) = checkpoint(conn, CheckpointMode::Passive) {
            judge(&error, fault);
        }
        let Some(note) = note else { continue };
        // The file has caught up with the note: the commits meanwhile, then the next one, are beyond the file. What
        // another connection sees is committed, and with full durability it is synced.
        match lookup::log_end(conn) {
            Ok(end) => note.write(end.position),
            Err(error) => tracing::debug!(%error, "the end of the log is not noted"),
        }
        note.expect_next();
    }
}

/// Judges a checkpoint that failed. It loses nothing, because the WAL keeps what was not copied. But if the disk fails,
/// the store is closed for writing.
fn judge(error: &rusqlite::Error, fault: &FaultMark) {
    match write_fault(error) {
        WriteFault::Fatal => fault.set(error),
        _ => tracing::debug!(%error, "checkpoint put off"),
    }
}
