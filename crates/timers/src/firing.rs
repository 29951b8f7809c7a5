//! The handlers that run, and what has fired and is not stored yet.
//!
//! Why apart from the owner: a process may have to claim the timers again while handlers run, because the store did not
//! answer. A handler that was begun ends what it does all the same.
//! Invariants: a process does not begin a handler while one of the same timer runs. A handler counts only in the
//! history of the store in which it was begun: in another one, what it has done may be lost.

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use gesta_core::{EventId, Incarnation};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, timeout_at};

use crate::timer::{FireError, Timer};

type Outcome = std::result::Result<(), FireError>;
/// Begins to fire a timer.
pub(crate) type Fire = dyn Fn(Timer) -> BoxFuture<'static, Outcome> + Send + Sync;

/// The end of a handler: which timer it was of, and why it has failed, if it has.
pub(crate) type Ended = (EventId, std::result::Result<(), String>);

/// The handlers of a process.
#[derive(Debug, Default)]
pub(crate) struct Firing {
    /// The history of the store in which they were begun.
    history: Option<Incarnation>,
    handlers: JoinSet<Outcome>,
    timers: HashMap<Id, EventId>,
    /// The timers that have fired, and that is not stored yet.
    pub(crate) done: Vec<EventId>,
}

impl Firing {
    /// Begins to fire in this history of the store. Handlers that were begun in another one are ended.
    pub(crate) async fn begin_in(&mut self, history: Incarnation) {
        if self.history.replace(history) != Some(history) {
            self.end().await;
            self.done.clear();
        }
    }

    /// Ends all handlers that run, and waits until they have.
    pub(crate) async fn end(&mut self) {
        self.handlers.shutdown().await;
        self.timers.clear();
    }

    /// Returns the number of handlers that run.
    pub(crate) fn len(&self) -> usize {
        self.handlers.len()
    }

    /// Returns whether no handler runs.
    pub(crate) fn is_empty(&self) -> bool {
        self.handlers.is_empty()
    }

    /// Fires a timer, unless a handler of it runs.
    pub(crate) fn begin(&mut self, timer: Timer, fire: &Arc<Fire>) {
        let id = timer.id;
        if !self.timers.values().any(|running| *running == id) {
            let fire = Arc::clone(fire);
            let handler = self.handlers.spawn(async move { fire(timer).await });
            self.timers.insert(handler.id(), id);
        }
    }

    /// Waits for the end of a handler. Returns none if no handler runs.
    ///
    /// # Cancel safety
    /// Dropping the future loses no end.
    pub(crate) async fn next(&mut self) -> Option<Ended> {
        let ended = self.handlers.join_next_with_id().await?;
        self.ended(ended)
    }

    /// Waits for the end of a handler, at most until then.
    pub(crate) async fn next_until(&mut self, until: Instant) -> Option<Ended> {
        timeout_at(until, self.next()).await.ok().flatten()
    }

    /// Returns the end of a handler that has ended.
    pub(crate) fn try_next(&mut self) -> Option<Ended> {
        let ended = self.handlers.try_join_next_with_id()?;
        self.ended(ended)
    }

    fn ended(&mut self, ended: std::result::Result<(Id, Outcome), JoinError>) -> Option<Ended> {
        let (handler, outcome) = match ended {
            Ok((handler, outcome)) => (handler, outcome.map_err(|error| error.to_string())),
            Err(error) => (error.id(), Err(error.to_string())),
        };
        let id = self.timers.remove(&handler)?;
        Some((id, outcome))
    }
}
