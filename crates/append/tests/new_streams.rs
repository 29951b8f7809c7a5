//! New streams: once the names of all streams are known, the first append to a new one needs no look at the database,
//! and is as safe as if it had looked.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

#[allow(dead_code, reason = "shared with other tests, which use more of it")]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gesta_append::Config;
use gesta_core::ExpectedRevision::{Any, NoStream};
use gesta_core::*;
use gesta_kit::faulty::{Answers, Fault, LateCommit, Read, World};
use support::{Process, check, eventually, start_with, world};

/// Lists the names at the first stream that is looked up and not found.
fn start(world: &Arc<World>) -> Process {
    let config = Config {
        names_listed_after: 1,
        ..Config::default()
    };
    start_with(world, config)
}

fn name(text: &str) -> StreamId {
    StreamId::new(text).unwrap()
}

fn to(stream: &str, expected: ExpectedRevision) -> Append {
    let event = EventData::json(EventType::new("e").unwrap(), "{}").with_id(EventId::random());
    Append::to(name(stream), expected, vec![event])
}

/// Creates streams until one of them is not looked up.
async fn until_names_are_known(pipeline: &Process, prefix: &str) {
    for number in 0..10_000 {
        let before = pipeline.stats().loads;
        let stream = format!("{prefix}-{number}");
        pipeline.append(to(&stream, NoStream)).await.unwrap();
        if pipeline.stats().loads == before {
            return;
        }
    }
    panic!("the names were never listed");
}

fn exists(error: &Error) -> bool {
    let kind = error.kind();
    matches!(kind, ErrorKind::WrongExpectedRevision { actual, .. } if actual.is_some())
}

#[tokio::test]
async fn new_streams_are_not_looked_up_and_old_ones_are() {
    let world = world(4);
    let before = start(&world);
    for stream in ["old", "older"] {
        before.append(to(stream, NoStream)).await.unwrap();
    }
    let p = start(&world);
    until_names_are_known(&p, "new").await;
    let loads = p.stats().loads;
    for number in 0..100 {
        p.append(to(&format!("more-{number}"), NoStream))
            .await
            .unwrap();
    }
    assert_eq!(p.stats().loads, loads);
    for stream in ["old", "new-0", "more-1"] {
        let refused = p.append(to(stream, NoStream)).await.unwrap_err();
        assert!(exists(&refused), "{refused}");
    }
    p.append(to("older", Any)).await.unwrap();
    assert_eq!(p.stats().loads, loads + 2, "old and older");
    check(&world);
}

/// Goal: streams that leave the cache are not taken as new, be they ours or those of others.
#[tokio::test]
async fn forgotten_streams_are_not_new() {
    let world = world(4);
    let config = Config {
        names_listed_after: 1,
        streams_cached_max: 1,
        ..Config::default()
    };
    let (p, other) = (start_with(&world, config), start(&world));
    until_names_are_known(&p, "new").await;
    p.append(to("ours", NoStream)).await.unwrap();
    other.append(to("theirs", NoStream)).await.unwrap();
    p.append(to("next", NoStream)).await.unwrap();
    p.append(to("last", NoStream)).await.unwrap();
    for stream in ["ours", "theirs", "next"] {
        let refused = p.append(to(stream, NoStream)).await.unwrap_err();
        assert!(exists(&refused), "{refused}");
    }
    check(&world);
}

/// Goal: what another process has created since we last looked is refused all the same, with what is true.
#[tokio::test]
async fn a_stream_that_another_process_has_just_created_is_not_new() {
    let world = world(4);
    let (p, other) = (start(&world), start(&world));
    until_names_are_known(&p, "new").await;
    other.append(to("theirs", NoStream)).await.unwrap();
    let refused = p.append(to("theirs", NoStream)).await.unwrap_err();
    assert!(exists(&refused), "{refused}");
    let appended = p.append(to("theirs", Any)).await.unwrap();
    assert_eq!(appended.streams[0].first_revision, Revision(1));
    check(&world);
}

/// Goal: a tombstone forbids a stream that never had an event.
#[tokio::test]
async fn a_tombstone_without_stream_is_seen() {
    let world = world(4);
    let other = start(&world);
    let tombstone = |stream: &str| DeleteStream {
        stream: name(stream),
        expected: Any,
        kind: DeleteKind::Tombstone,
    };
    other.delete(tombstone("never"), None).await.unwrap();
    let p = start(&world);
    until_names_are_known(&p, "new").await;
    other.delete(tombstone("never-again"), None).await.unwrap();
    for stream in ["never", "never-again"] {
        let refused = p.append(to(stream, Any)).await.unwrap_err();
        assert!(
            matches!(refused.kind(), ErrorKind::StreamTombstoned(_)),
            "{refused}"
        );
    }
}

/// Goal: whatever is created while the names are being listed counts, be it on its way when listing begins.
#[tokio::test]
async fn what_is_created_during_the_listing_is_known() {
    let world = world(4);
    let config = Config {
        names_listed_after: 1,
        streams_cached_max: 1,
        ..Config::default()
    };
    let looks_always = Config {
        names_max: 0,
        ..Config::default()
    };
    let (p, other) = (start_with(&world, config), start_with(&world, looks_always));
    p.hold(Answers::Names);
    p.hold(Answers::Commits);
    // The look at it begins the listing, and the batch with it is sent before.
    let mut on_its_way = Box::pin(p.append(to("on-its-way", NoStream)));
    assert!(futures::poll!(&mut on_its_way).is_pending());
    eventually("listing is under way", || p.held(Answers::Names) == 1).await;
    p.release(Answers::Commits);
    on_its_way.await.unwrap();
    p.append(to("meanwhile", NoStream)).await.unwrap();
    other.append(to("theirs", NoStream)).await.unwrap();
    p.append(to("noticed", Any)).await.unwrap();
    p.release(Answers::Names);
    until_names_are_known(&p, "new").await;
    for stream in ["on-its-way", "meanwhile", "theirs", "noticed"] {
        let refused = p.append(to(stream, NoStream)).await.unwrap_err();
        assert!(exists(&refused), "{stream}: {refused}");
    }
    check(&world);
}

/// Goal: a stream of a statement that was lost is not taken as new afterwards, whether it commits late or is sent
/// again.
#[tokio::test]
async fn a_stream_of_a_lost_statement_is_not_new() {
    for commits_late in [false, true] {
        let world = world(4);
        let p = start(&world);
        until_names_are_known(&p, "new").await;
        p.fail_next_commit(Fault::Lost(LateCommit::WhenTold));
        let lost = to("lost", NoStream);
        let late_commit = async {
            if commits_late {
                eventually("the statement is under way", || p.lost() == 1).await;
                p.go_away();
                assert_eq!(p.commit_lost(), 1);
                p.come_back();
            }
        };
        let (answer, ()) = tokio::join!(p.append(lost.clone()), late_commit);
        assert_eq!(p.commit_lost(), 0);
        assert_eq!(p.append(lost).await.unwrap(), answer.unwrap());
        let refused = p.append(to("lost", NoStream)).await.unwrap_err();
        assert!(exists(&refused), "{refused}");
        check(&world);
    }
}

/// Goal: after a fail-over that lost commits, another process has written below the row that we know. What it created
/// there we have never seen.
#[tokio::test]
async fn what_was_created_in_place_of_lost_commits_is_not_new() {
    let world = world(4);
    let p = start(&world);
    until_names_are_known(&p, "new").await;
    for number in 0..3 {
        let stream = format!("lost-{number}");
        p.append(to(&stream, NoStream)).await.unwrap();
    }
    world.lose_newest(LogId(0), 3);
    let other = start(&world);
    let tombstone = DeleteStream {
        stream: name("gone"),
        expected: Any,
        kind: DeleteKind::Tombstone,
    };
    other.delete(tombstone, None).await.unwrap();
    other.append(to("theirs", NoStream)).await.unwrap();
    for number in 0..5 {
        let stream = format!("more-{number}");
        other.append(to(&stream, NoStream)).await.unwrap();
    }
    let refused = p.append(to("gone", Any)).await.unwrap_err();
    assert!(
        matches!(refused.kind(), ErrorKind::StreamTombstoned(_)),
        "{refused}"
    );
    let refused = p.append(to("theirs", NoStream)).await.unwrap_err();
    assert!(exists(&refused), "{refused}");
    let again = p.append(to("lost-0", NoStream)).await.unwrap();
    assert_eq!(again.streams[0].first_revision, Revision(0), "it was lost");
    check(&world);
}

/// Goal: a listing that fails costs nothing but looks, and is tried again.
#[tokio::test]
async fn a_listing_that_fails_is_tried_again() {
    let world = world(4);
    let p = start(&world);
    let mut fails = true;
    let failed = Arc::new(AtomicBool::new(false));
    let has_failed = Arc::clone(&failed);
    p.fail_reads(move |read| {
        let is_first = matches!(read, Read::Names) && std::mem::take(&mut fails);
        has_failed.fetch_or(is_first, Ordering::Relaxed);
        is_first.then(|| Error::unavailable("interrupted"))
    });
    p.append(to("first", NoStream)).await.unwrap();
    eventually("a listing has failed", || failed.load(Ordering::Relaxed)).await;
    until_names_are_known(&p, "new").await;
    let refused = p.append(to("first", NoStream)).await.unwrap_err();
    assert!(exists(&refused), "{refused}");
}
