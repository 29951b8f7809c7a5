//! Virtual streams: `$ce-…`, `$et-…`, `$streams`, and links.
//!
//! What they must hold is computed here once more, in a simple way, from all events.

use futures::StreamExt;
use gesta_core::{
    Checkpoint, ContentType, DeleteKind, Direction, EventData, EventStore, EventStoreExt,
    LinkTarget, ReadStream, RecordedEvent, ResolvedPage, Revision, StreamFrom, SubscribeFrom,
    SubscriptionMessage, resolve_subscription,
};

use crate::factory::{StoreFactory, TestStore};
use crate::support::*;

const LACKING: &str = "virtual streams";

async fn store(factory: &dyn StoreFactory) -> Option<TestStore> {
    let store = factory.create_with_virtual_streams().await;
    if store.is_none() {
        skip(factory, LACKING);
    }
    store
}

/// Returns what the links of a virtual stream must be, by all events of the store.
async fn expected(store: &dyn EventStore, name: &str) -> Vec<String> {
    let events = everything(store).await;
    let of_system = |name: &str| name.starts_with('$');
    let stands_here = |event: &&RecordedEvent| {
        let (stream, event_type) = (event.stream.as_str(), event.event_type.as_str());
        if let Some(category) = name.strip_prefix("$ce-") {
            let before_hyphen = stream.split('-').next().unwrap_or_default();
            !of_system(stream) && before_hyphen == category
        } else if let Some(wanted) = name.strip_prefix("$et-") {
            !of_system(event_type) && event_type == wanted
        } else {
            name == "$streams" && !of_system(stream) && event.revision == Revision(0)
        }
    };
    let found = events.iter().filter(stands_here);
    found
        .map(|event| format!("{}@{}", event.revision.0, event.stream))
        .collect()
}

/// Returns the links of a virtual stream, each with its revision.
async fn links(store: &dyn EventStore, name: &str) -> Vec<(u64, String)> {
    let events = within("read", store.read_whole_stream(name)).await;
    let events = events.unwrap_or_else(|error| panic!("{name}: {error}"));
    for event in &events {
        assert_eq!(event.stream, stream(name));
        assert_eq!(event.event_type.as_str(), "$>");
        assert_eq!(event.content_type, ContentType::Binary);
        assert!(event.metadata.is_empty() && event.tags.is_empty());
    }
    events
        .iter()
        .map(|event| (event.revision.0, text(event)))
        .collect()
}

fn text(event: &RecordedEvent) -> String {
    String::from_utf8(event.data.to_vec()).expect("text")
}

/// Fails unless a virtual stream holds what it must, with revisions 0, 1, 2, …. Returns its links.
async fn assert_links(store: &dyn EventStore, name: &str) -> Vec<String> {
    let expected = expected(store, name).await;
    let numbered: Vec<(u64, String)> = (0..).zip(expected.clone()).collect();
    assert_eq!(links(store, name).await, numbered, "{name}");
    expected
}

async fn some_carts(store: &dyn EventStore) {
    for name in ["cart-1", "cart-2", "show-1", "cart-1", "cart", "cart-3-x"] {
        append(store, name, Any, vec![event("added"), event("paid")]).await;
    }
}

/// Goal: a category has one link for each event of its streams, in the order of the log.
pub async fn of_a_category_hold_its_events(factory: &dyn StoreFactory) {
    let Some(store) = store(factory).await else {
        return;
    };
    some_carts(store.as_ref()).await;
    let carts = assert_links(store.as_ref(), "$ce-cart").await;
    assert_eq!(carts[..3], ["0@cart-1", "1@cart-1", "0@cart-2"]);
    assert_eq!(carts.len(), 10);
    assert_eq!(assert_links(store.as_ref(), "$ce-show").await.len(), 2);
}

/// Goal: a type has one link for each of its events.
pub async fn of_a_type_hold_its_events(factory: &dyn StoreFactory) {
    let Some(store) = store(factory).await else {
        return;
    };
    some_carts(store.as_ref()).await;
    assert_eq!(assert_links(store.as_ref(), "$et-added").await.len(), 6);
    assert_eq!(assert_links(store.as_ref(), "$et-paid").await.len(), 6);
}

/// Goal: `$streams` names every stream once, when the stream begins.
pub async fn of_all_streams_name_each_once(factory: &dyn StoreFactory) {
    let Some(store) = store(factory).await else {
        return;
    };
    some_carts(store.as_ref()).await;
    let delete = delete(store.as_ref(), "cart-2", Any, DeleteKind::Soft);
    delete.await.expect("deleted");
    append(store.as_ref(), "cart-2", Any, events(1)).await;
    let found = assert_links(store.as_ref(), "$streams").await;
    let named = ["cart-1", "cart-2", "show-1", "cart", "cart-3-x"];
    assert_eq!(found, named.map(|name| format!("0@{name}")));
}

/// Goal: streams and types of the system are left out, and links are left out of the types.
pub async fn leave_out_what_is_of_the_system(factory: &dyn StoreFactory) {
    let Some(store) = store(factory).await else {
        return;
    };
    append(store.as_ref(), "cart-1", Any, vec![event("added")]).await;
    append(store.as_ref(), "$mine-1", Any, vec![event("added")]).await;
    append(store.as_ref(), "cart-1", Any, vec![link_to("0@cart-1")]).await;
    set_metadata(store.as_ref(), "cart-1", Any, r#"{"a":1}"#)
        .await
        .expect("set");
    for name in ["$ce-cart", "$et-added", "$streams"] {
        assert_links(store.as_ref(), name).await;
    }
    for none in ["$ce-$mine", "$ce-$$cart", "$et-$metadata", "$et-$>", "$ce-"] {
        let found = read(store.as_ref(), none).await;
        assert_kind!(found, ErrorKind::StreamNotFound(_));
    }
}

/// Goal: a read contains what was acknowledged before it began.
pub async fn hold_what_was_acknowledged(factory: &dyn StoreFactory) {
    let Some(store) = store(factory).await else {
        return;
    };
    for round in 0..50_u64 {
        let name = format!("cart-{}", round % 7);
        append(store.as_ref(), &name, Any, events(1)).await;
        let request = ReadStream::backwards(stream("$ce-cart")).limit(1);
        let page = within("read", store.read_stream(request))
            .await
            .expect("readable");
        assert_eq!(page.last_revision, Revision(round));
        assert_eq!(text(&page.events[0]), format!("{}@{name}", round / 7));
    }
}

/// Goal: pages begin and go on where they are told, in both directions.
pub async fn are_read_in_pages(factory: &dyn StoreFactory) {
    let Some(store) = store(factory).await else {
        return;
    };
    for i in 0..25 {
        append(store.as_ref(), &format!("cart-{}", i % 3), Any, events(1)).await;
    }
    let page = async |from, direction, limit| {
        let request = ReadStream {
            stream: stream("$ce-cart"),
            from,
            direction,
            limit,
        };
        let page = within("read", store.read_stream(request))
            .await
            .expect("readable");
        let found: Vec<u64> = page.events.iter().map(|event| event.revision.0).collect();
        assert_eq!(page.last_revision, Revision(24));
        (found, page.next.map(|next| next.0), page.end)
    };
    use Direction::{Backwards, Forwards};
    use StreamFrom::{End, Start};
    let at = |revision| StreamFrom::Revision(Revision(revision));
    assert_eq!(
        page(Start, Forwards, 3).await,
        (vec![0, 1, 2], Some(3), false)
    );
    assert_eq!(
        page(at(22), Forwards, 3).await,
        (vec![22, 23, 24], Some(25), true)
    );
    assert_eq!(
        page(at(22), Forwards, 9).await,
        (vec![22, 23, 24], Some(25), true)
    );
    assert_eq!(page(at(25), Forwards, 9).await, (vec![], Some(25), true));
    assert_eq!(page(at(99), Forwards, 9).await, (vec![], Some(99), true));
    assert_eq!(page(End, Forwards, 9).await, (vec![], Some(25), true));
    assert_eq!(
        page(End, Backwards, 2).await,
        (vec![24, 23], Some(22), false)
    );
    assert_eq!(
        page(at(99), Backwards, 1).await,
        (vec![24], Some(23), false)
    );
    assert_eq!(page(at(1), Backwards, 5).await, (vec![1, 0], None, true));
    assert_eq!(page(at(0), Backwards, 1).await, (vec![0], None, true));
    assert_eq!(page(Start, Backwards, 5).await, (vec![0], None, true));
    let one = store.read_event(stream("$ce-cart"), Revision(4)).await;
    assert_eq!(text(&one.expect("there")), "1@cart-1");
}

/// Goal: deletes, tombstones and metadata change no revision. The links stay as long as all events show theirs.
pub async fn keep_revisions_after_deletes(factory: &dyn StoreFactory) {
    let Some(store) = store(factory).await else {
        return;
    };
    some_carts(store.as_ref()).await;
    let before = links(store.as_ref(), "$ce-cart").await;
    delete(store.as_ref(), "cart-1", Any, DeleteKind::Soft)
        .await
        .expect("deleted");
    delete(store.as_ref(), "cart-2", Any, DeleteKind::Tombstone)
        .await
        .expect("deleted");
    set_metadata(store.as_ref(), "cart", Any, r#"{"$maxCount":1}"#)
        .await
        .expect("set");
    append(store.as_ref(), "cart-1", Any, events(1)).await;
    let after = links(store.as_ref(), "$ce-cart").await;
    assert_eq!(after[..before.len()], before);
    assert_eq!(after.len(), before.len() + 1);
    assert_links(store.as_ref(), "$ce-cart").await;
}

fn link_to(target: &str) -> EventData {
    EventData {
        data: target.to_owned().into(),
        content_type: ContentType::Binary,
        ..event("$>")
    }
}

async fn resolved(store: &dyn EventStore, name: &str) -> ResolvedPage {
    let request = ReadStream::forwards(stream(name));
    within("read", store.read_stream_resolved(request))
        .await
        .expect("readable")
}

/// Returns for each place of a page the revision there, and the event that was found or `-`.
fn places(page: &ResolvedPage) -> Vec<(u64, String)> {
    let place = |found: &gesta_core::Resolved| {
        let event = match &found.link {
            Some(link) => {
                let target = LinkTarget::of(link).expect("a link");
                assert_eq!(
                    (&target.stream, target.revision),
                    (&found.event.stream, found.event.revision)
                );
                format!("{}@{}", found.event.revision.0, found.event.stream)
            }
            None => "-".to_owned(),
        };
        (found.original().revision.0, event)
    };
    page.events.iter().map(place).collect()
}

/// Goal: a link of a virtual stream leads to its event, or to nothing if a read of the stream does not show that event.
pub async fn links_lead_to_what_streams_show(factory: &dyn StoreFactory) {
    let Some(store) = store(factory).await else {
        return;
    };
    for name in ["cart-1", "cart-2", "cart-3", "cart-4"] {
        append(store.as_ref(), name, Any, events(2)).await;
    }
    let page = resolved(store.as_ref(), "$ce-cart").await;
    let all = everything(store.as_ref()).await;
    let found: Vec<RecordedEvent> = page
        .events
        .iter()
        .map(|found| (*found.event).clone())
        .collect();
    assert_eq!(found, all);
    assert!(page.end && page.events.iter().all(|found| found.link.is_some()));
    delete(store.as_ref(), "cart-1", Any, DeleteKind::Soft)
        .await
        .expect("deleted");
    delete(store.as_ref(), "cart-2", Any, DeleteKind::Tombstone)
        .await
        .expect("deleted");
    set_metadata(store.as_ref(), "cart-3", Any, r#"{"$maxCount":1}"#)
        .await
        .expect("set");
    let shown = ["-", "-", "-", "-", "-", "1@cart-3", "0@cart-4", "1@cart-4"];
    let shown: Vec<(u64, String)> = (0..).zip(shown.map(str::to_owned)).collect();
    assert_eq!(places(&resolved(store.as_ref(), "$ce-cart").await), shown);
}

/// Goal: links that a client has stored are followed too; a link that leads nowhere stays as it is.
pub async fn stored_links_are_followed(factory: &dyn StoreFactory) {
    let Some(store) = store(factory).await else {
        return;
    };
    append(store.as_ref(), "cart-1", Any, events(2)).await;
    let targets = [
        "1@cart-1",
        "2@cart-1",
        "0@cart-9",
        "0@$ce-cart",
        "nonsense",
        "0@cart-1",
    ];
    let mut stored: Vec<EventData> = targets.iter().map(|target| link_to(target)).collect();
    stored.insert(1, event("ordinary"));
    append(store.as_ref(), "mine", Any, stored).await;
    let found = places(&resolved(store.as_ref(), "mine").await);
    let found: Vec<&str> = found.iter().map(|(_, found)| found.as_str()).collect();
    assert_eq!(found, ["1@cart-1", "-", "-", "-", "-", "-", "0@cart-1"]);
    let unresolved = read(store.as_ref(), "mine").await.expect("readable");
    assert_eq!(unresolved.events.len(), 7);
}

/// Goal: nobody can append to a virtual stream, delete it, or set its metadata.
pub async fn are_not_to_be_changed(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for name in ["$ce-cart", "$et-added", "$streams"] {
        let append = store.append_to(name, Any, events(1)).await;
        assert_kind!(append, ErrorKind::InvalidArgument { .. });
        let deleted = delete(store.as_ref(), name, Any, DeleteKind::Soft).await;
        assert_kind!(deleted, ErrorKind::InvalidArgument { .. });
        let set = set_metadata(store.as_ref(), name, Any, "{}").await;
        assert_kind!(set, ErrorKind::InvalidArgument { .. });
        let metadata = EventData::json("$metadata".parse().expect("valid"), "{}");
        let append = store
            .append_to(&format!("$${name}"), Any, vec![metadata])
            .await;
        assert_kind!(append, ErrorKind::InvalidArgument { .. });
    }
}

/// Goal: a virtual stream without entries is not found.
pub async fn without_entries_are_not_found(factory: &dyn StoreFactory) {
    let Some(store) = store(factory).await else {
        return;
    };
    for name in ["$ce-cart", "$et-added", "$streams"] {
        assert_kind!(
            read(store.as_ref(), name).await,
            ErrorKind::StreamNotFound(_)
        );
    }
    append(store.as_ref(), "show-1", Any, events(1)).await;
    assert_kind!(
        read(store.as_ref(), "$ce-cart").await,
        ErrorKind::StreamNotFound(_)
    );
}

/// Goal: a subscription delivers what is there, then what comes, without a gap or a double, however many writers
/// append.
pub async fn are_followed_live(factory: &dyn StoreFactory) {
    let Some(store) = store(factory).await else {
        return;
    };
    some_carts(store.as_ref()).await;
    let mut follower = Follower::stream(store.as_ref(), "$ce-cart", SubscribeFrom::Start).await;
    let mut seen = follower.until_caught_up().await;
    assert_eq!(seen.len(), 10);
    let writers = (0..4).map(|writer| {
        let store = store.share();
        tokio::spawn(async move {
            for i in 0..25 {
                let name = if i % 5 == 4 { "show" } else { "cart" };
                append(store.as_ref(), &format!("{name}-w{writer}"), Any, events(1)).await;
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    seen.extend(follower.events(80).await);
    for writer in writers {
        writer.await.expect("done");
    }
    let seen: Vec<(u64, String)> = seen
        .iter()
        .map(|event| (event.revision.0, text(event)))
        .collect();
    assert_eq!(seen, links(store.as_ref(), "$ce-cart").await);
}

/// Goal: a subscription to a virtual stream without an entry waits for the first one.
pub async fn are_waited_for(factory: &dyn StoreFactory) {
    let Some(store) = store(factory).await else {
        return;
    };
    let mut streams = Follower::stream(store.as_ref(), "$streams", SubscribeFrom::End).await;
    let mut added = Follower::stream(store.as_ref(), "$et-added", SubscribeFrom::Start).await;
    assert!(streams.until_caught_up().await.is_empty());
    assert!(added.until_caught_up().await.is_empty());
    append(
        store.as_ref(),
        "cart-1",
        Any,
        vec![event("opened"), event("added")],
    )
    .await;
    append(store.as_ref(), "cart-2", Any, vec![event("opened")]).await;
    assert_eq!(text(&*added.event().await), "1@cart-1");
    assert_eq!(text(&*streams.event().await), "0@cart-1");
    assert_eq!(text(&*streams.event().await), "0@cart-2");
}

/// Goal: every checkpoint and every revision resumes a subscription exactly; unusable ones are refused.
pub async fn are_resumed_exactly(factory: &dyn StoreFactory) {
    let Some(store) = store(factory).await else {
        return;
    };
    some_carts(store.as_ref()).await;
    let mut follower = Follower::stream(store.as_ref(), "$ce-cart", SubscribeFrom::Start).await;
    let mut resumable: Vec<(Checkpoint, u64)> = Vec::new();
    for _ in 0..10 {
        let event = follower.event().await;
        resumable.push((follower.checkpoint.clone().expect("one"), event.revision.0));
    }
    append(store.as_ref(), "cart-1", Any, events(1)).await;
    for (checkpoint, revision) in resumable {
        for from in [
            SubscribeFrom::Checkpoint(checkpoint.clone()),
            SubscribeFrom::Revision(Revision(revision)),
        ] {
            let mut again = Follower::stream(store.as_ref(), "$ce-cart", from).await;
            assert_eq!(again.event().await.revision, Revision(revision + 1));
        }
    }
    let mut from_end = Follower::stream(store.as_ref(), "$ce-cart", SubscribeFrom::End).await;
    assert!(from_end.until_caught_up().await.is_empty());
    append(store.as_ref(), "cart-1", Any, events(1)).await;
    assert_eq!(from_end.event().await.revision, Revision(11));
    let above = gesta_core::Subscribe {
        to: gesta_core::SubscribeTo::Stream(stream("$ce-cart")),
        from: SubscribeFrom::Revision(Revision(12)),
    };
    let refused = within("subscribe", store.subscribe(above)).await;
    assert_kind!(refused, ErrorKind::InvalidCheckpoint(_));
}

/// Goal: links are followed in subscriptions, and each message keeps its place.
pub async fn subscriptions_follow_links(factory: &dyn StoreFactory) {
    let Some(store) = store(factory).await else {
        return;
    };
    some_carts(store.as_ref()).await;
    delete(store.as_ref(), "cart-2", Any, DeleteKind::Soft)
        .await
        .expect("deleted");
    let request = gesta_core::Subscribe {
        to: gesta_core::SubscribeTo::Stream(stream("$ce-cart")),
        from: SubscribeFrom::Start,
    };
    let subscription = store.subscribe(request).await.expect("subscribed");
    let mut messages = Box::pin(resolve_subscription(store.share(), subscription));
    let mut seen = Vec::new();
    while seen.len() < 11 {
        if seen.len() == 10 {
            append(store.as_ref(), "cart-1", Any, events(1)).await;
        }
        let message = within("a message", messages.next())
            .await
            .expect("open")
            .expect("a message");
        if let SubscriptionMessage::Event { event, .. } = message.message {
            let place = message.link.as_ref().unwrap_or(&event).revision.0;
            assert_eq!(place, seen.len() as u64);
            seen.push(match message.link {
                Some(link) => text(&link),
                None => format!("- {}", text(&event)),
            });
        }
    }
    assert_eq!(
        seen[..4],
        ["0@cart-1", "1@cart-1", "- 0@cart-2", "- 1@cart-2"]
    );
    assert_eq!(seen[10], "4@cart-1");
}

/// Goal: revisions are the same after opening the store again, and go on.
pub async fn keep_revisions_after_reopening(factory: &dyn StoreFactory) {
    let Some(mut store) = store(factory).await else {
        return;
    };
    for life in 0..3 {
        some_carts(store.as_ref()).await;
        if life < 2 {
            assert_links(store.as_ref(), "$ce-cart").await;
        }
        // In the last life nobody has read, so the entries of its events may not have been written yet.
        let Some(reopened) = factory.reopen(&store).await else {
            return skip(factory, "a store that can be opened again");
        };
        store = reopened;
    }
    for name in ["$ce-cart", "$et-added", "$streams"] {
        assert_links(store.as_ref(), name).await;
    }
}

/// Goal: two stores over the same data give the same answers, whoever writes the entries.
pub async fn are_the_same_for_two_processes(factory: &dyn StoreFactory) {
    let Some(a) = store(factory).await else {
        return;
    };
    let Some(b) = factory.second(&a).await else {
        return skip(factory, "a second store over the same data");
    };
    let mut follower = Follower::stream(b.as_ref(), "$ce-cart", SubscribeFrom::Start).await;
    let rounds = [&a, &b].map(|store| {
        let store = store.share();
        tokio::spawn(async move {
            for i in 0..20 {
                append(store.as_ref(), &format!("cart-{}", i % 4), Any, events(1)).await;
                assert!(read(store.as_ref(), "$ce-cart").await.is_ok());
            }
        })
    });
    for round in rounds {
        within("a writer", round).await.expect("done");
    }
    let seen = follower.events(40).await;
    let found = links(a.as_ref(), "$ce-cart").await;
    assert_eq!(found, links(b.as_ref(), "$ce-cart").await);
    let seen: Vec<(u64, String)> = seen
        .iter()
        .map(|event| (event.revision.0, text(event)))
        .collect();
    assert_eq!(seen, found);
    assert_links(a.as_ref(), "$ce-cart").await;
}

/// Goal: a store of several logs has no virtual streams, and says why; so does a store that has them switched off.
pub async fn need_one_log_and_to_be_on(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let read_first = read(store.as_ref(), "$ce-cart").await;
    let request = gesta_core::Subscribe {
        to: gesta_core::SubscribeTo::Stream(stream("$ce-cart")),
        from: SubscribeFrom::Start,
    };
    let subscribed = within("subscribe", store.subscribe(request))
        .await
        .map(drop);
    for outcome in [read_first.map(drop), subscribed] {
        match outcome {
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported(_)) => {
                let text = error.to_string();
                let says_why = match factory.logs() {
                    1 => text.contains("gesta virtual-streams on") || text.contains("keeps no"),
                    _ => text.contains("one log"),
                };
                assert!(says_why, "{text}");
            }
            // The store always has them.
            Err(error) => assert!(
                factory.logs() == 1 && matches!(error.kind(), ErrorKind::StreamNotFound(_)),
                "{error}"
            ),
            Ok(()) => assert_eq!(factory.logs(), 1),
        }
    }
}
