//! Backup of a served store and restore, as `docs/operating/backup.md` says.
//!
//! What happened: three texts promised a backup while the server runs, and the lock of the store refused it. Now the
//! server makes the copy, appends go on meanwhile, and `gesta restore` checks it and puts it in place.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::sys::signal::Signal;
use support::{
    PATIENCE, Server, code, gesta, once_quick_enough, patient, run, run_with_input, signal, stderr,
    stdout, succeed, url_of, wait_until,
};

fn fill(store: &str, events: usize, bytes: usize) {
    let line = format!("{{\"type\":\"t\",\"data\":\"{}\"}}\n", "x".repeat(bytes));
    let filled = run_with_input(
        &["--store", store, "stream", "append", "a", "--batch", "500"],
        &line.repeat(events),
    );
    assert!(filled.status.success(), "{filled:?}");
}

fn append(store: &str, stream: &str) -> bool {
    let arguments = ["stream", "append", stream, "--type", "t", "--data", "1"];
    run(&[&["--store", store], &arguments[..]].concat())
        .status
        .success()
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Says that something is done when it is dropped, also by a failure.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes a copy while events are appended to the stream `b` without a pause.
fn back_up_under_appends(server: &str, copy: &str) {
    let (done, appended) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _done = Done(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert!(append(server, "b"), "appends go on");
                appended.fetch_add(1, Ordering::Relaxed);
            }
        });
        wait_until("an append", || appended.load(Ordering::Relaxed) > 0);
        let made = run(&["--store", server, "backup", copy]);
        assert!(
            made.status.success() && stdout(&made).contains("copy.db"),
            "{made:?}"
        );
    });
}

/// Goal: the steps of the guide, under appends that never pause.
#[test]
fn the_guide_works_on_a_served_store() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let server = Server::start(&store);
    fill(&server.url, 3_000, 1_000);
    let tail = ["all", "tail", "--after", "start", "--limit", "1"];
    let at = ["--store", &server.url, "--output", "json"];
    let old_checkpoint = succeed(&[&at[..], &tail].concat());
    let old_checkpoint: serde_json::Value = serde_json::from_str(&old_checkpoint).unwrap();

    let copy = home.path().join("copy.db");
    let copy = copy.to_str().unwrap();
    back_up_under_appends(&server.url, copy);
    assert!(append(&server.url, "after-the-backup"));
    let again = run(&["--store", &server.url, "backup", copy]);
    assert_eq!(code(&again), 2, "{again:?}");
    assert!(stderr(&again).contains("must be a new file"), "{again:?}");
    let direct = run(&["--store", &store, "backup", &format!("{copy}-2")]);
    assert_eq!(code(&direct), 5, "{direct:?}");
    assert!(stderr(&direct).contains("--store http://"), "{direct:?}");
    server.stop();

    let in_place = run(&["restore", copy, "--store", &store]);
    assert_eq!(code(&in_place), 2, "something is there: {in_place:?}");
    let old = home.path().join("old");
    std::fs::create_dir(&old).unwrap();
    for name in names_in(home.path()) {
        if name.starts_with("gesta.db") && name != "gesta.db.lock" {
            std::fs::rename(home.path().join(&name), old.join(&name)).unwrap();
        }
    }
    let text = succeed(&["restore", copy, "--store", &store]);
    assert!(text.contains("incarnation"), "{text}");
    let left: Vec<_> = names_in(home.path())
        .into_iter()
        .filter(|name| name.contains("unfinished") || name.ends_with("-copy"))
        .collect();
    assert!(left.is_empty(), "{left:?}");

    let server = Server::start(&store);
    let list = succeed(&["--store", &server.url, "stream", "list"]);
    assert!(list.contains("a ") && list.contains("b "), "{list}");
    assert!(!list.contains("after-the-backup"), "{list}");
    let checkpoint = old_checkpoint["checkpoint"].as_str().unwrap();
    let refused = run(&["--store", &server.url, "all", "read", "--from", checkpoint]);
    assert_eq!(code(&refused), 8, "{refused:?}");
    server.stop();
    succeed(&["--store", &store, "verify"]);
}

/// Goal: a damaged backup is not put in place, and nothing is left of the try.
#[test]
fn a_damaged_backup_is_not_restored() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    fill(&store, 200, 1_000);
    let copy = home.path().join("copy.db");
    succeed(&["--store", &store, "backup", copy.to_str().unwrap()]);
    let mut bytes = std::fs::read(&copy).unwrap();
    let pages = bytes.len() / 4_096;
    bytes[pages / 2 * 4_096..][..4_096].fill(0x5a);
    std::fs::write(&copy, bytes).unwrap();

    let place = tempfile::tempdir().unwrap();
    let new = url_of(&place.path().join("new.db"));
    let refused = run(&["restore", copy.to_str().unwrap(), "--store", &new]);
    assert_eq!(code(&refused), 7, "{refused:?}");
    assert!(
        names_in(place.path()).is_empty(),
        "{:?}",
        names_in(place.path())
    );
    for foreign in ["Cargo.toml", "no-such-file"] {
        let refused = run(&["restore", foreign, "--store", &new]);
        assert!(!refused.status.success(), "{refused:?}");
        assert!(names_in(place.path()).is_empty());
    }
    let empty = home.path().join("empty.db");
    std::fs::write(&empty, "").unwrap();
    assert!(
        !run(&["restore", empty.to_str().unwrap(), "--store", &new])
            .status
            .success()
    );
    assert!(names_in(place.path()).is_empty());
}

/// Goal: Ctrl-C in the middle of a backup leaves nothing, in the copy's place and beside the store.
#[test]
fn an_interrupted_backup_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    fill(&store, 1_500, 60_000);
    let place = tempfile::tempdir().unwrap();
    let copy = place.path().join("copy.db");
    let mut server = Server::start(&store);
    for url in [server.url.as_str(), store.as_str()] {
        if url == store {
            server.child.kill().unwrap();
            server.child.wait().unwrap();
        }
        // A backup may be quicker than the signal, but not always.
        let ended = once_quick_enough(|| interrupt_backup(url, &copy));
        assert_eq!(ended.expect("it was interrupted").code(), Some(130));
        wait_until("nothing is left", || {
            names_in(place.path()).is_empty()
                && !names_in(home.path()).contains(&"gesta.db-copy".to_owned())
        });
    }
}

/// Interrupts a backup that has begun. `None` if it came to its end: then its copy is removed.
fn interrupt_backup(url: &str, copy: &Path) -> Option<ExitStatus> {
    let mut child = gesta(&["--store", url, "backup", copy.to_str().unwrap()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut is_over = false;
    wait_until("the copy has begun", || {
        is_over = child.try_wait().unwrap().is_some();
        is_over || copy.with_extension("db.unfinished").exists()
    });
    if !is_over {
        signal(&child, Signal::SIGINT);
    }
    wait_until("the backup ends", || child.try_wait().unwrap().is_some());
    let ended = child.wait().unwrap();
    if ended.success() {
        std::fs::remove_file(copy).unwrap();
        return None;
    }
    Some(ended)
}

/// One request, head and body of the answer.
fn post(address: &str, head: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        socket,
        "POST /admin/backup HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}content-length: 0\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Goal: the whole store is not given to other machines, nor to a request that a web page can make.
#[test]
fn backups_are_for_loopback_listeners_only() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let open = Server::start_with(&store, &["--listen", "0.0.0.0:0", "--insecure"]);
    let port = open.address().rsplit_once(':').unwrap().1;
    let refused = run(&[
        "--store",
        &format!("http://127.0.0.1:{port}"),
        "backup",
        home.path().join("copy.db").to_str().unwrap(),
    ]);
    assert_eq!(code(&refused), 1, "{refused:?}");
    assert!(stderr(&refused).contains("loopback"), "{refused:?}");
    assert!(!home.path().join("copy.db.unfinished").exists());
    open.stop();

    let server = Server::start(&store);
    assert!(post(server.address(), "").starts_with("HTTP/1.1 415"));
    let whole = post(server.address(), "content-type: application/json\r\n");
    assert!(whole.starts_with("HTTP/1.1 200"), "{whole:.200}");
    assert!(whole.contains("SQLite format 3"), "{whole:.300}");
}

/// Goal: PostgreSQL makes its own backups, and both commands say which.
#[test]
fn postgresql_is_told_what_to_use_instead() {
    let Some(database) = gesta_pgtest::shared() else {
        return;
    };
    let schema = gesta_pgtest::fresh_schema();
    let store = patient(&format!("{}?schema={schema}", database.url()));
    let server = Server::start(&store);
    for arguments in [
        &["--store", &store, "backup", "unused.db"][..],
        &["--store", &server.url, "backup", "unused.db"],
        &["--store", &store, "restore", "unused.db"],
    ] {
        let refused = run(arguments);
        assert_eq!(code(&refused), 1, "{refused:?} {}", stdout(&refused));
        assert!(stderr(&refused).contains("pg_basebackup"), "{refused:?}");
        assert!(stderr(&refused).contains("new-incarnation"), "{refused:?}");
    }
    assert!(!Path::new("unused.db").exists());
}
