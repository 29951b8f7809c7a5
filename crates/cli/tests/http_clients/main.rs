//! The packages of `clients/`, built and installed as their users do, against real servers; and the programs of
//! docs/guides/clients, which use them: appends whose answers are lost, and consumers that are killed.
//!
//! And the configuration of a reverse proxy that docs/operating shows.
//!
//! They need `python3` with `venv`, `node` with `npm`, `curl` and `nginx`, and a registry the first time. Without one
//! of them its tests are skipped loudly; with `CI=true` they fail.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod checks;
mod packages;
mod proxy;
#[path = "../support/mod.rs"]
mod support;
#[path = "../three_nodes/mod.rs"]
mod three_nodes;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use packages::Package;
use support::{Limit, Server, output_of, succeed, url_of, wait_until};

/// A language that has a package.
#[derive(Clone, Copy)]
struct Language {
    package: fn() -> Option<&'static Package>,
    add_items: &'static str,
    count_items: &'static str,
    best_sellers: &'static str,
    /// How a program is given as an argument, and one that appends at a wrong revision and prints the problem.
    inline: &'static [&'static str],
    append_at_wrong_revision: &'static str,
    /// How its description marks a program.
    fence: &'static str,
}

const PYTHON: Language = Language {
    package: packages::python,
    add_items: "add_items.py",
    count_items: "count_items.py",
    best_sellers: "best_sellers.py",
    inline: &["-c"],
    append_at_wrong_revision: r#"
import gesta, os
try:
    gesta.connect(os.environ["B"]).append("cart-1", [gesta.EventData("item-added", {})], expected=7)
except gesta.WrongExpectedRevision as problem:
    print(problem.kind, problem.actual)
"#,
    fence: "python",
};
const TYPESCRIPT: Language = Language {
    package: packages::typescript,
    add_items: "add_items.mjs",
    count_items: "count_items.mjs",
    best_sellers: "best_sellers.mjs",
    inline: &["--input-type=module", "-e"],
    append_at_wrong_revision: r#"
const { EventData, connect } = await import(`${process.cwd()}/node_modules/gesta-client/dist/index.js`);
await connect(process.env.B).append("cart-1", [new EventData("item-added", {})], { expected: 7 }).catch((problem) => {
  console.log(problem.kind, problem.document.actual);
});
"#,
    fence: "js",
};

impl Language {
    /// The interpreter that finds the package, in the folder of the programs; `None`, said aloud, if the package cannot
    /// be built here.
    fn interpreter(self) -> Option<Command> {
        let package = (self.package)()?;
        let mut command = Command::new(&package.interpreter);
        command
            .current_dir(&package.programs)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        Some(command)
    }

    fn is_there(self) -> bool {
        (self.package)().is_some()
    }

    fn program(self, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.interpreter().unwrap();
        command.arg(name).args(arguments);
        command
    }

    /// Puts items into cart 1 and returns what the program prints.
    fn add(self, server: &str, items: &[String]) -> Child {
        let mut arguments = vec![server, "1"];
        arguments.extend(items.iter().map(String::as_str));
        let mut command = self.program(self.add_items, &arguments);
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
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
    child: gesta_rig::Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Consumer {
    fn start(language: Language, server: &str, file: &Path) -> Self {
        let arguments = [server, file.to_str().unwrap()];
        Self::run(&mut language.program(language.count_items, &arguments))
    }

    fn run(command: &mut Command) -> Self {
        let mut child = gesta_rig::Child::spawn(command.stdout(Stdio::piped())).unwrap();
        let (sender, lines) = std::sync::mpsc::channel();
        let output = BufReader::new(child.take_output().unwrap());
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
        self.child.kill();
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

/// Goal: an append whose answer is lost is repeated with the same event ids, and is stored once.
fn an_append_whose_answer_is_lost_is_stored_once(language: Language) {
    if !language.is_there() {
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
    if !language.is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = url_of(&folder.path().join("gesta.db"));
    let address = gesta_rig::free_address().unwrap().to_string();
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
    if !language.is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&folder.path().join("gesta.db")));
    let added = support::ended(language.add(&server.url, &items(2)));
    assert!(added.status.success(), "{added:?}");
    let mut command = language.interpreter().unwrap();
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
    if !language.is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = url_of(&folder.path().join("gesta.db"));
    let file = folder.path().join("counts");
    let address = gesta_rig::free_address().unwrap().to_string();
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
    if !language.is_there() {
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

/// Goal: a program says at the first refused connection which server does not answer and why, once, and goes on when
/// the server is there.
fn a_refused_connection_is_said(language: Language) {
    if !language.is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let address = gesta_rig::free_address().unwrap().to_string();
    let mut adding = language.add(&format!("http://{address}"), &items(1));
    let _limit = Limit::of(&adding);
    let mut said = BufReader::new(adding.stderr.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap().to_lowercase();
    assert!(
        first.contains(&address) && first.contains("connection refused"),
        "{first}"
    );
    let store = url_of(&folder.path().join("gesta.db"));
    let server = Server::start_with(&store, &["--listen", &address]);
    assert!(adding.wait().unwrap().success());
    assert_eq!(said.map_while(Result::ok).count(), 0);
    assert_eq!(stored(&server.url), items(1));
}

/// Goal: a certificate that is not trusted is said at the first connection, with what can be done, and is not waited
/// for.
fn a_certificate_that_is_not_trusted_is_said(language: Language) {
    if !language.is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let tls = folder.path().join("tls");
    let more = [
        "--listen",
        "127.0.0.1:0",
        "--tls-self-signed",
        tls.to_str().unwrap(),
    ];
    let server = Server::start_with(&url_of(&folder.path().join("gesta.db")), &more);
    let mut adding = language.add(&server.url, &items(1));
    let _limit = Limit::of(&adding);
    let mut said = BufReader::new(adding.stderr.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap();
    for part in [
        &server.url,
        "its certificate is not trusted",
        "names the authority",
    ] {
        assert!(first.contains(part), "{first}");
    }
    let rest: Vec<String> = said.map_while(Result::ok).collect();
    assert!(!adding.wait().unwrap().success(), "{rest:?}");
}

/// Goal: a consumer that is interrupted, as by Ctrl-C, ends without a word.
fn an_interrupted_consumer_ends_quietly(language: Language) {
    if !language.is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&folder.path().join("gesta.db")));
    let file = folder.path().join("counts");
    let arguments = [server.url.as_str(), file.to_str().unwrap()];
    let mut following = language.program(language.count_items, &arguments);
    let mut consumer = Consumer::run(following.stderr(Stdio::piped()));
    consumer.says("caught up");
    let _limit = Limit::of_process(consumer.child.pid());
    consumer.child.signal(nix::sys::signal::Signal::SIGINT);
    let said = std::io::read_to_string(consumer.child.take_errors().unwrap()).unwrap();
    assert_eq!(said, "");
    let status = consumer.child.wait().unwrap();
    let interrupted = std::os::unix::process::ExitStatusExt::signal(&status) == Some(2);
    assert!(status.success() || interrupted, "{status}");
}

/// Goal: the program of the tutorial shows what is bought most, and changes what it shows when more is bought.
fn the_page_of_best_sellers_follows_the_store(language: Language) {
    if !language.is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&folder.path().join("gesta.db")));
    let add = |items: &[&str]| {
        let items: Vec<_> = items.iter().map(|&item| item.to_owned()).collect();
        assert!(
            support::ended(language.add(&server.url, &items))
                .status
                .success()
        );
    };
    add(&["book", "<pen>"]);
    let page = Consumer::run(&mut language.program(language.best_sellers, &[&server.url, "0"]));
    let address = page.lines.recv_timeout(support::PATIENCE).unwrap();
    let address = address.strip_prefix("http://").unwrap();
    let shows = |expected: &str| {
        wait_until(expected, || support::get(address, "/").contains(expected));
    };
    shows("<li>book: 1</li>");
    add(&["<pen>", "<pen>"]);
    shows("<ol><li>&lt;pen");
    shows(": 3</li><li>book: 1</li>");
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

            #[test]
            fn a_refused_connection_is_said() {
                super::a_refused_connection_is_said($language);
            }

            #[test]
            fn a_certificate_that_is_not_trusted_is_said() {
                super::a_certificate_that_is_not_trusted_is_said($language);
            }

            #[test]
            fn an_interrupted_consumer_ends_quietly() {
                super::an_interrupted_consumer_ends_quietly($language);
            }

            #[test]
            fn the_page_of_best_sellers_follows_the_store() {
                super::the_page_of_best_sellers_follows_the_store($language);
            }

            #[test]
            fn the_package_passes_its_own_tests() {
                super::checks::the_package_passes_its_own_tests($language);
            }

            #[test]
            fn the_program_of_the_description_runs() {
                super::checks::the_program_of_the_description_runs($language);
            }

            #[test]
            fn every_call_works() {
                super::checks::every_call_works($language);
            }

            #[test]
            fn every_call_works_over_tls_as_a_user() {
                super::checks::every_call_works_over_tls_as_a_user($language);
            }

            #[test]
            fn nothing_is_lost_when_a_node_is_killed() {
                super::checks::nothing_is_lost_when_a_node_is_killed($language);
            }
        }
    };
}

tests!(python, super::PYTHON);
tests!(typescript, super::TYPESCRIPT);
