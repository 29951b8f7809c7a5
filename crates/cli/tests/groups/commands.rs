//! `gesta group …` against a server.

use gesta_client::HttpStore;
use gesta_groups::{Action, ConsumerGroups, GroupId};
use serde_json::{Value, json};

use crate::support::{Server, code, run, stderr, succeed, url_of, wait_until};

/// The last line of what a command prints as JSON.
fn shown(url: &str, arguments: &[&str]) -> Value {
    let all = [&["--store", url, "--output", "json", "group"], arguments].concat();
    let text = succeed(&all);
    serde_json::from_str(text.lines().last().unwrap_or("null")).unwrap()
}

/// Runs `gesta group` with these arguments, which must fail with this code and say this.
fn refused(url: &str, arguments: &[&str], expected: i32, says: &str) {
    let output = run(&[&["--store", url, "group"], arguments].concat());
    assert_eq!(code(&output), expected, "{arguments:?}: {output:?}");
    assert!(stderr(&output).contains(says), "{arguments:?}: {output:?}");
}

/// Takes one event of a group, and parks it.
async fn park_one(url: &str, group: &GroupId) {
    let groups = HttpStore::connect(url).unwrap().groups();
    let mut consumer = groups.join(group, 10, "worker\u{1b}[2J").await.unwrap();
    let delivery = consumer.next().await.unwrap().unwrap();
    let text = succeed(&["--store", url, "group", "info", &group.to_string()]);
    assert!(
        text.contains("consumer") && text.contains("holds 1 of 10"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let answered = consumer.nack(&delivery, Action::Park, "no such book").await;
    assert!(answered.unwrap());
}

/// Goal: from making a group to deleting it, people need no other tool to look after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_looked_after_by_commands() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&home.path().join("gesta.db")));
    let url = server.url.as_str();
    let append = |stream: &str| {
        let data = ["--type", "ordered", "--data", "{}"];
        succeed(&[&["--store", url, "stream", "append", stream], &data[..]].concat());
    };
    append("orders");
    // However long the test takes, nothing is delivered again.
    let settings = r#"{"max_retry_count": 5, "message_timeout_ms": 3600000}"#;
    let created = shown(url, &["create", "orders::billing", "--settings", settings]);
    assert_eq!(created["settings"]["max_retry_count"], 5, "{created}");
    let created = shown(url, &["create", "$all::mail", "--category", "cart"]);
    assert_eq!(created["filter"][0]["categories"], json!(["cart"]));

    let all = succeed(&["--store", url, "group", "list"]);
    assert_eq!(all, "$all::mail\norders::billing\n");
    let of_all = json!({"source": "$all", "group": "mail"});
    assert_eq!(shown(url, &["list", "$all"]), of_all);
    assert_eq!(shown(url, &["list", "carts"]), Value::Null);

    let group: GroupId = "orders::billing".parse().unwrap();
    park_one(url, &group).await;
    let parked = group.parked_stream();
    // The answer comes before the event is parked.
    wait_until("it is parked", || {
        shown(url, &["info", "orders::billing"])["parked"] == 1
    });
    let links = succeed(&["--store", url, "stream", "read", parked.as_str()]);
    assert!(links.contains("0@orders"), "{links}");
    let text = succeed(&["--store", url, "group", "info", "orders::billing"]);
    assert!(text.contains(parked.as_str()), "{text}");
    // What happened: all settings stood in one line of JSON.
    assert!(text.contains("settings     max_retry_count 5\n"), "{text}");
    assert!(
        text.contains("the others are default") && !text.contains('{'),
        "{text}"
    );

    shown(url, &["replay-parked", "orders::billing"]);
    let settings = r#"{"message_timeout_ms": 5000}"#;
    let updated = shown(url, &["update", "orders::billing", "--settings", settings]);
    assert_eq!(updated["settings"]["message_timeout_ms"], 5_000);
    assert_eq!(updated["settings"]["max_retry_count"], 10, "the default");

    refused(url, &["delete", "orders::billing"], 2, "--yes");
    shown(url, &["delete", "orders::billing", "--yes"]);
    refused(url, &["info", "orders::billing"], 3, "not found");
    let left = succeed(&["--store", url, "group", "list"]);
    assert_eq!(left, "$all::mail\n");
    server.stop();
}

/// Goal: what is wrong is refused with the rule that it breaks.
#[test]
fn wrong_groups_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    refused(&store, &["list"], 2, "groups are run by a server");
    let server = Server::start(&store);
    let url = server.url.as_str();
    refused(url, &["info", "billing"], 2, "must be STREAM::GROUP");
    refused(url, &["create", "orders::"], 2, "must be 1 to 256 bytes");
    for (option, value, says) in [
        ("--settings", r#"{"retries": 5}"#, "retries"),
        (
            "--settings",
            r#"{"live_buffer_size": 0}"#,
            "live_buffer_size",
        ),
        ("--category", "cart", "filter"),
    ] {
        refused(url, &["create", "orders::billing", option, value], 2, says);
    }
    succeed(&["--store", url, "group", "create", "orders::billing"]);
    refused(url, &["create", "orders::billing"], 1, "exists already");
    let far = ["reset", "orders::billing", "--to", "1200", "--yes"];
    refused(url, &far, 2, "--to must be at most");
    refused(url, &["delete", "orders::other", "--yes"], 3, "not found");
    server.stop();
}
