//! Following events, wherever the store is.

use gesta::{
    Checkpoint, EventData, EventType, ExpectedRevision::Any, Filter, Query, Revision, Store,
    SubscriptionMessage,
};

use crate::{ItemAdded, added, everywhere, soon};

async fn append(store: &Store, stream: &str, item: &str) {
    let appended = store.append_to(stream, Any, [added(item)]).await;
    appended.expect("stored");
}

async fn next(events: &mut gesta::Following) -> (String, Checkpoint) {
    let next = soon(events.next()).await.expect("goes on");
    let (event, checkpoint) = next.expect("an event");
    let added: ItemAdded = event.json().expect("readable");
    (added.item, checkpoint)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_goes_on_after_its_checkpoint() {
    everywhere(async |store| {
        for item in ["book", "pen", "lamp"] {
            append(store, "cart-1", item).await;
            append(store, "other-1", item).await;
        }
        let mut all = store.follow(Filter::category("cart")).await.expect("begun");
        assert_eq!(next(&mut all).await.0, "book");
        let (item, checkpoint) = next(&mut all).await;
        assert_eq!(item, "pen");
        drop(all);

        // A checkpoint is kept as text.
        let kept: Checkpoint = checkpoint.to_string().parse().expect("valid");
        let resumed = store.follow(Filter::category("cart"));
        let mut resumed = resumed.from_checkpoint(kept).await.expect("begun");
        assert_eq!(next(&mut resumed).await.0, "lamp");
        append(store, "cart-2", "live").await;
        assert_eq!(next(&mut resumed).await.0, "live");

        // Who has kept none yet begins with the first event.
        let first = store.follow("cart-1").from_checkpoint(None).await;
        assert_eq!(next(&mut first.expect("begun")).await.0, "book");
        let second = store.follow("cart-1").from_revision(Revision(0)).await;
        assert_eq!(next(&mut second.expect("begun")).await.0, "pen");
        let mut end = store.follow("cart-1").from_end().await.expect("begun");
        append(store, "cart-1", "new").await;
        assert_eq!(next(&mut end).await.0, "new");
        let error = store.follow(Filter::ALL).from_revision(Revision(0)).await;
        assert!(error.is_err(), "a revision is of one stream");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_are_built_of_names() {
    everywhere(async |store| {
        let typed = |event_type: &str| EventData::new(event_type, "x").expect("valid");
        let tags = gesta::Tags::of(["order:1", "vip"]).expect("different");
        let events = [typed("a"), typed("b").with_tags(tags)];
        store
            .append_to("cart-1", Any, events)
            .await
            .expect("stored");
        let both = Query::category("cart").or_event_type("b").expect("valid");
        let both = both.and_tag("vip").expect("valid");
        for filter in [
            Filter::from(both),
            Filter::event_type("b").expect("valid"),
            Filter::tag("order:1").expect("valid"),
            Filter::any_of([
                Query::tag("nobody").expect("valid"),
                Query::tag("vip").expect("valid"),
            ]),
        ] {
            let mut found = store.follow(filter).await.expect("begun");
            let (event, _) = soon(found.next()).await.expect("one").expect("an event");
            assert_eq!(event.event_type.as_str(), "b");
        }
        assert!(Filter::event_type("").is_err());
        assert!(gesta::Tags::of(["same", "same"]).is_err());
    })
    .await;
}

/// Goal: links are followed, and who wants to know where a link stands, or that what follows is live, is told.
#[tokio::test(flavor = "multi_thread")]
async fn links_are_followed_when_that_is_asked_for() {
    everywhere(async |store| {
        append(store, "cart-1", "book").await;
        let link = EventType::new("$>").expect("valid");
        let links = ["0@cart-1", "7@nowhere-1"];
        let links = links.map(|to| EventData::binary(link.clone(), to));
        store
            .append_to("links-1", Any, links)
            .await
            .expect("stored");

        let mut raw = store.follow("links-1").await.expect("begun");
        let (event, _) = soon(raw.next()).await.expect("one").expect("an event");
        assert_eq!(event.data, "0@cart-1");
        let resolved = store.follow("links-1").resolve_links().await;
        let mut resolved = resolved.expect("begun");
        let first = soon(resolved.next_message()).await.expect("one");
        let first = first.expect("a message");
        let SubscriptionMessage::Event { event, .. } = first.message else {
            panic!("{first:?}");
        };
        assert_eq!(event.stream.as_str(), "cart-1");
        assert_eq!(first.link.expect("a link").stream.as_str(), "links-1");
        let (event, _) = soon(resolved.next()).await.expect("one").expect("an event");
        assert_eq!(event.data, "7@nowhere-1", "a link that leads nowhere stays");
        let live = soon(resolved.next_message()).await.expect("one");
        let live = live.expect("a message").message;
        assert!(matches!(live, SubscriptionMessage::CaughtUp(_)), "{live:?}");
    })
    .await;
}
