//! A fail-over that loses commits while the real binary imports into the store.
//!
//! What happened: the import read again what a stream had, and went on there. What was lost before was passed over, the
//! end said that everything was stored, and a repeated import appended it behind what had come later. What holds now:
//! it ends with an error, and the repeated one stores what is missing, in its order.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::collections::HashMap;
use std::io::Write;
use std::process::Stdio;

use gesta_pgtest::{Cluster, Replication, fresh_schema};
use serde_json::Value;
use support::{code, gesta, run_with_input, stderr, stdout, succeed, wait_until};

const STREAMS: u64 = 5;

fn lines(numbers: std::ops::Range<u64>) -> String {
    let line = |n: u64| {
        let stream = n % STREAMS;
        format!("{{\"stream\":\"s-{stream}\",\"type\":\"t\",\"data\":{n}}}\n")
    };
    numbers.map(line).collect()
}

#[test]
fn an_import_ends_when_its_target_loses_commits() {
    let Some(mut cluster) = Cluster::start(1, Replication::Asynchronous).unwrap() else {
        return;
    };
    let schema = fresh_schema();
    let store = format!("{}?schema={schema}", cluster.url());
    let mut import = gesta(&["--store", &store, "all", "import"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = import.stdin.take().unwrap();
    let mut write = |numbers| {
        input.write_all(lines(numbers).as_bytes()).unwrap();
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

    let all = lines(0..900);
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
