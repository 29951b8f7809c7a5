//! A database for a journal, a target, and what was found in it.

use std::sync::Arc;

use gesta_core::{EventStore, EventStoreExt, RecordedEvent};
use gesta_import::{Import, Kind, Options, Patience, Report};
use gesta_memory::MemoryStore;
use gesta_rig::{fresh_schema, shared};
use serde_json::Value;
use std::time::Duration;
use tokio_postgres::Client;

/// A database that holds the journal of a test.
pub(crate) struct Journal {
    pub(crate) url: String,
    pub(crate) client: Client,
}

impl Journal {
    /// Makes a database with these tables; `None` if PostgreSQL is not installed.
    pub(crate) async fn with(tables: &str) -> Option<Self> {
        let url = shared()?.create_database(&fresh_schema()).unwrap();
        let url = format!("{url}?sslmode=disable");
        let client = gesta_rig::connect(&url).await.unwrap();
        client.batch_execute(tables).await.unwrap();
        Some(Self { url, client })
    }

    pub(crate) async fn run(&self, sql: &str) {
        if let Err(error) = self.client.batch_execute(sql).await {
            panic!("{sql}: {error:?}");
        }
    }

    /// A second session, which can hold a transaction open.
    pub(crate) async fn session(&self) -> Client {
        gesta_rig::connect(&self.url).await.unwrap()
    }

    pub(crate) fn options(&self, kind: Kind) -> Options {
        quick(Options::new(kind, &self.url).unwrap())
    }
}

/// Options with short waits for what these tests never wait for.
pub(crate) fn quick(options: Options) -> Options {
    Options {
        patience: Patience {
            gap_min: Duration::from_millis(10),
            ..options.patience
        },
        ..options
    }
}

pub(crate) fn target() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new())
}

/// Imports everything that is there.
pub(crate) async fn import(options: &Options, store: &Arc<MemoryStore>) -> Report {
    try_import(options, store).await.unwrap()
}

pub(crate) async fn try_import(
    options: &Options,
    store: &Arc<MemoryStore>,
) -> gesta_core::Result<Report> {
    let mut import =
        Import::open(options.clone(), Arc::clone(store) as Arc<dyn EventStore>).await?;
    import.run(|_| ()).await?;
    Ok(import.report())
}

pub(crate) async fn dry_run(options: &Options) -> Report {
    Import::dry_run(options, |_| ()).await.unwrap()
}

/// All imported events, in their order.
pub(crate) async fn imported(store: &Arc<MemoryStore>) -> Vec<RecordedEvent> {
    let all = store.read_everything().await.unwrap();
    all.into_iter()
        .filter(|event| !event.stream.is_system())
        .collect()
}

/// The metadata of an event, and where it stood.
pub(crate) fn metadata(event: &RecordedEvent) -> Value {
    serde_json::from_slice(&event.metadata).unwrap()
}

pub(crate) fn source(event: &RecordedEvent) -> Value {
    metadata(event)["$source"].clone()
}

/// Each event as `stream revision type data [tags]`, with the data as text.
pub(crate) fn told(events: &[RecordedEvent]) -> Vec<String> {
    let told = |event: &RecordedEvent| {
        let tags: Vec<&str> = event
            .tags
            .as_slice()
            .iter()
            .map(|tag| tag.as_str())
            .collect();
        let data = String::from_utf8_lossy(&event.data).into_owned();
        let text = format!(
            "{} {} {} {data} {}",
            event.stream,
            event.revision,
            event.event_type,
            tags.join(",")
        );
        text.trim_end().to_owned()
    };
    events.iter().map(told).collect()
}

/// The places of events in the source, as the target has them.
pub(crate) fn places(events: &[RecordedEvent]) -> Vec<String> {
    let place = |event: &RecordedEvent| source(event)["place"].as_str().unwrap().to_owned();
    events.iter().map(place).collect()
}

/// Imports a second time, also without a checkpoint: nothing is stored.
pub(crate) async fn nothing_is_stored_twice(options: &Options, store: &Arc<MemoryStore>) {
    let before = imported(store).await;
    let again = import(options, store).await;
    assert_eq!(again.stored, 0, "{again:?}");
    let other = Options {
        name: format!("{}-again-{}", options.name, before.len()),
        ..options.clone()
    };
    let all_again = import(&other, store).await;
    assert_eq!(all_again.stored, 0, "{all_again:?}");
    assert!(
        all_again.already_stored >= before.len() as u64,
        "{all_again:?}"
    );
    assert_eq!(imported(store).await, before);
}
