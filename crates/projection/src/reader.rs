//! The reader of a projection: pages while it catches up, then a subscription.
//!
//! Why: pages are the fastest way to read much; a subscription is fed from the hub's ring, so that any number of live
//! projections share one read of the log, and idle ones cost none. Whoever wants fewer batches when live has what comes
//! within a time gathered here: the subscription is read on meanwhile, so that it does not fall behind.
//! Invariants: the batches follow each other without a gap; none reaches beyond what its read has passed.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{
    AllFrom, Checkpoint, Error, EventStore, Filter, ReadAll, Result, Subscribe, SubscribeFrom,
    SubscribeTo, Subscription, SubscriptionMessage,
};
use tokio::time::{Instant, timeout_at};

use crate::batch::{Batch, Events};

pub(crate) struct Reader {
    store: Arc<dyn EventStore>,
    filter: Filter,
    /// Everything up to here was handed out.
    at: Checkpoint,
    live: Option<Subscription>,
    live_events_max: usize,
    live_every: Duration,
    /// Until this time events are gathered when live.
    gathers_until: Option<Instant>,
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
            live_every: Duration::ZERO,
            gathers_until: None,
        }
    }

    /// Sets the shortest time between two batches when live, unless the first is as large as may be.
    pub(crate) fn live_every(self, live_every: Duration) -> Self {
        Self { live_every, ..self }
    }

    /// Waits for the next batch of at most `limit` events. One without events moves the place, or says that everything
    /// was read.
    pub(crate) async fn next(&mut self, limit: usize) -> Result<Batch> {
        if let Some(live) = &mut self.live {
            let max = limit.min(self.live_events_max);
            if let Some(batch) = next_live(live, &mut self.at, max, self.gathers_until).await? {
                self.pace(&batch);
                return Ok(batch);
            }
            self.live = None;
        }
        let request = ReadAll::forwards()
            .from(AllFrom::Checkpoint(self.at.clone()))
            .filter(self.filter.clone())
            .limit(limit);
        let page = self.store.read_all(request).await?;
        // Also after a page with events: where others append all the time, none may ever be empty.
        if page.end {
            let request = Subscribe {
                to: SubscribeTo::All(self.filter.clone()),
                from: SubscribeFrom::Checkpoint(page.next.clone()),
            };
            self.live = Some(self.store.subscribe(request).await?);
        }
        let from = std::mem::replace(&mut self.at, page.next.clone());
        let batch = Batch {
            events: Events::Page(page.events),
            from,
            to: page.next,
            caught_up: page.end,
        };
        self.pace(&batch);
        Ok(batch)
    }

    /// Sets until when events are gathered after a batch.
    fn pace(&mut self, batch: &Batch) {
        if !batch.is_empty() {
            let is_paced = !self.live_every.is_zero() && batch.caught_up;
            self.gathers_until = is_paced.then(|| Instant::now() + self.live_every);
        }
    }
}

/// Takes what the subscription has ready, and what comes until a time if there is an event; at most `max` events, and
/// no further one once they have the bytes of a page. Waits for the first message. `None` if the subscriber has fallen
/// behind: pages are faster then.
async fn next_live(
    live: &mut Subscription,
    at: &mut Checkpoint,
    max: usize,
    until: Option<Instant>,
) -> Result<Option<Batch>> {
    let from = at.clone();
    let (mut events, mut bytes) = (Vec::new(), 0);
    let mut caught_up = false;
    let mut next = live.next().await;
    loop {
        let message = next.ok_or_else(|| Error::unavailable("the subscription has ended"))?;
        match message {
            Ok(SubscriptionMessage::Event { event, checkpoint }) => {
                bytes += event.cost_bytes();
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
        if events.len() >= max || bytes >= PAGE_BYTES_MAX {
            break;
        }
        let ready = match until.filter(|_| !events.is_empty()) {
            Some(until) => timeout_at(until, live.next()).await.ok(),
            None => live.next().now_or_never(),
        };
        match ready {
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
    use gesta_core::{Append, EventData, ExpectedRevision, Incarnation, LogId, Position};
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
        while let Some(batch) = next_live(&mut live, &mut at, 2, None).now_or_never() {
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

    /// What happened: a live batch was bounded in number alone, so a few thousand large events were in memory at once.
    /// Now it ends once it has the bytes of a page, as batches of pages do.
    #[tokio::test]
    async fn a_live_batch_is_bounded_in_bytes() {
        let history = History::new().json("a-1", "noted", "x".repeat(PAGE_BYTES_MAX / 2));
        let messages = (1..=4).map(|position| {
            let mut event = history.events()[0].clone();
            event.position = Position(position);
            Ok(SubscriptionMessage::Event {
                event: Arc::new(event),
                checkpoint: place(position),
            })
        });
        let ready = stream::iter(messages.collect::<Vec<_>>()).chain(stream::pending());
        let (mut live, mut at) = (Subscription::new(ready), place(0));
        for (to, caught_up) in [(2, false), (4, false)] {
            let batch = next_live(&mut live, &mut at, 1_000, None).await;
            let batch = batch.expect("a batch").expect("a batch");
            assert_eq!((batch.len(), batch.caught_up), (2, caught_up));
            assert_eq!(at, place(to));
        }
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

    /// Goal: when live, an event after a silence is a batch at once; what comes within the time after a batch is one
    /// batch at the end of it, unless that is as large as may be.
    #[tokio::test(start_paused = true)]
    async fn live_batches_keep_their_distance() {
        let (feed, fed) = tokio::sync::mpsc::unbounded_channel();
        let messages = stream::unfold(fed, async |mut fed| {
            let position = fed.recv().await?;
            Some((event(position), fed))
        });
        let store: Arc<dyn EventStore> = Arc::new(gesta_memory::MemoryStore::new());
        let pause = Duration::from_secs(2);
        let mut reader = Reader::new(store, Filter::ALL, place(0), 3).live_every(pause);
        reader.live = Some(Subscription::new(messages));
        let begun = Instant::now();
        let send = |positions: std::ops::Range<u64>| {
            positions.for_each(|position| feed.send(position).expect("it is read"));
        };
        let mut next = async || {
            let batch = reader.next(10).await.expect("a batch");
            let to = crate::batch::positions(&batch.to)[0].0;
            (begun.elapsed(), batch.len(), to, batch.caught_up)
        };
        let second = Duration::from_secs(1);
        tokio::time::sleep(second).await;
        send(1..2);
        assert_eq!(next().await, (second, 1, 1, true));
        send(2..3);
        tokio::time::sleep(second).await;
        send(3..4);
        assert_eq!(next().await, (3 * second, 2, 3, true));
        // As many as a batch may have do not wait, nor do those right after them.
        send(4..9);
        assert_eq!(next().await, (3 * second, 3, 6, false));
        assert_eq!(next().await, (3 * second, 2, 8, true));
        tokio::time::sleep(2 * second).await;
        send(9..10);
        assert_eq!(next().await, (5 * second, 1, 9, true));
    }

    /// What happened: a reader subscribed only after a page without events. Where others appended all the time it read
    /// pages for ever, though it said that it was live, and batches kept no distance. Goal: a page that has everything
    /// there is ends the paging.
    #[tokio::test(start_paused = true)]
    async fn a_reader_subscribes_although_each_page_has_events() {
        let store = Arc::new(gesta_memory::MemoryStore::new());
        let append = async || {
            let event = EventData::json("noted".parse().expect("a type"), "{}");
            let stream = "a-1".parse().expect("a stream");
            let append = Append::to(stream, ExpectedRevision::Any, vec![event]);
            store.append(append).await.expect("appended");
        };
        let info = store.info().await.expect("info");
        let start = Checkpoint::logs(info.incarnation, info.heads);
        let pause = Duration::from_secs(2);
        let mut reader =
            Reader::new(Arc::clone(&store) as _, Filter::ALL, start, 100).live_every(pause);
        let begun = Instant::now();
        for turn in 0..3 {
            append().await;
            let batch = reader.next(100).await.expect("a batch");
            assert_eq!((batch.len(), batch.caught_up), (1, true));
            assert!(reader.live.is_some(), "{turn}");
            assert_eq!(begun.elapsed(), pause * turn);
        }
    }
}
