//! Read models beside faults of whole machines: processes that run the same read model and see another time than the
//! other one, and stores whose database fails over and loses commits.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    missing_docs,
    reason = "tests"
)]

mod clocks;
mod fail_overs;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use gesta::projection::testing::Given;
use gesta::projection::{ApplyError, Config, Target, View, ViewReader, columns};
use gesta::projection_postgres::{Options, PostgresTarget};
use gesta::{EventStore, Filter, RecordedEvent};
use gesta_core::{Append, Appended, EventData, EventId, EventType, ExpectedRevision, StreamId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

columns! {
    pub(crate) struct Chain {
        pub(crate) events: i64,
        pub(crate) links: i64,
    }
}

/// A row for each stream: how many of its events were applied, and a number that depends on each of them, on their
/// positions and on their order. It is another one after an event that was applied twice, too late, or though it is not
/// there.
pub(crate) struct Chains;

impl View for Chains {
    const NAME: &'static str = "chains";
    const VERSION: u32 = 1;
    type Key = String;
    type Row = Chain;

    fn filter(&self) -> Filter {
        Filter::category("account")
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        Some(event.stream.as_str().to_owned())
    }

    fn evolve(&self, row: &mut Option<Chain>, event: &RecordedEvent) -> Result<(), ApplyError> {
        let row = row.get_or_insert(Chain {
            events: 0,
            links: 0,
        });
        let link = format!("{} {}", event.id, event.position);
        let links = xxh3_64_with_seed(link.as_bytes(), row.links.cast_unsigned());
        (row.events, row.links) = (row.events + 1, links.cast_signed());
        Ok(())
    }
}

type Rows = Vec<(String, Chain)>;

/// The rows that readers see.
pub(crate) async fn rows_of(target: impl Target) -> Result<Rows, gesta::projection::Error> {
    ViewReader::<Chains>::of(target)?.page(None, 10_000).await
}

/// The rows of a clean fold.
pub(crate) fn clean_rows(events: &[RecordedEvent]) -> Rows {
    let rows = Given::events(Chains, events).rows().expect("no poison");
    rows.into_iter().collect()
}

/// Bounds by which what has to happen happens soon.
pub(crate) fn quick() -> Config {
    Config {
        lease: Duration::from_millis(600),
        look_every: Duration::from_millis(50),
        back_off: (Duration::from_millis(5), Duration::from_millis(200)),
        batch_events_max: 20,
        live_events_max: 20,
        ..Config::default()
    }
}

/// A target in a schema of a database.
pub(crate) fn in_schema(url: &str, schema: &str) -> PostgresTarget {
    let options = Options {
        schema: Some(schema.to_owned()),
        ..Options::default()
    };
    PostgresTarget::with(url, options).expect("a plain URL")
}

/// Appends an event, again until it is answered; `None` once it is to give up.
pub(crate) async fn append(
    store: &dyn EventStore,
    number: usize,
    gives_up: impl Fn() -> bool,
) -> Option<(EventId, Appended)> {
    let id = EventId::random();
    let event = EventData::json(EventType::new("happened").unwrap(), "{}").with_id(id);
    let stream = StreamId::new(format!("account-{}", number % 3)).unwrap();
    let append = Append::to(stream, ExpectedRevision::Any, vec![event]);
    loop {
        match store.append(append.clone()).await {
            Ok(appended) => return Some((id, appended)),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        if gives_up() {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn append_many(store: &dyn EventStore, count: usize) {
    for number in 0..count {
        append(store, number, || false).await.expect("appended");
    }
}
