//! `gesta cluster …` and what a node tells about its cluster, with real servers on a real PostgreSQL.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use gesta_rig::{FaultProxy, Server as Postgres, ServerConfig};
use nix::sys::signal::Signal;
use serde_json::Value;
use support::{
    PATIENCE, Server, code, get, patient, run, run_in_time, stderr, succeed, wait_until,
};
use tempfile::TempDir;

const LOGS: usize = 4;
/// The code of a command that says to try again, as when the database has not answered it for 2.5 seconds.
const TRY_AGAIN: i32 = 5;
/// For so long commands wait for what they ask of a node.
const WAIT: &str = "2m";
/// How often a test is repeated in which the machine stood still.
const ATTEMPTS: usize = 4;

/// A database of several logs, and the secret of its nodes.
struct Shared {
    postgres: Postgres,
    url: String,
    folder: TempDir,
}

impl Shared {
    /// `None`, said aloud, where PostgreSQL is not installed.
    fn start() -> Option<Self> {
        let postgres = Postgres::start_with(ServerConfig::default()).unwrap()?;
        let url = patient(&postgres.url());
        succeed(&["schema", "create", "--store", &url, "--logs", "4"]);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("secret"), "a secret of the tests\n").unwrap();
        Some(Self {
            postgres,
            url,
            folder,
        })
    }

    fn node(&self) -> Server {
        self.node_at("127.0.0.1:0")
    }

    fn node_at(&self, address: &str) -> Server {
        self.node_with(address, "secret", &[])
    }

    /// A node whose secret is in this file of the folder.
    fn node_with(&self, address: &str, secret: &str, more: &[&str]) -> Server {
        let secret = self.folder.path().join(secret);
        let node = [
            "--listen",
            "127.0.0.1:0",
            "--node",
            address,
            "--cluster-secret-file",
            secret.to_str().unwrap(),
        ];
        Server::start_with(&self.url, &[&node[..], more].concat())
    }

    /// Runs a command once.
    fn cluster(&self, arguments: &[&str]) -> std::process::Output {
        run(&[&["cluster"], arguments, &["--store", &self.url]].concat())
    }

    /// Runs a command, and again while it says to try again.
    fn answered(&self, arguments: &[&str]) -> std::process::Output {
        let begun = Instant::now();
        loop {
            let output = self.cluster(arguments);
            if code(&output) != TRY_AGAIN || begun.elapsed() > PATIENCE {
                return output;
            }
            eprintln!("{arguments:?}: {}", stderr(&output));
        }
    }

    /// What a command tells in JSON; it must succeed.
    fn told(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.answered(&[arguments, &["--output", "json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        let lines = support::stdout(&output);
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn status(&self, kind: &str) -> Vec<Value> {
        let mut rows = self.told(&["status"]);
        rows.retain(|row| row["kind"] == kind);
        rows
    }

    /// The owner of each log.
    fn owners(&self) -> Vec<Option<u64>> {
        let logs = self.status("log");
        logs.iter().map(|log| log["owner"].as_u64()).collect()
    }

    /// Two nodes, the first of which owns all logs: it has joined before the second was there, and nothing moves for
    /// the sake of balance, however long the test takes.
    fn two_nodes(&self) -> (Server, Server) {
        let first = self.node();
        wait_until("the first node has all logs", || {
            self.owners() == [Some(1); LOGS]
        });
        self.told(&["freeze"]);
        (first, self.node())
    }

    fn refusal(&self, arguments: &[&str], code_: i32) -> String {
        let output = match code_ {
            TRY_AGAIN => self.cluster(arguments),
            _ => self.answered(arguments),
        };
        assert_eq!(code(&output), code_, "{arguments:?}: {output:?}");
        stderr(&output)
    }
}

/// Goal: a node that could not ask the owner for its secret before it joined leaves as soon as it can, and takes no
/// log; the owner stays.
#[test]
fn a_stranger_that_has_joined_gives_way_to_the_owner() {
    let Some(shared) = Shared::start() else {
        return;
    };
    let listen = gesta_rig::free_address().unwrap();
    let network = FaultProxy::start(listen).unwrap();
    network.refuse_connections(true);
    let told = network.addr().to_string();
    let owner = shared.node_with(&listen.to_string(), "secret", &["--advertise", &told]);
    wait_until("the first node has all logs", || {
        shared.owners() == [Some(1); LOGS]
    });
    shared.told(&["freeze"]);
    let other = shared.folder.path().join("other");
    std::fs::write(other, "what nobody else knows\n").unwrap();
    let mut stranger = shared.node_with("127.0.0.1:0", "other", &[]);
    assert_eq!(shared.status("node").len(), 2, "nobody has answered it");
    network.refuse_connections(false);
    assert_eq!(stranger.wait().code(), Some(1));
    let rule = "the secret of the cluster must be the same in all nodes of a store";
    wait_until("it says why", || {
        let said = stranger.logged(rule);
        said.iter().any(|line| line.contains(&told))
    });
    assert_eq!(shared.owners(), [Some(1); LOGS]);
    let moves = shared.told(&["history"]);
    assert_eq!(moves.len(), LOGS, "the claims of the owner: {moves:?}");
    assert!(append(&owner, "a").contains("201"));
    owner.stop();
}

/// The head of the answer to an append.
fn append(server: &Server, stream: &str) -> String {
    let body = r#"{"events":[{"type":"happened","data":{}}]}"#;
    let mut socket = TcpStream::connect(server.address()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        socket,
        "POST /streams/{stream} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        server.address(),
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 201"), "{answer}");
    answer.split("\r\n\r\n").next().unwrap().to_owned()
}

fn info(server: &Server) -> Value {
    serde_json::from_str(&get(server.address(), "/info")).unwrap()
}

/// The value of a metric, by its name and labels.
fn metric(server: &Server, name: &str) -> f64 {
    let page = get(server.address(), "/metrics");
    let mut lines = page.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = value.unwrap_or_else(|| panic!("{name} is not in {page}"));
    value.parse().unwrap()
}

/// Goal: people see who has which log, and direct them: move, pin, freeze, drain; all of it is in the history.
#[test]
fn people_direct_the_logs_of_two_nodes() {
    let Some(shared) = Shared::start() else {
        return;
    };
    let (_first, second) = shared.two_nodes();
    let nodes = shared.status("node");
    assert_eq!(nodes.len(), 2);
    for (node, logs) in nodes.iter().zip([LOGS, 0]) {
        assert_eq!(
            (&node["state"], &node["logs"]),
            (&"up".into(), &logs.into())
        );
        assert!(node["beat_age_seconds"].as_f64().unwrap() < 60.0, "{node}");
    }
    wait_until("the nodes can call each other", || {
        let nodes = shared.status("node");
        nodes
            .iter()
            .all(|node| node["cannot_call"] == Value::Array(Vec::new()))
    });
    let address = nodes[1]["address"].as_str().unwrap();
    people_move_and_pin_logs(&shared, address);
    people_let_logs_be_balanced(&shared);
    people_drain_a_node(&shared);
    // The node that took part again and the other one have both moved logs. A move is counted when its node has the
    // answer of the database, where it is seen before.
    wait_until("moves are counted", || {
        metric(
            &second,
            "gesta_cluster_lease_moves_total{reason=\"request\"}",
        ) >= 1.0
    });
}

/// Log 2 goes to the second node, and is pinned to the first one for a while.
fn people_move_and_pin_logs(shared: &Shared, address: &str) {
    let moved = shared.told(&["move", "2", "--to", address, "--wait", WAIT]);
    assert_eq!(
        (&moved[0]["node"], &moved[0]["moved"]),
        (&2.into(), &true.into())
    );
    assert_eq!(shared.owners(), [Some(1), Some(1), Some(2), Some(1)]);
    assert_eq!(shared.told(&["move", "2", "--to", "2"])[0]["moved"], true);
    let last = &shared.told(&["history", "--limit", "1"])[0];
    assert_eq!(
        (&last["log"], &last["from"], &last["to"], &last["reason"]),
        (&2.into(), &1.into(), &2.into(), &"request".into())
    );

    shared.told(&["pin", "2", "--to", "1"]);
    assert_eq!(shared.status("log")[2]["pinned"], 1);
    let said = shared.refusal(&["move", "2", "--to", "2"], 2);
    assert!(said.contains("pinned to node 1"), "{said}");
    shared.told(&["unpin", "2"]);
}

/// What was moved by hand is frozen until people thaw it.
fn people_let_logs_be_balanced(shared: &Shared) {
    assert!(shared.status("log").iter().all(|log| log["frozen"] == true));
    assert_eq!(shared.told(&["balance", "--dry-run"]).len(), 0);
    shared.told(&["thaw"]);
    assert!(
        shared
            .status("log")
            .iter()
            .all(|log| log["frozen"] == false)
    );
    let planned = shared.told(&["balance", "--dry-run"]);
    match planned.as_slice() {
        // On a slow machine the nodes have settled, and do it already.
        [] => wait_until("a log is moved for the sake of balance", || {
            shared.told(&["history"])[0]["reason"] == "balance"
        }),
        [one] => assert_eq!((&one["to"], &one["reason"]), (&2.into(), &"balance".into())),
        more => panic!("{more:?}"),
    }
}

/// The first node gives its logs away, and takes part again. Its first log then comes by request: nothing moves for the
/// sake of balance, however long the test takes.
fn people_drain_a_node(shared: &Shared) {
    shared.told(&["freeze"]);
    let drained = shared.told(&["drain", "1", "--wait", WAIT]);
    assert_eq!(
        (&drained[0]["state"], &drained[0]["logs"]),
        (&"draining".into(), &0.into())
    );
    assert_eq!(shared.owners(), [Some(2); LOGS]);
    let table = support::stdout(&shared.answered(&["status"]));
    assert!(
        table.contains("draining") && !table.contains("NONE"),
        "{table}"
    );
    assert!(
        shared
            .refusal(&["move", "0", "--to", "1"], 2)
            .contains("is draining")
    );
    assert!(
        shared
            .refusal(&["drain", "2"], 1)
            .contains("no other node is up")
    );
    assert_eq!(shared.told(&["drain", "1", "--undo"])[0]["state"], "up");
    shared.told(&["move", "0", "--to", "1", "--wait", WAIT]);
}

/// Goal: what is wrong is refused with the value and the rule, before anything is asked of a node.
#[test]
fn wrong_nodes_logs_and_stores_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = support::url_of(&folder.path().join("gesta.db"));
    let alone = run(&["cluster", "status", "--store", &sqlite]);
    assert_eq!(code(&alone), 2);
    let said = stderr(&alone);
    assert!(
        said.contains(&sqlite) && said.contains("several nodes need PostgreSQL"),
        "{said}"
    );
    assert!(!folder.path().join("gesta.db").exists());
    let server = run(&["cluster", "status", "--store", "http://127.0.0.1:1"]);
    assert!(stderr(&server).contains("works on a database"));

    let Some(shared) = Shared::start() else {
        return;
    };
    let table = support::stdout(&shared.answered(&["status"]));
    assert!(
        table.contains("no nodes; plain servers need none") && !table.contains("WITHOUT OWNER"),
        "{table}"
    );
    assert!(
        shared
            .refusal(&["drain", "1"], 2)
            .contains("(there is none), found \"1\"")
    );
    let _node = shared.node();
    for arguments in [
        &["drain", "9"][..],
        &["move", "0", "--to", "9"],
        &["pin", "0", "--to", "elsewhere:1"],
    ] {
        let said = shared.refusal(arguments, 2);
        assert!(
            said.contains("NODE must be") && said.contains("node 1 at 127.0.0.1:"),
            "{said}"
        );
    }
    for arguments in [
        &["move", "4", "--to", "1"][..],
        &["pin", "4", "--to", "1"],
        &["unpin", "4"],
    ] {
        let said = shared.refusal(arguments, 2);
        assert!(
            said.contains("LOG must be from 0 to 3") && said.contains("found 4"),
            "{said}"
        );
    }
    assert_eq!(code(&shared.answered(&["balance"])), 2, "it only tells");
    assert!(
        shared
            .owners()
            .iter()
            .all(|owner| matches!(owner, None | Some(1)))
    );
}

/// Goal: a server that cannot be a node as it is told says which option is wrong, before anything is opened or made.
#[test]
fn wrong_options_of_a_node_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret of the tests\n").unwrap();
    let secret = secret.to_str().unwrap();
    let postgres = "postgres://nobody@127.0.0.1:1/none";
    let file = folder.path().join("made").join("gesta.db");
    let sqlite = format!("sqlite:{}", file.display());
    let local = ["--node", "127.0.0.1:0", "--cluster-secret-file", secret];
    let any = [
        "--node",
        "0.0.0.0:0",
        "--insecure",
        "--cluster-secret-file",
        secret,
    ];
    let refused = |store: &str, arguments: &[&[&str]], says: &[&str]| {
        let common = ["serve", "--listen", "127.0.0.1:0", "--store", store];
        let output = run(&[&common[..], &arguments.concat()].concat());
        assert_eq!(code(&output), 2, "{arguments:?}: {output:?}");
        let text = stderr(&output);
        for part in says {
            assert!(text.contains(part), "{part}: {text}");
        }
    };
    refused(
        postgres,
        &[&["--node", "foo"]],
        &["--node (cluster.node) must be", "\"foo\""],
    );
    refused(
        postgres,
        &[&["--node", "127.0.0.1:0"]],
        &["--cluster-secret-file"],
    );
    refused(
        postgres,
        &[&["--advertise", "a:1"]],
        &["--node ADDR", "a:1"],
    );
    refused(postgres, &[&any], &["--advertise HOST:PORT"]);
    for wrong in ["foo", "http://foo:2114", "0.0.0.0:2114", "foo:0"] {
        refused(
            postgres,
            &[&any, &["--advertise", wrong]],
            &["HOST:PORT", wrong],
        );
    }
    refused(&sqlite, &[&local], &["--node", &sqlite, "PostgreSQL"]);
    assert!(!file.parent().unwrap().exists(), "nothing was made");
}

/// Goal: the options of a node may come from the command line, the environment and the file, in any mixture.
#[test]
fn options_of_a_node_may_be_mixed() {
    let Some(shared) = Shared::start() else {
        return;
    };
    let file = shared.folder.path().join("gesta.toml");
    let secret = shared.folder.path().join("secret");
    let text = format!(
        "[cluster]\nsecret_file = {:?}\n",
        secret.display().to_string()
    );
    std::fs::write(&file, text).unwrap();
    let config = [
        "--listen",
        "127.0.0.1:0",
        "--config",
        file.to_str().unwrap(),
    ];
    let by_flag = [&config[..], &["--node", "127.0.0.1:0"]].concat();
    let first = Server::start_with(&shared.url, &by_flag);
    first.stop();
    let told = gesta_rig::free_address().unwrap().to_string();
    let text = format!(
        "[cluster]\nsecret_file = {:?}\nnode = {told:?}\n",
        secret.display().to_string()
    );
    std::fs::write(&file, text).unwrap();
    let advertised = told.replace("127.0.0.1", "localhost");
    let by_file = [&config[..], &["--advertise", &advertised]].concat();
    let _second = Server::start_with(&shared.url, &by_file);
    // The first one may have had no time to leave.
    wait_until("the second node is there, and it alone", || {
        let nodes = shared.status("node");
        nodes.len() == 1 && nodes[0]["address"] == *advertised
    });
}

/// What happened: a mistyped --advertise was the address of a healthy node, which was replaced and stopped.
#[test]
fn the_address_of_a_node_that_lives_is_refused() {
    let Some(shared) = Shared::start() else {
        return;
    };
    let address = gesta_rig::free_address().unwrap().to_string();
    let first = shared.node_at(&address);
    let secret = shared.folder.path().join("secret");
    let output = run_in_time(&[
        "serve",
        "--store",
        &shared.url,
        "--listen",
        "127.0.0.1:0",
        "--node",
        "127.0.0.1:0",
        "--advertise",
        &address,
        "--cluster-secret-file",
        secret.to_str().unwrap(),
    ]);
    assert_eq!(code(&output), 2, "{output:?}");
    let text = stderr(&output);
    assert!(
        text.contains(&address) && text.contains("is alive"),
        "{text}"
    );
    wait_until("the first node has all logs", || {
        shared.owners() == [Some(1); LOGS]
    });
    first.stop();
}

/// What happened: one forgotten flag, and a server appended to logs of the nodes without a word.
#[test]
fn a_server_without_node_beside_nodes_is_warned_of() {
    let Some(shared) = Shared::start() else {
        return;
    };
    let node = shared.node();
    let warned = |server: &Server| !server.logged("--node").is_empty();
    assert!(!warned(&node));
    let forgotten = Server::start_with(&shared.url, &["--listen", "127.0.0.1:0"]);
    assert!(warned(&forgotten), "{:?}", forgotten.logged(""));
    forgotten.stop();
    node.stop();
}

/// Goal: a node tells its clients who owns which log, in `/info` and beside answers to appends, and counts what it
/// forwards.
#[test]
fn a_node_tells_who_owns_which_log() {
    let reached = (0..ATTEMPTS).any(|_| tells_who_owns_which_log());
    assert!(reached, "each time the owner was passed over");
}

/// Returns false if the owner of a log was passed over because it could not be reached for a moment, as when the
/// machine stands still.
fn tells_who_owns_which_log() -> bool {
    let Some(shared) = Shared::start() else {
        return true;
    };
    let (first, second) = shared.two_nodes();
    wait_until("the second node sees the owners", || {
        let logs = &info(&second)["cluster"]["logs"];
        logs.as_array().unwrap().iter().all(|log| log["node"] == 1)
    });
    wait_until("the nodes have told where clients reach them", || {
        let nodes = &info(&second)["cluster"]["nodes"];
        nodes[0]["api"] == first.address() && nodes[1]["api"] == second.address()
    });
    let (here, there) = (info(&first), info(&second));
    assert_eq!(
        (&here["cluster"]["node"], &there["cluster"]["node"]),
        (&1.into(), &2.into())
    );
    let owner = &there["cluster"]["nodes"][0];
    assert_eq!((&owner["node"], &owner["state"]), (&1.into(), &"up".into()));

    assert!(
        !append(&first, "cart-1").contains("gesta-log-owner"),
        "it is the owner itself"
    );
    let address = owner["address"].as_str().unwrap();
    // An owner that does not answer for a moment is passed over: then once more.
    let counts = || {
        let answered = "gesta_cluster_forwarded_calls_total{result=\"answered\"}";
        let direct = "gesta_cluster_direct_appends_total";
        [answered, direct].map(|name| metric(&second, name))
    };
    let link = format!("gesta_cluster_link_up{{node=\"{address}\"}}");
    wait_until("the link is up at first", || {
        get(second.address(), "/metrics").contains(&format!("{link} 1\n"))
    });
    wait_until("an append is forwarded", || {
        let before = counts();
        assert_hint_names(&append(&second, "cart-1"), address, &there);
        let after = counts();
        after[0] > before[0] && after[1] <= before[1]
    });
    let was_reached = owners_were_reached(&second);
    wait_until("the link is up", || metric(&second, &link) > 0.5);
    for (name, value) in [
        ("gesta_cluster_logs_owned", 0.0),
        ("gesta_cluster_logs_without_owner", 0.0),
        ("gesta_cluster_nodes{state=\"up\"}", 2.0),
        ("gesta_cluster_nodes{state=\"draining\"}", 0.0),
    ] {
        assert!(
            (metric(&second, name) - value).abs() < f64::EPSILON,
            "{name}"
        );
    }
    assert_durations_are_told(&first, &second);
    assert!(metric(&first, "gesta_cluster_beat_age_seconds") < 60.0);
    let claims = "gesta_cluster_lease_moves_total{reason=\"claim\"}";
    wait_until("claims are counted", || metric(&first, claims) >= 1.0);
    was_reached
}

/// True if a node has made no change that belongs to an owner. It makes none but for owners that it could not reach,
/// which it counts.
fn owners_were_reached(node: &Server) -> bool {
    let direct = metric(node, "gesta_cluster_direct_appends_total");
    if direct < 0.5 {
        return true;
    }
    let results = ["unreachable", "silent", "no_owner"];
    let calls = results.map(|result| {
        let name = format!("gesta_cluster_forwarded_calls_total{{result=\"{result}\"}}");
        metric(node, &name)
    });
    eprintln!("{direct} appends were made here; calls for owners were {results:?}: {calls:?}");
    let in_trouble: f64 = calls.iter().sum();
    assert!(direct <= in_trouble, "{direct} {calls:?}");
    false
}

/// The hint of this response names this owner, and the log's epoch as `/info` shows it.
fn assert_hint_names(response: &str, owner: &str, info: &Value) {
    let hint = response
        .lines()
        .find_map(|line| line.strip_prefix("gesta-log-owner: "))
        .unwrap_or_else(|| panic!("{response}"));
    let (named, rest) = hint.split_once("; log=").unwrap();
    assert_eq!(named, owner);
    let (log, epoch) = rest.split_once("; epoch=").unwrap();
    let shown = &info["cluster"]["logs"][log.parse::<usize>().unwrap()];
    assert_eq!(shown["epoch"].as_u64(), epoch.parse().ok());
}

/// The first node has claimed the logs and stored what the second one has forwarded.
fn assert_durations_are_told(first: &Server, second: &Server) {
    for (node, name) in [
        (second, "gesta_cluster_changes_total{to=\"owner\"}"),
        (second, "gesta_cluster_forward_seconds_count"),
        (second, "gesta_cluster_forward_seconds_sum"),
        (second, "gesta_cluster_beat_seconds_count"),
        (first, "gesta_cluster_changes_total{to=\"here\"}"),
        (first, "gesta_cluster_takeover_seconds_count"),
    ] {
        wait_until(name, || metric(node, name) > 0.0);
    }
}

/// Goal: a request to a node that does not answer ends in time and says that it stays, and the node does it when it
/// wakes.
#[test]
fn requests_to_a_frozen_node_stay() {
    let stayed = (0..ATTEMPTS).any(|_| requests_stay());
    assert!(
        stayed,
        "each time a log has moved that nobody had asked for"
    );
}

/// Returns false if a log has moved that nobody had asked for: when both nodes go on, one may take the other one for
/// dead on a machine that stands still.
fn requests_stay() -> bool {
    let Some(shared) = Shared::start() else {
        return true;
    };
    let (first, second) = shared.two_nodes();
    // Both are frozen: commands ask the database alone, and a node that went on would see the other one silent.
    let to_both = |it: Signal| [&first, &second].map(|node| node.signal(it));
    to_both(Signal::SIGSTOP);
    let asked = shared.told(&["move", "0", "--to", "2", "--wait", "0s"]);
    assert_eq!(asked[0]["moved"], false);
    let late = shared.refusal(&["move", "1", "--to", "2", "--wait", "100ms"], 5);
    assert!(late.contains("log 1 has not moved yet"), "{late}");
    assert_eq!(shared.status("log")[1]["next_owner"], 2);
    let withdrawn = shared.told(&["move", "1", "--to", "1"]);
    assert_eq!(withdrawn[0]["moved"], true);
    assert_eq!(shared.status("log")[1]["next_owner"], Value::Null);
    to_both(Signal::SIGCONT);
    let passed_over = || passed_over(&shared.told(&["history"]));
    let mut owners = Vec::new();
    wait_until("log 0 has moved", || {
        owners = shared.owners();
        owners[0] == Some(2) || passed_over()
    });
    if passed_over() {
        return false;
    }
    assert_eq!(owners, [Some(2), Some(1), Some(1), Some(1)]);
    to_both(Signal::SIGSTOP);
    let late = shared.refusal(&["drain", "1", "--wait", "100ms"], 5);
    assert!(late.contains("still has 3 logs"), "{late}");
    to_both(Signal::SIGCONT);
    wait_until("the node is drained", || shared.owners() == [Some(2); LOGS]);
    true
}

/// Whether a log went from one node to another without a request of people.
fn passed_over(history: &[Value]) -> bool {
    let passed_over = history.iter().any(|moved| {
        let asked = ["request", "drain"].map(Value::from);
        moved["from"] != Value::Null && !asked.contains(&moved["reason"])
    });
    if passed_over {
        eprintln!("moved without a request: {history:#?}");
    }
    passed_over
}

/// So long a node hands its logs over when it is stopped. Then it ends, and others claim them.
const LEAVES_WITHIN: Duration = Duration::from_secs(10);

/// Goal: a node that is stopped has handed its logs over when it ends, and is the same node when it is started again at
/// its address.
#[test]
fn a_node_that_is_stopped_hands_its_logs_over() {
    let in_time = (0..ATTEMPTS).any(|_| is_stopped_in_time());
    assert!(in_time, "each stop took {LEAVES_WITHIN:?} or more");
}

/// Returns false if the stop took so long that the node may have given up: the machine stood still, and nothing was
/// checked.
fn is_stopped_in_time() -> bool {
    let Some(shared) = Shared::start() else {
        return true;
    };
    let address = gesta_rig::free_address().unwrap().to_string();
    let first = shared.node_at(&address);
    wait_until("the first node has all logs", || {
        shared.owners() == [Some(1); LOGS]
    });
    let _second = shared.node();
    let begun = Instant::now();
    first.stop();
    let took = begun.elapsed();
    if took >= LEAVES_WITHIN {
        eprintln!("a stop took {took:?}, so that nothing was checked, and is tried again");
        return false;
    }
    assert_eq!(shared.owners(), [Some(2); LOGS]);
    let moves = shared.told(&["history", "--limit", "4"]);
    assert!(
        moves.iter().all(|done| done["reason"] == "drain"),
        "{moves:?}"
    );
    let _again = shared.node_at(&address);
    let nodes = shared.status("node");
    let numbers: Vec<_> = nodes.iter().map(|node| node["node"].as_u64()).collect();
    assert_eq!(numbers, [Some(1), Some(2)]);
    assert_eq!(nodes[0]["address"], *address);
    true
}

/// Goal: a node that does not see the registry says that it is not ready and why, and is ready again afterwards; a node
/// that died is gone from the status once the other one has noticed.
#[test]
fn readiness_follows_the_membership() {
    let Some(shared) = Shared::start() else {
        return;
    };
    let (first, second) = shared.two_nodes();
    let ready = || get(second.address(), "/health/ready");
    wait_until("the node is ready", || ready().contains("\"ready\""));
    first.kill();
    wait_until("the second node has all logs", || {
        shared.owners() == [Some(2); LOGS]
    });
    assert_eq!(shared.status("node").len(), 1);
    wait_until("the node is ready alone", || ready().contains("\"ready\""));
    second.signal(Signal::SIGSTOP);
    wait_until("the node counts as silent", || {
        shared.status("node")[0]["silent"] == true
    });
    assert!(support::stdout(&shared.answered(&["status"])).contains("SILENT"));
    second.signal(Signal::SIGCONT);
    wait_until("the node beats again", || ready().contains("\"ready\""));
    // Only the registry is gone: appends can succeed.
    let rename = |from: &str, to: &str| {
        let sql = format!("ALTER TABLE gesta.{from} RENAME TO {to}");
        shared.postgres.execute(&sql).unwrap();
    };
    rename("nodes", "hidden");
    wait_until("the node has not looked for too long", || {
        ready().contains("has not seen the registry of nodes")
    });
    append(&second, "cart-1");
    rename("hidden", "nodes");
    wait_until("the node looks again", || ready().contains("\"ready\""));
}
