//! Gesta: in this process on PostgreSQL or SQLite, or behind its HTTP server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use gesta_report::failure::Result;
use gesta_load::target::{GestaTarget, Target};

use crate::child::{Child, until_ready};
use crate::peer::{About, Categories, Measured, Peer, Round, measure_target, started};
use crate::world::{Database, World};

/// In this process on PostgreSQL, under this name.
pub(super) fn postgres(name: &'static str) -> Box<dyn Peer> {
    let title = "Gesta on PostgreSQL, in the process";
    peer(name, title, Gesta::IN_PROCESS)
}

/// In this process on a file.
pub(super) fn sqlite() -> Box<dyn Peer> {
    let way = Way {
        database: Kind::Sqlite,
        ..Gesta::IN_PROCESS
    };
    peer("gesta-sqlite", "Gesta on SQLite, in the process", way)
}

/// In this process on PostgreSQL, by tags, as UmaDB is used.
pub(super) fn postgres_tags() -> Box<dyn Peer> {
    let way = Way {
        claim: Claim::Tag,
        ..Gesta::IN_PROCESS
    };
    let title = "Gesta on PostgreSQL, conditions by tags";
    peer("gesta-postgres-tags", title, way)
}

/// In this process on a file, by tags.
pub(super) fn sqlite_tags() -> Box<dyn Peer> {
    let way = Way {
        database: Kind::Sqlite,
        claim: Claim::Tag,
        ..Gesta::IN_PROCESS
    };
    let title = "Gesta on SQLite, conditions by tags";
    peer("gesta-sqlite-tags", title, way)
}

/// Its server, on PostgreSQL.
pub(super) fn http() -> Box<dyn Peer> {
    let title = "Gesta on PostgreSQL, through its HTTP server";
    peer("gesta-http", title, Gesta::BY_SERVER)
}

/// Its server on PostgreSQL, by tags: a server on loopback, as UmaDB is.
pub(super) fn http_tags() -> Box<dyn Peer> {
    let way = Way {
        claim: Claim::Tag,
        ..Gesta::BY_SERVER
    };
    let title = "Gesta on PostgreSQL, HTTP server, conditions by tags";
    peer("gesta-http-tags", title, way)
}

/// Its server on a file, by tags.
pub(super) fn http_sqlite_tags() -> Box<dyn Peer> {
    let way = Way {
        database: Kind::Sqlite,
        claim: Claim::Tag,
        ..Gesta::BY_SERVER
    };
    let title = "Gesta on SQLite, HTTP server, conditions by tags";
    peer("gesta-http-sqlite-tags", title, way)
}

fn peer(name: &'static str, title: &'static str, way: Way) -> Box<dyn Peer> {
    Box::new(Gesta {
        name,
        title,
        way,
        target: None,
        database: None,
        server: None,
    })
}

/// How Gesta is used.
#[derive(Debug, Clone, Copy)]
struct Way {
    database: Kind,
    place: Place,
    claim: Claim,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Postgres,
    Sqlite,
}

/// Where the store is open.
#[derive(Debug, Clone, Copy)]
enum Place {
    Process,
    HttpServer,
}

/// What an append claims: the revision of its stream, or that nothing with the stream's tag has come since the last.
#[derive(Debug, Clone, Copy)]
enum Claim {
    Revision,
    Tag,
}

struct Gesta {
    name: &'static str,
    title: &'static str,
    way: Way,
    target: Option<Arc<dyn Target>>,
    database: Option<Database>,
    server: Option<Child>,
}

impl Gesta {
    const IN_PROCESS: Way = Way {
        database: Kind::Postgres,
        place: Place::Process,
        claim: Claim::Revision,
    };
    const BY_SERVER: Way = Way {
        place: Place::HttpServer,
        ..Self::IN_PROCESS
    };

    async fn open(&mut self, world: &mut World) -> Result<Arc<dyn Target>> {
        let store = match self.way.database {
            Kind::Sqlite => format!("sqlite:{}", world.scratch("gesta.db").display()),
            Kind::Postgres => {
                let database = world.database(&self.name.replace('-', "_"))?;
                self.database.insert(database).url.clone()
            }
        };
        match self.way.place {
            Place::Process => prepared(&store, self.way.claim).await,
            Place::HttpServer => self.serve(world, &store).await,
        }
    }

    /// Starts the server; the target is its client.
    async fn serve(&mut self, world: &mut World, store: &str) -> Result<Arc<dyn Target>> {
        let program = world.gesta()?;
        let listen = gesta_rig::free_address()?.to_string();
        let arguments = ["serve", "--store", store, "--listen", &listen];
        let log = world.scratch("gesta.log");
        let server = self
            .server
            .insert(Child::start(&program, arguments, None, &log).await?);
        let (url, claim) = (format!("http://{listen}"), self.way.claim);
        until_ready(server, || prepared(&url, claim)).await
    }
}

/// The store of this URL as a target that can be used.
async fn prepared(url: &str, claim: Claim) -> Result<Arc<dyn Target>> {
    let target = GestaTarget::new(url, Duration::ZERO, None);
    let target = match claim {
        Claim::Revision => target,
        Claim::Tag => target.by_tags(),
    };
    target.prepare().await?;
    Ok(Arc::new(target))
}

#[async_trait]
impl Peer for Gesta {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> &'static str {
        self.title
    }

    async fn start(&mut self, world: &mut World) -> Result<About> {
        let target = self.open(world).await?;
        let facts = self.target.insert(target).facts().await?;
        Ok(About {
            version: gesta_report::host::VERSION.into(),
            engine: facts.engine,
            note: facts.note,
            durability: facts.durability,
            durability_detail: facts.durability_detail,
        })
    }

    async fn measure(&mut self, round: &Round<'_>) -> Result<Measured> {
        measure_target(started(self.target.as_ref())?, Categories::One, round).await
    }

    async fn end(&mut self, world: &mut World) -> Result<()> {
        if let Some(target) = self.target.take() {
            target.remove().await?;
        }
        if let Some(server) = self.server.take() {
            server.end().await?;
        }
        match self.database.take() {
            Some(database) => world.drop_database(&database),
            None => Ok(()),
        }
    }
}
