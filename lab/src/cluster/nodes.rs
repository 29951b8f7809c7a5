//! The nodes and their databases: started, stopped, hurt.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::future::{join_all, try_join_all};
use gesta_pgtest::{FaultProxy, free_address};
use serde::Serialize;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::SizeArgs;
use super::clocks::{Clock, ClockReadings};
use super::load::Way;
use super::paths::Paths;
use crate::failure::{Result, fail};
use crate::machine::child::{Program, Server};
use crate::machine::{postgres, store};

/// How long the logs may take to be shared equally.
const SETTLED_WITHIN: Duration = Duration::from_secs(180);
/// How often waits look.
const LOOK: Duration = Duration::from_millis(200);

/// What is between nodes, and what can be hurt beside the processes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Conditions {
    /// The paths between nodes and to databases, which have proxies then. Who calls a dead node is accepted and cut
    /// off; without proxies it is refused.
    pub(crate) paths: bool,
    /// The nodes' clocks.
    pub(crate) clocks: bool,
    /// Nodes start one after the other, and between the last one and its only database is this extra round trip.
    #[serde(skip)]
    pub(crate) far: Option<Duration>,
}

/// Who owns which log at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ownership {
    /// The node that owns each log; none of a log that moves or has no owner.
    pub(crate) owners: Vec<Option<usize>>,
    /// The number of the last move before that.
    last_move: i64,
}

impl Ownership {
    /// True if each of so many nodes has its share of the logs and none moves. A node gives nothing away as long as it
    /// has no more than its share, rounded up.
    fn is_settled(&self, nodes: usize) -> bool {
        let share = self.owners.len().div_ceil(nodes);
        let has_share = |count: &usize| *count <= share;
        self.owners.iter().all(Option::is_some) && self.counts(nodes).iter().all(has_share)
    }

    /// How many logs each node has.
    fn counts(&self, nodes: usize) -> Vec<usize> {
        let count = |node| {
            let of_node = self.owners.iter().filter(|owner| **owner == Some(node));
            of_node.count()
        };
        (0..nodes).map(count).collect()
    }
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
    #[expect(dead_code, reason = "lives as long as the node")]
    distance: Option<FaultProxy>,
}

/// All of it. Fields are dropped in this order: nodes, databases, files.
pub(crate) struct Nodes {
    /// The nodes.
    pub(crate) all: Vec<Node>,
    /// Their databases, in the order in which they hold the logs in turn.
    pub(crate) databases: Vec<gesta_pgtest::Server>,
    files: TempDir,
}

impl Nodes {
    /// Starts the databases and the nodes, all at once unless one is far.
    pub(crate) async fn start(
        program: &Program,
        size: &SizeArgs,
        conditions: Conditions,
    ) -> Result<Self> {
        let databases = (0..size.databases).map(|_| store::new_server());
        let mut nodes = Self {
            all: Vec::new(),
            databases: databases.collect::<Result<_>>()?,
            files: TempDir::new()?,
        };
        gesta::schema::create(&nodes.url(), size.logs).await?;
        let addresses = (0..size.nodes).map(|_| free_address());
        let addresses: Vec<SocketAddr> = addresses.collect::<std::io::Result<_>>()?;
        if conditions.far.is_none() {
            let numbers = 0..addresses.len();
            let started = numbers.map(|at| nodes.enter(program, at, &addresses, conditions));
            nodes.all = try_join_all(started).await?;
            return Ok(nodes);
        }
        for at in 0..addresses.len() {
            let node = nodes.enter(program, at, &addresses, conditions).await?;
            nodes.all.push(node);
        }
        Ok(nodes)
    }

    /// The URL of the store, which has the URLs of all databases.
    pub(crate) fn url(&self) -> String {
        self.urls().collect::<Vec<_>>().join(" ")
    }

    /// The URL of each database.
    pub(crate) fn urls(&self) -> impl Iterator<Item = String> {
        self.databases.iter().map(gesta_pgtest::Server::url)
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
        let mut program = program.clone();
        program.join_cluster(own, self.files.path())?;
        let (mut address, mut paths) = (own, None);
        let far = conditions.far.filter(|_| number + 1 == addresses.len());
        let (mut url, distance) = store::delayed(&self.url(), far.unwrap_or_default())?;
        if conditions.paths {
            let databases: Vec<_> = self
                .databases
                .iter()
                .map(gesta_pgtest::Server::addr)
                .collect();
            let of_node = Paths::start(own, addresses, &databases).await?;
            address = of_node.address;
            let options = ["--advertise".to_owned(), address.to_string()];
            program.arguments.extend(options);
            let proxied = self.urls().zip(&of_node.databases);
            let urls = proxied.map(|(database, proxy)| proxy.url(&database));
            url = urls.collect::<Vec<_>>().join(" ");
            paths = Some(of_node);
        }
        let folder: &Path = self.files.path();
        let clock = match conditions.clocks {
            true => Some(Clock::give(&mut program, folder, &number.to_string())?),
            false => None,
        };
        let name = format!("node {number}");
        let log = folder.join(format!("{name}.log"));
        Ok(Node {
            server: Server::start_program(program, &url, &log).await?,
            name,
            address: address.to_string(),
            paths,
            clock,
            distance,
        })
    }

    /// What the clocks of the nodes have shown.
    pub(crate) fn clock_readings(&self) -> ClockReadings {
        let clocks = self.all.iter().filter_map(|node| node.clock.as_ref());
        ClockReadings(clocks.map(Clock::spans).collect())
    }

    /// How clients reach the nodes.
    pub(crate) fn ways(&self) -> Vec<Way> {
        let ways = self.all.iter().map(|node| Way {
            name: node.name.clone(),
            url: node.server.url(),
        });
        ways.collect()
    }

    /// Waits until no node owns more than its share of the logs and no log moves, and gives who owns each. Logs begin
    /// to move for the sake of balance 20 s after the last change, and then one in a second. Once it is interrupted it
    /// gives who owns each then.
    pub(crate) async fn settled(&self, stop: &CancellationToken) -> Result<Ownership> {
        let (deadline, nodes) = (Instant::now() + SETTLED_WITHIN, self.all.len());
        loop {
            let found = self.ownership().await?;
            if found.is_settled(nodes) || stop.is_cancelled() {
                return Ok(found);
            }
            if Instant::now() > deadline {
                let counts = found.counts(nodes);
                return fail(format!("the logs do not settle: each node has {counts:?}"));
            }
            stop.run_until_cancelled(tokio::time::sleep(LOOK)).await;
        }
    }

    /// Who owns each log. Of a store of one database.
    pub(crate) async fn ownership(&self) -> Result<Ownership> {
        let client = postgres::connect(&self.url()).await?;
        let sql = "SELECT coalesce(max(number), 0) FROM gesta.moves";
        // First, so that a move between the two is not taken for one before.
        let last_move = client.query_one(sql, &[]).await?.get(0);
        let sql = "SELECT CASE WHEN l.next_owner IS NULL THEN n.address END FROM gesta.leases AS l \
             LEFT JOIN gesta.nodes AS n ON n.id = l.owner AND n.generation = l.generation ORDER BY l.log";
        let rows = client.query(sql, &[]).await?;
        let owner = |address: Option<String>| {
            let address = address?;
            self.all.iter().position(|node| node.address == address)
        };
        Ok(Ownership {
            owners: rows.iter().map(|row| owner(row.get(0))).collect(),
            last_move,
        })
    }

    /// The node that owns the log of a store that has one.
    pub(crate) async fn owner_of_the_only_log(&self) -> Result<usize> {
        match self.ownership().await?.owners.as_slice() {
            [Some(owner)] => Ok(*owner),
            owners => fail(format!("not one log with an owner: {owners:?}")),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_settled_if_each_node_has_its_share_and_none_moves() {
        for (owners, is_settled) in [
            (vec![Some(0), Some(1), Some(0), Some(1)], true),
            (vec![Some(0), Some(1), Some(0), Some(1), Some(1)], true),
            (vec![Some(0), Some(0), Some(0), Some(1)], false),
            (vec![Some(0), Some(1), None, Some(1)], false),
        ] {
            let last_move = 7;
            let found = Ownership { owners, last_move };
            assert_eq!(found.is_settled(2), is_settled, "{found:?}");
        }
    }
}
