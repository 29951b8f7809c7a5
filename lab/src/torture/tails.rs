//! Tails: consumers that follow the log through all faults, resuming by checkpoint, and remember what they got.
//!
//! What they must have seen in the end is exactly the stored log: whatever a tail does not have although it
//! stands below a position that the tail has passed, became visible too late.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_core::{
    AllFrom, Checkpoint, ErrorKind, EventStore, Filter, LogId, Position, ReadAll, RecordedEvent,
    Subscribe, SubscribeFrom, SubscribeTo, SubscriptionMessage,
};
use gesta_testkit::history::TailerId;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::record::SharedRecord;

/// Pause before a tail that was thrown out comes back.
const BACK_OFF: Duration = Duration::from_millis(20);
/// Pause between the pages of a poller that has reached the end.
const POLL_PAUSE: Duration = Duration::from_millis(3);
/// Events per page of a poller.
const PAGE: usize = 500;

/// How a tail follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// By a subscription that it lets go only when it breaks.
    Subscribe,
    /// By a subscription that it also lets go, and resumes, after every round.
    SubscribeRestless,
    /// By reading pages.
    Poll,
}

/// A consumer.
pub(crate) struct Tail {
    /// For messages.
    pub(crate) name: String,
    /// How it follows.
    pub(crate) manner: Manner,
    /// The store.
    pub(crate) store: Arc<dyn EventStore>,
    /// Counts up when a subscriber must let go and resume by its checkpoint.
    pub(crate) let_go: watch::Receiver<u64>,
    /// Ends it.
    pub(crate) over: CancellationToken,
    /// Where violations go.
    pub(crate) record: SharedRecord,
    /// It in the history.
    pub(crate) id: TailerId,
    /// How far it is.
    pub(crate) log: Arc<TailLog>,
}

/// How far a tail is.
#[derive(Debug, Default)]
pub(crate) struct TailLog {
    ends: Mutex<HashMap<LogId, Position>>,
    resumed: AtomicU64,
}

impl TailLog {
    /// The last position per log.
    pub(crate) fn ends(&self) -> HashMap<LogId, Position> {
        self.ends.lock().unwrap().clone()
    }

    /// How often it resumed.
    pub(crate) fn resumed(&self) -> u64 {
        self.resumed.load(Ordering::Relaxed)
    }
}

impl Tail {
    /// Follows until the run is over.
    pub(crate) async fn run(mut self) {
        let over = self.over.clone();
        tokio::select! {
            () = over.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(&mut self) {
        let mut at: Option<Checkpoint> = None;
        loop {
            let ended = match self.manner {
                Manner::Subscribe | Manner::SubscribeRestless => self.subscription(&mut at).await,
                Manner::Poll => self.poll(&mut at).await,
            };
            if let Err(error) = ended
                && matches!(
                    error.kind(),
                    ErrorKind::InvalidCheckpoint(_)
                        | ErrorKind::InvalidArgument { .. }
                        | ErrorKind::Corrupt(_)
                )
            {
                self.record.violation(format!("{}: {error}", self.name));
            }
            self.log.resumed.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(BACK_OFF).await;
        }
    }

    /// One subscription, from the checkpoint until it breaks or is let go.
    async fn subscription(&mut self, at: &mut Option<Checkpoint>) -> gesta_core::Result<()> {
        self.let_go.mark_unchanged();
        let from = at
            .clone()
            .map_or(SubscribeFrom::Start, SubscribeFrom::Checkpoint);
        let request = Subscribe {
            to: SubscribeTo::All(Filter::ALL),
            from,
        };
        let mut subscription = self.store.subscribe(request).await?;
        loop {
            let message = tokio::select! {
                message = subscription.next() => message,
                Ok(()) = self.let_go.changed(), if self.manner == Manner::SubscribeRestless => return Ok(()),
            };
            match message {
                Some(Ok(SubscriptionMessage::Event { event, checkpoint })) => {
                    self.received(&event);
                    *at = Some(checkpoint);
                }
                Some(Ok(
                    SubscriptionMessage::Checkpoint(checkpoint)
                    | SubscriptionMessage::CaughtUp(checkpoint),
                )) => {
                    *at = Some(checkpoint);
                }
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            }
        }
    }

    async fn poll(&mut self, at: &mut Option<Checkpoint>) -> gesta_core::Result<()> {
        loop {
            let from = at.clone().map_or(AllFrom::Start, AllFrom::Checkpoint);
            let page = self
                .store
                .read_all(ReadAll::forwards().from(from).limit(PAGE))
                .await?;
            page.events.iter().for_each(|event| self.received(event));
            *at = Some(page.next);
            if page.end {
                tokio::time::sleep(POLL_PAUSE).await;
            }
        }
    }

    fn received(&self, event: &RecordedEvent) {
        self.log
            .ends
            .lock()
            .unwrap()
            .insert(event.log, event.position);
        self.record.history.saw(self.id, event);
    }
}
