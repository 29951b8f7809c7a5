//! Stores of all kinds are copied over every database, killed on the way, disturbed and damaged.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gesta::{Database, Options};
use gesta_copy::{Copy, Report, Settings, Step};
use gesta_core::backend::RunMode;
use gesta_core::{
    AllFrom, Append, DeleteKind, DeleteStream, ErrorKind, EventData, EventStore, EventStoreExt,
    EventType, ExpectedRevision, Incarnation, ReadAll, RecordedEvent, Result, SetStreamMetadata,
    StreamAppend, StreamId, StreamMetadata, Tag, Tags,
};
use gesta_kit::faulty::Random;
use gesta_rig::{fresh_schema, shared};

fn stream(name: &str) -> StreamId {
    StreamId::new(name).unwrap()
}

fn event(event_type: &str, data: String, tags: &[&str]) -> EventData {
    let mut made = EventData::json(EventType::new(event_type).unwrap(), data);
    let tags = tags.iter().map(|tag| Tag::new(*tag).unwrap());
    made.tags = Tags::new(tags.collect::<Vec<_>>()).unwrap();
    made.with_metadata("{\"by\":\"x\"}")
}

/// Fills a store with events of all kinds: tags, links, large and empty payloads, metadata, deletes, streams that began
/// again, tombstones, hidden and scavenged beginnings, consumer groups with parked events.
async fn fill(url: &str, events: usize) {
    let store = Options::creating().open_database(url).await.unwrap();
    let append = async |name: &str, events: Vec<EventData>| {
        let any = ExpectedRevision::Any;
        store.append_to(name, any, events).await.unwrap();
    };
    for n in 0..events {
        let name = format!("cart-{}", n % 37);
        let tags: &[&str] = if n % 3 == 0 { &["red", "x:1"] } else { &[] };
        let data = format!("{{\"n\":{n}}}");
        append(
            &name,
            vec![event(["added", "moved", "gone"][n % 3], data, tags)],
        )
        .await;
    }
    let both = Append {
        streams: ["pair-1", "pair-2"]
            .map(|name| StreamAppend {
                stream: stream(name),
                expected: ExpectedRevision::NoStream,
                events: vec![event("paired", "{}".into(), &["both"])],
            })
            .into(),
        conditions: Vec::new(),
    };
    // A store with several logs takes streams of one log only.
    if store.info().await.unwrap().logs == 1 {
        store.append(both).await.unwrap();
    }
    let large = EventData::binary(EventType::new("large").unwrap(), vec![7; 300_000]);
    append(
        "large-1",
        vec![
            large.clone(),
            EventData::binary(EventType::new("empty").unwrap(), ""),
        ],
    )
    .await;
    let link = EventData::binary(EventType::new("$>").unwrap(), "2@cart-1");
    append("links-1", vec![link.clone()]).await;
    append(
        "$persistentsubscriptionconfig-cart-1::readers",
        vec![event("$GroupConfigured", "{}".into(), &[])],
    )
    .await;
    append("$persistentsubscription-cart-1::readers-parked", vec![link]).await;
    append(
        "$persistentsubscriptionconfig-cart-1::gone",
        vec![event("$GroupConfigured", "{}".into(), &[])],
    )
    .await;
    for (name, json) in [
        ("cart-2", r#"{"$tb":3,"owner":"x"}"#),
        ("cart-3", r#"{"$maxCount":2}"#),
        ("cart-4", r#"{"$tb":1000}"#),
        ("never", r#"{"$maxAge":7}"#),
    ] {
        let set = SetStreamMetadata {
            stream: stream(name),
            expected: ExpectedRevision::Any,
            metadata: StreamMetadata::parse(json).unwrap(),
        };
        store.set_stream_metadata(set).await.unwrap();
    }
    let delete = async |name: &str, kind| {
        let request = DeleteStream {
            stream: stream(name),
            expected: ExpectedRevision::Any,
            kind,
        };
        store.delete_stream(request).await.unwrap();
    };
    delete("cart-5", DeleteKind::Soft).await;
    let group = "$persistentsubscriptionconfig-cart-1::gone";
    delete(group, DeleteKind::Soft).await;
    delete("cart-6", DeleteKind::Soft).await;
    append("cart-6", vec![event("again", "{}".into(), &["red"])]).await;
    delete("cart-7", DeleteKind::Tombstone).await;
    delete("nobody", DeleteKind::Tombstone).await;
    store.scavenge(RunMode::Real, |_| ()).await.unwrap();
    // Hidden, and not scavenged.
    delete("cart-8", DeleteKind::Soft).await;
    append("last-1", vec![event("last", "{}".into(), &[])]).await;
    store.shutdown().await.unwrap();
}

/// What users see of a store: every event with its log left out, each stream, its metadata and whether it is closed.
#[derive(PartialEq, Debug)]
struct Seen {
    all: Vec<RecordedEvent>,
    streams: BTreeMap<String, String>,
}

fn without_place(event: &RecordedEvent) -> RecordedEvent {
    RecordedEvent {
        log: gesta_core::LogId(0),
        position: gesta_core::Position(0),
        ..event.clone()
    }
}

async fn seen(url: &str) -> Seen {
    let store = Options::default().open_database(url).await.unwrap();
    let events = store.read_everything().await.unwrap();
    let mut all: Vec<_> = events.iter().map(without_place).collect();
    all.sort_by(|a, b| (a.stream.as_str(), a.revision).cmp(&(b.stream.as_str(), b.revision)));
    let mut streams = BTreeMap::new();
    let mut names: Vec<String> = all
        .iter()
        .map(|event| event.stream.as_str().to_owned())
        .collect();
    names.extend(["never", "nobody", "cart-4", "cart-5", "cart-7"].map(str::to_owned));
    for name in names {
        let read = match store.read_whole_stream(name.as_str()).await {
            Ok(events) => events
                .iter()
                .map(|event| event.revision.0)
                .collect::<Vec<_>>(),
            Err(error) => vec![match error.kind() {
                ErrorKind::StreamNotFound(_) => 1_000_001,
                ErrorKind::StreamTombstoned(_) => 1_000_002,
                _ => panic!("{name}: {error}"),
            }],
        };
        let metadata = match store.stream_metadata(stream(&name)).await {
            Ok(found) => String::from_utf8_lossy(found.metadata.json()).into_owned(),
            Err(error) => error.to_string(),
        };
        streams.insert(name, format!("{read:?} {metadata}"));
    }
    store.shutdown().await.unwrap();
    Seen { all, streams }
}

async fn is_healthy(url: &str) {
    let database = Database::open(url, &Options::default()).await.unwrap();
    let report = database.verify(|_| ()).await.unwrap();
    assert!(report.is_healthy(), "{url}: {report:?}");
    database.close().await;
}

fn settings(logs: Option<u16>, batch_rows: usize) -> Settings {
    Settings { logs, batch_rows }
}

async fn copy(from: &str, to: &str, settings: Settings) -> Result<Report> {
    let mut copy = Copy::open(from, to, settings).await?;
    loop {
        match copy.step().await {
            Ok(Step::Copied(_)) => {}
            Ok(Step::Written) => return copy.finish(|_| ()).await,
            Err(error) => {
                copy.close().await;
                return Err(error);
            }
        }
    }
}

fn sqlite(home: &Path, name: &str) -> String {
    format!("sqlite:{}", home.join(name).display())
}

fn postgres() -> Option<String> {
    let url = shared()?.create_database(&fresh_schema()).unwrap();
    Some(format!("{url}?sslmode=disable"))
}

/// The part of a digest that does not depend on places.
fn content(report: &Report) -> String {
    report.digest.rsplit_once('-').unwrap().0.to_owned()
}

async fn incarnation(url: &str) -> Incarnation {
    let database = Database::open(url, &Options::default()).await.unwrap();
    let incarnation = database.snapshot().await.unwrap().incarnation;
    database.close().await;
    incarnation
}

/// The incarnation of a copy that has another one begins after that of its source, as after a restore: it tells its
/// time, so places of groups that were stored without an incarnation are not believed.
async fn follows(source: &str, target: &str) {
    let (source, target) = (incarnation(source).await, incarnation(target).await);
    assert!(target.begun().is_some(), "{target:?}");
    assert!(target.positions_from() > source.positions_from());
}

/// Goal: everything survives SQLite, PostgreSQL, several PostgreSQL with another number of logs, and the way back; and
/// every store on the way keeps all promises that data can show.
#[tokio::test(flavor = "multi_thread")]
async fn everything_survives_every_database() {
    let home = tempfile::tempdir().unwrap();
    let first = sqlite(home.path(), "first.db");
    fill(&first, 600).await;
    let store = Options::default().open_database(&first).await.unwrap();
    store.switch_virtual_streams(true).await.unwrap();
    let page = store
        .read_all(ReadAll::forwards().limit(100))
        .await
        .unwrap();
    store.shutdown().await.unwrap();
    let expected = seen(&first).await;

    let again = sqlite(home.path(), "again.db");
    let report = copy(&first, &again, settings(None, 70)).await.unwrap();
    // Virtual streams are made again, and can have other revisions: no checkpoint may pass events over.
    assert!(report.positions_kept && !report.checkpoints_kept && report.virtual_streams);
    assert_eq!(seen(&again).await, expected);
    is_healthy(&again).await;
    let store = Options::default().open_database(&again).await.unwrap();
    let mut request = ReadAll::forwards();
    request.from = AllFrom::Checkpoint(page.next.clone());
    let error = store.read_all(request).await.expect_err("checkpoint");
    assert!(
        matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)),
        "{error}"
    );
    let category = store.read_whole_stream("$ce-cart").await.unwrap();
    assert!(category.len() > 100);
    store.switch_virtual_streams(false).await.unwrap();
    store.shutdown().await.unwrap();
    follows(&first, &again).await;

    // Without virtual streams a checkpoint of the source goes on in the target.
    let plain = sqlite(home.path(), "plain.db");
    let kept = copy(&again, &plain, settings(None, 70)).await.unwrap();
    assert!(kept.positions_kept && kept.checkpoints_kept && !kept.virtual_streams);
    let store = Options::default().open_database(&again).await.unwrap();
    let page = store
        .read_all(ReadAll::forwards().limit(100))
        .await
        .unwrap();
    store.shutdown().await.unwrap();
    let store = Options::default().open_database(&plain).await.unwrap();
    let mut request = ReadAll::forwards();
    request.from = AllFrom::Checkpoint(page.next.clone());
    let rest = store.read_all(request).await.unwrap();
    assert!(rest.events[0].position > page.events[99].position);
    store.shutdown().await.unwrap();

    let (Some(one), Some(two), Some(three)) = (postgres(), postgres(), postgres()) else {
        return;
    };
    let on_postgres = copy(&first, &one, settings(None, 70)).await.unwrap();
    assert_eq!(on_postgres.digest, report.digest);
    assert_eq!(seen(&one).await, expected);
    is_healthy(&one).await;

    let several = format!("{two} {three}");
    let on_several = copy(&one, &several, settings(Some(4), 50)).await.unwrap();
    assert_eq!(on_several.logs, (1, 4));
    assert!(!on_several.positions_kept && !on_several.checkpoints_kept);
    assert_eq!(on_several.groups_without_place, ["cart-1::readers"]);
    assert_eq!(content(&on_several), content(&report));
    assert_eq!(seen(&several).await, expected);
    is_healthy(&several).await;
    follows(&one, &several).await;

    let back = sqlite(home.path(), "back.db");
    let report = copy(&several, &back, settings(None, 1_000)).await.unwrap();
    assert_eq!(content(&report), content(&on_several));
    assert_eq!(seen(&back).await, expected);
    is_healthy(&back).await;
    follows(&several, &back).await;
    // Each store goes on.
    for url in [&one, &several, &back] {
        let store = Options::default().open_database(url).await.unwrap();
        let more = vec![event("added", "{}".into(), &["red"])];
        store
            .append_to("cart-1", ExpectedRevision::StreamExists, more)
            .await
            .unwrap();
        let new = vec![event("begun", "{}".into(), &[])];
        store
            .append_to("new-1", ExpectedRevision::NoStream, new)
            .await
            .unwrap();
        store.shutdown().await.unwrap();
        is_healthy(url).await;
    }
}

/// Goal: a copy that is killed anywhere goes on, a target that is not whole is served by nobody, and in the end nothing
/// is missing or there twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_killed_anywhere_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let first = sqlite(home.path(), "first.db");
    fill(&first, 900).await;
    let expected = seen(&first).await;
    let mut targets = vec![(sqlite(home.path(), "target.db"), None)];
    if let (Some(one), Some(two)) = (postgres(), postgres()) {
        targets.push((format!("{one} {two}"), Some(4)));
    }
    for (target, logs) in targets {
        let seed = std::env::var("GESTA_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or(11);
        eprintln!("GESTA_SEED={seed}");
        let mut random = Random::new(seed);
        let mut kills = 0;
        let mut limit = Duration::from_millis(8);
        loop {
            let one = copy(&first, &target, settings(logs, 20));
            match tokio::time::timeout(random.duration(limit), one).await {
                Ok(Ok(report)) => {
                    assert_eq!(report.events, expected.all.len() as u64);
                    break;
                }
                // What one that was killed holds is given up some time later.
                Ok(Err(error)) => {
                    assert!(error.is_retryable(), "{error}");
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    continue;
                }
                Err(_) => kills += 1,
            }
            limit += limit / 10;
            match Database::open(&target, &Options::default()).await {
                // It was killed before it had written anything, or after its end.
                Ok(database) => {
                    database.close().await;
                    match seen(&target).await {
                        all if all == expected => break,
                        begun => assert!(begun.all.is_empty(), "{begun:?}"),
                    }
                }
                Err(error) => {
                    let is_told =
                        matches!(error.kind(), ErrorKind::Schema(_)) || error.is_retryable();
                    assert!(is_told, "{error}");
                }
            }
        }
        assert!(kills > 3, "{kills}");
        assert_eq!(seen(&target).await, expected);
        is_healthy(&target).await;
    }
}

/// Runs statements in a PostgreSQL database.
async fn execute(url: &str, statements: &[&str]) {
    let connected = tokio_postgres::connect(url, tokio_postgres::NoTls).await;
    let (client, connection) = connected.unwrap();
    let connection = tokio::spawn(connection);
    for statement in statements {
        client.batch_execute(statement).await.unwrap();
    }
    drop(client);
    connection.await.unwrap().unwrap();
}

/// Goal: a copy that was compared counts as compared only as long as every database still has all of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_has_lost_batches_since_it_was_compared_gets_them_again() {
    let Some(server) = shared() else { return };
    let home = tempfile::tempdir().unwrap();
    let first = sqlite(home.path(), "first.db");
    fill(&first, 300).await;
    let names = [fresh_schema(), fresh_schema()];
    let urls = names
        .clone()
        .map(|name| server.create_database(&name).unwrap() + "?sslmode=disable");
    let target = urls.join(" ");
    let mut begun = Copy::open(&first, &target, settings(Some(4), 50))
        .await
        .unwrap();
    for _ in 0..4 {
        assert!(matches!(begun.step().await.unwrap(), Step::Copied(_)));
    }
    begun.close().await;
    let earlier = format!("{}_earlier", names[1]);
    let keep = format!("CREATE DATABASE {earlier} TEMPLATE {}", names[1]);
    let admin = server.url().to_owned();
    execute(&admin, &[&keep]).await;
    let mut begun = Copy::open(&first, &target, settings(Some(4), 50))
        .await
        .unwrap();
    while let Step::Copied(_) = begun.step().await.unwrap() {}
    begun.close().await;
    let compared = r#"UPDATE gesta.copying SET state = replace(state, '"is_verified":false', '"is_verified":true')"#;
    execute(&urls[0], &[compared]).await;
    let lose = format!("DROP DATABASE {}", names[1]);
    let restore = format!("ALTER DATABASE {earlier} RENAME TO {}", names[1]);
    execute(&admin, &[&lose, &restore]).await;

    copy(&first, &target, settings(Some(4), 50)).await.unwrap();
    assert_eq!(seen(&target).await, seen(&first).await);
    is_healthy(&target).await;
}

/// What happened: of two databases one was opened, and then set back to the empty store that it was before the copy. It
/// has no mark, so it was taken for one that was opened, and the store was opened without what it had held. Goal: such
/// a target is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_set_back_to_before_the_copy_is_not_taken_for_an_opened_one() {
    let Some(server) = shared() else { return };
    let home = tempfile::tempdir().unwrap();
    let first = sqlite(home.path(), "first.db");
    fill(&first, 100).await;
    let names = [fresh_schema(), fresh_schema()];
    let urls = names
        .clone()
        .map(|name| server.create_database(&name).unwrap() + "?sslmode=disable");
    let target = urls.join(" ");
    gesta::schema::create(&target, 4).await.unwrap();
    let earlier = format!("{}_earlier", names[0]);
    let keep = format!("CREATE DATABASE {earlier} TEMPLATE {}", names[0]);
    let admin = server.url().to_owned();
    execute(&admin, &[&keep]).await;
    let full = "CREATE FUNCTION gesta.refuse() RETURNS trigger LANGUAGE plpgsql AS \
                'BEGIN RAISE EXCEPTION ''the disk is full'' USING errcode = ''53100''; END'; \
                CREATE TRIGGER refuse BEFORE UPDATE OF incarnation ON gesta.store FOR EACH ROW \
                EXECUTE FUNCTION gesta.refuse()";
    execute(&urls[1], &[full]).await;
    // Without a number of logs: the target has one already, and is not made when the copy is repeated.
    let error = copy(&first, &target, settings(None, 50))
        .await
        .expect_err("the disk is full");
    assert!(error.to_string().contains("the disk is full"), "{error}");
    execute(&urls[1], &["DROP TRIGGER refuse ON gesta.store"]).await;
    let opened = format!("{}_opened", names[0]);
    let aside = format!("ALTER DATABASE {} RENAME TO {opened}", names[0]);
    let restore = format!("ALTER DATABASE {earlier} RENAME TO {}", names[0]);
    execute(&admin, &[&aside, &restore]).await;
    let error = copy(&first, &target, settings(None, 50))
        .await
        .expect_err("set back");
    assert!(error.to_string().contains("has lost what"), "{error}");

    // With what it had, the copy is whole.
    let aside = format!("ALTER DATABASE {} RENAME TO {earlier}", names[0]);
    let restore = format!("ALTER DATABASE {opened} RENAME TO {}", names[0]);
    execute(&admin, &[&aside, &restore]).await;
    copy(&first, &target, settings(None, 50)).await.unwrap();
    assert_eq!(seen(&target).await, seen(&first).await);
}

/// Runs statements on a file whose copy was left, past what protects it.
fn damage(url: &str, sql: &str) {
    let file = rusqlite::Connection::open(url.strip_prefix("sqlite:").unwrap()).unwrap();
    let protect = "SELECT group_concat(sql || ';', ' ') FROM sqlite_schema WHERE name LIKE 'events_are_not_%'";
    let protect: String = file.query_row(protect, [], |row| row.get(0)).unwrap();
    let free = "DROP TRIGGER events_are_not_updated; DROP TRIGGER events_are_not_deleted";
    file.execute_batch(free).unwrap();
    file.execute_batch(sql).unwrap();
    file.execute_batch(&protect).unwrap();
}

/// Goal: what was damaged, cut off or written by somebody else never looks whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_not_the_copy_stays_closed() {
    let home = tempfile::tempdir().unwrap();
    let first = sqlite(home.path(), "first.db");
    fill(&first, 200).await;
    for (n, (sql, why)) in [
        (
            "UPDATE events SET data = x'00' WHERE position = 20",
            "damaged",
        ),
        ("DELETE FROM events WHERE position = 20", "does not show"),
        (
            "DELETE FROM events WHERE position > 150",
            "begin with an empty target",
        ),
        (
            "INSERT INTO tags (tag, position) VALUES ('more', 20)",
            "index of tags",
        ),
        (
            "INSERT INTO scavenges (stream, floor_revision, floor_position) VALUES (1, 1, 1)",
            "does not show",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let target = sqlite(home.path(), &format!("{n}.db"));
        let mut begun = Copy::open(&first, &target, settings(None, 50))
            .await
            .unwrap();
        while let Step::Copied(_) = begun.step().await.unwrap() {}
        begun.close().await;
        damage(&target, sql);
        let error = copy(&first, &target, settings(None, 50))
            .await
            .expect_err(sql);
        assert!(error.to_string().contains(why), "{sql}: {error}");
        let opened = Database::open(&target, &Options::default()).await;
        let error = opened.expect_err("closed").to_string();
        assert!(error.contains("gesta copy"), "{error}");
    }
    // Somebody else appends in the middle.
    let target = sqlite(home.path(), "disturbed.db");
    let mut begun = Copy::open(&first, &target, settings(None, 50))
        .await
        .unwrap();
    begun.step().await.unwrap();
    begun.close().await;
    damage(
        &target,
        "INSERT INTO events SELECT position + 1000, log, stream, revision + 1000, event_id, type, created, content_type, \
         writer, checksum, tags, metadata, data FROM events ORDER BY position DESC LIMIT 1",
    );
    let error = copy(&first, &target, settings(None, 50))
        .await
        .expect_err("disturbed");
    assert!(
        error.to_string().contains("something else writes"),
        "{error}"
    );
}

/// What happened: a copy that was killed while it made its target left a file without tables, and could not go on.
/// Goal: such a file is a target like none.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_tables_is_an_empty_target() {
    let home = tempfile::tempdir().unwrap();
    let source = sqlite(home.path(), "source.db");
    fill(&source, 100).await;
    std::fs::write(home.path().join("target.db"), "").unwrap();
    let target = sqlite(home.path(), "target.db");
    let copied = copy(&source, &target, settings(None, 50)).await;
    copied.expect("whole");
}

/// Goal: a target with events is refused, and a copy goes on only with the source with which it was begun.
#[tokio::test(flavor = "multi_thread")]
async fn other_targets_and_sources_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let (first, second) = (
        sqlite(home.path(), "first.db"),
        sqlite(home.path(), "second.db"),
    );
    fill(&first, 200).await;
    fill(&second, 100).await;
    let refused = async |from: &str, to: &str, logs, why: &str| {
        let error = copy(from, to, settings(logs, 50)).await.expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
    };
    refused(&first, &second, None, "must be empty").await;
    refused(&first, &first, None, "another store").await;
    refused(&first, "sqlite::memory:", None, "must be a file").await;
    refused(&first, "http://127.0.0.1:1", None, "").await;
    let target = sqlite(home.path(), "target.db");
    refused(&first, &target, Some(4), "logs").await;
    let mut begun = Copy::open(&first, &target, settings(None, 50))
        .await
        .unwrap();
    begun.step().await.unwrap();
    // Two at once.
    let busy = Copy::open(&second, &target, settings(None, 50)).await;
    assert!(busy.expect_err("busy").is_retryable());
    begun.close().await;
    refused(&second, &target, None, "another store").await;
    let store = Options::default().open_database(&first).await.unwrap();
    store.scavenge(RunMode::Real, |_| ()).await.unwrap();
    let more = vec![event("added", "{}".into(), &[])];
    store
        .append_to("cart-9", ExpectedRevision::Any, more)
        .await
        .unwrap();
    store.shutdown().await.unwrap();
    refused(&first, &target, None, "scavenged").await;
}

/// Appends an event to a store that is not served.
async fn append_one(url: &str) {
    let store: Arc<_> = Options::default().open_database(url).await.unwrap();
    let more = vec![event("added", "{}".into(), &[])];
    store
        .append_to("cart-1", ExpectedRevision::Any, more)
        .await
        .unwrap();
    store.shutdown().await.unwrap();
}

async fn is_closed(url: &str) {
    let opened = Database::open(url, &Options::default()).await;
    let error = opened.expect_err("closed").to_string();
    assert!(error.contains("gesta copy"), "{error}");
}

/// Goal: an empty store can be copied, and a copy is never opened without what was appended to its source meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_refused_if_its_source_has_grown() {
    let home = tempfile::tempdir().unwrap();
    let empty = sqlite(home.path(), "empty.db");
    gesta::schema::create(&empty, 1).await.unwrap();
    let copied = copy(
        &empty,
        &sqlite(home.path(), "copied.db"),
        settings(None, 50),
    )
    .await;
    assert_eq!(copied.unwrap().events, 0);
    let (first, target) = (
        sqlite(home.path(), "first.db"),
        sqlite(home.path(), "target.db"),
    );
    fill(&first, 100).await;
    let mut begun = Copy::open(&first, &target, settings(None, 30))
        .await
        .unwrap();
    begun.step().await.unwrap();
    begun.close().await;
    append_one(&first).await;
    for _ in 0..2 {
        let error = copy(&first, &target, settings(None, 30))
            .await
            .expect_err("grown");
        assert!(error.to_string().contains("1 events were"), "{error}");
        is_closed(&target).await;
    }
}

/// Copies all files of a folder, as whoever sets a store back with all that lies beside it.
fn copy_files(from: &Path, to: &Path) {
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// What happened: a copy that went on compared where the source ends, and not what it has there. A source that was set
/// back to a copy of its file, and appended to until it ended at the same position, became a mixture of both. Goal: it
/// is refused, whether it was set back before or after what was copied.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_refused_if_its_source_was_set_back() {
    for copied in [5, 1] {
        let [home, earlier, elsewhere] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        let first = sqlite(home.path(), "first.db");
        let target = sqlite(elsewhere.path(), "target.db");
        gesta::schema::create(&first, 1).await.unwrap();
        for _ in 0..60 {
            append_one(&first).await;
        }
        copy_files(home.path(), earlier.path());
        for _ in 0..60 {
            append_one(&first).await;
        }
        let mut begun = Copy::open(&first, &target, settings(None, 20))
            .await
            .unwrap();
        for _ in 0..copied {
            begun.step().await.unwrap();
        }
        begun.close().await;
        copy_files(earlier.path(), home.path());
        for _ in 0..60 {
            append_one(&first).await;
        }
        let error = copy(&first, &target, settings(None, 20))
            .await
            .expect_err("set back");
        assert!(error.to_string().contains("was set back"), "{error}");
        is_closed(&target).await;
    }
}

/// Goal: what is appended to a source in use is noticed while it is copied, and at the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_in_use_is_noticed() {
    let (Some(first), Some(early), Some(late)) = (postgres(), postgres(), postgres()) else {
        return;
    };
    fill(&first, 60).await;
    // While it is copied: the second batch is the first after which the source is looked at again.
    let mut begun = Copy::open(&first, &early, settings(None, 10))
        .await
        .unwrap();
    append_one(&first).await;
    let error = begun.step().await.expect_err("grown");
    assert!(error.to_string().contains("1 events were"), "{error}");
    begun.close().await;
    // At the end.
    let mut begun = Copy::open(&first, &late, settings(None, 10)).await.unwrap();
    while let Step::Copied(_) = begun.step().await.unwrap() {}
    append_one(&first).await;
    let error = begun.finish(|_| ()).await.expect_err("grown");
    assert!(error.to_string().contains("1 events were"), "{error}");
    for target in [&early, &late] {
        is_closed(target).await;
    }
}

/// Goal: a program that is connected to the target would not notice the mark, so the copy does not begin.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_served_is_refused() {
    let (Some(first), Some(target)) = (postgres(), postgres()) else {
        return;
    };
    fill(&first, 10).await;
    let served = Options::creating().open_database(&target).await.unwrap();
    let refused = Copy::open(&first, &target, settings(None, 10)).await;
    let error = refused.expect_err("served");
    assert!(error.to_string().contains("other programs"), "{error}");
    // It is not marked: it takes an event.
    let event = vec![event("added", "{}".into(), &[])];
    served
        .append_to("cart-1", ExpectedRevision::Any, event)
        .await
        .unwrap();
    served.shutdown().await.unwrap();
    let refused = copy(&first, &target, settings(None, 10)).await;
    let error = refused.expect_err("used").to_string();
    assert!(
        error.contains("must be empty") && error.contains("gesta verify"),
        "{error}"
    );
}
