//! One connection that appends to all logs of a process: handles submit batches, statements leave, answers come back.
//!
//! A handle that submits a batch sends what may be sent, at once and in its own task; one task for each connection
//! takes the answers in order, sends what has gathered meanwhile, and then tells the handles. Invariants: statements
//! are written in the order in which [`Gather`] returns them, by one task at a time; once one outcome is unknown, all
//! outcomes that are not told yet are unknown, of every log. Not here: what is sent together, and what an answer means
//! for each batch (`gather`), the connection (`appender`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_core::backend::BatchOutcome;
use gesta_core::{Error, ErrorKind, LogId, Moment};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::append::appender::{Appender, Judged};
use crate::append::gather::{BatchVerdict, Gather, Piece, QueueId, Said, Ticket};
use crate::append::prepared::Prepared;
use crate::error::{self, Class};

/// A statement under way.
type Sent = BoxFuture<'static, Judged>;
type Waiter = oneshot::Sender<BatchOutcome>;

/// A connection that several logs share. It is closed when the last handle is dropped.
#[derive(Debug)]
pub(crate) struct Sharing {
    appender: Appender,
    state: Mutex<SharingState>,
    sent: mpsc::UnboundedSender<Sent>,
}

#[derive(Debug)]
struct SharingState {
    gather: Gather<Arc<Prepared>>,
    /// The handles that wait for the outcome of a batch.
    waiting: HashMap<Ticket, Waiter>,
    /// Whether a task is writing a statement; it will then look for another one.
    is_sending: bool,
    /// The reason why nothing is sent any more, if so.
    doubt: Option<String>,
}

/// The place of one log on a shared connection. Dropping it withdraws the batches that were not sent.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    sharing: Arc<Sharing>,
    queue: QueueId,
}

impl Sharing {
    pub(crate) fn start(appender: Appender) -> Arc<Self> {
        let (sent, receiver) = mpsc::unbounded_channel();
        let sharing = Arc::new(Self {
            appender,
            state: Mutex::new(SharingState {
                gather: Gather::new(),
                waiting: HashMap::new(),
                is_sending: false,
                doubt: None,
            }),
            sent,
        });
        tokio::spawn(receive(Arc::downgrade(&sharing), receiver));
        sharing
    }

    /// Returns a place for this log. Returns `None` if the log has one, or if the connection must be discarded.
    pub(crate) fn open_queue(self: &Arc<Self>, log: LogId) -> Option<SharedQueue> {
        if self.is_lost() {
            return None;
        }
        let queue = self.state().gather.open(log)?;
        let sharing = Arc::clone(self);
        Some(SharedQueue { sharing, queue })
    }

    /// Tells whether the connection must be discarded.
    pub(crate) fn is_lost(&self) -> bool {
        self.appender.is_lost()
    }

    fn state(&self) -> MutexGuard<'_, SharingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what may be sent. If another task is sending, that task looks again when it has finished.
    fn send(&self) {
        loop {
            let mut state = self.state();
            if state.is_sending || state.doubt.is_some() {
                return;
            }
            let Some(parts) = state.gather.next(now()) else {
                return;
            };
            state.is_sending = true;
            drop(state);
            let _sending = Sending(self);
            // This fails only if the task has ended; then all waiting handles were told.
            let _ = self.sent.send(self.appender.send(parts).boxed());
        }
    }

    /// Takes the answer to the oldest statement under way.
    fn on_judged(&self, judged: &Judged) {
        let said = match judged {
            Judged::Executed(good) => Said::Executed(good),
            Judged::Failed(error) => match error::class_of(error) {
                Class::Missed => Said::Collided,
                Class::Refused => Said::Refused,
                Class::Failed => Said::Failed,
                Class::Unknown => return self.end(&error::text(error)),
            },
            Judged::Unknown(reason) => return self.end(reason),
        };
        let mut state = self.state();
        if state.doubt.is_some() {
            return;
        }
        let Ok(verdicts) = state.gather.answered(said, now()) else {
            drop(state);
            return self.end("a batch was stored although one that it follows was not");
        };
        let told: Vec<(Option<Waiter>, BatchVerdict)> = verdicts
            .into_iter()
            .map(|(ticket, verdict)| (state.waiting.remove(&ticket), verdict))
            .collect();
        drop(state);
        // The database first gets work again, and then the handles are answered.
        self.send();
        for (told, verdict) in told {
            let outcome = match (verdict, judged) {
                (BatchVerdict::Committed, _) => BatchOutcome::Committed,
                (BatchVerdict::Error, Judged::Failed(error)) => error::outcome(error),
                _ => BatchOutcome::Missed,
            };
            if let Some(told) = told {
                // This fails only if nobody waits any more.
                let _ = told.send(outcome);
            }
        }
    }

    /// Puts everything in doubt that was not told. Nothing is sent any more.
    fn end(&self, reason: &str) {
        self.appender.raise(reason);
        let mut state = self.state();
        state.doubt.get_or_insert_with(|| reason.to_owned());
        state.gather.end();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for told in waiting.into_values() {
            let _ = told.send(unknown(reason.to_owned()));
        }
    }
}

impl SharedQueue {
    /// Takes a batch. It is sent at once, or when other statements that are under way have been answered.
    pub(crate) fn submit(&self, batch: Arc<Prepared>) -> BoxFuture<'static, BatchOutcome> {
        let (told, outcome) = oneshot::channel();
        let piece = piece_of(batch);
        let mut state = self.sharing.state();
        let doubt = state
            .doubt
            .clone()
            .or_else(|| self.sharing.appender.doubt());
        if let Some(reason) = doubt {
            return std::future::ready(unknown(reason)).boxed();
        }
        let ticket = state.gather.submit(self.queue, piece);
        state.waiting.insert(ticket, told);
        drop(state);
        self.sharing.send();
        outcome
            .map(|told| told.unwrap_or_else(|_| unknown("the writer was closed".to_owned())))
            .boxed()
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        let mut state = self.sharing.state();
        for ticket in state.gather.close(self.queue) {
            state.waiting.remove(&ticket);
        }
    }
}

/// Says that a statement is being written.
struct Sending<'a>(&'a Sharing);

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.state().is_sending = false;
        if std::thread::panicking() {
            self.0.end("a statement could not be written");
        }
    }
}

/// Tells all handles if the task that takes the answers ends before the connection does.
struct Receiving(Weak<Sharing>);

impl Drop for Receiving {
    fn drop(&mut self) {
        if let Some(sharing) = self.0.upgrade() {
            sharing.end("the answers of the database are not read any more");
        }
    }
}

/// Returns the time now, by the clock of the runtime.
fn now() -> Moment {
    Moment::of(Instant::now().into_std())
}

async fn receive(sharing: Weak<Sharing>, mut sent: mpsc::UnboundedReceiver<Sent>) {
    let receiving = Receiving(sharing);
    while let Some(statement) = sent.recv().await {
        let judged = statement.await;
        let Some(sharing) = receiving.0.upgrade() else {
            return;
        };
        sharing.on_judged(&judged);
    }
}

fn piece_of(batch: Arc<Prepared>) -> Piece<Arc<Prepared>> {
    let after = &batch.batch.after;
    let after = (after.position, after.writer);
    Piece {
        after,
        end: batch.end(),
        events: batch.events(),
        bytes: batch.bytes(),
        load: batch,
    }
}

pub(crate) fn unknown(reason: String) -> BatchOutcome {
    BatchOutcome::Unknown(Error::from(ErrorKind::OutcomeUnknown(reason)))
}
