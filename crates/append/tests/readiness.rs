//! Whether appends can succeed, and what becomes of those that cannot.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

#[allow(dead_code, reason = "shared with other tests, which use more of it")]
mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use gesta_append::Config;
use gesta_core::*;
use gesta_kit::faulty::{Answers, Fault, Read};
use support::{PanicsOnce, check, events, eventually, start_observed, start_with, world};
use tokio::time::Instant;

fn append(stream: &str) -> Append {
    let event = EventData::json(EventType::new("e").unwrap(), "{}").with_id(EventId::random());
    let stream = StreamId::new(stream).unwrap();
    Append::to(stream, ExpectedRevision::Any, vec![event])
}

/// An append to a full or read-only database waited for 30 s, though waiting could not help, and readiness was green
/// meanwhile.
#[tokio::test(start_paused = true)]
async fn an_append_that_cannot_succeed_fails_at_once_and_readiness_says_why() {
    let world = world(4);
    let pipeline = start_with(&world, Config::default());
    pipeline.append(append("s")).await.unwrap();
    pipeline.ready().await.unwrap();

    pipeline.fail_next_commit(Fault::DiskFull);
    let begun = Instant::now();
    let refused = pipeline.append(append("s")).await.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Unavailable(text) if text.contains("full")));
    assert!(begun.elapsed() < Duration::from_secs(1));
    let why = pipeline.ready().await.unwrap_err();
    assert!(why.to_string().contains("full"), "{why}");

    pipeline.append(append("s")).await.unwrap();
    pipeline.ready().await.unwrap();
    assert_eq!(events(&world).len(), 2);
}

/// An append whose commit was in doubt was said not to be stored if a lasting fault was met after part of the log had
/// been read again. Found by the simulation, in its 834,591st schedule.
#[tokio::test(start_paused = true)]
async fn an_append_in_doubt_is_not_said_to_be_unstored_when_appends_are_refused_for_good() {
    let world = world(4);
    let pipeline = start_with(&world, Config::default());
    pipeline.append(append("s")).await.unwrap();

    pipeline.fail_next_commit(Fault::LostReply);
    pipeline.hold(Answers::Commits);
    let event = || EventData::json(EventType::new("e").unwrap(), "{}").with_id(EventId::random());
    let three = Append::to(
        StreamId::new("s").unwrap(),
        ExpectedRevision::Any,
        vec![event(), event(), event()],
    );
    let (refused, ()) = tokio::join!(pipeline.append(three), async {
        eventually("the events are stored", || events(&world).len() == 4).await;
        // The first of them is found, the gap after it makes the pipeline forget, and then the end of the log cannot be
        // read.
        world.remove(LogId(0), Position(3));
        pipeline.fail_reads(|read| match read {
            Read::LogEnd(_) => Some(ErrorKind::Unsupported("the database is broken".into()).into()),
            _ => None,
        });
        pipeline.release(Answers::Commits);
    });
    let refused = refused.unwrap_err();
    let is_unknown = matches!(refused.kind(), ErrorKind::OutcomeUnknown(_));
    assert!(is_unknown, "{refused}");

    let never_sent = pipeline.append(append("s")).await.unwrap_err();
    let is_refused = matches!(never_sent.kind(), ErrorKind::Unavailable(_));
    assert!(is_refused, "{never_sent}");
    pipeline.let_reads_succeed();
    pipeline.append(append("s")).await.unwrap();
}

/// Readiness was green while commits were not answered.
#[tokio::test(start_paused = true)]
async fn a_commit_without_an_answer_is_no_readiness() {
    let world = world(4);
    let pipeline = start_with(&world, Config::default());
    pipeline.append(append("s")).await.unwrap();
    pipeline.hold(Answers::Commits);
    let stalled = pipeline.append(append("s"));
    tokio::pin!(stalled);
    let wait = tokio::time::timeout(Duration::from_secs(5), &mut stalled);
    assert!(wait.await.is_err());
    let why = pipeline.ready().await.unwrap_err();
    assert!(why.to_string().contains("unanswered"), "{why}");
    pipeline.release(Answers::Commits);
    stalled.await.unwrap();
    pipeline.ready().await.unwrap();
}

/// A panic in the task that appends ended all appends of the log until the process was started again. Now whoever waits
/// is told that the outcome is unknown, and appends go on from what the database holds.
#[tokio::test(start_paused = true)]
async fn a_panic_ends_the_appends_under_way_and_no_others() {
    let world = world(4);
    let pipeline = start_observed(
        &world,
        Config::default(),
        Arc::new(PanicsOnce(AtomicBool::new(false))),
    );
    let first = append("s");
    let lost = pipeline.append(first.clone()).await.unwrap_err();
    assert!(
        matches!(lost.kind(), ErrorKind::OutcomeUnknown(_)),
        "{lost}"
    );
    let why = pipeline.ready().await.unwrap_err();
    assert!(why.to_string().contains("planned"), "{why}");

    let again = pipeline.append(first).await.unwrap();
    assert_eq!(
        again.position,
        Position(1),
        "the retry gets the first answer"
    );
    let next = pipeline.append(append("s")).await.unwrap();
    assert_eq!(next.position, Position(2));
    pipeline.ready().await.unwrap();
    pipeline.shutdown().await.unwrap();
    check(&world);
}
