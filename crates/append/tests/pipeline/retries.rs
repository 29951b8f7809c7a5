//! Retries: what was asked for before, in the same process, in another one, and while it is under way.

use super::*;

#[tokio::test]
async fn retries_get_the_first_answer() {
    let world = world(4);
    let p = start(&world);
    p.append(to("s", NoStream, vec![event("x")])).await.unwrap();
    for expected in [Exact(Revision(0)), Any, StreamExists] {
        let request = to("s", expected, vec![event("a"), event("b")]);
        let expected_now = events(&world).len();
        let first = p.append(request.clone()).await.unwrap();
        assert_eq!(
            p.append(request.clone()).await.unwrap(),
            first,
            "{expected}"
        );
        assert_eq!(
            start(&world).append(request.clone()).await.unwrap(),
            first,
            "through another process"
        );
        assert_eq!(events(&world).len(), expected_now + 2);
        let mut other = request;
        other.streams[0].events[1] = event("b");
        assert!(
            p.append(other).await.is_err(),
            "the same first id, another second one"
        );
    }
    check(&world);
}

/// A row can be visible although no synchronous standby has it. A retry that was found by looking was answered without
/// asking anybody whether the row is durable; now it waits for a commit after it.
#[tokio::test(start_paused = true)]
async fn a_retry_that_is_found_waits_for_a_commit() {
    let world = world(4);
    let request = to("s", Any, vec![event("a")]);
    let first = start(&world).append(request.clone()).await.unwrap();
    let p = start(&world);
    p.append(to("t", Any, vec![event("a")])).await.unwrap();
    p.hold(Answers::Commits);
    let retry = p.append(request);
    tokio::pin!(retry);
    let wait = tokio::time::timeout(Duration::from_secs(1), &mut retry);
    assert!(wait.await.is_err(), "nothing has committed");
    p.release(Answers::Commits);
    assert_eq!(retry.await.unwrap(), first);
    assert_eq!(events(&world).len(), 2);
}

/// Goal: a retry that arrives while the first attempt is in flight joins it.
#[tokio::test]
async fn a_retry_joins_the_attempt_in_flight() {
    let world = world(4);
    let p = start(&world);
    p.append(to("s", NoStream, vec![event("x")])).await.unwrap();
    for expected in [Exact(Revision(0)), Any] {
        p.hold(Answers::Commits);
        let joined = p.stats().joined;
        let request = to("s", expected, vec![event("a")]);
        let attempts = join_all((0..5).map(|_| p.append(request.clone())));
        let release = async {
            eventually("retries joined", || p.stats().joined == joined + 4).await;
            p.release(Answers::Commits);
        };
        let (answers, ()) = tokio::join!(attempts, release);
        let answers: Vec<Appended> = answers.into_iter().map(Result::unwrap).collect();
        assert!(
            answers.windows(2).all(|pair| pair[0] == pair[1]),
            "{answers:?}"
        );
    }
    assert_eq!(events(&world).len(), 3);
}

/// A retry that named its streams in another order was not recognised while its first attempt was under way, and both
/// were stored.
#[tokio::test]
async fn a_retry_joins_the_attempt_in_flight_in_whatever_order_it_names_its_streams() {
    let world = world(4);
    let p = start(&world);
    let mut request = to("a", Any, vec![event("e"), event("e")]);
    request
        .streams
        .extend(to("b", Any, vec![event("e")]).streams);
    let mut reversed = request.clone();
    reversed.streams.reverse();
    p.hold(Answers::Commits);
    let release = async {
        eventually("the retry has joined", || p.stats().joined == 1).await;
        p.release(Answers::Commits);
    };
    let (first, retry, ()) = tokio::join!(p.append(request), p.append(reversed), release);
    let (first, mut retry) = (first.unwrap(), retry.unwrap());
    retry.streams.reverse();
    assert_eq!(first.streams, retry.streams);
    assert_eq!(events(&world).len(), 3);
    check(&world);
}

/// Goal: a delete and a change of metadata that name the id of their event can be asked for again: the retry gets the
/// first answer, though the first attempt is the very reason to refuse it, through this process and through another.
#[tokio::test]
async fn changes_of_a_stream_s_life_can_be_retried_by_their_id() {
    let world = world(4);
    let (p, other) = (start(&world), start(&world));
    for kind in [DeleteKind::Soft, DeleteKind::Tombstone] {
        p.append(to("s", Any, vec![event("a")])).await.unwrap();
        let id = Some(EventId::random());
        let delete = DeleteStream {
            stream: name("s"),
            expected: Any,
            kind,
        };
        let first = p.delete(delete.clone(), id).await.unwrap();
        for retry in [&p, &other, &p] {
            assert_eq!(retry.delete(delete.clone(), id).await.unwrap(), first);
        }
        let another = p.delete(delete, Some(EventId::random())).await;
        assert!(another.is_err(), "{kind:?}: another delete finds no stream");
    }
    let id = Some(EventId::random());
    let set = SetStreamMetadata {
        stream: name("t"),
        expected: NoStream,
        metadata: StreamMetadata::default(),
    };
    let first = p.set_metadata(set.clone(), id).await.unwrap();
    for retry in [&other, &p] {
        assert_eq!(retry.set_metadata(set.clone(), id).await.unwrap(), first);
    }
    assert!(p.set_metadata(set, None).await.is_err());
}

/// Goal: what was stored before a delete is refused also after scavenging has removed it, by a process that has seen it
/// stored. A process that has not cannot know of it, and a stream that was not deleted has no such memory.
#[tokio::test]
async fn what_was_deleted_and_removed_is_not_stored_again_by_who_has_seen_it() {
    for is_deleted in [true, false] {
        let world = world(1);
        let p = start(&world);
        let request = to("s", Any, vec![event("a")]);
        let first = p.append(request.clone()).await.unwrap();
        p.append(to("s", Any, vec![event("b")])).await.unwrap();
        if is_deleted {
            let delete = DeleteStream {
                stream: name("s"),
                expected: Any,
                kind: DeleteKind::Soft,
            };
            p.delete(delete, None).await.unwrap();
        }
        world.remove(gesta_core::LogId(0), first.position);
        let again = p.append(request.clone()).await;
        match is_deleted {
            true => {
                let refused = gesta_core::ErrorKind::StoredAndDeleted {
                    stream: name("s"),
                    position: first.position,
                };
                assert_eq!(*again.unwrap_err().kind(), refused);
            }
            false => assert!(again.unwrap().position > first.position),
        }
        assert!(start(&world).append(request).await.is_ok(), "{is_deleted}");
    }
}
