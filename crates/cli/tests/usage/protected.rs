//! What commands protect their user from: text of others that drives the terminal, and connections that everybody on
//! the way can read.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{code, gesta, run, run_with_input, stderr, succeed, url_of};

/// Text that drives a terminal: it sets the title, begins a sequence by one character above U+007F, turns the text
/// after it around, and is partly not seen.
const HOSTILE: &str = "\u{1b}]0;pwn\u{7}\u{9b}31m\u{202e}\u{200b}";

/// Returns true if every character shows.
fn shows(text: &str) -> bool {
    matches!(gesta_core::printable(text), Cow::Borrowed(_))
}

/// Makes the answer of a strange server: status, media type, body.
fn strange(line: &str) -> (u16, &'static str, String) {
    let hostile = |begin: &str| format!("{begin}{HOSTILE}");
    if line.contains("/admin/verify") {
        let finding = json!({"kind": hostile("k"), "log": 0, "position": 1, "stream": hostile("s"),
            "stream_row": 1, "revision": 1, "text": hostile("t\n")});
        let done =
            json!({"healthy": false, "events": 1, "findings_total": 1, "findings": [finding]});
        return (
            200,
            "application/x-ndjson",
            json!({"done": done}).to_string() + "\n",
        );
    }
    let (status, document): (u16, Value) = if line.contains("GET /groups") {
        let group = json!({"source": hostile("s"), "group": hostile("g")});
        (200, json!({"groups": [group], "end": true}))
    } else if line.contains("GET /streams?") {
        let stream = json!({"stream": "s\u{202e}", "last_revision": 1});
        (200, json!({"streams": [stream], "end": true, "next": null}))
    } else {
        let problem = json!({"type": "urn:gesta:problem:invalid_argument", "title": hostile("x"), "status": 400,
            "detail": hostile("bad"), "field": hostile("f")});
        (400, problem)
    };
    let media_type = match status {
        200 => "application/json",
        _ => "application/problem+json",
    };
    (status, media_type, document.to_string())
}

fn answer(socket: TcpStream) {
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).unwrap();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        match header.trim().split_once(':') {
            None => break,
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().unwrap();
            }
            Some(_) => {}
        }
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
    let (status, media_type, body) = strange(&line);
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let mut socket = socket;
    // The command may have ended.
    let _ = socket.write_all((head + &body).as_bytes());
}

/// Starts a server that answers with hostile text, and returns its URL.
fn strange_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || answer(socket));
        }
    });
    format!("http://{address}")
}

/// What happened: data of a timer, and the findings of a server's check, reached the terminal as they were. Goal: no
/// command shows text of others that drives it, in answers, in errors, and in events.
#[test]
fn no_command_shows_text_that_drives_the_terminal() {
    let url = strange_server();
    let commands: [&[&str]; 8] = [
        &["verify"],
        &["group", "list"],
        &["group", "info", "s::g"],
        &["stream", "list"],
        &["stream", "read", "s"],
        &["all", "read"],
        &["info"],
        &["scavenge", "--dry-run"],
    ];
    let mut seen = 0;
    for command in commands {
        let done = run(&[command, &["--store", &url]].concat());
        let said = String::from_utf8(done.stdout.clone()).unwrap() + &stderr(&done);
        assert!(shows(&said), "{command:?}: {said:?}");
        seen += usize::from(said.contains("\\u{202e}"));
    }
    assert!(seen >= 5, "only {seen} commands got hostile text");

    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let data = "{\"key\":\"k\",\"due\":\"2031-01-01T00:00:00Z\",\"data\":\"\u{9b}31m\u{202e}\"}";
    let line = json!({"type": "timer-set", "data": "DATA", "tags": ["t\u{202e}"]});
    let line = line.to_string().replace("\"DATA\"", data);
    let append = ["--store", &store, "stream", "append", "$timers-{esc}"];
    assert_eq!(code(&run_with_input(&append, &line)), 0);
    for command in [&["timer", "list", "esc"][..], &["all", "read"]] {
        let said = succeed(&[command, &["--store", &store]].concat());
        assert!(
            shows(&said) && said.contains("\\u{202e}"),
            "{command:?}: {said:?}"
        );
        // In a pipe JSON is what was stored.
        let json = succeed(&[command, &["--store", &store, "--output", "json"]].concat());
        assert!(json.contains("\u{9b}31m\u{202e}"), "{command:?}: {json:?}");
    }
}

/// What happened: no command warned of `sslmode=prefer` to another machine, although the documentation says so:
/// commands log errors only, and read models, indexes and sources of imports did not warn at all. Goal: each of them
/// does, before it connects.
#[test]
fn every_command_warns_of_a_database_elsewhere_that_nothing_protects() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    succeed(&[
        "--store", &store, "stream", "append", "s", "--type", "t", "--data", "1",
    ]);
    // An address of a documentation network, at which nobody answers.
    let away = "postgres://u:p@192.0.2.9/x";
    let copy = url_of(&home.path().join("copy.db"));
    let commands: [&[&str]; 6] = [
        &["info", "--store", away],
        &["copy", away, &copy],
        &["projection", "list", "--store", &store, "--target", away],
        &[
            "index", "find", "by", "a=1", "--store", &store, "--target", away,
        ],
        &[
            "index", "run", "by", "--path", "a", "--store", &store, "--target", away,
        ],
        &["import", away, "--kind", "message-db", "--store", &store],
    ];
    for command in commands {
        let mut child = gesta(command)
            .env_remove("GESTA_LOG_FILTER")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let warned = said.by_ref().map_while(Result::ok).find(|line| {
            line.contains("sslmode=prefer does not check who answers") && line.contains("192.0.2.9")
        });
        // It need not wait for an answer that does not come.
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(warned.is_some(), "{command:?}");
        assert!(!warned.unwrap().contains("u:p"), "{command:?}");
    }
}

/// What happened: the password of an administrator of KurrentDB went to any host without TLS, if the connection string
/// said so. Goal: only where the user allows it.
#[test]
fn the_login_of_a_source_does_not_travel_as_plain_text() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    // A name that leads nowhere, so that what is allowed fails after that.
    let source = "esdb://admin:secret@db.invalid:2113?tls=false";
    let import = ["import", source, "--kind", "kurrentdb", "--store", &store];
    let refused = run(&import);
    assert_eq!(code(&refused), 2, "{refused:?}");
    let said = stderr(&refused);
    assert!(
        said.contains("plain text") && said.contains("--plain-http"),
        "{said}"
    );
    assert!(!said.contains("secret"), "{said}");
    let allowed = run(&[&import[..], &["--plain-http"]].concat());
    let said = stderr(&allowed);
    assert!(
        !said.contains("plain text") && said.contains("db.invalid"),
        "{said}"
    );
}
