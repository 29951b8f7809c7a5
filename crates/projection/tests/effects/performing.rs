//! Events are performed once each and in order, tried again, and stopped at or skipped; a later version goes on.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use gesta_core::EventStoreExt;
use gesta_projection::{BeginAt, Config, Effects, OnPoison, Phase};

use super::support::{
    AT_ALL, Held, Mail, Sent, append, quick, run, store, texts, until, until_phase,
};

/// Goal: each event once and in order while nothing fails, over restarts and new versions; an older version does
/// nothing any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_version_begins_where_the_one_before_stands() {
    let store = store();
    append(&store, &["a", "b", "c"]).await;
    let (running, sent) = run::<1>(&store, quick(), 0).await;
    until(&running, |progress| progress.events == 3).await;
    running.shutdown().await;
    assert_eq!(texts(&sent), ["a", "b", "c"]);
    append(&store, &["d"]).await;
    let (second, sent) = run::<2>(&store, quick(), 0).await;
    until(&second, |progress| progress.events == 1).await;
    assert_eq!(texts(&sent), ["d"]);
    let (old, sent) = run::<1>(&store, quick(), 0).await;
    let stopped = until_phase(&old, Phase::Stopped).await;
    assert_eq!(
        stopped.error.as_deref(),
        Some("version 2 has run, this is 1")
    );
    second.shutdown().await;
    old.shutdown().await;
    assert_eq!(texts(&sent), Vec::<String>::new());
}

/// Goal: an effect may begin with what happens from now on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_may_begin_at_the_end() {
    let store = store();
    append(&store, &["long ago"]).await;
    let sent = Sent::default();
    let mail = Mail::<1> {
        sent: Arc::clone(&sent),
        fails: 0,
    };
    let effects = Effects::on(&store)
        .config(quick())
        .effect(mail, BeginAt::End);
    let running = effects.start().await.expect("started");
    until_phase(&running, Phase::Live).await;
    append(&store, &["now"]).await;
    until(&running, |progress| progress.events == 1).await;
    running.shutdown().await;
    assert_eq!(texts(&sent), ["now"]);
}

/// Goal: an event that fails is tried again; after the last attempt the effect stops before it, and goes on with it
/// when somebody resumes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_stops_before_an_event_that_fails() {
    let store = store();
    append(&store, &["a", "bad", "c"]).await;
    let (running, sent) = run::<1>(&store, quick(), 3).await;
    let stopped = until_phase(&running, Phase::Stopped).await;
    let why = stopped.error.expect("a reason");
    assert!(
        why.contains("position 2 of log 0 failed in 3 attempts: the other side is away"),
        "{why}"
    );
    assert_eq!(texts(&sent), ["a"]);
    running.shutdown().await;
    let (running, sent) = run::<1>(&store, quick(), 2).await;
    until_phase(&running, Phase::Stopped).await;
    running.resume("mail").await.expect("resumed");
    until(&running, |progress| progress.events == 2).await;
    running.shutdown().await;
    assert_eq!(texts(&sent), ["bad", "c"]);
}

/// Goal: an effect that skips goes on, and says what it has skipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_may_skip() {
    let store = store();
    append(&store, &["a", "bad", "c"]).await;
    let config = Config {
        on_poison: OnPoison::Skip,
        ..quick()
    };
    let (running, sent) = run::<1>(&store, config, u32::MAX).await;
    let done = async {
        while texts(&sent).len() < 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(AT_ALL, done)
        .await
        .expect("it goes on");
    running.shutdown().await;
    assert_eq!(texts(&sent), ["a", "c"]);
    let states = store
        .read_whole_stream("$effect-mail")
        .await
        .expect("its states");
    let skipped = states
        .iter()
        .filter(|state| state.data.windows(8).any(|w| w == b"skipped:"));
    assert_eq!(skipped.count(), 1);
}

/// What happened: a process that stopped in the middle of a batch could read once more, and stored the place of what it
/// read. Goal: what it has not performed is performed by the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stops_leaves_the_rest_to_the_next() {
    // Which of two things that are ready goes first is chance.
    for _ in 0..20 {
        let store = store();
        append(&store, &["a", "b", "c"]).await;
        let held = Held::new();
        let effects = Effects::on(&store)
            .config(quick())
            .effect(held.clone(), BeginAt::Start);
        let running = effects.start().await.expect("started");
        held.until_begun().await;
        let mut stopped = std::pin::pin!(running.shutdown());
        // It is told before its first event has ended.
        assert!(stopped.as_mut().now_or_never().is_none());
        held.goes_on.add_permits(10);
        stopped.await;
        let before = texts(&held.sent);
        let (next, rest) = run::<1>(&store, quick(), 0).await;
        until(&next, |progress| progress.phase == Phase::Live).await;
        next.shutdown().await;
        let all: Vec<_> = before.into_iter().chain(texts(&rest)).collect();
        assert_eq!(all, ["a", "b", "c"]);
    }
}
