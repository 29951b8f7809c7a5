//! The real binary: serve, restart, a second server, kill -9, wrong usage.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::process::Output;

use nix::sys::signal::Signal;
use support::{Server, get, patient, run, succeed, url_of, wait_until};

fn append(server: &Server, data: &str) -> Output {
    run(&[
        "--store",
        &server.url,
        "stream",
        "append",
        "cart-1",
        "--type",
        "added",
        "--data",
        data,
    ])
}

fn events(server: &Server) -> Vec<String> {
    let read = [
        "--store",
        &server.url,
        "--output",
        "json",
        "stream",
        "read",
        "cart-1",
    ];
    succeed(&read).lines().map(str::to_owned).collect()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn a_stop_and_a_kill_keep_every_acknowledged_event() {
    let directory = tempfile::tempdir().unwrap();
    let store = url_of(&directory.path().join("gesta.db"));
    let mut server = Server::start(&store);
    assert!(append(&server, "1").status.success());
    let second = run(&["serve", "--store", &store, "--listen", "127.0.0.1:0"]);
    assert!(!second.status.success(), "one process at a time");
    assert!(
        String::from_utf8_lossy(&second.stderr).contains("gesta.db"),
        "{second:?}"
    );
    server.signal(Signal::SIGINT);
    assert!(server.wait().success(), "Ctrl-C ends cleanly");

    for n in 2..5 {
        let server = Server::start(&store);
        assert!(append(&server, &n.to_string()).status.success());
        server.kill();
    }
    let server = Server::start(&store);
    let events = events(&server);
    assert_eq!(events.len(), 4);
    assert!(
        events
            .iter()
            .zip(1..)
            .all(|(line, n)| line.contains(&format!("\"data\":{n}"))),
        "{events:?}"
    );
    drop(server);
    succeed(&["--store", &store, "verify"]);
}

#[test]
fn exit_codes_and_messages_name_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let store = url_of(&directory.path().join("gesta.db"));
    let run = |arguments: &[&str]| support::run(&[&["--store", &store], arguments].concat());
    assert_eq!(
        code(&run(&["stream", "read", "nothing"])),
        Some(1),
        "no store yet"
    );
    assert!(
        run(&["stream", "append", "s", "--type", "t", "--data", "{}"])
            .status
            .success()
    );
    assert_eq!(code(&run(&["stream", "read", "nothing"])), Some(3));
    let wrong = run(&[
        "stream",
        "append",
        "s",
        "--type",
        "t",
        "--data",
        "{}",
        "--expected",
        "no-stream",
    ]);
    assert_eq!(code(&wrong), Some(4));
    assert!(
        String::from_utf8_lossy(&wrong.stderr).contains("found revision 0"),
        "{wrong:?}"
    );
    assert_eq!(
        code(&run(&[
            "stream", "append", "s", "--type", "t", "--data", "{"
        ])),
        Some(2)
    );
    assert_eq!(
        code(&run(&["stream", "delete", "s"])),
        Some(2),
        "not without --yes"
    );
    assert!(run(&["stream", "delete", "s", "--yes"]).status.success());
    assert_eq!(code(&run(&["stream", "read", "s"])), Some(3));
    for (store, expected) in [("http://127.0.0.1:1", 5), ("mongodb://x", 2)] {
        let output = support::run(&["--store", store, "info"]);
        assert_eq!(code(&output), Some(expected), "{store}");
    }
}

#[test]
fn a_refused_start_makes_no_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = url_of(&directory.path().join("gesta.db"));
    for (refused, rule) in [
        (
            ["serve", "--advertise-clients", "db"],
            "has no port, found \"db\"",
        ),
        (
            ["serve", "--advertise-clients", "[::]:1"],
            "names no machine",
        ),
        (["serve", "--advertise-clients", "http://db:1"], "HOST:PORT"),
        (
            ["serve", "--listen", "0.0.0.0:0"],
            "other machines could reach it",
        ),
        (["serve", "--log-filter", "loud"], "MODULE=LEVEL"),
    ] {
        let output = run(&[&["--store", &store], &refused[..]].concat());
        assert!(!output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(rule), "{text}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

/// Goal: two servers share a PostgreSQL store; each finds what the other stored, one by its end after a kill.
#[test]
fn two_servers_share_a_database() {
    let Some(database) = gesta_rig::shared() else {
        return;
    };
    let schema = gesta_rig::fresh_schema();
    let store = patient(&format!("{}?schema={schema}", database.url()));
    let one = Server::start(&store);
    let other = Server::start(&store);
    for n in 0..10 {
        let server = if n % 2 == 0 { &one } else { &other };
        assert!(append(server, &n.to_string()).status.success());
    }
    assert_eq!(events(&one).len(), 10);
    one.signal(Signal::SIGKILL);
    assert!(append(&other, "10").status.success());
    let events = events(&other);
    let in_order = |(line, n): (&String, i32)| line.contains(&format!("\"data\":{n}"));
    assert!(events.iter().zip(0..).all(in_order), "{events:?}");
    assert_eq!(events.len(), 11);

    wait_until("what it stored is counted", || {
        let metrics = get(other.address(), "/metrics");
        let mut lines = metrics.lines();
        let name = "gesta_pipeline_batched_events_total{log=\"0\"} ";
        let stored = lines.find_map(|line| line.strip_prefix(name));
        stored.expect(&metrics).parse::<u64>().unwrap() >= 6
    });
    drop((one, other));
    succeed(&["--store", &store, "verify"]);
}
