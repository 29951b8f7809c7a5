//! Virtual streams through the real binary: switched by one process, read through another.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::process::Output;

use gesta_rig::Server as Postgres;
use serde_json::{Value, json};
use support::{Server, Tries, code, patient, run, run_with_input, stderr, url_of};

/// The code of a command whose store does not answer in time, as on a machine that stands still: nothing was done.
const TRY_AGAIN: i32 = 5;

/// Runs the binary to its end, and again while it says that the store does not answer.
fn answered(arguments: &[&str]) -> Output {
    let tries = Tries::of(format!("{arguments:?}"));
    loop {
        let output = run(arguments);
        if code(&output) != TRY_AGAIN {
            return output;
        }
        std::thread::sleep(tries.pause_after(stderr(&output)));
    }
}

/// The same; it must succeed. Gives standard output.
fn succeed(arguments: &[&str]) -> String {
    let output = answered(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    support::stdout(&output)
}

fn append(store: &str, stream: &str, count: usize) {
    let lines = "{\"type\":\"added\",\"data\":1}\n".repeat(count);
    let done = run_with_input(&["--store", store, "stream", "append", stream], &lines);
    assert!(done.status.success(), "{done:?}");
}

/// The revisions and the texts of links.
fn links(store: &str, stream: &str) -> Vec<(u64, String)> {
    let options = [
        "--store", store, "--output", "json", "stream", "read", stream,
    ];
    let link = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["type"], "$>");
        let data = event["data_base64"].as_str().unwrap().to_owned();
        (event["revision"].as_u64().unwrap(), data)
    };
    succeed(&options).lines().map(link).collect()
}

fn switch(store: &str, what: &str) -> Value {
    let options = [
        "--store",
        store,
        "--output",
        "json",
        "virtual-streams",
        what,
    ];
    serde_json::from_str(&succeed(&options)).unwrap()
}

fn state(on: bool, position: u64, end: u64) -> Value {
    json!({"on": on, "position": position, "end": end})
}

/// Goal: they are off at first, and say how to switch them on; what was written stays while they are off.
#[test]
fn of_a_file_are_switched_on_and_off() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    append(&store, "cart-1", 2);
    assert_eq!(switch(&store, "status"), state(false, 0, 2));
    let off = run(&["--store", &store, "stream", "read", "$ce-cart"]);
    assert_eq!(code(&off), 1, "{off:?}");
    assert!(stderr(&off).contains("gesta virtual-streams on"), "{off:?}");
    assert_eq!(switch(&store, "on"), state(true, 2, 2));
    let first = links(&store, "$ce-cart");
    assert_eq!(first.len(), 2);
    assert_eq!(switch(&store, "off"), state(false, 2, 2));
    append(&store, "cart-2", 1);
    assert_eq!(switch(&store, "status"), state(false, 2, 3));
    assert_eq!(switch(&store, "on"), state(true, 3, 3));
    let now = links(&store, "$ce-cart");
    assert_eq!((&now[..2], now[2].0), (&first[..], 2));
    assert_eq!(links(&store, "$streams").len(), 2);
}

/// Goal: servers that run learn that virtual streams were switched on, and each shows what was appended through the
/// other.
#[test]
fn are_switched_on_under_two_servers() {
    let Some(postgres) = Postgres::start().unwrap() else {
        return;
    };
    let store = patient(&postgres.url());
    let (a, b) = (Server::start(&store), Server::start(&store));
    append(&a.url, "cart-1", 3);
    let off = answered(&["--store", &b.url, "stream", "read", "$ce-cart"]);
    assert!(stderr(&off).contains("gesta virtual-streams on"), "{off:?}");
    assert_eq!(switch(&store, "on"), state(true, 3, 3));
    for server in [&a, &b] {
        assert_eq!(links(&server.url, "$ce-cart").len(), 3);
    }
    for (round, (to, from)) in [(&a, &b), (&b, &a), (&a, &b)].iter().enumerate() {
        append(&to.url, "cart-2", 1);
        assert_eq!(links(&from.url, "$ce-cart").len(), 4 + round);
    }
    assert_eq!(links(&a.url, "$et-added"), links(&b.url, "$et-added"));
    switch(&store, "off");
    for server in [&a, &b] {
        let off = answered(&["--store", &server.url, "stream", "read", "$ce-cart"]);
        assert!(!off.status.success(), "{off:?}");
    }
    a.stop();
    b.stop();
}

/// Goal: a store of several logs has none, and says why.
#[test]
fn need_a_store_of_one_log() {
    let Some(postgres) = Postgres::start().unwrap() else {
        return;
    };
    let store = patient(&postgres.url());
    succeed(&["--store", &store, "schema", "create", "--logs", "4"]);
    let refused = run(&["--store", &store, "virtual-streams", "on"]);
    assert!(!refused.status.success());
    assert!(stderr(&refused).contains("has 4 logs"), "{refused:?}");
}
