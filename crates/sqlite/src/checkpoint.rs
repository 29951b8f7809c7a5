//! Keeps the write-ahead log short without making commits wait.
//!
//! How: a helper thread copies the WAL into the file (`PASSIVE`, which blocks nobody) every few MiB. That alone never ends a WAL
//! that is always being written to, so once it is long the writing thread itself, between two batches, copies
//! the little that is left and starts the WAL again from its beginning (`RESTART`). A reader that holds an old snapshot
//! delays that; it is tried again later, and never waits longer than `RESTART_WAIT`.
//! Invariant: the WAL is bounded by `RESTART_PAGES` plus what is appended while readers hold snapshots.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use gesta_core::{Error, Result};
use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use crate::append::FaultMark;
use crate::error::{WriteFault, write_fault};

/// Pages of WAL after which the helper copies (4 MiB).
const PASSIVE_PAGES: i32 = 1_000;
/// Pages of WAL after which it is started again (32 MiB).
const RESTART_PAGES: i32 = 8_000;
/// Pages more before a failed restart is tried again.
const RETRY_PAGES: i32 = 2_000;
/// Longest wait of a restart for readers.
const RESTART_WAIT: Duration = Duration::from_millis(50);

/// The writing thread's side.
pub(crate) struct WalWatch {
    pages: Arc<AtomicI32>,
    pages_seen: i32,
    passive_at: i32,
    restart_at: i32,
    busy_timeout: Duration,
    signal: Option<SyncSender<()>>,
    helper: Option<JoinHandle<()>>,
}

impl WalWatch {
    /// Watches the commits of `conn`; `helper` is a connection of its own for the helper thread.
    ///
    /// # Errors
    /// `Unavailable` if the system gives no thread.
    pub(crate) fn start(
        conn: &mut Connection,
        helper: Connection,
        busy_timeout: Duration,
        fault: FaultMark,
    ) -> Result<Self> {
        let pages = Arc::new(AtomicI32::new(0));
        let counter = Arc::clone(&pages);
        conn.wal_hook(Some(move |_: &mut _, count| {
            counter.store(count, Ordering::Relaxed);
            Ok(())
        }))
        .map_err(|error| Error::unavailable("watching the WAL").caused_by(error))?;
        let (signal, signals) = mpsc::sync_channel(1);
        let helper = std::thread::Builder::new()
            .name("gesta-sqlite-checkpoint".into())
            .spawn(move || help(&helper, &signals, &fault))
            .map_err(|error| Error::unavailable("no thread for checkpoints").caused_by(error))?;
        Ok(Self {
            pages,
            pages_seen: 0,
            passive_at: PASSIVE_PAGES,
            restart_at: RESTART_PAGES,
            busy_timeout,
            signal: Some(signal),
            helper: Some(helper),
        })
    }

    /// After each job of the writing thread.
    pub(crate) fn tend(&mut self, conn: &Connection, fault: &FaultMark) {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < self.pages_seen {
            self.begin_again();
        }
        self.pages_seen = pages;
        if pages >= self.passive_at {
            // A full channel means that the helper has yet to begin anyway.
            let _ = self.signal.as_ref().map(|signal| signal.try_send(()));
            self.passive_at = pages.saturating_add(PASSIVE_PAGES);
        }
        if pages >= self.restart_at {
            self.restart(conn, fault, pages);
        }
    }

    fn begin_again(&mut self) {
        self.passive_at = PASSIVE_PAGES;
        self.restart_at = RESTART_PAGES;
    }

    fn restart(&mut self, conn: &Connection, fault: &FaultMark, pages: i32) {
        let result = conn.busy_timeout(RESTART_WAIT).and_then(|()| {
            conn.wal_checkpoint_v2(Some(rusqlite::MAIN_DB), CheckpointMode::RESTART)
        });
        match result {
            Ok(_) => {
                self.pages.store(0, Ordering::Relaxed);
                self.pages_seen = 0;
                self.begin_again();
            }
            Err(error) => {
                self.restart_at = pages.saturating_add(RETRY_PAGES);
                judge(&error, fault);
            }
        }
        if let Err(error) = conn.busy_timeout(self.busy_timeout) {
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

fn help(conn: &Connection, signals: &Receiver<()>, fault: &FaultMark) {
    while signals.recv().is_ok() {
        if let Err(error) = conn.wal_checkpoint_v2(Some(rusqlite::MAIN_DB), CheckpointMode::PASSIVE)
        {
            judge(&error, fault);
        }
    }
}

/// A checkpoint that fails loses nothing: the WAL keeps what was not copied. But a disk that fails is not to be written to.
fn judge(error: &rusqlite::Error, fault: &FaultMark) {
    match write_fault(error) {
        WriteFault::Fatal => fault.set(error),
        _ => tracing::debug!(%error, "checkpoint put off"),
    }
}
