//! Look-ups of streams, types and events, and the list of streams.

use gesta_core::backend::{Backend, EventLookup, EventRef, LoadRequest, Purpose, RowId, StoredId};
use gesta_core::{EventType, Position, RecordedEvent, Revision, StreamId, Timestamp};
use gesta_postgres::PostgresBackend;

use crate::common::{Author, LOG, draft, fresh, is_committed};
use crate::reads::filled;

#[tokio::test]
async fn loading_tells_ends_heads_metadata_and_types() {
    let Some((backend, _, author, stored)) = filled().await else {
        return;
    };
    let name = |name: &str| StreamId::new(name).expect("valid");
    let request = LoadRequest {
        streams: vec![name("show-1"), name("never"), name("cart-1")],
        types: vec![
            EventType::new("Never").expect("valid"),
            EventType::new("Größe").expect("valid"),
        ],
    };
    let loaded = backend
        .load(LOG, request, Purpose::Read)
        .await
        .expect("loads");
    assert_eq!(loaded.end, author.end);
    let last = |stream: &str| {
        stored
            .iter()
            .rev()
            .find(|event| event.stream.as_str() == stream)
            .expect("stored")
    };
    let head = loaded.streams[0].head.expect("exists");
    assert_eq!(
        (head.last, head.position),
        (last("show-1").revision, last("show-1").position)
    );
    assert_eq!(head.id, Some(last("show-1").id));
    assert_eq!(head.row, author.stream_row("show-1"));
    assert_eq!(loaded.streams[0].meta, None);
    assert_eq!(
        loaded.streams[1],
        gesta_core::backend::LoadedStream::default()
    );
    let meta = loaded.streams[2].meta.clone().expect("has metadata");
    assert_eq!(
        (meta.head.last, &meta.data),
        (last("$$cart-1").revision, &last("$$cart-1").data)
    );
    assert_eq!(meta.metadata, "m");
    assert_eq!(loaded.types[0], None);
    let first = stored
        .iter()
        .find(|event| event.event_type.as_str() == "Größe")
        .expect("stored");
    assert_eq!(loaded.types[1], Some(RowId(first.position.0)));
    let (empty, _) = fresh().await.expect("there");
    let nothing = empty
        .load(LOG, LoadRequest::default(), Purpose::Read)
        .await
        .expect("loads");
    assert_eq!(nothing.end, gesta_core::backend::LogEnd::default());
}

fn in_order(mut events: [&RecordedEvent; 2]) -> Vec<&RecordedEvent> {
    events.sort_unstable_by_key(|event| event.position);
    events.to_vec()
}

#[tokio::test]
async fn ids_of_a_part_of_the_log_are_read() {
    let Some((backend, _, author, stored)) = filled().await else {
        return;
    };
    let read = backend.read_ids(LOG, Position(30), Position(60));
    let mut read = read.await.expect("reads");
    read.sort_unstable_by_key(|id| id.position);
    let expected = stored[30..60].iter().map(|event| StoredId {
        stream: author.stream_row(event.stream.as_str()),
        id: event.id,
        position: event.position,
        created: event.created,
    });
    assert!(read.into_iter().eq(expected));
}

fn is_ref_of(found: &EventRef, event: &RecordedEvent) -> bool {
    found.position == event.position
        && found.stream == event.stream
        && found.revision == event.revision
        && found.id == event.id
        && found.event_type == event.event_type
        && found.created == event.created
}

/// The events of one stream.
fn of_stream(stored: &[RecordedEvent], name: &str) -> Vec<RecordedEvent> {
    let of = stored.iter().filter(|event| event.stream.as_str() == name);
    of.cloned().collect()
}

async fn assert_found(backend: &PostgresBackend, cases: Vec<(EventLookup, Vec<&RecordedEvent>)>) {
    for (lookup, expected) in cases {
        let found = backend
            .lookup(LOG, lookup.clone(), Purpose::Read)
            .await
            .expect("answers");
        assert_eq!(found.len(), expected.len(), "{lookup:?}: {found:?}");
        assert!(
            found
                .iter()
                .zip(expected)
                .all(|(found, event)| is_ref_of(found, event)),
            "{lookup:?}"
        );
    }
}

#[tokio::test]
async fn look_ups_by_revision_and_position_find_what_they_should() {
    let Some((backend, _, author, stored)) = filled().await else {
        return;
    };
    let of = of_stream(&stored, "cart-1");
    let stream = author.stream_row("cart-1");
    let revisions = |first: u64, count: usize| EventLookup::Revisions {
        stream,
        first: Revision(first),
        count,
    };
    let after = |position: u64, limit: usize| EventLookup::After {
        position: Position(position),
        limit,
    };
    let positions = EventLookup::Positions(vec![Position(9), Position(3), Position(u64::MAX)]);
    let cases = vec![
        (revisions(4, 3), of[4..7].iter().collect()),
        (revisions(18, usize::MAX), of[18..].iter().collect()),
        (revisions(0, 0), vec![]),
        (positions, vec![&stored[2], &stored[8]]),
        (after(118, 5), stored[118..].iter().collect()),
        (after(0, 2), stored[..2].iter().collect()),
    ];
    assert_found(&backend, cases).await;
}

#[tokio::test]
async fn look_ups_by_id_find_what_they_should() {
    let Some((backend, _, author, stored)) = filled().await else {
        return;
    };
    let (of, others) = (of_stream(&stored, "cart-1"), of_stream(&stored, "show-1"));
    let (stream, other) = (author.stream_row("cart-1"), author.stream_row("show-1"));
    let events = of
        .iter()
        .map(|event| (stream, event.id))
        .chain([(stream, others[1].id), (RowId(5_000), of[1].id)])
        .collect::<Vec<_>>();
    let ids = |events: Vec<_>, after: u64, created_from: i64, until: u64| EventLookup::Ids {
        events,
        after: Position(after),
        created_from: Timestamp(created_from),
        until: Position(until),
    };
    let until = |after, created_from, until| ids(events.clone(), after, created_from, until);
    let by_ids = |after: u64, created_from: i64| until(after, created_from, u64::MAX);
    let never = i64::MAX / 2;
    let of_both = vec![(other, others[2].id), (stream, of[2].id)];
    let of_nobody = vec![(RowId(5_000), of[0].id)];
    let position = |event: usize| of[event].position.0;
    let cases = vec![
        (by_ids(0, never), of.iter().collect()),
        (by_ids(position(11), never), of[12..].iter().collect()),
        (by_ids(1_000, of[15].created.0), of[15..].iter().collect()),
        (
            by_ids(position(17), of[15].created.0),
            of[15..].iter().collect(),
        ),
        (by_ids(1_000, never), vec![]),
        (
            until(position(11), never, position(14)),
            of[12..15].iter().collect(),
        ),
        (until(0, never, position(0)), vec![&of[0]]),
        (until(0, never, position(0) - 1), vec![]),
        (until(position(5), never, position(5)), vec![]),
        (
            ids(of_both, 0, never, u64::MAX),
            in_order([&others[2], &of[2]]),
        ),
        (ids(of_nobody, 0, 0, u64::MAX), vec![]),
    ];
    assert_found(&backend, cases).await;
}

#[tokio::test]
async fn streams_are_listed_in_binary_order() {
    let Some((backend, _)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let names = [
        "a",
        "B",
        "a-1",
        "a.1",
        "ä",
        "$sys",
        "$$a",
        "!x",
        " y",
        "%",
        "a-\u{10ffff}z",
    ];
    let drafts: Vec<_> = names.iter().map(|name| draft(name, "T")).collect();
    assert!(is_committed(
        &Author::default().append(&mut *writer, &drafts).await
    ));
    let list = async |prefix: &str, after: Option<&str>, limit: usize| -> Vec<String> {
        let after = after.map(|name| StreamId::new(name).expect("valid"));
        let found = backend
            .list_streams(prefix, after.as_ref(), limit)
            .await
            .expect("lists");
        found.iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        list("", None, 100).await,
        [
            " y",
            "!x",
            "%",
            "B",
            "a",
            "a-1",
            "a-\u{10ffff}z",
            "a.1",
            "ä"
        ]
    );
    assert_eq!(list("", Some("!x"), 2).await, ["%", "B"]);
    assert_eq!(list("", Some(" y"), 2).await, ["!x", "%"]);
    assert_eq!(list("a-", None, 100).await, ["a-1", "a-\u{10ffff}z"]);
    assert_eq!(list("$", None, 100).await, ["$$a", "$sys"]);
    assert_eq!(list("$$", None, 100).await, ["$$a"]);
    assert_eq!(list("zz", None, 100).await, Vec::<String>::new());
    assert_eq!(list("a\0", None, 100).await, Vec::<String>::new());
}
