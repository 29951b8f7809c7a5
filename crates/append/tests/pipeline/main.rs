//! The pipeline against a database in memory with scripted faults.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod faults;
mod retries;
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
#[path = "../support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use gesta_append::Config;
use gesta_core::*;
use gesta_kit::depth;
use gesta_kit::faulty::{Answers, Fault, LateCommit, World};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::{DEADLINE, Process, check, events, eventually, start_two_sharing, start_with, world};

fn start(world: &Arc<World>) -> Process {
    start_with(world, Config::default())
}

fn name(text: &str) -> StreamId {
    StreamId::new(text).unwrap()
}

fn event(event_type: &str) -> EventData {
    EventData::json(EventType::new(event_type).unwrap(), "{}").with_id(EventId::random())
}

fn to(stream: &str, expected: ExpectedRevision, events: Vec<EventData>) -> Append {
    Append::to(name(stream), expected, events)
}

use ExpectedRevision::{Any, Exact, NoStream, StreamExists};

#[tokio::test]
async fn claims_are_checked_and_mismatches_tell_the_actual_revision() {
    let world = world(4);
    let pipeline = start(&world);
    let first = pipeline
        .append(to("s", NoStream, vec![event("a"), event("b")]))
        .await
        .unwrap();
    assert_eq!(
        (
            first.streams[0].first_revision,
            first.streams[0].last_revision
        ),
        (Revision(0), Revision(1))
    );
    assert_eq!(first.position, Position(2));
    for wrong in [NoStream, Exact(Revision(0)), Exact(Revision(7))] {
        let error = pipeline
            .append(to("s", wrong, vec![event("c")]))
            .await
            .unwrap_err();
        assert!(
            matches!(
                error.kind(),
                ErrorKind::WrongExpectedRevision {
                    actual: Some(Revision(1)),
                    ..
                }
            ),
            "{error}"
        );
    }
    pipeline
        .append(to("s", Exact(Revision(1)), vec![event("c")]))
        .await
        .unwrap();
    let error = pipeline
        .append(to("t", StreamExists, vec![event("c")]))
        .await
        .unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::WrongExpectedRevision { actual: None, .. }
    ));
    check(&world);
}

/// Goal: a cache that another process has outdated refuses nothing.
#[tokio::test]
async fn no_refusal_from_a_stale_cache() {
    let world = world(4);
    let (a, b) = (start(&world), start(&world));
    a.append(to("s", NoStream, vec![event("a")])).await.unwrap();
    b.append(to("s", Exact(Revision(0)), vec![event("b")]))
        .await
        .unwrap();
    a.append(to("s", Exact(Revision(1)), vec![event("a")]))
        .await
        .unwrap();
    b.append(metadata("s")).await.unwrap();
    let tombstone = DeleteStream {
        stream: name("s"),
        expected: Any,
        kind: DeleteKind::Tombstone,
    };
    b.delete(tombstone, None).await.unwrap();
    let error = a
        .append(to("s", Exact(Revision(2)), vec![event("a")]))
        .await
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::StreamTombstoned(_)),
        "{error}"
    );
    check(&world);
}

fn metadata(stream: &str) -> Append {
    let event =
        EventData::json(EventType::new("$metadata").unwrap(), r#"{"$maxCount":5}"#).without_id();
    to(&format!("$${stream}"), Any, vec![event])
}

#[tokio::test]
async fn deleted_streams_go_on_with_the_next_revision() {
    let world = world(4);
    let p = start(&world);
    let delete = |expected| DeleteStream {
        stream: name("s"),
        expected,
        kind: DeleteKind::Soft,
    };
    assert!(matches!(
        p.delete(delete(Any), None).await.unwrap_err().kind(),
        ErrorKind::StreamNotFound(_)
    ));
    p.append(to("s", NoStream, vec![event("a"), event("a")]))
        .await
        .unwrap();
    p.delete(delete(Exact(Revision(1))), None).await.unwrap();
    assert!(
        p.append(to("s", StreamExists, vec![event("a")]))
            .await
            .is_err()
    );
    let again = p.append(to("s", NoStream, vec![event("a")])).await.unwrap();
    assert_eq!(again.streams[0].first_revision, Revision(2));
    check(&world);
}

/// Goal: of several parts, the first one that fails by itself decides, be it a mistaken retry or a tombstone.
#[tokio::test]
async fn the_first_part_that_fails_is_told() {
    let world = world(4);
    let p = start(&world);
    let first = to("s", Any, vec![event("a")]);
    p.append(first.clone()).await.unwrap();
    p.append(to("s", Any, vec![event("b")])).await.unwrap();
    let tombstone = DeleteStream {
        stream: name("gone"),
        expected: Any,
        kind: DeleteKind::Tombstone,
    };
    p.delete(tombstone, None).await.unwrap();
    let together = |parts: [Append; 2]| Append {
        streams: parts.into_iter().flat_map(|part| part.streams).collect(),
        conditions: Vec::new(),
    };
    let told = async |parts| match p.append(together(parts)).await.unwrap_err().kind() {
        ErrorKind::WrongExpectedRevision { stream, .. } => format!("wrong {stream}"),
        ErrorKind::StreamTombstoned(stream) => format!("tombstone {stream}"),
        other => panic!("{other}"),
    };
    let late = to("s", Exact(Revision(0)), vec![event("c")]);
    let gone = to("gone", Any, vec![event("d")]);
    let fresh = to("t", Any, vec![event("e")]);
    let absent = to("t", StreamExists, vec![event("e")]);
    let cases = [
        ([late.clone(), gone.clone()], "wrong s"),
        ([gone.clone(), late], "tombstone gone"),
        ([first.clone(), gone], "tombstone gone"),
        ([first.clone(), fresh], "wrong s"),
        ([first, absent], "wrong t"),
    ];
    for (parts, expected) in cases {
        assert_eq!(told(parts).await, expected);
    }
    check(&world);
}

/// Goal: C1. One append that the database refuses fails alone.
#[tokio::test]
async fn an_offending_append_fails_alone() {
    let world = world(4);
    let p = start(&world);
    p.refuse_rows(|row| row.event_type.as_str() == "poison");
    p.append(to("warm", Any, vec![event("ok"), event("ok")]))
        .await
        .unwrap();
    p.hold(Answers::Commits);
    let mut attempts: Vec<_> = (0..40)
        .map(|i| {
            Box::pin(p.append(to(
                &format!("s-{}", i % 5),
                Any,
                vec![event(if i == 17 { "poison" } else { "ok" })],
            )))
        })
        .collect();
    for attempt in &mut attempts {
        assert!(futures::poll!(attempt).is_pending());
    }
    p.release(Answers::Commits);
    for (i, answer) in join_all(attempts).await.into_iter().enumerate() {
        match answer {
            Ok(_) => assert_ne!(i, 17),
            Err(error) => {
                assert_eq!(i, 17, "{error}");
                assert!(matches!(error.kind(), ErrorKind::Refused(_)), "{error}");
            }
        }
    }
    assert_eq!(events(&world).len(), 41);
    check(&world);
}

#[tokio::test]
async fn several_streams_are_stored_whole_or_not_at_all() {
    let world = world(4);
    let p = start(&world);
    let part = |stream: &str, expected| StreamAppend {
        stream: name(stream),
        expected,
        events: vec![event("a")],
    };
    let both = Append {
        streams: vec![part("a", NoStream), part("b", NoStream)],
        conditions: Vec::new(),
    };
    let first = p.append(both.clone()).await.unwrap();
    assert_eq!(p.append(both).await.unwrap(), first);
    let half = Append {
        streams: vec![part("c", NoStream), part("b", NoStream)],
        conditions: Vec::new(),
    };
    let error = p.append(half).await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::WrongExpectedRevision { stream, .. } if stream.as_str() == "b")
    );
    assert_eq!(events(&world).len(), 2);
}

/// Goal: what waits in one pipeline leaves that much less room to those that share the bound, and none is idle for it.
#[tokio::test]
async fn pipelines_share_the_bound_on_what_waits() {
    let world = world(2);
    let config = Config {
        queue_events_max: 3,
        ..Config::default()
    };
    let process = start_two_sharing(&world, &config);
    let [full, other] = &*process;
    process.hold(Answers::Commits);
    let attempts: Vec<_> = (0..3)
        .map(|_| full.append(to("s", Any, vec![event("a")])))
        .collect();
    let refused = other.append(to("t", Any, vec![event("a")])).await;
    let refused = refused.unwrap_err();
    assert!(
        matches!(refused.kind(), ErrorKind::Overloaded(_)),
        "{refused}"
    );
    assert_eq!(
        (full.stats().queued_events, other.stats().queued_events),
        (3, 0)
    );
    other.idle().await;
    process.release(Answers::Commits);
    assert!(join_all(attempts).await.iter().all(Result::is_ok));
    full.idle().await;
    other.append(to("t", Any, vec![event("a")])).await.unwrap();
}

/// An owner's question stores no event. Once it did not count as waiting, so a pipeline that is stuck looked idle.
#[tokio::test]
async fn a_pipeline_with_an_owners_question_is_not_idle() {
    let world = world(2);
    let p = start(&world);
    p.hold(Answers::Commits);
    let (told, outcome) = tokio::sync::oneshot::channel();
    p.submit(Submission {
        stream: name("s"),
        after: After::NOTHING,
        events: Vec::new(),
        on_outcome: Box::new(|outcome| _ = told.send(outcome)),
    });
    let stats = p.stats();
    assert_eq!((stats.queued_commands, stats.queued_events), (1, 0));
    let mut idle = Box::pin(p.idle());
    assert!(futures::poll!(&mut idle).is_pending());
    p.release(Answers::Commits);
    outcome.await.unwrap().unwrap();
    idle.await;
    assert_eq!(p.stats().queued_commands, 0);
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_recovers() {
    let world = world(2);
    let p = start_with(
        &world,
        Config {
            queue_events_max: 10,
            ..Config::default()
        },
    );
    p.append(to("s", Any, vec![event("a")])).await.unwrap();
    p.hold(Answers::Commits);
    let mut waiting: Vec<_> = (0..10)
        .map(|_| Box::pin(p.append(to("s", Any, vec![event("a")]))))
        .collect();
    for attempt in &mut waiting {
        assert!(futures::poll!(attempt).is_pending());
    }
    let refused = p.append(to("s", Any, vec![event("a")])).await.unwrap_err();
    assert!(
        matches!(refused.kind(), ErrorKind::Overloaded(_)),
        "{refused}"
    );
    p.release(Answers::Commits);
    assert!(join_all(waiting).await.iter().all(Result::is_ok));
    p.append(to("s", Any, vec![event("a")])).await.unwrap();
    check(&world);
}

/// Only payloads counted once: tags, types and names were memory that no bound knew.
#[tokio::test]
async fn tags_types_and_names_count_against_the_bytes_of_the_queue() {
    let tag = |n: u32| Tag::new(format!("{n:0>256}")).unwrap();
    let tags = Tags::new((0..32).map(tag).collect()).unwrap();
    let (long_type, long_name) = ("t".repeat(512), "s".repeat(1_024));
    let tagged = || vec![event("a").with_tags(tags.clone())];
    let waiting_max = |world: &Arc<World>, one: &dyn Fn() -> Append| {
        let config = Config {
            queue_bytes_max: 64 * 1024,
            ..Config::default()
        };
        let p = start_with(world, config);
        p.hold(Answers::Commits);
        let mut waiting = Vec::new();
        let refused = loop {
            let mut attempt = Box::pin({
                let (p, one) = (p.clone(), one());
                async move { p.append(one).await }
            });
            match futures::FutureExt::now_or_never(&mut attempt) {
                Some(answer) => break answer.unwrap_err(),
                None => waiting.push(attempt),
            }
        };
        let is_overload =
            matches!(refused.kind(), ErrorKind::Overloaded(text) if text.contains("bytes"));
        assert!(is_overload, "{refused}");
        waiting.len()
    };
    let world = world(2);
    let tagged = waiting_max(&world, &|| to("s", Any, tagged()));
    assert!((5..=8).contains(&tagged), "{tagged}");
    let typed = waiting_max(&world, &|| to("s", Any, vec![event(&long_type)]));
    assert!((40..=128).contains(&typed), "{typed}");
    let named = waiting_max(&world, &|| to(&long_name, Any, vec![event("a")]));
    assert!((40..=64).contains(&named), "{named}");
}

/// What happened: data that the backend had packed were held in two forms, and one of them counted. What holds now:
/// both count; and without room for the second, the data go as they came.
#[tokio::test]
async fn the_backends_form_of_the_data_counts_too() {
    let world = world(2);
    let config = Config {
        queue_bytes_max: 64 * 1024,
        ..Config::default()
    };
    let p = start_with(&world, config);
    let packed = |data: &bytes::Bytes| data.slice(..data.len() * 3 / 4);
    let forms = Arc::new(std::sync::Mutex::new(Vec::new()));
    let given = Arc::clone(&forms);
    p.on_packing(move |data| {
        let form = bytes::Bytes::copy_from_slice(&packed(data));
        // The second owner shows whether the pipeline still holds the form.
        given.lock().unwrap().push(form.clone());
        Some(form)
    });
    let held = || {
        let forms = forms.lock().unwrap();
        let held: Vec<bool> = forms.iter().map(|form| !form.is_unique()).collect();
        held
    };
    p.hold(Answers::Commits);
    let large = || EventData {
        data: format!("\"{}\"", "x".repeat(20 * 1024)).into(),
        ..event("a")
    };
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut attempt = Box::pin(p.append(to("s", Any, vec![large()])));
        assert!(futures::poll!(&mut attempt).is_pending());
        waiting.push(attempt);
    }
    // 20 KiB and 15 KiB, then 20 KiB without the 15 KiB that would be more than 64 KiB.
    assert_eq!(held(), [true, false]);
    let third = p.append(to("s", Any, vec![large()])).await.unwrap_err();
    assert!(
        matches!(third.kind(), ErrorKind::Overloaded(text) if text.contains("bytes")),
        "{third}"
    );
    assert_eq!(
        held(),
        [true, false],
        "nothing is packed of what is refused"
    );
    p.release(Answers::Commits);
    assert!(join_all(waiting).await.iter().all(Result::is_ok));
    // An append larger than the bound still gets its turn alone.
    let huge = EventData {
        data: format!("\"{}\"", "x".repeat(60 * 1024)).into(),
        ..event("a")
    };
    p.append(to("s", Any, vec![huge])).await.unwrap();
    assert_eq!(held().len(), 3);
    check(&world);
}

/// One stream whose metadata cannot be read failed all appends that were looked up together with it.
#[tokio::test]
async fn damaged_metadata_fail_the_appends_to_their_stream_alone() {
    let world = world(4);
    let before = start(&world);
    for stream in ["a", "damaged", "z"] {
        before
            .append(to(stream, Any, vec![event("a")]))
            .await
            .unwrap();
        let request = SetStreamMetadata {
            stream: name(stream),
            expected: Any,
            metadata: StreamMetadata::parse(r#"{"$maxCount":2}"#).unwrap(),
        };
        before.set_metadata(request, None).await.unwrap();
    }
    world.damage_metadata(&name("damaged"));
    let p = start(&world);
    let append = |stream| p.append(to(stream, StreamExists, vec![event("a")]));
    for _ in 0..2 {
        let (a, damaged, z) = tokio::join!(append("a"), append("damaged"), append("z"));
        a.unwrap();
        z.unwrap();
        let error = damaged.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error}");
    }
    assert_eq!(events(&world).len(), 10);
    check(&world);
}

/// An id that stood twice in one append to a stream was stored twice, and a retry was then answered as a conflict.
#[tokio::test]
async fn an_id_stands_once_in_an_append_to_a_stream() {
    let world = world(4);
    let p = start(&world);
    let (one, other) = (event("a"), event("b"));
    let twice = vec![one.clone(), other.clone(), one.clone()];
    let refused = p.append(to("s", Any, twice)).await.unwrap_err();
    assert!(
        matches!(refused.kind(), ErrorKind::InvalidArgument { field, .. } if field == "events[2].id"),
        "{refused}"
    );
    assert_eq!(events(&world).len(), 0);
    // An id identifies an event of its stream, so it may stand in another one.
    let mut both = to("s", Any, vec![one.clone(), other]);
    both.streams.extend(to("t", Any, vec![one]).streams);
    p.append(both).await.unwrap();
    assert_eq!(events(&world).len(), 3);
}

/// Packing large data held up every other task of the runtime's worker: the server answered nobody meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn packing_large_data_holds_up_no_other_task() {
    let world = world(4);
    let p = start(&world);
    let (ran, has_run) = std::sync::mpsc::channel();
    let has_run = std::sync::Mutex::new(has_run);
    let appending = tokio::spawn(async move {
        p.on_packing(move |_| {
            let waited = has_run.lock().unwrap().recv_timeout(DEADLINE);
            waited.expect("another task runs while data are packed");
            None
        });
        // It waits for the only worker, which packs.
        tokio::spawn(async move { ran.send(()) });
        let large = EventData {
            data: format!("\"{}\"", "x".repeat(2 * 1024 * 1024)).into(),
            ..event("a")
        };
        p.append(to("s", Any, vec![large])).await
    });
    appending.await.unwrap().unwrap();
    assert_eq!(events(&world).len(), 1);
}

#[tokio::test]
async fn shutdown_drains_and_then_refuses() {
    let world = world(4);
    let p = start(&world);
    let mut attempts: Vec<_> = (0..100)
        .map(|_| Box::pin(p.append(to("s", Any, vec![event("a")]))))
        .collect();
    for attempt in &mut attempts {
        assert!(futures::poll!(attempt).is_pending());
    }
    p.shutdown().await.unwrap();
    assert!(join_all(attempts).await.iter().all(Result::is_ok));
    let error = p.append(to("s", Any, vec![event("a")])).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable(_)));
    assert_eq!(events(&world).len(), 100);
}

/// Goal: what pipelines keep in memory is bounded for all logs of a store together. What happened: each log kept up to
/// 8 MiB of newest events for conditions.
#[test]
fn the_logs_of_a_store_share_the_bounds_of_their_memory() {
    let whole = Config::default();
    let of = |config: &Config| {
        [
            config.streams_cached_max,
            config.names_max,
            config.newest_events_max,
            config.newest_bytes_max,
        ]
    };
    for logs in [1, 3, 16, 1_024_u16] {
        let each = of(&whole.for_each_of(logs));
        for (each, whole) in each.into_iter().zip(of(&whole)) {
            let sum = each * usize::from(logs);
            assert!(
                sum >= whole && sum < whole + usize::from(logs),
                "{sum} {whole}"
            );
        }
    }
}
