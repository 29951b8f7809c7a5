//! The reader of a projection: pages while it catches up, then a subscription.
//!
//! Why: pages are the fastest way to read much; a subscription is fed from the hub's ring, so that any number of live
//! projections share one read of the log, and idle ones cost none.
//! Invariants: the batches follow each other without a gap; none reaches beyond what its read has passed.

use std::sync::Arc;

use futures::FutureExt;
use gesta_core::{
    AllFrom, Checkpoint, Error, EventStore, Filter, ReadAll, Result, Subscribe, SubscribeFrom,
    SubscribeTo, Subscription, SubscriptionMessage,
};

use crate::batch::{Batch, Events};

pub(crate) struct Reader {
    store: Arc<dyn EventStore>,
    filter: Filter,
    /// Everything up to here was handed out.
    at: Checkpoint,
    live: Option<Subscription>,
    live_events_max: usize,
}

impl Reader {
    pub(crate) fn new(
        store: Arc<dyn EventStore>,
        filter: Filter,
        at: Checkpoint,
        live_events_max: usize,
    ) -> Self {
        Self {
            store,
            filter,
            at,
            live: None,
            live_events_max,
        }
    }

    /// Waits for the next batch of at most `limit` events. One without events moves the place, or says that everything
    /// was read.
    pub(crate) async fn next(&mut self, limit: usize) -> Result<Batch> {
        if let Some(live) = &mut self.live {
            let max = limit.min(self.live_events_max);
            if let Some(batch) = next_live(live, &mut self.at, max).await? {
                return Ok(batch);
            }
            self.live = None;
        }
        let request = ReadAll::forwards()
            .from(AllFrom::Checkpoint(self.at.clone()))
            .filter(self.filter.clone())
            .limit(limit);
        let page = self.store.read_all(request).await?;
        if page.end && page.events.is_empty() {
            let request = Subscribe {
                to: SubscribeTo::All(self.filter.clone()),
                from: SubscribeFrom::Checkpoint(page.next.clone()),
            };
            self.live = Some(self.store.subscribe(request).await?);
        }
        let from = std::mem::replace(&mut self.at, page.next.clone());
        Ok(Batch {
            events: Events::Page(page.events),
            from,
            to: page.next,
            caught_up: page.end,
        })
    }
}

/// Takes what the subscription has ready, at most `max` events; waits for the first message. `None` if the subscriber
/// has fallen behind: pages are faster then.
async fn next_live(
    live: &mut Subscription,
    at: &mut Checkpoint,
    max: usize,
) -> Result<Option<Batch>> {
    let from = at.clone();
    let mut events = Vec::new();
    let mut caught_up = false;
    let mut next = live.next().await;
    loop {
        let message = next.ok_or_else(|| Error::unavailable("the subscription has ended"))?;
        match message {
            Ok(SubscriptionMessage::Event { event, checkpoint }) => {
                events.push(event);
                *at = checkpoint;
            }
            Ok(
                SubscriptionMessage::Checkpoint(checkpoint)
                | SubscriptionMessage::CaughtUp(checkpoint),
            ) => {
                *at = checkpoint;
            }
            Ok(SubscriptionMessage::FellBehind(checkpoint)) if events.is_empty() => {
                *at = checkpoint;
                return Ok(None);
            }
            Ok(SubscriptionMessage::FellBehind(_)) => break,
            Err(error) if events.is_empty() => return Err(error),
            // The events before the error are good; the next call meets the end of the subscription.
            Err(_) => break,
        }
        if events.len() >= max {
            break;
        }
        match live.next().now_or_never() {
            Some(message) => next = message,
            None => {
                caught_up = true;
                break;
            }
        }
    }
    Ok(Some(Batch {
        events: Events::Live(events),
        from,
        to: at.clone(),
        caught_up,
    }))
}
