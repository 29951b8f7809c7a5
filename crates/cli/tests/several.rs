//! The real binary on a store whose logs lie in several databases.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::time::{Duration, Instant};

use gesta_core::{LogId, StreamId, log_of};
use gesta_rig::{Server as Postgres, fresh_schema, shared};
use support::{PATIENCE, Server, code, get, patient, run, stderr, succeed};

fn urls(postgres: &Postgres, count: usize) -> Vec<String> {
    let url = |_| {
        let (url, schema) = (postgres.url(), fresh_schema());
        patient(&format!("{url}?schema={schema}&readers=1"))
    };
    (0..count).map(url).collect()
}

fn create(urls: &[String], logs: &str) -> String {
    let mut arguments = vec!["schema", "create", "--logs", logs];
    arguments.extend(urls.iter().flat_map(|url| ["--on", url]));
    succeed(&arguments)
}

/// The arguments that name the store.
fn store(urls: &[String]) -> Vec<&str> {
    urls.iter().flat_map(|url| ["--store", url]).collect()
}

fn append(urls: &[String], stream: &str) {
    append_of(urls, stream, "added");
}

fn append_of(urls: &[String], stream: &str, event_type: &str) {
    let mut arguments = vec![
        "stream", "append", stream, "--type", event_type, "--data", "{}",
    ];
    arguments.extend(store(urls));
    succeed(&arguments);
}

/// Streams of log 0 of two.
fn streams_of_log_0() -> [StreamId; 3] {
    let name = |n| StreamId::new(format!("cart-{n}")).unwrap();
    let mut names = (0..).map(name).filter(|name| log_of(name, 2) == LogId(0));
    std::array::from_fn(|_| names.next().unwrap())
}

/// Goal: making, using and checking a store of several databases needs no more than naming them all.
#[test]
fn a_store_in_two_databases_is_made_used_and_verified() {
    let Some(postgres) = shared() else { return };
    let urls = urls(postgres, 2);
    assert!(create(&urls, "4").contains("logs 4"));
    for n in 0..20 {
        append(&urls, &format!("cart-{n}"));
    }
    let with = |arguments: &[&'static str]| {
        let mut all = arguments.to_vec();
        all.extend(store(&urls));
        succeed(&all)
    };
    assert_eq!(
        with(&["all", "read", "--output", "json"]).lines().count(),
        20
    );
    assert_eq!(with(&["stream", "list"]).lines().count(), 20);
    assert!(with(&["info"]).contains("2 × PostgreSQL"));
    let verified = with(&["verify", "--output", "json"]);
    assert!(verified.contains("\"healthy\":true"), "{verified}");
    assert!(with(&["schema", "migrate"]).contains("nothing to do"));
    let before = with(&["info", "--output", "json"]);
    with(&["schema", "new-incarnation", "--yes"]);
    assert_ne!(with(&["info", "--output", "json"]), before);
    with(&["scavenge", "--yes"]);
    let server = Server::start(&urls.join(" "));
    let address = server.url.strip_prefix("http://").unwrap();
    assert!(get(address, "/info").contains("\"logs\":4"));
    drop(server);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("urls");
    std::fs::write(&file, urls.join("\n")).unwrap();
    let info = run(&["info", "--store-file", file.to_str().unwrap()]);
    assert!(info.status.success(), "{info:?}");
}

fn info<'a>(store: &[&'a str]) -> Vec<&'a str> {
    [&["info"][..], store].concat()
}

/// Runs a command, which ends with this code and says these texts.
fn refused(arguments: &[&str], exit: i32, texts: &[&str]) {
    let output = run(arguments);
    assert_eq!(code(&output), exit, "{output:?}");
    let said = stderr(&output);
    assert!(texts.iter().all(|text| said.contains(text)), "{said}");
}

/// Goal: what cannot be served is refused with the value and the rule, before anything is written.
#[test]
fn what_is_no_whole_store_is_refused() {
    let Some(postgres) = shared() else { return };
    let three = urls(postgres, 3);
    create(&three, "6");
    let two = store(&three[..2]);
    let one = store(&three[2..]);
    refused(
        &info(&two),
        2,
        &[
            "all 3 databases of the store, found 2",
            "database 3 of 3",
            "logs 2, 5",
        ],
    );
    refused(&info(&one), 2, &["all 3 databases", "found one"]);
    refused(
        &info(&["--store", &three[0], "--store", "sqlite:x"]),
        2,
        &["number 2"],
    );
    refused(
        &info(&["--store", "http://h:1", "--store", &three[0]]),
        2,
        &["must begin with http:// or https://"],
    );
    let mut create_again = vec!["schema", "create", "--logs", "6"];
    create_again.extend(three.iter().flat_map(|url| ["--on", url]));
    refused(&create_again, 1, &["there is a store already"]);
    let few = [
        "schema", "create", "--logs", "1", "--on", &three[0], "--on", &three[1],
    ];
    refused(&few, 2, &["logs must be at least 2", "found 1"]);
    let twice = [
        "schema", "create", "--logs", "2", "--on", &three[0], "--on", &three[0],
    ];
    refused(&twice, 2, &["twice"]);
    let fresh = urls(postgres, 2);
    let serve = [&["serve", "--listen", "127.0.0.1:0"][..], &store(&fresh)].concat();
    refused(
        &serve,
        1,
        &["number 1 of the 2 databases given", "no store"],
    );
}

/// Goal: what a command about nodes and logs cannot mean is refused.
#[test]
fn the_numbers_of_nodes_and_unknown_logs_are_refused() {
    let Some(postgres) = shared() else { return };
    let three = urls(postgres, 3);
    create(&three, "6");
    // The number of a node says nothing if each database numbers its nodes.
    let move_ = ["cluster", "move", "0", "--to", "1"];
    refused(
        &[&move_[..], &store(&three)].concat(),
        2,
        &["NODE must be the address of a node", "found \"1\""],
    );
    let unpin = ["cluster", "unpin", "6"];
    refused(
        &[&unpin[..], &store(&three)].concat(),
        2,
        &["number of a log of the store, found 6"],
    );
}

/// Goal: `schema create` that died half-way is finished by the same command; a database that was lost later is not.
#[test]
fn a_creation_that_was_broken_off_is_finished() {
    let Some(postgres) = shared() else { return };
    let urls = urls(postgres, 2);
    create(&urls, "4");
    let lose = |url: &str| {
        let (_, schema) = url.split_once("?schema=").unwrap();
        let schema = schema.split('&').next().unwrap();
        postgres
            .execute(&format!("DROP SCHEMA {schema} CASCADE"))
            .unwrap();
    };
    lose(&urls[1]);
    create(&urls, "4");
    append(&urls, "cart-1");
    append(&urls, "cart-2");
    append(&urls, "cart-3");
    append(&urls, "cart-4");
    lose(&urls[1]);
    let mut again = vec!["schema", "create", "--logs", "4"];
    again.extend(urls.iter().flat_map(|url| ["--on", url]));
    let output = run(&again);
    assert_eq!(code(&output), 1, "{output:?}");
    assert!(
        stderr(&output).contains("a store with events"),
        "{output:?}"
    );
}

/// Goal: the statements that are printed for each database make one store.
#[test]
fn printed_statements_make_one_store() {
    let Some(postgres) = shared() else { return };
    let urls = urls(postgres, 2);
    let mut arguments = vec!["schema", "print", "--logs", "4"];
    arguments.extend(urls.iter().flat_map(|url| ["--on", url]));
    let printed = succeed(&arguments);
    let parts: Vec<&str> = printed.split("-- For database ").collect();
    assert_eq!(parts.len(), 3, "{printed}");
    for part in &parts[1..] {
        postgres.execute(&format!("-- {part}")).unwrap();
    }
    append(&urls, "cart-1");
}

/// Goal: a store that has outgrown its database gets another one, and gives it a log, by two commands.
#[test]
fn a_log_moves_to_a_database_that_is_added() {
    let Some(postgres) = shared() else { return };
    let urls = urls(postgres, 2);
    succeed(&["schema", "create", "--logs", "4", "--store", &urls[0]]);
    let names: Vec<String> = (0..12).map(|n| format!("cart-{n}")).collect();
    names.iter().for_each(|name| append(&urls[..1], name));
    let add = ["cluster", "add-database", &urls[1], "--store", &urls[0]];
    assert!(succeed(&add).contains("2 databases"));
    let alone = run(&info(&["--store", &urls[0]]));
    assert_eq!(code(&alone), 2, "{alone:?}");
    let with = |arguments: &[&str]| {
        let store = store(&urls);
        run(&[arguments, &store].concat())
    };
    let before = with(&["all", "read", "--output", "json"]);
    let moved = with(&["cluster", "move-log", "1", "--to", &urls[1]]);
    assert!(moved.status.success(), "{moved:?}");
    let again = with(&[
        "cluster", "move-log", "1", "--to", &urls[1], "--output", "json",
    ]);
    assert!(support::stdout(&again).contains("\"steps\":0"), "{again:?}");
    let after = with(&["all", "read", "--output", "json"]);
    assert!(
        after.status.success() && before.stdout == after.stdout,
        "{after:?}"
    );
    names.iter().for_each(|name| append(&urls, name));
    let verified = with(&["verify", "--output", "json"]);
    assert!(
        support::stdout(&verified).contains("\"healthy\":true"),
        "{verified:?}"
    );
    assert!(
        with(&["cluster", "move-log", "1", "--undo"])
            .status
            .success()
    );
    for (wrong, text) in [
        (["cluster", "move-log", "9", "--to", &urls[0]], "found 9"),
        (["cluster", "move-log", "1", "--to", "sqlite:x"], "postgres"),
    ] {
        let output = with(&wrong);
        assert_eq!(code(&output), 2, "{output:?}");
        assert!(stderr(&output).contains(text), "{output:?}");
    }
}

/// What happened: a log could not go back to a database whose copy of it ended with events that were scavenged since:
/// the copy still had the names that these had been the first to use, and they were copied once more. The log stayed
/// closed until the move was undone. Goal: it goes back, whatever was scavenged, and has the same names.
#[test]
fn a_log_goes_back_after_the_end_of_its_old_copy_was_scavenged() {
    let Some(postgres) = shared() else { return };
    let urls = urls(postgres, 2);
    create(&urls, "2");
    let moving = streams_of_log_0();
    let with = |arguments: &[&str]| succeed(&[arguments, &store(&urls)].concat());
    let move_to = |url: &str| with(&["cluster", "move-log", "0", "--to", url]);
    for gone in [1, 0] {
        append(&urls, moving[gone].as_str());
        // The first of its type, but not of its stream.
        append_of(&urls, moving[gone].as_str(), &format!("gone-{gone}"));
        move_to(&urls[1]);
        with(&["stream", "delete", moving[gone].as_str(), "--yes"]);
        with(&["scavenge", "--yes"]);
        append(&urls, moving[2].as_str());
        let before = with(&["all", "read", "--output", "json"]);
        move_to(&urls[0]);
        assert_eq!(with(&["all", "read", "--output", "json"]), before);
        assert_eq!(names(postgres, &urls[0]), names(postgres, &urls[1]));
        append(&urls, moving[2].as_str());
        let verified = with(&["verify", "--output", "json"]);
        assert!(verified.contains("\"healthy\":true"), "{verified}");
    }
}

/// The names of streams and types of log 0 in the database at a URL.
fn names(postgres: &Postgres, url: &str) -> String {
    let schema = schema_of(url);
    let names = postgres.query(&format!(
        "SELECT string_agg(kind || id || ' ' || name, ', ' ORDER BY kind, id) FROM (\
         SELECT 'stream ' AS kind, id, name FROM {schema}.streams WHERE log = 0 UNION ALL \
         SELECT 'type ', id, name FROM {schema}.types WHERE log = 0) AS names"
    ));
    names.unwrap().unwrap()
}

fn schema_of(url: &str) -> &str {
    let (_, schema) = url.split_once("?schema=").unwrap();
    schema.split('&').next().unwrap()
}

fn execute(postgres: &Postgres, url: &str, sql: &str) {
    let schema = schema_of(url);
    let sql = format!("SET search_path = {schema}; {sql}");
    postgres.execute(&sql).unwrap();
}

/// Goal: an old copy that ends with events which the log has scavenged may be one of another history, and its names of
/// these events are not kept.
#[test]
fn names_of_another_history_do_not_stay_in_an_old_copy() {
    let Some(postgres) = shared() else { return };
    let urls = urls(postgres, 2);
    create(&urls, "2");
    let [kept, gone, later] = streams_of_log_0();
    append(&urls, kept.as_str());
    append_of(&urls, gone.as_str(), "gone");
    let with = |arguments: &[&str]| succeed(&[arguments, &store(&urls)].concat());
    let move_to = |url: &str| with(&["cluster", "move-log", "0", "--to", url]);
    move_to(&urls[1]);
    with(&["stream", "delete", gone.as_str(), "--yes"]);
    with(&["scavenge", "--yes"]);
    append(&urls, later.as_str());
    execute(
        postgres,
        &urls[0],
        "ALTER TABLE streams DISABLE TRIGGER ALL; ALTER TABLE types DISABLE TRIGGER ALL; \
         UPDATE streams SET name = 'another' WHERE log = 0 AND id = 2; \
         UPDATE types SET name = 'another' WHERE log = 0 AND id = 2; \
         ALTER TABLE streams ENABLE ALWAYS TRIGGER streams_refuse_change; \
         ALTER TABLE types ENABLE ALWAYS TRIGGER types_refuse_change",
    );
    assert!(names(postgres, &urls[0]).contains("stream 2 another"));
    let before = names(postgres, &urls[1]);
    move_to(&urls[0]);
    assert_eq!(names(postgres, &urls[0]), before);
    append_of(&urls, later.as_str(), "gone");
    let verified = with(&["verify", "--output", "json"]);
    assert!(verified.contains("\"healthy\":true"), "{verified}");
}

/// Copies a database once nobody is connected to it any more.
fn copy_database(postgres: &Postgres, from: &str, to: &str) {
    let (begun, copy) = (
        Instant::now(),
        format!("CREATE DATABASE {to} TEMPLATE {from}"),
    );
    while let Err(error) = postgres.execute(&copy) {
        assert!(begun.elapsed() < PATIENCE, "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What happened: a database was restored from a backup with events that had been given up since, and the log had used
/// their positions, streams and revisions for others, and had scavenged these. So nothing told the copy from one of the
/// log. When the log moved there, it took over the names of streams and types that had been given up. Goal: the log has
/// its own names wherever it moves.
#[test]
fn a_log_keeps_its_names_when_it_moves_to_a_database_with_a_history_that_was_given_up() {
    let Some(postgres) = shared() else { return };
    let databases = [fresh_schema(), fresh_schema()];
    let url = |name: &String| {
        let url = postgres.create_database(name).unwrap();
        patient(&format!("{url}?schema={name}&readers=1"))
    };
    let urls: Vec<String> = databases.iter().map(url).collect();
    let backup = |of: &str| {
        let to = fresh_schema();
        copy_database(postgres, of, &to);
        to
    };
    let restore = |backup: &str, to: &str| {
        let drop_it = format!("DROP DATABASE {to} WITH (FORCE)");
        postgres.execute(&drop_it).unwrap();
        copy_database(postgres, backup, to);
    };
    let with = |arguments: &[&str]| succeed(&[arguments, &store(&urls)].concat());
    let move_to = |url: &str| with(&["cluster", "move-log", "0", "--to", url]);
    create(&urls, "2");
    let [first, given_up, kept] = streams_of_log_0();
    append(&urls, first.as_str());
    move_to(&urls[1]);
    let before_it_came_back = backup(&databases[0]);
    move_to(&urls[0]);
    append_of(&urls, given_up.as_str(), "given-up");
    let with_what_is_given_up = backup(&databases[0]);
    restore(&before_it_came_back, &databases[0]);
    let recover = ["cluster", "recover-log", "0", "--from", &urls[1]];
    with(&[&recover[..], &["--accept-loss"]].concat());
    append_of(&urls, kept.as_str(), "kept");
    append_of(&urls, kept.as_str(), "kept");
    let at_most_one = ["stream", "metadata", kept.as_str(), "--set"];
    with(&[&at_most_one[..], &["{\"$maxCount\":1}"]].concat());
    with(&["scavenge", "--yes"]);
    restore(&with_what_is_given_up, &databases[0]);
    let before = with(&["all", "read", "--output", "json"]);
    let names_it = |stream: &StreamId| before.contains(&format!("\"{}\"", stream.as_str()));
    assert!(names_it(&kept) && !names_it(&given_up), "{before}");
    move_to(&urls[0]);
    assert_eq!(with(&["all", "read", "--output", "json"]), before);
    append_of(&urls, given_up.as_str(), "given-up");
    append_of(&urls, kept.as_str(), "kept");
    let verified = with(&["verify", "--output", "json"]);
    assert!(verified.contains("\"healthy\":true"), "{verified}");
}

/// Goal: a store of one log gets a second database and moves there, and nothing is switched off without a word.
#[test]
fn a_store_of_one_log_moves_to_its_second_database() {
    let Some(postgres) = shared() else { return };
    let urls = urls(postgres, 2);
    succeed(&["schema", "create", "--store", &urls[0]]);
    append(&urls[..1], "cart-1");
    succeed(&["virtual-streams", "on", "--store", &urls[0]]);
    let add = ["cluster", "add-database", &urls[1], "--store", &urls[0]];
    refused(&add, 1, &["virtual streams are on", "virtual-streams off"]);
    succeed(&["virtual-streams", "off", "--store", &urls[0]]);
    succeed(&add);
    let with = |arguments: &[&str]| run(&[arguments, &store(&urls)].concat());
    // Switched on by a process that did not know of the second database.
    execute(postgres, &urls[0], "UPDATE virtual_index SET is_on = true");
    let status = with(&["virtual-streams", "status"]);
    assert!(support::stdout(&status).contains("are on"), "{status:?}");
    refused(
        &[&["virtual-streams", "on"][..], &store(&urls)].concat(),
        1,
        &["one database"],
    );
    let off = with(&["virtual-streams", "off"]);
    assert!(support::stdout(&off).contains("are off"), "{off:?}");
    for (at, home) in [(1, "database 2 of 2"), (0, "database 1 of 2")] {
        let moved = with(&["cluster", "move-log", "0", "--to", &urls[at]]);
        assert!(support::stdout(&moved).contains(home), "{moved:?}");
        append(&urls, "cart-1");
        let server = Server::start(&urls.join(" "));
        let address = server.url.strip_prefix("http://").unwrap();
        assert!(get(address, "/health/ready").contains("ready"));
    }
    let all = with(&["all", "read", "--output", "json"]);
    assert_eq!(support::stdout(&all).lines().count(), 3, "{all:?}");
    let undone = with(&["cluster", "move-log", "0", "--undo"]);
    assert!(
        support::stdout(&undone).contains("lies in database 1 of 2"),
        "{undone:?}"
    );
}

/// Goal: a copy that is not the log's is found by `verify`, never taken for the log by a move, and given up on request
/// only; a log whose database was set back is recovered by the command that every refusal names.
#[test]
fn what_a_restore_has_broken_is_named_and_mended() {
    let Some(postgres) = shared() else { return };
    let urls = urls(postgres, 2);
    create(&urls, "2");
    let names: Vec<String> = (0..8).map(|n| format!("cart-{n}")).collect();
    names.iter().for_each(|name| append(&urls, name));
    let with = |arguments: &[&str]| run(&[arguments, &store(&urls)].concat());
    let to = |at: usize| with(&["cluster", "move-log", "0", "--to", &urls[at]]);
    assert!(to(1).status.success());
    execute(
        postgres,
        &urls[0],
        "ALTER TABLE events DISABLE TRIGGER ALL; UPDATE events SET writer = 5 WHERE log = 0 AND position = 1; \
         ALTER TABLE events ENABLE TRIGGER ALL",
    );
    let verified = with(&["verify"]);
    assert_eq!(code(&verified), 7, "{verified:?}");
    let said = support::stdout(&verified);
    assert!(
        said.contains("position 1") && said.contains("recover-log 0"),
        "{said}"
    );
    let moved = to(0);
    assert!(stderr(&moved).contains("differs"), "{moved:?}");
    assert!(
        with(&["cluster", "move-log", "0", "--undo"])
            .status
            .success()
    );
    let anew = [
        "cluster",
        "recover-log",
        "0",
        "--from",
        &urls[1],
        "--accept-loss",
    ];
    let anew = with(&anew);
    assert!(anew.status.success(), "{anew:?}");
    assert!(with(&["verify"]).status.success());
    assert!(to(0).status.success());
    execute(
        postgres,
        &urls[0],
        "UPDATE homes SET arrived = 0 WHERE log = 0",
    );
    for command in [
        &["info"][..],
        &["verify"],
        &["cluster", "move-log", "0", "--undo"],
    ] {
        let output = with(command);
        assert!(stderr(&output).contains("recover-log 0"), "{output:?}");
    }
    let recovered = with(&["cluster", "recover-log", "0"]);
    assert!(
        support::stdout(&recovered).contains("log 0 lies in database"),
        "{recovered:?}"
    );
    let all = with(&["all", "read", "--output", "json"]);
    assert_eq!(support::stdout(&all).lines().count(), 8, "{all:?}");
    let again = with(&["cluster", "recover-log", "0"]);
    assert!(
        support::stdout(&again).contains("nothing to do"),
        "{again:?}"
    );
}

/// Goal: a copy that a fail-over has left open stops nobody, and operators see it and can close it.
#[test]
fn a_copy_that_is_open_is_shown_and_closed() {
    let Some(postgres) = shared() else { return };
    let urls = urls(postgres, 2);
    create(&urls, "2");
    (0..8).for_each(|n| append(&urls, &format!("cart-{n}")));
    let with = |arguments: &[&str]| succeed(&[arguments, &store(&urls)].concat());
    let status = ["cluster", "status"];
    let json = ["cluster", "status", "--output", "json"];
    with(&["cluster", "move-log", "0", "--to", &urls[1]]);
    assert!(!with(&status).contains("OPEN COPY"));
    execute(
        postgres,
        &urls[0],
        "ALTER TABLE events DISABLE TRIGGER ALL; DELETE FROM events WHERE position = 9223372036854775807; \
         ALTER TABLE events ENABLE TRIGGER ALL",
    );
    let shown = with(&status);
    assert!(
        shown.contains("OPEN COPY: a copy of log 0 is open in database 1 of 2")
            && shown.contains("gesta cluster move-log 0 --undo"),
        "{shown}"
    );
    let rows = with(&json);
    let row = rows.lines().find(|row| row.contains("open_copy")).unwrap();
    let row: serde_json::Value = serde_json::from_str(row).unwrap();
    assert_eq!(row["log"], 0);
    assert_eq!(row["database"], 1);
    with(&["cluster", "move-log", "0", "--undo"]);
    assert!(!with(&status).contains("OPEN COPY"));
}
