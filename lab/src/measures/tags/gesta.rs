//! Gesta's form: subscriptions by tag of one store in this process, which all share what the store reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{
    Append, EventData, EventStore, EventType, ExpectedRevision, Filter, Query, StreamId, Subscribe,
    SubscribeFrom, SubscribeTo, SubscriptionMessage, Tag, Tags,
};
use gesta_load::event_ids::Run;
use gesta_load::machine::store::{self, Opened};
use gesta_load::random::Random;
use gesta_report::endpoint;
use gesta_report::failure::{Context, Failure, Result, fail};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::plan::{self, From, OTHERS, Plan};
use super::readers::{ReaderState, Readers};
use super::{Form, PAYLOAD, Settings, Subject, settle};
use crate::workload::journals::Database;

/// Events per append of the older ones, and appends of them under way at once.
const LARGE_APPEND: u64 = 1_000;
const FILLERS: u64 = 16;
/// Streams of the events.
const STREAMS: usize = 1_000;
/// How long a store may take to close before it is left to itself.
const CLOSING: Duration = Duration::from_secs(10);

/// Gesta in a schema of its own. An event's id tells its number.
pub(super) struct Gesta {
    url: String,
    database: Database,
    plan: Plan,
    settings: Settings,
    run: Run,
    opened: Option<Opened>,
}

impl Gesta {
    /// A store in this database.
    pub(super) fn new(url: &str, plan: Plan, settings: &Settings) -> Self {
        Self {
            url: endpoint::with_parameter(url, "schema", &Form::Gesta.schema()),
            database: Database::new(url, Form::Gesta.schema(), Duration::ZERO),
            plan,
            settings: settings.clone(),
            run: Run::random(),
            opened: None,
        }
    }

    fn store(&self) -> Result<&Arc<dyn EventStore>> {
        match &self.opened {
            Some(opened) => Ok(&opened.store),
            None => fail("the store is not open"),
        }
    }

    /// Appends the events of these numbers to random streams, so many at a time.
    async fn fill(
        &self,
        numbers: std::ops::Range<u64>,
        per_append: u64,
        appends: u64,
        stop: &CancellationToken,
    ) -> Result<()> {
        let next = Arc::new(AtomicU64::new(numbers.start));
        let mut tasks = JoinSet::<Result<()>>::new();
        for task in 0..appends {
            let (store, next, stop) = (Arc::clone(self.store()?), Arc::clone(&next), stop.clone());
            let (plan, run, end) = (self.plan, self.run, numbers.end);
            let mut random = Random::fork(self.settings.seed, 1_000 + task);
            tasks.spawn(async move {
                while !stop.is_cancelled() {
                    let first = next.fetch_add(per_append, Ordering::Relaxed);
                    if first >= end {
                        break;
                    }
                    let of = |number| event(&plan, run, number);
                    let events = (first..(first + per_append).min(end)).map(of);
                    let events = events.collect::<Result<Vec<_>>>()?;
                    let stream = StreamId::new(format!("show-{}", random.below(STREAMS)))?;
                    let append = Append::to(stream, ExpectedRevision::Any, events);
                    store.append(append).await.context("appending")?;
                }
                Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(())
    }
}

fn event(plan: &Plan, run: Run, number: u64) -> Result<EventData> {
    let mut random = Random::fork(7, number);
    let noise = std::iter::repeat_with(|| random.next().to_le_bytes()).flatten();
    let data: Vec<u8> = noise.take(PAYLOAD).collect();
    let event = EventData::binary(EventType::new("SeatReserved")?, data);
    let tags = Tags::new(vec![Tag::new(plan.tag(number))?])?;
    Ok(event.with_id(run.event_id(number)).with_tags(tags))
}

#[async_trait]
impl Subject for Gesta {
    async fn prepare(&mut self, stop: &CancellationToken) -> Result<()> {
        self.database.drop_all().await?;
        self.opened = Some(store::open_url(&self.url, Duration::ZERO, 1).await?);
        let (others, tagged) = (OTHERS..OTHERS + self.plan.others(), 0..self.plan.tagged);
        self.fill(others, LARGE_APPEND, FILLERS, stop).await?;
        self.fill(tagged, LARGE_APPEND, FILLERS, stop).await?;
        settle(&self.database.direct().await?, self.database.schema()).await
    }

    async fn readers(&mut self, from: From, written: Option<u64>) -> Result<Readers> {
        let (store, plan, run) = (Arc::clone(self.store()?), self.plan, self.run);
        Ok(Readers::start(&self.plan, from, written, move |state| {
            read(Arc::clone(&store), from, plan, run, state)
        }))
    }

    async fn write(&mut self, stop: &CancellationToken) -> Result<u64> {
        let Settings {
            per_append,
            waiters,
            ..
        } = self.settings;
        self.fill(self.plan.burst(), per_append, waiters, stop)
            .await?;
        Ok(self.plan.older + self.plan.events)
    }

    async fn remove(&mut self) -> Result<()> {
        if let Some(opened) = self.opened.take() {
            // What has not closed by then loses its tables.
            let _ = tokio::time::timeout(CLOSING, opened.store.shutdown()).await;
        }
        self.database.drop_all().await
    }
}

async fn read(
    store: Arc<dyn EventStore>,
    from: From,
    plan: Plan,
    run: Run,
    mut state: ReaderState,
) -> Result<ReaderState> {
    let filter = match plan.everything {
        true => Filter::ALL,
        false => Filter::query(Query {
            tags: vec![Tag::new(plan::tag_name(state.reader))?],
            ..Query::default()
        }),
    };
    let request = Subscribe {
        to: SubscribeTo::All(filter),
        from: match from {
            From::Start => SubscribeFrom::Start,
            From::End => SubscribeFrom::End,
        },
    };
    let mut subscription = store.subscribe(request).await.context("subscribing")?;
    loop {
        let message = tokio::select! {
            message = subscription.next() => message,
            () = state.end.cancelled() => return Ok(state),
        };
        match message {
            Some(Ok(SubscriptionMessage::Event { event, .. })) => {
                let number = run.number_of(event.id).unwrap_or(u64::MAX);
                state.enter(number, event.position.0);
            }
            Some(Ok(SubscriptionMessage::CaughtUp(_))) => state.live(),
            Some(Ok(SubscriptionMessage::Checkpoint(_) | SubscriptionMessage::FellBehind(_))) => {}
            Some(Err(error)) => return Err(error.into()),
            None => return Err(Failure("a subscription ended".into())),
        }
    }
}
