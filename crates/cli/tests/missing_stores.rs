//! Only commands that append, `serve` and `schema create` make a store.
//!
//! What happened: `gesta verify --store sqlite:mistyped.db` said "healthy: 0 events" and left an empty store behind, a
//! backup of it was an empty file with exit code 0, and on PostgreSQL `verify` and `info` made a schema in a foreign
//! database. A store whose write-ahead log had been deleted after a crash became an empty one. Now each of these is an
//! error that names the place.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};

use gesta_kit::depth;
use support::{Server, code, ended, gesta, patient, run, stderr, succeed, url_of};

/// A refusal that waits for nothing comes within this time, even if the machine stands still meanwhile.
const AT_ONCE: Duration = Duration::from_secs(60);

/// Every command that only reads, or changes what must be there.
fn reading_commands(copy: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["info"],
        vec!["verify"],
        vec!["backup", copy],
        vec!["scavenge", "--yes"],
        vec!["scavenge", "--dry-run"],
        vec!["stream", "read", "a"],
        vec!["stream", "tail", "a", "--limit", "1"],
        vec!["stream", "list"],
        vec!["stream", "delete", "a", "--yes"],
        vec!["stream", "metadata", "a"],
        vec!["all", "read"],
        vec!["all", "tail", "--limit", "1"],
        vec!["schema", "migrate"],
        vec!["schema", "new-incarnation", "--yes"],
    ]
}

#[test]
fn commands_that_read_make_no_sqlite_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sub/mistyped.db");
    let store = url_of(&path);
    let copy = directory.path().join("copy.db");
    for command in reading_commands(copy.to_str().unwrap()) {
        let output = run(&[&["--store", &store], &command[..]].concat());
        assert_eq!(code(&output), 1, "{command:?}: {output:?}");
        let text = stderr(&output);
        assert!(
            text.contains("there is no store at") && text.contains("sub/mistyped.db"),
            "{command:?}: {text}"
        );
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
    for command in [
        &["schema", "create"][..],
        &["stream", "append", "a", "--type", "t", "--data", "1"],
    ] {
        let made = directory.path().join(command[1]);
        succeed(&[&["--store", &url_of(&made)], command].concat());
        assert!(made.exists());
    }
}

#[test]
fn commands_that_read_make_no_schema_in_a_foreign_database() {
    let Some(server) = gesta_rig::shared() else {
        return;
    };
    let database = gesta_rig::fresh_schema();
    let url = patient(&server.create_database(&database).expect("created"));
    for command in reading_commands("unused.db") {
        if command[0] == "backup" {
            continue;
        }
        let output = run(&[&["--store", &url], &command[..]].concat());
        assert_eq!(code(&output), 1, "{command:?}: {output:?}");
        let text = stderr(&output);
        assert!(
            text.contains("there is no store in schema gesta") && text.contains(&database),
            "{command:?}: {text}"
        );
    }
    // It would refuse if one of them had made the tables.
    succeed(&["--store", &url, "schema", "create"]);
    succeed(&["--store", &url, "verify"]);
}

#[test]
fn a_store_whose_write_ahead_log_was_deleted_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gesta.db");
    let store = url_of(&path);
    let server = Server::start(&store);
    let append = ["stream", "append", "a", "--type", "t", "--data", "1"];
    succeed(&[&["--store", &server.url], &append[..]].concat());
    server.kill();
    std::fs::remove_file(directory.path().join("gesta.db-wal")).unwrap();

    let refused = |arguments: &[&str]| {
        let output = run(&[&["--store", &store], arguments].concat());
        assert_eq!(code(&output), 7, "{arguments:?}: {output:?}");
        let text = stderr(&output);
        assert!(
            text.contains("gesta.db-wal") && text.contains("was deleted after a crash"),
            "{text}"
        );
        // What happened: typed as it was said, the command worked on another store.
        let hint = format!("`gesta schema new-incarnation --store {store}`");
        assert!(text.contains(&hint), "{text}");
    };
    refused(&["verify"]);
    refused(&["info"]);
    refused(&append);
    refused(&["serve", "--listen", "127.0.0.1:0"]);
    succeed(&["--store", &store, "schema", "new-incarnation", "--yes"]);
    succeed(&["--store", &store, "verify"]);
}

/// What happened: a store in a folder of another user was said to be missing. Now the folder is named, and its owner.
#[test]
fn a_folder_that_this_user_may_not_enter_is_told() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let closed = directory.path().join("closed");
    let path = closed.join("sub/gesta.db");
    let store = url_of(&path);
    succeed(&["--store", &store, "schema", "create"]);
    let is_root = nix::unistd::geteuid().is_root();
    // Root may enter everything, so another user tries; who is not root is kept out of a folder of their own.
    let mode = if is_root { 0o700 } else { 0 };
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(mode)).unwrap();
    let owner = std::fs::metadata(&closed).unwrap().uid();
    let target = format!("--target=sqlite:{}", path.display());
    let there = path.display().to_string();
    let commands: &[(&[&str], bool)] = &[
        (&["verify"], true),
        (&["info"], true),
        (
            &["stream", "append", "a", "--type", "t", "--data", "1"],
            true,
        ),
        (&["schema", "create"], true),
        (&["serve", "--listen", "127.0.0.1:0"], true),
        (&["restore", &there], true),
        (&["projection", "list", &target], false),
    ];
    for (command, names_the_folder) in commands {
        let mut tried = gesta(&[&["--store", &store], *command].concat());
        if is_root {
            tried.uid(65_534).gid(65_534);
        }
        tried.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = match tried.spawn() {
            Ok(child) => ended(child),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                eprintln!(
                    "SKIPPED: another user may not run {}",
                    env!("CARGO_BIN_EXE_gesta")
                );
                break;
            }
            Err(error) => panic!("{error}"),
        };
        let text = stderr(&output);
        assert_eq!(code(&output), 1, "{command:?}: {output:?}");
        assert!(
            !text.contains("there is no") && text.contains(&there),
            "{command:?}: {text}"
        );
        if *names_the_folder {
            let folder = format!("the folder {} belongs to ", closed.display());
            let rest = text.split_once(&folder).map(|(_, rest)| rest);
            let rest = rest.unwrap_or_else(|| panic!("{command:?}: {text}"));
            assert!(
                text.matches("os error").count() == 1
                    && rest.contains(&format!("uid {owner}"))
                    && rest.contains(&format!("(mode {mode:04o})")),
                "{command:?}: {text}"
            );
        }
    }
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
}

/// What happened: a read-only file was opened, and each append waited 30 s for an answer. Now nobody serves it.
#[test]
fn a_read_only_store_is_refused_at_once() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gesta.db");
    let store = url_of(&path);
    succeed(&["--store", &store, "schema", "create"]);
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(directory.path(), 0o777);
    mode(&path, 0o444);
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let beside = entry.unwrap().path();
        if beside != path {
            mode(&beside, 0o666);
        }
    }
    let mut command = gesta(&["--store", &store]);
    command.args(["stream", "append", "a", "--type", "t", "--data", "1"]);
    if nix::unistd::geteuid().is_root() {
        // Nothing is read-only for the administrator.
        command.uid(65_534).gid(65_534);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = Instant::now();
    let output = match command.spawn() {
        Ok(child) => ended(child),
        // The program itself cannot be reached by another user here.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            eprintln!(
                "SKIPPED: another user may not run {}",
                env!("CARGO_BIN_EXE_gesta")
            );
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let (took, bound) = (begun.elapsed(), Duration::from_secs(10));
    // An append that has waited in vain ends with another code, however long it took.
    assert_eq!(code(&output), 1, "{output:?}");
    assert!(
        stderr(&output).contains("is read-only for this user"),
        "{output:?}"
    );
    assert!(took < AT_ONCE, "{took:?}");
    depth::in_time("a read-only store is refused", took, bound);
}
