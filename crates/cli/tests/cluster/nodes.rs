//! Servers that are nodes of one PostgreSQL database, each at an address that it keeps when it is started again.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gesta_client::HttpStore;
use gesta_core::EventStore;
use gesta_rig::{Child, Output, Server as Postgres, free_address};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::{self, PATIENCE, patient};

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// For so long commands wait for what they ask of a node.
pub(crate) const WAIT: &str = "2m";
/// The code of a command that says to try again, as when the database has not answered it for 2.5 seconds.
const TRY_AGAIN: i32 = 5;
const SECRET: &str = "what all nodes of the test share\n";

/// One server, running or not. Dropping it kills it.
pub(crate) struct Node {
    /// Where clients reach it.
    pub(crate) listen: SocketAddr,
    /// Where other nodes reach it.
    pub(crate) address: SocketAddr,
    arguments: Vec<String>,
    log: PathBuf,
    running: Option<Child>,
}

impl Node {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    pub(crate) fn store(&self) -> HttpStore {
        HttpStore::connect(&self.url()).unwrap()
    }

    /// Starts it, again at the same address.
    pub(crate) fn launch(&mut self) {
        self.kill();
        let program = Path::new(env!("CARGO_BIN_EXE_gesta"));
        let child = Child::start(program, &self.arguments, None, Output::Log, &self.log);
        self.running = Some(child.unwrap());
    }

    /// Waits until it serves.
    pub(crate) async fn ready(&self) {
        let store = self.store();
        let begun = Instant::now();
        while store.ready().await.is_err() {
            assert!(self.is_alive(), "ended while starting:\n{}", self.log());
            assert!(begun.elapsed() < PATIENCE, "never ready:\n{}", self.log());
            tokio::time::sleep(LOOK).await;
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.running.as_ref().is_some_and(Child::is_alive)
    }

    pub(crate) fn kill(&mut self) {
        drop(self.running.take());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.running.as_ref().unwrap().signal(signal);
    }

    /// Ends it as an operator would.
    pub(crate) async fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        self.ended().await;
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) {
        let begun = Instant::now();
        while self.is_alive() {
            assert!(begun.elapsed() < PATIENCE, "never ended:\n{}", self.log());
            tokio::time::sleep(LOOK).await;
        }
        self.kill();
    }

    /// All that it has said.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// The nodes and their database.
pub(crate) struct Nodes {
    pub(crate) all: Vec<Node>,
    pub(crate) logs: usize,
    pub(crate) postgres: Postgres,
    /// The other databases of the store, if it has several.
    pub(crate) more: Vec<Postgres>,
    /// What nodes are told beside their addresses.
    more_arguments: Vec<String>,
    directory: TempDir,
}

impl Nodes {
    /// Starts the database and so many nodes, and waits until all logs have owners; `None` without
    /// PostgreSQL.
    pub(crate) async fn start(count: usize, logs: usize) -> Option<Self> {
        Self::start_on(count, logs, 1).await
    }

    /// The same with a store of so many databases, each on a server of its own.
    pub(crate) async fn start_on(count: usize, logs: usize, databases: usize) -> Option<Self> {
        let mut nodes = Self::created(logs, databases, &[])?;
        nodes.start_all(count).await;
        Some(nodes)
    }

    /// The same on one database, with these commands carried out on the store before, and nodes that are told this
    /// beside their addresses.
    pub(crate) async fn start_with(
        count: usize,
        logs: usize,
        commands: &[&[&str]],
        more_arguments: &[&str],
    ) -> Option<Self> {
        let mut nodes = Self::created(logs, 1, more_arguments)?;
        for command in commands {
            nodes.command(command);
        }
        nodes.start_all(count).await;
        Some(nodes)
    }

    /// A store of so many logs and databases, without nodes.
    fn created(logs: usize, databases: usize, more_arguments: &[&str]) -> Option<Self> {
        let postgres = Postgres::start().unwrap()?;
        let more = (1..databases).map(|_| Postgres::start().unwrap());
        let more: Vec<Postgres> = more.collect::<Option<_>>()?;
        let (logs_text, url) = (logs.to_string(), patient(&postgres.url()));
        let mut create = vec!["schema", "create", "--logs", &logs_text];
        let others: Vec<String> = more.iter().map(|more| patient(&more.url())).collect();
        match databases {
            1 => create.extend(["--store", &url]),
            _ => {
                create.extend(["--on", &url]);
                create.extend(others.iter().flat_map(|url| ["--on", url]));
            }
        }
        support::succeed(&create);
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("secret"), SECRET).unwrap();
        let more_arguments = more_arguments.iter().map(ToString::to_string).collect();
        Some(Self {
            all: Vec::new(),
            logs,
            postgres,
            more,
            more_arguments,
            directory,
        })
    }

    /// Starts so many nodes, and waits until all logs have owners.
    async fn start_all(&mut self, count: usize) {
        for _ in 0..count {
            self.add(&free_address().unwrap().to_string(), SECRET);
        }
        for node in &self.all {
            node.ready().await;
        }
        self.owned("all logs have owners", |_| true).await;
    }

    /// Starts one more node, which the others reach at this address, and which has this secret.
    pub(crate) fn add(&mut self, advertise: &str, secret: &str) -> usize {
        let number = self.all.len();
        let secret_file = self.directory.path().join(format!("secret-{number}"));
        std::fs::write(&secret_file, secret).unwrap();
        let listen = free_address().unwrap();
        // The address that is told is the one that is listened at, unless another node has it.
        let is_taken = self
            .all
            .iter()
            .any(|node| node.address.to_string() == advertise);
        let address: SocketAddr = match is_taken {
            true => free_address().unwrap(),
            false => advertise.parse().unwrap(),
        };
        let (listen_text, address_text) = (listen.to_string(), address.to_string());
        let mut arguments = self.named(&[
            "serve",
            "--wait-for-store",
            "60s",
            "--listen",
            &listen_text,
            "--node",
            &address_text,
            "--advertise",
            advertise,
            "--cluster-secret-file",
            secret_file.to_str().unwrap(),
        ]);
        arguments.extend(self.more_arguments.iter().cloned());
        let mut node = Node {
            listen,
            address,
            arguments,
            log: self.directory.path().join(format!("node-{number}.log")),
            running: None,
        };
        node.launch();
        self.all.push(node);
        number
    }

    /// An answer of the database.
    pub(crate) fn ask(&self, sql: &str) -> String {
        self.postgres.query(sql).unwrap().unwrap_or_default()
    }

    /// For each node the number of logs whose valid lease it has.
    pub(crate) fn logs_owned(&self) -> Vec<usize> {
        if !self.more.is_empty() {
            return self.logs_owned_in_several();
        }
        let counted = self.ask(
            "SELECT string_agg(n.address, ' ') FROM gesta.leases AS l JOIN gesta.nodes AS n \
             ON n.id = l.owner AND n.generation = l.generation AND n.state <> 'left'",
        );
        let owns = |node: &Node| {
            let address = node.address.to_string();
            counted
                .split(' ')
                .filter(|owner| **owner == address)
                .count()
        };
        self.all.iter().map(owns).collect()
    }

    /// A command with the options that name the store.
    pub(crate) fn named(&self, arguments: &[&str]) -> Vec<String> {
        let urls = [&self.postgres].into_iter().chain(&self.more);
        let urls = urls.flat_map(|postgres| ["--store".to_owned(), patient(&postgres.url())]);
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        arguments.chain(urls).collect()
    }

    /// The output of a command on the store, which is run again while it says to try again.
    pub(crate) fn command(&self, arguments: &[&str]) -> String {
        let arguments = self.named(arguments);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let begun = Instant::now();
        loop {
            let output = support::run(&arguments);
            if output.status.success() {
                return support::stdout(&output);
            }
            let may_try_again = support::code(&output) == TRY_AGAIN && begun.elapsed() < PATIENCE;
            assert!(may_try_again, "{arguments:?}: {output:?}");
            eprintln!("{}", support::stderr(&output));
        }
    }

    /// Lets no log move for the sake of balance any more. Else logs move as soon as the nodes have been left alone for
    /// a while. Every node has heard of it when this returns, and what was on its way has arrived.
    pub(crate) fn freeze(&self) {
        self.command(&["cluster", "freeze"]);
        // A node hears of it with a beat; the next one is longer after that than a log is on its way.
        for _ in 0..2 {
            let now = self.ask("SELECT clock_timestamp()::text");
            let beaten = format!(
                "SELECT bool_and(beat_at > '{now}')::text FROM gesta.nodes WHERE state <> 'left'"
            );
            support::wait_until("every node beats", || self.ask(&beaten) == "true");
        }
    }

    /// As the databases that the logs lie in say.
    fn logs_owned_in_several(&self) -> Vec<usize> {
        let status = self.command(&["cluster", "status", "--output", "json"]);
        let rows: Vec<serde_json::Value> = status
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let owns = |node: &Node| {
            let address = node.address.to_string();
            let mine = rows
                .iter()
                .filter(|row| row["kind"] == "log" && row["address"] == *address);
            mine.count()
        };
        self.all.iter().map(owns).collect()
    }

    /// The node that has the lease of a log.
    pub(crate) fn owner(&self, log: u16) -> usize {
        let address = self.ask(&format!(
            "SELECT n.address FROM gesta.leases AS l JOIN gesta.nodes AS n ON n.id = l.owner WHERE l.log = {log}"
        ));
        let mut all = self.all.iter();
        let owner = all.position(|node| node.address.to_string() == address);
        owner.unwrap()
    }

    /// The node that has the most logs.
    pub(crate) fn busiest(&self) -> usize {
        let owned = self.logs_owned();
        (0..owned.len()).max_by_key(|node| owned[*node]).unwrap()
    }

    /// Number of moves of leases so far.
    pub(crate) fn moves(&self) -> usize {
        self.ask("SELECT count(*)::text FROM gesta.moves")
            .parse()
            .unwrap()
    }

    /// Waits until every log has an owner that `wanted` accepts; gives the time that it took. Nodes that come and go,
    /// or stand still, put off balance by up to two minutes.
    pub(crate) async fn owned(&self, what: &str, wanted: impl Fn(&[usize]) -> bool) -> Duration {
        let begun = Instant::now();
        loop {
            let owned = tokio::task::block_in_place(|| self.logs_owned());
            if owned.iter().sum::<usize>() == self.logs && wanted(&owned) {
                return begun.elapsed();
            }
            assert!(
                begun.elapsed() < PATIENCE * 3,
                "never: {what}; now {owned:?}"
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Reads the whole store by the program and checks it.
    pub(crate) fn verify(&self) {
        let said = self.command(&["verify"]);
        eprintln!("verify: {}", said.lines().last().unwrap_or_default());
    }
}
