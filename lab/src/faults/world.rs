//! What can be hurt: a database, servers on it, stores of this process, and proxies on every connection.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gesta_pgtest::FaultProxy;
use tempfile::TempDir;

use super::CurrentStore;
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
    /// Server processes; without any, a store in this process.
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
    clients: Option<FaultProxy>,
    /// The server process.
    server: Option<Server>,
    /// Between Gesta and its database, or between this process and a server that was there before.
    link: Option<Link>,
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

/// All of it. Fields are dropped in this order: clients, servers, database, files.
pub(crate) struct World {
    /// The ways to the store.
    pub(crate) entries: Vec<Entry>,
    /// The PostgreSQL server that was started for this run.
    pub(crate) postgres: Option<gesta_pgtest::Server>,
    /// Where the disk can be filled.
    pub(crate) small_disk: Option<PathBuf>,
    /// How long Gesta waits for a silent database.
    pub(crate) answer_timeout: Duration,
    files: TempDir,
}

impl World {
    /// A world without any way to a store yet.
    fn empty(small_disk: Option<PathBuf>, postgres: Option<gesta_pgtest::Server>) -> Result<Self> {
        let files = match &small_disk {
            Some(dir) => TempDir::new_in(dir),
            None => TempDir::new(),
        }?;
        Ok(Self {
            entries: Vec::new(),
            postgres,
            small_disk,
            answer_timeout: ANSWER_TIMEOUT,
            files,
        })
    }

    /// One store of this process.
    pub(crate) fn around(
        store: Arc<CurrentStore>,
        proxy: Option<FaultProxy>,
        round_trip: Duration,
        postgres: Option<gesta_pgtest::Server>,
    ) -> Result<Self> {
        let mut world = Self::empty(None, postgres)?;
        world.entries.push(Entry {
            name: "the store".into(),
            store,
            clients: None,
            server: None,
            link: proxy.map(|proxy| Link {
                proxy,
                round_trip,
                lost: 0,
            }),
        });
        Ok(world)
    }

    /// Starts everything that a plan names.
    pub(crate) async fn start(plan: &Plan) -> Result<Self> {
        let postgres = match plan.database {
            DatabaseKind::Postgres => Some(store::new_server()?),
            DatabaseKind::Sqlite => None,
        };
        let mut world = Self::empty(plan.small_disk.clone(), postgres)?;
        let count = plan.servers.max(1);
        for number in 0..count {
            let far = match number + 1 == count && count > 1 {
                true => plan.far,
                false => Duration::ZERO,
            };
            let entry = world.enter(plan, number, far).await?;
            world.entries.push(entry);
        }
        Ok(world)
    }

    async fn enter(&self, plan: &Plan, number: u32, far: Duration) -> Result<Entry> {
        let (url, link) = match &self.postgres {
            None => {
                let file = self.files.path().join("torture.db");
                (format!("sqlite:{}", file.display()), None)
            }
            Some(server) => {
                let proxy = FaultProxy::to_postgres(server.addr()).context("starting a proxy")?;
                proxy.set_round_trip(far);
                let seconds = self.answer_timeout.as_secs();
                let url = format!("{}?answer_timeout={seconds}", proxy.url(&server.url()));
                let link = Link {
                    proxy,
                    round_trip: far,
                    lost: 0,
                };
                (url, Some(link))
            }
        };
        let (mut name, mut way) = ("the store".to_owned(), url);
        let (mut server, mut clients) = (None, None);
        if number < plan.servers {
            name = format!("server {number}");
            let log = self.files.path().join(format!("{name}.log"));
            let started = Server::start(&plan.program, &way, &log).await?;
            let proxy = FaultProxy::start(started.address()).context("starting a proxy")?;
            way = format!("http://{}", proxy.addr());
            (server, clients) = (Some(started), Some(proxy));
        }
        let store = store::open_store(&way).await?;
        Ok(Entry {
            name,
            store: CurrentStore::new(store, None),
            clients,
            server,
            link,
        })
    }

    /// True if there are connections to a database or server that can be hurt.
    pub(crate) fn has_links(&self) -> bool {
        self.entries.iter().any(|entry| entry.link.is_some())
    }

    /// True if there are server processes.
    pub(crate) fn has_servers(&self) -> bool {
        self.entries.iter().any(|entry| entry.server.is_some())
    }

    /// The PostgreSQL server.
    pub(crate) fn database(&mut self) -> Result<&mut gesta_pgtest::Server> {
        match &mut self.postgres {
            Some(server) => Ok(server),
            None => fail("there is no PostgreSQL here"),
        }
    }

    /// One of the stores that can be opened again.
    pub(crate) fn some_store(&self, random: &mut Random) -> Result<&CurrentStore> {
        let stores = self.entries.iter().map(|entry| entry.store.as_ref());
        pick(stores.filter(|store| store.can_reopen()).collect(), random)
    }

    /// One of the servers.
    pub(crate) fn some_server(&mut self, random: &mut Random) -> Result<&mut Server> {
        let all = self.entries.iter_mut();
        pick(
            all.filter_map(|entry| entry.server.as_mut()).collect(),
            random,
        )
    }

    /// One of the proxies between clients and servers.
    pub(crate) fn some_client_proxy(&self, random: &mut Random) -> Result<&FaultProxy> {
        let all = self.entries.iter();
        pick(
            all.filter_map(|entry| entry.clients.as_ref()).collect(),
            random,
        )
    }

    /// One of the links.
    pub(crate) fn some_link(&mut self, random: &mut Random) -> Result<&mut Link> {
        let all = self.entries.iter_mut();
        pick(
            all.filter_map(|entry| entry.link.as_mut()).collect(),
            random,
        )
    }

    /// Starts again what a fault may have ended: a full disk ends PostgreSQL, or closes a SQLite store until it is opened anew.
    pub(crate) async fn revive(&mut self) -> Result<()> {
        if let Some(server) = &mut self.postgres
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
