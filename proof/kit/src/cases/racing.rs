//! Many calls at once: one winner where there can be one, and readers that never miss what others write.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use gesta_core::{
    AllFrom, Append, Error, EventStore, ExpectedRevision, Filter, Position, ReadAll, SubscribeFrom,
    SubscribeTo,
};

use crate::factory::StoreFactory;
use crate::history::RunHistory;
use crate::support::*;

/// Lets many writers append one event each to the same stream at once. Returns how many succeeded, and the errors of
/// the others.
async fn race(
    stores: &[Arc<dyn EventStore>],
    name: &str,
    expected: ExpectedRevision,
) -> (usize, Vec<Error>) {
    let attempts = (0..8).map(|i| {
        let store = Arc::clone(&stores[i % stores.len()]);
        let request = Append::to(stream(name), expected, events(1));
        tokio::spawn(async move { store.append(request).await })
    });
    let answers = within("attempts", join_all(attempts)).await;
    let answers = answers.into_iter().map(|answer| answer.expect("no panic"));
    let (won, lost): (Vec<_>, Vec<_>) = answers.partition(Result::is_ok);
    (
        won.len(),
        lost.into_iter().filter_map(Result::err).collect(),
    )
}

/// Goal: of several writers that expect the same revision, exactly one succeeds, and the others learn the actual
/// revision.
pub async fn one_writer_wins(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    one_of_these_wins(&[store.share()]).await;
}

/// Checks [`one_writer_wins`] with the writers spread over several stores on the same data.
pub(super) async fn one_of_these_wins(stores: &[Arc<dyn EventStore>]) {
    for revision in 0..6 {
        let expected = after(revision);
        let (won, lost) = race(stores, "contended", expected).await;
        assert_eq!(won, 1, "{expected}: exactly one writer wins; {lost:?}");
        for error in lost {
            let result: gesta_core::Result<()> = Err(error);
            assert_wrong(result, "contended", expected, Some(revision));
        }
    }
    assert!(
        revisions(stores[0].as_ref(), "contended")
            .await
            .into_iter()
            .eq(0..6)
    );
}

/// Goal: writers without a claim all succeed, each with places of its own.
pub async fn writers_without_a_claim_all_win(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let attempts = (0..40).map(|i| {
        let store = store.share();
        tokio::spawn(async move {
            let name = format!("s-{}", i % 3);
            append(store.as_ref(), &name, Any, events(1 + i % 4)).await
        })
    });
    let answers = within("attempts", join_all(attempts)).await;
    let answers: Vec<_> = answers.into_iter().map(|a| a.expect("no panic")).collect();
    let places: HashSet<_> = answers.iter().map(|a| (a.log, a.position)).collect();
    assert_eq!(places.len(), 40);
    for name in ["s-0", "s-1", "s-2"] {
        let count = |(_, a): &(usize, &gesta_core::Appended)| a.streams[0].stream == stream(name);
        let wanted: usize = answers
            .iter()
            .enumerate()
            .filter(count)
            .map(|(i, _)| 1 + i % 4)
            .sum();
        let found = revisions(store.as_ref(), name).await;
        assert_eq!(found, (0..).take(wanted).collect::<Vec<u64>>());
    }
}

/// Goal: nothing ever appears at or below a position that a reader has passed, however many write;
/// and all answers agree with what is stored.
pub async fn nothing_appears_below_a_passed_position(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    watched_writers(&[store.share()]).await;
}

/// Checks [`nothing_appears_below_a_passed_position`] with writers and readers spread over several stores.
pub(super) async fn watched_writers(stores: &[Arc<dyn EventStore>]) {
    const WRITERS: usize = 8;
    let history = RunHistory::new();
    let finished = Arc::new(AtomicBool::new(false));
    let pollers: Vec<_> = (0..2)
        .map(|i| {
            let store = Arc::clone(&stores[i % stores.len()]);
            let (history, finished) = (history.clone(), Arc::clone(&finished));
            tokio::spawn(async move { poll(store.as_ref(), &history, &finished).await })
        })
        .collect();
    let subscribers: Vec<_> = stores
        .iter()
        .map(|store| {
            let (store, history) = (Arc::clone(store), history.clone());
            tokio::spawn(async move { follow(store.as_ref(), &history).await })
        })
        .collect();

    let writers = (0..WRITERS).map(|writer| {
        let (store, history) = (Arc::clone(&stores[writer % stores.len()]), history.clone());
        tokio::spawn(async move { write(store.as_ref(), &history, writer).await })
    });
    for writer in within("writers", join_all(writers)).await {
        writer.expect("no panic");
    }
    finished.store(true, Ordering::SeqCst);
    let last = Append::to(stream("last"), Any, vec![event("last")]);
    history
        .append(stores[0].as_ref(), last)
        .await
        .expect("stored");
    for reader in pollers.into_iter().chain(subscribers) {
        within("readers", reader).await.expect("no panic");
    }
    let report = history.check(stores[0].as_ref()).await.expect("readable");
    report.assert_clean();
    assert_eq!(report.unknown_stored + report.unknown_absent, 0, "{report}");
    assert_eq!(report.events_foreign, 0, "{report}");
    assert!(report.events_tailed > 0);
}

/// Appends again and again. Some writers compete for a stream, some have their own, and some write to several.
async fn write(store: &dyn EventStore, history: &RunHistory, writer: usize) {
    const APPENDS: u64 = 25;
    for round in 0..APPENDS {
        let request = match writer % 4 {
            0 => Append::to(stream("shared-{k}"), Any, events(1)),
            1 => Append::to(stream(&format!("own-{writer}")), Any, events(3)),
            2 => Append::to(stream("claimed"), after(round), events(1)),
            _ => {
                let mut several = Append::to(stream("x-{k}"), Any, events(1));
                let other = Append::to(stream("shared-{k}"), Any, events(2));
                several.streams.extend(other.streams);
                several
            }
        };
        let _ = history.append(store, request.clone()).await;
        if round % 8 == 0 {
            let _ = history.append(store, request).await;
        }
    }
}

/// Returns the claim of the writer that stores this revision.
fn after(revision: u64) -> ExpectedRevision {
    revision.checked_sub(1).map_or(NoStream, exact)
}

/// Reads page after page until everything is written.
async fn poll(store: &dyn EventStore, history: &RunHistory, finished: &AtomicBool) {
    let tailer = history.tailer("pages", Vec::new(), Filter::ALL);
    let mut request = ReadAll::forwards().limit(17);
    loop {
        let was_finished = finished.load(Ordering::SeqCst);
        let page = within("page", store.read_all(request.clone()))
            .await
            .expect("readable");
        page.events
            .iter()
            .for_each(|event| history.saw(tailer, event));
        if page.end && was_finished {
            return;
        }
        request.from = AllFrom::Checkpoint(page.next);
        tokio::task::yield_now().await;
    }
}

/// Follows a subscription, resuming it now and then, until the last event.
async fn follow(store: &dyn EventStore, history: &RunHistory) {
    let tailer = history.tailer("subscription", Vec::<Position>::new(), Filter::ALL);
    let mut from = SubscribeFrom::Start;
    loop {
        let all = SubscribeTo::All(Filter::ALL);
        let mut follower = Follower::start(store, all, from).await;
        for _ in 0..100 {
            let event = follower.event().await;
            history.saw(tailer, &event);
            if event.event_type.as_str() == "last" {
                return;
            }
        }
        from = SubscribeFrom::Checkpoint(follower.checkpoint.expect("a checkpoint"));
    }
}
