//! What keeps stored events as they are: the audit, the rights, and scavenging, which alone removes any.

use gesta_core::backend::{
    Backend, EventLookup, IndexPage, LoadRequest, LogSlice, Purpose, Removed, RunMode,
};
use gesta_core::{ErrorKind, Filter, Position, Query, RecordedEvent, Revision, Tag, Visibility};
use gesta_postgres::PostgresBackend;
use gesta_sql::verify::{Finding, FindingKind};

use crate::common::{LOG, direct, open};
use crate::reads::{all, filled, pages};

#[tokio::test]
async fn changed_rows_are_corrupt_and_named() {
    let Some((backend, url, ..)) = filled().await else {
        return;
    };
    let client = direct(&url).await;
    let damage = "ALTER TABLE events DISABLE TRIGGER USER; ALTER TABLE streams DISABLE TRIGGER USER; UPDATE events SET data = 'x' \
         WHERE position = 50";
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

/// Nothing of a stream is visible.
const NOTHING: Visibility = Visibility {
    from: Revision(1_000),
    created_from: None,
};

/// The events of one stream.
fn of_stream<'a>(stored: &'a [RecordedEvent], name: &str) -> Vec<&'a RecordedEvent> {
    let of = stored.iter().filter(|event| event.stream.as_str() == name);
    of.collect()
}

async fn assert_healthy(backend: &PostgresBackend) {
    let mut source = backend.audit_source().await.expect("snapshot");
    let report = gesta_sql::verify::audit(&mut source, &mut |_| {})
        .await
        .expect("audited");
    assert!(report.is_healthy(), "{report:?}");
}

#[tokio::test]
async fn scavenging_removes_what_is_hidden() {
    let Some((backend, _, author, stored)) = filled().await else {
        return;
    };
    let stream = author.stream_row("cart-2");
    let of = of_stream(&stored, "cart-2");
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
    assert_healthy(&backend).await;
}

/// Goal: a store without all events of a stream knows where the stream ended; the last row of the log stays.
#[tokio::test]
async fn scavenging_remembers_the_ends_of_streams() {
    let Some((backend, _, author, stored)) = filled().await else {
        return;
    };
    let of = of_stream(&stored, "cart-2");
    let last = stored.last().expect("stored");
    for name in ["cart-2", last.stream.as_str()] {
        let stream = author.stream_row(name);
        let removed = backend.remove_hidden(LOG, stream, NOTHING, RunMode::Real);
        removed.await.expect("removes");
    }
    let end = backend.log_end(LOG, Purpose::Read).await.expect("answers");
    assert_eq!(end, author.end);
    let request = LoadRequest {
        streams: vec![of[0].stream.clone()],
        types: vec![],
    };
    let head = backend
        .load(LOG, request, Purpose::Read)
        .await
        .expect("loads")
        .streams[0]
        .head
        .expect("remembered");
    assert_eq!(
        (head.last, head.position, head.id),
        (of[19].revision, of[19].position, None)
    );
    assert_healthy(&backend).await;
}

#[tokio::test]
async fn scavenging_without_its_role_is_refused() {
    let Some((backend, url, author, _)) = filled().await else {
        return;
    };
    let client = direct(&url).await;
    let (_, schema) = url.split_once("?schema=").expect("has one");
    client
        .batch_execute(&format!(
            "DROP OWNED BY {schema}_retention; DROP ROLE {schema}_retention"
        ))
        .await
        .expect("dropped");
    let stream = author.stream_row("cart-2");
    let error = backend
        .remove_hidden(LOG, stream, NOTHING, RunMode::Real)
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
    // Not even where triggers are set aside for replication.
    let replica = "SET session_replication_role = replica";
    client.batch_execute(replica).await.expect("superuser");
    let changed = client.batch_execute("UPDATE events SET revision = 7");
    assert!(changed.await.is_err());
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

/// What happened: the newest event of a log could be deleted by the retention role, and the next one got its revision,
/// its position and its checkpoint, unnoticed. If it was the only one, its log took no append any more. What holds now:
/// the last event of a log stays.
#[tokio::test]
async fn the_last_event_of_a_log_stays() {
    let Some((backend, url, author, _)) = filled().await else {
        return;
    };
    let client = direct(&url).await;
    let (_, schema) = url.split_once("?schema=").expect("has one");
    let retention = format!("SET ROLE {schema}_retention");
    client.batch_execute(&retention).await.expect("superuser");
    for lost in [
        "DELETE FROM events",
        "DELETE FROM events WHERE position = 120",
        "DELETE FROM events WHERE position > 60",
        "DELETE FROM events WHERE position IN (3, 120)",
    ] {
        let error = client.batch_execute(lost).await.expect_err(lost);
        let error = error.as_db_error().expect("an answer");
        assert!(error.message().contains("last event of log 0"), "{error}");
    }
    let before = client.batch_execute("DELETE FROM events WHERE position = 119");
    before.await.expect("is not the last one");
    // The row that closes a log is its last one: what is before it may go, and then the row itself may not be alone.
    client.batch_execute("RESET ROLE").await.expect("back");
    let close = "INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, \
                 content_type, data, metadata) \
                 VALUES (9223372036854775807, 1, 9999, 1, now(), 0, 0, gen_random_uuid(), 0, 1, '', '')";
    client.batch_execute(close).await.expect("closed");
    client.batch_execute(&retention).await.expect("superuser");
    for (statement, may) in [
        ("DELETE FROM events WHERE position = 120", true),
        ("DELETE FROM events WHERE position >= 118", false),
        (
            "DELETE FROM events WHERE position = 9223372036854775807",
            true,
        ),
        ("DELETE FROM events WHERE position = 118", false),
    ] {
        let done = client.batch_execute(statement).await;
        assert_eq!(done.is_ok(), may, "{statement}: {done:?}");
    }
    assert_eq!(author.end.position, Position(120));
    drop(backend);
}

/// What happened: whoever could set triggers aside could remove the newest event beside a server that runs, and the
/// server gave its position to the next event. What holds now: a process that knew the event notices, and begins a new
/// incarnation.
#[tokio::test]
async fn events_that_are_gone_begin_another_history() {
    let Some((backend, url, ..)) = filled().await else {
        return;
    };
    let client = direct(&url).await;
    let old = backend.history();
    let end = backend.log_end(LOG, Purpose::Read).await.expect("answers");
    assert_eq!(end.position, Position(120));
    let lose = "ALTER TABLE events DISABLE TRIGGER USER; DELETE FROM events WHERE position = 120; \
                ALTER TABLE events ENABLE ALWAYS TRIGGER events_refuse_change";
    client.batch_execute(lose).await.expect("planted");
    let end = backend
        .log_end(LOG, Purpose::Append)
        .await
        .expect("answers");
    assert_eq!(end.position, Position(119));
    let new = backend.history();
    assert_eq!(new.number, old.number + 1);
    assert_ne!(new.incarnation, old.incarnation);
    let ends = backend.log_ends(Purpose::Read).await.expect("answers");
    assert_eq!(ends[0].position, Position(119));
    assert_eq!(backend.history(), new, "noticed once");
}

/// Goal: entries of virtual streams are audited: what was written is healthy, what contradicts itself is found.
#[tokio::test]
async fn entries_of_virtual_streams_are_audited() {
    let Some((backend, url, _, _)) = filled().await else {
        return;
    };
    let index = backend.virtual_index().expect("kept");
    let off = index.switch(true).await.expect("switched");
    let after = EventLookup::After {
        position: off.position,
        limit: 10_000,
    };
    let events = backend.lookup(LOG, after, Purpose::Read).await;
    let page = IndexPage::of(off.position, &events.expect("reads")).expect("events");
    index.write(page).await.expect("written");
    let audit = async || {
        let mut source = backend.audit_source().await.expect("snapshot");
        let report = gesta_sql::verify::audit(&mut source, &mut |_| {}).await;
        report.expect("audited").findings
    };
    assert_eq!(audit().await, []);
    let client = direct(&url).await;
    for (damage, says) in [
        (
            "INSERT INTO virtual_streams (id, next_revision, name) VALUES (1, 1, '$ce-none')",
            "$ce-none has 0 entries",
        ),
        (
            "INSERT INTO virtual_entries (stream, revision, position) VALUES (2, 0, 1)",
            "number 2 name no stream",
        ),
        (
            "INSERT INTO virtual_entries (stream, revision, position) VALUES (2, 1, 1)",
            "has position 1, the one before it 1",
        ),
        (
            "UPDATE virtual_index SET position = 1000000",
            "up to position 1000000",
        ),
        (
            "UPDATE virtual_index SET position = 1",
            "but the log was looked at up to 1",
        ),
    ] {
        client.batch_execute(damage).await.expect("planted");
        let found = audit().await;
        let is_found =
            |finding: &Finding| finding.kind == FindingKind::Virtual && finding.text.contains(says);
        assert!(found.iter().any(is_found), "{says}: {found:?}");
    }
    let refused = client.batch_execute("UPDATE virtual_entries SET position = 2");
    assert!(refused.await.is_err());
}
