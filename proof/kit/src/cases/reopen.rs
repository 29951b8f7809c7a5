//! Closing and opening again: what a persistent store keeps.

use gesta_core::{AllFrom, Append, DeleteKind, EventStoreExt, ReadAll, Revision, SubscribeFrom};

use crate::factory::{StoreFactory, TestStore};
use crate::support::*;

const LACKING: &str = "a store that can be opened again";

/// Makes a store with streams in several states.
async fn filled(factory: &dyn StoreFactory) -> TestStore {
    let store = factory.create().await;
    for name in ["a-1", "b-2", "a-1", "c-3", "d-4"] {
        append(
            store.as_ref(),
            name,
            Any,
            vec![tagged("x", &["t"]), event("y")],
        )
        .await;
    }
    delete(store.as_ref(), "b-2", Any, DeleteKind::Soft)
        .await
        .expect("deleted");
    delete(store.as_ref(), "c-3", Any, DeleteKind::Tombstone)
        .await
        .expect("tombstoned");
    set_metadata(store.as_ref(), "a-1", Any, r#"{"$maxCount":3}"#)
        .await
        .expect("set");
    store
}

/// Goal: all that was acknowledged is there again, to the last event.
pub async fn everything_acknowledged_is_there_again(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for i in 0..10 {
        append(store.as_ref(), &format!("s-{}", i % 3), Any, events(3)).await;
    }
    let before = everything(store.as_ref()).await;
    let info = store.info().await.expect("info");
    let Some(store) = factory.reopen(&store).await else {
        return skip(factory, LACKING);
    };
    assert_eq!(everything(store.as_ref()).await, before);
    let again = store.info().await.expect("info");
    assert_eq!(
        (again.incarnation, again.heads),
        (info.incarnation, info.heads)
    );
}

/// Goal: deletes, tombstones and metadata are in force again.
pub async fn the_state_of_streams_is_kept(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    let Some(store) = factory.reopen(&store).await else {
        return skip(factory, LACKING);
    };
    assert_eq!(revisions(store.as_ref(), "a-1").await, [1, 2, 3]);
    assert_kind!(
        read(store.as_ref(), "b-2").await,
        ErrorKind::StreamNotFound(_)
    );
    assert_kind!(
        read(store.as_ref(), "c-3").await,
        ErrorKind::StreamTombstoned(_)
    );
    assert_eq!(names(&list(store.as_ref(), "", 10).await), ["a-1", "d-4"]);
    let answer = append(store.as_ref(), "b-2", NoStream, events(1)).await;
    assert_eq!(answer.streams[0].first_revision, Revision(2));
    assert_wrong(
        store.append_to("a-1", exact(1), events(1)).await,
        "a-1",
        exact(1),
        Some(3),
    );
}

/// Goal: revisions and positions go on where they ended.
pub async fn appends_go_on(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    let before = everything(store.as_ref()).await;
    let Some(store) = factory.reopen(&store).await else {
        return skip(factory, LACKING);
    };
    let answer = append(store.as_ref(), "a-1", exact(3), events(2)).await;
    assert_eq!(answer.streams[0].first_revision, Revision(4));
    let earlier = before.iter().filter(|event| event.log == answer.log);
    assert!(
        earlier
            .into_iter()
            .all(|event| event.position < answer.position)
    );
    assert_eq!(everything(store.as_ref()).await.len(), before.len() + 2);
}

/// Goal: the next process also recognises retries.
pub async fn retries_are_recognised(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "r", NoStream, events(1)).await;
    let mut requests = Vec::new();
    for expected in [exact(0), Any, StreamExists] {
        let request = Append::to(stream("r"), expected, events(2));
        let answer = store.append(request.clone()).await.expect("stored");
        requests.push((request, answer));
    }
    let fresh = Append::to(stream("n"), NoStream, events(1));
    let answer = store.append(fresh.clone()).await.expect("stored");
    requests.push((fresh, answer));
    let before = everything(store.as_ref()).await.len();
    let Some(store) = factory.reopen(&store).await else {
        return skip(factory, LACKING);
    };
    for (request, answer) in requests {
        let expected = request.streams[0].expected;
        let again = within("retry", store.append(request)).await;
        let again = again.unwrap_or_else(|error| panic!("{expected}: {error}"));
        assert_eq!(again, answer, "{expected}");
    }
    assert_eq!(everything(store.as_ref()).await.len(), before);
}

/// Goal: checkpoints stay usable.
pub async fn checkpoints_stay_good(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    let (_, end) = all_pages(store.as_ref(), ReadAll::forwards()).await;
    let mut follower = Follower::all(store.as_ref(), SubscribeFrom::Start).await;
    follower.events(4).await;
    let checkpoint = follower.checkpoint.clone().expect("a checkpoint");
    let total = everything(store.as_ref()).await.len();
    drop(follower);
    let Some(store) = factory.reopen(&store).await else {
        return skip(factory, LACKING);
    };
    let from = SubscribeFrom::Checkpoint(checkpoint);
    let mut follower = Follower::all(store.as_ref(), from).await;
    assert_eq!(follower.until_caught_up().await.len(), total - 4);
    append(store.as_ref(), "d-4", Any, events(1)).await;
    let request = ReadAll::forwards().from(AllFrom::Checkpoint(end));
    assert_eq!(all_pages(store.as_ref(), request).await.0.len(), 1);
}

/// Goal: nothing is lost or doubled over several lives of a store.
pub async fn several_lives_follow_each_other(factory: &dyn StoreFactory) {
    let mut store = factory.create().await;
    for life in 0..3 {
        for i in 0..5 {
            append(store.as_ref(), "s", Any, events(1 + i)).await;
        }
        let found = revisions(store.as_ref(), "s").await;
        assert_eq!(found, (0..15 * (life + 1)).collect::<Vec<_>>());
        let Some(next) = factory.reopen(&store).await else {
            return skip(factory, LACKING);
        };
        store = next;
    }
}
