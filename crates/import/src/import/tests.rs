//! Imports of sources that are made by hand: such as one that has removed the beginnings of streams.

use std::collections::VecDeque;

use async_trait::async_trait;
use gesta_core::{EventStoreExt, StreamMetadata};
use gesta_memory::MemoryStore;

use super::*;
use crate::known;

/// A source that gives what it is told, once.
pub(super) struct Scripted(pub(super) VecDeque<SourceEvent>);

#[async_trait]
impl Source for Scripted {
    fn identity(&self) -> String {
        "told".into()
    }

    async fn page(&mut self, after: Place) -> Result<Page> {
        let events: Vec<_> = self.0.drain(..).collect();
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

/// Makes the events of one stream, each with its number and role, at the places from `place` on.
pub(super) fn events(place: u64, told: &[(u64, Role, &str)]) -> Vec<SourceEvent> {
    let event = |(place, (sequence, role, data)): (u64, &(u64, Role, &str))| SourceEvent {
        key: "cart-1".into(),
        sequence: *sequence,
        place: Place::number(i64::try_from(place).unwrap()),
        id: Some(uuid::Uuid::from_u128(u128::from(place) + 1)),
        event_type: Some("added".into()),
        data: data.to_string().into(),
        role: *role,
        ..SourceEvent::default()
    };
    (place..).zip(told).map(event).collect()
}

async fn try_import(
    store: &Arc<MemoryStore>,
    name: &str,
    events: Vec<SourceEvent>,
) -> Result<Report> {
    let options = Options::new(Kind::KurrentDb, "esdb://h")?;
    let options = Options {
        name: name.into(),
        ..options
    };
    let source = Box::new(Scripted(events.into()));
    let mut import = Import::from(options, source, Arc::clone(store) as _).await?;
    import.run(|_| ()).await?;
    Ok(import.report())
}

async fn imported(told: &[(u64, Role, &str)]) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new());
    try_import(&store, "one", events(1, told)).await.unwrap();
    store
}

fn cart() -> StreamId {
    StreamId::new("cart-1").unwrap()
}

/// What the stream shows, and its metadata.
async fn shown(store: &MemoryStore) -> (Vec<String>, String) {
    let read = store.read_whole_stream("cart-1").await.unwrap();
    let data = |event: &gesta_core::RecordedEvent| String::from_utf8_lossy(&event.data).into();
    let metadata = store.stream_metadata(cart()).await.unwrap().metadata;
    let json = String::from_utf8_lossy(metadata.json()).into_owned();
    (read.iter().map(data).collect(), json)
}

use Role::{Event, LeftOut, StreamMetadata as Metadata, Tombstone};

/// Goal: the target shows what the source shows, although the source has removed the beginning of the stream, so that
/// its events have other revisions in the target.
#[tokio::test]
async fn truncation_is_counted_as_the_target_counts() {
    let three = [(5, Event, "5"), (6, Event, "6"), (7, Event, "7")];
    for (changes, wanted) in [
        // Two changes follow each other, without an event between them.
        (
            &[
                (0, Metadata, r#"{"$tb":6}"#),
                (1, Metadata, r#"{"$tb":7,"a":1}"#),
            ][..],
            (vec!["7"], r#"{"$tb":2,"a":1}"#),
        ),
        (
            &[(0, Metadata, r#"{"$tb":7}"#), (1, Metadata, r#"{"$tb":5}"#)],
            (vec!["5", "6", "7"], r#"{"$tb":0}"#),
        ),
        (
            &[(0, Metadata, r#"{"$tb":3}"#)],
            (vec!["5", "6", "7"], r#"{"$tb":0}"#),
        ),
        (&[(0, Metadata, r#"{"$tb":8}"#)], (vec![], r#"{"$tb":3}"#)),
        // The source has removed what was between.
        (&[(0, Metadata, r#"{"$tb":20}"#)], (vec![], r#"{"$tb":3}"#)),
    ] {
        let store = imported(&[&three, changes].concat()).await;
        let (data, metadata) = shown(&store).await;
        assert_eq!(
            (data, &*metadata),
            (wanted.0.iter().map(ToString::to_string).collect(), wanted.1)
        );
    }
    // Links are left out, so the distance is not the same everywhere.
    let links = [
        (0, Event, "0"),
        (1, LeftOut("links"), ""),
        (2, Event, "2"),
        (3, LeftOut("links"), ""),
        (4, Event, "4"),
        (0, Metadata, r#"{"$tb":2}"#),
    ];
    let store = imported(&links).await;
    assert_eq!(
        shown(&store).await,
        (vec!["2".into(), "4".into()], r#"{"$tb":1}"#.into())
    );
    // The change comes before everything that the source still has.
    let early = [
        (0, Metadata, r#"{"$tb":6,"a":1}"#),
        (5, Event, "5"),
        (6, Event, "6"),
    ];
    let store = imported(&early).await;
    assert_eq!(
        shown(&store).await,
        (vec!["6".into()], r#"{"$tb":1,"a":1}"#.into())
    );
    // Again, by another name: nothing changes.
    let again = try_import(&store, "two", events(1, &early)).await.unwrap();
    assert_eq!(again.stored, 0);
    assert_eq!(
        shown(&store).await,
        (vec!["6".into()], r#"{"$tb":1,"a":1}"#.into())
    );
}

/// Goal: what a delete leaves tells how the stream goes on, and that its events are not to come again.
#[tokio::test]
async fn a_deleted_stream_goes_on_where_it_was() {
    let deleted = format!(r#"{{"$tb":{}}}"#, i64::MAX);
    let told = [(5, Event, "5"), (6, Event, "6"), (0, Metadata, &*deleted)];
    let store = imported(&told).await;
    let found = known::read(&*store, &cart(), "cart-1").await.unwrap();
    assert_eq!(found.revision.map(|last| last.0), Some(1));
    assert_eq!(found.stored, Some((6, Place::number(2))));
    let more = [
        (7, Event, "7"),
        (8, Event, "8"),
        (1, Metadata, r#"{"$tb":8}"#),
    ];
    let report = try_import(&store, "one", events(4, &more)).await.unwrap();
    assert_eq!(
        (report.stored, report.displaced, report.missing_numbers),
        (2, 0, 0)
    );
    assert_eq!(
        shown(&store).await,
        (vec!["8".into()], r#"{"$tb":3}"#.into())
    );
    let closed = try_import(
        &store,
        "one",
        events(9, &[(9, Tombstone, ""), (10, Event, "10")]),
    )
    .await;
    assert_eq!(closed.unwrap().stored, 0);
}

/// Goal: metadata that hide everything do not stop the import, neither the next run nor one from the beginning.
#[tokio::test]
async fn a_stream_that_shows_nothing_goes_on() {
    let told = [
        (0, Event, "0"),
        (1, Event, "1"),
        (0, Metadata, r#"{"$tb":2}"#),
    ];
    let store = imported(&told).await;
    // Another stream whose name begins alike.
    let longer = vec![gesta_core::EventData::json(
        gesta_core::EventType::new("t").unwrap(),
        "{}",
    )];
    let any = gesta_core::ExpectedRevision::Any;
    store.append_to("cart-10", any, longer).await.unwrap();
    let again = try_import(&store, "two", events(1, &told)).await.unwrap();
    assert_eq!((again.stored, again.already_stored), (0, 2));
    let more = try_import(&store, "one", events(4, &[(2, Event, "2")]))
        .await
        .unwrap();
    assert_eq!((more.stored, more.unmappable), (1, 0));
    assert_eq!(shown(&store).await.0, ["2"]);
    assert_eq!(
        StreamMetadata::parse(shown(&store).await.1)
            .unwrap()
            .truncate_before
            .map(|r| r.0),
        Some(2)
    );
}

/// Goal: a stream of a tenant and one of nobody do not become one stream because their keys look alike.
#[tokio::test]
async fn two_tenants_with_one_key_are_refused() {
    let of = |place, sequence, tenant: Option<&str>| {
        let mut made = events(place, &[(sequence, Event, "x")]).remove(0);
        made.tenant = tenant.map(str::to_owned);
        made
    };
    let store = Arc::new(MemoryStore::new());
    let both = vec![of(1, 0, Some("cart")), of(2, 1, None)];
    let error = try_import(&store, "one", both).await.expect_err("two");
    assert!(error.to_string().contains("of a tenant"), "{error}");
    // Also if the first was imported by an earlier run.
    let store = Arc::new(MemoryStore::new());
    try_import(&store, "one", vec![of(1, 0, Some("cart"))])
        .await
        .unwrap();
    let error = try_import(&store, "one", vec![of(2, 1, None)])
        .await
        .expect_err("two");
    assert!(error.to_string().contains("of a tenant"), "{error}");
}

/// A source that gives these pages, and finds some events by their numbers before their turn.
struct Paged {
    pages: VecDeque<Vec<SourceEvent>>,
    passed: Vec<SourceEvent>,
}

#[async_trait]
impl Source for Paged {
    fn identity(&self) -> String {
        "paged".into()
    }

    async fn page(&mut self, after: Place) -> Result<Page> {
        let events = self.pages.pop_front().unwrap_or_default();
        Ok(Page {
            place: events.last().map_or(after, |event| event.place),
            end: self.pages.is_empty(),
            events,
            ..Page::default()
        })
    }

    async fn between(&mut self, _: &SourceEvent, from: u64, to: u64) -> Result<Vec<SourceEvent>> {
        let passed = self
            .passed
            .iter()
            .filter(|event| (from..to).contains(&event.sequence));
        Ok(passed.cloned().collect())
    }

    async fn count(&mut self, _after: Place) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// What happened: a dry run counted an event as already stored whose number had come before, at whatever place; the
/// import then refused it, for the source had used the number again. Goal: a dry run tells of each event what the
/// import does with it.
#[tokio::test]
async fn a_dry_run_refuses_what_the_import_refuses() {
    let one = |place, sequence, data: &str| events(place, &[(sequence, Event, data)]).remove(0);
    let passed = [one(4, 1, "1"), one(5, 2, "2")];
    let in_turn = [one(1, 0, "0"), one(2, 3, "3")];
    let without_type = SourceEvent {
        event_type: Some("\u{1}".into()),
        ..one(4, 1, "1")
    };
    for (name, pages, passed, stored, already, unmappable) in [
        (
            "another event of a number",
            vec![
                vec![one(1, 0, "0"), one(2, 1, "1")],
                vec![one(3, 1, "other")],
            ],
            vec![],
            2,
            0,
            1,
        ),
        (
            "the same within a page",
            vec![vec![one(1, 0, "0"), one(2, 1, "1"), one(3, 1, "other")]],
            vec![],
            2,
            0,
            1,
        ),
        (
            "events that were passed over",
            vec![in_turn.to_vec(), passed.to_vec()],
            passed.to_vec(),
            4,
            2,
            0,
        ),
        (
            "events that were passed over, and other ones of their numbers",
            vec![
                in_turn.to_vec(),
                passed.to_vec(),
                vec![one(6, 1, "other"), one(7, 3, "other")],
            ],
            passed.to_vec(),
            4,
            2,
            2,
        ),
        (
            "an event that was passed over, and cannot be stored",
            vec![in_turn.to_vec(), vec![without_type.clone()]],
            vec![without_type],
            2,
            0,
            2,
        ),
        (
            "a page that is read again",
            vec![in_turn.to_vec(), in_turn.to_vec()],
            passed.to_vec(),
            4,
            2,
            0,
        ),
    ] {
        let source = || {
            Box::new(Paged {
                pages: pages.clone().into(),
                passed: passed.clone(),
            })
        };
        let options = Options {
            unmappable: Unmappable::LeaveOut,
            ..Options::new(Kind::KurrentDb, "esdb://h").unwrap()
        };
        let dry = Import::with(options.clone(), source(), Target::counting(), None, None);
        let mut dry = dry.await.unwrap();
        dry.run(|_| ()).await.unwrap();
        let store = Arc::new(MemoryStore::new());
        let mut real = Import::from(options, source(), store as _).await.unwrap();
        real.run(|_| ()).await.unwrap();
        for (which, report) in [("dry", dry.report()), ("real", real.report())] {
            assert_eq!(
                (report.stored, report.already_stored, report.unmappable),
                (stored, already, unmappable),
                "{name}, {which}: {:?}",
                report.unmappable_samples
            );
        }
    }
}

/// A journal that is read event by event.
struct OneByOne(VecDeque<SourceEvent>);

#[async_trait]
impl Source for OneByOne {
    fn identity(&self) -> String {
        "one by one".into()
    }

    fn resumes(&self) -> bool {
        false
    }

    async fn page(&mut self, after: Place) -> Result<Page> {
        let events: Vec<_> = self.0.pop_front().into_iter().collect();
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

/// What happened: numbers that are missing within a file were refused, as if they were in another one, if the stream
/// had been forgotten meanwhile, since there were very many.
#[tokio::test]
async fn a_gap_within_a_file_is_taken_although_the_stream_is_forgotten() {
    let first = |key: &str| SourceEvent {
        key: key.into(),
        ..events(2, &[(0, Role::Event, "{}")]).remove(0)
    };
    let later = |number| events(3, &[(number, Role::Event, "{}")]).remove(0);
    let store = Arc::new(MemoryStore::new());
    let begin = async |all: [SourceEvent; 3]| {
        let source = Box::new(OneByOne(all.into()));
        let options = Options::new(Kind::Lines, "lines").unwrap();
        let store = Arc::clone(&store) as _;
        let mut import = Import::from(options, source, store).await.unwrap();
        import.target.known_max = 1;
        import
    };
    let all = [
        events(1, &[(0, Role::Event, "{}")]).remove(0),
        first("cart-2"),
        later(5),
    ];
    let mut import = begin(all).await;
    for _ in 0..3 {
        assert_eq!(import.step().await.unwrap(), Step::Went);
        import.checkpoint(false).await.unwrap();
    }
    assert_eq!(import.step().await.unwrap(), Step::End);
    let report = import.report();
    assert_eq!(
        (report.stored, report.missing_numbers),
        (3, 4),
        "{report:?}"
    );

    // In another file it is still refused.
    let mut import = begin([first("cart-3"), first("cart-4"), later(9)]).await;
    for _ in 0..2 {
        assert_eq!(import.step().await.unwrap(), Step::Went);
        import.checkpoint(false).await.unwrap();
    }
    let error = import.step().await.expect_err("behind what is stored");
    assert!(error.to_string().contains("--allow-gaps"), "{error}");
}
