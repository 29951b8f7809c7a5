//! Data that Gesta compresses itself: every read gives them as they were appended, whoever asks, and damage is noticed.

use std::sync::Arc;

use bytes::Bytes;
use gesta_core::backend::{Backend, LoadRequest, LogSlice, Purpose, StreamSlice};
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{
    Append, ContentType, Direction, ErrorKind, EventData, EventStore, EventType, ExpectedRevision,
    Position, RecordedEvent, Revision, StreamId, SystemClock,
};
use gesta_postgres::PostgresBackend;
use gesta_rig::shared;
use gesta_store::Store;

use crate::common::{Author, Draft, LOG, direct, draft, is_committed, open, store_url};
use crate::reads::{all, pages};

/// Text that shrinks to about two thirds.
fn text(length: usize, seed: u64) -> Bytes {
    let mut number = seed;
    let mut text = String::with_capacity(length + 32);
    while text.len() < length {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        text.push_str(&format!("row:{};by:{:09x};", number % 40, number >> 28));
    }
    text.truncate(length);
    text.into()
}

/// An empty store whose process compresses, with its URL.
async fn compressing() -> Option<(PostgresBackend, String)> {
    let url = store_url(shared()?);
    Some((open(&format!("{url}&compression=client")).await, url))
}

/// As an append through this backend hands it on.
fn with_data(backend: &PostgresBackend, stream: &'static str, data: Bytes) -> Draft<'static> {
    let name = StreamId::new(stream).expect("valid");
    Draft {
        packed: backend.pack(&name, ContentType::Json, &data),
        data,
        ..draft(stream, "T")
    }
}

fn data_of(events: &[RecordedEvent]) -> Vec<&Bytes> {
    events.iter().map(|event| &event.data).collect()
}

fn slice(author: &Author, stream: &str, direction: Direction) -> StreamSlice {
    StreamSlice {
        log: LOG,
        stream: StreamId::new(stream).expect("valid"),
        stream_row: author.stream_row(stream),
        from: Revision(0),
        to: Revision::MAX,
        created_from: None,
        direction,
        limit: 100,
    }
}

async fn is_healthy(backend: &PostgresBackend) -> bool {
    let mut source = backend.audit_source().await.expect("snapshot");
    let report = gesta_sql::verify::audit(&mut source, &mut |_| {}).await;
    report.expect("audited").is_healthy()
}

/// A stream, data, and the code that they are stored with: 0 is JSON, 2 compressed JSON.
type Kind = (&'static str, Bytes, i16);

/// Looks at the rows of the database itself.
async fn assert_stored(url: &str, kinds: &[Kind]) {
    let client = direct(url).await;
    let rows = client.query(
        "SELECT content_type, octet_length(coalesce(packed, data)), packed IS NULL OR data = '' FROM events ORDER BY position",
        &[],
    );
    let rows = rows.await.expect("reads");
    for ((_, data, code), row) in kinds.iter().zip(&rows) {
        assert_eq!(row.get::<_, i16>(0), *code, "{} bytes", data.len());
        let stored = usize::try_from(row.get::<_, i32>(1)).expect("a length");
        assert!(row.get::<_, bool>(2), "stored once");
        assert_eq!(
            stored < data.len(),
            *code == 2,
            "{stored} of {}",
            data.len()
        );
    }
    let readable = "SELECT count(*) FILTER (WHERE is_compressed), count(*) FILTER (WHERE content_type = 'application/json')
                    FROM events_readable WHERE NOT is_compressed OR data_text IS NULL";
    let readable = client.query_one(readable, &[]).await.expect("reads");
    assert_eq!(
        (readable.get::<_, i64>(0), readable.get::<_, i64>(1)),
        (3, 7)
    );
}

#[tokio::test]
async fn every_read_gives_the_data_as_they_were_appended() {
    let Some((backend, url)) = compressing().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let noise: Vec<u8> = (0..20_000).map(|_| rand::random()).collect();
    let kinds: [Kind; 7] = [
        ("a", text(20_000, 1), 2),
        ("a", text(2_047, 2), 0),
        ("a", noise.into(), 0),
        ("b", Bytes::from(vec![b' '; 100_000]), 0),
        ("a", text(3_000_000, 3), 2),
        ("$$a", text(20_000, 4), 0),
        ("b", text(2_048, 5), 2),
    ];
    let drafts: Vec<Draft<'_>> = kinds
        .iter()
        .map(|(stream, data, _)| with_data(&backend, stream, data.clone()))
        .collect();
    assert!(is_committed(&author.append(&mut *writer, &drafts).await));

    assert_stored(&url, &kinds).await;

    // As everybody reads it, also those who let the database compress.
    let of = |wanted: Option<&str>| -> Vec<&Bytes> {
        let of = kinds
            .iter()
            .filter(|(stream, ..)| wanted.is_none_or(|wanted| wanted == *stream));
        of.map(|(_, data, _)| data).collect()
    };
    for backend in [backend, open(&url).await] {
        assert_eq!(data_of(&pages(&backend, all()).await), of(None));
        for direction in [Direction::Forwards, Direction::Backwards] {
            let page = backend.read_stream(slice(&author, "a", direction)).await;
            let mut events = page.expect("reads").events;
            if direction == Direction::Backwards {
                events.reverse();
            }
            assert_eq!(data_of(&events), of(Some("a")));
        }
        let slices = ["b", "a"].map(|stream| slice(&author, stream, Direction::Forwards));
        let parts = backend.read_streams(LOG, slices.into()).await;
        let parts = parts.expect("reads");
        assert_eq!(data_of(&parts[0].events), of(Some("b")));
        assert_eq!(data_of(&parts[1].events), of(Some("a")));
        assert!(is_healthy(&backend).await);
    }
}

/// Without any option JSON stays readable with SQL, also if it is large.
#[tokio::test]
async fn a_store_compresses_all_but_json() {
    let Some(server) = shared() else { return };
    let url = store_url(server);
    let backend = Arc::new(open(&url).await);
    let opened = Store::open(
        Arc::clone(&backend) as Arc<dyn Backend>,
        gesta_store::Config::default(),
        Arc::new(SystemClock),
    );
    let store = opened.expect("starts");
    let data = text(20_000, 7);
    let event = |content_type, data: &Bytes| EventData {
        content_type,
        ..EventData::json(EventType::new("T").expect("valid"), data.clone())
    };
    let small = Bytes::from_static(b"small");
    let events = vec![
        event(ContentType::Binary, &small),
        event(ContentType::Json, &data),
        event(ContentType::Binary, &data),
    ];
    let stream = StreamId::new("a").expect("valid");
    let append = Append::to(stream, ExpectedRevision::NoStream, events);
    store.append(append).await.expect("stored");

    let client = direct(&url).await;
    let readable = "SELECT is_compressed, data_text FROM events_readable ORDER BY position";
    let rows = client.query(readable, &[]).await.expect("reads");
    let rows: Vec<(bool, Option<String>)> =
        rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let json = String::from_utf8(data.to_vec()).expect("text");
    assert_eq!(rows, [(false, None), (false, Some(json)), (true, None)]);

    let page = backend.read_log(all()).await.expect("reads");
    assert_eq!(data_of(&page.events), [&small, &data, &data]);
    assert!(is_healthy(&backend).await);
    store.shutdown().await.expect("closes");
}

/// 90 MiB in events of 3 MiB that are stored as less than 80: no page above 32 MiB of what it becomes, nothing lost.
#[tokio::test]
async fn pages_are_bounded_by_what_they_become() {
    let Some((backend, _)) = compressing().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let data = text(3 * 1_024 * 1_024, 9);
    for _ in 0..30 {
        let draft = with_data(&backend, "a", data.clone());
        assert!(is_committed(&author.append(&mut *writer, &[draft]).await));
    }
    for limit in [2, 12, 10_000] {
        let (mut after, mut events) = (Position::START, 0);
        loop {
            let slice = LogSlice {
                after,
                limit,
                ..all()
            };
            let page = backend.read_log(slice).await.expect("reads");
            let bytes: usize = page.events.iter().map(RecordedEvent::payload_bytes).sum();
            assert!(bytes <= PAGE_BYTES_MAX, "{bytes}");
            assert!(page.events.iter().all(|event| event.data == data));
            events += page.events.len();
            let Some(last) = page.events.last().filter(|_| !page.complete) else {
                break;
            };
            after = last.position;
        }
        assert_eq!(events, 30, "pages of {limit}");
    }
    let slices = vec![slice(&author, "a", Direction::Forwards)];
    let parts = backend.read_streams(LOG, slices).await.expect("reads");
    let bytes: usize = parts[0]
        .events
        .iter()
        .map(RecordedEvent::payload_bytes)
        .sum();
    assert!(bytes <= PAGE_BYTES_MAX && !parts[0].complete, "{bytes}");
    assert!(parts[0].events.len() >= 9, "as many as fit");
}

#[tokio::test]
async fn damage_is_noticed_and_named() {
    let Some((backend, url)) = compressing().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let drafts = [1, 2].map(|seed| with_data(&backend, "a", text(9_000, seed)));
    assert!(is_committed(&author.append(&mut *writer, &drafts).await));
    let client = direct(&url).await;
    let keep = "ALTER TABLE events DISABLE TRIGGER USER; CREATE TABLE kept AS SELECT * FROM events";
    client.batch_execute(keep).await.expect("kept");
    for damage in [
        "packed = set_byte(packed, 500, 255 - get_byte(packed, 500))",
        "packed = set_byte(packed, 0, 255 - get_byte(packed, 0))",
        "packed = set_byte(packed, 3, 255)",
        "packed = substr(packed, 1, 3)",
        "packed = NULL",
        "content_type = 0",
        "content_type = 3",
        "content_type = 4",
    ] {
        let change = format!("UPDATE events SET {damage} WHERE position = 2");
        client.batch_execute(&change).await.expect("planted");
        let error = backend.read_log(all()).await.expect_err(damage);
        assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error}");
        assert!(error.to_string().contains("position 2"), "{error}");
        assert!(!is_healthy(&backend).await, "{damage}");
        let mend =
            "UPDATE events SET packed = kept.packed, content_type = kept.content_type FROM kept
                    WHERE events.position = kept.position";
        client.batch_execute(mend).await.expect("mended");
    }
    assert!(is_healthy(&backend).await);
}

/// Metadata of a stream is read by a statement that knows of no compression.
#[tokio::test]
async fn metadata_of_a_stream_is_loaded() {
    let Some((backend, url)) = compressing().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let x = String::from_utf8(text(5_000, 6).to_vec()).expect("text");
    let metadata = Bytes::from(format!(r#"{{"max_count":3,"x":"{x}"}}"#));
    let draft = with_data(&backend, "$$a", metadata.clone());
    assert!(is_committed(&author.append(&mut *writer, &[draft]).await));
    for backend in [backend, open(&url).await] {
        let request = LoadRequest {
            streams: vec![StreamId::new("a").expect("valid")],
            ..LoadRequest::default()
        };
        let loaded = backend
            .load(LOG, request, Purpose::Read)
            .await
            .expect("loads");
        let meta = loaded.streams[0].meta.as_ref().expect("is there");
        assert_eq!(meta.data, metadata);
    }
}
