//! A write-ahead log that was deleted after a crash is noticed, and no crash is mistaken for it.
//!
//! What happened: after `kill -9` the newest events are in `gesta.db-wal` alone. Who deleted that file, taking it for
//! rubbish, got an empty store, or an old one, that was opened without a word and gave the same positions to other
//! events. Now the store is refused, with what happened and what to do; and however often the process is killed, a
//! store whose files nobody touched is never refused.

#![allow(clippy::expect_used, reason = "tests")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Author, event, open, read_all, try_open, until_unlocked, verify, whole_log};
use gesta_core::ErrorKind;
use gesta_core::backend::Backend;
use gesta_kit::faulty::Random;
use gesta_sqlite::{SqliteBackend, SqliteConfig};

/// Tells the child where to work, and how long its write-ahead log may be.
const CHILD_HOME: &str = "GESTA_DELETED_WAL_HOME";
const CHILD_WAL_BYTES: &str = "GESTA_DELETED_WAL_BYTES";
/// A length that no write-ahead log reaches here. So nothing of it is copied into the file, however long a child goes
/// on before it is killed.
const NEVER_COPIED: u64 = 4 * 1024 * 1024 * 1024;
/// Kills of one store, one after the other.
const KILLS: usize = 12;

/// Appends until it is killed; tells every position once it is acknowledged.
#[tokio::test]
async fn child() {
    let Ok(home) = std::env::var(CHILD_HOME) else {
        return;
    };
    let mut config = SqliteConfig::file(Path::new(&home).join("gesta.db"));
    config.wal_bytes_max = std::env::var(CHILD_WAL_BYTES)
        .expect("set")
        .parse()
        .expect("a number");
    let backend = SqliteBackend::open(config).expect("opens");
    let mut author = Author::new(&backend).await;
    let mut told = std::fs::File::options()
        .write(true)
        .open("/dev/stderr")
        .expect("opens");
    // Streams of its own: the names of earlier processes are not known here.
    let life = author.end.position.0;
    for number in 0_usize.. {
        let name = format!("s-{life}-{}", number % 5);
        let data = "x".repeat(number % 3_000);
        author.types.clear();
        let stored = author
            .store(&[event(&name, &format!("T-{life}-{number}"), &data)])
            .await;
        writeln!(told, "stored {}", stored[0].position.0).expect("writes");
    }
}

fn start(home: &Path, wal_bytes: u64) -> Child {
    Command::new(std::env::current_exe().expect("known"))
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD_HOME, home)
        .env(CHILD_WAL_BYTES, wal_bytes.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts")
}

/// Lets a child append `events` events and kills it; the last position that it told.
fn append_and_kill(home: &Path, wal_bytes: u64, events: usize) -> u64 {
    let mut child = start(home, wal_bytes);
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let position = |line: String| -> Option<u64> { line.strip_prefix("stored ")?.parse().ok() };
    let mut last = 0;
    for _ in 0..events {
        let line = lines.next().expect("the child goes on").expect("text");
        last = position(line.clone()).unwrap_or_else(|| panic!("{line}"));
    }
    child.kill().expect("killed");
    // What it told after we stopped listening counts too.
    for line in lines.map_while(Result::ok) {
        last = position(line).unwrap_or(last);
    }
    child.wait().expect("ended");
    last
}

fn copy(from: &Path, to: &Path, without: &[&str]) {
    for entry in std::fs::read_dir(from).expect("lists") {
        let entry = entry.expect("entry");
        let name = entry.file_name();
        if !without.iter().any(|left_out| name == *left_out) {
            std::fs::copy(entry.path(), to.join(name)).expect("copies");
        }
    }
}

fn refused(home: &Path) -> String {
    let error = try_open(&home.join("gesta.db")).expect_err("refused");
    assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error}");
    error.to_string()
}

/// Goal: killed at many moments, with many checkpoints, a store is never refused, and holds all that was acknowledged.
#[tokio::test]
async fn a_killed_store_is_never_refused() {
    for wal_bytes in [64 * 1024, 32 * 1024 * 1024] {
        let home = tempfile::tempdir().expect("dir");
        let mut random = Random::new(wal_bytes + 7);
        for kill in 0..KILLS {
            // The first kills come before anything is acknowledged, and right after it.
            let events = if kill < 3 { kill } else { random.below(120) };
            let acknowledged = append_and_kill(home.path(), wal_bytes, events);
            let image = tempfile::tempdir().expect("dir");
            copy(home.path(), image.path(), &[]);
            let backend = open(&image.path().join("gesta.db"));
            let found = read_all(&backend).await.len() as u64;
            assert!(
                found >= acknowledged,
                "{found} of {acknowledged} after kill {kill}"
            );
            assert!(verify(&backend).await.is_healthy());
            backend.close().await;
        }
    }
}

/// Goal: without its write-ahead log, a killed store is refused each time it is opened, unchanged, until somebody
/// decides.
#[tokio::test]
async fn a_deleted_wal_is_noticed() {
    for events in [1, 50] {
        let home = tempfile::tempdir().expect("dir");
        let acknowledged = append_and_kill(home.path(), NEVER_COPIED, events);
        let image = tempfile::tempdir().expect("dir");
        copy(home.path(), image.path(), &["gesta.db-wal", "gesta.db-shm"]);
        let path = image.path().join("gesta.db");
        let before = std::fs::read(&path).expect("reads");
        for _ in 0..2 {
            let text = refused(image.path());
            for part in ["gesta.db-wal", "ends at position 0", "new-incarnation"] {
                assert!(text.contains(part), "{part}: {text}");
            }
            let config = SqliteConfig::file(&path).must_exist();
            assert!(SqliteBackend::migrate(&config).is_err());
            assert_eq!(std::fs::read(&path).expect("reads"), before);
        }

        // The write-ahead log comes back: nothing is missing.
        let again = tempfile::tempdir().expect("dir");
        copy(image.path(), again.path(), &["gesta.db-wal"]);
        let wal = home.path().join("gesta.db-wal");
        std::fs::copy(wal, again.path().join("gesta.db-wal")).expect("copies");
        let backend = open(&again.path().join("gesta.db"));
        assert!(read_all(&backend).await.len() as u64 >= acknowledged);
        backend.close().await;

        // Somebody decides to go on without.
        let config = SqliteConfig::file(&path);
        until_unlocked(|| SqliteBackend::new_incarnation(&config)).expect("accepted");
        open(&path).close().await;
    }
}

/// Goal: an older copy in the place of a store, and a store whose file is gone, are noticed too.
#[tokio::test]
async fn an_older_copy_and_a_missing_file_are_noticed() {
    let home = tempfile::tempdir().expect("dir");
    let path = home.path().join("gesta.db");
    let backend = open(&path);
    let mut author = Author::new(&backend).await;
    author.store(&[event("a", "T", "1")]).await;
    backend.close().await;
    std::fs::copy(&path, home.path().join("copy.db")).expect("copies");
    let backend = open(&path);
    let mut author = Author {
        streams: author.streams,
        types: author.types,
        ..Author::new(&backend).await
    };
    author.store(&[event("a", "T", "2")]).await;
    backend.close().await;

    std::fs::rename(home.path().join("copy.db"), &path).expect("renames");
    let text = refused(home.path());
    assert!(text.contains("position 1, but position 2"), "{text}");

    std::fs::remove_file(&path).expect("removes");
    let text = refused(home.path());
    assert!(text.contains("gesta.db-end"), "{text}");
    assert!(!path.exists());

    // A file that is gone while its write-ahead log is left: SQLite would delete that.
    std::fs::write(home.path().join("gesta.db-wal"), "not empty").expect("writes");
    let text = refused(home.path());
    assert!(text.contains("holds 9 bytes"), "{text}");
    assert!(home.path().join("gesta.db-wal").exists());
}

/// Goal: a store whose write-ahead log was emptied in good order by another program is opened.
#[tokio::test]
async fn a_wal_that_another_program_has_checkpointed_is_no_loss() {
    let home = tempfile::tempdir().expect("dir");
    let acknowledged = append_and_kill(home.path(), 32 * 1024 * 1024, 20);
    let path = home.path().join("gesta.db");
    drop(rusqlite::Connection::open(&path).map(|conn| {
        conn.query_row("SELECT count(*) FROM events", [], |row| {
            row.get::<_, i64>(0)
        })
        .expect("counts")
    }));
    assert!(
        !home.path().join("gesta.db-wal").exists(),
        "the shell's last connection removes it"
    );
    let backend = open(&path);
    assert!(read_all(&backend).await.len() as u64 >= acknowledged);
    backend.close().await;
}

/// Goal: the files of builds that knew no openings are opened, and those of this build go through the hands of such a
/// build: it replays the write-ahead log, writes its shorter note, and leaves the number in the file as it is.
#[tokio::test]
async fn files_of_builds_without_openings_are_opened() {
    let home = tempfile::tempdir().expect("dir");
    let (path, note) = (
        home.path().join("gesta.db"),
        home.path().join("gesta.db-end"),
    );
    let count = async || {
        let backend = try_open(&path).expect("opens");
        let events = backend.read_log(whole_log()).await.expect("reads").events;
        backend.close().await;
        events.len()
    };
    let backend = try_open(&path).expect("opens");
    let mut author = Author::new(&backend).await;
    author.store(&[event("a", "T", "1")]).await;
    backend.close().await;
    // As such a build leaves its files.
    let line = std::fs::read_to_string(&note).expect("reads");
    let (before, _) = line.split_once(" opening=").expect("an opening");
    std::fs::write(&note, format!("{before}\n")).expect("writes");
    assert_eq!(count().await, 1);
    std::fs::remove_file(&note).expect("removes");
    assert_eq!(count().await, 1, "a build before that wrote no note");

    // This build is killed, the other one goes on and ends in good order, and this one comes back.
    let backend = try_open(&path).expect("opens");
    let mut author = Author::new(&backend).await;
    author.store(&[event("b", "U", "2")]).await;
    let killed = tempfile::tempdir().expect("dir");
    copy(home.path(), killed.path(), &["gesta.db.lock"]);
    backend.close().await;
    copy(killed.path(), home.path(), &[]);
    let other = rusqlite::Connection::open(&path).expect("opens");
    let stored: i64 = other
        .query_row("SELECT count(*) FROM events", [], |row| row.get(0))
        .expect("reads");
    assert_eq!(stored, 2);
    let line = std::fs::read_to_string(&note).expect("reads");
    let (before, after) = line.split_once(" opening=").expect("an opening");
    std::fs::write(&note, format!("{before}\nopening={after}")).expect("writes");
    drop(other);
    assert_eq!(count().await, 2);
}
