//! What a new user meets: help pages, damaged stores, room on the disk, what is given wrongly.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

#[path = "usage/addresses.rs"]
mod addresses;
#[path = "usage/progress.rs"]
mod progress;
#[path = "usage/projections.rs"]
mod projections;
#[path = "usage/protected.rs"]
mod protected;
mod support;

use std::io::Write as _;

use nix::sys::signal::Signal;
use support::{
    Server, code, gesta, get, output_of, run, run_with_input, stderr, stdout, succeed, url_of,
};

/// What happened: each help page ended with 30 lines about options that every command has.
#[test]
fn help_pages_are_about_their_command() {
    for command in [
        &["info"][..],
        &["serve"],
        &["backup"],
        &["stream", "read"],
        &["all", "import"],
        &["schema", "create"],
    ] {
        let text = succeed(&[command, &["--help"]].concat());
        let (_, common) = text.split_once("Common options:").expect(&text);
        let lines = common
            .lines()
            .take_while(|line| !line.contains("Exit codes"));
        let of_options = lines
            .filter(|line| line.trim_start().starts_with("--"))
            .count();
        assert_eq!(of_options, 8, "{text}");
        let block = common.split("\n\n").next().unwrap();
        assert!(block.lines().count() <= 14, "{command:?}: {block}");
    }
    // What happened: the page of all commands said less of this code than the reference.
    let text = succeed(&["--help"]);
    assert!(text.contains("or the events were stored before"), "{text}");
}

/// Goal: who cannot be shown the answer is told what is done all the same, and does not do it twice.
///
/// What happened: the error was "No space left on device" alone. So an append was repeated and its event stored twice,
/// and a token was made whose secret nobody had seen.
#[cfg(target_os = "linux")]
#[test]
fn an_answer_that_cannot_be_written_says_what_is_done() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let unwritten = |arguments: &[&str], input: &[u8]| {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let mut command = gesta(&[arguments, &["--store", &store]].concat());
        let command = command
            .env("GESTA_NEW_PASSWORD", "correct horse battery")
            .stdin(std::process::Stdio::piped())
            .stdout(full.unwrap())
            .stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!(code(&ended), 1, "{ended:?}");
        let told = stderr(&ended);
        let begins = "error: standard output cannot be written: No space left on device";
        assert!(told.starts_with(begins), "{told}");
        told
    };
    let one = ["stream", "append", "a", "--type", "t", "--data", "1"];
    let told = unwritten(&one, b"");
    assert!(told.contains("the event is stored"), "{told}");
    let lines = "{\"type\":\"t\",\"data\":1}\n".repeat(5);
    let batches = ["stream", "append", "b", "--batch", "2"];
    let told = unwritten(&batches, lines.as_bytes());
    assert!(told.contains("2 events are stored, up to line 2"), "{told}");
    for (stream, events) in [("a", 1), ("b", 2)] {
        let read = ["stream", "read", stream, "--output", "json"];
        let read = succeed(&[&read[..], &["--store", &store]].concat());
        assert_eq!(read.lines().count(), events, "{read}");
    }
    let told = unwritten(&["user", "add", "root", "--admin"], b"");
    assert!(told.contains("stays done"), "{told}");
    let create = ["token", "create", "root", "--scope", "read"];
    let told = unwritten(&create, b"");
    let (_, id) = told.split_once("gesta token revoke ").expect(&told);
    let (id, rest) = id.split_once(' ').expect(&told);
    assert!(rest.starts_with(&format!("--store {store}`")), "{told}");
    succeed(&["token", "revoke", id, "--store", &store]);
    unwritten(&["stream", "read", "a"], b"");
}

/// Goal: who closes the terminal of a server stops it as with SIGTERM.
#[test]
fn a_hang_up_stops_a_server_in_order() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&home.path().join("gesta.db")));
    server.stop_by(Signal::SIGHUP);
}

#[test]
fn reading_begins_at_the_start_or_the_end() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let two = "{\"type\":\"t\",\"data\":1}\n{\"type\":\"t\",\"data\":2}\n";
    assert!(
        run_with_input(&["--store", &store, "stream", "append", "a"], two)
            .status
            .success()
    );
    for command in [&["stream", "read", "a"][..], &["all", "read"]] {
        let read = |more: &[&str]| {
            let options = ["--store", &store, "--output", "json"];
            succeed(&[&options[..], command, more].concat())
                .lines()
                .count()
        };
        assert_eq!(read(&["--from", "start"]), 2, "{command:?}");
        assert_eq!(read(&["--from", "end", "--backwards"]), 2, "{command:?}");
    }
}

/// What happened: the first page of the file that could not be read ended `verify` with an error, and with `--output
/// json` there was no JSON. Now it reads on after it, and the summary comes last in either form.
#[test]
fn verify_goes_on_after_a_damaged_page() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("gesta.db");
    let store = url_of(&path);
    let line = format!("{{\"type\":\"t\",\"data\":\"{}\"}}\n", "x".repeat(900));
    let append = ["--store", &store, "stream", "append", "a", "--batch", "500"];
    assert!(
        run_with_input(&append, &line.repeat(2_000))
            .status
            .success()
    );
    let healthy = std::fs::read(&path).unwrap();
    // Two leaves of the table of events, far apart: pages that hold data.
    let leaves: Vec<usize> = (1..healthy.len() / 4_096)
        .filter(|page| {
            healthy[page * 4_096] == 13
                && healthy[page * 4_096..][..4_096]
                    .windows(50)
                    .any(|part| part == &[b'x'; 50][..])
        })
        .collect();
    let mut damaged = healthy.clone();
    for leaf in [leaves[leaves.len() / 4], leaves[leaves.len() / 2]] {
        damaged[leaf * 4_096..][..4_096].fill(0x5a);
    }
    std::fs::write(&path, damaged).unwrap();
    let checked = run(&["--store", &store, "--output", "json", "verify"]);
    assert_eq!(code(&checked), 7, "{checked:?}");
    let records: Vec<serde_json::Value> = stdout(&checked)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let unread = |record: &&serde_json::Value| {
        record["text"]
            .as_str()
            .is_some_and(|text| text.contains("cannot be read"))
    };
    assert_eq!(records.iter().filter(unread).count(), 2, "{records:#?}");
    let summary = records.last().unwrap();
    assert_eq!(summary["healthy"], false);
    assert!(summary["events"].as_u64().unwrap() > 1_800, "{summary}");
}

#[test]
fn scavenging_gives_room_back_when_it_is_asked_to() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("gesta.db");
    let store = url_of(&path);
    let line = format!("{{\"type\":\"t\",\"data\":\"{}\"}}\n", "x".repeat(2_000));
    let append = ["--store", &store, "stream", "append", "a", "--batch", "500"];
    assert!(
        run_with_input(&append, &line.repeat(1_000))
            .status
            .success()
    );
    let bytes = || std::fs::metadata(&path).unwrap().len();
    let before = bytes();
    succeed(&[
        "--store",
        &store,
        "stream",
        "metadata",
        "a",
        "--set",
        "{\"$maxCount\": 10}",
    ]);
    succeed(&["--store", &store, "scavenge", "--yes"]);
    assert!(bytes() >= before, "the room is kept for new events");
    let text = succeed(&["--store", &store, "scavenge", "--yes", "--compact"]);
    assert!(text.contains("the file had"), "{text}");
    assert!(bytes() < before / 10, "{} of {before}", bytes());
    succeed(&["--store", &store, "verify"]);
    assert_eq!(
        succeed(&["--store", &store, "--output", "json", "stream", "read", "a"])
            .lines()
            .count(),
        10
    );
}

/// Streams whose metadata cannot be read are left as they are, and nobody was told.
#[test]
fn scavenging_tells_which_streams_it_cannot_read() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("gesta.db");
    let store = url_of(&path);
    let metadata = "{\"$maxCount\":1,\"note\":\"to be damaged\"}";
    for (stream, metadata) in [("a", "{\"$maxCount\":1}"), ("b", metadata)] {
        let lines = "{\"type\":\"t\",\"data\":1}\n".repeat(3);
        let append = ["--store", &store, "stream", "append", stream];
        assert!(run_with_input(&append, &lines).status.success());
        let set = ["stream", "metadata", stream, "--set", metadata];
        succeed(&[&["--store", &store], &set[..]].concat());
    }
    let mut bytes = std::fs::read(&path).unwrap();
    let found: Vec<usize> = (0..bytes.len() - metadata.len())
        .filter(|at| bytes[*at..].starts_with(metadata.as_bytes()))
        .collect();
    assert!(!found.is_empty(), "the file holds the document");
    found.into_iter().for_each(|at| bytes[at] = b'?');
    std::fs::write(&path, bytes).unwrap();

    let text = succeed(&["--store", &store, "scavenge", "--yes"]);
    assert!(
        text.contains("removed 2 events") && text.contains("1 stream was left as it is"),
        "{text}"
    );
    let json = succeed(&["--store", &store, "--output", "json", "scavenge", "--yes"]);
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&report["events"], &report["streams_unreadable"]),
        (&0.into(), &1.into())
    );
}

/// Goal: a secret that others can read is used, and told of; one for its owner alone is not told of.
#[test]
fn a_secret_that_others_can_read_is_told_of() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&home.path().join("gesta.db")));
    let file = home.path().join("token");
    std::fs::write(&file, "gesta_none\n").unwrap();
    for (mode, is_told) in [(0o644, true), (0o600, false)] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let done = run(&[
            "info",
            "--store",
            &server.url,
            "--token-file",
            file.to_str().unwrap(),
        ]);
        let told = stderr(&done).contains("other users of this machine can read or write");
        assert_eq!(told, is_told, "{done:?}");
    }
}

/// What happened: everything but `backup` needs a SQLite store for itself, so that a server had to be stopped to check
/// it, to scavenge it, and to switch virtual streams. Now the server does it.
#[test]
fn a_served_store_is_looked_after_through_its_server() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let server = Server::start(&store);
    let lines = "{\"type\":\"t\",\"data\":1}\n".repeat(3);
    let at = ["--store", &server.url];
    let append = [&at[..], &["stream", "append", "a"]].concat();
    assert!(run_with_input(&append, &lines).status.success());
    let done = |arguments: &[&str]| succeed(&[&at[..], arguments].concat());
    done(&["stream", "metadata", "a", "--set", "{\"$maxCount\":1}"]);

    assert!(done(&["verify"]).starts_with("healthy: 4 events read"));
    let summary = done(&["--output", "json", "verify"]);
    assert_eq!(
        summary, "{\"events\":4,\"findings\":0,\"healthy\":true}\n",
        "as without a server"
    );
    assert!(done(&["scavenge", "--dry-run"]).starts_with("would remove 2 events"));
    assert!(done(&["scavenge", "--yes"]).starts_with("removed 2 events"));
    let compact = run(&[&at[..], &["scavenge", "--yes", "--compact"]].concat());
    assert_eq!(code(&compact), 2, "{compact:?}");
    for (switch, state) in [("status", "off"), ("on", "on"), ("off", "off")] {
        let told = done(&["virtual-streams", switch]);
        assert!(
            told.starts_with(&format!("virtual streams are {state}")),
            "{told}"
        );
    }
    for command in [
        &["verify"][..],
        &["scavenge", "--dry-run"],
        &["user", "list"],
    ] {
        let refused = run(&[&["--store", &store], command].concat());
        assert_eq!(code(&refused), 5, "{refused:?}");
        let told = stderr(&refused);
        assert!(told.contains("--store URL"), "{told}");
    }
    server.stop();
    assert!(succeed(&["--store", &store, "verify"]).starts_with("healthy: 2 events read"));
}

/// Goal: whoever watches a server sees what its process uses, and, if asked for, every request.
#[test]
fn a_server_tells_what_its_process_uses_and_what_it_was_asked() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let more = ["--listen", "127.0.0.1:0"];
    let filter = [("GESTA_LOG_FILTER", "info,gesta::request=debug")];
    let server = Server::start_with_variables(&store, &more, &filter);
    let metrics = get(server.address(), "/metrics");
    for name in [
        "process_cpu_seconds_total",
        "process_start_time_seconds",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_max_fds",
    ] {
        let value = metrics.lines().find_map(|line| {
            let rest = line.strip_prefix(name)?.strip_prefix(' ')?;
            rest.parse::<f64>().ok()
        });
        assert!(value.is_some_and(|value| value >= 0.0), "{name}: {metrics}");
    }
    assert_eq!(
        code(&run(&["--store", &server.url, "stream", "read", "none"])),
        3
    );
    support::wait_until("the request is told", || {
        let told = server.logged("path=/streams/none");
        told.iter().any(|line| line.contains("status=404"))
    });
    server.stop();
}

/// What happened: `gesta all tail | head -1` ended when the second event came, which may be never.
#[test]
fn who_follows_ends_with_its_reader() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&home.path().join("gesta.db")));
    for command in [&["all", "tail"][..], &["stream", "tail", "a"]] {
        let mut tail = gesta(&[&["--store", &server.url], command].concat());
        let tail = tail
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let mut tail = tail.spawn().unwrap();
        drop(tail.stdout.take());
        let output = support::ended(tail);
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
}

/// Goal: a command that is given the wrong thing makes nothing and leaves nothing behind, says what is wrong, and does
/// not invite its caller to try again.
#[test]
fn what_is_given_wrongly_leaves_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("new");
    let store = url_of(&folder.join("gesta.db"));
    let missing = home.path().join("missing");
    let missing = missing.to_str().unwrap();
    let text = home.path().join("text");
    std::fs::write(&text, "no database, and longer than sixteen bytes\n").unwrap();
    let bad = home.path().join("bad.jsonl");
    std::fs::write(&bad, "{\"type\":\"t\",\"data\":1}\n{\n").unwrap();
    let list = home.path().join("list.json");
    std::fs::write(&list, "[{\"type\":\"t\",\"data\":1}]\n").unwrap();
    let is_as_before = || {
        let left = std::fs::read_dir(home.path()).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["bad.jsonl", "list.json", "text"]);
    };
    let (text, bad) = (url_of(&text), bad.to_str().unwrap());
    let list = list.to_str().unwrap();
    let away = "postgres://u@127.0.0.1:1/d";
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let taken = address.as_str();
    for (arguments, exit, what) in [
        (
            &["restore", missing, "--store", &store][..],
            2,
            "there is none at",
        ),
        (
            &["restore", bad, "--store", &store],
            2,
            "bad.jsonl is no SQLite database",
        ),
        (&["all", "import", missing, "--store", &store], 2, "missing"),
        // A variable that is not set.
        (
            &["schema", "new-incarnation", "--yes", "--store", ""],
            2,
            "--store <URL>",
        ),
        (&["copy", &store, ""], 2, "<TARGET>"),
        (
            &["serve", "--store", &store, "--store", away],
            2,
            "only PostgreSQL databases can be several",
        ),
        (
            &["serve", "--store", "sqlite:~/gesta.db"],
            2,
            "nobody expands ~",
        ),
        (
            &["serve", "--store", &store, "--listen", "0.0.0.0:0"],
            2,
            "refusing to listen",
        ),
        (
            &["import", missing, "--kind", "lines", "--store", &store],
            2,
            "must be a file",
        ),
        (
            &["import", ".", "--kind", "lines", "--store", &store],
            2,
            "must be a file: .: is a directory",
        ),
        (
            &["import", away, "--kind", "marten", "--store", &store],
            5,
            "127.0.0.1:1: ",
        ),
        (
            &["import", away, "--kind", "marten", "--store", &store],
            5,
            "onnection refused",
        ),
        (
            &["serve", "--listen", taken, "--store", &store],
            1,
            "--listen HOST:PORT names another address",
        ),
        (
            &[
                "stream",
                "append",
                "a",
                "--type",
                "t",
                "--data",
                "1",
                "--expected",
                "-1",
                "--store",
                &store,
            ],
            2,
            "must be any, no-stream, stream-exists or a revision",
        ),
        (
            &["serve", "--store", "http://127.0.0.1:1"],
            2,
            "serve needs a database; --store names a server, http://127.0.0.1:1",
        ),
        (
            &["all", "import", bad, "--stream", "a", "--store", &store],
            2,
            "line 2",
        ),
        (&["all", "import", "--store", &store], 2, "is empty"),
        // Which line it is, is said once.
        (
            &["all", "import", bad, "--stream", "a", "--store", &store],
            2,
            "line 2 of the input: EOF while parsing an object, at column 1",
        ),
        (
            &["all", "import", list, "--stream", "a", "--store", &store],
            2,
            "line 1 of the input: must be one event, a JSON object on one line",
        ),
        (
            &["all", "import", list, "--stream", "a", "--store", &store],
            2,
            "found a list",
        ),
        (&["info", "--store", &text], 1, "is no SQLite database"),
        (
            &[
                "stream", "append", "a", "--type", "t", "--data", "1", "--store", &text,
            ],
            1,
            "is no SQLite database",
        ),
        (
            &[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--store",
                "sqlite:/proc/gesta/gesta.db",
            ],
            1,
            "the folder /proc/gesta cannot be made",
        ),
    ] {
        let refused = run(arguments);
        let told = stderr(&refused);
        assert_eq!(code(&refused), exit, "{arguments:?}: {told}");
        assert!(told.contains(what), "{arguments:?}: {told}");
        assert!(!told.contains(".unfinished"), "{told}");
        is_as_before();
    }
    let mut serve = gesta(&["serve"]);
    let refused = output_of(serve.env("GESTA_STORE", "http://127.0.0.1:7311"));
    assert_eq!(code(&refused), 2, "{refused:?}");
    assert!(stderr(&refused).contains("GESTA_STORE names a server"));
    // A folder that is missing is made, as by `serve`.
    let (from, copy) = (home.path().join("from.db"), home.path().join("copy.db"));
    let append = ["stream", "append", "a", "--type", "t", "--data", "1"];
    succeed(&[&append[..], &["--store", &url_of(&from)]].concat());
    succeed(&["backup", copy.to_str().unwrap(), "--store", &url_of(&from)]);
    // The same store by another name.
    let other = url_of(&from).replace("/from.db", "/./from.db");
    let refused = run(&["copy", &url_of(&from), &other]);
    assert_eq!(code(&refused), 2, "{refused:?}");
    assert!(
        stderr(&refused).contains("must be another store"),
        "{refused:?}"
    );
    succeed(&["restore", copy.to_str().unwrap(), "--store", &store]);
    assert!(folder.join("gesta.db").exists());
}

/// Goal: who calls, and whom a client believes, is never taken from the wrong place in silence.
#[test]
fn contradictions_and_wrong_files_are_named() {
    let home = tempfile::tempdir().unwrap();
    let ca = home.path().join("ca.pem");
    std::fs::write(&ca, "no certificate").unwrap();
    let ca = ca.to_str().unwrap();
    let server = ["info", "--store", "https://127.0.0.1:1"];
    let told = run(&[&server[..], &["--ca-file", ca]].concat());
    assert_eq!(code(&told), 2, "{told:?}");
    assert!(stderr(&told).contains(ca), "{told:?}");

    let mut both = gesta(&["info", "--store", "http://127.0.0.1:1"]);
    both.env("GESTA_TOKEN", "gesta_none").env("GESTA_USER", "a");
    let told = output_of(&mut both);
    assert_eq!(code(&told), 2, "{told:?}");
    assert!(
        stderr(&told).contains("GESTA_TOKEN and GESTA_USER are both set"),
        "{told:?}"
    );

    let store = url_of(&home.path().join("gesta.db"));
    let append = [
        "stream", "append", "a", "--type", "t", "--data", "1", "--store", &store,
    ];
    let mut mistyped = gesta(&append);
    mistyped
        .env("GESTA_TOKN", "x")
        .env("GESTA_PORT", "tcp://10.0.0.1:2113");
    let told = stderr(&output_of(&mut mistyped));
    assert!(told.contains("GESTA_TOKN has no meaning"), "{told}");
    assert!(!told.contains("GESTA_PORT"), "{told}");

    let set = [
        "stream",
        "metadata",
        "a",
        "--set",
        "{\"$maxage\":5,\"owner\":1}",
        "--store",
        &store,
    ];
    let told = stderr(&run(&set));
    assert!(told.contains("$maxage has no meaning") && told.contains("is $maxAge meant?"));
    assert!(!told.contains("owner"), "{told}");

    // What happened: the rights of a stream were replaced by a key that means nothing, with a warning alone.
    let metadata = |set: &[&str]| {
        let command = [&["stream", "metadata", "a", "--store", &store], set].concat();
        run(&command)
    };
    let own = r#"{"$acl":{"$r":"ops","$mw":"ops"}}"#;
    assert!(metadata(&["--set", own]).status.success());
    for key in ["acl", "maxAge", "maxCount", "tb", "cacheControl"] {
        let refused = metadata(&["--set", &format!("{{\"{key}\":{{\"$r\":\"all\"}}}}")]);
        assert_eq!(code(&refused), 2, "{refused:?}");
        let told = stderr(&refused);
        assert!(told.contains(&format!("is \"${key}\" meant?")), "{told}");
    }
    assert_eq!(stdout(&metadata(&[])).trim(), own);
}

/// Goal: nobody locks everybody out without being asked.
#[test]
fn the_last_administrator_is_not_taken_away_without_a_question() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let user = |arguments: &[&str]| {
        let mut command = gesta(&[&["user"], arguments, &["--store", &store]].concat());
        output_of(command.env("GESTA_NEW_PASSWORD", "a password of some length"))
    };
    assert!(user(&["add", "root", "--admin"]).status.success());
    for taken in [&["disable", "root"][..], &["groups", "root", "sales"]] {
        let refused = user(taken);
        assert_eq!(code(&refused), 2, "{refused:?}");
        assert!(
            stderr(&refused).contains("last administrator"),
            "{refused:?}"
        );
    }
    assert!(
        user(&["groups", "root", "$admins", "sales"])
            .status
            .success()
    );
    assert!(user(&["add", "second", "--admin"]).status.success());
    assert!(user(&["disable", "root"]).status.success());
    assert_eq!(code(&user(&["disable", "second"])), 2);
    assert!(user(&["disable", "second", "--yes"]).status.success());
}

/// Goal: operators see the timers that programs have set, and cancel them by their keys.
#[test]
fn timers_are_listed_and_cancelled() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let set = |key: &str, due: &str| {
        let data = format!(r#"{{"key":"{key}","due":"{due}","data":{{"order":7}}}}"#);
        let of = ["--type", "timer-set", "--data", &data];
        let append = ["--store", &store, "stream", "append", "$timers-{unpaid}"];
        succeed(&[&append[..], &of].concat());
    };
    set("later", "2031-01-01T00:00:00Z");
    set("sooner", "2030-01-01T00:00:00Z");
    let timer = |rest: &[&str]| succeed(&[&["--store", &store, "timer"], rest].concat());
    let listed = timer(&["list", "unpaid"]);
    let expected = [
        "2030-01-01T00:00:00.000000Z  sooner  {\"order\":7}",
        "2031-01-01T00:00:00.000000Z  later  {\"order\":7}",
    ];
    assert_eq!(listed.lines().collect::<Vec<_>>(), expected);
    assert_eq!(
        timer(&["list", "unpaid", "--limit", "1"]).lines().count(),
        1
    );
    assert_eq!(timer(&["cancel", "unpaid", "sooner"]), "cancelled sooner\n");
    let again = timer(&["cancel", "unpaid", "sooner"]);
    assert_eq!(again, "no timer sooner was pending\n");
    assert_eq!(timer(&["list", "unpaid"]).lines().count(), 1);
    // What happened: a mistyped name was cancelled in streams that this made, and its list was empty.
    let before = succeed(&["--store", &store, "all", "read", "--output", "json"]);
    for mistyped in [&["list", "unpayed"][..], &["cancel", "unpayed", "later"]] {
        let refused = run(&[&["--store", &store, "timer"], mistyped].concat());
        assert_eq!(code(&refused), 3, "{refused:?}");
        let told = stderr(&refused);
        assert!(told.contains("no timers of the name unpayed"), "{told}");
    }
    let after = succeed(&["--store", &store, "all", "read", "--output", "json"]);
    assert_eq!(before, after);
    assert_eq!(timer(&["list"]), "unpaid\n");
    assert_eq!(timer(&["list", "--prefix", "$other-"]), "");
    // What no number of this program holds is listed as it was written, in one line.
    let data = "{\"key\":\"odd\",\"due\":\"2032-01-01T00:00:00Z\",\"data\":[\n1e400]}";
    let of = ["--type", "timer-set", "--data", data];
    let append = ["--store", &store, "stream", "append", "$timers-{odd}"];
    succeed(&[&append[..], &of].concat());
    let listed = timer(&["list", "odd"]);
    assert_eq!(listed, "2032-01-01T00:00:00.000000Z  odd  [ 1e400]\n");
    let listed = timer(&["list", "odd", "--output", "json"]);
    assert!(
        listed.lines().count() == 1 && listed.contains("\"data\":[ 1e400]"),
        "{listed}"
    );
    let wrong = run(&["--store", &store, "timer", "list", "Unpaid"]);
    assert_eq!(code(&wrong), 2);
    assert!(stderr(&wrong).contains("lower-case"), "{wrong:?}");
}

/// What happened: of a number that is missing in a file of lines it was said that the source had deleted it.
#[test]
fn numbers_that_are_missing_in_lines_are_told_as_they_are() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let import = |numbers: &[u64], more: &[&str]| {
        let of =
            |n: &u64| format!("{{\"stream\":\"a\",\"sequence\":{n},\"type\":\"t\",\"data\":1}}\n");
        let text: String = numbers.iter().map(of).collect();
        let command = ["import", "-", "--kind", "lines", "--store", &store];
        run_with_input(&[&command[..], more].concat(), &text)
    };
    let told = import(&[1, 3], &[]);
    let truth = "1 number is missing within streams: what comes later of these numbers is refused";
    assert!(stdout(&told).contains(truth), "{told:?}");
    assert!(!stdout(&told).contains("deleted"), "{told:?}");
    let refused = import(&[9], &[]);
    assert_eq!(code(&refused), 1, "{refused:?}");
    assert!(
        stderr(&refused).contains("numbers 4 to 8 are not stored"),
        "{refused:?}"
    );
    let allowed = import(&[9], &["--allow-gaps"]);
    assert!(
        stdout(&allowed).contains("5 numbers are missing"),
        "{allowed:?}"
    );
    let other = [
        "import",
        "postgres://h/d",
        "--kind",
        "marten",
        "--allow-gaps",
    ];
    let other = run(&[&other[..], &["--store", &store]].concat());
    assert_eq!(code(&other), 2, "{other:?}");
}

/// What happened: whoever wrote two slashes before a path was not told that it is a relative one.
#[test]
fn a_relative_path_after_two_slashes_is_told() {
    let home = tempfile::tempdir().unwrap();
    let mut command = gesta(&["info", "--store", "sqlite://var/gesta.db"]);
    let missing = output_of(command.current_dir(home.path()));
    assert_eq!(code(&missing), 1, "{missing:?}");
    let told = stderr(&missing);
    assert!(
        told.contains("names the path var/gesta.db in the current folder"),
        "{told}"
    );
    assert!(told.contains("as sqlite:var/gesta.db does"), "{told}");
    let store = ["--store", "sqlite://gesta.db"];
    let append = ["stream", "append", "a", "--type", "t", "--data", "1"];
    let mut command = gesta(&[&append[..], &store].concat());
    assert!(output_of(command.current_dir(home.path())).status.success());
    let mut command = gesta(&[&["info"][..], &store].concat());
    let told = output_of(command.current_dir(home.path()));
    let place = home.path().canonicalize().unwrap().join("gesta.db");
    assert!(stdout(&told).contains(place.to_str().unwrap()), "{told:?}");
}

/// What happened: a dry run that had found what stops an import ended like one that had found nothing.
#[test]
fn a_dry_run_ends_as_the_import_would() {
    let import = |numbers: &[u64], more: &[&str]| {
        let of =
            |n: &u64| format!("{{\"stream\":\"a\",\"sequence\":{n},\"type\":\"t\",\"data\":1}}\n");
        let text: String = numbers.iter().map(of).collect();
        let command = ["import", "-", "--kind", "lines", "--dry-run"];
        run_with_input(&[&command[..], more].concat(), &text)
    };
    let whole = import(&[1, 2], &[]);
    assert_eq!(code(&whole), 0, "{whole:?}");
    for form in ["pretty", "json"] {
        let found = import(&[1, 0], &["--output", form]);
        assert_eq!(code(&found), 1, "{found:?}");
        let told = stderr(&found);
        let first = "1 event cannot be imported, the first of them \"a\" number 0 (place ";
        assert!(told.contains(first), "{told}");
        assert!(told.contains("comes after later ones"), "{told}");
        assert!(stdout(&found).contains("cannot be an event") || form == "json");
        assert!(!stdout(&found).is_empty(), "the report comes first");
    }
    let left_out = import(&[1, 0], &["--skip-unmappable"]);
    assert_eq!(code(&left_out), 0, "{left_out:?}");
}
