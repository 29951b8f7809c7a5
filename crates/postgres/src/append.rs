//! The handles that append, one for each log, and the connections that they use.
//!
//! A store with one log has a connection for it, and each batch is a statement of its own, written inside of
//! [`LogWriter::submit`]. With several logs the handles of a process share a connection, and their batches go together
//! (decision 0016). Every handle has an epoch of its own, so a row tells which handle wrote it, whatever the
//! connection.
//! Invariant: a connection has at most one handle for each log; a second handle for the log gets another connection.
//! Not here: what a batch contains, and what to do about its outcome (`gesta-append`).

pub(crate) mod appender;
pub(crate) mod columns;
pub(crate) mod encode;
pub(crate) mod flights;
pub(crate) mod gather;
pub(crate) mod prepared;
pub(crate) mod sharing;

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use gesta_core::backend::{Batch, BatchOutcome, LogWriter, WriterEpoch};
use gesta_core::{Error, LogId, Result};

use crate::append::appender::{Appender, Appends, Judged};
use crate::append::gather::StatementPart;
use crate::append::prepared::Prepared;
use crate::append::sharing::{SharedQueue, Sharing, unknown};
use crate::connect::connection::Connector;
use crate::error;

type Opened = Result<Arc<Sharing>>;
type Opening = BoxFuture<'static, Opened>;

/// Opens the handles of a process.
#[derive(Debug)]
pub(crate) struct Writers {
    connector: Arc<Connector>,
    logs: u16,
    current: Mutex<Current>,
}

/// The connection that the next handle gets, unless it is lost.
#[derive(Debug, Default)]
struct Current {
    open: Weak<Sharing>,
    /// The opening of the next connection. All handles that want one meanwhile wait for the same opening. It ends when
    /// no handle waits for it.
    opening: Option<WeakShared<Opening>>,
}

/// Appends to one log.
#[derive(Debug)]
pub(crate) struct Writer {
    epoch: WriterEpoch,
    log: LogId,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Alone(Box<Appender>),
    Shared(SharedQueue),
}

impl Writers {
    pub(crate) fn new(connector: Arc<Connector>, logs: u16) -> Self {
        Self {
            connector,
            logs,
            current: Mutex::default(),
        }
    }

    /// Opens a handle of a log.
    ///
    /// # Errors
    /// `Unavailable` if no primary can be reached; `Unsupported` if the settings of the server cannot keep the
    /// contract.
    pub(crate) async fn open(&self, log: LogId) -> Result<Writer> {
        let way = match self.logs {
            0 | 1 => {
                let appender = Appender::open(&self.connector, Appends::ToOneLog).await?;
                Way::Alone(Box::new(appender))
            }
            _ => Way::Shared(self.open_queue(log).await?),
        };
        Ok(Writer {
            epoch: WriterEpoch(rand::random()),
            log,
            way,
        })
    }

    async fn open_queue(&self, log: LogId) -> Result<SharedQueue> {
        loop {
            let opening = match self.find(log) {
                Ok(queue) => return Ok(queue),
                Err(opening) => opening,
            };
            let sharing = opening.await?;
            self.current().open = Arc::downgrade(&sharing);
            if let Some(queue) = sharing.open_queue(log) {
                return Ok(queue);
            }
            if sharing.is_lost() {
                return Err(Error::unavailable(
                    "the connection was lost while it was opened",
                ));
            }
            // Another handle of this log got its place first, so this one needs a further connection.
        }
    }

    /// Returns a place on the present connection, or else the opening of the next connection.
    fn find(&self, log: LogId) -> std::result::Result<SharedQueue, Shared<Opening>> {
        let mut current = self.current();
        if let Some(queue) = current.open.upgrade().and_then(|open| open.open_queue(log)) {
            return Ok(queue);
        }
        let under_way = current.opening.as_ref().and_then(WeakShared::upgrade);
        let under_way = under_way.filter(|opening| opening.peek().is_none());
        let opening = under_way.unwrap_or_else(|| {
            let connector = Arc::clone(&self.connector);
            let opening: Opening = async move {
                let appender = Appender::open(&connector, Appends::ToLogs).await?;
                Ok(Sharing::start(appender))
            }
            .boxed();
            opening.shared()
        });
        current.opening = opening.downgrade();
        Err(opening)
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogWriter for Writer {
    fn epoch(&self) -> WriterEpoch {
        self.epoch
    }

    fn is_gathered(&self) -> bool {
        matches!(self.way, Way::Shared(_))
    }

    fn submit(&mut self, batch: Arc<Batch>) -> BoxFuture<'static, BatchOutcome> {
        if let Way::Alone(appender) = &self.way
            && let Some(reason) = appender.doubt()
        {
            return std::future::ready(unknown(reason)).boxed();
        }
        let prepared = match Prepared::new(batch, self.log, self.epoch) {
            Ok(prepared) => Arc::new(prepared),
            Err(error) => return std::future::ready(BatchOutcome::Refused(error)).boxed(),
        };
        match &self.way {
            Way::Alone(appender) => alone(appender, self.log, prepared).boxed(),
            Way::Shared(queue) => queue.submit(prepared),
        }
    }
}

/// Sends a batch in a statement of its own.
fn alone(
    appender: &Appender,
    log: LogId,
    batch: Arc<Prepared>,
) -> impl Future<Output = BatchOutcome> + Send + use<> {
    let batches = vec![batch];
    let judged = appender.send(vec![StatementPart { log, batches }]);
    judged.map(|judged| match judged {
        Judged::Executed(good) if good.contains(&true) => BatchOutcome::Committed,
        Judged::Executed(_) => BatchOutcome::Missed,
        Judged::Failed(error) => error::outcome(&error),
        Judged::Unknown(reason) => unknown(reason),
    })
}
