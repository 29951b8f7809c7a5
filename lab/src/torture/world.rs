//! The world of a torture run: a database, servers on it, and proxies on every connection.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::EventStore;
use gesta_pgtest::FaultProxy;
use tempfile::TempDir;

use crate::child::Server;
use crate::failure::{Context, Failure, Result, fail};
use crate::random::Random;
use crate::store;

/// How long Gesta waits for a silent database in a torture run: short, so that rounds are.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

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
    /// Server processes.
    pub(crate) servers: u32,
    /// Stores opened in this process.
    pub(crate) embedded: u32,
    /// Extra round trip between the last entry and the database.
    pub(crate) far: Duration,
    /// Logs of the store.
    pub(crate) logs: u16,
    /// A folder on a small file system that holds the database's files.
    pub(crate) small_disk: Option<PathBuf>,
    /// The server program.
    pub(crate) program: PathBuf,
}

/// The database.
pub(crate) enum Database {
    /// PostgreSQL.
    Postgres(Box<gesta_pgtest::Server>),
    /// SQLite: the URL of the store.
    Sqlite(String),
}

/// One way to the store.
pub(crate) struct Entry {
    /// For people.
    pub(crate) name: String,
    /// The store as clients see it.
    pub(crate) store: Arc<dyn EventStore>,
    /// Between clients and the server.
    clients: Option<FaultProxy>,
    /// The server process.
    server: Option<Server>,
    /// Between Gesta and PostgreSQL.
    database: Option<Link>,
}

/// A connection to PostgreSQL that can be hurt.
pub(crate) struct Link {
    /// Where the faults are.
    pub(crate) proxy: FaultProxy,
    /// Its usual delay each way.
    pub(crate) delay: Duration,
    /// Replies lost so far.
    pub(crate) lost: u64,
}

/// All of it. Fields are dropped in this order: clients, servers, database, files.
pub(crate) struct World {
    /// The ways to the store.
    pub(crate) entries: Vec<Entry>,
    /// The database.
    pub(crate) database: Database,
    /// Where the disk can be filled.
    pub(crate) small_disk: Option<PathBuf>,
    /// How long Gesta waits for a silent database.
    pub(crate) answer_timeout: Duration,
    files: TempDir,
}

impl World {
    /// Starts everything.
    pub(crate) async fn start(plan: &Plan) -> Result<Self> {
        let files = match &plan.small_disk {
            Some(dir) => TempDir::new_in(dir),
            None => TempDir::new(),
        }?;
        let database = match plan.database {
            DatabaseKind::Postgres => Database::Postgres(Box::new(store::new_server()?)),
            DatabaseKind::Sqlite => Database::Sqlite(format!(
                "sqlite:{}",
                files.path().join("torture.db").display()
            )),
        };
        let mut world = Self {
            entries: Vec::new(),
            database,
            small_disk: plan.small_disk.clone(),
            answer_timeout: ANSWER_TIMEOUT,
            files,
        };
        let count = plan.servers + plan.embedded;
        if count == 0 || (plan.database == DatabaseKind::Sqlite && count > 1) {
            return fail("a world needs a server or an embedded store; on SQLite just one of them");
        }
        for number in 0..count {
            let far = if number + 1 == count && count > 1 {
                plan.far
            } else {
                Duration::ZERO
            };
            let entry = world.enter(plan, number, far).await?;
            world.entries.push(entry);
        }
        Ok(world)
    }

    async fn enter(&self, plan: &Plan, number: u32, far: Duration) -> Result<Entry> {
        let (url, database) = match &self.database {
            Database::Sqlite(url) => (url.clone(), None),
            Database::Postgres(server) => {
                let proxy = FaultProxy::to_postgres(server.addr()).context("starting a proxy")?;
                proxy.set_delay(far / 2, far / 2);
                let seconds = self.answer_timeout.as_secs();
                let url = format!("{}?answer_timeout={seconds}", proxy.url(&server.url()));
                (
                    url,
                    Some(Link {
                        proxy,
                        delay: far / 2,
                        lost: 0,
                    }),
                )
            }
        };
        if number >= plan.servers {
            let store = store::open_store(&url, plan.logs).await?;
            let name = format!("embedded {number}");
            return Ok(Entry {
                name,
                store,
                clients: None,
                server: None,
                database,
            });
        }
        let log = self.files.path().join(format!("server-{number}.log"));
        let server = Server::start(&plan.program, &url, &log).await?;
        let clients = FaultProxy::start(server.address()).context("starting a proxy")?;
        let store = store::open_store(&format!("http://{}", clients.addr()), plan.logs).await?;
        let name = format!("server {number}");
        Ok(Entry {
            name,
            store,
            clients: Some(clients),
            server: Some(server),
            database,
        })
    }

    /// True if there are server processes.
    pub(crate) fn has_servers(&self) -> bool {
        self.entries.iter().any(|entry| entry.server.is_some())
    }

    /// The PostgreSQL server.
    pub(crate) fn postgres(&mut self) -> Result<&mut gesta_pgtest::Server> {
        match &mut self.database {
            Database::Postgres(server) => Ok(server),
            Database::Sqlite(_) => fail("there is no PostgreSQL here"),
        }
    }

    /// One of the servers.
    pub(crate) fn some_server(&mut self, random: &mut Random) -> Result<&mut Server> {
        pick(
            self.entries
                .iter_mut()
                .filter_map(|e| e.server.as_mut())
                .collect(),
            random,
        )
    }

    /// One of the proxies between clients and servers.
    pub(crate) fn some_client_proxy(&self, random: &mut Random) -> Result<&FaultProxy> {
        pick(
            self.entries
                .iter()
                .filter_map(|e| e.clients.as_ref())
                .collect(),
            random,
        )
    }

    /// One of the connections to PostgreSQL.
    pub(crate) fn some_link(&mut self, random: &mut Random) -> Result<&mut Link> {
        pick(
            self.entries
                .iter_mut()
                .filter_map(|e| e.database.as_mut())
                .collect(),
            random,
        )
    }

    /// Starts again what a fault may have ended: a full disk ends PostgreSQL, or closes a SQLite store until it is opened anew.
    pub(crate) async fn revive(&mut self) -> Result<()> {
        if let Database::Postgres(server) = &mut self.database
            && crate::postgres::connect(&server.url()).await.is_err()
        {
            tokio::task::block_in_place(|| server.restart())
                .map_err(|error| Failure(error.to_string()))?;
        }
        for server in self
            .entries
            .iter_mut()
            .filter_map(|entry| entry.server.as_mut())
        {
            if !server.is_alive() || !crate::child::is_ready(server.address()).await {
                server.kill();
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

fn pick<T>(mut from: Vec<T>, random: &mut Random) -> Result<T> {
    if from.is_empty() {
        return fail("this world has nothing of the kind");
    }
    let at = random.below(from.len());
    Ok(from.swap_remove(at))
}
