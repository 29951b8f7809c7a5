//! Retries: the same event ids again at the same place get the first answer.

use futures::future::join_all;
use gesta_core::{Append, DeleteKind, EventData, EventStoreExt, ExpectedRevision, Revision};

use crate::factory::{StoreFactory, TestStore};
use crate::support::*;

/// Sends the same append again and expects the first answer.
async fn same_answer_again(store: &TestStore, first: &gesta_core::Appended, request: &Append) {
    let before = everything(store.as_ref()).await.len();
    let again = within("retry", store.append(request.clone())).await;
    let again = again.unwrap_or_else(|error| panic!("a retry is no error: {error}"));
    assert_eq!(&again, first, "as the first time");
    let after = everything(store.as_ref()).await.len();
    assert_eq!(before, after, "a retry stores nothing");
}

/// Stores two events, then an append with this expectation, then another event, and retries the append.
async fn retry_after_the_stream_went_on(store: &TestStore, name: &str, expected: ExpectedRevision) {
    if expected != NoStream {
        append(store.as_ref(), name, NoStream, events(2)).await;
    }
    let request = Append::to(stream(name), expected, events(3));
    let first = store.append(request.clone()).await.expect("stored");
    same_answer_again(store, &first, &request).await;
    append(store.as_ref(), name, StreamExists, events(2)).await;
    same_answer_again(store, &first, &request).await;
}

/// Goal: a retry that expects an exact revision is recognised.
pub async fn with_an_exact_revision(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    retry_after_the_stream_went_on(&store, "r", exact(1)).await;
}

/// Goal: a retry that expects no stream is recognised.
pub async fn with_no_stream(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    retry_after_the_stream_went_on(&store, "r", NoStream).await;
}

/// Goal: a retry without a claim is recognised by its ids.
pub async fn with_any_revision(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    retry_after_the_stream_went_on(&store, "r", Any).await;
}

/// Goal: a retry that expects the stream to exist is recognised by its ids.
pub async fn with_an_existing_stream(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    retry_after_the_stream_went_on(&store, "r", StreamExists).await;
}

/// Goal: other ids at the same place, or more of them than are stored, are a conflict.
pub async fn other_ids_at_the_same_place_are_refused(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let stored = events(2);
    append(store.as_ref(), "r", NoStream, stored.clone()).await;
    let others: [Vec<EventData>; 4] = [
        events(2),
        vec![stored[0].clone(), event("other")],
        vec![stored[1].clone(), stored[0].clone()],
        vec![stored[0].clone(), stored[1].clone(), event("more")],
    ];
    for other in others {
        let answer = store.append_to("r", NoStream, other.clone()).await;
        assert_wrong(answer, "r", NoStream, Some(1));
    }
    let begins_alike = vec![stored[1].clone(), event("other")];
    let answer = store.append_to("r", exact(0), begins_alike.clone()).await;
    assert_wrong(answer, "r", exact(0), Some(1));
    for expected in [Any, StreamExists] {
        let answer = store.append_to("r", expected, begins_alike.clone()).await;
        assert_wrong(answer, "r", expected, Some(1));
    }
    assert_eq!(revisions(store.as_ref(), "r").await, [0, 1]);
}

/// Goal: the ids decide, not the content.
pub async fn content_is_not_compared(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let first = event("first");
    let answer = append(store.as_ref(), "r", NoStream, vec![first.clone()]).await;
    let mut changed = event("changed");
    changed.id = first.id;
    let again = append(store.as_ref(), "r", NoStream, vec![changed]).await;
    assert_eq!(again, answer);
    let stored = everything(store.as_ref()).await;
    assert_eq!(stored[0].event_type, first.event_type);
}

/// Goal: an append whose claim holds as the stream is now is a new append, even with a used id.
pub async fn a_claim_that_holds_is_no_retry(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let same = events(1);
    append(store.as_ref(), "r", NoStream, same.clone()).await;
    append(store.as_ref(), "r", exact(0), same.clone()).await;
    append(store.as_ref(), "r", exact(1), same.clone()).await;
    assert_eq!(revisions(store.as_ref(), "r").await, [0, 1, 2]);
}

/// Goal: after a delete, a retry of what was appended since is compared from the first event after the delete on.
pub async fn of_what_was_appended_after_a_delete(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "r", NoStream, events(3)).await;
    delete(store.as_ref(), "r", Any, DeleteKind::Soft)
        .await
        .expect("deleted");
    for (expected, first) in [(NoStream, 3), (exact(3), 4), (StreamExists, 5), (Any, 6)] {
        let request = Append::to(stream("r"), expected, events(1));
        let answer = store.append(request.clone()).await.expect("stored");
        assert_eq!(answer.streams[0].first_revision, Revision(first));
        same_answer_again(&store, &answer, &request).await;
    }
}

/// What happened: an id that was used before a delete was answered with 201 under *any* although nothing was stored and
/// the stream stayed deleted; under *no stream* it was stored a second time, and the deleted stream was back. Now it is
/// refused under every claim, whether the stream has begun again or not, through whichever process it comes; and so is
/// an append that begins with such an event.
pub async fn of_what_was_stored_before_a_delete_are_refused(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let second = factory.second(&store).await;
    for first in [NoStream, Any] {
        let name = format!("r-{first}").replace(' ', "-");
        let request = Append::to(stream(&name), first, events(2));
        let answer = store.append(request.clone()).await.expect("stored");
        let refused = ErrorKind::StoredAndDeleted {
            stream: stream(&name),
            position: answer.position,
        };
        for _ in 0..2 {
            delete(store.as_ref(), &name, Any, DeleteKind::Soft)
                .await
                .expect("deleted");
            for begun_again in [false, true] {
                if begun_again {
                    append(store.as_ref(), &name, NoStream, events(2)).await;
                }
                let before = everything(store.as_ref()).await.len();
                let last = last_of(&store, &name).await;
                let claims = [
                    Any,
                    NoStream,
                    StreamExists,
                    exact(0),
                    exact(last),
                    exact(99),
                ];
                for expected in claims {
                    let mut again = request.clone();
                    again.streams[0].expected = expected;
                    let other = second.as_ref().unwrap_or(&store);
                    for through in [&store, other] {
                        let told = within("again", through.append(again.clone())).await;
                        let error = told.expect_err("refused");
                        assert_eq!(*error.kind(), refused, "{expected}");
                    }
                }
                assert_eq!(everything(store.as_ref()).await.len(), before, "{name}");
            }
        }
        let mut longer = request.clone();
        longer.streams[0].events.push(event("more"));
        longer.streams[0].expected = Any;
        assert_kind!(
            within("longer", store.append(longer)).await,
            ErrorKind::StoredAndDeleted { .. }
        );
    }
}

/// Returns the last revision of a stream, whether its events were deleted or not.
async fn last_of(store: &TestStore, name: &str) -> u64 {
    let all = everything(store.as_ref()).await;
    let of_it = all.iter().filter(|event| event.stream == stream(name));
    of_it.map(|event| event.revision.0).max().unwrap_or(0)
}

/// Goal: in an append to several streams one that was deleted since decides, and nothing of the others is stored.
pub async fn over_streams_one_of_which_was_deleted(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mut request = Append::to(stream("a-{k}"), NoStream, events(1));
    let other = Append::to(stream("b-{k}"), Any, events(1));
    request.streams.extend(other.streams);
    let first = store.append(request.clone()).await.expect("stored");
    delete(store.as_ref(), "b-{k}", Any, DeleteKind::Soft)
        .await
        .expect("deleted");
    let before = everything(store.as_ref()).await.len();
    let told = within("retry", store.append(request.clone())).await;
    let refused = ErrorKind::StoredAndDeleted {
        stream: stream("b-{k}"),
        position: first.streams[1].position,
    };
    assert_eq!(*told.expect_err("refused").kind(), refused);
    // Neither is a mixture of it and new events.
    request.streams[0] = Append::to(stream("c-{k}"), Any, events(1))
        .streams
        .remove(0);
    let told = within("mixture", store.append(request)).await;
    assert_eq!(*told.expect_err("refused").kind(), refused);
    assert_eq!(everything(store.as_ref()).await.len(), before);
}

/// Goal: ids that the store made never make a retry.
pub async fn events_without_ids_are_never_retries(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let without_id = || {
        vec![EventData {
            id: None,
            ..event("happened")
        }]
    };
    append(store.as_ref(), "r", NoStream, without_id()).await;
    let answer = store.append_to("r", NoStream, without_id()).await;
    assert_wrong(answer, "r", NoStream, Some(0));
    append(store.as_ref(), "r", Any, without_id()).await;
    append(store.as_ref(), "r", Any, without_id()).await;
    assert_eq!(revisions(store.as_ref(), "r").await, [0, 1, 2]);
}

/// Goal: attempts with the same ids that run at the same time store once and all get one answer.
pub async fn attempts_in_flight_are_joined(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "r-exists", NoStream, events(1)).await;
    for (name, expected, first) in [
        ("r-none", NoStream, 0),
        ("r-any", Any, 0),
        ("r-exists", StreamExists, 1),
        ("r-exists", exact(1), 2),
    ] {
        let request = Append::to(stream(name), expected, events(1));
        let attempts = (0..8).map(|_| {
            let (store, request) = (store.share(), request.clone());
            tokio::spawn(async move { store.append(request).await })
        });
        let answers = within("attempts", join_all(attempts)).await;
        for answer in answers {
            let answer = answer.expect("no panic");
            let answer = answer.unwrap_or_else(|error| panic!("{name}, {expected}: {error}"));
            assert_eq!(
                answer.streams[0].first_revision,
                Revision(first),
                "{name}, {expected}"
            );
        }
        let last = revisions(store.as_ref(), name).await.pop();
        assert_eq!(last, Some(first), "{name}, {expected}: stored once");
    }
}

/// Goal: an append to several streams is recognised as a whole; a mixture of stored and new parts is refused.
pub async fn over_several_streams(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mut request = Append::to(stream("a-{k}"), NoStream, events(2));
    request
        .streams
        .extend(Append::to(stream("b-{k}"), Any, events(1)).streams);
    let first = store.append(request.clone()).await.expect("stored");
    append(store.as_ref(), "a-{k}", Any, events(1)).await;
    append(store.as_ref(), "b-{k}", Any, events(1)).await;
    same_answer_again(&store, &first, &request).await;

    let before = everything(store.as_ref()).await.len();
    let mut mixture = request.clone();
    mixture.streams[1].events = events(1);
    assert_kind!(
        within("mixture", store.append(mixture)).await,
        ErrorKind::WrongExpectedRevision { .. }
    );
    let mut mixture = request.clone();
    mixture.streams[0].stream = stream("c-{k}");
    assert_kind!(
        within("mixture", store.append(mixture)).await,
        ErrorKind::WrongExpectedRevision { .. }
    );
    assert_eq!(everything(store.as_ref()).await.len(), before);
}
