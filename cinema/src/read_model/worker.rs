//! The task that follows the events and stores their changes.
//!
//! A session reads the checkpoint, subscribes after it, and stores batch after batch. When anything fails the session
//! is dropped, and a new one begins with the stored checkpoint. It keeps nothing else, so nothing is counted twice.

use std::sync::Arc;
use std::time::Duration;

use gesta::{
    BackOff, ErrorKind, EventStore, Filter, Query, RecordedEvent, Subscribe, SubscribeFrom,
    SubscribeTo, Subscription, SubscriptionMessage,
};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Batch, Change, Error, Stats, Views};
use crate::events::{self, CATEGORY, SEAT_RESERVATION_CANCELLED, SEAT_RESERVED, SHOW_CREATED};

/// Shortest time between two transactions, unless there is more to store than one takes.
const STORE_EVERY: Duration = Duration::from_secs(2);
/// Most events of one transaction.
const BATCH_EVENTS_MAX: u64 = 20_000;
/// Pauses after failures.
const RETRY: BackOff = BackOff::new(Duration::from_millis(100), Duration::from_secs(5));
/// How long the rows are left to another process that has moved the checkpoint on.
const STAND_BY: Duration = Duration::from_secs(2);

/// The task that follows the events and stores their changes.
pub(super) struct Worker {
    store: Arc<dyn EventStore>,
    views: Arc<dyn Views>,
    stats: Stats,
    /// Time at which the next batch is to be stored.
    store_at: Instant,
    retry: BackOff,
}

impl Worker {
    pub(super) fn new(store: Arc<dyn EventStore>, views: Arc<dyn Views>, stats: Stats) -> Self {
        Self {
            store,
            views,
            stats,
            store_at: Instant::now(),
            retry: RETRY,
        }
    }

    /// Follows the events until `stopping`. A batch that is being stored then is stored whole or not at all.
    pub(super) async fn run(mut self, stopping: CancellationToken) {
        let sessions = async {
            loop {
                if let Err(error) = self.session().await {
                    self.stats.failures.inc();
                    let retry_in = self.retry.pause();
                    tracing::warn!(%error, ?retry_in, "available seats are not up to date");
                    sleep(retry_in).await;
                }
            }
        };
        let _: Option<()> = stopping.run_until_cancelled(sessions).await;
    }

    /// Runs one session. It ends without an error when another session is to begin with what is stored.
    async fn session(&mut self) -> Result<(), Error> {
        let mut checkpoint = self.views.checkpoint().await?;
        let mut events = match self.subscribe(&checkpoint).await {
            Ok(events) => events,
            Err(error) => match error.kind() {
                ErrorKind::InvalidCheckpoint(_) | ErrorKind::InvalidArgument { .. } => {
                    return self.start_over(&checkpoint, &error).await;
                }
                _ => return Err(error.into()),
            },
        };
        loop {
            // A checkpoint alone is worth storing too: it spares the next start what was skipped.
            let batch = self.gather(&mut events, checkpoint).await?;
            if !self.views.apply(&batch).await? {
                return self.stand_by().await;
            }
            self.stats.batches.inc();
            self.stats.events.inc_by(batch.events);
            self.retry.reset();
            if batch.events < BATCH_EVENTS_MAX {
                self.store_at = Instant::now() + STORE_EVERY;
            }
            checkpoint = batch.to;
        }
    }

    async fn subscribe(&self, checkpoint: &str) -> gesta::Result<Subscription> {
        let from = match checkpoint {
            "" => SubscribeFrom::Start,
            text => SubscribeFrom::Checkpoint(text.parse()?),
        };
        let query = Query {
            categories: vec![CATEGORY.to_owned()],
            ..Query::default()
        };
        let to = SubscribeTo::All(Filter::query(query));
        self.store.subscribe(Subscribe { to, from }).await
    }

    /// Removes the rows, which are of another life of the store, such as one before a restore. They are counted again.
    async fn start_over(&self, checkpoint: &str, why: &gesta::Error) -> Result<(), Error> {
        let nothing = Batch {
            from: checkpoint.to_owned(),
            is_anew: true,
            ..Batch::default()
        };
        if !self.views.apply(&nothing).await? {
            return self.stand_by().await;
        }
        tracing::warn!(%why, "available seats are counted anew from the first event");
        self.stats.rebuilds.inc();
        Ok(())
    }

    /// Leaves the rows for a while to another process, which has moved the checkpoint on.
    async fn stand_by(&self) -> Result<(), Error> {
        self.stats.stood_by.inc();
        sleep(STAND_BY).await;
        Ok(())
    }

    /// Waits for something to store, then takes what comes until it is time to store it.
    async fn gather(&self, events: &mut Subscription, from: String) -> Result<Batch, Error> {
        let (mut batch, mut reached) = (Batch::default(), None);
        while batch.events < BATCH_EVENTS_MAX {
            let message = match reached {
                None => events.next().await,
                Some(_) => match timeout_at(self.store_at, events.next()).await {
                    Ok(message) => message,
                    Err(_) => break,
                },
            };
            let message = message.ok_or_else(|| gesta::Error::unavailable("no more events"))?;
            match message? {
                SubscriptionMessage::Event { event, checkpoint } => {
                    count(&event, &mut batch)?;
                    reached = Some(checkpoint);
                }
                SubscriptionMessage::Checkpoint(checkpoint) => reached = Some(checkpoint),
                // It tells nothing new of a place: what was skipped before it came as checkpoints.
                SubscriptionMessage::CaughtUp(_) | SubscriptionMessage::FellBehind(_) => {}
            }
            // Requests are not to wait until a large batch is counted.
            tokio::task::consume_budget().await;
        }
        batch.to = reached.map_or_else(|| from.clone(), |checkpoint| checkpoint.to_string());
        batch.from = from;
        Ok(batch)
    }
}

/// Adds the change of an event to a batch.
fn count(event: &RecordedEvent, batch: &mut Batch) -> Result<(), Error> {
    let unreadable = |detail: String| {
        let (position, stream) = (event.position, &event.stream);
        Error::Unreadable(format!(
            "at position {position} of stream {stream} cannot be read: {detail}"
        ))
    };
    batch.events += 1;
    let (seats, is_new) = match event.event_type.as_str() {
        SEAT_RESERVED => (-1, false),
        SEAT_RESERVATION_CANCELLED => (1, false),
        SHOW_CREATED => {
            let seats = events::seats_created(&event.data).map_err(unreadable)?;
            (i64::try_from(seats).unwrap_or(i64::MAX), true)
        }
        // A later version of this program may add types.
        _ => return Ok(()),
    };
    // The name of the stream costs less to read than the event.
    let show_id = event.stream.as_str().strip_prefix(CATEGORY);
    let show_id = show_id.and_then(|id| id.strip_prefix('-')).unwrap_or("");
    let show_id = Uuid::try_parse(show_id).map_err(|error| unreadable(error.to_string()))?;
    let change = batch.changes.entry(show_id).or_default();
    match is_new {
        true => *change = Change { seats, is_new },
        false => change.seats += seats,
    }
    Ok(())
}
