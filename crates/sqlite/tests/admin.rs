//! Scavenging, backup, incarnations, migration, and the audit of damaged files.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod common;

use common::{Author, LOG, event, open, read_all, stream, verify};
use gesta_core::backend::{Backend, LoadRequest, Purpose, RunMode};
use gesta_core::{Position, Revision, Timestamp, Visibility};
use gesta_sql::verify::FindingKind;
use gesta_sqlite::{SqliteBackend, SqliteConfig};
use rusqlite::Connection;

fn from(revision: u64) -> Visibility {
    Visibility {
        from: Revision(revision),
        created_from: None,
    }
}

async fn filled(backend: &SqliteBackend, events: usize) -> Author {
    let mut author = Author::new(backend).await;
    author.tick = 1_000;
    let events: Vec<_> = (0..events)
        .map(|number| {
            event(&format!("s-{}", number % 4), "T", "0123456789")
                .tagged(&["all", &format!("n:{number}")])
        })
        .collect();
    author.store(&events).await;
    author
}

#[tokio::test]
async fn scavenging_removes_what_is_hidden() {
    let home = tempfile::tempdir().expect("dir");
    let backend = open(&home.path().join("gesta.db"));
    let author = filled(&backend, 10_000).await;
    let row = author.streams[&stream("s-1")].0;

    let dry = backend
        .remove_hidden(LOG, row, from(1_500), RunMode::Dry)
        .await
        .expect("counts");
    assert_eq!((dry.events, dry.payload_bytes), (1_500, 1_500 * (10 + 13)));
    assert_eq!(read_all(&backend).await.len(), 10_000);
    let real = backend
        .remove_hidden(LOG, row, from(1_500), RunMode::Real)
        .await
        .expect("removes");
    assert_eq!(real, dry);
    assert_eq!(read_all(&backend).await.len(), 8_500);
    let again = backend
        .remove_hidden(LOG, row, from(1_500), RunMode::Real)
        .await
        .expect("removes");
    assert_eq!(again.events, 0);
    let report = verify(&backend).await;
    assert!(report.is_healthy(), "{:?}", report.findings);
    assert_eq!(
        (
            report.logs[0].events,
            report.logs[0].removed,
            report.logs[0].tags
        ),
        (8_500, 1_500, 17_000)
    );
    backend.close().await;
}

/// Goal: whole streams are removed by age, but the last row of the log stays, and the numbers of streams go on.
#[tokio::test]
async fn scavenging_remembers_where_streams_ended() {
    let home = tempfile::tempdir().expect("dir");
    let backend = open(&home.path().join("gesta.db"));
    let mut author = filled(&backend, 10_000).await;
    let row = author.streams[&stream("s-3")].0;
    let aged = Visibility {
        from: Revision(0),
        created_from: Some(Timestamp(i64::MAX)),
    };
    let removed = backend
        .remove_hidden(LOG, row, aged, RunMode::Real)
        .await
        .expect("removes");
    assert_eq!(removed.events, 2_499);
    let row = author.streams[&stream("s-2")].0;
    assert_eq!(
        backend
            .remove_hidden(LOG, row, aged, RunMode::Real)
            .await
            .expect("removes")
            .events,
        2_500
    );
    let request = LoadRequest {
        streams: vec![stream("s-2"), stream("s-3")],
        types: vec![],
    };
    let loaded = backend
        .load(LOG, request, Purpose::Read)
        .await
        .expect("loads");
    let heads: Vec<_> = loaded
        .streams
        .iter()
        .map(|stream| stream.head.expect("exists"))
        .collect();
    assert_eq!(
        (heads[0].last, heads[0].position, heads[0].id),
        (Revision(2_499), Position(9_999), None)
    );
    assert_eq!(
        (heads[1].last, heads[1].position),
        (Revision(2_499), Position(10_000))
    );
    assert!(heads[1].id.is_some(), "still stored");
    author
        .store(&[event("s-2", "T", "again"), event("s-3", "T", "again")])
        .await;
    let report = verify(&backend).await;
    assert!(report.is_healthy(), "{:?}", report.findings);
    backend.close().await;
}

/// What happened: a restore gave its copy a new incarnation, which stayed in the write-ahead log of the copy because
/// another program had it open, and was lost; and a backup that a command was changing when it was killed was refused
/// for ever. What holds: what is not in the file is told, and the same command finishes it.
#[tokio::test]
async fn what_a_command_leaves_of_a_backup_is_finished_by_it() {
    let home = tempfile::tempdir().expect("dir");
    let backend = open(&home.path().join("gesta.db"));
    filled(&backend, 100).await;
    let old = backend.history().incarnation;
    let backup = home.path().join("backup.db");
    backend.backup(&backup).await.expect("copies");
    backend.close().await;
    let migrate = |config: &SqliteConfig| SqliteBackend::migrate(config).map(drop);
    let begin = |config: &SqliteConfig| SqliteBackend::new_incarnation(config).map(drop);
    type Command = fn(&SqliteConfig) -> gesta_core::Result<()>;
    for (name, command) in [("migrate", migrate as Command), ("begin", begin)] {
        let path = home.path().join(format!("{name}.db"));
        std::fs::copy(&backup, &path).expect("copies");
        // Stands for an indexer, or for another backup.
        let other = Connection::open(&path).expect("opens");
        let count = "SELECT count(*) FROM events";
        let count: i64 = other.query_row(count, [], |row| row.get(0)).expect("reads");
        assert_eq!(count, 100);
        let error = command(&SqliteConfig::file(&path)).expect_err("not in the file");
        assert!(
            error
                .to_string()
                .contains("another program has the file open"),
            "{error}"
        );
        // The same files, as a killed command leaves them.
        let left = home.path().join(format!("{name}-left.db"));
        for suffix in ["", "-wal", "-end"] {
            let of = |path: &std::path::Path| format!("{}{suffix}", path.display());
            std::fs::copy(of(&path), of(&left)).expect("copies");
        }
        let config = SqliteConfig::file(&left);
        let error = SqliteBackend::open(config.clone()).map(drop);
        let error = error.expect_err("not finished").to_string();
        assert!(error.contains("give that command again"), "{error}");
        command(&config).expect("finishes it");
        drop(other);
        if name == "migrate" {
            let still = SqliteBackend::open(config.clone()).map(drop);
            let error = still.expect_err("a backup").to_string();
            assert!(error.contains("gesta restore"), "{error}");
            continue;
        }
        let store = open(&left);
        assert_ne!(store.history().incarnation, old);
        assert_eq!(read_all(&store).await.len(), 100);
        assert!(verify(&store).await.is_healthy());
        store.close().await;
    }
}

/// What happened: the mark of an open store was taken out of the file before what the write-ahead log alone held was in
/// it. A process that was killed between left a file that said that it was whole, and when it was moved alone, the
/// newest events were gone.
#[tokio::test]
async fn a_store_is_marked_as_closed_once_everything_is_in_the_file() {
    let home = tempfile::tempdir().expect("dir");
    let path = home.path().join("gesta.db");
    let backend = open(&path);
    filled(&backend, 100).await;
    // With another program that has it open, the last step is not done: nobody removes the write-ahead log.
    let other = Connection::open(&path).expect("opens");
    let count = "SELECT count(*) FROM events";
    let of = |conn: &Connection| conn.query_row(count, [], |row| row.get::<_, i64>(0));
    assert_eq!(of(&other), Ok(100));
    backend.close().await;
    let alone = home.path().join("alone.db");
    std::fs::copy(&path, &alone).expect("copies");
    assert_ne!(std::fs::read(&alone).expect("reads")[60..64], [0; 4]);
    let alone = Connection::open(&alone).expect("opens");
    assert_eq!(of(&alone), Ok(100));
    drop(other);
}

/// Goal: a store that comes to the place while a restore goes on keeps what belongs to it.
#[tokio::test]
async fn a_restore_leaves_a_store_alone_that_has_come_meanwhile() {
    let home = tempfile::tempdir().expect("dir");
    let backend = open(&home.path().join("gesta.db"));
    filled(&backend, 10).await;
    let backup = home.path().join("backup.db");
    backend.backup(&backup).await.expect("copies");
    backend.close().await;
    let to = home.path().join("new.db");
    let restoring = gesta_sqlite::Restoring::begin(&backup, &to, &|| false).expect("copies");
    let other = open(&to);
    filled(&other, 1).await;
    let error = restoring.finish().expect_err("exists").to_string();
    assert!(error.contains("exists"), "{error}");
    assert!(
        home.path().join("new.db-end").exists(),
        "the note of the other store"
    );
    other.close().await;
}

#[tokio::test]
async fn a_backup_is_a_whole_store_and_never_overwrites() {
    let home = tempfile::tempdir().expect("dir");
    let path = home.path().join("gesta.db");
    let backend = open(&path);
    let mut author = filled(&backend, 1_000).await;
    let copy = home.path().join("copy.db");
    backend.backup(&copy).await.expect("copies");
    author.store(&[event("s-1", "T", "later")]).await;
    let error = backend.backup(&copy).await.expect_err("exists");
    assert!(error.to_string().contains("must be a new file"), "{error}");
    assert!(
        backend
            .backup(home.path().join("no/such/dir.db"))
            .await
            .is_err()
    );
    let left: Vec<_> = std::fs::read_dir(home.path())
        .expect("lists")
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .filter(|name| name.contains("unfinished"))
        .collect();
    assert!(left.is_empty(), "{left:?}");

    let bytes = std::fs::read(&copy).expect("reads");
    let config = SqliteConfig::file(&copy);
    // Somebody puts it in the place of a store by `cp`, and leaves what lies beside that.
    let wal = home.path().join("copy.db-wal");
    std::fs::write(&wal, "another's").expect("writes");
    for refused in [
        SqliteBackend::open(config.clone()).map(drop),
        SqliteBackend::compact(&config).map(drop),
        SqliteBackend::migrate(&config).map(drop),
        SqliteBackend::new_incarnation(&config).map(drop),
    ] {
        refused.expect_err("beside another log");
    }
    std::fs::remove_file(&wal).expect("removes");
    for refused in [
        SqliteBackend::open(config.clone()).map(drop),
        SqliteBackend::compact(&config).map(drop),
    ] {
        let text = refused.expect_err("no store").to_string();
        assert!(
            text.contains("is a backup") && text.contains("gesta restore"),
            "{text}"
        );
    }
    // A backup of an earlier version is migrated before it is restored.
    SqliteBackend::migrate(&config).expect("nothing to do");
    assert!(std::fs::read(&copy).expect("reads")[60..64] == bytes[60..64]);
    assert!(SqliteBackend::open(config.clone()).is_err(), "still one");
    std::fs::write(&copy, &bytes).expect("writes");

    let mut unmarked = bytes.clone();
    unmarked[60..64].fill(0);
    for (bytes, name) in [(&bytes, "new.db"), (&unmarked, "of-before.db")] {
        let (from, to) = (home.path().join("from.db"), home.path().join(name));
        std::fs::write(&from, bytes).expect("writes");
        let restoring = gesta_sqlite::Restoring::begin(&from, &to, &|| false).expect("copies");
        let new = restoring.incarnation();
        assert_ne!(new, backend.history().incarnation);
        // Whoever takes what a killed restore leaves for the store has one with a life of its own.
        let left = home.path().join("left.db");
        std::fs::copy(restoring.path(), &left).expect("copies");
        restoring.finish().expect("gets its name");
        for path in [&left, &to] {
            let restored = open(path);
            assert_eq!(restored.history().incarnation, new);
            restored.close().await;
        }
        let restored = open(&to);
        assert_eq!(read_all(&restored).await.len(), 1_000);
        assert!(verify(&restored).await.is_healthy());
        restored.close().await;
    }
    let new = SqliteBackend::new_incarnation(&SqliteConfig::file(&copy)).expect("changes");
    let restored = open(&copy);
    assert_eq!(restored.history().incarnation, new);
    assert_ne!(new, backend.history().incarnation);
    restored.close().await;
    backend.close().await;
}

#[tokio::test]
async fn a_store_in_memory_can_be_kept_by_a_backup() {
    let home = tempfile::tempdir().expect("dir");
    let backend = SqliteBackend::open(SqliteConfig::memory()).expect("opens");
    filled(&backend, 100).await;
    backend
        .backup(home.path().join("copy.db"))
        .await
        .expect("copies");
    let copy = home.path().join("copy.db");
    SqliteBackend::new_incarnation(&SqliteConfig::file(&copy)).expect("becomes a store");
    let restored = open(&copy);
    assert_eq!(read_all(&restored).await.len(), 100);
    restored.close().await;
}

#[tokio::test]
async fn migration_creates_or_does_nothing_and_refuses_newer_stores() {
    let home = tempfile::tempdir().expect("dir");
    let config = SqliteConfig::file(home.path().join("gesta.db"));
    let done = SqliteBackend::migrate(&config).expect("creates");
    assert_eq!((done.from, done.to), (None, 2));
    assert_eq!(
        SqliteBackend::migrate(&config).expect("nothing").from,
        Some(2)
    );
    SqliteBackend::open(config.clone())
        .expect("opens")
        .close()
        .await;
    Connection::open(home.path().join("gesta.db"))
        .expect("opens")
        .execute_batch("UPDATE store SET schema_version = 3")
        .expect("changes");
    for error in [
        SqliteBackend::migrate(&config).expect_err("newer"),
        SqliteBackend::open(config.clone()).expect_err("newer"),
    ] {
        assert!(
            error.to_string().contains("version 3, newer than 2"),
            "{error}"
        );
    }
    assert!(gesta_sqlite::schema_text().contains("CREATE TABLE events"));
}

const COLUMNS: &str = "position, log, stream, revision, event_id, type, created, content_type, writer, checksum, tags, metadata, data";

/// What must go before anything can be damaged.
const FREE: &str = "DROP TRIGGER events_are_not_updated; DROP TRIGGER events_are_not_deleted; \
                    DROP TRIGGER streams_are_not_updated; DROP TRIGGER tags_are_not_deleted;";

/// Damage to events, streams and tags, and what is found.
const DAMAGED_EVENTS: &[(&str, FindingKind)] = &[
    (
        "DELETE FROM events WHERE position = 4999; DELETE FROM tags WHERE position = 4999;",
        FindingKind::Revision,
    ),
    (
        "DROP INDEX events_by_stream; UPDATE events SET stream = 2 WHERE position = 7;",
        FindingKind::Revision,
    ),
    (
        "UPDATE events SET stream = 77777 WHERE position = 10000;",
        FindingKind::Link,
    ),
    (
        "INSERT INTO streams (id, name, checksum) VALUES (77777, 'ghost', 0);",
        FindingKind::Orphan,
    ),
    (
        "UPDATE events SET data = x'00' WHERE position = 1234;",
        FindingKind::Checksum,
    ),
    ("DELETE FROM tags WHERE position = 77;", FindingKind::Tags),
    (
        "DELETE FROM events WHERE position = 9998; DELETE FROM tags WHERE position = 9998;",
        FindingKind::Position,
    ),
];

/// Damage to the index of virtual streams, and what is found.
const DAMAGED_INDEX: &[(&str, FindingKind)] = &[
    (
        "INSERT INTO virtual_streams VALUES (4, '$ce-s', 2); INSERT INTO virtual_entries VALUES (4, 1, 1); \
         UPDATE virtual_index SET position = 9;",
        FindingKind::Virtual,
    ),
    (
        "INSERT INTO virtual_entries VALUES (4, 0, 1); UPDATE virtual_index SET position = 9;",
        FindingKind::Virtual,
    ),
    (
        "INSERT INTO virtual_streams VALUES (4, '$ce-s', 2); UPDATE virtual_index SET position = 9; \
         INSERT INTO virtual_entries VALUES (4, 0, 2), (4, 1, 1);",
        FindingKind::Virtual,
    ),
    (
        "INSERT INTO virtual_streams VALUES (4, '$ce-s', 1); INSERT INTO virtual_entries VALUES (4, 0, 1);",
        FindingKind::Virtual,
    ),
    (
        "UPDATE virtual_index SET position = 10001;",
        FindingKind::Virtual,
    ),
];

/// Plants damage in a file of its own, and looks for it.
async fn assert_found(damage: &str, kind: FindingKind) {
    let home = tempfile::tempdir().expect("dir");
    let path = home.path().join("gesta.db");
    let backend = open(&path);
    filled(&backend, 10_000).await;
    backend.close().await;
    Connection::open(&path)
        .expect("opens")
        .execute_batch(&format!("{FREE}{damage}"))
        .expect("damages");
    let backend = open(&path);
    let report = verify(&backend).await;
    let kinds: Vec<_> = report.findings.iter().map(|finding| finding.kind).collect();
    assert!(kinds.contains(&kind), "{damage}: {:?}", report.findings);
    backend.close().await;
}

/// Goal: every kind of damage planted in a file is found and named.
#[tokio::test]
async fn planted_damage_is_found() {
    for (damage, kind) in DAMAGED_EVENTS.iter().chain(DAMAGED_INDEX) {
        assert_found(damage, *kind).await;
    }
    let double = format!(
        "CREATE TABLE copy AS SELECT {COLUMNS} FROM events; DROP VIEW events_readable; DROP TABLE events; \
         ALTER TABLE copy RENAME TO events; \
         INSERT INTO events SELECT * FROM events WHERE position = 5000;"
    );
    assert_found(&double, FindingKind::Position).await;
}

/// What happened: a store without the triggers that keep events as they are, or with one of somebody else that each
/// append runs, was said to be healthy.
#[tokio::test]
async fn triggers_that_are_not_those_of_a_store_are_found() {
    for (change, named) in [
        (
            "DROP TRIGGER events_are_not_updated;",
            "events_are_not_updated is missing",
        ),
        (
            "CREATE TRIGGER mine AFTER INSERT ON events BEGIN SELECT 1; END;",
            "\"mine\" of events is not one of a store",
        ),
        (
            "DROP TRIGGER tags_are_not_deleted; CREATE TRIGGER tags_are_not_deleted BEFORE DELETE ON tags WHEN 0 \
             BEGIN SELECT 1; END;",
            "tags_are_not_deleted is not as",
        ),
        (
            "CREATE TRIGGER \"my \"\"own\"\"\" AFTER INSERT ON EVENTS BEGIN SELECT 1; END;",
            "of EVENTS is not one of a store",
        ),
    ] {
        let home = tempfile::tempdir().expect("dir");
        let path = home.path().join("gesta.db");
        let backend = open(&path);
        filled(&backend, 10).await;
        assert!(verify(&backend).await.is_healthy());
        backend.close().await;
        let file = Connection::open(&path).expect("opens");
        file.execute_batch(change).expect("changes");
        drop(file);
        let backend = open(&path);
        let found = verify(&backend).await.findings;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].kind, FindingKind::Schema);
        assert!(found[0].text.contains(named), "{found:?}");
        backend.close().await;
        let (_, cure) = found[0].text.split_once("mends it: ").expect("a cure");
        let file = Connection::open(&path).expect("opens");
        file.execute_batch(cure).expect(cure);
        // What is not of a store is nothing for it to judge.
        let others =
            "CREATE TABLE mine(x); CREATE TRIGGER t AFTER INSERT ON mine BEGIN SELECT 1; END";
        file.execute_batch(others).expect("made");
        drop(file);
        let backend = open(&path);
        let found = verify(&backend).await.findings;
        assert!(found.is_empty(), "{found:?}");
        backend.close().await;
    }
}

/// Goal: a page of the file that was overwritten is noticed, whatever it held, and never a panic.
#[tokio::test]
async fn overwritten_pages_are_noticed() {
    let home = tempfile::tempdir().expect("dir");
    let path = home.path().join("gesta.db");
    let backend = open(&path);
    filled(&backend, 2_000).await;
    backend.close().await;
    let healthy = std::fs::read(&path).expect("reads");
    let pages = healthy.len() / 4_096;
    for page in (1..pages).step_by(7) {
        let mut damaged = healthy.clone();
        damaged[page * 4_096..][..4_096].fill(0x5a);
        std::fs::write(&path, &damaged).expect("writes");
        let Ok(backend) = SqliteBackend::open(SqliteConfig::file(&path)) else {
            continue;
        };
        let mut source = backend.audit().await.expect("opens");
        if let Ok(report) = gesta_sql::verify::audit(&mut source, &mut |_| {}).await {
            assert!(!report.is_healthy(), "page {page}");
        }
        drop(source);
        backend.close().await;
    }
}

/// Goal: a file that belongs to a store is not made a store of its own, also while it is empty.
#[tokio::test]
async fn a_file_beside_a_store_is_no_store() {
    let home = tempfile::tempdir().expect("dir");
    let backend = open(&home.path().join("gesta.db"));
    std::fs::write(home.path().join("gesta.db-journal"), "").expect("writes");
    for name in [
        "gesta.db-wal",
        "gesta.db-shm",
        "gesta.db-end",
        "gesta.db-journal",
        "gesta.db.lock",
    ] {
        let before = std::fs::read(home.path().join(name)).expect("reads");
        let refused = SqliteBackend::open(SqliteConfig::file(home.path().join(name)));
        let error = refused.expect_err(name).to_string();
        assert!(error.contains("belongs to the one at"), "{error}");
        assert_eq!(
            std::fs::read(home.path().join(name)).expect("reads"),
            before
        );
    }
    backend.close().await;
    open(&home.path().join("year-end")).close().await;
}

/// Goal: a file that only a process has, without a name, is not opened, and nothing is made in its place.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_file_without_a_name_is_no_store() {
    use std::os::fd::AsRawFd;
    let home = tempfile::tempdir().expect("dir");
    let path = home.path().join("gesta.db");
    open(&path).close().await;
    let file = std::fs::File::open(&path).expect("opens");
    std::fs::remove_file(&path).expect("removes");
    let before = std::fs::read_dir(home.path()).expect("lists").count();
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    let error = SqliteBackend::open(SqliteConfig::file(name)).expect_err("no name");
    assert!(error.to_string().contains("without a name"), "{error}");
    assert_eq!(
        std::fs::read_dir(home.path()).expect("lists").count(),
        before
    );
}
