//! Tails: consumers that follow the log through all faults, resuming by checkpoint.
//!
//! Not here: what a tail must have seen; that is its sink's.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    AllFrom, Checkpoint, Error, ErrorKind, Filter, ReadAll, RecordedEvent, Subscribe,
    SubscribeFrom, SubscribeTo, SubscriptionMessage,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use gesta_load::machine::CurrentStore;

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
    /// By a subscription that it also lets go whenever it is told to.
    SubscribeRestless,
    /// By reading pages.
    Poll,
}

/// Where the events of a tail go.
pub(crate) trait Sink: Send {
    /// The next event.
    fn received(&mut self, event: &RecordedEvent);

    /// The tail was thrown out and will come back.
    fn broken(&mut self, error: &Error);

    /// The tail has ended for something that it does not deserve.
    fn wrong(&mut self, text: String);

    /// The tail has let go as it was told to; gives the place where it goes on.
    fn let_go(&mut self, at: Option<Checkpoint>) -> Option<Checkpoint> {
        at
    }
}

/// A consumer.
pub(crate) struct Tail<S> {
    /// For messages.
    pub(crate) name: String,
    /// How it follows.
    pub(crate) manner: Manner,
    /// The store.
    pub(crate) store: Arc<CurrentStore>,
    /// Counts up when a restless subscriber must let go.
    pub(crate) let_go: watch::Receiver<u64>,
    /// Ends it.
    pub(crate) over: CancellationToken,
    /// Where its events go.
    pub(crate) sink: S,
}

impl<S: Sink> Tail<S> {
    /// Follows from a place in the log (none: its beginning) until the run is over.
    pub(crate) async fn run(mut self, start: Option<Checkpoint>) {
        let over = self.over.clone();
        tokio::select! {
            () = over.cancelled() => {}
            () = self.follow(start) => {}
        }
    }

    async fn follow(&mut self, mut at: Option<Checkpoint>) {
        loop {
            let ended = match self.manner {
                Manner::Subscribe | Manner::SubscribeRestless => self.subscription(&mut at).await,
                Manner::Poll => self.poll(&mut at).await,
            };
            let Err(error) = ended else {
                at = self.sink.let_go(at);
                continue;
            };
            self.sink.broken(&error);
            if matches!(
                error.kind(),
                ErrorKind::InvalidCheckpoint(_)
                    | ErrorKind::InvalidArgument { .. }
                    | ErrorKind::Corrupt(_)
            ) {
                return self.sink.wrong(format!("{}: {error}", self.name));
            }
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
        let mut subscription = self.store.get().subscribe(request).await?;
        loop {
            let message = tokio::select! {
                message = subscription.next() => message,
                Ok(()) = self.let_go.changed(), if self.manner == Manner::SubscribeRestless => return Ok(()),
            };
            match message {
                Some(Ok(SubscriptionMessage::Event { event, checkpoint })) => {
                    self.sink.received(&event);
                    *at = Some(checkpoint);
                }
                Some(Ok(
                    SubscriptionMessage::Checkpoint(checkpoint)
                    | SubscriptionMessage::CaughtUp(checkpoint)
                    | SubscriptionMessage::FellBehind(checkpoint),
                )) => *at = Some(checkpoint),
                Some(Err(error)) => return Err(error),
                None => return Err(Error::unavailable("the subscription ended")),
            }
        }
    }

    async fn poll(&mut self, at: &mut Option<Checkpoint>) -> gesta_core::Result<()> {
        loop {
            let from = at.clone().map_or(AllFrom::Start, AllFrom::Checkpoint);
            let request = ReadAll::forwards().from(from).limit(PAGE);
            let page = self.store.get().read_all(request).await?;
            for event in &page.events {
                self.sink.received(event);
            }
            *at = Some(page.next);
            if page.end {
                tokio::time::sleep(POLL_PAUSE).await;
            }
        }
    }
}
