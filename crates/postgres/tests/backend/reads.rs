//! Pages, filters, look-ups, listing, scavenging and the audit, compared with what was stored.

use bytes::Bytes;
use gesta_core::backend::{
    Backend, EventLookup, EventRef, LoadRequest, LogSlice, Removed, RowId, Rows, RunMode,
    StreamSlice,
};
use gesta_core::{
    Direction, ErrorKind, EventType, Filter, Position, Query, RecordedEvent, Revision, StreamId,
    Tag, Timestamp, Visibility,
};
use gesta_postgres::PostgresBackend;

use crate::common::{Author, Draft, LOG, direct, draft, fresh, is_committed, open};

fn all() -> LogSlice {
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
async fn filled() -> Option<(PostgresBackend, String, Author, Vec<RecordedEvent>)> {
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
async fn pages(backend: &PostgresBackend, mut slice: LogSlice) -> Vec<RecordedEvent> {
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

#[tokio::test]
async fn every_filter_gives_what_matches_in_both_directions() {
    let Some((backend, _, _, stored)) = filled().await else {
        return;
    };
    let types = |names: &[&str]| {
        names
            .iter()
            .map(|name| EventType::new(*name).expect("valid"))
            .collect()
    };
    let tags = |names: &[&str]| {
        names
            .iter()
            .map(|name| Tag::new(*name).expect("valid"))
            .collect()
    };
    let texts = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let query = Query::default();
    let filters = vec![
        Filter::ALL,
        Filter::query(Query {
            types: types(&["Added"]),
            ..query.clone()
        }),
        Filter::query(Query {
            types: types(&["Added", "Größe", "Never"]),
            ..query.clone()
        }),
        Filter::query(Query {
            types: types(&["Never"]),
            ..query.clone()
        }),
        Filter::query(Query {
            tags: tags(&["red"]),
            ..query.clone()
        }),
        Filter::query(Query {
            tags: tags(&["blue", "red"]),
            ..query.clone()
        }),
        Filter::query(Query {
            tags: tags(&["odd"]),
            types: types(&["Removed"]),
            ..query.clone()
        }),
        Filter::query(Query {
            stream_prefixes: texts(&["cart", "gr"]),
            ..query.clone()
        }),
        Filter::query(Query {
            stream_prefixes: texts(&["cart%", "c_rt", "\0"]),
            ..query.clone()
        }),
        Filter::query(Query {
            categories: texts(&["cart"]),
            ..query.clone()
        }),
        Filter::query(Query {
            categories: texts(&["$$cart", "größe"]),
            tags: tags(&["red"]),
            ..query.clone()
        }),
        Filter {
            any_of: vec![
                Query {
                    tags: tags(&["green"]),
                    ..query.clone()
                },
                Query {
                    tags: tags(&["red"]),
                    types: types(&["Removed"]),
                    ..query.clone()
                },
            ],
        },
        Filter {
            any_of: vec![
                Query {
                    types: types(&["Added"]),
                    categories: texts(&["show"]),
                    ..query.clone()
                },
                Query {
                    tags: tags(&["odd"]),
                    ..query.clone()
                },
            ],
        },
    ];
    for filter in filters {
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
    assert_eq!(
        backend
            .read_stream(slice.clone())
            .await
            .expect("reads")
            .events,
        of[3..=9]
    );
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
            complete: false
        }
    );
    let recent = StreamSlice {
        created_from: Some(of[8].created),
        ..slice.clone()
    };
    assert_eq!(
        backend.read_stream(recent).await.expect("reads").events,
        of[8..=9]
    );
    let beyond = StreamSlice {
        from: Revision(50),
        to: Revision::MAX,
        ..slice
    };
    assert_eq!(
        backend.read_stream(beyond).await.expect("reads"),
        Rows {
            events: Vec::new(),
            complete: true
        }
    );
}

/// 40 MiB in events of 3 MiB, small ones between: no page above 32 MiB, nothing lost, and large ones are left out of the first statement.
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
    let loaded = backend.load(LOG, request).await.expect("loads");
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
        .load(LOG, LoadRequest::default())
        .await
        .expect("loads");
    assert_eq!(nothing.end, gesta_core::backend::LogEnd::default());
}

fn is_ref_of(found: &EventRef, event: &RecordedEvent) -> bool {
    found.position == event.position
        && found.stream == event.stream
        && found.revision == event.revision
        && found.id == event.id
        && found.event_type == event.event_type
        && found.created == event.created
}

#[tokio::test]
async fn every_look_up_finds_what_it_should() {
    let Some((backend, _, author, stored)) = filled().await else {
        return;
    };
    let of: Vec<_> = stored
        .iter()
        .filter(|event| event.stream.as_str() == "cart-1")
        .cloned()
        .collect();
    let stream = author.stream_row("cart-1");
    let ids = of
        .iter()
        .map(|event| event.id)
        .chain([stored[1].id])
        .collect::<Vec<_>>();
    let by_ids = |after: u64, created_from: i64| EventLookup::Ids {
        stream,
        ids: ids.clone(),
        after: Position(after),
        created_from: Timestamp(created_from),
    };
    let never = i64::MAX / 2;
    let cases: Vec<(EventLookup, Vec<&RecordedEvent>)> = vec![
        (
            EventLookup::Revisions {
                stream,
                first: Revision(4),
                count: 3,
            },
            of[4..7].iter().collect(),
        ),
        (
            EventLookup::Revisions {
                stream,
                first: Revision(18),
                count: usize::MAX,
            },
            of[18..].iter().collect(),
        ),
        (
            EventLookup::Revisions {
                stream,
                first: Revision(0),
                count: 0,
            },
            vec![],
        ),
        (
            EventLookup::Positions(vec![Position(9), Position(3), Position(u64::MAX)]),
            vec![&stored[2], &stored[8]],
        ),
        (
            EventLookup::After {
                position: Position(118),
                limit: 5,
            },
            stored[118..].iter().collect(),
        ),
        (
            EventLookup::After {
                position: Position(0),
                limit: 2,
            },
            stored[..2].iter().collect(),
        ),
        (by_ids(0, never), of.iter().collect()),
        (by_ids(of[11].position.0, never), of[12..].iter().collect()),
        (by_ids(1_000, of[15].created.0), of[15..].iter().collect()),
        (
            by_ids(of[17].position.0, of[15].created.0),
            of[15..].iter().collect(),
        ),
        (by_ids(1_000, never), vec![]),
        (
            EventLookup::Ids {
                stream: RowId(5_000),
                ids: ids.clone(),
                after: Position(0),
                created_from: Timestamp(0),
            },
            vec![],
        ),
    ];
    for (lookup, expected) in cases {
        let found = backend.lookup(LOG, lookup.clone()).await.expect("answers");
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

#[tokio::test]
async fn changed_rows_are_corrupt_and_named() {
    let Some((backend, url, ..)) = filled().await else {
        return;
    };
    let client = direct(&url).await;
    let damage =
        "SET session_replication_role = replica; UPDATE events SET data = 'x' WHERE position = 50";
    client.batch_execute(damage).await.expect("planted");
    let error = backend.read_log(all()).await.expect_err("corrupt");
    assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error}");
    assert!(
        error.to_string().contains("position 50") && error.to_string().contains("revision"),
        "{error}"
    );
    client
        .batch_execute("UPDATE streams SET name = 'other' WHERE name = 'show-1'")
        .await
        .expect("planted");
    let fresh = open(&url).await;
    let error = fresh
        .read_log(LogSlice {
            to: Position(49),
            ..all()
        })
        .await
        .expect_err("corrupt");
    assert!(
        error.to_string().contains("checksum of its name"),
        "{error}"
    );
    let mut source = backend.audit_source().await.expect("snapshot");
    let report = gesta_sql::verify::audit(&mut source, &mut |_| {})
        .await
        .expect("audited");
    assert!(!report.is_healthy());
}

#[tokio::test]
async fn scavenging_removes_what_is_hidden_and_remembers() {
    let Some((backend, url, author, stored)) = filled().await else {
        return;
    };
    let stream = author.stream_row("cart-2");
    let of: Vec<_> = stored
        .iter()
        .filter(|event| event.stream.as_str() == "cart-2")
        .collect();
    let bytes = |events: &[&RecordedEvent]| {
        events
            .iter()
            .map(|event| event.payload_bytes() as u64)
            .sum()
    };
    let hidden = Visibility {
        from: Revision(5),
        created_from: Some(of[8].created),
    };
    let expected = Removed {
        events: 8,
        payload_bytes: bytes(&of[..8]),
    };
    let remove =
        async |stream, visibility, mode| backend.remove_hidden(LOG, stream, visibility, mode).await;
    assert_eq!(
        remove(stream, hidden, RunMode::Dry).await.expect("counts"),
        expected
    );
    assert_eq!(pages(&backend, all()).await.len(), 120);
    assert_eq!(
        remove(stream, hidden, RunMode::Real)
            .await
            .expect("removes"),
        expected
    );
    assert_eq!(
        remove(stream, hidden, RunMode::Real).await.expect("again"),
        Removed::default()
    );
    assert_eq!(pages(&backend, all()).await.len(), 112);
    let red = Filter::query(Query {
        tags: vec![Tag::new("red").expect("valid")],
        ..Query::default()
    });
    let tagged = pages(
        &backend,
        LogSlice {
            filter: red.clone(),
            ..all()
        },
    )
    .await;
    let gone = of[..8].iter().filter(|event| red.matches(event)).count();
    assert_eq!(
        tagged.len(),
        stored.iter().filter(|event| red.matches(event)).count() - gone
    );

    // All of a stream, and the stream of the last row of the log, which stays.
    let everything = Visibility {
        from: Revision(1_000),
        created_from: None,
    };
    let last = stored.last().expect("stored");
    for name in ["cart-2", last.stream.as_str()] {
        remove(author.stream_row(name), everything, RunMode::Real)
            .await
            .expect("removes");
    }
    let end = backend.log_end(LOG).await.expect("answers");
    assert_eq!(end, author.end);
    let request = LoadRequest {
        streams: vec![of[0].stream.clone()],
        types: vec![],
    };
    let head = backend.load(LOG, request).await.expect("loads").streams[0]
        .head
        .expect("remembered");
    assert_eq!(
        (head.last, head.position, head.id),
        (of[19].revision, of[19].position, None)
    );
    let mut source = backend.audit_source().await.expect("snapshot");
    let report = gesta_sql::verify::audit(&mut source, &mut |_| {})
        .await
        .expect("audited");
    assert!(report.is_healthy(), "{report:?}");

    let client = direct(&url).await;
    let (_, schema) = url.split_once("?schema=").expect("has one");
    client
        .batch_execute(&format!(
            "DROP OWNED BY {schema}_retention; DROP ROLE {schema}_retention"
        ))
        .await
        .expect("dropped");
    let error = remove(stream, everything, RunMode::Real)
        .await
        .expect_err("no role");
    assert!(
        matches!(error.kind(), ErrorKind::Unsupported(_)),
        "{error:?}"
    );
    assert!(error.to_string().contains("_retention"), "{error}");
}

#[tokio::test]
async fn nobody_changes_stored_events() {
    let Some((backend, url, ..)) = filled().await else {
        return;
    };
    let client = direct(&url).await;
    let (_, schema) = url.split_once("?schema=").expect("has one");
    for table in ["events", "streams", "types", "tags"] {
        for statement in [
            format!("DELETE FROM {table}"),
            format!("UPDATE {table} SET log = 0"),
            format!("TRUNCATE {table}"),
        ] {
            let error = client
                .batch_execute(&statement)
                .await
                .expect_err(&statement);
            assert!(
                error
                    .as_db_error()
                    .expect("an answer")
                    .message()
                    .contains("never changed"),
                "{error:?}"
            );
        }
    }
    client
        .batch_execute(&format!("SET ROLE {schema}_retention"))
        .await
        .expect("may");
    assert!(
        client
            .batch_execute("UPDATE events SET revision = 7")
            .await
            .is_err()
    );
    assert!(client.batch_execute("TRUNCATE events").await.is_err());
    assert!(client.batch_execute("DELETE FROM streams").await.is_err());
    client.batch_execute("RESET ROLE").await.expect("back");
    assert_eq!(pages(&backend, all()).await.len(), 120);
    let readable = client
        .query(
            "SELECT stream, type, data_text FROM events_readable ORDER BY position",
            &[],
        )
        .await;
    let readable = readable.expect("reads");
    assert_eq!(readable.len(), 120);
    assert_eq!(readable[0].get::<_, String>(2), "{\"n\":0}");
}
