//! Gesta: in this process on PostgreSQL or SQLite, or behind its HTTP server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use gesta_lab::failure::Result;
use gesta_lab::target::{GestaTarget, Target};

use crate::child::{Child, until_ready};
use crate::peer::{About, Categories, Measured, Peer, Round, measure_target, started};
use crate::world::{Database, World};

/// In this process on PostgreSQL, under this name.
pub(super) fn postgres(name: &'static str) -> Box<dyn Peer> {
    peer(name, "Gesta on PostgreSQL, in the process", Where::Postgres)
}

/// In this process on a file.
pub(super) fn sqlite() -> Box<dyn Peer> {
    peer(
        "gesta-sqlite",
        "Gesta on SQLite, in the process",
        Where::Sqlite,
    )
}

/// In this process on a file, by tags, as UmaDB is used.
pub(super) fn sqlite_tags() -> Box<dyn Peer> {
    peer(
        "gesta-sqlite-tags",
        "Gesta on SQLite, conditions by tags",
        Where::SqliteTags,
    )
}

/// In this process on PostgreSQL, by tags.
pub(super) fn postgres_tags() -> Box<dyn Peer> {
    peer(
        "gesta-postgres-tags",
        "Gesta on PostgreSQL, conditions by tags",
        Where::PostgresTags,
    )
}

/// Its server, on PostgreSQL.
pub(super) fn http() -> Box<dyn Peer> {
    peer(
        "gesta-http",
        "Gesta on PostgreSQL, through its HTTP server",
        Where::Http,
    )
}

fn peer(name: &'static str, title: &'static str, place: Where) -> Box<dyn Peer> {
    Box::new(Gesta {
        name,
        title,
        place,
        target: None,
        database: None,
        server: None,
    })
}

#[derive(Debug, Clone, Copy)]
enum Where {
    Postgres,
    PostgresTags,
    Sqlite,
    SqliteTags,
    Http,
}

struct Gesta {
    name: &'static str,
    title: &'static str,
    place: Where,
    target: Option<Arc<dyn Target>>,
    database: Option<Database>,
    server: Option<Child>,
}

impl Gesta {
    async fn open(&mut self, world: &mut World) -> Result<Arc<dyn Target>> {
        let at = |url: &str| GestaTarget::new(url, Duration::ZERO, None);
        let target = match self.place {
            Where::Sqlite | Where::SqliteTags => {
                at(&format!("sqlite:{}", world.scratch("gesta.db").display()))
            }
            Where::Postgres | Where::PostgresTags => {
                let database = world.database(&self.name.replace('-', "_"))?;
                at(&self.database.insert(database).url)
            }
            Where::Http => {
                let program = world.gesta()?;
                let database = world.database("gesta_http")?;
                let store = self.database.insert(database).url.clone();
                let listen = gesta_pgtest::free_address()?.to_string();
                let arguments = ["serve", "--store", &store, "--listen", &listen];
                let log = world.scratch("gesta.log");
                let server = self
                    .server
                    .insert(Child::start(&program, arguments, None, &log).await?);
                let url = format!("http://{listen}");
                return until_ready(server, || {
                    let target = at(&url);
                    async move {
                        target.prepare().await?;
                        Ok(Arc::new(target) as Arc<dyn Target>)
                    }
                })
                .await;
            }
        };
        let target = match self.place {
            Where::PostgresTags | Where::SqliteTags => target.by_tags(),
            _ => target,
        };
        target.prepare().await?;
        Ok(Arc::new(target))
    }
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
            version: gesta_lab::host::VERSION.into(),
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
