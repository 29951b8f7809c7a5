//! The published clients of EventStoreDB and KurrentDB against the real server, on SQLite and on PostgreSQL, alone and as
//! a cluster of three nodes.
//!
//! They come from their registries, once for all runs, into the folder of what is built. Without their interpreters, or
//! without a registry, the tests are skipped loudly; with `CI=true` they fail.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use gesta_pgtest::{Server as Postgres, ServerConfig};
use gesta_testkit::depth;
use support::{Server, is_installed, is_installed_as, url_of};

/// Where the programs lie that use the clients.
fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grpc_programs")
}

/// Where the programs of the guide lie.
fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/kurrentdb")
}

/// A folder of this name for what is fetched, beside what is built.
fn fetched(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A client, fetched by the first test that wants it, while the others wait: two installations in one folder at a time
/// break it.
type Once = OnceLock<Option<Client>>;

/// Runs a step of fetching; false, said aloud, if it fails, and with `CI` set that is a failure.
fn fetch(command: &mut Command) -> bool {
    let output = command.output().unwrap();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(std::env::var_os("CI").is_none(), "{command:?}: {said}");
        eprintln!("SKIPPED: {command:?} failed; what needs it was not run: {said}");
    }
    output.status.success()
}

/// The Python client.
fn python() -> Option<&'static Client> {
    static CLIENT: Once = OnceLock::new();
    CLIENT.get_or_init(fetch_python).as_ref()
}

fn fetch_python() -> Option<Client> {
    if !is_installed("python3") {
        return None;
    }
    let requirements = std::fs::read_to_string(programs().join("requirements.txt")).unwrap();
    let folder = fetched("python-client");
    let (python, done) = (folder.join("bin/python"), folder.join("fetched"));
    let is_there = std::fs::read_to_string(&done).is_ok_and(|text| text == requirements);
    if !is_there {
        let made = fetch(Command::new("python3").args(["-m", "venv"]).arg(&folder));
        let installed = made
            && fetch(
                Command::new(&python)
                    .args(["-m", "pip", "install", "--quiet", "-r", "requirements.txt"])
                    .current_dir(programs()),
            );
        if !installed {
            return None;
        }
        std::fs::write(&done, requirements).unwrap();
    }
    let run = |program: PathBuf| vec![python.clone().into(), program.into()];
    Some(Client {
        check: run(programs().join("check.py")),
        quickstart: Some(run(guide().join("quickstart.py"))),
        folder,
    })
}

/// The Node client.
fn node() -> Option<&'static Client> {
    static CLIENT: Once = OnceLock::new();
    CLIENT.get_or_init(fetch_node).as_ref()
}

fn fetch_node() -> Option<Client> {
    if !is_installed("node") || !is_installed("npm") {
        return None;
    }
    let folder = fetched("node-client");
    let package = std::fs::read_to_string(programs().join("package.json")).unwrap();
    let done = folder.join("fetched");
    let is_there = std::fs::read_to_string(&done).is_ok_and(|text| text == package);
    if !is_there {
        std::fs::write(folder.join("package.json"), &package).unwrap();
        let mut install = Command::new("npm");
        install
            .args(["install", "--no-audit", "--no-fund", "--loglevel=error"])
            .current_dir(&folder);
        if !fetch(&mut install) {
            return None;
        }
        std::fs::write(&done, package).unwrap();
    }
    // Modules are looked for beside the program.
    for (from, name) in [
        (programs(), "check.mjs"),
        (programs(), "cluster.mjs"),
        (guide(), "quickstart.mjs"),
    ] {
        std::fs::copy(from.join(name), folder.join(name)).unwrap();
    }
    let run = |program: &str| vec!["node".into(), program.into()];
    Some(Client {
        check: run("check.mjs"),
        quickstart: Some(run("quickstart.mjs")),
        folder,
    })
}

/// The Rust client, which is compiled with its program.
fn rust() -> Option<Client> {
    let folder = fetched("rust-client");
    let mut build = Command::new("cargo");
    build
        .args(["build", "--locked", "--quiet", "--target-dir"])
        .arg(&folder)
        .current_dir(programs().join("rust"))
        // Its code is not ours to lint.
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    fetch(&mut build).then(|| Client {
        check: vec![folder.join("debug/check").into()],
        quickstart: None,
        folder,
    })
}

/// The Java client.
fn java() -> Option<Client> {
    if !is_installed("mvn") {
        return None;
    }
    let folder = fetched("java-client");
    let (classes, list) = (folder.join("classes"), folder.join("classpath"));
    let mut resolve = Command::new("mvn");
    resolve
        .args(["--quiet", "--batch-mode", "dependency:build-classpath"])
        .arg(format!("-Dmdep.outputFile={}", list.display()))
        .current_dir(programs().join("java"));
    if !fetch(&mut resolve) {
        return None;
    }
    let path = std::fs::read_to_string(list).unwrap();
    let mut compile = Command::new("javac");
    compile.args(["-cp", path.trim(), "-d"]).arg(&classes);
    compile.arg(programs().join("java/src/main/java/Check.java"));
    compile.arg(guide().join("Quickstart.java"));
    let output = compile.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let path = format!("{}:{}", path.trim(), classes.display());
    let run = |class: &str| {
        let command = ["java", "-cp", &path, class];
        command.iter().map(Into::into).collect()
    };
    Some(Client {
        check: run("Check"),
        quickstart: Some(run("Quickstart")),
        folder,
    })
}

/// The Go client, with the program of the guide alone.
fn go() -> Option<Client> {
    if !is_installed_as("go", "version") {
        return None;
    }
    let folder = fetched("go-client");
    for (from, name) in [
        (programs().join("go"), "go.mod"),
        (programs().join("go"), "go.sum"),
        (guide(), "quickstart.go"),
    ] {
        std::fs::copy(from.join(name), folder.join(name)).unwrap();
    }
    let mut build = Command::new("go");
    build
        .args(["build", "-o", "quickstart", "quickstart.go"])
        .current_dir(&folder);
    let run: Vec<OsString> = vec![folder.join("quickstart").into()];
    fetch(&mut build).then(|| Client {
        check: run.clone(),
        quickstart: Some(run),
        folder,
    })
}

/// A client that can be used: how to run programs with it, each a command to which the addresses of servers are added.
struct Client {
    folder: PathBuf,
    check: Vec<OsString>,
    quickstart: Option<Vec<OsString>>,
}

impl Client {
    /// Runs a program against these addresses, separated by commas; it must succeed. Gives what it prints.
    fn run(&self, program: &[OsString], addresses: &str) -> String {
        let mut command = Command::new(&program[0]);
        command
            .args(&program[1..])
            .arg(addresses)
            .current_dir(&self.folder)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let output = command.output().unwrap();
        let (said, wrong) = (support::stdout(&output), support::stderr(&output));
        assert!(output.status.success(), "{said}\n{wrong}");
        said
    }

    /// Goal: all checks pass against servers at these addresses, and the program of the guide does what it says.
    fn passes(&self, addresses: &str) {
        println!("{}", self.run(&self.check, addresses));
        if let Some(quickstart) = &self.quickstart {
            let said = self.run(quickstart, addresses);
            let expected = "0 OrderCreated\n1 OrderShipped\nfollowed OrderShipped\n";
            assert_eq!(said, expected);
        }
    }

    /// Goal: it passes against a server alone.
    fn passes_on(&self, store: &str) {
        support::succeed(&["schema", "create", "--store", store]);
        support::succeed(&["virtual-streams", "on", "--store", store]);
        let server = Server::start(store);
        self.passes(server.address());
        server.stop();
    }

    /// Goal: it passes against three nodes on PostgreSQL.
    fn passes_on_a_cluster(&self) {
        let Some((_postgres, nodes)) = three_nodes("1") else {
            return;
        };
        let addresses: Vec<&str> = nodes.iter().map(Server::address).collect();
        self.passes(&addresses.join(","));
        for node in nodes {
            node.stop();
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
        client.passes_on(&postgres.url());
    }
}

#[test]
fn the_python_client_passes_all_checks() {
    passes_everywhere(python());
}

#[test]
fn the_node_client_passes_all_checks() {
    passes_everywhere(node());
}

/// Goal: ten consumers with a published client that refuse, are silent and vanish, and two kills of the server: every event
/// is finished or parked. The deep form has 100,000 events, and PostgreSQL too.
#[test]
fn a_group_of_the_python_client_loses_nothing_when_the_server_is_killed() {
    let Some(client) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    a_group_loses_nothing(client, &url_of(&folder.path().join("gesta.db")));
    if depth::count(false, true)
        && let Some(postgres) = Postgres::start_with(ServerConfig::default()).unwrap()
    {
        a_group_loses_nothing(client, &postgres.url());
    }
}

fn a_group_loses_nothing(client: &Client, store: &str) {
    let address = gesta_pgtest::free_address().unwrap().to_string();
    let start = || Server::start_with(store, &["--listen", &address]);
    let (events, seed) = (depth::count(2_000, 100_000), depth::seed());
    println!("GESTA_SEED={seed}");
    let (events, seed) = (events.to_string(), seed.to_string());
    let mut server = start();
    let mut running = Command::new(&client.check[0])
        .arg(programs().join("group.py"))
        .args([&address, &events, &seed])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        assert_eq!(
            lines.next().expect("a part is half finished").unwrap(),
            "kill"
        );
        server.kill();
        server = start();
    }
    println!("{}", lines.next().expect("what was counted").unwrap());
    assert!(running.wait().unwrap().success());
    server.stop();
}

/// Goal: a client comes over TLS as a user, with what its connection string says; who is not known hears so, and who may
/// not read a stream hears that.
#[test]
fn the_python_client_comes_over_tls_as_a_user() {
    let Some(client) = python() else { return };
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
    let mut command = Command::new(&client.check[0]);
    command
        .arg(programs().join("secure.py"))
        .arg(server.url.strip_prefix("https://").unwrap())
        .arg(&ca)
        .args(["alice", "password-of-alice"]);
    let output = command.output().unwrap();
    let (said, wrong) = (support::stdout(&output), support::stderr(&output));
    assert_eq!(said, "['item-added']\ndenied\nunauthenticated\n", "{wrong}");
    server.stop();
}

/// Three nodes on a database of so many logs, all of which know where clients reach the others; `None`, said aloud,
/// where PostgreSQL is not installed.
fn three_nodes(logs: &str) -> Option<(Postgres, Vec<Server>)> {
    let postgres = Postgres::start_with(ServerConfig::default()).unwrap()?;
    let store = postgres.url();
    support::succeed(&["schema", "create", "--store", &store, "--logs", logs]);
    if logs == "1" {
        support::succeed(&["virtual-streams", "on", "--store", &store]);
    }
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret of the tests\n").unwrap();
    let node = |_| {
        let node = ["--node", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
        let secret = ["--cluster-secret-file", secret.to_str().unwrap()];
        Server::start_with(&store, &[&node[..], &secret].concat())
    };
    let nodes: Vec<Server> = (0..3).map(node).collect();
    support::wait_until("every node knows where clients reach the others", || {
        nodes.iter().all(|node| {
            let cluster = cluster_of(node);
            let told = cluster["nodes"].as_array().unwrap().iter();
            let told = told.filter(|node| node["api"].is_string());
            told.count() == nodes.len() && cluster["logs"][0]["node"].is_u64()
        })
    });
    Some((postgres, nodes))
}

/// What a node tells of its cluster.
fn cluster_of(node: &Server) -> serde_json::Value {
    let info = support::get(node.address(), "/info");
    serde_json::from_str::<serde_json::Value>(&info).unwrap()["cluster"].clone()
}

/// Where clients reach the node that they prefer: the owner of the first log.
fn leader_of(node: &Server) -> String {
    let cluster = cluster_of(node);
    let mut nodes = cluster["nodes"].as_array().unwrap().iter();
    let leader = nodes.find(|node| node["node"] == cluster["logs"][0]["node"]);
    leader.unwrap()["api"].as_str().unwrap().to_owned()
}

/// Goal: clients of a cluster find the nodes by themselves, go on when the one that they have chosen is killed, and lose
/// nothing, neither as writers nor as consumers of a group. With several logs a group may be run by another node than the
/// one that its consumers have chosen: they are sent there.
fn goes_on_in_a_cluster(client: &Client, program: &[OsString]) {
    for logs in ["1", "4"] {
        let Some((_postgres, mut nodes)) = three_nodes(logs) else {
            return;
        };
        let addresses: Vec<&str> = nodes.iter().map(Server::address).collect();
        let mut command = Command::new(&program[0]);
        command
            .args(&program[1..])
            .arg(addresses.join(","))
            .current_dir(&client.folder)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdout(Stdio::piped());
        let mut running = command.spawn().unwrap();
        let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().expect("half is written").unwrap(), "half");
        let leader = leader_of(&nodes[0]);
        let victim = nodes.iter().position(|node| node.address() == leader);
        nodes.remove(victim.expect("one of the nodes")).kill();
        assert_eq!(lines.next().expect("it goes on").unwrap(), "done");
        assert!(running.wait().unwrap().success());
        for node in nodes {
            node.stop();
        }
    }
}

#[test]
fn the_python_client_goes_on_when_its_node_is_killed() {
    if let Some(client) = python() {
        let program = [
            client.check[0].clone(),
            programs().join("cluster.py").into(),
        ];
        goes_on_in_a_cluster(client, &program);
    }
}

#[test]
fn the_node_client_goes_on_when_its_node_is_killed() {
    if let Some(client) = node() {
        goes_on_in_a_cluster(client, &["node".into(), "cluster.mjs".into()]);
    }
}

/// True in the deep form; said aloud otherwise, for these clients take minutes to be fetched and compiled.
fn is_deep(what: &str) -> bool {
    let deep = depth::count(false, true);
    if !deep {
        eprintln!("SKIPPED: {what}; GESTA_TEST_DEPTH=deep runs it");
    }
    deep
}

#[test]
fn the_rust_client_passes_all_checks() {
    if is_deep("the Rust client") {
        passes_everywhere(rust().as_ref());
    }
}

#[test]
fn the_java_client_passes_all_checks() {
    if is_deep("the Java client") {
        passes_everywhere(java().as_ref());
    }
}

#[test]
fn the_go_client_does_what_the_guide_says() {
    if is_deep("the Go client") {
        passes_everywhere(go().as_ref());
    }
}
