//! Two stores over the same data, as two processes have them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures::future::join_all;
use gesta_core::{Append, DeleteKind, EventStore, EventStoreExt, Revision, SubscribeFrom};

use super::racing::{one_of_these_wins, watched_writers};
use crate::factory::{StoreFactory, TestStore};
use crate::support::*;

async fn two(factory: &dyn StoreFactory) -> Option<(TestStore, TestStore)> {
    let first = factory.create().await;
    let second = factory.second(&first).await;
    if second.is_none() {
        skip(factory, "a second store over the same data");
    }
    Some((first, second?))
}

/// Goal: both stores append to the same streams, and revisions have no gap.
pub async fn both_append_without_a_gap(factory: &dyn StoreFactory) {
    let Some((a, b)) = two(factory).await else {
        return;
    };
    for round in 0..6 {
        let store = if round % 2 == 0 { &a } else { &b };
        let answer = append(store.as_ref(), "s", Any, events(2)).await;
        assert_eq!(answer.streams[0].first_revision, Revision(2 * round));
    }
    let found = revisions(a.as_ref(), "s").await;
    assert_eq!(found, (0..12).collect::<Vec<_>>());
    assert_eq!(everything(a.as_ref()).await, everything(b.as_ref()).await);
}

/// Goal: a claim that another store has made true is accepted, and one that another store has made false is refused
/// with the right actual revision. No answer comes from an outdated cache.
pub async fn claims_are_judged_by_what_is_stored(factory: &dyn StoreFactory) {
    let Some((a, b)) = two(factory).await else {
        return;
    };
    append(a.as_ref(), "s", NoStream, events(1)).await;
    append(b.as_ref(), "s", exact(0), events(1)).await;
    // What `a` remembers about the stream is outdated now.
    append(a.as_ref(), "s", exact(1), events(1)).await;
    assert_wrong(
        b.append_to("s", exact(1), events(1)).await,
        "s",
        exact(1),
        Some(2),
    );
    append(b.as_ref(), "s", exact(2), events(1)).await;
    assert_wrong(
        a.append_to("s", exact(2), events(1)).await,
        "s",
        exact(2),
        Some(3),
    );
    assert_wrong(
        a.append_to("s", NoStream, events(1)).await,
        "s",
        NoStream,
        Some(3),
    );

    delete(a.as_ref(), "s", exact(3), DeleteKind::Soft)
        .await
        .expect("deleted");
    assert_wrong(
        b.append_to("s", StreamExists, events(1)).await,
        "s",
        StreamExists,
        None,
    );
    append(b.as_ref(), "s", NoStream, events(1)).await;
    append(a.as_ref(), "s", StreamExists, events(1)).await;
    delete(b.as_ref(), "s", exact(5), DeleteKind::Tombstone)
        .await
        .expect("tombstoned");
    assert_kind!(
        a.append_to("s", Any, events(1)).await,
        ErrorKind::StreamTombstoned(_)
    );
    assert_kind!(read(a.as_ref(), "s").await, ErrorKind::StreamTombstoned(_));
}

/// Goal: what one store has acknowledged, the other reads at once.
pub async fn each_reads_what_the_other_acknowledged(factory: &dyn StoreFactory) {
    let Some((a, b)) = two(factory).await else {
        return;
    };
    for round in 0..8 {
        let (writer, reader) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        append(writer.as_ref(), "s", Any, events(1)).await;
        let found = revisions(reader.as_ref(), "s").await;
        assert_eq!(found, (0..=round).collect::<Vec<_>>());
        assert_eq!(everything(reader.as_ref()).await.len(), found.len());
        let heads = reader.info().await.expect("info").heads;
        assert_eq!(heads, writer.info().await.expect("info").heads);
    }
    set_metadata(a.as_ref(), "s", Any, r#"{"$maxCount":1}"#)
        .await
        .expect("set");
    assert_eq!(revisions(b.as_ref(), "s").await, [7]);
}

/// Goal: a retry through the other store is recognised.
pub async fn retries_through_the_other_are_recognised(factory: &dyn StoreFactory) {
    let Some((a, b)) = two(factory).await else {
        return;
    };
    for (name, expected) in [
        ("n", NoStream),
        ("s", Any),
        ("s", StreamExists),
        ("s", exact(3)),
    ] {
        let request = Append::to(stream(name), expected, events(2));
        let first = a.append(request.clone()).await.expect("stored");
        append(b.as_ref(), "other", Any, events(1)).await;
        let again = b.append(request.clone()).await;
        let again = again.unwrap_or_else(|error| panic!("{expected}: {error}"));
        assert_eq!(again, first, "{expected}");
        assert_eq!(
            a.append(request).await.expect("a retry"),
            first,
            "{expected}"
        );
    }
    assert_eq!(revisions(a.as_ref(), "s").await, [0, 1, 2, 3, 4, 5]);
}

/// Goal: a subscription of one store is woken by appends of the other, in good time.
pub async fn subscriptions_are_woken_across(factory: &dyn StoreFactory) {
    let Some((a, b)) = two(factory).await else {
        return;
    };
    append(a.as_ref(), "s", NoStream, events(1)).await;
    let mut all = Follower::all(b.as_ref(), SubscribeFrom::Start).await;
    let mut one = Follower::stream(b.as_ref(), "s", SubscribeFrom::Start).await;
    all.until_caught_up().await;
    one.until_caught_up().await;
    for revision in 1..4 {
        append(a.as_ref(), "s", Any, events(1)).await;
        for follower in [&mut all, &mut one] {
            assert_eq!(follower.event().await.revision, Revision(revision));
        }
    }
    delete(a.as_ref(), "s", Any, DeleteKind::Tombstone)
        .await
        .expect("tombstoned");
    let error = one.error().await;
    assert!(
        matches!(error.kind(), gesta_core::ErrorKind::StreamTombstoned(_)),
        "{error:?}"
    );
    assert_eq!(all.event().await.event_type.as_str(), "$tombstone");
}

/// Goal: of writers at both stores that expect the same, exactly one wins.
pub async fn one_writer_wins(factory: &dyn StoreFactory) {
    let Some((a, b)) = two(factory).await else {
        return;
    };
    one_of_these_wins(&[a.share(), b.share()]).await;
}

/// Goal: with writers and readers at both stores, nothing appears below a passed position.
pub async fn nothing_appears_below_a_passed_position(factory: &dyn StoreFactory) {
    let Some((a, b)) = two(factory).await else {
        return;
    };
    watched_writers(&[a.share(), b.share()]).await;
}

/// Goal: the same append sent to both stores at once is stored once and gets one answer.
pub async fn the_same_append_at_both_is_stored_once(factory: &dyn StoreFactory) {
    let Some((a, b)) = two(factory).await else {
        return;
    };
    append(a.as_ref(), "s-any", NoStream, events(1)).await;
    for round in 0..5 {
        for (name, expected) in [(format!("s-{round}"), NoStream), ("s-any".into(), Any)] {
            let request = Append::to(stream(&name), expected, events(2));
            let attempts = [&a, &b].map(|store| {
                let (store, request): (Arc<dyn EventStore>, _) = (store.share(), request.clone());
                tokio::spawn(async move { store.append(request).await })
            });
            let answers = within("attempts", join_all(attempts)).await;
            let answers: Vec<_> = answers
                .into_iter()
                .map(|answer| answer.expect("no panic").expect("stored or recognised"))
                .collect();
            assert_eq!(answers[0], answers[1], "{expected}");
        }
    }
    assert_eq!(everything(a.as_ref()).await.len(), 1 + 5 * 4);
}

/// Goal: while one store never pauses its appends, those of the other store are stored too, and the busy store goes on.
pub async fn a_busy_store_lets_the_other_through(factory: &dyn StoreFactory) {
    let Some((a, b)) = two(factory).await else {
        return;
    };
    let finished = Arc::new(AtomicBool::new(false));
    let counts: Arc<[AtomicU64; 8]> = Arc::default();
    let busy = (0..counts.len()).map(|writer| {
        let (store, finished, counts) = (a.share(), Arc::clone(&finished), Arc::clone(&counts));
        tokio::spawn(async move {
            while !finished.load(Ordering::Relaxed) {
                append(store.as_ref(), &format!("busy-{writer}"), Any, events(1)).await;
                counts[writer].fetch_add(1, Ordering::Relaxed);
                // A store that never waits lets the others go on, too.
                tokio::task::yield_now().await;
            }
        })
    });
    let busy: Vec<_> = busy.collect();
    within("appends beside a busy store", async {
        for _ in 0..10 {
            append(b.as_ref(), "other", Any, events(1)).await;
            tokio::task::yield_now().await;
        }
    })
    .await;
    within("further appends of the busy store", async {
        for count in counts.iter() {
            let before = count.load(Ordering::Relaxed);
            while count.load(Ordering::Relaxed) == before {
                tokio::task::yield_now().await;
            }
        }
    })
    .await;
    finished.store(true, Ordering::Relaxed);
    for (writer, ended) in join_all(busy).await.into_iter().enumerate() {
        ended.expect("no panic");
        let found = revisions(b.as_ref(), &format!("busy-{writer}")).await;
        let appends = counts[writer].load(Ordering::Relaxed);
        assert_eq!(found, (0..appends).collect::<Vec<_>>());
    }
    assert_eq!(revisions(a.as_ref(), "other").await.len(), 10);
}
