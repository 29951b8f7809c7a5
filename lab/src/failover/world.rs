//! Everything that takes part: PostgreSQL with Patroni and etcd, and two servers of Gesta.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use gesta_core::{EventStore, Incarnation};
use gesta_pgtest::{Patroni, PatroniConfig, Replication};
use tempfile::TempDir;

use super::probe::Probe;
use crate::child::Server;
use crate::cluster::load::{Way, connect};
use crate::failure::{Failure, Result, fail};
use crate::store::{self, StoreFacts};

/// Another member is the primary this soon: `ttl` is 20 s.
const PROMOTED_WITHIN: Duration = Duration::from_secs(90);
/// What an asynchronous standby may lack and be promoted all the same: any amount.
const LAG_BYTES_MAX: u64 = 1 << 40;
/// How often waits look.
const LOOK: Duration = Duration::from_millis(20);

/// Fields are dropped in this order: servers, database, files.
pub(super) struct World {
    servers: Vec<Server>,
    /// The database.
    pub(super) patroni: Patroni,
    files: TempDir,
}

impl World {
    /// Starts the database, then the servers.
    pub(super) async fn start(
        program: &Path,
        members: usize,
        replication: Replication,
    ) -> Result<Self> {
        let mut config = PatroniConfig {
            members,
            ..PatroniConfig::new(replication)
        };
        if replication == Replication::Asynchronous {
            config.lag_bytes_max = LAG_BYTES_MAX;
        }
        let patroni = tokio::task::block_in_place(|| Patroni::start(config));
        let patroni = patroni.map_err(|error| Failure(error.to_string()))?;
        let Some(patroni) = patroni else {
            return fail("PostgreSQL, Patroni and etcd must be installed");
        };
        let mut world = Self {
            servers: Vec::new(),
            patroni,
            files: TempDir::new()?,
        };
        Probe::prepare(&world.member_urls()[world.whole()?]).await?;
        for name in ["busy", "idle"] {
            let log = world.files.path().join(name);
            let server = Server::start(program, &world.url(), &log).await?;
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

    /// Waits until all members follow the primary; gives it.
    pub(super) fn whole(&self) -> Result<usize> {
        let whole = tokio::task::block_in_place(|| self.patroni.wait_until_whole());
        whole.map_err(|error| Failure(error.to_string()))
    }

    /// Waits until another member is the primary.
    pub(super) async fn promoted(&self, old: usize) -> Result<()> {
        let begun = Instant::now();
        let other = || tokio::task::block_in_place(|| self.patroni.primary());
        while other().is_none_or(|primary| primary == old) {
            if begun.elapsed() > PROMOTED_WITHIN {
                return fail(format!("nobody was promoted within {PROMOTED_WITHIN:?}"));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// What the processes said last.
    pub(super) fn logs(&self) -> String {
        let told = self.servers.iter().zip(["busy", "idle"]);
        let told = told.map(|(server, name)| format!("--- {name}\n{}\n", server.log_tail()));
        told.collect::<String>() + &self.patroni.logs()
    }

    /// Stops the servers and has `gesta verify` look at the store. Gives what is wrong.
    pub(super) async fn verify(&mut self, program: &Path) -> Option<String> {
        for server in &mut self.servers {
            if !server.stop().await {
                return Some("a server did not end when it was told to".into());
            }
        }
        let url = self.url();
        let verified = tokio::task::block_in_place(|| {
            let mut command = Command::new(program);
            command.args(["verify", "--store", &url]).output()
        });
        match verified {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(format!(
                "gesta verify: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            )),
            Err(error) => Some(Failure::from(error).to_string()),
        }
    }
}
