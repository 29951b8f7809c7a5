//! Other event stores: Elixir's EventStore, Emmett, KurrentDB.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{ErrorKind, EventStore, EventStoreExt};
use gesta_import::{Import, Kind, Options};
use serde_json::json;

use crate::support::{
    Journal, dry_run, import, imported, metadata, nothing_is_stored_twice, places, quick, source,
    target, told, try_import,
};

const ELIXIR: &str = "
CREATE TABLE streams (stream_id bigserial PRIMARY KEY, stream_uuid text NOT NULL UNIQUE,
    stream_version bigint NOT NULL DEFAULT 0, created_at timestamptz NOT NULL DEFAULT now(), deleted_at timestamptz);
INSERT INTO streams VALUES (0, '$all');
CREATE TABLE events (event_id uuid PRIMARY KEY, event_type text NOT NULL, causation_id uuid, correlation_id uuid,
    data bytea NOT NULL, metadata bytea, created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE stream_events (event_id uuid NOT NULL REFERENCES events, stream_id bigint NOT NULL REFERENCES streams,
    stream_version bigint NOT NULL, original_stream_id bigint, original_stream_version bigint,
    PRIMARY KEY (event_id, stream_id), UNIQUE (stream_id, stream_version));
CREATE TABLE snapshots (source_uuid text PRIMARY KEY);";

#[tokio::test]
async fn elixir_is_read_without_links_and_deleted_streams() {
    let Some(journal) = Journal::with(ELIXIR).await else {
        return;
    };
    let id = |n: u8| format!("00000000-0000-4000-8000-0000000000{n:02}");
    let mut sql = "INSERT INTO streams (stream_id, stream_uuid) VALUES (1, 'account-1'), (2, 'account-2'), (3, 'linked');\n".to_owned();
    for (n, stream, version) in [(1, 1, 1), (2, 2, 1), (3, 1, 2)] {
        let id = id(n);
        sql += &format!(
            "INSERT INTO events VALUES ('{id}', 'Elixir.Bank.Opened', NULL, '{}', '{{\"n\":{n}}}', '{{\"user\":\"x\"}}', '2024-03-01T10:00:00Z');
             INSERT INTO stream_events VALUES ('{id}', {stream}, {version}, {stream}, {version}), ('{id}', 0, {n}, {stream}, {version}), ('{id}', 3, {n}, {stream}, {version});",
            self::format_id(99)
        );
    }
    journal.run(&sql).await;
    journal
        .run("UPDATE streams SET deleted_at = now() WHERE stream_id = 2")
        .await;
    let options = journal.options(Kind::ElixirEventStore);
    let dry = dry_run(&options).await;
    let store = target();
    let report = import(&options, &store).await;
    for report in [dry, report] {
        assert_eq!(
            (report.read, report.stored, report.left_out_in_all()),
            (3, 2, 1),
            "{report:?}"
        );
        assert_eq!(report.snapshots, Some(0));
    }
    let events = imported(&store).await;
    assert_eq!(
        told(&events),
        [
            "account-1 0 Elixir.Bank.Opened {\"n\":1}",
            "account-1 1 Elixir.Bank.Opened {\"n\":3}"
        ]
    );
    assert_eq!(places(&events), ["1", "3"]);
    assert_eq!(events[0].id.to_string(), id(1));
    assert_eq!(
        (
            &metadata(&events[0])["user"],
            &metadata(&events[0])["$correlationId"]
        ),
        (&json!("x"), &json!(format_id(99)))
    );
    nothing_is_stored_twice(&options, &store).await;
}

fn format_id(n: u8) -> String {
    format!("00000000-0000-4000-8000-0000000000{n:02}")
}

const EMMETT: &str = "
CREATE SEQUENCE emt_global_message_position;
CREATE TABLE emt_messages (stream_position bigint NOT NULL, global_position bigint DEFAULT nextval('emt_global_message_position'),
    transaction_id xid8 NOT NULL, created timestamptz NOT NULL DEFAULT now(), is_archived boolean NOT NULL DEFAULT false,
    message_kind varchar(1) NOT NULL DEFAULT 'E', stream_id text NOT NULL, partition text NOT NULL DEFAULT 'emt:default',
    message_schema_version text NOT NULL DEFAULT '1', message_id text NOT NULL, message_type text NOT NULL,
    message_data jsonb NOT NULL, message_metadata jsonb NOT NULL,
    PRIMARY KEY (stream_id, stream_position, partition, is_archived)) PARTITION BY LIST (partition);
CREATE TABLE emt_default PARTITION OF emt_messages FOR VALUES IN ('emt:default');
CREATE TABLE emt_blue PARTITION OF emt_messages FOR VALUES IN ('blue');";

fn emmett(stream: &str, position: u64, more: &str, values: &str) -> String {
    format!(
        "INSERT INTO emt_messages (stream_position, transaction_id, stream_id, message_id, message_type, message_data, message_metadata{more}) \
         VALUES ({position}, pg_current_xact_id(), '{stream}', gen_random_uuid()::text, 'Added', '{{\"n\": {position}}}', '{{\"by\": \"x\"}}'{values});"
    )
}

/// Goal: a transaction that got its id early and appends late stands before an earlier event of its stream; both come
/// in the order of the stream. Nothing is taken from beside a transaction that runs.
#[tokio::test]
async fn emmett_is_read_by_transactions() {
    let Some(journal) = Journal::with(EMMETT).await else {
        return;
    };
    let early = journal.session().await;
    early
        .batch_execute("BEGIN; SELECT pg_current_xact_id()")
        .await
        .unwrap();
    journal.run(&emmett("cart-1", 1, "", "")).await;
    early
        .batch_execute(&emmett("cart-1", 2, "", ""))
        .await
        .unwrap();
    let options = journal.options(Kind::Emmett);
    let store = target();
    // What is committed behind it must not be told as everything.
    let mut hasty = options.clone();
    hasty.patience.settle = Duration::from_millis(50);
    let error = try_import(&hasty, &store).await.expect_err("it waits");
    assert!(error.to_string().contains("older than the last"), "{error}");
    assert!(imported(&store).await.is_empty());
    early.batch_execute("COMMIT").await.unwrap();
    journal
        .run(&emmett("cart-1", 3, ", message_kind", ", 'C'"))
        .await;
    journal
        .run(&emmett("cart-1", 1, ", partition", ", 'blue'"))
        .await;
    journal
        .run(&emmett("cart-1", 4, ", is_archived", ", true"))
        .await;
    let report = import(&options, &store).await;
    assert_eq!(
        (report.stored, report.left_out_in_all()),
        (3, 2),
        "{report:?}"
    );
    let events = imported(&store).await;
    assert_eq!(
        told(&events),
        [
            "cart-1 0 Added {\"n\": 1}",
            "cart-1 1 Added {\"n\": 2}",
            "blue/cart-1 0 Added {\"n\": 1}"
        ]
    );
    assert_eq!(metadata(&events[0])["by"], json!("x"));
    assert_eq!(dry_run(&options).await.stored, 3);
    nothing_is_stored_twice(&options, &store).await;
}

#[tokio::test]
async fn emmett_is_read_on_sqlite() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("emmett.db");
    let writer = rusqlite::Connection::open(&path).unwrap();
    writer
        .execute_batch(
            "CREATE TABLE emt_messages (stream_id TEXT NOT NULL, stream_position BIGINT NOT NULL, partition TEXT NOT NULL DEFAULT 'global',
                 message_kind CHAR(1) NOT NULL DEFAULT 'E', message_data JSONB NOT NULL, message_metadata JSONB NOT NULL,
                 message_schema_version TEXT NOT NULL DEFAULT '1', message_type TEXT NOT NULL, message_id TEXT NOT NULL,
                 is_archived BOOLEAN NOT NULL DEFAULT FALSE, global_position INTEGER PRIMARY KEY,
                 created DATETIME DEFAULT CURRENT_TIMESTAMP, UNIQUE (stream_id, stream_position, partition, is_archived));
             INSERT INTO emt_messages (stream_id, stream_position, message_data, message_metadata, message_type, message_id, created)
             VALUES ('cart-1', 1, '{\"n\":1}', '{}', 'Added', '00000000-0000-4000-8000-000000000001', '2024-03-01 10:00:00'),
                    ('cart-1', 2, '{\"n\":2}', '{}', 'Added', 'no uuid', '2024-03-01 10:00:00');
             INSERT INTO emt_messages (stream_id, stream_position, partition, message_data, message_metadata, message_type, message_id)
             VALUES ('cart-1', 1, 'blue/x', '{\"n\":3}', '{}', 'Added', 'none')",
        )
        .unwrap();
    let options = quick(Options::new(Kind::Emmett, format!("sqlite:{}", path.display())).unwrap());
    let store = target();
    assert_eq!(dry_run(&options).await.stored, 3);
    import(&options, &store).await;
    let events = imported(&store).await;
    assert_eq!(
        told(&events),
        [
            "cart-1 0 Added {\"n\":1}",
            "cart-1 1 Added {\"n\":2}",
            "blue%2Fx/cart-1 0 Added {\"n\":3}"
        ]
    );
    assert_eq!(source(&events[2])["tenant"], json!("blue/x"));
    assert_eq!(
        events[0].id.to_string(),
        "00000000-0000-4000-8000-000000000001"
    );
    assert_eq!(
        source(&events[0])["time"],
        json!("2024-03-01T10:00:00.000000Z")
    );
    nothing_is_stored_twice(&options, &store).await;
    // What happened: what a killed program had left in its log was moved into the file.
    writer
        .execute_batch(
            "PRAGMA journal_mode = WAL;
             INSERT INTO emt_messages (stream_id, stream_position, message_data, message_metadata, message_type, message_id)
             VALUES ('cart-1', 3, '{}', '{}', 'Added', 'none')",
        )
        .unwrap();
    let keep = rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    writer.set_db_config(keep, true).unwrap();
    drop(writer);
    let log = home.path().join("emmett.db-wal");
    let bytes = || [&path, &log].map(|file| std::fs::read(file).unwrap());
    let before = bytes();
    assert_eq!(dry_run(&options).await.stored, 4);
    assert_eq!(bytes(), before);
}

/// Goal: over the protocol of KurrentDB, events keep id, type, metadata and order, and what hides events comes at its
/// place: deletes, truncation, tombstones. What is hidden for its age stays behind.
#[tokio::test]
async fn kurrentdb_is_read_with_what_hides_events() {
    use gesta_core::{
        DeleteKind, DeleteStream, EventData, EventType, ExpectedRevision, SetStreamMetadata,
        StreamId, StreamMetadata,
    };
    let origin = target();
    let config = gesta_server::Config {
        listen: ([127, 0, 0, 1], 0).into(),
        ..gesta_server::Config::default()
    };
    let server = gesta_server::start(config, origin.clone(), gesta_server::Registry::default())
        .await
        .unwrap();
    let event = |n: u64| {
        EventData::json(EventType::new("added").unwrap(), format!("{{\"n\":{n}}}"))
            .with_metadata("{\"by\":\"x\"}")
    };
    let append = async |stream: &str, n: u64| {
        origin
            .append_to(stream, ExpectedRevision::Any, vec![event(n)])
            .await
            .unwrap();
    };
    let delete = async |stream: &str, kind| {
        let request = DeleteStream {
            stream: StreamId::new(stream).unwrap(),
            expected: ExpectedRevision::Any,
            kind,
        };
        origin.delete_stream(request).await.unwrap();
    };
    for n in 1..=3 {
        append("cart-1", n).await;
        append("gone-1", n).await;
        append("closed-1", n).await;
    }
    let set = SetStreamMetadata {
        stream: StreamId::new("cart-1").unwrap(),
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse("{\"$tb\":1,\"owner\":\"x\"}").unwrap(),
    };
    origin.set_stream_metadata(set).await.unwrap();
    delete("gone-1", DeleteKind::Soft).await;
    delete("closed-1", DeleteKind::Tombstone).await;
    append("gone-1", 4).await;
    let url = format!("kurrentdb://{}?tls=false", server.local_addr());
    let options = quick(Options::new(Kind::KurrentDb, url).unwrap());
    assert_eq!(dry_run(&options).await.stored, 10);
    let store = target();
    let report = import(&options, &store).await;
    assert_eq!((report.stored, report.unmappable), (10, 0), "{report:?}");
    let visible = async |store: &Arc<gesta_memory::MemoryStore>, stream: &str| match store
        .read_whole_stream(stream)
        .await
    {
        Ok(events) => told(&events).join("; "),
        Err(error) => match error.kind() {
            ErrorKind::StreamTombstoned(_) => "closed".to_owned(),
            _ => error.to_string(),
        },
    };
    for stream in ["cart-1", "gone-1", "closed-1"] {
        assert_eq!(
            visible(&store, stream).await,
            visible(&origin, stream).await,
            "{stream}"
        );
    }
    let of = StreamId::new("cart-1").unwrap();
    assert_eq!(
        store.stream_metadata(of).await.unwrap().metadata.json(),
        "{\"$tb\":1,\"owner\":\"x\"}"
    );
    let ids = |events: Vec<gesta_core::RecordedEvent>| {
        events.into_iter().map(|event| event.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(imported(&store).await), ids(imported(&origin).await));
    let first = &imported(&store).await[0];
    assert_eq!(
        (&metadata(first)["by"], &source(first)["sequence"]),
        (&json!("x"), &json!(0))
    );
    // Once more, and without the checkpoint: nothing comes back, nothing is doubled.
    for name in ["kurrentdb", "again"] {
        let again = Options {
            name: name.into(),
            ..options.clone()
        };
        assert_eq!(import(&again, &store).await.stored, 0, "{name}");
        assert_eq!(
            visible(&store, "gone-1").await,
            visible(&origin, "gone-1").await
        );
    }
    append("cart-1", 9).await;
    assert_eq!(import(&options, &store).await.stored, 1);
    // Another server, whose events stand at the same places.
    let other = target();
    for n in 1..=30 {
        other
            .append_to("other-1", ExpectedRevision::Any, vec![event(n)])
            .await
            .unwrap();
    }
    let config = gesta_server::Config {
        listen: ([127, 0, 0, 1], 0).into(),
        ..gesta_server::Config::default()
    };
    let second = gesta_server::start(config, other, gesta_server::Registry::default())
        .await
        .unwrap();
    let elsewhere = Options {
        url: format!("kurrentdb://{}?tls=false", second.local_addr()),
        ..options.clone()
    };
    let error = try_import(&elsewhere, &store)
        .await
        .expect_err("another server");
    assert!(error.to_string().contains("another server"), "{error}");
    second.shutdown().await;
    server.shutdown().await;
    let stopped = Import::open(options, store as Arc<dyn EventStore>)
        .await
        .map(|_| ())
        .expect_err("stopped");
    assert!(stopped.is_retryable(), "{stopped}");
}

/// What happened: a page of KurrentDB begins with the event up to which was read, and ended after 16 MiB. Where two
/// neighbours were larger than that together, a page had nothing new, and was taken for the end of the source. Goal:
/// the import, and the dry run, go on to the end.
#[tokio::test]
async fn kurrentdb_is_read_past_events_that_fill_a_page() {
    use gesta_core::{EventData, EventType, ExpectedRevision};
    let origin = target();
    for (stream, bytes) in [
        ("a-1", 1),
        ("large-1", 9 << 20),
        ("large-2", 9 << 20),
        ("large-3", (16 << 20) - 4096),
        ("after-1", 1),
    ] {
        let data = format!("{{\"x\":\"{}\"}}", "y".repeat(bytes));
        let event = EventData::json(EventType::new("added").unwrap(), data);
        origin
            .append_to(stream, ExpectedRevision::Any, vec![event])
            .await
            .unwrap();
    }
    let config = gesta_server::Config {
        listen: ([127, 0, 0, 1], 0).into(),
        ..gesta_server::Config::default()
    };
    let server = gesta_server::start(config, origin, gesta_server::Registry::default())
        .await
        .unwrap();
    let url = format!("kurrentdb://{}?tls=false", server.local_addr());
    let options = quick(Options::new(Kind::KurrentDb, url).unwrap());
    assert_eq!(dry_run(&options).await.stored, 5);
    let store = target();
    let report = import(&options, &store).await;
    assert_eq!((report.stored, report.unmappable), (5, 0), "{report:?}");
    server.shutdown().await;
}

/// What happened: rows that were restored from a dump into another server had transactions that this one had not begun,
/// and the import waited for a transaction that does not exist. Or it had stored those of transactions that this server
/// has had, and did not go on after the cure. Goal: it says so before anything is stored, and what helps; that does.
#[tokio::test]
async fn emmett_from_another_server_is_told() {
    let Some(journal) = Journal::with(EMMETT).await else {
        return;
    };
    for position in 1..=2 {
        let sql = emmett("cart-1", position, "", "");
        let of_another = "'900000000'::xid8";
        journal
            .run(&match position {
                1 => sql,
                _ => sql.replace("pg_current_xact_id()", of_another),
            })
            .await;
    }
    let options = journal.options(Kind::Emmett);
    let store = target();
    let error = try_import(&options, &store)
        .await
        .expect_err("of another server")
        .to_string();
    assert_eq!(imported(&store).await.len(), 0);
    let (_, cure) = error.split_once("appended here, ").expect("a cure");
    let (cure, _) = cure.split_once(", which keeps").expect("a cure");
    journal.run(cure).await;
    assert_eq!(import(&options, &store).await.stored, 2);
    assert_eq!(
        imported(&store)
            .await
            .iter()
            .map(|event| source(event)["sequence"].as_u64().unwrap())
            .collect::<Vec<_>>(),
        [1, 2]
    );
    // The transactions of a server that has lost some are given out again.
    journal
        .run("UPDATE emt_messages SET stream_id = 'other-1' WHERE stream_position = 2")
        .await;
    let error = try_import(&options, &store).await.expect_err("other");
    assert!(error.to_string().contains("has another event"), "{error}");
}
