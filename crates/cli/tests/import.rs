//! `gesta all import`: what comes into a store out of lines, and what does not.
//!
//! What happened: a repeated import stored everything twice, and what `read` printed could not be imported.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{EventId, ExpectedRevision, Filter, Query};
use gesta_groups::{
    Action, Config, Create, GroupId, Groups, Identity, JoinGroup, Settings, Start, Which,
};
use gesta_kit::support::{append, event, within};
use serde_json::Value;
use support::{Server, code, run, run_with_input, stderr, stdout, succeed, url_of};

/// Events of interleaved streams: JSON, binary, metadata, tags.
fn sample() -> String {
    (0..300)
        .map(|n| match n % 4 {
            0 => format!("{{\"stream\":\"a-{}\",\"type\":\"t\",\"data\":{{\"n\": {n}}}}}\n", n % 7),
            1 => format!("{{\"stream\":\"b\",\"type\":\"u\",\"data_base64\":\"AAEC\",\"tags\":[\"n:{n}\"]}}\n"),
            2 => format!("{{\"stream\":\"b\",\"type\":\"u\",\"data\":{n},\"metadata\":{{\"by\":\"me\"}}}}\n"),
            _ => "{\"stream\":\"c\",\"type\":\"t\",\"data\":null}\n".to_owned(),
        })
        .collect()
}

/// What an event is, without what each store makes anew.
fn contents(lines: &str) -> Vec<Value> {
    let parse = |line: &str| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        for made_anew in ["created", "checkpoint"] {
            event.as_object_mut().unwrap().remove(made_anew);
        }
        event
    };
    lines.lines().map(parse).collect()
}

#[test]
fn what_was_read_is_imported_once_however_often() {
    let home = tempfile::tempdir().unwrap();
    let (one, two) = (
        url_of(&home.path().join("1.db")),
        url_of(&home.path().join("2.db")),
    );
    let first = run_with_input(&["--store", &one, "all", "import"], &sample());
    assert!(stdout(&first).contains("imported 300 events"), "{first:?}");
    // The same text has the same ids, whatever the batch.
    let again = run_with_input(
        &["--store", &one, "all", "import", "--batch", "7"],
        &sample(),
    );
    assert!(
        stdout(&again).contains("imported 0 events; 300 were"),
        "{again:?}"
    );

    let exported = succeed(&["--store", &one, "--output", "json", "all", "read"]);
    let file = home.path().join("events.jsonl");
    std::fs::write(&file, &exported).unwrap();
    let file = file.to_str().unwrap();
    for expected in ["imported 300 events", "imported 0 events"] {
        let text = succeed(&["--store", &two, "all", "import", file]);
        assert!(text.contains(expected), "{text}");
    }
    let copied = succeed(&["--store", &two, "--output", "json", "all", "read"]);
    assert_eq!(contents(&copied), contents(&exported));

    // Each line has the checkpoint to go on after it.
    let checkpoint = contents_of(&exported, 99)["checkpoint"]
        .as_str()
        .unwrap()
        .to_owned();
    let rest = succeed(&[
        "--store",
        &one,
        "--output",
        "json",
        "all",
        "read",
        "--from",
        &checkpoint,
    ]);
    assert_eq!(contents(&rest), contents(&exported)[100..]);
}

/// Goal: what `stream read` prints is imported under another name.
#[test]
fn one_stream_is_imported_under_another_name() {
    let home = tempfile::tempdir().unwrap();
    let one = url_of(&home.path().join("1.db"));
    let first = run_with_input(&["--store", &one, "all", "import"], &sample());
    assert!(stdout(&first).contains("imported 300 events"), "{first:?}");
    let stream = succeed(&["--store", &one, "--output", "json", "stream", "read", "b"]);
    let renamed = stream.replace("\"stream\":\"b\",", "");
    let other = url_of(&home.path().join("2.db"));
    let done = run_with_input(
        &["--store", &other, "all", "import", "--stream", "x"],
        &renamed,
    );
    assert!(stdout(&done).contains("imported 150 events"), "{done:?}");
    let nameless = run_with_input(&["--store", &other, "all", "import"], &renamed);
    assert_eq!(code(&nameless), 2);
    assert!(
        stderr(&nameless).contains("line 1") && stderr(&nameless).contains("--stream"),
        "{nameless:?}"
    );
}

/// What happened: on a store itself an import took users, tokens and default rights out of the file without a word, so
/// that its author was administrator of the store, or the administrators were kept out.
#[test]
fn accounts_are_taken_from_no_input_without_a_word() {
    let home = tempfile::tempdir().unwrap();
    let url = |name: &str| url_of(&home.path().join(name));
    let add = |store: &str, name: &str| {
        let args = ["--store", store, "user", "add", name, "--admin"];
        let added = run_with_input(&args, &format!("password of {name}\n"));
        assert!(added.status.success(), "{added:?}");
    };
    let (eve, file) = (url("eve.db"), home.path().join("events.jsonl"));
    let file_text = file.to_str().unwrap();
    add(&eve, "eve");
    let cart = "{\"stream\":\"cart-1\",\"type\":\"t\",\"data\":1}\n";
    let exported = succeed(&["--store", &eve, "--output", "json", "all", "read"]);
    std::fs::write(&file, format!("{cart}{exported}")).unwrap();
    let everything = |store: &str| succeed(&["--store", store, "--output", "json", "all", "read"]);

    // A store without users, and one with some.
    let (open, secured) = (url("open.db"), url("secured.db"));
    succeed(&[
        "--store", &open, "stream", "append", "mine", "--type", "t", "--data", "1",
    ]);
    add(&secured, "root");
    for store in [&open, &secured] {
        let before = everything(store);
        let refused = run(&["--store", store, "all", "import", file_text]);
        assert_eq!(code(&refused), 2, "{refused:?}");
        assert!(
            stderr(&refused).contains("line 2 ") && stderr(&refused).contains("\"$access\""),
            "{refused:?}"
        );
        for line in [
            r#"{"stream":"$user-root","type":"$user","data":{}}"#,
            r#"{"stream":"$token-1","type":"$token","data":{}}"#,
            r#"{"stream":"$settings","type":"s","data":{"$userStreamAcl":{"$r":"eve"}}}"#,
            r#"{"stream":"$$$user-root","type":"$metadata","data":{"$tb":9}}"#,
        ] {
            let refused = run_with_input(&["--store", store, "all", "import"], line);
            assert_eq!(code(&refused), 2, "{line} {refused:?}");
            assert!(stderr(&refused).contains("--with-accounts"), "{refused:?}");
        }
        let nameless = r#"{"type":"$user","data":{}}"#;
        let args = ["--store", store, "all", "import", "--stream", "$user-root"];
        assert_eq!(code(&run_with_input(&args, nameless)), 2);
        assert_eq!(everything(store), before);
    }
    // Accounts of its own keep a store from those of others.
    let before = everything(&secured);
    let refused = run(&[
        "--store",
        &secured,
        "all",
        "import",
        "--with-accounts",
        file_text,
    ]);
    assert_eq!(code(&refused), 2, "{refused:?}");
    assert_eq!(everything(&secured), before);

    let copy = url("copy.db");
    for expected in ["imported 4 events", "imported 0 events; 4 were"] {
        let done = run(&[
            "--store",
            &copy,
            "all",
            "import",
            "--with-accounts",
            file_text,
        ]);
        assert!(stdout(&done).contains(expected), "{done:?}");
        assert!(stderr(&done).contains("are those of the input"), "{done:?}");
    }
    let users = succeed(&["--store", &copy, "user", "list"]);
    assert!(
        users.contains("eve") && users.contains("$admins"),
        "{users}"
    );

    // An import of standard input that was stopped is repeated from a file.
    let piped = url("piped.db");
    let args = [
        "--store",
        &piped,
        "all",
        "import",
        "--with-accounts",
        "--batch=1",
    ];
    let text = std::fs::read_to_string(&file).unwrap();
    let stopped = run_with_input(&args, &format!("{text}no JSON\n"));
    assert_eq!(code(&stopped), 2, "{stopped:?}");
    let refused = run_with_input(&args, &text);
    assert!(
        code(&refused) == 2 && stderr(&refused).contains("gesta all import FILE"),
        "{refused:?}"
    );
    let done = run(&[&args[..], &[file_text]].concat());
    assert!(stdout(&done).contains("3 were there already"), "{done:?}");

    // What a server would refuse, the commands on the store refuse too.
    let before = everything(&secured);
    for refused in [
        &["append", "$user-root", "--type", "$user", "--data", "{}"][..],
        &[
            "append",
            "$settings",
            "--type",
            "s",
            "--data",
            "{\"$userStreamacl\":{}}",
        ],
        &[
            "append",
            "$$$user-root",
            "--type",
            "$metadata",
            "--data",
            "{\"$tb\":9}",
        ],
        &["delete", "$user-root", "--yes"],
        &["delete", "$access", "--yes", "--tombstone"],
        &["metadata", "$user-root", "--set", "{\"$tb\":9}"],
    ] {
        let refused = run(&[&["--store", &secured, "stream"], refused].concat());
        assert_eq!(code(&refused), 2, "{refused:?}");
    }
    assert_eq!(everything(&secured), before);
}

/// Goal: metadata of streams come with an import, at their place, once however often it is repeated.
#[test]
fn metadata_of_streams_are_imported() {
    let home = tempfile::tempdir().unwrap();
    let (one, two, three) = (
        url_of(&home.path().join("1.db")),
        url_of(&home.path().join("2.db")),
        url_of(&home.path().join("3.db")),
    );
    let lines = |stream: &str, count: usize| -> String {
        let line = format!("{{\"stream\":\"{stream}\",\"type\":\"t\",\"data\":1}}\n");
        line.repeat(count)
    };
    let set = |store: &str, stream: &str, document: &str| {
        let metadata = ["--store", store, "stream", "metadata", stream, "--set"];
        succeed(&[&metadata[..], &[document]].concat())
    };
    run_with_input(&["--store", &one, "all", "import"], &lines("cut", 10));
    set(
        &one,
        "cut",
        r#"{"$tb":5,"owner":"x","$acl":{"$r":["bob"]}}"#,
    );
    set(&one, "newest", r#"{"$maxCount":2}"#);
    run_with_input(&["--store", &one, "all", "import"], &lines("newest", 5));
    let exported = succeed(&["--store", &one, "--output", "json", "all", "read"]);
    for _ in 0..2 {
        let done = run_with_input(&["--store", &two, "all", "import"], &exported);
        assert!(done.status.success(), "{done:?}");
        for stream in ["cut", "newest"] {
            let [there, here] = [&one, &two].map(|store| {
                let read = ["--output", "json", "--store", store, "stream"];
                let events = succeed(&[&read[..], &["read", stream]].concat());
                let metadata = succeed(&[&read[..], &["metadata", stream]].concat());
                (contents(&events), metadata)
            });
            assert_eq!(there, here, "{stream}");
        }
    }

    // Where other events stand at these revisions, the same metadata would hide others.
    run_with_input(
        &["--store", &three, "all", "import"],
        &lines("cut", 1).replace('1', "2"),
    );
    let refused = run_with_input(&["--store", &three, "all", "import"], &exported);
    let said = stderr(&refused);
    assert!(
        code(&refused) == 2 && said.contains("line 11") && said.contains("other revisions"),
        "{said}"
    );
}

/// Goal: the mark by which clients of EventStoreDB delete is a delete in a file too, and stops no import in the middle.
#[test]
fn the_mark_of_a_delete_is_a_delete() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let lines = "{\"stream\":\"gone\",\"type\":\"t\",\"data\":1}\n\
                 {\"stream\":\"$$gone\",\"type\":\"$metadata\",\"data\":{\"$tb\":9223372036854775807}}\n\
                 {\"stream\":\"other\",\"type\":\"t\",\"data\":1}\n";
    let file = home.path().join("events.jsonl");
    std::fs::write(&file, lines).unwrap();
    let import = ["--store", &store, "all", "import", file.to_str().unwrap()];
    let refused = run(&import);
    let said = stderr(&refused);
    assert!(
        code(&refused) == 2 && said.contains("line 2 of the input: is the delete"),
        "{said}"
    );
    assert!(
        !home.path().join("gesta.db").exists()
            || succeed(&["--store", &store, "all", "read"]).is_empty()
    );
    let revived = run(&[&import[..], &["--revive-deleted"]].concat());
    assert!(revived.status.success(), "{revived:?}");
}

/// Goal: an import never makes readable what was hidden, unless somebody has asked for that.
///
/// What happened: deleted and tombstoned streams came back as readable ones, with exit code 0.
#[test]
fn what_hides_events_is_not_lost_in_silence() {
    for (hides, what) in [
        (
            &["delete", "gone", "--yes"][..],
            "is the delete of the stream \"gone\"",
        ),
        (
            &["delete", "gone", "--tombstone", "--yes"],
            "is the tombstone of the stream \"gone\"",
        ),
        (
            &["metadata", "gone", "--set", r#"{"$maxAge":1}"#],
            "sets $maxAge of the stream \"gone\"",
        ),
    ] {
        let home = tempfile::tempdir().unwrap();
        let (one, two) = (
            url_of(&home.path().join("1.db")),
            url_of(&home.path().join("2.db")),
        );
        let event = "{\"stream\":\"gone\",\"type\":\"t\",\"data\":1}\n";
        run_with_input(&["--store", &one, "all", "import"], event);
        succeed(&[&["--store", &one, "stream"], hides].concat());
        let exported = succeed(&["--store", &one, "--output", "json", "all", "read"]);
        let file = home.path().join("events.jsonl");
        std::fs::write(&file, &exported).unwrap();
        let file = file.to_str().unwrap();
        let refused = run(&["--store", &two, "all", "import", file]);
        let said = stderr(&refused);
        assert!(
            code(&refused) == 2 && said.contains("line 2") && said.contains(what),
            "{said}"
        );
        assert!(said.contains("gesta copy"), "{said}");
        let is_made = home.path().join("2.db").exists();
        assert!(!is_made, "no store is made of a file that is refused");
        let refused = run_with_input(&["--store", &two, "all", "import"], &exported);
        assert_eq!(code(&refused), 2, "{refused:?}");

        let revived = run(&["--store", &two, "all", "import", file, "--revive-deleted"]);
        assert!(
            revived.status.success() && stderr(&revived).contains("because they hide events: 1;"),
            "{revived:?}"
        );
        let read = succeed(&[
            "--store", &two, "--output", "json", "stream", "read", "gone",
        ]);
        assert_eq!(read.lines().count(), 1);
    }
}

/// What happened: `$tb` that was set before the events after it were scavenged came over as it was, and hid events that
/// had got those revisions in the copy; links led to other events. Goal: both are refused at whichever line comes
/// second, before anything is stored if it is a file.
#[test]
fn what_says_a_revision_that_is_of_another_event_is_refused() {
    let line = |stream: &str, revision: u64, event: &str| {
        format!("{{\"stream\":\"{stream}\",\"revision\":{revision},{event}}}\n")
    };
    let event = |revision: u64| {
        line(
            "a",
            revision,
            &format!("\"type\":\"t\",\"data\":{revision}"),
        )
    };
    let truncated = line("$$a", 0, "\"type\":\"$metadata\",\"data\":{\"$tb\":3}");
    let link = line(
        "links",
        0,
        "\"type\":\"$>\",\"content_type\":\"application/octet-stream\",\"data_base64\":\"M0Bh\"",
    );
    for (lines, says, why) in [
        ([truncated.clone(), event(3)], "line 2", "is truncated"),
        (
            [event(3), truncated.clone()],
            "line 2",
            "truncates the stream \"a\"",
        ),
        ([link.clone(), event(3)], "line 2", "has links"),
        (
            [event(3), link.clone()],
            "line 2",
            "is a link to the stream \"a\"",
        ),
    ] {
        let home = tempfile::tempdir().unwrap();
        let store = url_of(&home.path().join("copy.db"));
        let (text, file) = (lines.concat(), home.path().join("events.jsonl"));
        std::fs::write(&file, &text).unwrap();
        let file = file.to_str().unwrap();
        for refused in [
            run(&["--store", &store, "all", "import", file]),
            run_with_input(&["--store", &store, "all", "import"], &text),
        ] {
            let said = stderr(&refused);
            assert!(
                code(&refused) == 2 && said.contains(says) && said.contains(why),
                "{said}"
            );
            assert!(said.contains("gesta copy"), "{said}");
            assert_eq!(succeed(&["--store", &store, "all", "read"]), "");
        }
        let revived = run(&["--store", &store, "all", "import", file, "--revive-deleted"]);
        assert!(revived.status.success(), "{revived:?}");
        let shown = succeed(&["--store", &store, "stream", "read", "a", "--output", "json"]);
        assert_eq!(shown.lines().count(), 1, "{lines:?}");
        if lines.contains(&truncated) {
            assert!(
                stderr(&revived).contains("because they hide events: 1;"),
                "{revived:?}"
            );
        }
        let has_link = lines.contains(&link) && lines[1] == link;
        let said = stderr(&revived).contains("lead to other events or to none: 1");
        assert_eq!(said, has_link, "{revived:?}");
    }
    // An import that was stopped between the two lines, or before the first of them was refused.
    for (first, flag) in [
        (event(3), "--revive-deleted"),
        (truncated.clone(), "--batch=1"),
    ] {
        let home = tempfile::tempdir().unwrap();
        let store = url_of(&home.path().join("copy.db"));
        let begun = run_with_input(&["--store", &store, "all", "import", flag], &first);
        assert!(begun.status.success(), "{begun:?}");
        let both = match flag {
            "--batch=1" => [truncated.clone(), event(3)],
            _ => [event(3), truncated.clone()],
        };
        for _ in 0..2 {
            let args = ["--store", &store, "all", "import", "--revive-deleted"];
            let revived = run_with_input(&args, &both.concat());
            assert!(revived.status.success(), "{revived:?}");
            let shown = succeed(&["--store", &store, "stream", "read", "a", "--output", "json"]);
            assert_eq!(shown.lines().count(), 1, "{both:?}");
        }
    }
    // A store that has what is missing before gets the same revisions.
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("copy.db"));
    let whole: String = (0..3).map(event).collect();
    let whole = whole + &truncated + &link;
    run_with_input(&["--store", &store, "all", "import"], &whole);
    let file = home.path().join("more.jsonl");
    std::fs::write(&file, truncated + &event(3)).unwrap();
    let more = run(&["--store", &store, "all", "import", file.to_str().unwrap()]);
    assert!(more.status.success(), "{more:?}");
}

/// Makes groups in a store: `orders::kept` and `$all::kept` have finished six of ten events and parked the next one;
/// `orders::gone` is deleted.
async fn make_groups(url: &str) {
    let store = gesta::open(url).create().await.unwrap().event_store();
    let groups = Groups::start(Arc::clone(&store), Config::default());
    let group = |text: &str| text.parse::<GroupId>().unwrap();
    for name in ["orders::kept", "$all::kept", "orders::gone"] {
        let settings = Settings {
            max_retry_count: 7,
            ..Settings::default()
        };
        let create = Create {
            group: group(name),
            settings,
            filter: match name.starts_with('$') {
                true => Filter::query(Query {
                    stream_prefixes: vec!["orders".into()],
                    ..Query::default()
                }),
                false => Filter::ALL,
            },
        };
        groups.create(create).await.unwrap();
    }
    let events = |count: usize| (0..count).map(|_| event("T").with_id(EventId::random()));
    for _ in 0..2 {
        append(
            &*store,
            "orders",
            ExpectedRevision::Any,
            events(5).collect(),
        )
        .await;
        append(
            &*store,
            "others",
            ExpectedRevision::Any,
            events(3).collect(),
        )
        .await;
    }
    for name in ["orders::kept", "$all::kept", "orders::gone"] {
        let join = JoinGroup {
            buffer: 10,
            identity: Identity::default(),
            patience: Duration::from_secs(600),
        };
        let mut consumer = groups.join(&group(name), join).await.unwrap();
        for revision in 0..7 {
            let delivery = within("it is delivered", consumer.next()).await.unwrap();
            assert_eq!(delivery.event.revision.0, revision);
            let which = vec![Which::Delivery(delivery.number)];
            match revision {
                6 => consumer
                    .nack(which, Action::Park, "no such book")
                    .await
                    .unwrap(),
                _ => consumer.ack(which).await.unwrap(),
            };
        }
        within("it is parked", async {
            while groups.info(&group(name)).await.unwrap().parked < 1 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    groups.delete(&group("orders::gone")).await.unwrap();
    groups.shutdown().await;
    store.shutdown().await.unwrap();
}

/// Makes a group on a stream, as an import does before it appends what the group had parked.
async fn make_group(url: &str, name: &str, settings: Settings) {
    let store = gesta::open(url).create().await.unwrap().event_store();
    let groups = Groups::start(Arc::clone(&store), Config::default());
    let create = Create {
        group: name.parse().unwrap(),
        settings,
        filter: Filter::ALL,
    };
    groups.create(create).await.unwrap();
    groups.shutdown().await;
    store.shutdown().await.unwrap();
}

/// Returns the number of parked events of a group, and what a replay and the group deliver, in order.
async fn what_is_left(url: &str, name: &str) -> (u64, Vec<u64>) {
    let store = gesta::open(url).create().await.unwrap().event_store();
    let groups = Groups::start(Arc::clone(&store), Config::default());
    let group: GroupId = name.parse().unwrap();
    let info = groups.info(&group).await.unwrap();
    assert_eq!((info.halted, info.settings.max_retry_count), (None, 7));
    groups.replay_parked(&group, None).await.unwrap();
    let join = JoinGroup {
        buffer: 1,
        identity: Identity::default(),
        patience: Duration::from_secs(600),
    };
    let mut consumer = groups.join(&group, join).await.unwrap();
    let mut found = Vec::new();
    for _ in 0..4 {
        let delivery = within("it is delivered", consumer.next()).await.unwrap();
        assert_eq!(delivery.event.stream.as_str(), "orders");
        found.push(delivery.event.revision.0);
        let which = vec![Which::Delivery(delivery.number)];
        consumer.ack(which).await.unwrap();
    }
    drop(consumer);
    groups.shutdown().await;
    store.shutdown().await.unwrap();
    // What is replayed comes before or between the others.
    found.sort_unstable();
    (info.parked, found)
}

/// What happened: a deleted group made the import refuse the whole export, and the groups of a copy were halted, for
/// their checkpoints told of the history of the original. Goal: groups are made anew where they were, and the report
/// names each of them.
#[test]
fn consumer_groups_go_on_in_a_copy() {
    let home = tempfile::tempdir().unwrap();
    let url = |name: &str| url_of(&home.path().join(name));
    let one = url("1.db");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(make_groups(&one));
    let exported = succeed(&["--store", &one, "--output", "json", "all", "read"]);
    let file = home.path().join("events.jsonl");
    std::fs::write(&file, &exported).unwrap();
    let file = file.to_str().unwrap();

    let copy = url("2.db");
    let text = succeed(&["--store", &copy, "all", "import", file]);
    // The copy has no events of groups: 7 + 3 of the 16 are before the place of the group on all events.
    for expected in [
        "imported 16 events; 0 were",
        "group $all::kept was created: it goes on at 11 and has 1 parked event",
        "group orders::kept was created: it goes on at 7 and has 1 parked event",
        "group orders::gone was deleted, and was not created",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    let again = succeed(&[
        "--store", &copy, "--output", "json", "all", "import", file, "--skip", "20",
    ]);
    let again: Value = serde_json::from_str(&again).unwrap();
    let outcomes = again["groups"].as_array().unwrap().iter();
    let outcomes: Vec<_> = outcomes
        .map(|group| group["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes, ["deleted", "there", "there"], "{again}");
    for name in ["orders::kept", "$all::kept"] {
        let left = runtime.block_on(what_is_left(&copy, name));
        assert_eq!(left, (1, vec![6, 7, 8, 9]), "{name}");
    }

    // The same through a server, from standard input: it cannot tell the place of a group on all events.
    let server = Server::start(&url("3.db"));
    let done = run_with_input(&["--store", &server.url, "all", "import"], &exported);
    let text = stdout(&done);
    assert!(
        text.contains("group orders::kept was created: it goes on at 7 and has 1 parked event")
            && text.contains("group $all::kept was not created; it had come to position")
            && text.contains("gesta group reset '$all::kept' --to"),
        "{done:?}"
    );
    server.stop();
    assert_eq!(
        runtime.block_on(what_is_left(&url("3.db"), "orders::kept")),
        (1, vec![6, 7, 8, 9])
    );

    // Where other events stand at the revisions, no place is guessed.
    let other = url("4.db");
    let before = "{\"stream\":\"orders\",\"type\":\"t\",\"data\":1}\n";
    run_with_input(&["--store", &other, "all", "import"], before);
    let text = succeed(&["--store", &other, "all", "import", file]);
    for name in ["orders::kept", "$all::kept"] {
        let made = format!("group {name} was not created; it had come to");
        assert!(text.contains(&made), "{text}");
    }
}

/// What happened: an import that was stopped after it had made a group, and before it had appended what the group had
/// parked, was repeated without a word about these events, and they were lost to the copy. And with `--skip` the groups
/// in lines of standard input that were passed over were forgotten.
#[test]
fn a_group_that_an_import_has_begun_to_make_is_finished() {
    let home = tempfile::tempdir().unwrap();
    let url = |name: &str| url_of(&home.path().join(name));
    let one = url("1.db");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(make_groups(&one));
    let exported = succeed(&["--store", &one, "--output", "json", "all", "read"]);
    let is_of_group = |line: &&str| line.contains("persistentsubscription");
    let events = exported.lines().filter(|line| !is_of_group(line));
    let events: String = events.map(|line| format!("{line}\n")).collect();
    let made_so_far = |copy: &str, max_retry_count: u32| {
        run_with_input(&["--store", copy, "all", "import"], &events);
        let settings = Settings {
            max_retry_count,
            start: Start::At(7),
            ..Settings::default()
        };
        runtime.block_on(make_group(copy, "orders::kept", settings));
    };
    let import = |copy: &str, more: &[&str]| {
        let args = [&["--store", copy, "all", "import"], more].concat();
        let done = run_with_input(&args, &exported);
        assert!(done.status.success(), "{done:?}");
        stdout(&done)
    };

    let copy = url("2.db");
    made_so_far(&copy, 7);
    let finished =
        "group orders::kept was created: it goes on at 7 and has 1 parked event; an earlier import";
    let lines = exported.lines().count().to_string();
    let text = import(&copy, &["--skip", &lines]);
    assert!(text.contains(finished), "{text}");
    let text = import(&copy, &[]);
    let there = "group orders::kept exists already, and stays as it is";
    assert!(text.lines().any(|line| line == there), "{text}");
    let left = || runtime.block_on(what_is_left(&copy, "orders::kept"));
    assert_eq!(left(), (1, vec![6, 7, 8, 9]));
    // What was replayed does not come again.
    let text = import(&copy, &[]);
    assert!(
        text.contains(there) && !text.contains("was created"),
        "{text}"
    );

    // A group that somebody else has made stays as it is, and the report tells what it lacks.
    let other = url("3.db");
    made_so_far(&other, 8);
    let text = import(&other, &[]);
    let lacks = format!("{there}; 1 parked event of the input is not added to it: its settings");
    assert!(text.contains(&lacks), "{text}");
}

fn contents_of(lines: &str, index: usize) -> Value {
    serde_json::from_str(lines.lines().nth(index).unwrap()).unwrap()
}
