//! The task that follows the events and stores what they change.
//!
//! A session reads the checkpoint, subscribes after it, and stores batch after batch; when anything fails it is
//! dropped and a new one begins with the stored checkpoint. Nothing is carried over, so nothing can be doubled.

use std::sync::Arc;
use std::time::Duration;

use gesta::{
    Checkpoint, ErrorKind, EventStore, EventType, Filter, Query, Subscribe, SubscribeFrom,
    SubscribeTo, Subscription, SubscriptionMessage,
};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::batch::Batch;
use super::{Error, Moved, Stats, Views};
use crate::events::{CATEGORY, SEAT_RESERVATION_CANCELLED, SEAT_RESERVED, SHOW_CREATED};

/// Shortest time between two transactions, unless there is more to store than one takes.
const STORE_EVERY: Duration = Duration::from_secs(2);
/// Most events of one transaction.
const BATCH_EVENTS_MAX: usize = 20_000;
/// How long to wait for the pages of a subscription that is behind; one that is not has its events at hand.
const PAGES_WAIT: Duration = Duration::from_millis(100);
/// Requests are not to wait until a batch is counted.
const YIELD_EVERY_EVENTS: usize = 512;
/// How long to wait after a failure: twice as long each time.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Another process keeps the rows: how long to let it, if it goes on.
const STAND_BY: Duration = Duration::from_secs(2);

/// Why a session has ended.
#[derive(Debug)]
enum Ended {
    /// Another process has moved the checkpoint on.
    Overtaken,
    /// The rows were cleared; begin from the first event.
    Rebuild,
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Ended {
    fn from(error: E) -> Self {
        Ended::Failed(error.into())
    }
}

/// See the module.
pub(super) struct Worker {
    store: Arc<dyn EventStore>,
    views: Arc<dyn Views>,
    stats: Arc<Stats>,
    /// When the last batch was stored; `None` if it was full, or there was none: there is probably more.
    stored_at: Option<Instant>,
    retry: Duration,
}

impl Worker {
    pub(super) fn new(
        store: Arc<dyn EventStore>,
        views: Arc<dyn Views>,
        stats: Arc<Stats>,
    ) -> Self {
        Self {
            store,
            views,
            stats,
            stored_at: None,
            retry: RETRY.0,
        }
    }

    /// Follows the events until `stopping`. What is being stored then is stored whole or not at all.
    pub(super) async fn run(mut self, stopping: CancellationToken) {
        stopping
            .run_until_cancelled(async {
                loop {
                    let Err(ended) = self.session().await;
                    self.recover(ended).await;
                }
            })
            .await;
    }

    async fn session(&mut self) -> Result<std::convert::Infallible, Ended> {
        let checkpoint = self.views.checkpoint().await?;
        let mut events = self.subscribe(&checkpoint).await?;
        let mut checkpoint = checkpoint;
        loop {
            let batch = self.gather(&mut events, checkpoint).await?;
            // A checkpoint alone is worth storing too: it spares the next start what was skipped.
            if self.views.apply(&batch).await? == Moved::No {
                return Err(Ended::Overtaken);
            }
            Stats::add(&self.stats.batches, 1);
            Stats::add(
                &self.stats.events,
                u64::try_from(batch.events).unwrap_or(u64::MAX),
            );
            self.retry = RETRY.0;
            self.stored_at = (batch.events < BATCH_EVENTS_MAX).then(Instant::now);
            checkpoint = batch.to;
        }
    }

    async fn subscribe(&self, checkpoint: &str) -> Result<Subscription, Ended> {
        let from = match checkpoint {
            "" => SubscribeFrom::Start,
            text => match text.parse::<Checkpoint>() {
                Ok(checkpoint) => SubscribeFrom::Checkpoint(checkpoint),
                Err(error) => return Err(self.start_over(checkpoint, &error).await?),
            },
        };
        let to = SubscribeTo::All(filter()?);
        match self.store.subscribe(Subscribe { to, from }).await {
            Ok(events) => Ok(events),
            Err(error) if matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)) => {
                Err(self.start_over(checkpoint, &error).await?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The rows are of another life of the store, such as one before a restore: they go, and are made again.
    async fn start_over(&self, checkpoint: &str, why: &gesta::Error) -> Result<Ended, Error> {
        Ok(match self.views.clear(checkpoint).await? {
            Moved::No => Ended::Overtaken,
            Moved::Yes => {
                tracing::warn!(%why, "available seats are counted anew from the first event");
                Stats::add(&self.stats.rebuilds, 1);
                Ended::Rebuild
            }
        })
    }

    /// Waits for something to store, lets it grow until it is time, and takes what has come by then.
    async fn gather(
        &mut self,
        events: &mut Subscription,
        checkpoint: String,
    ) -> Result<Batch, Ended> {
        let mut batch = Batch::after(checkpoint);
        let mut reached = None;
        while reached.is_none() {
            take(events.next().await, &mut batch, &mut reached)?;
        }
        let take_until = self.time_to_store().await;
        while batch.events < BATCH_EVENTS_MAX {
            // With a moment in the past: what is there already.
            match timeout_at(take_until, events.next()).await {
                Ok(message) => take(message, &mut batch, &mut reached)?,
                Err(_) => break,
            }
            if batch.events.is_multiple_of(YIELD_EVERY_EVENTS) {
                yield_now().await;
            }
        }
        if let Some(reached) = reached {
            batch.to = reached.to_string();
        }
        Ok(batch)
    }

    /// Waits until a transaction may begin; tells until when to take further events.
    async fn time_to_store(&self) -> Instant {
        let now = Instant::now();
        match self.stored_at.map(|at| at + STORE_EVERY) {
            Some(next) if next <= now => now,
            Some(next) => {
                sleep_until(next).await;
                next + PAGES_WAIT
            }
            None => now + PAGES_WAIT,
        }
    }

    async fn recover(&mut self, ended: Ended) {
        match ended {
            Ended::Rebuild => {}
            Ended::Overtaken => {
                Stats::add(&self.stats.stood_by, 1);
                self.stand_by().await;
            }
            Ended::Failed(error) => {
                Stats::add(&self.stats.failures, 1);
                tracing::warn!(%error, retry_in = ?self.retry, "available seats are not up to date");
                sleep(self.retry).await;
                self.retry = (self.retry * 2).min(RETRY.1);
            }
        }
    }

    /// Waits until the other process makes no progress for a while: it has stopped, or has nothing to do.
    async fn stand_by(&self) {
        let mut seen = None;
        while let Ok(checkpoint) = self.views.checkpoint().await {
            if seen.as_ref() == Some(&checkpoint) {
                return;
            }
            seen = Some(checkpoint);
            sleep(STAND_BY).await;
        }
    }
}

/// Takes a message into the batch.
fn take(
    message: Option<gesta::Result<SubscriptionMessage>>,
    batch: &mut Batch,
    reached: &mut Option<Checkpoint>,
) -> Result<(), Ended> {
    match message {
        Some(Ok(SubscriptionMessage::Event { event, checkpoint })) => {
            batch.count(&event)?;
            *reached = Some(checkpoint);
        }
        Some(Ok(SubscriptionMessage::Checkpoint(checkpoint))) => *reached = Some(checkpoint),
        // It tells nothing new of a place: what was skipped before it came as checkpoints.
        Some(Ok(SubscriptionMessage::CaughtUp(_))) => {}
        Some(Err(error)) => return Err(error.into()),
        None => return Err(gesta::Error::unavailable("the subscription has ended").into()),
    }
    Ok(())
}

/// The events of shows that change how many seats are available.
fn filter() -> gesta::Result<Filter> {
    let types = [SHOW_CREATED, SEAT_RESERVED, SEAT_RESERVATION_CANCELLED];
    let types: gesta::Result<Vec<EventType>> = types.into_iter().map(EventType::new).collect();
    Ok(Filter::query(Query {
        types: types?,
        categories: vec![CATEGORY.to_owned()],
        ..Query::default()
    }))
}
