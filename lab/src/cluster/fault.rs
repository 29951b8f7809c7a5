//! What is done to nodes, their links and their database, and how it heals.

use std::time::{Duration, Instant};

use gesta_pgtest::FaultProxy;
use nix::sys::signal::Signal;
use serde::Serialize;

use super::nodes::Nodes;
use super::owners::Owners;
use crate::failure::{Failure, Result, fail};
use crate::random::Random;

/// Pause between two cuts of a link that flaps.
const FLAP: Duration = Duration::from_millis(500);

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NodeFault {
    /// `kill -9` of a node; it is started again when others have its logs.
    NodeKill,
    /// `kill -9` of a node; it is started again at once.
    NodeKillQuick,
    /// `kill -9` of all nodes but one, at once.
    NodesKill,
    /// A node is suspended for 1 to 15 seconds.
    NodeHang,
    /// All nodes are suspended for 10 seconds and go on one after the other.
    NodesHang,
    /// A node is stopped in order and started again.
    NodeRestart,
    /// All nodes are restarted in order, one after the other.
    NodesRestart,
    /// Nobody can call a node: connections are cut and refused. It can call the others.
    LinksCut,
    /// Links to a node stay open, but nothing arrives at either end.
    LinksSilent,
    /// What a node answers to others does not arrive; what they send does.
    LinksDeaf,
    /// Links to a node are cut again and again.
    LinksFlap,
    /// An orderly restart of the database.
    DatabaseRestart,
    /// `kill -9` of the database; it is started again.
    DatabaseKill,
    /// The database is suspended for 1 to 10 seconds.
    DatabaseHang,
}

impl NodeFault {
    /// All of them.
    pub(crate) const ALL: &[NodeFault] = &[
        NodeFault::NodeKill,
        NodeFault::NodeKillQuick,
        NodeFault::NodesKill,
        NodeFault::NodeHang,
        NodeFault::NodesHang,
        NodeFault::NodeRestart,
        NodeFault::NodesRestart,
        NodeFault::LinksCut,
        NodeFault::LinksSilent,
        NodeFault::LinksDeaf,
        NodeFault::LinksFlap,
        NodeFault::DatabaseRestart,
        NodeFault::DatabaseKill,
        NodeFault::DatabaseHang,
    ];

    /// True if links must go by way of a proxy.
    pub(crate) fn needs_proxies(self) -> bool {
        matches!(
            self,
            Self::LinksCut | Self::LinksSilent | Self::LinksDeaf | Self::LinksFlap
        )
    }

    /// True if nodes that are not hurt can go on: then appends through them must.
    pub(crate) fn leaves_others(self) -> bool {
        !matches!(
            self,
            Self::NodesHang | Self::DatabaseRestart | Self::DatabaseKill | Self::DatabaseHang
        )
    }

    /// True if no node has a reason to take a log from another one, or to give one up.
    pub(crate) fn moves_nothing(self) -> bool {
        matches!(
            self,
            Self::DatabaseRestart | Self::DatabaseKill | Self::DatabaseHang
        )
    }

    /// Its name in tables.
    pub(crate) fn name(self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        value.as_str().unwrap_or_default().to_owned()
    }
}

/// Nodes, and what is known about their logs.
pub(crate) struct Field<'a> {
    /// The nodes.
    pub(crate) nodes: &'a mut Nodes,
    /// Who watches their logs.
    pub(crate) owners: &'a Owners,
    /// Logs without an owner for longer are a finding.
    pub(crate) owned_within: Duration,
}

impl Field<'_> {
    /// Makes a fault and heals it; gives the nodes that were hurt.
    pub(crate) async fn inflict(
        &mut self,
        fault: NodeFault,
        random: &mut Random,
    ) -> Result<Vec<usize>> {
        let count = self.nodes.all.len();
        let chosen = self.choose(random).await?;
        let others: Vec<usize> = (0..count).filter(|node| *node != chosen).collect();
        let time = |random: &mut Random, seconds: u64| {
            Duration::from_millis(1_000 + random.next() % (seconds * 1_000 - 1_000))
        };
        let mut hurt = vec![chosen];
        match fault {
            NodeFault::NodeKill => {
                self.kill(&hurt).await?;
                self.owners.complete(self.owned_within).await?;
                self.launch(&hurt).await?;
            }
            NodeFault::NodeKillQuick => {
                self.kill(&hurt).await?;
                self.launch(&hurt).await?;
            }
            NodeFault::NodesKill => {
                hurt = others;
                self.kill(&hurt).await?;
                self.owners.complete(self.owned_within * 2).await?;
                self.launch(&hurt).await?;
            }
            NodeFault::NodeHang => self.hang(&hurt, time(random, 15)).await?,
            NodeFault::NodesHang => {
                hurt = (0..count).collect();
                self.hang(&hurt, Duration::from_secs(10)).await?;
            }
            NodeFault::NodeRestart => self.restart(&hurt).await?,
            NodeFault::NodesRestart => {
                hurt = (0..count).collect();
                self.restart(&hurt).await?;
            }
            NodeFault::LinksCut
            | NodeFault::LinksSilent
            | NodeFault::LinksDeaf
            | NodeFault::LinksFlap => {
                let Some(links) = &self.nodes.all[chosen].links else {
                    return fail("links without a proxy cannot be hurt");
                };
                hurt_links(fault, links, time(random, 20)).await;
                // Nobody who lives was hurt: appends through all nodes must go on.
                hurt.clear();
            }
            NodeFault::DatabaseRestart => self.database(gesta_pgtest::Server::restart)?,
            NodeFault::DatabaseKill => {
                self.database(gesta_pgtest::Server::kill_9)?;
                self.database(gesta_pgtest::Server::restart)?;
            }
            NodeFault::DatabaseHang => {
                self.database(|server| server.freeze())?;
                tokio::time::sleep(time(random, 10)).await;
                self.database(|server| server.thaw())?;
            }
        }
        Ok(hurt)
    }

    /// The node that has the most logs, in three of four cases.
    async fn choose(&self, random: &mut Random) -> Result<usize> {
        let any = random.below(self.nodes.all.len());
        if random.below(4) == 0 {
            return Ok(any);
        }
        let busiest = self.owners.busiest().await?;
        let mut all = self.nodes.all.iter();
        Ok(all.position(|node| node.address == busiest).unwrap_or(any))
    }

    async fn kill(&mut self, which: &[usize]) -> Result<()> {
        for node in which {
            let node = &mut self.nodes.all[*node];
            self.owners.goes_down(&node.address).await?;
            node.server.kill();
        }
        Ok(())
    }

    async fn launch(&mut self, which: &[usize]) -> Result<()> {
        for node in which {
            self.nodes.all[*node].server.launch().await?;
        }
        Ok(())
    }

    async fn hang(&mut self, which: &[usize], time: Duration) -> Result<()> {
        let (mut generations, begun) = (Vec::new(), Instant::now());
        for node in which {
            let node = &self.nodes.all[*node];
            generations.push(self.owners.goes_down(&node.address).await?);
            node.server.signal(Signal::SIGSTOP);
        }
        tokio::time::sleep(time.saturating_sub(begun.elapsed())).await;
        for (node, generation) in which.iter().zip(generations) {
            self.nodes.all[*node].server.signal(Signal::SIGCONT);
            self.owners.goes_on(generation);
        }
        Ok(())
    }

    async fn restart(&mut self, which: &[usize]) -> Result<()> {
        for node in which {
            let node = &mut self.nodes.all[*node];
            if !node.server.stop().await {
                return fail(format!("{} did not stop", node.name));
            }
            node.server.launch().await?;
        }
        Ok(())
    }

    fn database(
        &mut self,
        what: impl FnOnce(&mut gesta_pgtest::Server) -> gesta_pgtest::Result<()>,
    ) -> Result<()> {
        let done = tokio::task::block_in_place(|| what(&mut self.nodes.postgres));
        done.map_err(|error| Failure(error.to_string()))
    }
}

async fn hurt_links(fault: NodeFault, links: &FaultProxy, time: Duration) {
    match fault {
        NodeFault::LinksCut => {
            links.refuse_connections(true);
            links.cut_all();
            tokio::time::sleep(time).await;
            links.refuse_connections(false);
        }
        NodeFault::LinksSilent => {
            links.set_half_open(true);
            tokio::time::sleep(time).await;
            links.set_half_open(false);
        }
        NodeFault::LinksDeaf => {
            links.swallow_replies(true);
            tokio::time::sleep(time).await;
            links.swallow_replies(false);
        }
        _ => {
            let begun = Instant::now();
            while begun.elapsed() < time {
                links.cut_all();
                tokio::time::sleep(FLAP).await;
            }
        }
    }
    // What was swallowed is missing in the streams of bytes.
    links.cut_all();
}
