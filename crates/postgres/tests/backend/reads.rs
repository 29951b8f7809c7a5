//! Pages and filters, compared with what was stored.

use bytes::Bytes;
use gesta_core::backend::{Backend, LogSlice, Rows, StreamSlice};
use gesta_core::{
    Direction, EventType, Filter, Position, Query, RecordedEvent, Revision, StreamId, Tag,
};
use gesta_postgres::PostgresBackend;

use crate::common::{Author, Draft, LOG, draft, fresh, is_committed};

pub(crate) fn all() -> LogSlice {
    LogSlice {
        log: LOG,
        after: Position::START,
        to: Position::MAX,
        direction: Direction::Forwards,
        filter: Filter::ALL,
        limit: 10_000,
    }
}

/// A store with 120 events of six streams in four categories, three types, and tags on every second event.
pub(crate) async fn filled() -> Option<(PostgresBackend, String, Author, Vec<RecordedEvent>)> {
    let (backend, url) = fresh().await?;
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let streams = ["cart-1", "cart-2", "show-1", "cart", "$$cart-1", "größe-1"];
    let types = ["Added", "Removed", "Größe"];
    let tags: [&[&str]; 4] = [&["red"], &["red", "blue"], &["blue", "green"], &["odd"]];
    let mut stored = Vec::new();
    for round in 0..20 {
        let drafts: Vec<Draft<'_>> = (0..6)
            .map(|i| {
                let n = round * 6 + i;
                let mut draft = draft(streams[n * 7 % 6], types[n * 5 % 3]);
                draft.data = Bytes::from(format!("{{\"n\":{n}}}"));
                if n % 2 == 0 {
                    draft.tags = tags[n / 2 % 4];
                }
                draft
            })
            .collect();
        let batch = author.batch(&*writer, &drafts);
        assert!(is_committed(&writer.submit(batch.clone()).await));
        stored.extend(batch.rows.iter().map(|row| row.to_recorded(LOG)));
    }
    Some((backend, url, author, stored))
}

/// Reads a slice page by page.
pub(crate) async fn pages(backend: &PostgresBackend, mut slice: LogSlice) -> Vec<RecordedEvent> {
    let mut events: Vec<RecordedEvent> = Vec::new();
    loop {
        let page = backend.read_log(slice.clone()).await.expect("reads");
        assert!(page.events.len() <= slice.limit);
        assert!(
            page.complete || !page.events.is_empty(),
            "a page holds an event or is the last"
        );
        events.extend(page.events);
        let Some(last) = events.last().filter(|_| !page.complete) else {
            return events;
        };
        match slice.direction {
            Direction::Forwards => slice.after = last.position,
            Direction::Backwards => slice.to = Position(last.position.0 - 1),
        }
    }
}

fn types(names: &[&str]) -> Vec<EventType> {
    let types = names.iter().map(|name| EventType::new(*name));
    types.collect::<Result<_, _>>().expect("valid")
}

fn tags(names: &[&str]) -> Vec<Tag> {
    let tags = names.iter().map(|name| Tag::new(*name));
    tags.collect::<Result<_, _>>().expect("valid")
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

/// Conditions that some events meet, or none.
fn queries() -> Vec<Query> {
    let typed = |names| Query {
        types: types(names),
        ..Query::default()
    };
    let tagged = |names| Query {
        tags: tags(names),
        ..Query::default()
    };
    let prefixed = |names| Query {
        stream_prefixes: texts(names),
        ..Query::default()
    };
    let categorised = |names| Query {
        categories: texts(names),
        ..Query::default()
    };
    vec![
        typed(&["Added"]),
        typed(&["Added", "Größe", "Never"]),
        typed(&["Never"]),
        tagged(&["red"]),
        tagged(&["blue", "red"]),
        Query {
            types: types(&["Removed"]),
            ..tagged(&["odd"])
        },
        prefixed(&["cart", "gr"]),
        prefixed(&["cart%", "c_rt", "\0"]),
        categorised(&["cart"]),
        Query {
            tags: tags(&["red"]),
            ..categorised(&["$$cart", "größe"])
        },
    ]
}

/// No condition, one, or one of several.
fn filters() -> Vec<Filter> {
    let tagged = |names| Query {
        tags: tags(names),
        ..Query::default()
    };
    let removed = Query {
        types: types(&["Removed"]),
        ..tagged(&["red"])
    };
    let added = Query {
        types: types(&["Added"]),
        categories: texts(&["show"]),
        ..Query::default()
    };
    let any_of = [
        vec![tagged(&["green"]), removed],
        vec![added, tagged(&["odd"])],
    ];
    let mut filters = vec![Filter::ALL];
    filters.extend(queries().into_iter().map(Filter::query));
    filters.extend(any_of.map(|any_of| Filter { any_of }));
    filters
}

#[tokio::test]
async fn every_filter_gives_what_matches_in_both_directions() {
    let Some((backend, _, _, stored)) = filled().await else {
        return;
    };
    for filter in filters() {
        for (after, to) in [(0, u64::MAX), (17, 90), (0, 0), (119, 120), (200, 300)] {
            let mut expected: Vec<_> = (stored.iter())
                .filter(|event| {
                    event.position.0 > after && event.position.0 <= to && filter.matches(event)
                })
                .cloned()
                .collect();
            for direction in [Direction::Forwards, Direction::Backwards] {
                for limit in [1, 7, 1_000] {
                    let (after, to) = (Position(after), Position(to));
                    let slice = LogSlice {
                        log: LOG,
                        after,
                        to,
                        direction,
                        filter: filter.clone(),
                        limit,
                    };
                    assert_eq!(pages(&backend, slice.clone()).await, expected, "{slice:?}");
                }
                expected.reverse();
            }
        }
    }
}

#[tokio::test]
async fn a_page_that_just_fits_is_complete() {
    let Some((backend, _, author, stored)) = filled().await else {
        return;
    };
    let filter = Filter::query(Query {
        types: vec![stored[0].event_type.clone()],
        ..Query::default()
    });
    let matching = stored.iter().filter(|event| filter.matches(event)).count();
    for (limit, complete) in [
        (matching - 1, false),
        (matching, true),
        (matching + 1, true),
    ] {
        let page = backend
            .read_log(LogSlice {
                limit,
                filter: filter.clone(),
                ..all()
            })
            .await
            .expect("reads");
        assert_eq!(page.complete, complete, "{limit} of {matching}");
    }
    let slice = StreamSlice {
        log: LOG,
        stream: StreamId::new("cart-1").expect("valid"),
        stream_row: author.stream_row("cart-1"),
        from: Revision(0),
        to: Revision::MAX,
        created_from: None,
        direction: Direction::Forwards,
        limit: 20,
    };
    assert!(
        backend
            .read_stream(slice.clone())
            .await
            .expect("reads")
            .complete
    );
    assert!(
        !backend
            .read_stream(StreamSlice { limit: 19, ..slice })
            .await
            .expect("reads")
            .complete
    );
}

#[tokio::test]
async fn streams_are_read_between_revisions_both_ways_and_by_time() {
    let Some((backend, _, author, stored)) = filled().await else {
        return;
    };
    let of: Vec<_> = stored
        .iter()
        .filter(|event| event.stream.as_str() == "cart-2")
        .cloned()
        .collect();
    let slice = StreamSlice {
        log: LOG,
        stream: of[0].stream.clone(),
        stream_row: author.stream_row("cart-2"),
        from: Revision(3),
        to: Revision(9),
        created_from: None,
        direction: Direction::Forwards,
        limit: 100,
    };
    let page = backend.read_stream(slice.clone()).await.expect("reads");
    assert_eq!(page.events, of[3..=9]);
    let backwards = StreamSlice {
        direction: Direction::Backwards,
        limit: 2,
        ..slice.clone()
    };
    let page = backend.read_stream(backwards).await.expect("reads");
    assert_eq!(
        page,
        Rows {
            events: vec![of[9].clone(), of[8].clone()],
            complete: false,
            last_writer: None
        }
    );
    let young = StreamSlice {
        created_from: Some(of[8].created),
        ..slice.clone()
    };
    let page = backend.read_stream(young).await.expect("reads");
    assert_eq!(page.events, of[8..=9]);
    let beyond = StreamSlice {
        from: Revision(50),
        to: Revision::MAX,
        ..slice
    };
    assert_eq!(
        backend.read_stream(beyond).await.expect("reads"),
        Rows {
            events: Vec::new(),
            complete: true,
            last_writer: None
        }
    );
}

/// Goal: an answer about many streams is bounded in rows, too, and tells what it did not reach.
#[tokio::test]
async fn parts_of_streams_end_by_rows() {
    let Some((backend, _)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let drafts: Vec<Draft<'_>> = (0..5_000).map(|_| draft("s", "T")).collect();
    for _ in 0..2 {
        assert!(is_committed(&author.append(&mut *writer, &drafts).await));
    }
    let slice = StreamSlice {
        log: LOG,
        stream: StreamId::new("s").expect("valid"),
        stream_row: author.stream_row("s"),
        from: Revision(0),
        to: Revision::MAX,
        created_from: None,
        direction: Direction::Forwards,
        limit: 10_000,
    };
    let slices = vec![slice.clone(); 8];
    let parts = backend.read_streams(LOG, slices).await.expect("reads");
    let found: Vec<(usize, bool)> = parts
        .iter()
        .map(|part| (part.events.len(), part.complete))
        .collect();
    let mut wanted = vec![(10_000, true); 6];
    wanted.extend([(5_536, false), (0, false)]);
    assert_eq!(found, wanted);
    let alone = backend.read_stream(slice).await.expect("reads");
    assert!(parts[..6].iter().all(|part| *part == alone));
    assert_eq!(parts[6].events, alone.events[..5_536]);
    let nothing = backend.read_streams(LOG, Vec::new()).await;
    assert_eq!(nothing.expect("reads"), []);
}

/// 40 MiB in events of 3 MiB, small ones between: no page above 32 MiB, nothing lost, and large ones are left out of
/// the first statement.
#[tokio::test]
async fn pages_end_by_bytes() {
    let Some((backend, _)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let mut stored = Vec::new();
    for _ in 0..13 {
        let mut large = draft("a", "T");
        large.data = Bytes::from(vec![7; 3 * 1024 * 1024]);
        let batch = author.batch(&*writer, &[draft("a", "T"), large]);
        assert!(is_committed(&writer.submit(batch.clone()).await));
        stored.extend(batch.rows.iter().map(|row| row.to_recorded(LOG)));
    }
    for direction in [Direction::Forwards, Direction::Backwards] {
        for limit in [5, 10_000] {
            let page = backend
                .read_log(LogSlice {
                    direction,
                    limit,
                    ..all()
                })
                .await
                .expect("reads");
            let bytes: usize = page.events.iter().map(RecordedEvent::payload_bytes).sum();
            assert!(bytes <= 32 * 1024 * 1024 && !page.complete, "{bytes}");
            assert!(
                pages(
                    &backend,
                    LogSlice {
                        direction,
                        limit,
                        ..all()
                    }
                )
                .await
                    == stored
            );
        }
        stored.reverse();
    }
}
