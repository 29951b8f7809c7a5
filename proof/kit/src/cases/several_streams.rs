//! Appends to several streams: whole or not at all.

use futures::future::join_all;
use gesta_core::{
    Append, DeleteKind, ErrorKind, EventData, EventStoreExt, ExpectedRevision, Revision,
};

use crate::factory::StoreFactory;
use crate::support::*;

fn several(parts: Vec<(&str, ExpectedRevision, Vec<EventData>)>) -> Append {
    let part = |(name, expected, events)| Append::to(stream(name), expected, events).streams;
    Append {
        streams: parts.into_iter().flat_map(part).collect(),
        conditions: Vec::new(),
    }
}

/// Goal: events are stored in the order of the request, and each stream gets its answer.
pub async fn are_stored_in_the_order_of_the_request(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "b-{k}", NoStream, events(2)).await;
    let request = several(vec![
        ("c-{k}", NoStream, events(2)),
        ("b-{k}", exact(1), events(1)),
        ("a-{k}", Any, events(2)),
    ]);
    let ids: Vec<_> = request
        .streams
        .iter()
        .flat_map(|part| part.events.iter().filter_map(|event| event.id))
        .collect();
    let answer = within("append", store.append(request))
        .await
        .expect("stored");
    let parts: Vec<_> = answer
        .streams
        .iter()
        .map(|part| {
            (
                part.stream.as_str(),
                part.first_revision.0,
                part.last_revision.0,
            )
        })
        .collect();
    assert_eq!(parts, [("c-{k}", 0, 1), ("b-{k}", 2, 2), ("a-{k}", 0, 1)]);
    assert_eq!(answer.position, answer.streams[2].position);

    let stored = everything(store.as_ref()).await;
    assert_eq!(
        stored[2..].iter().map(|event| event.id).collect::<Vec<_>>(),
        ids
    );
    for part in &answer.streams {
        let last = stored.iter().rfind(|event| event.stream == part.stream);
        assert_eq!(last.map(|event| event.position), Some(part.position));
    }
}

/// Goal: one failing check stores nothing at all, and the first failing one is reported.
pub async fn one_failing_check_stores_nothing(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "a-{k}", NoStream, events(2)).await;
    let before = everything(store.as_ref()).await;
    let answer = store
        .append(several(vec![
            ("a-{k}", exact(1), events(1)),
            ("b-{k}", NoStream, events(3)),
            ("c-{k}", exact(7), events(1)),
            ("d-{k}", StreamExists, events(1)),
        ]))
        .await;
    assert_wrong(answer, "c-{k}", exact(7), None);
    let answer = store
        .append(several(vec![
            ("d-{k}", StreamExists, events(1)),
            ("c-{k}", exact(7), events(1)),
        ]))
        .await;
    assert_wrong(answer, "d-{k}", StreamExists, None);
    assert_eq!(everything(store.as_ref()).await, before);
    let answer = append(store.as_ref(), "b-{k}", NoStream, events(1)).await;
    assert_eq!(answer.streams[0].first_revision, Revision(0));
}

/// Goal: a tombstone of one stream refuses the whole append.
pub async fn a_tombstone_among_them_refuses_all(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let tombstone = delete(store.as_ref(), "b-{k}", NoStream, DeleteKind::Tombstone).await;
    tombstone.expect("tombstoned");
    let answer = store
        .append(several(vec![
            ("a-{k}", NoStream, events(1)),
            ("b-{k}", Any, events(1)),
        ]))
        .await;
    assert_kind!(answer, ErrorKind::StreamTombstoned(name) if *name == stream("b-{k}"));
    assert_kind!(
        read(store.as_ref(), "a-{k}").await,
        ErrorKind::StreamNotFound(_)
    );
}

/// Goal: a stream may stand only once in an append, and an append has events.
pub async fn malformed_appends_are_refused(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for request in [
        several(vec![]),
        several(vec![("a-{k}", Any, vec![])]),
        several(vec![("a-{k}", Any, events(1)), ("b-{k}", Any, vec![])]),
        several(vec![("a-{k}", Any, events(1)), ("a-{k}", Any, events(1))]),
    ] {
        let answer = within("append", store.append(request)).await;
        assert_kind!(answer, ErrorKind::InvalidArgument { .. });
    }
    assert!(everything(store.as_ref()).await.is_empty());
}

/// Goal: a stream and its metadata can be written together.
pub async fn a_stream_and_its_metadata_go_together(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mut metadata = event("$metadata");
    metadata.data = r#"{"$maxCount":2}"#.into();
    let request = several(vec![
        ("$$a", NoStream, vec![metadata]),
        ("a", NoStream, events(3)),
    ]);
    within("append", store.append(request))
        .await
        .expect("stored");
    assert_eq!(revisions(store.as_ref(), "a").await, [1, 2]);
}

/// Goal: writers that take several streams in opposite orders neither block each other for ever nor both win.
pub async fn opposite_orders_have_one_winner(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for round in 0..5 {
        let (a, b) = (format!("a-{{{round}}}"), format!("b-{{{round}}}"));
        let attempts = (0..6).map(|attempt| {
            let mut parts = vec![(&*a, NoStream, events(1)), (&*b, NoStream, events(1))];
            if attempt % 2 == 1 {
                parts.reverse();
            }
            let (store, request) = (store.share(), several(parts));
            tokio::spawn(async move { store.append(request).await })
        });
        let answers = within("attempts", join_all(attempts)).await;
        let (won, lost): (Vec<_>, Vec<_>) = answers
            .into_iter()
            .map(|answer| answer.expect("no panic"))
            .partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, 5));
        for answer in lost {
            assert_kind!(
                answer,
                ErrorKind::WrongExpectedRevision {
                    actual: Some(_),
                    ..
                }
            );
        }
        assert_eq!(revisions(store.as_ref(), &a).await, [0]);
        assert_eq!(revisions(store.as_ref(), &b).await, [0]);
    }
}

/// Goal: a reader sees all of an append or nothing of it.
pub async fn readers_see_no_half_of_an_append(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let writer = {
        let store = store.share();
        tokio::spawn(async move {
            for _ in 0..30 {
                let parts = vec![("a-{k}", Any, events(2)), ("b-{k}", Any, events(2))];
                store.append(several(parts)).await.expect("stored");
            }
        })
    };
    loop {
        let finished = writer.is_finished();
        let seen = everything(store.as_ref()).await;
        let count = |name: &str| seen.iter().filter(|e| e.stream.as_str() == name).count();
        assert_eq!(count("a-{k}"), count("b-{k}"), "half of an append");
        if finished {
            assert_eq!(seen.len(), 120);
            break;
        }
        tokio::task::yield_now().await;
    }
    writer.await.expect("no panic");
    let whole = store.read_whole_stream("a-{k}").await.expect("readable");
    assert_eq!(whole.len(), 60);
}

fn one(name: &str, conditions: &[(&str, ExpectedRevision)]) -> Append {
    let append = Append::to(stream(name), Any, events(1));
    conditions.iter().fold(append, |append, (name, expected)| {
        append.provided_that(stream(name), *expected)
    })
}

/// Goal: an append is stored only if streams that it does not write are as it requires; a refusal names the stream and
/// stores nothing.
pub async fn conditions_of_other_streams_must_hold(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "a-{k}", NoStream, events(3)).await;
    append(store.as_ref(), "gone-{k}", NoStream, events(1)).await;
    delete(store.as_ref(), "gone-{k}", Any, DeleteKind::Soft)
        .await
        .expect("deleted");
    for holds in [
        ("a-{k}", Any),
        ("a-{k}", StreamExists),
        ("a-{k}", exact(2)),
        ("none-{k}", NoStream),
        ("gone-{k}", NoStream),
        ("gone-{k}", exact(0)),
        ("$$gone-{k}", exact(0)),
        ("$$a-{k}", NoStream),
    ] {
        let answer = within("append", store.append(one("b-{k}", &[holds]))).await;
        let streams = answer
            .unwrap_or_else(|error| panic!("{holds:?}: {error}"))
            .streams;
        assert_eq!(streams.len(), 1, "only what was written is answered");
    }
    let before = everything(store.as_ref()).await;
    for (name, expected, actual) in [
        ("a-{k}", NoStream, Some(2)),
        ("a-{k}", exact(1), Some(2)),
        ("a-{k}", exact(3), Some(2)),
        ("none-{k}", StreamExists, None),
        ("none-{k}", exact(0), None),
        ("gone-{k}", StreamExists, None),
        ("$$a-{k}", StreamExists, None),
    ] {
        let conditions = [("a-{k}", StreamExists), (name, expected)];
        let conditions = if name == "a-{k}" {
            &conditions[1..]
        } else {
            &conditions[..]
        };
        let answer = store.append(one("b-{k}", conditions)).await;
        assert_wrong(answer, name, expected, actual);
        // The claims of what is written come first.
        let mut both = one("b-{k}", conditions);
        both.streams[0].expected = NoStream;
        assert_wrong(store.append(both).await, "b-{k}", NoStream, Some(7));
    }
    assert_eq!(everything(store.as_ref()).await, before);

    delete(store.as_ref(), "a-{k}", Any, DeleteKind::Tombstone)
        .await
        .expect("deleted");
    for expected in [NoStream, StreamExists, exact(2)] {
        let answer = store.append(one("b-{k}", &[("a-{k}", expected)])).await;
        let error = answer.expect_err("the stream is closed");
        assert!(
            matches!(error.kind(), ErrorKind::StreamTombstoned(_)),
            "{error}"
        );
    }
}

/// Goal: the retry of an append is answered as the first time, also when its conditions hold no longer.
pub async fn conditions_do_not_refuse_a_retry(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "a-{k}", NoStream, events(1)).await;
    for (round, claim) in (0..).zip([NoStream, Any, StreamExists]) {
        let mut request = one("b-{k}", &[("a-{k}", StreamExists), ("c-{k}", NoStream)]);
        request.streams[0].expected = claim;
        let first = within("append", store.append(request.clone())).await;
        let first = first.unwrap_or_else(|error| panic!("{claim}: {error}"));
        append(store.as_ref(), "c-{k}", Any, events(1)).await;
        let again = within("append", store.append(request)).await;
        assert_eq!(again.expect("a retry").streams, first.streams);
        let other = one("b-{k}", &[("c-{k}", NoStream)]);
        let actual = store.append(other).await;
        assert_wrong(actual, "c-{k}", NoStream, Some(round));
        delete(store.as_ref(), "c-{k}", Any, DeleteKind::Soft)
            .await
            .expect("deleted");
    }
}

/// Goal: of appends that each require that the other one was not stored, one is stored.
pub async fn racing_appends_that_exclude_each_other_are_not_both_stored(
    factory: &dyn StoreFactory,
) {
    let store = factory.create().await;
    for round in 0..20 {
        let names = [format!("a-{round}-{{k}}"), format!("b-{round}-{{k}}")];
        let appends = (0..2).map(|this| {
            let request = Append::to(stream(&names[this]), NoStream, events(1));
            store.append(request.provided_that(stream(&names[1 - this]), NoStream))
        });
        let answers = within("appends", join_all(appends)).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    }
}

/// Goal: conditions are checked like everything else in a request.
pub async fn wrong_conditions_are_refused(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let refused = [
        one("a-{k}", &[("a-{k}", StreamExists)]),
        one("a-{k}", &[("b-{k}", NoStream), ("b-{k}", NoStream)]),
        one("a-{k}", &[("$$$$b-{k}", NoStream)]),
        one("a-{k}", &[("$ce-b", NoStream)]),
        Append {
            streams: Vec::new(),
            conditions: one("a-{k}", &[("b-{k}", NoStream)]).conditions,
        },
        {
            let names: Vec<String> = (0..1_000).map(|n| format!("b-{n}-{{k}}")).collect();
            let names: Vec<_> = names.iter().map(|name| (name.as_str(), NoStream)).collect();
            one("a-{k}", &names)
        },
    ];
    for request in refused {
        let error = store.append(request).await.expect_err("refused");
        assert!(
            matches!(error.kind(), ErrorKind::InvalidArgument { .. }),
            "{error}"
        );
    }
    assert_eq!(everything(store.as_ref()).await, []);
}
