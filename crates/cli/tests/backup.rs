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
    let nowhere = home.path().join("nodir/copy.db");
    let nowhere = run(&["--store", &server.url, "backup", nowhere.to_str().unwrap()]);
    assert!(
        stderr(&nowhere).contains("the backup cannot be written"),
        "{nowhere:?}"
    );
    let direct = run(&["--store", &store, "backup", &format!("{copy}-2")]);
    assert_eq!(code(&direct), 5, "{direct:?}");
    assert!(stderr(&direct).contains("--store URL"), "{direct:?}");
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
        .filter(|name| name.contains("unfinished") || name.contains("-copy"))
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

/// Goal: a backup is no store until it was restored: not where it was made, and not where `cp` has put it.
///
/// What happened: it looked like a store that was closed in good order, and had its incarnation. So a consumer that had
/// read more than the backup holds skipped what was stored next, without a word.
#[test]
fn a_backup_is_no_store_until_it_was_restored() {
    let home = tempfile::tempdir().unwrap();
    let (path, copy) = (home.path().join("gesta.db"), home.path().join("copy.db"));
    let store = url_of(&path);
    let server = Server::start(&store);
    assert!(append(&server.url, "a"));
    let through = home.path().join("through.db");
    succeed(&["--store", &server.url, "backup", through.to_str().unwrap()]);
    server.stop();
    succeed(&["--store", &store, "backup", copy.to_str().unwrap()]);
    assert!(append(&store, "a"));

    let files: Vec<_> = names_in(home.path());
    let files = files.iter().filter(|name| name.starts_with("gesta.db"));
    files.for_each(|name| std::fs::remove_file(home.path().join(name)).unwrap());
    std::fs::copy(&copy, &path).unwrap();
    for backup in [&path, &copy, &through] {
        let at = url_of(backup);
        for command in [
            &["serve", "--listen", "127.0.0.1:0"][..],
            &["stream", "append", "a", "--type", "t", "--data", "1"],
            &["all", "read"],
            &["verify"],
        ] {
            let refused = run(&[command, &["--store", &at]].concat());
            assert_eq!(code(&refused), 2, "{refused:?}");
            let (told, cure) = (stderr(&refused), backup.display());
            assert!(
                told.contains(&format!("gesta restore {cure} --store")),
                "{told}"
            );
        }
        let new = url_of(&home.path().join("new").join(backup.file_name().unwrap()));
        let text = succeed(&["restore", backup.to_str().unwrap(), "--store", &new]);
        assert!(text.contains("restored 1 event"), "{text}");
        assert!(append(&new, "a"));
    }
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
    let server = Server::start(&store);
    let (served, mut server) = (server.url.clone(), Some(server));
    for url in [&served, &store] {
        if url == &store {
            server.take().unwrap().kill();
        }
        // A backup may be quicker than the signal, but not always.
        let ended = once_quick_enough(|| interrupt_backup(url, &copy));
        assert_eq!(ended.expect("it was interrupted").code(), Some(130));
        wait_until("nothing is left", || {
            names_in(place.path()).is_empty()
                && !names_in(home.path())
                    .iter()
                    .any(|name| name.contains("-copy"))
        });
    }
}

/// Goal: Ctrl-C in the middle of a restore leaves no store and no part of one, and says how to go on.
#[test]
fn an_interrupted_restore_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    fill(&store, 1_500, 60_000);
    let copy = home.path().join("copy.db").display().to_string();
    succeed(&["--store", &store, "backup", &copy]);
    let place = tempfile::tempdir().unwrap();
    let new = place.path().join("new.db");
    // A restore may be quicker than the signal, but not always.
    let ended = once_quick_enough(|| {
        let mut restore = gesta(&["--store", &url_of(&new), "restore", &copy]);
        let restore = restore.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = restore.spawn().unwrap();
        let mut is_over = false;
        wait_until("the restore has begun", || {
            is_over = child.try_wait().unwrap().is_some();
            is_over || new.with_extension("db.unfinished").exists()
        });
        if !is_over {
            signal(&child, Signal::SIGINT);
        }
        let ended = support::ended(child);
        if ended.status.success() {
            for name in names_in(place.path()) {
                std::fs::remove_file(place.path().join(name)).unwrap();
            }
            return None;
        }
        Some(ended)
    });
    let ended = ended.expect("it was interrupted");
    assert_eq!(code(&ended), 130, "{ended:?}");
    let text = stderr(&ended);
    assert!(
        text.contains("nothing was restored to") && text.contains("the same command begins again"),
        "{text}"
    );
    assert_eq!(names_in(place.path()), Vec::<String>::new());
    succeed(&["--store", &url_of(&new), "restore", &copy]);
    assert!(succeed(&["--store", &url_of(&new), "verify"]).starts_with("healthy"));
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
    assert!(
        stderr(&refused).contains("others than this machine can reach"),
        "{refused:?}"
    );
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
    let Some(database) = gesta_rig::shared() else {
        return;
    };
    let schema = gesta_rig::fresh_schema();
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

/// Waits until the server is not ready, and returns what it says.
fn unready(server: &Server) -> String {
    let mut answer = String::new();
    wait_until("the server is not ready", || {
        answer = support::get(server.address(), "/health/ready");
        !answer.contains("\"ready\"")
    });
    answer
}

/// What becomes of the folder of a served store.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    Removed,
    Moved,
    /// Another store is at its place.
    Replaced,
    /// An empty folder is at its place.
    ReplacedByNothing,
    /// The symbolic link that led to it leads to another store.
    LinkSwitched,
    /// The file alone was removed, and its write-ahead log is left.
    FileRemoved,
}

/// Goal: a server whose folder was moved, replaced or removed is not ready and says what to do, stores nothing more,
/// and a backup through it is of its own store, not of the one that is at its path now.
///
/// What happened: it went on, and a backup opened the store by its name, so it saved another store.
#[test]
fn a_server_whose_folder_is_gone_still_gives_its_own_store() {
    for fate in [
        Fate::Removed,
        Fate::Moved,
        Fate::Replaced,
        Fate::ReplacedByNothing,
        Fate::LinkSwitched,
        Fate::FileRemoved,
    ] {
        the_server_gives_its_own_store(fate);
    }
}

fn the_server_gives_its_own_store(fate: Fate) {
    use std::os::unix::fs::symlink;
    let home = tempfile::tempdir().unwrap();
    let (folder, moved) = (home.path().join("data"), home.path().join("moved"));
    if fate == Fate::LinkSwitched {
        std::fs::create_dir(&moved).unwrap();
        symlink(&moved, &folder).unwrap();
    }
    let store = url_of(&folder.join("gesta.db"));
    let server = Server::start(&store);
    fill(&server.url, 100, 1_000);
    match fate {
        Fate::Removed => std::fs::remove_dir_all(&folder).unwrap(),
        Fate::FileRemoved => std::fs::remove_file(folder.join("gesta.db")).unwrap(),
        Fate::LinkSwitched => {
            std::fs::remove_file(&folder).unwrap();
            let other = home.path().join("other");
            std::fs::create_dir(&other).unwrap();
            symlink(other, &folder).unwrap();
        }
        Fate::Moved | Fate::Replaced | Fate::ReplacedByNothing => {
            std::fs::rename(&folder, &moved).unwrap();
        }
    }
    match fate {
        Fate::Replaced | Fate::LinkSwitched => fill(&store, 3, 10),
        Fate::ReplacedByNothing => std::fs::create_dir(&folder).unwrap(),
        Fate::Removed | Fate::Moved | Fate::FileRemoved => {}
    }
    let text = unready(&server);
    let parts = match fate {
        Fate::Removed | Fate::FileRemoved => ["was removed", "gesta backup --store"],
        Fate::LinkSwitched => ["leads elsewhere now", "start it with the path"],
        _ => ["moved/gesta.db", "start it with the new path"],
    };
    assert!(
        parts.iter().all(|part| text.contains(part)),
        "{fate:?}: {text}"
    );
    assert!(
        !append(&server.url, "a"),
        "{fate:?}: nothing is acknowledged"
    );
    let copy = home.path().join("copy.db");
    succeed(&["--store", &server.url, "backup", copy.to_str().unwrap()]);
    server.stop();
    // The server that ended has taken nothing from what is at its path now, and left what was moved as it was.
    let mut left = vec![];
    if matches!(fate, Fate::Replaced | Fate::LinkSwitched) {
        left.push((store, 3));
    }
    if moved.exists() {
        left.push((url_of(&moved.join("gesta.db")), 100));
    }
    if fate == Fate::ReplacedByNothing {
        assert_eq!(names_in(&folder), [""; 0], "{fate:?}");
    }
    for (url, events) in left {
        let text = succeed(&["--store", &url, "verify"]);
        let healthy = format!("healthy: {events} event");
        assert!(text.contains(&healthy), "{fate:?}: {text}");
    }
    let restored = url_of(&home.path().join("restored.db"));
    let text = succeed(&["restore", copy.to_str().unwrap(), "--store", &restored]);
    assert!(
        text.contains("restored 100 events") && text.contains("revoked"),
        "{fate:?}: {text}"
    );
}

/// Is set where mounts are nobody else's.
const OWN_MOUNTS: &str = "GESTA_BACKUP_OWN_MOUNTS";

/// Runs a test of this program once more where mounts are nobody else's.
fn run_with_own_mounts(test: &str) {
    let done = std::process::Command::new("unshare")
        .args(["-m", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(OWN_MOUNTS, "1")
        .output();
    match done {
        Ok(done) if stderr(&done).starts_with("unshare:") => {
            println!("skipped: this user may not make a mount namespace: {done:?}");
        }
        Ok(done) => {
            println!("{}", stdout(&done));
            assert!(done.status.success(), "{done:?}");
        }
        Err(error) => println!("skipped: no program unshare: {error}"),
    }
}

/// Goal: a server whose disk is full, or takes no writes any more, is not ready and says why; a full disk is no harm
/// once there is room, and of a disk that has failed `gesta backup` through the server saves the store.
///
/// What happened: a file system that finds an error in itself refuses all writes, but does not say that it is
/// read-only. The server was ready until somebody appended.
#[test]
fn a_server_whose_disk_is_full_or_fails_is_not_ready() {
    if std::env::var_os(OWN_MOUNTS).is_none() {
        return run_with_own_mounts("a_server_whose_disk_is_full_or_fails_is_not_ready");
    }
    let home = tempfile::tempdir().unwrap();
    let sh = |script: &str| {
        let done = std::process::Command::new("sh")
            .args(["-ec", script])
            .current_dir(home.path())
            .output();
        done.unwrap()
    };
    let make = "truncate -s 24M image; mkfs.ext4 -q image; mkdir disk; mount -o loop image disk";
    let made = sh(make);
    if !made.status.success() {
        println!("skipped: this machine mounts no disk from a file: {made:?}");
        return;
    }
    let store = url_of(&home.path().join("disk/data/gesta.db"));
    let server = Server::start(&store);
    fill(&server.url, 10, 10);
    sh("dd if=/dev/zero of=disk/fill bs=4096");
    let line = format!("{{\"type\":\"t\",\"data\":\"{}\"}}\n", "x".repeat(500_000));
    let arguments = ["--store", &server.url, "stream", "append", "big"];
    let refused = run_with_input(&arguments, &line);
    assert!(
        stderr(&refused).contains("no space on the disk"),
        "{refused:?}"
    );
    let text = unready(&server);
    assert!(text.contains("no space on the disk"), "{text}");
    sh("rm disk/fill");
    assert!(append(&server.url, "a"), "there is room again");
    wait_until("the server is ready", || {
        support::get(server.address(), "/health/ready").contains("\"ready\"")
    });

    // As the kernel does when it finds an error in the file system.
    let failed = sh("mount -o remount,abort disk; ! touch disk/probe");
    assert!(failed.status.success(), "{failed:?}");
    let text = unready(&server);
    let parts = ["takes no writes", "gesta backup"];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    assert!(!append(&server.url, "a"), "nothing is acknowledged");
    let copy = home.path().join("copy.db");
    let copy = copy.to_str().unwrap();
    succeed(&["--store", &server.url, "backup", copy]);
    server.stop();
    let restored = url_of(&home.path().join("restored.db"));
    let text = succeed(&["restore", copy, "--store", &restored]);
    assert!(text.contains("restored 11 events"), "{text}");
    sh("umount disk; mount -o loop image disk");
    let text = succeed(&["--store", &store, "verify"]);
    assert!(text.contains("healthy: 11 events"), "{text}");
    sh("umount disk");
}

/// Goal: a copy that was made while the store was in use, by other means than a backup, is refused by everybody.
#[test]
fn a_file_that_was_copied_from_a_store_in_use_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let server = Server::start(&store);
    fill(&server.url, 10, 10);
    let copy = home.path().join("copied.db");
    std::fs::copy(home.path().join("gesta.db"), &copy).unwrap();
    let new = url_of(&home.path().join("new.db"));
    for arguments in [
        &["restore", copy.to_str().unwrap(), "--store", &new][..],
        &["verify", "--store", &url_of(&copy)],
        &[
            "stream",
            "append",
            "a",
            "--type",
            "t",
            "--data",
            "1",
            "--store",
            &url_of(&copy),
        ],
    ] {
        let refused = run(arguments);
        assert!(!refused.status.success(), "{refused:?}");
        assert!(stderr(&refused).contains("gesta backup"), "{refused:?}");
    }
    // The store itself, under another name, is no backup either.
    let link = home.path().join("link.db");
    std::fs::hard_link(home.path().join("gesta.db"), &link).unwrap();
    let refused = run(&["restore", link.to_str().unwrap(), "--store", &new]);
    assert!(
        stderr(&refused).contains("is a store that is open"),
        "{refused:?}"
    );
    let refused = run(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--store",
        &url_of(&link),
    ]);
    assert!(stderr(&refused).contains("2 names"), "{refused:?}");
    std::fs::remove_file(&link).unwrap();
    server.stop();
    succeed(&["verify", "--store", &store]);
}

/// Copies a SQLite file by SQLite's own means. Returns false if there is no Python to do it.
fn copy_by_sqlite(how: &str, from: &Path, to: &Path) -> bool {
    let script = match how {
        "backup" => "sqlite3.connect(a).backup(sqlite3.connect(b))",
        _ => "sqlite3.connect(a).execute('VACUUM INTO ?', (b,))",
    };
    let script = format!("import sqlite3, sys; a, b = sys.argv[1:]; {script}");
    let copied = std::process::Command::new("python3")
        .args(["-c", &script])
        .args([from, to])
        .output();
    match copied {
        Ok(copied) if copied.status.success() => true,
        other => {
            println!("skipped: python3 with sqlite3 cannot be run: {other:?}");
            false
        }
    }
}

/// Goal: a whole copy that SQLite itself makes of a running store is refused with the option by which it becomes one,
/// whether or not the first store goes on; a copy by `cp` is told first what to do instead, and warned of when the
/// option is given all the same.
///
/// What happened: such a copy carries the number of the opening, and no text said what to do with it. Then the text
/// began with the whole command, which restored a copy by `cp` without its newest events, and said nothing about them.
#[test]
fn a_copy_that_sqlite_has_made_becomes_a_store_by_the_option_that_is_named() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("gesta.db");
    let server = Server::start(&url_of(&path));
    for (number, how) in ["backup", "vacuum"].into_iter().enumerate() {
        assert!(append(&server.url, "before"));
        let copy = home.path().join(format!("{how}.db"));
        if !copy_by_sqlite(how, &path, &copy) {
            return;
        }
        let (copy_url, new) = (
            url_of(&copy),
            url_of(&home.path().join(format!("{how}-new.db"))),
        );
        let file = copy.to_str().unwrap();
        assert!(append(&server.url, "after"));
        let events = 2 * number + 1;

        let refused = run(&["restore", file, "--store", &new]);
        assert_eq!(code(&refused), 2, "{refused:?}");
        assert!(
            stderr(&refused).contains("--sqlite-copy says so"),
            "{refused:?}"
        );
        let text = succeed(&["restore", "--sqlite-copy", file, "--store", &new]);
        assert!(text.contains(&format!("restored {events} event")), "{text}");

        let refused = run(&["verify", "--store", &copy_url]);
        assert!(!refused.status.success(), "{refused:?}");
        let command = format!("gesta schema new-incarnation --yes --store {copy_url}");
        assert!(stderr(&refused).contains(&command), "{refused:?}");
        succeed(&command.split(' ').skip(1).collect::<Vec<_>>());
        for store in [&new, &copy_url] {
            let text = succeed(&["verify", "--store", store]);
            assert!(text.contains(&format!("healthy: {events} event")), "{text}");
            assert!(append(store, "after"));
        }
    }
    // Nothing of a store that has just begun lies in its file: it is in the one beside it.
    let young = home.path().join("young.db");
    let beside = Server::start(&url_of(&young));
    assert!(append(&beside.url, "before"));
    let (copied, new) = (home.path().join("cp.db"), home.path().join("cp-new.db"));
    std::fs::copy(&young, &copied).unwrap();
    beside.stop();
    let (file, new) = (copied.to_str().unwrap(), url_of(&new));
    let refused = run(&["restore", file, "--store", &new]);
    assert_eq!(code(&refused), 2, "{refused:?}");
    let told = stderr(&refused);
    let (by_cp, by_sqlite) = (told.find("copied by cp"), told.find("--sqlite-copy"));
    assert!(by_cp.is_some() && by_cp < by_sqlite, "{told}");
    let text = succeed(&["restore", "--sqlite-copy", file, "--store", &new]);
    assert!(text.contains("restored 0 events"), "{text}");
    assert!(
        text.contains("without what lies in its -wal file"),
        "{text}"
    );
    // The store goes on as before.
    assert!(append(&server.url, "after"));
    server.stop();
    let text = succeed(&["verify", "--store", &url_of(&path)]);
    assert!(text.contains("healthy: 5 events"), "{text}");
}

/// Goal: only their owner can read a store, its folder and its backups, whatever the mask; wider ones are told of.
#[test]
fn stores_and_backups_are_for_their_owner() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let home = tempfile::tempdir().unwrap();
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = home.path().join("data");
    let store = url_of(&folder.join("gesta.db"));
    let server = Server::start(&store);
    fill(&server.url, 3, 10);
    let through = home.path().join("through.db");
    succeed(&["--store", &server.url, "backup", through.to_str().unwrap()]);
    assert_eq!(mode(&folder), 0o700);
    let names = names_in(&folder);
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        assert_eq!(mode(&folder.join(&name)), 0o600, "{name}");
    }
    server.stop();
    let (direct, new) = (home.path().join("direct.db"), home.path().join("new.db"));
    // A link that lies where the unfinished copy will be is not followed.
    let precious = home.path().join("precious");
    std::fs::write(&precious, "precious").unwrap();
    symlink(&precious, home.path().join("direct.db.unfinished")).unwrap();
    succeed(&["--store", &store, "backup", direct.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    succeed(&[
        "restore",
        direct.to_str().unwrap(),
        "--store",
        &url_of(&new),
    ]);
    for file in [&through, &direct, &new] {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }

    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o644)).unwrap();
    let server = Server::start(&url_of(&new));
    let told = server.logged("other users of this machine");
    assert!(told.iter().any(|line| line.contains("0644")), "{told:?}");
    server.stop();
}

/// Goal: a store on a full disk says so when it is opened.
#[test]
fn a_full_disk_is_told_at_the_start() {
    let home = tempfile::tempdir().unwrap();
    let script = r#"
        mount -t tmpfs -o size=1m none "$1" && cd "$1" || { echo no mount; exit 0; }
        "$2" --store sqlite:gesta.db stream append a --type t --data 1 || exit 1
        dd if=/dev/zero of=fill bs=4096 2>/dev/null
        "$2" serve --listen 127.0.0.1:0 --store sqlite:gesta.db && exit 1
        rm fill
        "$2" --store sqlite:gesta.db verify
    "#;
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]);
    command.arg(home.path()).arg(env!("CARGO_BIN_EXE_gesta"));
    let output = command.output();
    let output = match output {
        Ok(output) if output.status.success() && !stdout(&output).contains("no mount") => output,
        Ok(output) if stdout(&output).contains("healthy") || stderr(&output).contains("error") => {
            panic!("{output:?}")
        }
        other => {
            println!("skipped: this user may not make a mount: {other:?}");
            return;
        }
    };
    assert!(
        stderr(&output).contains("there is no space on its disk"),
        "{output:?}"
    );
    assert!(
        stdout(&output).contains("healthy: 1 event read"),
        "{output:?}"
    );
}

/// Goal: `gesta copy` goes on after any kill, and until it is whole no command opens its target.
#[test]
fn a_copy_that_is_killed_goes_on_and_is_not_served_before_its_end() {
    let home = tempfile::tempdir().unwrap();
    let url = |name: &str| url_of(&home.path().join(name));
    let (source, target) = (url("source.db"), url("target.db"));
    fill(&source, 60_000, 100);
    let copy = ["copy", &source, &target, "--output", "json"];
    for kill_after_ms in [5, 60, 150, 300, 500, 800] {
        let mut command = gesta(&copy);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(kill_after_ms));
        let has_ended = child.try_wait().unwrap().is_some();
        child.kill().unwrap();
        child.wait().unwrap();
        if has_ended {
            break;
        }
        let opened = run(&["stream", "list", "--store", &target]);
        let told = stderr(&opened);
        // At the very beginning there is an empty store.
        assert!(
            told.contains("gesta copy")
                || told.contains("there is no store")
                || stdout(&opened).is_empty(),
            "{told}"
        );
    }
    let again = run(&copy);
    let is_whole = code(&again) == 0 || stderr(&again).contains("must be empty");
    assert!(is_whole, "{again:?}");
    succeed(&["verify", "--store", &target]);
    let read =
        |store: &str| succeed(&["stream", "read", "a", "--output", "json", "--store", store]);
    assert_eq!(read(&source), read(&target));
    let refused = run(&copy);
    assert!(stderr(&refused).contains("must be empty"), "{refused:?}");
}
