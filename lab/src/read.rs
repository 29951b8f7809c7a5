//! How fast a consumer catches up on the whole log: by pages, and by a subscription. Every event is decoded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta_core::{
    AllFrom, EventStore, Filter, Subscribe, SubscribeFrom, SubscribeTo, SubscriptionMessage,
};
use tokio_util::sync::CancellationToken;

use crate::failure::{Context, Result, fail};
use crate::faults::{CurrentStore, ask};

/// How long the store may be unavailable.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads the log page by page; returns how many events there were, and how many a second.
pub(crate) async fn by_pages(store: &Arc<dyn EventStore>) -> Result<(u64, f64)> {
    let (begin, mut events) = (Instant::now(), 0);
    let store = CurrentStore::new(Arc::clone(store), None);
    let read = ask::read_all(&store, AllFrom::Start, PATIENCE, |event| {
        events += 1;
        decode(&event);
    });
    read.await.context("reading all")?;
    Ok((events, per_second(events, begin)))
}

/// The same by a subscription from the start of the log until it has caught up.
pub(crate) async fn by_subscription(
    store: &dyn EventStore,
    stop: &CancellationToken,
) -> Result<(u64, f64)> {
    let request = Subscribe {
        to: SubscribeTo::All(Filter::ALL),
        from: SubscribeFrom::Start,
    };
    let (begin, mut events) = (Instant::now(), 0);
    let mut subscription = store.subscribe(request).await.context("subscribing")?;
    while !stop.is_cancelled() {
        match subscription.next().await {
            Some(Ok(SubscriptionMessage::Event { event, .. })) => {
                events += 1;
                decode(&event);
            }
            Some(Ok(SubscriptionMessage::CaughtUp(_))) => break,
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.into()),
            None => return fail("a subscription ended"),
        }
    }
    Ok((events, per_second(events, begin)))
}

fn per_second(events: u64, begin: Instant) -> f64 {
    events as f64 / begin.elapsed().as_secs_f64().max(0.000_001)
}

/// What a projection does at least: it looks at the event and parses its payload.
fn decode(event: &gesta_core::RecordedEvent) {
    let parsed: Option<serde::de::IgnoredAny> = serde_json::from_slice(&event.data).ok();
    std::hint::black_box((parsed.is_some(), event.revision, event.id, &event.stream));
}
