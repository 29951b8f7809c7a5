//! Three nodes on PostgreSQL, whose clients reach each at an address that stays the same when it starts again.

#![allow(dead_code, reason = "each test program uses a part")]

use std::ffi::OsString;

use gesta_rig::{Server as Postgres, ServerConfig};

use crate::support::{self, Server, patient};

/// A node, and how to start it again; none of it runs after it was killed.
pub(crate) struct Node {
    pub(crate) address: String,
    /// Where the other nodes reach it.
    link: String,
    arguments: Vec<String>,
    server: Option<Server>,
}

/// The nodes of a cluster, and their database.
pub(crate) struct Nodes {
    pub(crate) all: Vec<Node>,
    store: String,
    postgres: Postgres,
    folder: tempfile::TempDir,
}

impl Nodes {
    /// Three nodes on a database of so many logs, all of which know where clients reach the others; `None`, said aloud,
    /// where PostgreSQL is not installed.
    pub(crate) fn start(logs: &str) -> Option<Self> {
        let mut nodes = Self::created(logs, &[])?;
        nodes.launch_all();
        support::wait_until("every node knows where clients reach the others", || {
            nodes.all.iter().all(|node| {
                let cluster = cluster_of(&node.address);
                let told = cluster["nodes"].as_array().unwrap().iter();
                let told = told.filter(|node| node["api"].is_string());
                told.count() == nodes.all.len() && cluster["logs"][0]["node"].is_u64()
            })
        });
        Some(nodes)
    }

    /// The same with TLS and one user, an administrator; gives the file of the authority that clients trust too.
    pub(crate) fn start_with_user(
        logs: &str,
        user: &str,
        password: &str,
    ) -> Option<(Self, OsString)> {
        let mut nodes = Self::created(logs, &["--tls-self-signed", "tls"])?;
        let file = nodes.folder.path().join("password");
        std::fs::write(&file, format!("{password}\n")).unwrap();
        let file = file.to_str().unwrap();
        let add = ["user", "add", user, "--admin", "--password-file", file];
        support::succeed(&[&add[..], &["--store", &nodes.store]].concat());
        nodes.launch_all();
        let authority = nodes.folder.path().join("tls").join("ca.pem");
        Some((nodes, authority.into()))
    }

    /// A store, and nodes that do not run yet. A file among their options lies in the folder of the test.
    fn created(logs: &str, options: &[&str]) -> Option<Self> {
        let postgres = Postgres::start_with(ServerConfig::default()).unwrap()?;
        let store = patient(&postgres.url());
        support::succeed(&["schema", "create", "--store", &store, "--logs", logs]);
        if logs == "1" {
            support::succeed(&["virtual-streams", "on", "--store", &store]);
        }
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "a secret of the tests\n").unwrap();
        let options: Vec<String> = options
            .iter()
            .map(|option| match option.strip_prefix("--") {
                Some(_) => (*option).to_owned(),
                None => folder.path().join(option).to_str().unwrap().to_owned(),
            })
            .collect();
        let node = |_| {
            let link = gesta_rig::free_address().unwrap().to_string();
            let address = address_for_clients();
            let secret = secret.to_str().unwrap();
            let own = [
                "--node",
                &link,
                "--listen",
                &address,
                "--cluster-secret-file",
                secret,
            ];
            let own = own.map(str::to_owned).into_iter();
            Node {
                arguments: own.chain(options.clone()).collect(),
                address,
                link,
                server: None,
            }
        };
        Some(Self {
            all: (0..3).map(node).collect(),
            store,
            postgres,
            folder,
        })
    }

    fn launch_all(&mut self) {
        for number in 0..self.all.len() {
            self.launch(number);
        }
    }

    /// Starts a node that does not run.
    pub(crate) fn launch(&mut self, number: usize) {
        let node = &mut self.all[number];
        let arguments: Vec<&str> = node.arguments.iter().map(String::as_str).collect();
        node.server = Some(Server::start_with(&self.store, &arguments));
    }

    pub(crate) fn kill(&mut self, number: usize) {
        self.all[number].server.take().expect("it runs").kill();
    }

    /// Stops all that run.
    pub(crate) fn stop(self) {
        for node in self.all {
            if let Some(server) = node.server {
                server.stop();
            }
        }
    }

    /// The addresses for clients, separated by commas.
    pub(crate) fn addresses(&self) -> String {
        let addresses: Vec<&str> = self.all.iter().map(|node| node.address.as_str()).collect();
        addresses.join(",")
    }

    /// The node that clients prefer: the owner of the first log, once one owns it that runs.
    pub(crate) fn leader(&self) -> usize {
        let mut leader = None;
        support::wait_until("a node that runs owns the first log", || {
            let owner = self.postgres.query(
                "SELECT n.address FROM gesta.leases AS l JOIN gesta.nodes AS n \
                 ON n.id = l.owner AND n.generation = l.generation WHERE l.log = 0",
            );
            let owner = owner.unwrap();
            leader = self
                .all
                .iter()
                .position(|node| Some(&node.link) == owner.as_ref());
            leader.is_some_and(|leader| self.all[leader].server.is_some())
        });
        leader.unwrap()
    }
}

/// An address that nobody listens at, whose port every client understands: the one for Java reads the ports of all
/// hosts but the first one as numbers of sixteen bits with a sign.
fn address_for_clients() -> String {
    const PORT_MAX: u16 = 32_767;
    let mut addresses = (0..PORT_MAX).map(|_| gesta_rig::free_address().unwrap());
    let address = addresses.find(|address| address.port() <= PORT_MAX);
    address.expect("a low port").to_string()
}

/// What a node tells of its cluster.
fn cluster_of(address: &str) -> serde_json::Value {
    let info = support::get(address, "/info");
    serde_json::from_str::<serde_json::Value>(&info).unwrap()["cluster"].clone()
}
