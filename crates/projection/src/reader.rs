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

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use futures::stream;
    use gesta_core::{Incarnation, LogId, Position};
    use uuid::Uuid;

    use crate::testing::History;

    fn place(position: u64) -> Checkpoint {
        Checkpoint::in_log(
            Incarnation(Uuid::from_u128(1)),
            1,
            LogId(0),
            Position(position),
        )
    }

    fn event(position: u64) -> Result<SubscriptionMessage> {
        let history = History::new().json("a-1", "noted", "{}");
        let mut event = history.events()[0].clone();
        event.position = Position(position);
        Ok(SubscriptionMessage::Event {
            event: Arc::new(event),
            checkpoint: place(position),
        })
    }

    /// Takes batches of at most two events until the subscription has nothing ready; `None` for a fall behind.
    async fn batches(
        messages: Vec<Result<SubscriptionMessage>>,
    ) -> Vec<Option<(usize, u64, bool)>> {
        let ready = stream::iter(messages).chain(stream::pending());
        let (mut live, mut at, mut found) = (Subscription::new(ready), place(0), Vec::new());
        while let Some(batch) = next_live(&mut live, &mut at, 2).now_or_never() {
            let Ok(batch) = batch else { break };
            found.push(batch.map(|batch| {
                assert_eq!(batch.to, at);
                (
                    batch.len(),
                    crate::batch::positions(&at)[0].0,
                    batch.caught_up,
                )
            }));
        }
        found
    }

    /// Goal: what is ready is taken together, up to the maximum, and the place is that of the last message taken.
    #[tokio::test]
    async fn what_is_ready_is_one_batch() {
        let messages = vec![
            event(1),
            event(2),
            event(5),
            Ok(SubscriptionMessage::Checkpoint(place(9))),
        ];
        let expected = [Some((2, 2, false)), Some((1, 9, true))];
        assert_eq!(batches(messages).await, expected);
    }

    /// Schedule 15: a subscriber that the hub has dropped to paging reads pages itself, and leaves out nothing: the
    /// events before the message come first.
    #[tokio::test]
    async fn schedule_15_events_before_a_fall_behind_come_first() {
        let behind = || Ok(SubscriptionMessage::FellBehind(place(3)));
        assert_eq!(batches(vec![behind(), event(4)]).await[0], None);
        assert_eq!(
            batches(vec![event(1), behind()]).await,
            [Some((1, 1, false))]
        );
    }

    /// Schedule 14: events before an error are good, and the error ends the reading.
    #[tokio::test]
    async fn schedule_14_events_before_an_error_come_first() {
        let error = || Err(Error::unavailable("the connection died"));
        assert_eq!(
            batches(vec![event(1), error()]).await,
            [Some((1, 1, false))]
        );
        assert_eq!(batches(vec![error()]).await, []);
    }
}
