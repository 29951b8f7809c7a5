//! Processes on a [`World`] for the tests of hub and store, and how subscriptions are followed.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    reason = "test code, of which each test file uses a part"
)]

use std::collections::HashSet;
use std::sync::Arc;

use gesta_core::*;
use gesta_kit::faulty::FaultyStore;
pub use gesta_kit::faulty::World;
use gesta_store::{Config, Store};

/// A process: a store, and the faults of its database.
pub struct Process {
    pub store: Arc<Store>,
    pub faulty: FaultyStore,
}

/// Starts a process on a world.
pub fn process(world: &Arc<World>, config: Config) -> Process {
    let faulty = FaultyStore::on(world, config);
    Process {
        store: faulty.share(),
        faulty,
    }
}

impl Process {
    /// Appends `count` events, one by one.
    pub async fn append(&self, stream: &str, count: usize) {
        for _ in 0..count {
            self.append_together(stream, 1).await;
        }
    }

    /// Appends `count` events at once.
    pub async fn append_together(&self, stream: &str, count: usize) {
        let events: Vec<_> = (0..count).map(|_| event("tested")).collect();
        let appended = self
            .store
            .append_to(stream, ExpectedRevision::Any, events)
            .await;
        appended.expect("appended");
    }

    pub async fn subscribe(&self, filter: Filter, from: SubscribeFrom) -> Subscription {
        let to = SubscribeTo::All(filter);
        let subscription = self.store.subscribe(Subscribe { to, from }).await;
        subscription.expect("subscribed")
    }

    pub async fn subscribe_stream(&self, stream: &str, from: SubscribeFrom) -> Subscription {
        let to = SubscribeTo::Stream(self::stream(stream));
        let subscription = self.store.subscribe(Subscribe { to, from }).await;
        subscription.expect("subscribed")
    }
}

pub fn stream(name: &str) -> StreamId {
    StreamId::new(name).expect("valid")
}

pub fn event(event_type: &str) -> EventData {
    EventData::json(EventType::new(event_type).expect("valid"), "{}").without_id()
}

pub fn category(name: &str) -> Filter {
    Filter::query(Query {
        categories: vec![name.into()],
        ..Query::default()
    })
}

/// The next message, soon.
pub async fn next(subscription: &mut Subscription) -> Result<SubscriptionMessage> {
    let next = tokio::time::timeout(std::time::Duration::from_secs(60), subscription.next());
    let message = next.await.expect("a message in time");
    message.expect("not ended")
}

/// The next event, soon; other messages are skipped.
pub async fn next_event(subscription: &mut Subscription) -> SharedEvent {
    loop {
        let message = next(subscription).await.expect("going on");
        if let SubscriptionMessage::Event { event, .. } = message {
            return event;
        }
    }
}

/// Positions of the next `count` events; other messages are skipped.
pub async fn positions(subscription: &mut Subscription, count: usize) -> Vec<u64> {
    let mut positions = Vec::new();
    while positions.len() < count {
        positions.push(next_event(subscription).await.position.0);
    }
    positions
}

/// The events up to the next `caught up`, and its checkpoint.
pub async fn until_caught_up(subscription: &mut Subscription) -> (Vec<SharedEvent>, Checkpoint) {
    let mut events = Vec::new();
    loop {
        match next(subscription).await.expect("going on") {
            SubscriptionMessage::Event { event, .. } => events.push(event),
            SubscriptionMessage::CaughtUp(checkpoint) => return (events, checkpoint),
            SubscriptionMessage::Checkpoint(_) | SubscriptionMessage::FellBehind(_) => {}
        }
    }
}

/// Ids of events, to compare what was delivered with what is stored.
pub fn ids(events: &[RecordedEvent]) -> HashSet<EventId> {
    events.iter().map(|event| event.id).collect()
}
