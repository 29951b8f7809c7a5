//! Data and metadata come back byte for byte.

use gesta_core::limits::{EVENT_BYTES_MAX, PAGE_BYTES_MAX};
use gesta_core::{
    AllFrom, ContentType, EventData, EventId, EventStoreExt, ReadAll, ReadStream, RecordedEvent,
    StreamFrom,
};

use crate::factory::StoreFactory;
use crate::support::*;

/// Goal: JSON is stored as text, not as a value: nothing is reordered, rounded, unescaped or trimmed.
pub async fn json_comes_back_byte_for_byte(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let texts = [
        "{ \"b\" : 1,\n\t\"a\":2, \"a\":3 }  ",
        "1.0",
        "-0",
        "1e400",
        "12345678901234567890123456789.000100",
        r#""\u0041\/\ud83d\ude00\u0000""#,
        r#""\ud800""#,
        "\"größe ☃ 🙂\"",
        "null",
        "[]",
        "\u{feff}{}",
        "not json at all",
    ];
    let all = texts.iter().map(|text| EventData {
        data: (*text).into(),
        metadata: (*text).into(),
        ..event("json")
    });
    append(store.as_ref(), "a", NoStream, all.collect()).await;
    let stored = store.read_whole_stream("a").await.expect("readable");
    for (text, stored) in texts.iter().zip(stored) {
        assert_eq!(stored.content_type, ContentType::Json);
        assert_eq!(std::str::from_utf8(&stored.data), Ok(*text));
        assert_eq!(std::str::from_utf8(&stored.metadata), Ok(*text));
    }
}

/// Goal: binary data may hold any byte, also bytes that would end a text.
pub async fn binary_holds_any_byte(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let all_bytes: Vec<u8> = (0..=255).collect();
    let binary = EventData {
        content_type: ContentType::Binary,
        data: all_bytes.clone().into(),
        metadata: vec![0, 0xff, 0xfe, 0].into(),
        ..event("raw")
    };
    append(store.as_ref(), "a", NoStream, vec![binary.clone()]).await;
    let stored = everything(store.as_ref()).await;
    assert_eq!(stored[0].content_type, ContentType::Binary);
    assert_eq!(stored[0].data, binary.data);
    assert_eq!(stored[0].metadata, binary.metadata);
}

/// Goal: large data comes back as it was, whatever a backend does with it on the way. JSON and binary data are placed
/// between small events, in one append and in its retry.
pub async fn large_data_come_back(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let large = |content_type, seed: usize, bytes: usize| EventData {
        content_type,
        data: numbers(seed, bytes).into(),
        ..event("large").with_id(EventId::random())
    };
    let (json, binary) = (ContentType::Json, ContentType::Binary);
    let events = vec![
        large(json, 1, 10),
        large(binary, 2, 20_000),
        large(json, 3, 30_000),
        large(binary, 4, 2_047),
        large(binary, 5, 2_048),
        large(binary, 6, 1_000_000),
        large(json, 7, 100),
        large(json, 8, 4_000),
    ];
    let first = append(store.as_ref(), "a", NoStream, events.clone()).await;
    let again = append(store.as_ref(), "a", NoStream, events.clone()).await;
    assert_eq!(again.position, first.position, "a retry stores nothing");
    append(store.as_ref(), "b", NoStream, vec![events[5].clone()]).await;

    let stored = store.read_whole_stream("a").await.expect("readable");
    assert_eq!(stored.len(), events.len());
    let all = everything(store.as_ref()).await;
    assert_eq!(all.len(), events.len() + 1);
    let last = all.iter().find(|event| event.stream.as_str() == "b");
    for (given, stored) in events
        .iter()
        .zip(&stored)
        .chain([(&events[5], last.expect("is there"))])
    {
        assert_eq!(given.content_type, stored.content_type);
        assert!(given.data == stored.data, "{}", stored.revision);
    }
}

/// Makes text that compression makes somewhat smaller.
fn numbers(seed: usize, bytes: usize) -> String {
    let numbers = (seed..).map(|number| format!("{:x} ", number.wrapping_mul(2_654_435_761)));
    let mut text: String = numbers.take(bytes / 2 + 1).collect();
    text.truncate(bytes);
    text
}

/// Makes bytes that no compression makes smaller (xorshift).
pub(super) fn noise(mut seed: u64, bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        out.extend_from_slice(&seed.to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// Goal: events of 16 MiB come back whole, and pages end before they grow beyond 32 MiB, tags included. Once tags were
/// not counted.
pub async fn the_largest_events_end_pages_early(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mut largest: Vec<EventData> = (1..=3)
        .map(|seed| EventData {
            content_type: ContentType::Binary,
            data: noise(seed, EVENT_BYTES_MAX).into(),
            ..event("large")
        })
        .collect();
    largest[2].data = noise(3, EVENT_BYTES_MAX - 100).into();
    largest[2].metadata = noise(4, 100).into();
    // The first two and their tagged followers would be one page, if only data and metadata counted.
    largest[1].data = noise(2, EVENT_BYTES_MAX - 200 * 1024).into();
    largest.splice(2..2, (0..60).map(|_| event("tagged").with_tags(all_tags())));
    append(store.as_ref(), "a", NoStream, largest.clone()).await;

    let mut request = ReadStream::forwards(stream("a"));
    let mut stored = Vec::new();
    loop {
        let page = within("read", store.read_stream(request.clone()))
            .await
            .expect("readable");
        let bytes: usize = page.events.iter().map(RecordedEvent::cost_bytes).sum();
        assert!(
            page.events.len() == 1 || bytes <= PAGE_BYTES_MAX,
            "{bytes} bytes in one page"
        );
        stored.extend(page.events);
        if page.end {
            break;
        }
        request.from = StreamFrom::Revision(page.next.expect("a next revision"));
    }
    assert_eq!(stored.len(), largest.len());
    for (given, stored) in largest.iter().zip(&stored) {
        assert!(given.data == stored.data && given.metadata == stored.metadata);
    }
    let page = within("read", store.read_all(ReadAll::forwards()))
        .await
        .expect("readable");
    let bytes: usize = page.events.iter().map(RecordedEvent::cost_bytes).sum();
    assert!(bytes <= PAGE_BYTES_MAX && !page.end, "a page ends early");
    let rest = ReadAll::forwards().from(AllFrom::Checkpoint(page.next));
    let (rest, _) = all_pages(store.as_ref(), rest).await;
    assert_eq!(page.events.len() + rest.len(), largest.len());
}
