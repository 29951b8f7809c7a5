//! Targets that lose commits while an import writes to them, or between two imports.

use async_trait::async_trait;
use gesta_core::{EventStoreExt, Incarnation, RecordedEvent};
use gesta_memory::{Config, MemoryStore};
use gesta_projection::testing::Restorable;

use super::*;

pub(super) const EVENTS: u64 = 120;

/// A journal of so many streams that take turns, in pages of ten events.
pub(super) struct Turns(pub(super) u64);

impl Turns {
    pub(super) fn event(&self, n: u64) -> SourceEvent {
        SourceEvent {
            key: format!("cart-{}", n % self.0).into(),
            sequence: n / self.0,
            place: Place::number(i64::try_from(n).unwrap() + 1),
            event_type: Some("added".into()),
            ..SourceEvent::default()
        }
    }
}

#[async_trait]
impl Source for Turns {
    fn identity(&self) -> String {
        "turns".into()
    }

    async fn page(&mut self, after: Place) -> Result<Page> {
        let events: Vec<_> = (0..EVENTS)
            .map(|n| self.event(n))
            .filter(|event| event.place > after)
            .take(10)
            .collect();
        Ok(Page {
            place: events.last().map_or(after, |event| event.place),
            end: events.is_empty(),
            events,
            ..Page::default()
        })
    }

    async fn count(&mut self, _after: Place) -> Result<Option<u64>> {
        Ok(None)
    }
}

async fn open(streams: u64, store: &Restorable) -> Import {
    let options = Options::new(Kind::KurrentDb, "esdb://h").unwrap();
    let store = Arc::new(store.clone());
    Import::from(options, Box::new(Turns(streams)), store)
        .await
        .unwrap()
}

fn config(logs: u16) -> Config {
    Config {
        logs,
        incarnation: Incarnation::random(),
        ..Config::default()
    }
}

/// Lets the store be in another life, which has lost the events that `is_lost` names.
async fn lose(store: &Restorable, logs: u16, is_lost: impl Fn(&RecordedEvent) -> bool) {
    let mut kept = Vec::new();
    let mut lost = std::collections::HashSet::new();
    for event in store.read_everything().await.unwrap() {
        // A log loses its end.
        match is_lost(&event) || lost.contains(&event.log) {
            true => drop(lost.insert(event.log)),
            false => kept.push(event),
        }
    }
    assert!(!lost.is_empty());
    let restored = MemoryStore::restored(config(logs), kept).unwrap();
    store.notices(Arc::new(restored));
}

/// The numbers that each stream has are all up to its last one, in their order.
async fn has_no_gap(store: &Restorable, streams: u64) -> u64 {
    let mut found: HashMap<String, u64> = HashMap::new();
    for event in store.read_everything().await.unwrap() {
        if event.stream.is_system() {
            continue;
        }
        let stood = crate::convert::stood(&event.metadata).unwrap();
        let next = found.entry(event.stream.to_string()).or_default();
        assert_eq!(stood.sequence, *next, "{}", event.stream);
        *next += 1;
    }
    assert!(found.len() as u64 <= streams);
    found.values().sum()
}

/// What happened: a target that had failed over and lost commits got only what was on its way again; the lost events
/// before it were passed over for ever, and the import said that all was there. Goal: it stops before anything comes
/// after a gap, and the next one stores what is missing; whether the streams that have lost something go on or not.
#[tokio::test]
async fn what_a_target_has_lost_is_stored_by_the_next_import() {
    for streams in [5, EVENTS] {
        let store = Restorable::new(Arc::new(MemoryStore::with_config(config(1))));
        let mut import = open(streams, &store).await;
        for _ in 0..5 {
            assert_eq!(import.step().await.unwrap(), Step::Went);
        }
        import.target.drain().await.unwrap();
        lose(&store, 1, |event| event.position.0 > 23).await;
        let error = import.run(|_| ()).await.expect_err("lost");
        assert!(error.is_retryable(), "{error}");
        assert!(error.to_string().contains("lost commits"), "{error}");
        let left = has_no_gap(&store, streams).await;
        assert!((23..EVENTS).contains(&left), "{left}");
        let mut again = open(streams, &store).await;
        again.run(|_| ()).await.unwrap();
        assert_eq!(has_no_gap(&store, streams).await, EVENTS);
        assert_eq!(again.report().place, EVENTS.to_string());
    }
}

/// Goal: a checkpoint that has survived what it stands for, in another log, is not believed.
#[tokio::test]
async fn a_checkpoint_of_an_earlier_life_is_not_believed() {
    let store = Restorable::new(Arc::new(MemoryStore::with_config(config(8))));
    let mut import = open(5, &store).await;
    import.run(|_| ()).await.unwrap();
    assert_eq!(has_no_gap(&store, 5).await, EVENTS);
    let all = store.read_everything().await.unwrap();
    let of = |name: &str| {
        all.iter()
            .find(|event| event.stream.as_str() == name)
            .unwrap()
            .log
    };
    let checkpoint = of("$import-kurrentdb");
    let stream = (0..5).map(|n| format!("cart-{n}"));
    let other = stream
        .map(|name| of(&name))
        .find(|log| *log != checkpoint)
        .unwrap();
    lose(&store, 8, |event| {
        event.log == other && event.position.0 > 4
    })
    .await;
    assert!(has_no_gap(&store, 5).await < EVENTS);
    let mut again = open(5, &store).await;
    again.run(|_| ()).await.unwrap();
    assert_eq!(has_no_gap(&store, 5).await, EVENTS);
    // In the same life the checkpoint counts.
    let mut third = open(5, &store).await;
    third.run(|_| ()).await.unwrap();
    assert_eq!(third.report().read, 0);
}

/// Goal: no checkpoint says that everything is there when some of it was lost after its answer.
#[tokio::test]
async fn nothing_is_checkpointed_that_was_lost_before() {
    let store = Restorable::new(Arc::new(MemoryStore::with_config(config(1))));
    let mut import = open(5, &store).await;
    // All is sent, and the checkpoint is not yet written.
    for _ in 0..EVENTS / 10 {
        assert_eq!(import.step().await.unwrap(), Step::Went);
    }
    import.target.drain().await.unwrap();
    lose(&store, 1, |event| event.position.0 > 100).await;
    let error = import.step().await.expect_err("lost");
    assert!(error.is_retryable(), "{error}");
    let found = store.read_whole_stream("$import-kurrentdb").await;
    assert!(found.is_err(), "{found:?}");
}

/// What happened: an append that had an id twice in a stream was refused, without the name of the event; two that were
/// in different appends were stored. Goal: where an append ends makes no difference.
#[tokio::test]
async fn an_id_that_comes_twice_in_a_stream_is_stored_twice() {
    struct Twice(bool);

    #[async_trait]
    impl Source for Twice {
        fn identity(&self) -> String {
            "twice".into()
        }

        async fn page(&mut self, after: Place) -> Result<Page> {
            let is_read = std::mem::replace(&mut self.0, true);
            let event = |n| SourceEvent {
                id: Some(uuid::Uuid::from_u128(7)),
                ..Turns(1).event(n)
            };
            let events: Vec<_> = (0..2).map(event).filter(|_| !is_read).collect();
            Ok(Page {
                place: events.last().map_or(after, |event| event.place),
                end: is_read,
                events,
                ..Page::default()
            })
        }

        async fn count(&mut self, _after: Place) -> Result<Option<u64>> {
            Ok(None)
        }
    }
    let store = Restorable::new(Arc::new(MemoryStore::new()));
    let options = Options::new(Kind::KurrentDb, "esdb://h").unwrap();
    let of = Arc::new(store.clone());
    let mut import = Import::from(options, Box::new(Twice(false)), of)
        .await
        .unwrap();
    import.run(|_| ()).await.unwrap();
    assert_eq!(import.report().stored, 2);
    assert_eq!(has_no_gap(&store, 1).await, 2);
}
