//! How long after its acknowledgement an event reaches a live subscriber.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta_core::{
    Append, EventData, EventId, EventStore, EventType, ExpectedRevision, Filter, StreamId,
    Subscribe, SubscribeFrom, SubscribeTo, SubscriptionMessage,
};
use tokio_util::sync::CancellationToken;

use crate::failure::{Context, Result, fail};
use crate::histogram::{Latencies, Percentiles};

/// Longest wait for the last events.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause between appends, so that each finds a store at rest.
const PAUSE: Duration = Duration::from_millis(2);

/// Appends one event after the other for so long; percentiles of the time from the acknowledgement until the subscriber has it.
pub(super) async fn measure(
    store: &Arc<dyn EventStore>,
    duration: Duration,
    stop: &CancellationToken,
) -> Result<Percentiles> {
    let mut subscription = store
        .subscribe(Subscribe {
            to: SubscribeTo::All(Filter::ALL),
            from: SubscribeFrom::End,
        })
        .await
        .context("subscribing")?;
    loop {
        match subscription.next().await {
            Some(Ok(SubscriptionMessage::CaughtUp(_))) => break,
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.into()),
            None => return fail("the subscription ended"),
        }
    }
    let (report, mut acknowledged) = tokio::sync::mpsc::unbounded_channel();
    let appending = tokio::spawn(append(Arc::clone(store), duration, stop.clone(), report));
    let (mut sent, mut received) = (HashMap::new(), HashMap::new());
    let (mut latencies, mut all_sent) = (Latencies::default(), false);
    let mut last = Instant::now();
    while !(all_sent && sent.is_empty()) {
        let at = tokio::select! {
            acknowledgement = acknowledged.recv(), if !all_sent => match acknowledgement {
                Some((id, at)) => {
                    sent.insert(id, at);
                    Some(id)
                }
                None => {
                    all_sent = true;
                    None
                }
            },
            event = subscription.next_event() => {
                let id = event.context("a subscription ended")?.id;
                received.insert(id, Instant::now());
                Some(id)
            }
            () = tokio::time::sleep_until((last + PATIENCE).into()) => {
                return fail(format!("{} events did not reach the subscriber", sent.len()));
            }
        };
        last = Instant::now();
        // An event may come before the caller has heard of its acknowledgement: that is no wait at all.
        if let Some(id) = at
            && let (Some(from), Some(to)) = (sent.get(&id), received.get(&id))
        {
            latencies.record(to.saturating_duration_since(*from));
            sent.remove(&id);
            received.remove(&id);
        }
    }
    appending.await??;
    Ok(latencies.percentiles())
}

async fn append(
    store: Arc<dyn EventStore>,
    duration: Duration,
    stop: CancellationToken,
    report: tokio::sync::mpsc::UnboundedSender<(EventId, Instant)>,
) -> Result<()> {
    let stream = StreamId::new(format!("labdelivery-{}", uuid::Uuid::new_v4().as_simple()))?;
    let event_type = EventType::new("lab-delivered")?;
    let until = Instant::now() + duration;
    while Instant::now() < until && !stop.is_cancelled() {
        let id = EventId::random();
        let event = EventData::json(event_type.clone(), "{}").with_id(id);
        store
            .append(Append::to(
                stream.clone(),
                ExpectedRevision::Any,
                vec![event],
            ))
            .await
            .context("appending")?;
        let _ = report.send((id, Instant::now()));
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}
