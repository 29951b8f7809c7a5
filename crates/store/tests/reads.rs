//! Reads give the answers of the reference store; scavenging and reading in advance change none of them.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use gesta_core::backend::RunMode;
use gesta_core::*;
use gesta_kit::faulty::Read;
use gesta_kit::support::by_log;
use gesta_memory::MemoryStore;
use gesta_store::{Config, Store};
use support::*;

/// The same history in any store: streams of all kinds of lives.
async fn fill(store: &dyn EventStore) {
    let append = async |name: &str, count: usize| {
        let events: Vec<_> = (0..count)
            .map(|i| event(if i % 3 == 0 { "third" } else { "other" }))
            .collect();
        store
            .append_to(name, ExpectedRevision::Any, events)
            .await
            .expect("appended");
    };
    let delete = async |name: &str, kind: DeleteKind| {
        let (stream, expected) = (stream(name), ExpectedRevision::Any);
        let request = DeleteStream {
            stream,
            expected,
            kind,
        };
        store.delete_stream(request).await.expect("deleted");
    };
    let set = async |name: &str, json: &'static str| {
        let request = SetStreamMetadata {
            stream: stream(name),
            expected: ExpectedRevision::Any,
            metadata: StreamMetadata::parse(json).expect("valid"),
        };
        store.set_stream_metadata(request).await.expect("set");
    };
    append("plain-1", 10).await;
    append("gone-1", 4).await;
    delete("gone-1", DeleteKind::Soft).await;
    append("again-1", 4).await;
    delete("again-1", DeleteKind::Soft).await;
    append("again-1", 3).await;
    append("closed-1", 3).await;
    delete("closed-1", DeleteKind::Tombstone).await;
    append("counted-1", 9).await;
    set("counted-1", r#"{"$maxCount":4}"#).await;
    append("cut-1", 9).await;
    set("cut-1", r#"{"$tb":5}"#).await;
    append("hidden-1", 5).await;
    set("hidden-1", r#"{"$tb":50}"#).await;
    append("old-1", 5).await;
    set("old-1", r#"{"$maxAge":3600}"#).await;
    set("described-1", r#"{"a":1}"#).await;
    append("$odd", 2).await;
    append("plain-1", 2).await;
}

const STREAMS: [&str; 14] = [
    "plain-1",
    "gone-1",
    "again-1",
    "closed-1",
    "counted-1",
    "cut-1",
    "hidden-1",
    "old-1",
    "described-1",
    "never-1",
    "$odd",
    "$$counted-1",
    "$$closed-1",
    "$$$$x",
];

/// What must agree of events of two stores.
fn shape(events: &[RecordedEvent]) -> Vec<(StreamId, Revision, Position, LogId, EventType)> {
    let shape = |event: &RecordedEvent| {
        (
            event.stream.clone(),
            event.revision,
            event.position,
            event.log,
            event.event_type.clone(),
        )
    };
    events.iter().map(shape).collect()
}

async fn pair(logs: u16) -> (Process, MemoryStore) {
    let process = process(&World::new(logs), Config::default());
    let model = MemoryStore::with_config(gesta_memory::Config {
        logs,
        ..gesta_memory::Config::default()
    });
    fill(process.store.as_ref()).await;
    fill(&model).await;
    (process, model)
}

/// Goal: every page of every kind of stream, from every place, is that of the reference store.
#[tokio::test]
async fn pages_of_streams_agree_with_the_reference_store() {
    let (ours, model) = pair(1).await;
    let froms = (0..15)
        .chain([u64::MAX - 1])
        .map(|r| StreamFrom::Revision(Revision(r)))
        .chain([StreamFrom::Start, StreamFrom::End]);
    for from in froms {
        for name in STREAMS {
            for limit in [1, 2, 100] {
                for request in [
                    ReadStream::forwards(stream(name)),
                    ReadStream::backwards(stream(name)),
                ] {
                    let request = request.from(from).limit(limit);
                    let (a, b) = (
                        ours.store.read_stream(request.clone()).await,
                        model.read_stream(request.clone()).await,
                    );
                    match (a, b) {
                        (Ok(a), Ok(b)) => {
                            assert_eq!(shape(&a.events), shape(&b.events), "{request:?}");
                            assert_eq!(
                                (a.next, a.end, a.last_revision),
                                (b.next, b.end, b.last_revision),
                                "{request:?}"
                            );
                        }
                        (Err(a), Err(b)) => assert_eq!(a.kind(), b.kind(), "{request:?}"),
                        (a, b) => panic!("{request:?}: {a:?} against {b:?}"),
                    }
                }
            }
        }
    }
}

/// All pages of a read, joined.
async fn walk(store: &dyn EventStore, mut request: ReadAll) -> Vec<RecordedEvent> {
    let mut events = Vec::new();
    loop {
        let page = store.read_all(request.clone()).await.expect("readable");
        assert!(page.events.len() <= request.limit);
        events.extend(page.events);
        if page.end {
            return events;
        }
        request.from = AllFrom::Checkpoint(page.next);
    }
}

fn filters() -> Vec<Filter> {
    let third = Query {
        types: vec![EventType::new("third").expect("valid")],
        ..Query::default()
    };
    vec![Filter::ALL, category("plain"), Filter::query(third)]
}

/// Goal: reading all events page by page gives what the reference store gives, log by log, whatever the size of the
/// pages.
#[tokio::test]
async fn pages_of_all_events_agree_with_the_reference_store() {
    for logs in [1, 4] {
        let (ours, model) = pair(logs).await;
        for filter in filters() {
            for limit in [1, 2, 7, 1_000] {
                for request in [ReadAll::forwards(), ReadAll::backwards()] {
                    let request = request.limit(limit).filter(filter.clone());
                    let found = walk(ours.store.as_ref(), request.clone()).await;
                    let expected = walk(&model, request.clone()).await;
                    let told = format!("{logs} logs, {request:?}");
                    assert_eq!(shape(&by_log(found)), shape(&by_log(expected)), "{told}");
                }
            }
        }
        for request in [
            ReadAll::forwards().from(AllFrom::End),
            ReadAll::backwards().from(AllFrom::Start),
        ] {
            let page = ours.store.read_all(request).await.expect("readable");
            assert!(page.end && page.events.is_empty());
        }
    }
}

/// Goal: names, metadata and info agree with the reference store.
#[tokio::test]
async fn names_and_metadata_agree_with_the_reference_store() {
    let (ours, model) = pair(4).await;
    for prefix in ["", "c", "$", "$$", "$$c", "x"] {
        let mut after = None;
        let mut found = Vec::new();
        loop {
            let request = ListStreams {
                prefix: prefix.into(),
                after,
                limit: 2,
            };
            let page = ours.store.list_streams(request).await.expect("listed");
            found.extend(page.streams);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let request = ListStreams {
            prefix: prefix.into(),
            after: None,
            limit: 100,
        };
        let expected = model.list_streams(request).await.expect("listed").streams;
        assert_eq!(found, expected, "{prefix:?}");
    }
    for name in STREAMS {
        let (a, b) = (
            ours.store.stream_metadata(stream(name)).await,
            model.stream_metadata(stream(name)).await,
        );
        match (a, b) {
            (Ok(a), Ok(b)) => assert_eq!(a, b, "{name}"),
            (Err(a), Err(b)) => assert_eq!(a.kind(), b.kind(), "{name}"),
            (a, b) => panic!("{name}: {a:?} against {b:?}"),
        }
    }
    let (a, b) = (ours.store.info().await, model.info().await);
    assert_eq!(a.expect("info").heads, b.expect("info").heads);
}

/// Goal: a filter that finds nothing still comes to an end, in bounded steps.
#[tokio::test]
async fn a_filtered_page_looks_at_a_bounded_part() {
    let ours = process(&World::new(1), Config::default());
    for _ in 0..13 {
        ours.append_together("show-1", 10_000).await;
    }
    for request in [ReadAll::forwards(), ReadAll::backwards()] {
        let request = request.filter(category("cart"));
        let page = ours
            .store
            .read_all(request.clone())
            .await
            .expect("readable");
        assert!(!page.end && page.events.is_empty());
        let before = ours.faulty.calls().read_log;
        assert!(walk(ours.store.as_ref(), request).await.is_empty());
        assert_eq!(ours.faulty.calls().read_log - before, 3);
    }
}

/// The last revision of a stream, and what is visible of its events.
type Visible = (
    Revision,
    Vec<(StreamId, Revision, Position, LogId, EventType)>,
);

/// What reads show of each stream that can be read.
async fn visible(store: &Store) -> Vec<Visible> {
    let mut seen = Vec::new();
    for name in STREAMS {
        let request = ReadStream::forwards(stream(name));
        if let Ok(page) = store.read_stream(request).await {
            seen.push((page.last_revision, shape(&page.events)));
        }
    }
    seen
}

/// The same, out of one read of all streams.
async fn loaded(store: &Store) -> Vec<Visible> {
    let loads = STREAMS.map(|name| LoadStream {
        stream: stream(name),
        from: LoadFrom::Start,
        limit: 1_000,
    });
    let loaded = store.read_streams(loads.to_vec()).await;
    loaded
        .expect("answers")
        .into_iter()
        .filter_map(|loaded| loaded.page.ok())
        .map(|page| (page.last_revision, shape(&page.events)))
        .collect()
}

/// Goal: scavenging removes what is hidden and nothing else; a dry run only tells.
#[tokio::test]
async fn scavenging_removes_what_is_hidden_and_nothing_else() {
    let ours = process(&World::new(1), Config::default());
    fill(ours.store.as_ref()).await;
    let all = ours.store.read_everything().await.expect("readable").len();
    let before = visible(&ours.store).await;
    let dry = ours
        .store
        .scavenge(RunMode::Dry, |_| ())
        .await
        .expect("told");
    assert_eq!(
        ours.store.read_everything().await.expect("readable").len(),
        all
    );
    let mut told = 0;
    let real = ours.store.scavenge(RunMode::Real, |progress| {
        told += 1;
        assert_eq!(progress.streams, told);
    });
    let real = real.await.expect("done");
    assert_eq!(told, 8);
    assert_eq!(real.removed, dry.removed);
    // gone 4, again 4, closed 3, counted 5, cut 5, hidden 5
    assert_eq!((real.removed.events, real.streams_changed), (26, 6));
    assert_eq!(
        ours.store.read_everything().await.expect("readable").len(),
        all - 26
    );
    assert_eq!(visible(&ours.store).await, before);
    assert_eq!(loaded(&ours.store).await, before);
    let again = ours
        .store
        .scavenge(RunMode::Real, |_| ())
        .await
        .expect("done");
    assert_eq!(again.removed.events, 0);
    // Numbers go on where they were, and subscribers pass over the holes.
    let appended = ours
        .store
        .append_to("gone-1", ExpectedRevision::NoStream, vec![event("x")]);
    assert_eq!(
        appended.await.expect("appended").streams[0].first_revision,
        Revision(4)
    );
    let mut subscription = ours.subscribe(Filter::ALL, SubscribeFrom::Start).await;
    assert_eq!(
        until_caught_up(&mut subscription).await.0.len(),
        all - 26 + 1
    );
}

/// Goal: a delete by another process holds for the next read here.
#[tokio::test]
async fn a_delete_by_another_process_holds_at_once() {
    let world = World::new(1);
    let (a, b) = (
        process(&world, Config::default()),
        process(&world, Config::default()),
    );
    b.faulty.lose_messages();
    a.append("cart-1", 2).await;
    assert_eq!(
        a.store
            .read_whole_stream("cart-1")
            .await
            .expect("there")
            .len(),
        2
    );
    let request = DeleteStream {
        stream: stream("cart-1"),
        expected: ExpectedRevision::Any,
        kind: DeleteKind::Soft,
    };
    b.store.delete_stream(request).await.expect("deleted");
    let error = a.store.read_whole_stream("cart-1").await.expect_err("gone");
    assert!(matches!(error.kind(), ErrorKind::StreamNotFound(_)));
}

/// Goal: an append to streams of different logs is refused; those that share a braced part are not.
#[tokio::test]
async fn an_append_stays_within_one_log() {
    let ours = process(&World::new(1_024), Config::default());
    let part = |name: &str| StreamAppend {
        stream: stream(name),
        expected: ExpectedRevision::Any,
        events: vec![event("x")],
    };
    let append = |names: [&str; 2]| {
        ours.store.append(Append {
            streams: names.map(part).to_vec(),
            conditions: Vec::new(),
        })
    };
    append(["cart-{7}", "payment-{7}"]).await.expect("one log");
    let error = append(["cart-7", "payment-8"]).await.expect_err("two logs");
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }));
}

/// Goal: after shutdown everything is refused, and a second shutdown is no error.
#[tokio::test]
async fn after_shutdown_all_is_unavailable() {
    let ours = process(&World::new(1), Config::default());
    let store: Arc<dyn EventStore> = ours.store.clone();
    store.shutdown().await.expect("shut down");
    store.shutdown().await.expect("again");
    let refused = |error: Error| matches!(error.kind(), ErrorKind::Unavailable(_));
    assert!(store.info().await.is_err_and(refused));
    assert!(store.read_everything().await.is_err_and(refused));
    assert!(store.read_whole_stream("x").await.is_err_and(refused));
    let appended = store.append_to("x", ExpectedRevision::Any, vec![event("x")]);
    assert!(appended.await.is_err_and(refused));
    assert!(
        ours.store
            .scavenge(RunMode::Dry, |_| ())
            .await
            .is_err_and(refused)
    );
}

/// What happened: one damaged metadata event failed every listing, every scavenge, and, where the database itself found
/// the damage, all loads of entities that travelled together. What holds now: only what is asked of that stream fails,
/// and says which stream it is.
#[tokio::test]
async fn damaged_metadata_spoil_only_the_answers_about_their_stream() {
    for found_by_database in [false, true] {
        let world = World::new(1);
        let ours = process(&world, Config::default());
        let damaged = stream("b-damaged");
        for name in ["a-1", "b-damaged", "c-1"] {
            ours.append(name, 3).await;
            let request = SetStreamMetadata {
                stream: stream(name),
                expected: ExpectedRevision::Any,
                metadata: StreamMetadata::parse(r#"{"$maxCount":2}"#).expect("valid"),
            };
            ours.store.set_stream_metadata(request).await.expect("set");
        }
        if found_by_database {
            let damaged = damaged.clone();
            ours.faulty.fail_reads(move |read| match read {
                Read::Load(request) if request.streams.contains(&damaged) => {
                    Some(Error::corrupt("a row of a stream"))
                }
                _ => None,
            });
        } else {
            world.damage_metadata(&damaged);
        }

        let loads = ["a-1", "b-damaged", "c-1"].map(|name| LoadStream {
            stream: stream(name),
            from: LoadFrom::Start,
            limit: 10,
        });
        let pages = ours.store.read_streams(loads.to_vec()).await;
        let [a, b, c] = &pages.expect("answered")[..] else {
            panic!("three answers");
        };
        for page in [a, c] {
            assert_eq!(page.page.as_ref().expect("readable").events.len(), 2);
        }
        let error = b.page.as_ref().expect_err("damaged");
        assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error}");
        assert!(error.to_string().contains("b-damaged"), "{error}");

        let list = ListStreams {
            prefix: String::new(),
            after: None,
            limit: 10,
        };
        let page = ours.store.list_streams(list).await.expect("listed");
        let names: Vec<_> = page.streams.iter().map(|s| s.stream.as_str()).collect();
        // What the database does not answer about has no last revision, which a listing shows.
        match found_by_database {
            false => assert_eq!(names, ["a-1", "b-damaged", "c-1"]),
            true => assert_eq!(names, ["a-1", "c-1"]),
        }
        let report = ours.store.scavenge(RunMode::Real, |_| ()).await;
        let report = report.expect("scavenged");
        assert_eq!((report.streams, report.streams_unreadable), (3, 1));
        assert_eq!(report.removed.events, 2);
    }
}

/// What happened: a second shutdown during the first, and one after another that was given up half way, closed the
/// database while commits were still under way, and returned.
#[tokio::test(start_paused = true)]
async fn every_shutdown_returns_when_all_is_over() {
    let ours = process(&World::new(1), Config::default());
    ours.faulty.set_round_trip(Duration::from_millis(40));
    let shut_down = || async {
        ours.store.shutdown().await.expect("shut down");
        (ours.faulty.commits_under_way(), ours.faulty.is_closed())
    };
    let first_given_up = async {
        let given_up = tokio::time::timeout(Duration::from_millis(1), shut_down());
        assert!(given_up.await.is_err(), "a commit is under way");
        tokio::join!(shut_down(), shut_down())
    };
    let ((), ended) = tokio::join!(ours.append("cart-1", 1), first_given_up);
    assert_eq!(ended, ((0, true), (0, true)));
}

/// What happened: an event that was scavenged went on refusing conditions by its tag, as long as the owner of the log
/// had it in memory; after a restart the same append was stored. What holds now: it refuses nothing once it is gone,
/// and what is still there does. A refusal by an event that cannot be scavenged costs no look at the database.
#[tokio::test]
async fn what_was_scavenged_refuses_no_condition() {
    let world = World::new(1);
    let ours = process(&world, Config::default());
    let store = &ours.store;
    let tag = |text: &str| Tag::new(text).expect("valid");
    let tagged = |name: &str| EventData {
        tags: Tags::new(vec![tag(name)]).expect("valid"),
        ..event("registered")
    };
    let unless = async |name: &str| {
        let filter = Filter::query(Query {
            tags: vec![tag(name)],
            ..Query::default()
        });
        let append = Append::to(stream("other-1"), ExpectedRevision::Any, vec![event("x")]);
        let answer = store.append(append.provided_no_match(filter, None)).await;
        match answer.map_err(|error| error.kind().clone()) {
            Ok(_) => None,
            Err(ErrorKind::ConditionFailed { position, .. }) => Some(position),
            Err(kind) => panic!("{kind:?}"),
        }
    };
    let append = async |stream: &str, name: &str| {
        let appended = store.append_to(stream, ExpectedRevision::Any, vec![tagged(name)]);
        appended.await.expect("appended").position
    };
    assert_eq!(unless("first of all").await, None);
    let plain = append("plain-1", "plain").await;
    let mut gone = Vec::new();
    for stream in ["gone-1", "gone-2", "cut-1"] {
        gone.push(append(stream, "gone").await);
    }
    append("cut-1", "last").await;
    let cut = append("cut-1", "both").await;
    append("gone-1", "both").await;
    for name in ["gone-1", "gone-2"] {
        let request = DeleteStream {
            stream: stream(name),
            expected: ExpectedRevision::Any,
            kind: DeleteKind::Soft,
        };
        store.delete_stream(request).await.expect("deleted");
    }
    let request = SetStreamMetadata {
        stream: stream("cut-1"),
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse(r#"{"$tb":2}"#).expect("valid"),
    };
    store.set_stream_metadata(request).await.expect("set");
    assert_eq!(unless("gone").await, Some(gone[0]), "it is not removed yet");
    let scavenged = store.scavenge(RunMode::Real, |_| ()).await;
    assert_eq!(scavenged.expect("done").removed.events, 5);
    let reads = ours.faulty.calls().read_log;
    assert_eq!(unless("plain").await, Some(plain));
    assert_eq!(ours.faulty.calls().read_log, reads);
    assert_eq!(unless("gone").await, None);
    assert_eq!(unless("last").await, None);
    assert_eq!(unless("both").await, Some(cut));
    let again = append("again-1", "gone").await;
    assert_eq!(unless("gone").await, Some(again));
}
