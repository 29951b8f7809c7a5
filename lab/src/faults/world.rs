//! What can be hurt: a database, servers on it, stores of this process, and proxies on every connection.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gesta_rig::FaultProxy;
use tempfile::TempDir;
use gesta_report::failure::{Context, Result, blocking, fail};

use gesta_load::machine::CurrentStore;
use gesta_load::machine::child::{self, Server};
use gesta_load::machine::postgres;
use gesta_load::machine::store;
use gesta_load::random::Random;

/// How long Gesta waits for a silent database in a torture run: short, so that rounds are.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DatabaseKind {
    /// A PostgreSQL server of its own.
    Postgres,
    /// A SQLite file.
    Sqlite,
}

/// What a world is made of.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Which database.
    pub(crate) database: DatabaseKind,
    /// Server processes, at least one.
    pub(crate) servers: u32,
    /// Extra round trip between the last entry and the database.
    pub(crate) far: Duration,
    /// A folder on a small file system that holds the database's files.
    pub(crate) small_disk: Option<PathBuf>,
    /// The server program.
    pub(crate) program: PathBuf,
}

/// One way to the store.
pub(crate) struct Entry {
    /// For people.
    pub(crate) name: String,
    /// The store as clients see it.
    pub(crate) store: Arc<CurrentStore>,
    /// Between clients and the server.
    pub(super) clients: Option<FaultProxy>,
    /// The server process.
    pub(super) server: Option<Server>,
    /// Between Gesta and its database, or between this process and a server that was there before.
    pub(super) link: Option<Link>,
}

/// Connections that can be hurt.
pub(crate) struct Link {
    /// Where the faults are.
    pub(crate) proxy: FaultProxy,
    /// Its usual extra round trip.
    pub(crate) round_trip: Duration,
    /// Replies lost so far.
    pub(crate) lost: u64,
}

impl Link {
    fn new(proxy: FaultProxy, round_trip: Duration) -> Self {
        Self {
            proxy,
            round_trip,
            lost: 0,
        }
    }
}

/// All of it. Fields are dropped in this order: clients, servers, database, files.
pub(crate) struct World {
    /// The ways to the store.
    pub(crate) entries: Vec<Entry>,
    /// The PostgreSQL server that was started for this run.
    pub(crate) postgres: Option<gesta_rig::Server>,
    /// Where the disk can be filled.
    pub(crate) small_disk: Option<PathBuf>,
    files: TempDir,
}

impl World {
    /// One store of this process.
    pub(crate) fn around(
        store: Arc<CurrentStore>,
        proxy: Option<FaultProxy>,
        round_trip: Duration,
        postgres: Option<gesta_rig::Server>,
    ) -> Result<Self> {
        let entry = Entry {
            name: "the store".into(),
            store,
            clients: None,
            server: None,
            link: proxy.map(|proxy| Link::new(proxy, round_trip)),
        };
        Ok(Self {
            entries: vec![entry],
            postgres,
            small_disk: None,
            files: TempDir::new()?,
        })
    }

    /// Starts everything that a plan names.
    pub(crate) async fn start(plan: &Plan) -> Result<Self> {
        let mut world = Self {
            entries: Vec::new(),
            postgres: match plan.database {
                DatabaseKind::Postgres => Some(store::new_server()?),
                DatabaseKind::Sqlite => None,
            },
            small_disk: plan.small_disk.clone(),
            files: match &plan.small_disk {
                Some(dir) => TempDir::new_in(dir),
                None => TempDir::new(),
            }?,
        };
        for number in 0..plan.servers {
            let is_far = number > 0 && number + 1 == plan.servers;
            let far = if is_far { plan.far } else { Duration::ZERO };
            let entry = world.enter(&plan.program, number, far).await?;
            world.entries.push(entry);
        }
        Ok(world)
    }

    /// A server, with proxies on both sides of it.
    async fn enter(&self, program: &Path, number: u32, far: Duration) -> Result<Entry> {
        let (url, link) = match &self.postgres {
            None => {
                let file = self.files.path().join("torture.db");
                (format!("sqlite:{}", file.display()), None)
            }
            Some(database) => {
                let proxy = FaultProxy::to_postgres(database.addr()).context("starting a proxy")?;
                proxy.set_round_trip(far);
                let (url, seconds) = (proxy.url(&database.url()), ANSWER_TIMEOUT.as_secs());
                let url = format!("{url}?answer_timeout={seconds}");
                (url, Some(Link::new(proxy, far)))
            }
        };
        let name = format!("server {number}");
        let log = self.files.path().join(format!("{name}.log"));
        let server = Server::start(program, &url, &log).await?;
        let clients = FaultProxy::start(server.address()).context("starting a proxy")?;
        let store = store::open_store(&format!("http://{}", clients.addr())).await?;
        Ok(Entry {
            name,
            store: CurrentStore::new(store, None),
            clients: Some(clients),
            server: Some(server),
            link,
        })
    }

    /// The PostgreSQL server.
    pub(crate) fn database(&mut self) -> Result<&mut gesta_rig::Server> {
        match &mut self.postgres {
            Some(server) => Ok(server),
            None => fail("there is no PostgreSQL here"),
        }
    }

    /// This part of one of the entries that have it.
    pub(super) fn some<T>(
        &mut self,
        random: &mut Random,
        part: impl Fn(&mut Entry) -> Option<&mut T>,
    ) -> Result<&mut T> {
        let mut parts: Vec<&mut T> = self.entries.iter_mut().filter_map(part).collect();
        if parts.is_empty() {
            return fail("this world has nothing of the kind");
        }
        let at = random.below(parts.len());
        Ok(parts.swap_remove(at))
    }

    /// Starts again what a fault may have ended: a full disk ends PostgreSQL, or closes a SQLite store until it is
    /// opened anew.
    pub(crate) async fn revive(&mut self) -> Result<()> {
        if let Some(server) = &mut self.postgres
            && postgres::connect(&server.url()).await.is_err()
        {
            blocking(|| server.restart())?;
        }
        let entries = self.entries.iter_mut();
        for server in entries.filter_map(|entry| entry.server.as_mut()) {
            if !server.is_alive() || !child::is_ready(server.address()).await {
                server.launch().await?;
            }
        }
        Ok(())
    }

    /// What the servers said last.
    pub(crate) fn server_logs(&self) -> String {
        let logs = self.entries.iter().filter_map(|entry| {
            let server = entry.server.as_ref()?;
            Some(format!("--- {}\n{}", entry.name, server.log_tail()))
        });
        logs.collect::<Vec<_>>().join("\n")
    }
}
