//! Message DB: its own install script on the run's PostgreSQL server, its function `write_message` by prepared
//! statement.
//!
//! Several events of one append are as many calls in one transaction, sent without waiting for each other's answers.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::try_join_all;
use futures::{StreamExt, pin_mut};
use gesta_report::failure::{Context, Result, fail};
use gesta_load::target::{Append, AppendError, Session, Stored, Target, TargetFacts};
use tokio::process::Command;
use tokio_postgres::{Client, Statement};

use crate::peer::{About, Categories, Measured, Peer, Round, measure_target, started};
use crate::world::{Database, World};

const EVENT_TYPE: &str = "lab-event";
const SEARCH_PATH: &str = "SET search_path TO message_store, public";
const WRITE: &str = "SELECT message_store.write_message($1, $2, $3, $4::text::jsonb, NULL, $5)";
const READ: &str = "SELECT stream_name, position, data->>'mark' FROM message_store.messages
     WHERE starts_with(stream_name, $1::text)";

/// All streams in one category: Message DB writes one message of a category at a time.
pub(super) fn one_category() -> Box<dyn Peer> {
    peer("message-db", "Message DB, one category", Categories::One)
}

/// Each worker with a category of its own.
pub(super) fn category_per_worker() -> Box<dyn Peer> {
    peer(
        "message-db-categories",
        "Message DB, a category per worker",
        Categories::PerWorker,
    )
}

fn peer(name: &'static str, title: &'static str, categories: Categories) -> Box<dyn Peer> {
    Box::new(MessageDb {
        name,
        title,
        categories,
        target: None,
        database: None,
    })
}

struct MessageDb {
    name: &'static str,
    title: &'static str,
    categories: Categories,
    target: Option<Arc<dyn Target>>,
    database: Option<Database>,
}

#[async_trait]
impl Peer for MessageDb {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> &'static str {
        self.title
    }

    async fn start(&mut self, world: &mut World) -> Result<About> {
        let package = "node_modules/@eventide/message-db";
        let version = world.npm_version("message-db", &format!("{package}/package.json"))?;
        let script = world.installed("message-db", &format!("{package}/database/install.sh"))?;
        // The script makes the database itself.
        let database = world.unmade_database(&self.name.replace('-', "_"))?;
        let database = self.database.insert(database);
        let psql = World::postgres_program("psql")?;
        let programs = psql.parent().unwrap_or(&psql).to_owned();
        let path = std::env::var("PATH").unwrap_or_default();
        let installed = Command::new("bash")
            .arg(&script)
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("PGHOST", &database.host)
            .env("PGPORT", database.port.to_string())
            .env("PGUSER", &database.user)
            .env("DATABASE_NAME", &database.name)
            .kill_on_drop(true)
            .output()
            .await
            .context("installing Message DB")?;
        if !installed.status.success() {
            let said = String::from_utf8_lossy(&installed.stderr);
            return fail(format!("installing Message DB: {}", said.trim()));
        }
        let database = database.clone();
        self.target = Some(Arc::new(MessageDbTarget {
            name: self.name,
            title: self.title,
            database,
        }));
        let note = match self.categories {
            Categories::One => {
                "one transaction per append; those of one category wait for each other"
            }
            Categories::PerWorker => "one transaction per append; no two workers share a category",
        };
        Ok(About::on(world.engine().await?, &version, note))
    }

    async fn measure(&mut self, round: &Round<'_>) -> Result<Measured> {
        measure_target(started(self.target.as_ref())?, self.categories, round).await
    }

    async fn end(&mut self, world: &mut World) -> Result<()> {
        self.target = None;
        match self.database.take() {
            Some(database) => world.drop_database(&database),
            None => Ok(()),
        }
    }
}

#[derive(Debug)]
struct MessageDbTarget {
    name: &'static str,
    title: &'static str,
    database: Database,
}

impl MessageDbTarget {
    async fn client(&self) -> Result<Client> {
        let client = self.database.connect().await?;
        client.batch_execute(SEARCH_PATH).await?;
        Ok(client)
    }
}

#[async_trait]
impl Target for MessageDbTarget {
    fn name(&self) -> &str {
        self.name
    }

    fn title(&self) -> &str {
        self.title
    }

    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    async fn facts(&self) -> Result<TargetFacts> {
        fail("the peer tells the facts")
    }

    async fn connect(&self) -> Result<Box<dyn Session>> {
        let client = self.client().await?;
        let write = client.prepare(WRITE).await?;
        Ok(Box::new(MessageDbSession { client, write }))
    }

    async fn read_back(&self, prefix: &str, see: &mut (dyn FnMut(Stored) + Send)) -> Result<()> {
        let client = self.client().await?;
        let rows = client
            .query_raw(READ, [prefix])
            .await
            .context("read-back")?;
        pin_mut!(rows);
        while let Some(row) = rows.next().await {
            let row = row.context("read-back")?;
            let mark: Option<String> = row.try_get(2)?;
            see(Stored {
                stream: row.try_get(0)?,
                revision: u64::try_from(row.try_get::<_, i64>(1)?)?,
                mark: mark.unwrap_or_default(),
                // `jsonb` is another form of the data.
                bytes: None,
                whole: None,
            });
        }
        Ok(())
    }

    async fn disk_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    async fn remove(&self) -> Result<()> {
        Ok(())
    }
}

struct MessageDbSession {
    client: Client,
    write: Statement,
}

impl MessageDbSession {
    async fn write(&self, append: &Append<'_>, index: usize) -> std::result::Result<(), Error> {
        let event = &append.events[index];
        let (id, data) = (event.id.to_string(), String::from_utf8_lossy(&event.data));
        // A stream without messages has version -1.
        let expected = i64::try_from(append.revision + index as u64).unwrap_or(i64::MAX) - 1;
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&id, &append.stream, &EVENT_TYPE, &data, &expected];
        self.client
            .query_one(&self.write, &values)
            .await
            .map(|_| ())
    }

    async fn write_all(&self, append: &Append<'_>) -> std::result::Result<(), Error> {
        if append.events.len() == 1 {
            return self.write(append, 0).await;
        }
        let begin = self.client.batch_execute("BEGIN");
        let writes = (0..append.events.len()).map(|index| self.write(append, index));
        // Sent in the order in which they are first polled.
        let (begun, written) = futures::future::join(begin, try_join_all(writes)).await;
        let outcome = begun.and(written.map(|_| ()));
        let end = if outcome.is_ok() {
            "COMMIT"
        } else {
            "ROLLBACK"
        };
        self.client.batch_execute(end).await?;
        outcome
    }
}

type Error = tokio_postgres::Error;

#[async_trait]
impl Session for MessageDbSession {
    async fn append(&mut self, append: &Append<'_>) -> std::result::Result<(), AppendError> {
        let Err(error) = self.write_all(append).await else {
            return Ok(());
        };
        Err(match error.as_db_error() {
            Some(told) if matches!(told.code().code(), "40001" | "40P01") => {
                AppendError::Retry(told.code().code().into())
            }
            Some(told) => AppendError::Failed(told.message().into()),
            None => AppendError::Unknown(error.to_string()),
        })
    }
}
