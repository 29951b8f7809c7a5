//! A writer of a log that fails when the log has moved to another database or is lost, or a database was set back.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use gesta_core::backend::{Batch, BatchOutcome, LogWriter, WriterEpoch};
use gesta_core::{Error, LogId, Result};

use crate::several::route::Routes;

/// A writer of a log in one of the databases.
///
/// A log that has moved is closed where it was, so a batch that is sent there misses. What follows (reading on,
/// deciding again) goes to the new database by the map; only the writer itself must be opened again there. So it must
/// when the history of any database has changed: that the log is whole was proven before. It may also have been opened
/// by the proof of before, while a database did not answer, which then has said that the log is lost.
pub(crate) struct RoutedWriter {
    pub(crate) inner: Box<dyn LogWriter>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) log: LogId,
    /// The index of the database that the inner writer writes to.
    pub(crate) at: usize,
    /// The sum of the histories of all databases when the writer was opened.
    pub(crate) history: u64,
}

impl LogWriter for RoutedWriter {
    fn epoch(&self) -> WriterEpoch {
        self.inner.epoch()
    }

    fn is_gathered(&self) -> bool {
        self.inner.is_gathered()
    }

    fn submit(&mut self, batch: Arc<Batch>) -> BoxFuture<'static, BatchOutcome> {
        match self.check() {
            Ok(()) => self.inner.submit(batch),
            Err(error) => ready(BatchOutcome::Unknown(error)).boxed(),
        }
    }
}

impl RoutedWriter {
    /// Checks that the log still lies, proven and whole, where the inner writer writes to.
    fn check(&self) -> Result<()> {
        if self.routes.home(self.log)? != self.at {
            let text = format!("log {} has moved to another database", self.log);
            return Err(Error::unavailable(text));
        }
        if self.routes.history() != self.history {
            return Err(Error::unavailable("the history of a database has changed"));
        }
        self.routes.check_still_proven(self.log)
    }
}
