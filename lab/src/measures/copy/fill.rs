//! A store with everything that a store can hold: tags, links, JSON and other bytes, metadata, deletes, streams that
//! began again, tombstones, hidden beginnings, consumer groups with a parked event.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use gesta_core::{
    Append, DeleteKind, DeleteStream, EventData, EventStore, EventType, ExpectedRevision,
    SetStreamMetadata, StreamId, StreamMetadata, Tag, Tags,
};
use gesta_report::failure::{Context, Result};

use gesta_load::machine::store;
use gesta_load::random::Random;

/// Events of an append, and of a stream.
const APPEND_EVENTS: u64 = 100;
/// Appends under way.
const AT_ONCE: usize = 64;
/// One of so many streams is deleted, and as many each of the other ways.
const LIFECYCLES: u64 = 40;

/// Fills a new store.
pub(super) async fn fill(url: &str, events: u64, bytes: u32, seed: u64) -> Result<()> {
    let opened = store::open_url(url, Duration::ZERO, 1).await?;
    let store = &opened.store;
    let mut random = Random::new(seed);
    let streams = events.div_ceil(APPEND_EVENTS);
    let numbers = (0..streams).map(|stream| {
        let first = stream * APPEND_EVENTS;
        (stream, first..(first + APPEND_EVENTS).min(events))
    });
    let appends = numbers.map(|(stream, numbers)| {
        let made = numbers.map(|number| event(number, bytes, &mut random));
        let made: Vec<EventData> = made.collect();
        Append::to(id(&name(stream)), ExpectedRevision::NoStream, made)
    });
    let mut stored = futures::stream::iter(appends)
        .map(|append| store.append(append))
        .buffer_unordered(AT_ONCE);
    while let Some(stored) = stored.next().await {
        stored.context("filling the store")?;
    }
    drop(stored);
    for stream in 0..streams {
        live(store, stream).await?;
    }
    group(store).await?;
    opened.store.shutdown().await.context("closing the store")
}

fn name(stream: u64) -> String {
    format!("cart-{stream}")
}

fn id(name: &str) -> StreamId {
    StreamId::new(name).expect("valid")
}

fn typed(name: &str) -> EventType {
    EventType::new(name).expect("valid")
}

/// Event `number`: one in ten is not JSON, one in fifty a link, one in three has tags.
fn event(number: u64, bytes: u32, random: &mut Random) -> EventData {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    if number % 50 == 49 {
        return EventData::binary(typed("$>"), format!("{}@{}", number % 7, name(number % 11)));
    }
    let mut made = if number % 10 == 9 {
        let mut data = vec![0; length];
        data.fill_with(|| u8::try_from(random.below(256)).unwrap_or(0));
        EventData::binary(typed("drawn"), data)
    } else {
        let mut data = format!("{{\"number\":{number},\"text\":\"");
        while data.len() + 2 < length {
            data.push(char::from(
                b'a' + u8::try_from(random.below(26)).unwrap_or(0),
            ));
        }
        data.push_str("\"}");
        EventData::json(
            typed(["added", "moved", "removed"][(number % 3) as usize]),
            data,
        )
    };
    if number.is_multiple_of(3) {
        let tags = [format!("customer:{}", number % 1_000), "red".into()];
        let tags: Vec<Tag> = tags.map(|tag| Tag::new(tag).expect("valid")).into();
        made.tags = Tags::new(tags).expect("two");
    }
    made.with_metadata(format!("{{\"by\":{}}}", number % 17))
}

/// What becomes of a stream: most stay as they are.
async fn live(store: &Arc<dyn EventStore>, stream: u64) -> Result<()> {
    let name = name(stream);
    let delete = |kind| DeleteStream {
        stream: id(&name),
        expected: ExpectedRevision::Any,
        kind,
    };
    let metadata = |json: &'static str| SetStreamMetadata {
        stream: id(&name),
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse(json).expect("valid"),
    };
    match stream % LIFECYCLES {
        1 => {
            store.delete_stream(delete(DeleteKind::Soft)).await?;
        }
        2 => {
            store.delete_stream(delete(DeleteKind::Tombstone)).await?;
        }
        3 => {
            store.delete_stream(delete(DeleteKind::Soft)).await?;
            let again = vec![EventData::json(typed("again"), "{}")];
            let again = Append::to(id(&name), ExpectedRevision::Any, again);
            store.append(again).await?;
        }
        4 => {
            let set = metadata(r#"{"$tb":40,"owner":"somebody"}"#);
            store.set_stream_metadata(set).await?;
        }
        5 => {
            store
                .set_stream_metadata(metadata(r#"{"$maxCount":10}"#))
                .await?;
        }
        _ => {}
    }
    Ok(())
}

/// A consumer group with a parked event.
async fn group(store: &Arc<dyn EventStore>) -> Result<()> {
    for (stream, made) in [
        (
            "$persistentsubscriptionconfig-cart-0::readers",
            EventData::json(typed("$GroupConfigured"), "{}"),
        ),
        (
            "$persistentsubscription-cart-0::readers-parked",
            EventData::binary(typed("$>"), "2@cart-0"),
        ),
    ] {
        let append = Append::to(id(stream), ExpectedRevision::Any, vec![made]);
        store.append(append).await.context("a group")?;
    }
    Ok(())
}
