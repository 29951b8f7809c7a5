//! The nodes and their database: started, stopped, hurt.

use std::time::Duration;

use futures::future::{join_all, try_join_all};
use gesta_pgtest::{FaultProxy, free_address};
use tempfile::TempDir;

use super::SizeArgs;
use super::load::Way;
use crate::child::{Program, Server};
use crate::failure::{Context, Result};
use crate::store;

/// What all nodes share.
const SECRET: &str = "a secret that all nodes of the lab share";

/// How nodes reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// Directly. Who calls a dead one is refused.
    Direct,
    /// By way of a proxy in front of each, so that links can be hurt. Who calls a dead one is accepted and cut off.
    Proxied,
}

/// A node.
pub(crate) struct Node {
    /// For people.
    pub(crate) name: String,
    /// Its process.
    pub(crate) server: Server,
    /// Where the others reach it.
    pub(crate) address: String,
    /// Between the others and it.
    pub(crate) links: Option<FaultProxy>,
}

/// All of it. Fields are dropped in this order: nodes, database, files.
pub(crate) struct Nodes {
    /// The nodes.
    pub(crate) all: Vec<Node>,
    /// Between nodes and the database, where there is a distance.
    ways: Vec<FaultProxy>,
    /// Their database.
    pub(crate) postgres: gesta_pgtest::Server,
    files: TempDir,
}

impl Nodes {
    /// Starts a database and the nodes, all at once.
    pub(crate) async fn start(program: &Program, size: &SizeArgs, links: Links) -> Result<Self> {
        let mut nodes = Self::database(size).await?;
        let url = nodes.postgres.url();
        let started = (0..size.nodes).map(|number| nodes.enter(program, number, links, &url));
        nodes.all = try_join_all(started).await?;
        Ok(nodes)
    }

    /// Starts a database and the nodes one after the other, the last one at a distance from the database.
    pub(crate) async fn start_apart(
        program: &Program,
        size: &SizeArgs,
        far: Duration,
    ) -> Result<Self> {
        let mut nodes = Self::database(size).await?;
        let url = nodes.postgres.url();
        for number in 0..size.nodes {
            let is_far = number + 1 == size.nodes && !far.is_zero();
            let round_trip = if is_far { far } else { Duration::ZERO };
            let (url, way) = store::delayed(&url, round_trip)?;
            let node = nodes.enter(program, number, Links::Direct, &url).await?;
            nodes.all.push(node);
            nodes.ways.extend(way);
        }
        Ok(nodes)
    }

    /// A database with the store, without nodes.
    async fn database(size: &SizeArgs) -> Result<Self> {
        let nodes = Self {
            all: Vec::new(),
            ways: Vec::new(),
            postgres: store::new_server()?,
            files: TempDir::new()?,
        };
        let made = store::open_url(&nodes.postgres.url(), Duration::ZERO, size.logs).await?;
        made.store.shutdown().await?;
        std::fs::write(nodes.secret_file(), SECRET)?;
        Ok(nodes)
    }

    fn secret_file(&self) -> String {
        self.files.path().join("secret").display().to_string()
    }

    async fn enter(
        &self,
        program: &Program,
        number: u16,
        links: Links,
        store: &str,
    ) -> Result<Node> {
        let own = free_address()?;
        let links = match links {
            Links::Direct => None,
            Links::Proxied => Some(FaultProxy::start(own).context("starting a proxy")?),
        };
        let address = links.as_ref().map_or(own, FaultProxy::addr).to_string();
        let mut options = vec![
            ["--node".to_owned(), own.to_string()],
            ["--cluster-secret-file".to_owned(), self.secret_file()],
        ];
        if links.is_some() {
            options.push(["--advertise".to_owned(), address.clone()]);
        }
        let mut program = program.clone();
        program.arguments.extend(options.into_iter().flatten());
        let name = format!("node {number}");
        let log = self.files.path().join(format!("{name}.log"));
        Ok(Node {
            server: Server::start_program(program, store, &log).await?,
            name,
            address,
            links,
        })
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
