//! Subscriptions to one stream.

use gesta_core::{
    Checkpoint, DeleteKind, ErrorKind, Incarnation, Revision, Subscribe, SubscribeFrom, SubscribeTo,
};

use crate::factory::StoreFactory;
use crate::support::*;

/// Goal: only events of the stream come, first those that are stored, then new ones.
pub async fn catches_up_then_goes_live(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for name in ["s-{k}", "t-{k}", "s-{k}"] {
        append(store.as_ref(), name, Any, events(2)).await;
    }
    let mut follower = Follower::stream(store.as_ref(), "s-{k}", SubscribeFrom::Start).await;
    let caught_up = follower.until_caught_up().await;
    assert!(caught_up.iter().map(|event| event.revision.0).eq(0..4));
    for _ in 0..3 {
        append(store.as_ref(), "t-{k}", Any, events(1)).await;
        append(store.as_ref(), "s-{k}", Any, events(1)).await;
    }
    let live = follower.events(3).await;
    assert!(live.iter().map(|event| event.revision.0).eq(4..7));
    assert!(live.iter().all(|event| event.stream == stream("s-{k}")));
}

/// Goal: a subscription begins after a revision, after its checkpoint, or at the end.
pub async fn begins_where_it_is_told(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "s", NoStream, events(4)).await;
    let mut first = Follower::stream(store.as_ref(), "s", SubscribeFrom::Start).await;
    first.events(3).await;
    let checkpoint = first.checkpoint.expect("a checkpoint");
    let text = checkpoint.to_string();
    let starts = [
        (SubscribeFrom::Revision(Revision(1)), vec![2, 3]),
        (SubscribeFrom::Revision(Revision(3)), vec![]),
        (
            SubscribeFrom::Checkpoint(text.parse().expect("its own text")),
            vec![3],
        ),
        (SubscribeFrom::End, vec![]),
    ];
    let mut followers = Vec::new();
    for (from, expected) in starts {
        let mut follower = Follower::stream(store.as_ref(), "s", from.clone()).await;
        let got = follower.until_caught_up().await;
        let got: Vec<_> = got.iter().map(|event| event.revision.0).collect();
        assert_eq!(got, expected, "{from:?}");
        followers.push(follower);
    }
    append(store.as_ref(), "s", Any, events(1)).await;
    for follower in &mut followers {
        assert_eq!(follower.event().await.revision, Revision(4));
    }
}

/// Goal: the stream need not exist yet.
pub async fn waits_for_a_stream_that_does_not_exist(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mut from_start = Follower::stream(store.as_ref(), "s", SubscribeFrom::Start).await;
    let mut from_end = Follower::stream(store.as_ref(), "s", SubscribeFrom::End).await;
    assert!(from_start.until_caught_up().await.is_empty());
    let checkpoint = from_start.checkpoint.clone().expect("a checkpoint");
    append(store.as_ref(), "s", NoStream, events(1)).await;
    assert_eq!(from_start.event().await.revision, Revision(0));
    assert_eq!(from_end.event().await.revision, Revision(0));
    let from = SubscribeFrom::Checkpoint(checkpoint);
    let mut resumed = Follower::stream(store.as_ref(), "s", from).await;
    assert_eq!(resumed.event().await.revision, Revision(0));
}

/// Goal: a soft delete delivers nothing, and the subscription goes on with the stream that begins again.
pub async fn goes_on_after_a_soft_delete(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "s", NoStream, events(2)).await;
    let mut live = Follower::stream(store.as_ref(), "s", SubscribeFrom::Start).await;
    live.until_caught_up().await;
    delete(store.as_ref(), "s", Any, DeleteKind::Soft)
        .await
        .expect("deleted");
    let mut late = Follower::stream(store.as_ref(), "s", SubscribeFrom::Start).await;
    assert!(
        late.until_caught_up().await.is_empty(),
        "deleted events are hidden"
    );
    append(store.as_ref(), "s", NoStream, events(1)).await;
    for follower in [&mut live, &mut late] {
        assert_eq!(follower.event().await.revision, Revision(2));
    }
}

/// Goal: hidden events are skipped.
pub async fn skips_hidden_events(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "s", NoStream, events(6)).await;
    set_metadata(store.as_ref(), "s", Any, r#"{"$tb":4}"#)
        .await
        .expect("set");
    for from in [SubscribeFrom::Start, SubscribeFrom::Revision(Revision(1))] {
        let mut follower = Follower::stream(store.as_ref(), "s", from).await;
        let got = follower.until_caught_up().await;
        assert!(got.iter().map(|event| event.revision.0).eq([4, 5]));
    }
}

/// Goal: a tombstone ends the subscription with an error.
pub async fn ends_at_a_tombstone(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "s", NoStream, events(1)).await;
    let mut follower = Follower::stream(store.as_ref(), "s", SubscribeFrom::Start).await;
    let mut waiting = Follower::stream(store.as_ref(), "never", SubscribeFrom::Start).await;
    follower.until_caught_up().await;
    waiting.until_caught_up().await;
    for (name, follower) in [("s", &mut follower), ("never", &mut waiting)] {
        let tombstone = delete(store.as_ref(), name, Any, DeleteKind::Tombstone).await;
        tombstone.expect("tombstoned");
        let error = follower.error().await;
        assert_eq!(*error.kind(), ErrorKind::StreamTombstoned(stream(name)));
        assert!(follower.next().await.is_none(), "ended");
    }
}

/// Goal: impossible places to begin are refused at once.
pub async fn from_unusable_places_is_refused(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "s", NoStream, events(3)).await;
    let incarnation = store.info().await.expect("info").incarnation;
    let at = |revision| Some(Revision(revision));
    for (name, from) in [
        ("s", SubscribeFrom::Revision(Revision(3))),
        ("s", SubscribeFrom::Revision(Revision::MAX)),
        ("never", SubscribeFrom::Revision(Revision(0))),
        (
            "s",
            SubscribeFrom::Checkpoint(Checkpoint::stream(incarnation, &stream("s"), at(3))),
        ),
        (
            "s",
            SubscribeFrom::Checkpoint(Checkpoint::stream(
                Incarnation::random(),
                &stream("s"),
                at(0),
            )),
        ),
        (
            "s",
            SubscribeFrom::Checkpoint(Checkpoint::stream(incarnation, &stream("other"), at(0))),
        ),
        ("s", {
            let logs = vec![gesta_core::Position(1); usize::from(factory.logs())];
            SubscribeFrom::Checkpoint(Checkpoint::logs(incarnation, logs))
        }),
    ] {
        let request = Subscribe {
            to: SubscribeTo::Stream(stream(name)),
            from: from.clone(),
        };
        let answer = within("subscribe", store.subscribe(request)).await;
        let error = answer
            .err()
            .unwrap_or_else(|| panic!("{from:?} is unusable"));
        assert!(
            matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)),
            "{from:?}: {error:?}"
        );
    }
}

/// Goal: a metadata stream can be subscribed to.
pub async fn follows_a_metadata_stream(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    set_metadata(store.as_ref(), "s", Any, r#"{"a":1}"#)
        .await
        .expect("set");
    let mut follower = Follower::stream(store.as_ref(), "$$s", SubscribeFrom::Start).await;
    assert_eq!(follower.until_caught_up().await.len(), 1);
    set_metadata(store.as_ref(), "s", Any, r#"{"a":2}"#)
        .await
        .expect("set");
    assert_eq!(&follower.event().await.data[..], br#"{"a":2}"#);
}
