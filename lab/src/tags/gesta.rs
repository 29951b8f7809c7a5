//! Gesta's form: subscriptions by tag of one store in this process, which all share what the store reads.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{
    EventStore, Filter, Query, Subscribe, SubscribeFrom, SubscribeTo, SubscriptionMessage, Tag,
};
use tokio_util::sync::CancellationToken;

use super::form::Form;
use super::plan::{self, From, OTHERS, Plan};
use super::readers::{Desk, Readers};
use super::subject::{Settings, Subject, settle};
use crate::endpoint;
use crate::failure::{Context, Failure, Result, fail};
use crate::fill::{Fill, fill};
use crate::postgres;
use crate::store::{self, Opened};
use crate::workload::{Run, Workload};

/// Events per append of the older ones.
const LARGE_APPEND: u64 = 1_000;
/// How long a store may take to close before it is left to itself.
const CLOSING: Duration = Duration::from_secs(10);

/// Gesta in a schema of its own.
pub(super) struct Gesta {
    url: String,
    plan: Plan,
    settings: Settings,
    runs: Runs,
    opened: Option<Opened>,
}

/// Each part of the events has a run, so that an event tells where it belongs.
#[derive(Debug, Clone, Copy)]
struct Runs {
    plan: Plan,
    others: Run,
    tagged: Run,
    burst: Run,
}

impl Gesta {
    /// A store in this database.
    pub(super) fn new(url: &str, plan: Plan, settings: &Settings) -> Self {
        Self {
            url: endpoint::with_parameter(url, "schema", &Form::Gesta.schema()),
            plan,
            settings: settings.clone(),
            runs: Runs {
                plan,
                others: Run::random(),
                tagged: Run::random(),
                burst: Run::random(),
            },
            opened: None,
        }
    }

    fn store(&self) -> Result<&Arc<dyn EventStore>> {
        match &self.opened {
            Some(opened) => Ok(&opened.store),
            None => fail("the store is not open"),
        }
    }

    async fn fill(&self, run: Run, how: Fill, stop: &CancellationToken) -> Result<()> {
        let workload = Arc::new(Workload::new(&self.settings.workload, run));
        fill(self.store()?, &workload, &how, stop).await
    }

    async fn drop_schema(&self) -> Result<()> {
        let client = postgres::connect(&self.url).await?;
        let schema = Form::Gesta.schema();
        client
            .batch_execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE"))
            .await
            .context(format!("dropping {schema}"))
    }
}

#[async_trait]
impl Subject for Gesta {
    async fn prepare(&mut self, stop: &CancellationToken) -> Result<()> {
        self.drop_schema().await?;
        self.opened = Some(store::open_url(&self.url, Duration::ZERO, 1).await?);
        let older = Fill {
            per_append: LARGE_APPEND,
            tags: Some(plan::other_tags),
            ..Fill::of(self.plan.others())
        };
        let tagged = Fill {
            per_append: LARGE_APPEND,
            tags: Some(plan::tags_of),
            tag_count: usize::try_from(self.plan.readers)?,
            ..Fill::of(self.plan.tagged)
        };
        self.fill(self.runs.others, older, stop).await?;
        self.fill(self.runs.tagged, tagged, stop).await?;
        let client = postgres::connect(&self.url).await?;
        settle(&client, &Form::Gesta.schema()).await
    }

    async fn readers(&mut self, from: From, written: Option<u64>) -> Result<Readers> {
        let store = Arc::clone(self.store()?);
        let runs = self.runs;
        Ok(Readers::start(&self.plan, from, written, move |desk| {
            read(Arc::clone(&store), from, runs, desk)
        }))
    }

    async fn write(&mut self, stop: &CancellationToken) -> Result<u64> {
        let burst = Fill {
            waiters: self.settings.waiters,
            per_append: self.settings.per_append,
            tags: Some(plan::tags_of),
            tag_count: usize::try_from(self.plan.readers)?,
            ..Fill::of(self.plan.events)
        };
        self.fill(self.runs.burst, burst, stop).await?;
        Ok(self.plan.older + self.plan.events)
    }

    async fn remove(&mut self) -> Result<()> {
        if let Some(opened) = self.opened.take() {
            // What has not closed by then loses its tables.
            let _ = tokio::time::timeout(CLOSING, opened.store.shutdown()).await;
        }
        self.drop_schema().await
    }
}

async fn read(store: Arc<dyn EventStore>, from: From, runs: Runs, mut desk: Desk) -> Result<Desk> {
    let filter = match runs.plan.everything {
        true => Filter::ALL,
        false => Filter::query(Query {
            tags: vec![Tag::new(plan::tag_name(desk.reader))?],
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
            () = desk.end.cancelled() => return Ok(desk),
        };
        match message {
            Some(Ok(SubscriptionMessage::Event { event, .. })) => {
                let number = runs.number_of(event.id);
                desk.enter(number, event.position.0);
            }
            Some(Ok(SubscriptionMessage::CaughtUp(_))) => desk.live(),
            Some(Ok(SubscriptionMessage::Checkpoint(_))) => {}
            Some(Err(error)) => return Err(error.into()),
            None => return Err(Failure("a subscription ended".into())),
        }
    }
}

impl Runs {
    /// The number of an event in the plan.
    fn number_of(&self, id: gesta_core::EventId) -> u64 {
        let burst = self.plan.burst();
        let inside = |run: Run, end: u64| run.number_of(id).filter(|number| *number < end);
        inside(self.tagged, burst.start)
            .or_else(|| Some(burst.start + inside(self.burst, self.plan.events)?))
            .or_else(|| Some(OTHERS + inside(self.others, self.plan.others())?))
            .unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_tell_their_place_in_the_plan() {
        let runs = Runs {
            plan: Plan {
                readers: 5,
                events: 100,
                older: 1_000,
                tagged: 50,
                everything: false,
            },
            others: Run::numbered(1),
            tagged: Run::numbered(2),
            burst: Run::numbered(3),
        };
        assert_eq!(runs.number_of(runs.tagged.event_id(49)), 49);
        assert_eq!(runs.number_of(runs.tagged.event_id(50)), u64::MAX);
        assert_eq!(runs.number_of(runs.burst.event_id(0)), 50);
        assert_eq!(runs.number_of(runs.burst.event_id(99)), 149);
        assert_eq!(runs.number_of(runs.others.event_id(949)), OTHERS + 949);
        assert_eq!(runs.number_of(gesta_core::EventId::random()), u64::MAX);
    }
}
