//! The programs of docs/guides/clients, run against a real server: appends whose answers are lost, and consumers that
//! are killed.
//!
//! And the configuration of a reverse proxy that docs/operating shows.
//!
//! They need `python3`, `node`, `curl` and `nginx`. Without one of them its tests are skipped loudly; with `CI=true`
//! they fail.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Limit, Server, output_of, succeed, url_of, wait_until};

/// A language that has programs in docs/guides/clients.
#[derive(Clone, Copy)]
struct Language {
    interpreter: &'static str,
    add_items: &'static str,
    count_items: &'static str,
    /// How a program is given as an argument, and one that appends at a wrong revision and prints the problem.
    inline: &'static [&'static str],
    append_at_wrong_revision: &'static str,
}

const PYTHON: Language = Language {
    interpreter: "python3",
    add_items: "add_items.py",
    count_items: "count_items.py",
    inline: &["-c"],
    append_at_wrong_revision: r#"
import gesta, os
try:
    gesta.append(os.environ["B"], "cart-1", [{"type": "item-added", "data": {}}], expected=7)
except gesta.Problem as problem:
    print(problem.kind, problem.document["actual"])
"#,
};
const JAVASCRIPT: Language = Language {
    interpreter: "node",
    add_items: "add_items.mjs",
    count_items: "count_items.mjs",
    inline: &["--input-type=module", "-e"],
    append_at_wrong_revision: r#"
const { append } = await import(`${process.cwd()}/gesta.mjs`);
const events = [{ type: "item-added", data: {} }];
await append(process.env.B, "cart-1", events, { expected: 7 }).catch((problem) => {
  console.log(problem.kind, problem.document.actual);
});
"#,
};

impl Language {
    fn is_installed(self) -> bool {
        support::is_installed(self.interpreter)
    }

    /// The interpreter, in the folder of the clients.
    fn interpreter(self) -> Command {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/clients");
        let mut command = Command::new(self.interpreter);
        command
            .current_dir(folder)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    fn program(self, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.interpreter();
        command.arg(name).args(arguments);
        command
    }

    /// Puts items into cart 1 and returns what the program prints.
    fn add(self, server: &str, items: &[String]) -> Child {
        let mut arguments = vec![server, "1"];
        arguments.extend(items.iter().map(String::as_str));
        let mut command = self.program(self.add_items, &arguments);
        command.stdout(Stdio::piped()).spawn().unwrap()
    }

    fn counts(self, file: &Path) -> String {
        let mut shown = self.program(self.count_items, &["--show", file.to_str().unwrap()]);
        let output = output_of(&mut shown);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout)
            .unwrap()
            .replace(": ", ":")
            .replace(", ", ",")
    }
}

/// A consumer that runs; what it prints can be waited for.
struct Consumer {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Consumer {
    fn start(language: Language, server: &str, file: &Path) -> Self {
        let arguments = [server, file.to_str().unwrap()];
        Self::run(&mut language.program(language.count_items, &arguments))
    }

    fn run(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = std::sync::mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    fn says(&self, expected: &str) {
        let line = self.lines.recv_timeout(support::PATIENCE);
        assert_eq!(line.as_deref(), Ok(expected));
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn items(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("item-{number}")).collect()
}

/// The items that are stored in cart 1, in the order of the stream.
fn stored(server: &str) -> Vec<String> {
    let lines = succeed(&[
        "stream", "read", "cart-1", "--store", server, "--output", "json",
    ]);
    let item = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        event["data"]["item"].as_str().unwrap().to_owned()
    };
    lines.lines().map(item).collect()
}

/// Forwards connections to a server, and cuts as many as it was told when their answer begins to arrive.
fn lose_answers(server: &str, count: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (server, to_lose) = (server.to_owned(), Arc::new(AtomicUsize::new(count)));
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(&server).unwrap();
            let to_lose = Arc::clone(&to_lose);
            std::thread::spawn(move || forward(&client, &server, &to_lose));
        }
    });
    url
}

fn forward(client: &TcpStream, server: &TcpStream, to_lose: &AtomicUsize) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut from, mut to) = (client, server);
            let _ = std::io::copy(&mut from, &mut to);
            let _ = server.shutdown(Shutdown::Both);
        });
        let (mut from, mut to) = (server, client);
        let mut first = [0; 1];
        let has_answer = from.read_exact(&mut first).is_ok();
        let one_less = |left: usize| left.checked_sub(1);
        let loses = to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        if has_answer && loses.is_err() && to.write_all(&first).is_ok() {
            let _ = std::io::copy(&mut from, &mut to);
        }
        let _ = client.shutdown(Shutdown::Both);
    });
}

/// Goal: the configuration of docs/operating/proxies.md lets everything through a real nginx: names, large bodies,
/// lines, subscriptions, gRPC.
#[test]
fn a_reverse_proxy_lets_everything_through() {
    if !support::is_installed_as("nginx", "-v") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&folder.path().join("gesta.db")));
    let proxy = Proxy::start(folder.path(), server.address());
    let append = |stream: &str, data: &str| {
        let body = folder.path().join("body.json");
        let text = format!(r#"{{"events":[{{"type":"t","data":{data}}}]}}"#);
        std::fs::write(&body, text).unwrap();
        let body = format!("@{}", body.display());
        let json = "Content-Type: application/json";
        proxy.curl(stream, &["--header", json, "--data-binary", &body])
    };
    let stored = "\"last_revision\":";
    for (stream, data) in [
        ("/streams/o%2F1", "1".to_owned()),
        ("/events/streams/o%2F1", "2".to_owned()),
        ("/streams/large", format!("{:?}", "x".repeat(4 << 20))),
    ] {
        let answer = append(stream, &data);
        assert!(answer.contains(stored), "{stream}: {answer}");
    }
    let lines = ["--header", "Accept: application/x-ndjson"];
    let read = proxy.curl("/streams/o%2F1", &lines);
    assert_eq!(read.lines().count(), 2, "{read}");

    // An event is shown at once, and not when a buffer is full.
    let mut follow = proxy.command("/streams/live/subscribe", &["--no-buffer"]);
    let follower = Consumer::run(&mut follow);
    assert!(append("/streams/live", "3").contains(stored));
    let shown = || follower.lines.recv_timeout(support::PATIENCE).unwrap();
    while !shown().contains("\"stream\":\"live\"") {}
    follower.kill();

    let call = "/event_store.client.server_features.ServerFeatures/GetSupportedMethods";
    let empty = folder.path().join("empty.bin");
    std::fs::write(&empty, [0; 5]).unwrap();
    let empty = format!("@{}", empty.display());
    let mut grpc = vec![
        "--http2",
        "--include",
        "--data-binary",
        &empty,
        "--output",
        "-",
    ];
    for header in ["Content-Type: application/grpc", "TE: trailers"] {
        grpc.extend(["--header", header]);
    }
    let answer = proxy.curl(call, &grpc);
    assert!(answer.contains("grpc-status: 0"), "{answer}");
}

/// An nginx with the configuration of docs/operating/proxies.md.
struct Proxy {
    nginx: Child,
    url: String,
    authority: PathBuf,
}

impl Proxy {
    fn start(folder: &Path, server: &str) -> Self {
        let tls = folder.join("tls");
        let made = ["--listen", "127.0.0.1:0", "--tls-self-signed"];
        let made = [&made[..], &[tls.to_str().unwrap()]].concat();
        Server::start_with(&url_of(&folder.join("another.db")), &made).stop();
        let address = gesta_pgtest::free_address().unwrap();
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating/proxies.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (_, rest) = page.split_once("```nginx\n").unwrap();
        let (site, _) = rest.split_once("```").unwrap();
        let mut site = site.to_owned();
        for (of_page, here) in [
            ("127.0.0.1:2113", server.to_owned()),
            ("listen 443 ", format!("listen {address} ")),
            (
                "/etc/ssl/events.example.org.pem",
                tls.join("server.pem").display().to_string(),
            ),
            (
                "/etc/ssl/events.example.org.key",
                tls.join("server.key").display().to_string(),
            ),
        ] {
            assert!(site.contains(of_page), "{of_page}");
            site = site.replace(of_page, &here);
        }
        let scratch: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {}/{kind};\n", folder.display()))
            .concat();
        let (folder, configuration) = (folder.display(), folder.join("nginx.conf"));
        let user = if nix::unistd::geteuid().is_root() {
            "user root;"
        } else {
            ""
        };
        let text = format!(
            "{user} daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;\nevents {{}}\n\
             http {{ access_log off;\n{scratch}{site} }}\n"
        );
        std::fs::write(&configuration, text).unwrap();
        let mut command = Command::new("nginx");
        command
            .arg("-c")
            .arg(&configuration)
            .arg("-e")
            .arg(format!("{folder}/nginx.log"));
        let proxy = Self {
            nginx: command.spawn().unwrap(),
            url: format!("https://{address}"),
            authority: tls.join("ca.pem"),
        };
        wait_until("nginx listens", || TcpStream::connect(address).is_ok());
        proxy
    }

    fn command(&self, path: &str, more: &[&str]) -> Command {
        let mut command = Command::new("curl");
        command
            .args(["--silent", "--show-error", "--cacert"])
            .arg(&self.authority);
        command.args(more).arg(format!("{}{path}", self.url));
        command
    }

    fn curl(&self, path: &str, more: &[&str]) -> String {
        let output = output_of(&mut self.command(path, more));
        assert!(output.status.success(), "{path}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Asks it to end, so that it ends its workers too.
        support::signal(&self.nginx, nix::sys::signal::Signal::SIGTERM);
        let _ = self.nginx.wait();
    }
}

/// Goal: an append whose answer is lost is repeated with the same event ids, and is stored once.
fn an_append_whose_answer_is_lost_is_stored_once(language: Language) {
    if !language.is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&folder.path().join("gesta.db")));
    let url = lose_answers(server.address(), 3);
    let output = support::ended(language.add(&url, &items(3)));
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        printed,
        "item-0: revision 0\nitem-1: revision 1\nitem-2: revision 2\n"
    );
    assert_eq!(stored(&server.url), items(3));
}

/// Goal: a server that is killed and started again between and during appends neither loses nor doubles one.
fn appends_survive_a_killed_server(language: Language) {
    if !language.is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = url_of(&folder.path().join("gesta.db"));
    let address = gesta_pgtest::free_address().unwrap().to_string();
    let mut server = Server::start_with(&store, &["--listen", &address]);
    let url = server.url.clone();
    let items = items(60);
    let mut adding = language.add(&url, &items);
    let _limit = Limit::of(&adding);
    let mut printed = BufReader::new(adding.stdout.take().unwrap()).lines();
    for number in 0..items.len() {
        let line = printed.next().unwrap().unwrap();
        assert_eq!(line, format!("item-{number}: revision {number}"));
        if number % 20 == 10 {
            server.kill();
            server = Server::start_with(&store, &["--listen", &address]);
        }
    }
    assert!(adding.wait().unwrap().success());
    assert_eq!(stored(&url), items);
}

/// Goal: a refusal is raised at once and not repeated, with what the server says.
fn a_refusal_is_raised(language: Language) {
    if !language.is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&folder.path().join("gesta.db")));
    let added = support::ended(language.add(&server.url, &items(2)));
    assert!(added.status.success(), "{added:?}");
    let mut command = language.interpreter();
    command
        .args(language.inline)
        .arg(language.append_at_wrong_revision);
    let output = output_of(command.env("B", &server.url));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(support::stdout(&output), "wrong_expected_revision 1\n");
    let refused = || {
        let metrics = support::get(server.address(), "/metrics");
        let name = "gesta_appends_total{outcome=\"wrong_expected_revision\"} ";
        let mut lines = metrics.lines();
        let count = lines.find_map(|line| line.strip_prefix(name));
        count.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    wait_until("the refusal is counted", || refused() > 0);
    assert_eq!(refused(), 1, "it is not repeated");
    assert_eq!(stored(&server.url), items(2));
}

/// Goal: a consumer that is killed, and whose server is killed, goes on where it was; each event is counted once. After
/// a restore of the store it counts again from the start.
fn a_consumer_survives_restarts(language: Language) {
    if !language.is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = url_of(&folder.path().join("gesta.db"));
    let file = folder.path().join("counts");
    let address = gesta_pgtest::free_address().unwrap().to_string();
    let server = Server::start_with(&store, &["--listen", &address]);
    let url = server.url.clone();
    let append = |item: &str| {
        let data = format!(r#"{{"item":"{item}"}}"#);
        succeed(&[
            "stream",
            "append",
            "cart-1",
            "--type",
            "item-added",
            "--data",
            &data,
            "--store",
            &url,
        ]);
    };
    let counts = |expected: &str| {
        wait_until(expected, || language.counts(&file).trim() == expected);
    };

    append("book");
    let consumer = Consumer::start(language, &url, &file);
    consumer.says("caught up");
    counts(r#"{"book":1}"#);
    append("pen");
    counts(r#"{"book":1,"pen":1}"#);
    consumer.kill();

    append("book");
    let consumer = Consumer::start(language, &url, &file);
    consumer.says("caught up");
    counts(r#"{"book":2,"pen":1}"#);

    server.kill();
    let server = Server::start_with(&store, &["--listen", &address]);
    append("pen");
    counts(r#"{"book":2,"pen":2}"#);

    server.stop();
    succeed(&["schema", "new-incarnation", "--yes", "--store", &store]);
    let _server = Server::start_with(&store, &["--listen", &address]);
    while consumer.lines.recv_timeout(support::PATIENCE).unwrap() != "counting again from the start"
    {
    }
    append("ink");
    counts(r#"{"book":2,"ink":1,"pen":2}"#);
}

/// Goal: with a token in the environment the programs append to and follow a server with users; without one they are
/// refused, and that is raised at once.
fn a_server_with_users_is_told_the_token(language: Language) {
    if !language.is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = url_of(&folder.path().join("gesta.db"));
    let arguments = ["--store", &store, "user", "add", "root", "--admin"];
    let added = support::run_with_input(&arguments, "a long password\n");
    assert!(added.status.success(), "{added:?}");
    let token = succeed(&[
        "--store", &store, "token", "create", "root", "--scope", "admin",
    ]);
    let server = Server::start(&store);

    let mut refused = language.program(language.add_items, &[&server.url, "1", "book"]);
    let refused = output_of(&mut refused);
    assert!(!refused.status.success(), "{refused:?}");
    let text = support::stderr(&refused);
    assert!(text.contains("a token, must be given"), "{text}");

    let mut adding = language.program(language.add_items, &[&server.url, "1", "book"]);
    let added = output_of(adding.env("GESTA_TOKEN", token.trim()));
    assert_eq!(support::stdout(&added), "book: revision 0\n", "{added:?}");
    let file = folder.path().join("counts");
    let arguments = [server.url.as_str(), file.to_str().unwrap()];
    let mut following = language.program(language.count_items, &arguments);
    let consumer = Consumer::run(following.env("GESTA_TOKEN", token.trim()));
    consumer.says("caught up");
    assert_eq!(language.counts(&file).trim(), r#"{"book":1}"#);
}

macro_rules! tests {
    ($module:ident, $language:expr) => {
        mod $module {
            #[test]
            fn an_append_whose_answer_is_lost_is_stored_once() {
                super::an_append_whose_answer_is_lost_is_stored_once($language);
            }

            #[test]
            fn appends_survive_a_killed_server() {
                super::appends_survive_a_killed_server($language);
            }

            #[test]
            fn a_refusal_is_raised() {
                super::a_refusal_is_raised($language);
            }

            #[test]
            fn a_consumer_survives_restarts() {
                super::a_consumer_survives_restarts($language);
            }

            #[test]
            fn a_server_with_users_is_told_the_token() {
                super::a_server_with_users_is_told_the_token($language);
            }
        }
    };
}

tests!(python, super::PYTHON);
tests!(javascript, super::JAVASCRIPT);
