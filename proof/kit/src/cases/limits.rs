//! Limits: at them everything works, above them the request is refused and nothing is stored.

use bytes::Bytes;
use gesta_core::limits::{
    APPEND_BYTES_MAX, APPEND_EVENTS_MAX, APPEND_STREAMS_MAX, EVENT_BYTES_MAX, FILTER_VALUES_MAX,
    PAGE_EVENTS_MAX,
};
use gesta_core::{
    Append, EventStoreExt, Filter, ListStreams, Query, ReadAll, ReadStream, Revision,
};

use crate::factory::StoreFactory;
use crate::support::*;

/// Goal: 10,000 events fit into one append and one page, one more does not.
pub async fn events_of_one_append_and_one_page(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mut many = events(APPEND_EVENTS_MAX + 1);
    let refused = store.append_to("a", NoStream, many.clone()).await;
    assert_kind!(refused, ErrorKind::InvalidArgument { .. });
    assert_kind!(
        read(store.as_ref(), "a").await,
        ErrorKind::StreamNotFound(_)
    );

    many.truncate(APPEND_EVENTS_MAX);
    let ids: Vec<_> = many.iter().filter_map(|event| event.id).collect();
    append(store.as_ref(), "a", NoStream, many).await;
    let request = ReadStream::forwards(stream("a")).limit(PAGE_EVENTS_MAX);
    let page = within("read", store.read_stream(request))
        .await
        .expect("readable");
    assert_eq!(page.events.len(), APPEND_EVENTS_MAX);
    assert!(page.end);
    assert!(page.events.iter().map(|event| event.id).eq(ids));
}

/// Goal: 1,000 streams fit into one append, one more does not.
pub async fn streams_of_one_append(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let part = |i: usize| Append::to(stream(&format!("s-{i}-{{k}}")), NoStream, events(1)).streams;
    let mut request = Append {
        streams: (0..=APPEND_STREAMS_MAX).flat_map(part).collect(),
        conditions: Vec::new(),
    };
    let refused = store.append(request.clone()).await;
    assert_kind!(refused, ErrorKind::InvalidArgument { .. });

    request.streams.truncate(APPEND_STREAMS_MAX);
    let answer = within("append", store.append(request))
        .await
        .expect("stored");
    assert_eq!(answer.streams.len(), APPEND_STREAMS_MAX);
    assert!(
        answer
            .streams
            .iter()
            .all(|part| part.last_revision == Revision(0))
    );
    assert_eq!(
        list(store.as_ref(), "s-", 600).await.len(),
        APPEND_STREAMS_MAX
    );
}

/// Goal: data and metadata together obey the limits of an event and of an append.
pub async fn too_many_bytes_are_refused(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let full = Bytes::from(vec![7; EVENT_BYTES_MAX]);
    let with_data = |data: &Bytes| gesta_core::EventData {
        data: data.clone(),
        ..event("large")
    };
    let above = with_data(&full).with_metadata("1");
    let refused = store.append_to("a", Any, vec![above]).await;
    assert_kind!(refused, ErrorKind::InvalidArgument { .. });

    let mut above = vec![with_data(&full); APPEND_BYTES_MAX / EVENT_BYTES_MAX];
    above.push(event("small"));
    let refused = store.append_to("a", Any, above).await;
    assert_kind!(refused, ErrorKind::InvalidArgument { .. });
    assert!(everything(store.as_ref()).await.is_empty());
}

/// Goal: pages hold 1 to 10,000 entries.
pub async fn sizes_of_pages(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "a", NoStream, events(1)).await;
    for limit in [0, PAGE_EVENTS_MAX + 1, usize::MAX] {
        let page = store
            .read_stream(ReadStream::forwards(stream("a")).limit(limit))
            .await;
        assert_kind!(page, ErrorKind::InvalidArgument { .. });
        let page = store.read_all(ReadAll::forwards().limit(limit)).await;
        assert_kind!(page, ErrorKind::InvalidArgument { .. });
        let request = ListStreams {
            prefix: String::new(),
            after: None,
            limit,
        };
        let page = store.list_streams(request).await;
        assert_kind!(page, ErrorKind::InvalidArgument { .. });
    }
    let page = store
        .read_all(ReadAll::forwards().limit(PAGE_EVENTS_MAX))
        .await;
    assert_eq!(page.expect("readable").events.len(), 1);
}

/// Goal: an event carries 32 tags of 256 bytes, and can be found by all of them together.
pub async fn tags_of_one_event(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let tags = all_tags();
    let full = event("tagged").with_tags(tags.clone());
    append(
        store.as_ref(),
        "a",
        NoStream,
        vec![full.clone(), event("plain")],
    )
    .await;
    let filter = Filter::query(Query {
        tags: tags.as_slice().to_vec(),
        ..Query::default()
    });
    let (found, _) = all_pages(store.as_ref(), ReadAll::forwards().filter(filter)).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].tags, tags);
}

/// Goal: lists of a filter hold 100 values, not more.
pub async fn sizes_of_filters(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "a", NoStream, vec![event("t-99")]).await;
    let names: Vec<String> = (0..=FILTER_VALUES_MAX).map(|i| format!("t-{i}")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    let filter = |names: &[&str]| ReadAll::forwards().filter(Filter::query(types(names)));
    let refused = store.read_all(filter(&names)).await;
    assert_kind!(refused, ErrorKind::InvalidArgument { .. });
    names.pop();
    let (found, _) = all_pages(store.as_ref(), filter(&names)).await;
    assert_eq!(found.len(), 1);
}
