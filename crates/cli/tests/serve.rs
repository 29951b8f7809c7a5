//! The real binary: serve, restart, a second server, kill -9, wrong usage.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn gesta(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gesta"));
    command.args(arguments).env_remove("GESTA_STORE");
    command
}

struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(store: &str) -> Self {
        let mut child = gesta(&["serve", "--store", store, "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = loop {
            let line = lines.next().expect("the server ended").unwrap();
            if let Some((_, url)) = line.split_once("listening on ") {
                break url.trim().to_owned();
            }
        };
        // Whoever writes to a closed pipe dies: keep reading.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url }
    }

    fn signal(&self, signal: Signal) {
        kill(
            Pid::from_raw(i32::try_from(self.child.id()).unwrap()),
            signal,
        )
        .unwrap();
    }

    fn append(&self, data: &str) -> Output {
        gesta(&[
            "--store", &self.url, "stream", "append", "cart-1", "--type", "added", "--data", data,
        ])
        .output()
        .unwrap()
    }

    fn events(&self) -> Vec<String> {
        let read = gesta(&[
            "--store", &self.url, "--output", "json", "stream", "read", "cart-1",
        ])
        .output()
        .unwrap();
        assert!(read.status.success(), "{read:?}");
        String::from_utf8(read.stdout)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn url_of(directory: &Path) -> String {
    format!("sqlite:{}", directory.join("gesta.db").display())
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn a_stop_and_a_kill_keep_every_acknowledged_event() {
    let directory = tempfile::tempdir().unwrap();
    let store = url_of(directory.path());
    let mut server = Server::start(&store);
    assert!(server.append("1").status.success());
    let second = gesta(&["serve", "--store", &store, "--listen", "127.0.0.1:0"])
        .output()
        .unwrap();
    assert!(!second.status.success(), "one process at a time");
    assert!(
        String::from_utf8_lossy(&second.stderr).contains("gesta.db"),
        "{second:?}"
    );
    server.signal(Signal::SIGINT);
    assert!(
        server.child.wait().unwrap().success(),
        "Ctrl-C ends cleanly"
    );

    for n in 2..5 {
        let server = Server::start(&store);
        assert!(server.append(&n.to_string()).status.success());
        server.signal(Signal::SIGKILL);
    }
    let server = Server::start(&store);
    let events = server.events();
    assert_eq!(events.len(), 4);
    assert!(
        events
            .iter()
            .zip(1..)
            .all(|(line, n)| line.contains(&format!("\"data\":{n}"))),
        "{events:?}"
    );
    drop(server);

    let verify = gesta(&["--store", &store, "verify"]).output().unwrap();
    assert!(verify.status.success(), "{verify:?}");
}

#[test]
fn exit_codes_and_messages_name_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let store = url_of(directory.path());
    let run = |arguments: &[&str]| {
        gesta(&[&["--store", &store], arguments].concat())
            .output()
            .unwrap()
    };
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
        let output = gesta(&["--store", store, "info"]).output().unwrap();
        assert_eq!(code(&output), Some(expected), "{store}");
    }
}

#[test]
fn a_refused_start_makes_no_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = url_of(directory.path());
    for (refused, rule) in [
        (["serve", "--listen", "0.0.0.0:0"], "not a loopback address"),
        (["serve", "--log-filter", "loud"], "MODULE=LEVEL"),
    ] {
        let output = gesta(&["--store", &store]).args(refused).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(rule), "{text}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

/// A page of the server, head and body.
fn get(url: &str, path: &str) -> String {
    let address = url.strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    write!(
        socket,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut page = String::new();
    socket.read_to_string(&mut page).unwrap();
    page
}

/// Goal: two servers share a PostgreSQL store; each finds what the other stored, one by its end after a kill.
#[test]
fn two_servers_share_a_database() {
    let Some(database) = gesta_pgtest::shared() else {
        return;
    };
    let schema = gesta_pgtest::fresh_schema();
    let store = format!("{}?schema={schema}", database.url());
    let one = Server::start(&store);
    let other = Server::start(&store);
    for n in 0..10 {
        let server = if n % 2 == 0 { &one } else { &other };
        assert!(server.append(&n.to_string()).status.success());
    }
    assert_eq!(one.events().len(), 10);
    one.signal(Signal::SIGKILL);
    assert!(other.append("10").status.success());
    let events = other.events();
    let in_order = |(line, n): (&String, i32)| line.contains(&format!("\"data\":{n}"));
    assert!(events.iter().zip(0..).all(in_order), "{events:?}");
    assert_eq!(events.len(), 11);

    let metrics = get(&other.url, "/metrics");
    let stored: u64 = metrics
        .lines()
        .find_map(|line| line.strip_prefix("gesta_pipeline_batched_events_total{log=\"0\"} "))
        .expect(&metrics)
        .parse()
        .unwrap();
    assert!(stored >= 6, "{metrics}");
    drop((one, other));
    let verify = gesta(&["--store", &store, "verify"]).output().unwrap();
    assert!(verify.status.success(), "{verify:?}");
}
