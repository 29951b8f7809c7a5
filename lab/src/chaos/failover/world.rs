//! Everything that takes part: PostgreSQL with Patroni and etcd, and two servers of Gesta.

use std::path::Path;
use std::time::Duration;

use gesta_core::{EventStore, Incarnation};
use gesta_rig::{Patroni, PatroniConfig, Replication, free_address};
use tempfile::TempDir;
use gesta_report::StoreFacts;
use gesta_report::failure::{Result, blocking, fail};
use gesta_load::machine::ask::until;
use gesta_load::machine::child::{self, Program, Server};
use gesta_load::machine::store;

use super::probe::Probe;
use crate::cluster::load::{Way, connect};

/// Another member is the primary this soon: `ttl` is 20 s.
const PROMOTED_WITHIN: Duration = Duration::from_secs(90);
/// Servers know of a standby this soon: they look every ten seconds.
const KNOWN_WITHIN: Duration = Duration::from_secs(60);
/// What an asynchronous standby may lack and be promoted all the same: any amount.
const LAG_BYTES_MAX: u64 = 1 << 40;

/// Fields are dropped in this order: servers, database, files.
pub(super) struct World {
    servers: Vec<Server>,
    /// The database.
    pub(super) patroni: Patroni,
    files: TempDir,
}

impl World {
    /// Starts the database, then the servers, as nodes of a cluster or each for itself.
    pub(super) async fn start(
        program: &Path,
        members: usize,
        replication: Replication,
        are_nodes: bool,
    ) -> Result<Self> {
        let mut config = PatroniConfig {
            members,
            ..PatroniConfig::new(replication)
        };
        if replication == Replication::Asynchronous {
            config.lag_bytes_max = LAG_BYTES_MAX;
        }
        let Some(patroni) = blocking(|| Patroni::start(config))? else {
            return fail("PostgreSQL, Patroni and etcd must be installed");
        };
        let mut world = Self {
            servers: Vec::new(),
            patroni,
            files: TempDir::new()?,
        };
        Probe::prepare(&world.member_urls()[world.whole()?]).await?;
        for name in ["busy", "idle"] {
            let mut program = Program::gesta(program);
            if are_nodes {
                program.join_cluster(free_address()?, world.files.path())?;
            }
            let log = world.files.path().join(name);
            let server = Server::start_program(program, &world.url(), &log).await?;
            world.servers.push(server);
        }
        Ok(world)
    }

    /// The store, by all members.
    pub(super) fn url(&self) -> String {
        self.patroni.url()
    }

    /// Each member alone.
    pub(super) fn member_urls(&self) -> Vec<String> {
        self.patroni.member_urls()
    }

    /// What is known about the store.
    pub(super) async fn facts(&self) -> Result<StoreFacts> {
        let opened = store::open_url(&self.url(), Duration::ZERO, 1).await?;
        opened.store.shutdown().await?;
        Ok(opened.facts)
    }

    /// The server that gets the appends, and the idle one.
    pub(super) fn ways(&self) -> [Way; 2] {
        ["busy", "idle"].map(|name| Way {
            name: format!("the {name} server"),
            url: self.servers[usize::from(name == "idle")].url(),
        })
    }

    /// The incarnation that a server knows.
    pub(super) async fn incarnation(way: &Way) -> Result<Incarnation> {
        Ok(connect(way)?.info().await?.incarnation)
    }

    /// Waits until all servers know of a synchronous standby. A promotion before that is one of an asynchronous standby
    /// for them, and begins a new incarnation.
    pub(super) async fn standby_is_known(&self) -> Result<()> {
        for way in self.ways() {
            let is_known = async || {
                let Ok(client) = connect(&way) else {
                    return false;
                };
                let info = client.info().await;
                info.is_ok_and(|info| info.durability.detail().contains("synchronous standbys"))
            };
            let what = format!("{} knows of a synchronous standby", way.name);
            until(&what, KNOWN_WITHIN, is_known).await?;
        }
        Ok(())
    }

    /// Waits until all members follow the primary; gives it.
    pub(super) fn whole(&self) -> Result<usize> {
        blocking(|| self.patroni.wait_until_whole())
    }

    /// Waits until another member is the primary.
    pub(super) async fn promoted(&self, old: usize) -> Result<()> {
        let is_promoted = async || {
            let primary = tokio::task::block_in_place(|| self.patroni.primary());
            primary.is_some_and(|primary| primary != old)
        };
        until("another member is promoted", PROMOTED_WITHIN, is_promoted).await
    }

    /// What the processes said last.
    pub(super) fn logs(&self) -> String {
        let told = self.servers.iter().zip(["busy", "idle"]);
        let told = told.map(|(server, name)| format!("--- {name}\n{}\n", server.log_tail()));
        told.collect::<String>() + &self.patroni.logs()
    }

    /// Stops the servers and has `gesta verify` look at the store.
    pub(super) async fn verify(&mut self, program: &Path) -> Result<()> {
        for server in &mut self.servers {
            if !server.stop().await {
                return fail("a server did not end when it was told to");
            }
        }
        child::verify(program, std::iter::once(self.url()))
    }
}
