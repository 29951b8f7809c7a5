//! The chained insert on a real server: what is stored, what misses, and the traps of the design.

use crate::common::{
    Author, LOG, confirm, direct, draft, end_of, fresh, is_committed, is_missed, open,
};
use futures::future::join_all;
use gesta_core::backend::{Backend, Batch, BatchOutcome, LogSlice, Purpose, RunMode};
use gesta_core::{Direction, ErrorKind, Filter, Position, Revision, Visibility};

async fn everything(backend: &dyn Backend) -> Vec<gesta_core::RecordedEvent> {
    let slice = LogSlice {
        log: LOG,
        after: Position::START,
        to: Position::MAX,
        direction: Direction::Forwards,
        filter: Filter::ALL,
        limit: 10_000,
    };
    backend.read_log(slice).await.expect("reads").events
}

#[tokio::test]
async fn a_batch_comes_back_as_it_was_stored() {
    let Some((backend, _)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let mut tagged = draft("cart-1", "Added");
    tagged.tags = &["red", "größe:{1,\"x\"\\}", "NULL"];
    let first = author.batch(
        &*writer,
        &[
            draft("cart-1", "Added"),
            tagged,
            draft("größe-☃", "Odd 'type'"),
        ],
    );
    assert!(is_committed(&writer.submit(first.clone()).await));
    let second = author.batch(
        &*writer,
        &[draft("cart-1", "Added"), draft("größe-☃", "Added")],
    );
    assert!(is_committed(&writer.submit(second.clone()).await));
    let stored: Vec<_> = first
        .rows
        .iter()
        .chain(&second.rows)
        .map(|row| row.to_recorded(LOG))
        .collect();
    assert_eq!(everything(&backend).await, stored);
    assert_eq!(
        backend.log_end(LOG, Purpose::Read).await.expect("answers"),
        author.end
    );
    assert!(is_committed(&writer.submit(confirm(author.end)).await));
}

#[tokio::test]
async fn only_the_true_end_is_confirmed() {
    let Some((backend, _)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let empty = author.end;
    assert!(is_committed(&writer.submit(confirm(empty)).await));
    author.append(&mut *writer, &[draft("a", "T")]).await;
    let before = author.end;
    author.append(&mut *writer, &[draft("a", "T")]).await;
    let mut other_writer = author.end;
    other_writer.writer.0 ^= 1;
    let mut later = author.end;
    later.position = later.position.next();
    for wrong in [empty, before, other_writer, later] {
        assert!(is_missed(&writer.submit(confirm(wrong)).await), "{wrong:?}");
        let mut stale = author.clone();
        stale.end = wrong;
        assert!(
            is_missed(&stale.append(&mut *writer, &[draft("b", "T")]).await),
            "{wrong:?}"
        );
    }
    assert!(is_committed(&writer.submit(confirm(author.end)).await));
}

#[tokio::test]
async fn batches_in_flight_are_chained_and_miss_together() {
    let Some((backend, _)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let answers: Vec<_> = (0..20)
        .map(|i| {
            let name = format!("s-{}", i % 3);
            let batch = author.batch(&*writer, &[draft(&name, "T"), draft("hot", "T")]);
            writer.submit(batch)
        })
        .collect();
    assert!(join_all(answers).await.iter().all(is_committed));
    // Another process takes the next position.
    let mut other = backend.open_writer(LOG).await.expect("opens");
    let mut theirs = author.clone();
    assert!(is_committed(
        &theirs.append(&mut *other, &[draft("theirs", "T")]).await
    ));
    let answers: Vec<_> = (0..4)
        .map(|_| {
            let batch = author.batch(&*writer, &[draft("ours", "New")]);
            writer.submit(batch)
        })
        .collect();
    assert!(join_all(answers).await.iter().all(is_missed));
    assert_eq!(everything(&backend).await.len(), 41);
    let mut again = theirs.clone();
    assert!(
        is_committed(&again.append(&mut *writer, &[draft("ours", "New")]).await),
        "no name was stored"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_racing_writers_one_wins_each_position() {
    let Some((backend, url)) = fresh().await else {
        return;
    };
    let won = std::sync::atomic::AtomicUsize::new(0);
    let racer = |number: usize| {
        let (backend, won) = (&backend, &won);
        async move {
            let mut writer = backend.open_writer(LOG).await.expect("opens");
            let stream = format!("racer-{number}");
            for round in 0..40 {
                let request = gesta_core::backend::LoadRequest {
                    streams: vec![gesta_core::StreamId::new(stream.as_str()).expect("valid")],
                    types: vec![gesta_core::EventType::new("T").expect("valid")],
                };
                let loaded = backend
                    .load(LOG, request, Purpose::Read)
                    .await
                    .expect("loads");
                let mut author = Author::default();
                author.end = loaded.end;
                author.know(&stream, &loaded, "T");
                match author
                    .append(&mut *writer, &[draft(&stream, "T"), draft(&stream, "T")])
                    .await
                {
                    BatchOutcome::Committed => {
                        won.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                    BatchOutcome::Missed => {}
                    outcome => panic!("round {round}: {outcome:?}"),
                }
            }
        }
    };
    join_all((0..4).map(racer)).await;
    let won = won.into_inner();
    assert!(won > 0);
    let positions: Vec<u64> = everything(&backend)
        .await
        .iter()
        .map(|event| event.position.0)
        .collect();
    assert_eq!(
        positions,
        (1..=won as u64 * 2).collect::<Vec<_>>(),
        "no gap, nothing partial"
    );
    let mut source = open(&url).await.audit_source().await.expect("snapshot");
    let report = gesta_sql::verify::audit(&mut source, &mut |_| {})
        .await
        .expect("audited");
    assert!(report.is_healthy(), "{report:?}");
}

/// Stores the first row of a batch if the last row of the log has the right position, whoever wrote it; tells how many
/// rows were stored.
async fn insert_by_number_alone(client: &tokio_postgres::Client, batch: &Batch) -> u64 {
    let insert = "INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id,
             log, content_type, data, metadata)
         SELECT $1::bigint + 1, $2::bigint, $3::bigint, type, created, writer, checksum, gen_random_uuid(), log, content_type, data, metadata
         FROM events WHERE log = 0 AND position = $1::bigint
           AND $1::bigint = (SELECT max(position) FROM events WHERE log = 0)";
    let row = &batch.rows[0];
    let number = |value: u64| i64::try_from(value).expect("small");
    let after = number(batch.after.position.0);
    let (stream, revision) = (number(row.stream_row.0), number(row.revision.0));
    client
        .execute(insert, &[&after, &stream, &revision])
        .await
        .expect("runs")
}

/// The trap of DESIGN §3.1: our first batch in flight misses because another process appended one
/// event; our second batch, compared by position alone, then finds "its" predecessor and is stored, with a hole in
/// the stream before it. Naming the writer of the predecessor closes it.
#[tokio::test]
async fn a_predecessor_compared_by_number_alone_would_be_a_hole() {
    let Some((backend, url)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    author
        .append(&mut *writer, &[draft("ours", "T"), draft("theirs", "T")])
        .await;
    let mut theirs = author.clone();
    let first = author.batch(&*writer, &[draft("ours", "T")]);
    let second = author.batch(&*writer, &[draft("ours", "T")]);
    let mut other = backend.open_writer(LOG).await.expect("opens");
    assert!(is_committed(
        &theirs.append(&mut *other, &[draft("theirs", "T")]).await
    ));

    let client = direct(&url).await;
    client.batch_execute("BEGIN").await.expect("begun");
    assert_eq!(insert_by_number_alone(&client, &first).await, 0);
    assert_eq!(
        insert_by_number_alone(&client, &second).await,
        1,
        "the hole"
    );
    let stream = i64::try_from(second.rows[0].stream_row.0).expect("small");
    let revisions: Vec<i64> = client
        .query(
            "SELECT revision FROM events WHERE stream = $1 ORDER BY revision",
            &[&stream],
        )
        .await
        .expect("reads")
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(revisions, [0, 2], "revision 1 is missing");
    client.batch_execute("ROLLBACK").await.expect("undone");

    let answers = [writer.submit(first), writer.submit(second)];
    assert!(join_all(answers).await.iter().all(is_missed));
    assert_eq!(end_of(&backend).await, theirs.end.position);
}

/// Scavenging leaves gaps. A writer whose known row is followed by a gap would not collide with
/// anybody; it must miss because its row is not the last.
#[tokio::test]
async fn a_gap_after_the_known_row_is_not_filled() {
    let Some((backend, _)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    author.append(&mut *writer, &[draft("keep", "T")]).await;
    let mut stale = author.clone();
    author
        .append(&mut *writer, &[draft("gone", "T"), draft("keep", "T")])
        .await;
    let all = Visibility {
        from: Revision(1),
        created_from: None,
    };
    let removed = backend
        .remove_hidden(LOG, author.stream_row("gone"), all, RunMode::Real)
        .await;
    assert_eq!(removed.expect("removed").events, 1);
    assert!(is_missed(
        &stale.append(&mut *writer, &[draft("other", "T")]).await
    ));
    assert_eq!(everything(&backend).await.len(), 2);
}

#[tokio::test]
async fn a_dropped_answer_is_stored_all_the_same() {
    let Some((backend, _)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let batch = author.batch(&*writer, &[draft("a", "T")]);
    drop(writer.submit(batch));
    let next = author.batch(&*writer, &[draft("a", "T")]);
    assert!(is_committed(&writer.submit(next).await));
    assert_eq!(end_of(&backend).await, Position(2));
}

#[tokio::test]
async fn what_the_database_refuses_is_told_and_stores_nothing() {
    let Some((backend, url)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let client = direct(&url).await;
    client
        .batch_execute(
            "ALTER TABLE events ADD CONSTRAINT small CHECK (octet_length(data) < 100) NOT VALID;
             CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no way'; END $$;
             CREATE TRIGGER no BEFORE INSERT ON events FOR EACH ROW WHEN (NEW.data = 'bad') EXECUTE FUNCTION no();",
        )
        .await
        .expect("planted");
    let mut author = Author::default();
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    for (data, message) in [("x".repeat(200), "small"), ("bad".to_owned(), "no way")] {
        let mut bad = draft("a", "T");
        bad.data = data.clone().into();
        let outcome = author
            .clone()
            .append(&mut *writer, &[draft("a", "T"), bad])
            .await;
        let BatchOutcome::Refused(error) = outcome else {
            panic!("{outcome:?}")
        };
        assert!(matches!(error.kind(), ErrorKind::Refused(_)));
        assert!(error.to_string().contains(message), "{error}");
        assert!(
            !format!("{error:?}").contains(&data),
            "payload in {error:?}"
        );
    }
    // The writer is as good as new.
    assert!(is_committed(
        &author.append(&mut *writer, &[draft("a", "T")]).await
    ));
    assert_eq!(end_of(&backend).await, Position(2));
}

/// Goal: a database that says that it has stored fewer events than it was given, as where a trigger leaves rows out,
/// has proved nothing about any of them, nor about what was sent after them.
#[tokio::test]
async fn another_number_of_rows_than_was_sent_leaves_the_outcome_unknown() {
    let Some((backend, url)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    author.append(&mut *writer, &[draft("a", "T")]).await;
    let planted = "CREATE FUNCTION omit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
                   CREATE TRIGGER omit BEFORE INSERT ON events FOR EACH ROW WHEN (NEW.data = 'omitted')
                   EXECUTE FUNCTION omit();";
    let client = direct(&url).await;
    client.batch_execute(planted).await.expect("planted");
    let mut omitted = draft("a", "T");
    omitted.data = "omitted".into();
    let first = author.batch(&*writer, &[draft("a", "T"), omitted]);
    let next = author.batch(&*writer, &[draft("a", "T")]);
    let (first, next) = (writer.submit(first), writer.submit(next));
    let BatchOutcome::Unknown(error) = first.await else {
        panic!("a wrong number of rows is a known outcome");
    };
    assert!(
        error.to_string().contains("stored 1 events of 2"),
        "{error}"
    );
    let next = next.await;
    assert!(matches!(next, BatchOutcome::Unknown(_)), "{next:?}");
}

#[tokio::test]
async fn a_batch_that_contradicts_itself_is_not_sent() {
    let Some((backend, _)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let mut batch = (*author.batch(&*writer, &[draft("a", "T")])).clone();
    batch.rows[0].position = Position(5);
    let outcome = writer.submit(std::sync::Arc::new(batch)).await;
    assert!(matches!(outcome, BatchOutcome::Refused(_)), "{outcome:?}");
}

#[tokio::test]
async fn large_and_empty_payloads_fit() {
    let Some((backend, _)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let mut large = draft("a", "T");
    large.data = vec![7; 16 * 1024 * 1024].into();
    let mut empty = draft("a", "T");
    empty.data = bytes::Bytes::new();
    assert!(is_committed(
        &author.append(&mut *writer, &[large, empty]).await
    ));
    let events = everything(&backend).await;
    assert_eq!(events[0].data.len(), 16 * 1024 * 1024);
    assert!(events[1].data.is_empty());
}
