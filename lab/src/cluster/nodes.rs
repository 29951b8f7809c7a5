//! The nodes and their databases: started, stopped, hurt.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use gesta_pgtest::{FaultProxy, free_address};
use serde::Serialize;
use tempfile::TempDir;

use super::SizeArgs;
use super::clocks::Clock;
use super::load::Way;
use super::paths::Paths;
use crate::child::{Program, Server};
use crate::failure::Result;
use crate::store;

/// What all nodes share.
const SECRET: &str = "a secret that all nodes of the lab share";

/// What can be hurt beside the processes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Conditions {
    /// The paths between nodes and to databases, which have proxies then. Who calls a dead node is accepted and cut
    /// off; without proxies it is refused.
    pub(crate) paths: bool,
    /// The nodes' clocks.
    pub(crate) clocks: bool,
}

/// A node.
pub(crate) struct Node {
    /// For people.
    pub(crate) name: String,
    /// Its process.
    pub(crate) server: Server,
    /// Where the others reach it.
    pub(crate) address: String,
    /// Between it and all that it speaks with, if they can be hurt.
    pub(crate) paths: Option<Paths>,
    /// Its clock, if it can be set.
    pub(crate) clock: Option<Clock>,
}

/// All of it. Fields are dropped in this order: nodes, databases, files.
pub(crate) struct Nodes {
    /// The nodes.
    pub(crate) all: Vec<Node>,
    /// Between nodes and the database, where there is a distance.
    distances: Vec<FaultProxy>,
    /// Their database, the first one of several.
    pub(crate) postgres: gesta_pgtest::Server,
    /// The other ones.
    more: Vec<gesta_pgtest::Server>,
    files: TempDir,
}

impl Nodes {
    /// Starts the databases and the nodes, all at once.
    pub(crate) async fn start(
        program: &Program,
        size: &SizeArgs,
        conditions: Conditions,
    ) -> Result<Self> {
        let mut nodes = Self::databases_only(size).await?;
        let addresses = (0..size.nodes).map(|_| free_address());
        let addresses: Vec<SocketAddr> = addresses.collect::<std::io::Result<_>>()?;
        let started =
            (0..addresses.len()).map(|at| nodes.enter(program, at, &addresses, conditions));
        nodes.all = try_join_all(started).await?;
        Ok(nodes)
    }

    /// Starts a database and the nodes one after the other, the last one at a distance from the database.
    pub(crate) async fn start_apart(
        program: &Program,
        size: &SizeArgs,
        far: Duration,
    ) -> Result<Self> {
        let mut nodes = Self::databases_only(size).await?;
        let url = nodes.postgres.url();
        for number in 0..size.nodes {
            let is_far = number + 1 == size.nodes && !far.is_zero();
            let round_trip = if is_far { far } else { Duration::ZERO };
            let (url, distance) = store::delayed(&url, round_trip)?;
            let own = free_address()?;
            let options = nodes.options(own);
            let address = own.to_string();
            let node = nodes.launch(program.clone(), number.into(), options, &url);
            let (name, server) = node.await?;
            nodes.all.push(Node {
                name,
                server,
                address,
                paths: None,
                clock: None,
            });
            nodes.distances.extend(distance);
        }
        Ok(nodes)
    }

    /// The databases with the store, without nodes.
    async fn databases_only(size: &SizeArgs) -> Result<Self> {
        let nodes = Self {
            all: Vec::new(),
            distances: Vec::new(),
            postgres: store::new_server()?,
            more: (1..size.databases)
                .map(|_| store::new_server())
                .collect::<Result<_>>()?,
            files: TempDir::new()?,
        };
        gesta::schema::create(&nodes.url(), size.logs).await?;
        std::fs::write(nodes.files.path().join("secret"), SECRET)?;
        Ok(nodes)
    }

    /// The URL of the store, which has the URLs of all databases.
    pub(crate) fn url(&self) -> String {
        let urls = self.databases().map(gesta_pgtest::Server::url);
        urls.collect::<Vec<_>>().join(" ")
    }

    /// The databases, in the order in which they hold the logs in turn.
    pub(crate) fn databases(&self) -> impl Iterator<Item = &gesta_pgtest::Server> {
        std::iter::once(&self.postgres).chain(&self.more)
    }

    /// One of the databases.
    pub(crate) fn database_mut(&mut self, at: usize) -> &mut gesta_pgtest::Server {
        match at {
            0 => &mut self.postgres,
            _ => &mut self.more[at - 1],
        }
    }

    fn options(&self, own: SocketAddr) -> Vec<String> {
        let secret = self.files.path().join("secret").display().to_string();
        vec![
            "--node".to_owned(),
            own.to_string(),
            "--cluster-secret-file".to_owned(),
            secret,
        ]
    }

    /// Starts the node of this number; all listen for each other at these addresses.
    async fn enter(
        &self,
        program: &Program,
        number: usize,
        addresses: &[SocketAddr],
        conditions: Conditions,
    ) -> Result<Node> {
        let own = addresses[number];
        let (mut options, mut address, mut url) = (self.options(own), own, self.url());
        let mut paths = None;
        if conditions.paths {
            let databases: Vec<_> = self.databases().map(gesta_pgtest::Server::addr).collect();
            let of_node = Paths::start(own, addresses, &databases).await?;
            address = of_node.address;
            options.extend(["--advertise".to_owned(), address.to_string()]);
            let proxied = self.databases().zip(&of_node.databases);
            let urls = proxied.map(|(database, proxy)| proxy.url(&database.url()));
            url = urls.collect::<Vec<_>>().join(" ");
            paths = Some(of_node);
        }
        let (mut program, mut clock) = (program.clone(), None);
        if conditions.clocks {
            let folder: &Path = self.files.path();
            clock = Some(Clock::give(&mut program, folder, &number.to_string())?);
        }
        let (name, server) = self.launch(program, number, options, &url).await?;
        Ok(Node {
            name,
            server,
            address: address.to_string(),
            paths,
            clock,
        })
    }

    async fn launch(
        &self,
        mut program: Program,
        number: usize,
        options: Vec<String>,
        store: &str,
    ) -> Result<(String, Server)> {
        program.arguments.extend(options);
        let name = format!("node {number}");
        let log = self.files.path().join(format!("{name}.log"));
        let server = Server::start_program(program, store, &log).await?;
        Ok((name, server))
    }

    /// How clients reach the nodes.
    pub(crate) fn ways(&self) -> Vec<Way> {
        let ways = self.all.iter().map(|node| Way {
            name: node.name.clone(),
            url: node.server.url(),
        });
        ways.collect()
    }

    /// Ends all nodes as an operator would.
    pub(crate) async fn stop(&mut self) {
        join_all(self.all.iter_mut().map(|node| node.server.stop())).await;
    }

    /// What the nodes said last.
    pub(crate) fn logs(&self) -> String {
        let told = self.all.iter().map(|node| {
            let (name, log) = (&node.name, node.server.log_tail());
            format!("--- {name}\n{log}")
        });
        told.collect::<Vec<_>>().join("\n")
    }
}
