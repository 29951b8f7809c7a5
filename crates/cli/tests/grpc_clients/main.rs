//! The published clients of EventStoreDB and KurrentDB against the real server, on SQLite and on PostgreSQL, alone and
//! as a cluster of three nodes.
//!
//! Without their interpreters, or without a registry, the tests are skipped loudly; with `CI=true` they fail.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod cluster;
mod cut;
mod fetched;
mod published;
#[path = "../support/mod.rs"]
mod support;
#[path = "../three_nodes/mod.rs"]
mod three_nodes;

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use cut::Cut;
use fetched::{Client, programs};
use gesta_kit::depth;
use gesta_rig::{Server as Postgres, ServerConfig};
use support::registry::is_deep;
use support::{Limit, Server, output_of, patient, url_of};
use three_nodes::Nodes;

impl Client {
    /// Runs a program; it must succeed. Gives what it prints.
    fn run(&self, program: &[OsString], arguments: &[String]) -> String {
        let mut command = Command::new(&program[0]);
        command
            .args(&program[1..])
            .args(arguments)
            .current_dir(&self.folder)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let output = output_of(&mut command);
        let (said, wrong) = (support::stdout(&output), support::stderr(&output));
        assert!(output.status.success(), "{program:?} {said}\n{wrong}");
        said
    }

    /// Runs a program that is given as text, with this address of a server in place of its own. Gives what it prints.
    fn run_text(&self, text: &str, address: &str) -> String {
        let program = (self.run_text)(self, &fetched::addressed(text, address));
        self.run(&program, &[])
    }

    /// Goal: all checks pass against servers at these addresses, and the program on the page of the guide does what the
    /// page says.
    fn passes(&self, addresses: &str, first: &str) {
        if let Some(check) = &self.check {
            let cut = Cut::before(first);
            let arguments = [
                addresses.to_owned(),
                cut.through.to_string(),
                cut.cutter.to_string(),
            ];
            println!("{}", self.run(check, &arguments));
        }
        let (page, language) = self.page;
        let said = self.run_text(&fetched::program_of_page(page, language), first);
        assert_eq!(
            said, "0 OrderCreated\n1 OrderShipped\nfollowed OrderShipped\n",
            "{page}"
        );
    }

    /// Goal: it passes against a server alone.
    fn passes_on(&self, store: &str) {
        support::succeed(&["schema", "create", "--store", store]);
        support::succeed(&["virtual-streams", "on", "--store", store]);
        let server = Server::start(store);
        self.passes(server.address(), server.address());
        server.stop();
    }

    /// Goal: it passes against three nodes on PostgreSQL.
    fn passes_on_a_cluster(&self) {
        if let Some(nodes) = Nodes::start("1") {
            let leader = nodes.all[nodes.leader()].address.clone();
            self.passes(&nodes.addresses(), &leader);
            nodes.stop();
        }
    }
}

/// Goal: a client passes on both databases, against one server and against three nodes. In the quick form the server
/// alone has SQLite.
fn passes_everywhere(client: Option<&Client>) {
    let Some(client) = client else { return };
    let folder = tempfile::tempdir().unwrap();
    client.passes_on(&url_of(&folder.path().join("gesta.db")));
    client.passes_on_a_cluster();
    if depth::count(false, true)
        && let Some(postgres) = Postgres::start_with(ServerConfig::default()).unwrap()
    {
        client.passes_on(&patient(&postgres.url()));
    }
}

#[test]
fn the_python_client_passes_all_checks() {
    passes_everywhere(fetched::python());
}

#[test]
fn the_node_client_passes_all_checks() {
    passes_everywhere(fetched::node());
}

/// The servers that a group of a client works on, of which one is killed and started again.
trait Killed {
    /// Kills the one that runs the group, and starts it again.
    fn kill_and_start(&mut self);
}

/// A server alone.
struct Alone {
    store: String,
    address: String,
    server: Option<Server>,
}

impl Alone {
    fn start(store: &str) -> Self {
        let address = gesta_rig::free_address().unwrap().to_string();
        let mut alone = Self {
            store: store.to_owned(),
            address,
            server: None,
        };
        alone.kill_and_start();
        alone
    }
}

impl Killed for Alone {
    fn kill_and_start(&mut self) {
        if let Some(server) = self.server.take() {
            server.kill();
        }
        self.server = Some(Server::start_with(
            &self.store,
            &["--listen", &self.address],
        ));
    }
}

impl Killed for Nodes {
    fn kill_and_start(&mut self) {
        let leader = self.leader();
        self.kill(leader);
        self.launch(leader);
    }
}

/// Goal: ten consumers with a published client that refuse, are silent and vanish, and two kills of the server: every
/// event is finished or parked. The deep form has 100,000 events.
fn a_group_loses_nothing(client: &Client, addresses: &str, servers: &mut dyn Killed) {
    let (events, seed) = (depth::count(2_000, 100_000), depth::seed());
    println!("GESTA_SEED={seed}");
    let python = &client.check.as_ref().unwrap()[0];
    let mut running = Command::new(python)
        .arg(programs().join("group.py"))
        .args([addresses, &events.to_string(), &seed.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let _limit = Limit::of(&running);
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = lines.next().expect("a part is half finished").unwrap();
        assert_eq!(line, "kill");
        servers.kill_and_start();
    }
    println!("{}", lines.next().expect("what was counted").unwrap());
    assert!(running.wait().unwrap().success());
}

#[test]
fn a_group_of_the_python_client_loses_nothing_on_sqlite() {
    let Some(client) = fetched::python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut alone = Alone::start(&url_of(&folder.path().join("gesta.db")));
    a_group_loses_nothing(client, &alone.address.clone(), &mut alone);
}

#[test]
fn a_group_of_the_python_client_loses_nothing_on_postgresql() {
    if let Some(client) = fetched::python()
        && is_deep("a group of the Python client on PostgreSQL alone")
        && let Some(postgres) = Postgres::start_with(ServerConfig::default()).unwrap()
    {
        let mut alone = Alone::start(&patient(&postgres.url()));
        a_group_loses_nothing(client, &alone.address.clone(), &mut alone);
    }
}

#[test]
fn a_group_of_the_python_client_loses_nothing_on_three_nodes() {
    if let Some(client) = fetched::python()
        && let Some(mut nodes) = Nodes::start("1")
    {
        a_group_loses_nothing(client, &nodes.addresses(), &mut nodes);
        nodes.stop();
    }
}

/// Goal: a client comes over TLS as a user, with what its connection string says; who is not known hears so, and who
/// may not read a stream hears that.
#[test]
fn the_python_client_comes_over_tls_as_a_user() {
    let Some(client) = fetched::python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = url_of(&folder.path().join("gesta.db"));
    for (user, more) in [("root", &["--admin"][..]), ("alice", &[])] {
        let file = folder.path().join(user);
        std::fs::write(&file, format!("password-of-{user}\n")).unwrap();
        let file = file.to_str().unwrap();
        let add = [
            "user",
            "add",
            user,
            "--password-file",
            file,
            "--store",
            &store,
        ];
        support::succeed(&[&add[..], more].concat());
    }
    let tls = folder.path().join("tls");
    let (tls, ca) = (tls.to_str().unwrap(), tls.join("ca.pem"));
    let server = Server::start_with(
        &store,
        &["--listen", "127.0.0.1:0", "--tls-self-signed", tls],
    );
    let mut command = Command::new(&client.check.as_ref().unwrap()[0]);
    command
        .arg(programs().join("secure.py"))
        .arg(server.url.strip_prefix("https://").unwrap())
        .arg(&ca)
        .args(["alice", "password-of-alice"]);
    let output = output_of(&mut command);
    let (said, wrong) = (support::stdout(&output), support::stderr(&output));
    eprint!("{wrong}");
    assert_eq!(said, "['item-added']\ndenied\nunauthenticated\n", "{wrong}");
    server.stop();
}

#[test]
fn the_python_client_goes_on_when_its_node_is_killed() {
    if let Some(client) = fetched::python() {
        let python = client.check.as_ref().unwrap()[0].clone();
        cluster::goes_on(client, &[python, programs().join("cluster.py").into()]);
    }
}

#[test]
fn the_python_client_goes_on_over_tls_as_a_user() {
    if let Some(client) = fetched::python() {
        let python = client.check.as_ref().unwrap()[0].clone();
        cluster::goes_on_as_a_user(client, &[python, programs().join("cluster.py").into()]);
    }
}

#[test]
fn the_node_client_goes_on_when_its_node_is_killed() {
    if let Some(client) = fetched::node() {
        cluster::goes_on(client, &["node".into(), "cluster.mjs".into()]);
    }
}

#[test]
fn the_rust_client_passes_all_checks() {
    if is_deep("the Rust client") {
        passes_everywhere(fetched::rust().as_ref());
    }
}

#[test]
fn the_java_client_passes_all_checks() {
    if is_deep("the Java client") {
        passes_everywhere(fetched::java().as_ref());
    }
}

#[test]
fn the_go_client_passes_all_checks() {
    if is_deep("the Go client") {
        passes_everywhere(fetched::go().as_ref());
    }
}
