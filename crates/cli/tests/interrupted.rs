//! Imports, exports and tails that are stopped in the middle, or whose store changes meanwhile.
//!
//! What happened: Ctrl-C during an import or export ended with exit code 0 and part of the data, and `tail` ended when
//! its server was restarted.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Output, Stdio};

use gesta_rig::{Cluster, Replication, fresh_schema};
use nix::sys::signal::Signal;
use serde_json::Value;
use support::{
    Limit, Server, code, ended, gesta, once_quick_enough, run, run_with_input, signal, stderr,
    stdout, succeed, url_of, wait_until,
};

/// Begins a command whose input and output are the test's.
fn begin(arguments: &[&str]) -> Child {
    let mut command = gesta(arguments);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_stopped_import_says_how_far_it_came_and_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let server = Server::start(&store);
    let line = |n: u64| format!("{{\"stream\":\"b\",\"type\":\"t\",\"data\":{n}}}\n");
    let sample: String = (0..300).map(line).collect();
    let lines: Vec<&str> = sample.lines().collect();
    let mut child = gesta(&["--store", &server.url, "all", "import", "--batch", "10"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // More does not come, so the import cannot end by itself.
    stdin.write_all(lines[..200].join("\n").as_bytes()).unwrap();
    stdin.flush().unwrap();
    wait_until("some of it is stored", || {
        let read = run(&["--store", &server.url, "stream", "read", "b"]);
        read.status.success()
    });
    signal(&child, Signal::SIGINT);
    let stopped = ended(child);
    assert_eq!(code(&stopped), 130, "{stopped:?}");
    let said = stderr(&stopped);
    let skip = said.rsplit_once("--skip ").expect(&said).1.trim();
    assert!(skip.parse::<usize>().expect(&said) <= 200, "{said}");

    let rest = run_with_input(
        &["--store", &server.url, "all", "import", "--skip", skip],
        &sample,
    );
    assert!(rest.status.success(), "{rest:?}");
    let whole = run_with_input(&["--store", &server.url, "all", "import"], &sample);
    assert!(
        stdout(&whole).contains("imported 0 events; 300 were"),
        "{whole:?}"
    );
}

/// What happened: an import called a stream lost that somebody had deleted and scavenged meanwhile, and told to repeat
/// it, which brings the stream back. Goal: it goes on.
#[test]
fn a_stream_that_is_deleted_during_an_import_is_not_lost() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&home.path().join("gesta.db")));
    let on = ["--store", &server.url];
    let mut child = begin(&[&on[..], &["all", "import", "--batch", "1"]].concat());
    let _limit = Limit::of(&child);
    let mut stdin = child.stdin.take().unwrap();
    let line = |n: u64| format!("{{\"stream\":\"a\",\"type\":\"t\",\"data\":{n}}}\n");
    stdin
        .write_all([line(0), line(1)].concat().as_bytes())
        .unwrap();
    wait_until("some of it is stored", || {
        let read = run(&[&on[..], &["stream", "read", "a"]].concat());
        read.status.success()
    });
    for command in [
        &["stream", "append", "a", "--type", "t", "--data", "0"][..],
        &["stream", "delete", "a", "--yes"],
        &["stream", "append", "other", "--type", "t", "--data", "0"],
        &["scavenge", "--yes"],
    ] {
        succeed(&[&on[..], command].concat());
    }
    stdin.write_all(line(2).as_bytes()).unwrap();
    drop(stdin);
    let done = child.wait_with_output().unwrap();
    assert!(stdout(&done).contains("imported 3 events"), "{done:?}");
    let shown = succeed(&[&on[..], &["stream", "read", "a", "--output", "json"]].concat());
    assert_eq!(shown.lines().count(), 2, "{shown}");
    server.stop();
}

/// Goal: Ctrl-C ends a command that waits for more input.
#[test]
fn an_append_that_waits_for_input_can_be_stopped() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    for command in [
        &["stream", "append", "a", "--batch", "2"][..],
        &["all", "import"],
    ] {
        let mut child = begin(&[&["--store", &store], command].concat());
        let _limit = Limit::of(&child);
        let mut stdin = child.stdin.take().unwrap();
        let line = "{\"stream\":\"a\",\"type\":\"t\",\"data\":1}\n";
        stdin.write_all(line.repeat(3).as_bytes()).unwrap();
        if command[1] == "append" {
            let mut shown = String::new();
            let mut lines = BufReader::new(child.stdout.take().unwrap());
            lines.read_line(&mut shown).unwrap();
            assert!(shown.contains("revision 0 to 1"), "{shown}");
        } else {
            // The store is open, so Ctrl-C is listened to.
            let beside = home.path().join("gesta.db-shm");
            wait_until("the store is open", || beside.exists());
        }
        signal(&child, Signal::SIGINT);
        wait_until("the command ends", || child.try_wait().unwrap().is_some());
        let stopped = child.wait_with_output().unwrap();
        assert_eq!(code(&stopped), 130, "{stopped:?}");
        let text = stderr(&stopped);
        if command[1] == "append" {
            assert!(text.contains("2 events were stored"), "{text}");
        } else {
            assert!(text.contains("stopped"), "{text}");
        }
        drop(stdin);
    }
}

#[test]
fn a_stopped_export_is_a_failure_and_says_how_to_go_on() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let many = "{\"type\":\"t\",\"data\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}\n"
        .repeat(9_000);
    let append = [
        "--store", &store, "stream", "append", "a", "--batch", "3000",
    ];
    assert!(run_with_input(&append, &many).status.success());
    for command in [&["all", "read"][..], &["stream", "read", "a"]] {
        // An export may be quicker than the signal, but not always.
        let stopped = once_quick_enough(|| stop_export(&store, command, 9_000));
        let stopped = stopped.expect("the export was stopped");
        assert_eq!(code(&stopped), 130, "{stopped:?}");
        assert!(stderr(&stopped).contains("--from"), "{stopped:?}");
    }
}

/// Stops an export after its first line; `None` if it came to its end, which is so many lines.
fn stop_export(store: &str, command: &[&str], lines_max: usize) -> Option<Output> {
    let mut child = gesta(&["--store", store, "--output", "json"])
        .args(command)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _limit = Limit::of(&child);
    // A pipe that is full holds the export until it is read on.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    signal(&child, Signal::SIGINT);
    let shown = 1 + lines.count();
    let ended = child.wait_with_output().unwrap();
    (shown < lines_max).then_some(ended)
}

#[test]
fn standard_input_that_is_empty_or_too_long_is_explained() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    for command in [&["stream", "append", "a"][..], &["all", "import"]] {
        let empty = run_with_input(&[&["--store", &store], command].concat(), "\n");
        if command[1] == "append" {
            assert_eq!(code(&empty), 2, "{empty:?}");
            assert!(
                stderr(&empty).contains("standard input is empty"),
                "{empty:?}"
            );
        }
        let empty = run(&[&["--store", &store], command].concat());
        assert_eq!(code(&empty), 2, "{empty:?}");
        assert!(stderr(&empty).contains("is empty"), "{empty:?}");
    }
    let line = "{\"type\":\"t\",\"data\":1}\n";
    let long = run_with_input(
        &["--store", &store, "stream", "append", "a"],
        &line.repeat(10_001),
    );
    assert_eq!(code(&long), 2, "{long:?}");
    assert!(stderr(&long).contains("--batch"), "{long:?}");
    let other = run_with_input(
        &["--store", &store, "stream", "append", "a"],
        "{\"stream\":\"b\",\"type\":\"t\",\"data\":1}\n",
    );
    assert_eq!(code(&other), 2);
    assert!(stderr(&other).contains("gesta all import"), "{other:?}");
}

/// Goal: `tail` goes on where it was when its server comes back, and says so once.
#[test]
fn tail_goes_on_after_a_restart_of_the_server() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let address = gesta_rig::free_address().unwrap().to_string();
    let server = Server::start_with(&store, &["--listen", &address]);
    let url = server.url.clone();
    let append = |n: u32| {
        let data = n.to_string();
        succeed(&[
            "--store", &url, "stream", "append", "a", "--type", "t", "--data", &data,
        ]);
    };
    append(0);
    let tails: Vec<_> = [
        &["all", "tail", "--after", "start"][..],
        &["stream", "tail", "a", "--after", "start"],
    ]
    .into_iter()
    .map(|command| {
        let mut child = gesta(&["--store", &url, "--output", "json"])
            .args(command)
            .args(["--limit", "3"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let limit = Limit::of(&child);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        assert!(first.contains("\"data\":0"), "{first}");
        (child, lines, limit)
    })
    .collect();
    server.kill();
    let server = Server::start_with(&store, &["--listen", &address]);
    append(1);
    append(2);
    for (mut child, mut lines, _limit) in tails {
        for expected in 1..3 {
            let line = lines.next().unwrap().unwrap();
            assert!(line.contains(&format!("\"data\":{expected}")), "{line}");
        }
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(child.wait().unwrap().success());
        let times = |text: &str| said.matches(text).count();
        assert_eq!(
            (times("trying again"), times("connected again")),
            (1, 1),
            "{said}"
        );
    }
    server.stop();
}

const STREAMS: u64 = 5;

fn numbered(numbers: std::ops::Range<u64>) -> String {
    let line = |n: u64| {
        let stream = n % STREAMS;
        format!("{{\"stream\":\"s-{stream}\",\"type\":\"t\",\"data\":{n}}}\n")
    };
    numbers.map(line).collect()
}

/// What happened: a fail-over lost commits while an import went on. It read again what a stream had, and went on there.
/// What was lost before was passed over, the end said that everything was stored, and a repeated import appended it
/// behind what had come later. Goal: it ends with an error, and the repeated one stores what is missing, in its order.
#[test]
fn an_import_ends_when_its_target_loses_commits() {
    let Some(mut cluster) = Cluster::start(1, Replication::Asynchronous).unwrap() else {
        return;
    };
    let schema = fresh_schema();
    let store = format!("{}?schema={schema}", cluster.url());
    let mut import = begin(&["--store", &store, "all", "import"]);
    let mut input = import.stdin.take().unwrap();
    let mut write = |numbers| {
        input.write_all(numbered(numbers).as_bytes()).unwrap();
        input.flush().unwrap();
    };
    let stored = |cluster: &Cluster| {
        let count = format!("SELECT count(*) FROM {schema}.events");
        let count = cluster.server(0).query(&count);
        count.ok().flatten().map_or(0, |text| text.parse().unwrap())
    };
    write(0..300);
    wait_until("the first part is stored", || stored(&cluster) >= 290);
    cluster.wait_for_standby(1).unwrap();
    cluster.hold_replication(1).unwrap();
    write(300..600);
    wait_until("the second part is stored", || stored(&cluster) >= 590);
    cluster.server_mut(0).kill_9().unwrap();
    cluster.promote(1).unwrap();
    write(600..900);
    drop(input);
    let ended = import.wait_with_output().unwrap();
    let said = stderr(&ended);
    assert_eq!(code(&ended), 5, "{said}");
    assert!(
        said.contains("lost commits") && said.contains("from its first line"),
        "{said}"
    );

    let all = numbered(0..900);
    let again = run_with_input(&["--store", &store, "all", "import"], &all);
    assert!(again.status.success(), "{again:?}");
    assert!(!stdout(&again).contains("imported 0 events"), "{again:?}");
    let read = succeed(&["--store", &store, "--output", "json", "all", "read"]);
    let mut found: HashMap<String, Vec<u64>> = HashMap::new();
    for line in read.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let numbers = found.entry(event["stream"].to_string()).or_default();
        numbers.push(event["data"].as_u64().unwrap());
    }
    assert_eq!(found.len() as u64, STREAMS);
    for numbers in found.into_values() {
        let first = numbers[0];
        let expected: Vec<u64> = (0..180).map(|n| first + n * STREAMS).collect();
        assert_eq!(numbers, expected);
    }
}
