//! What all journals on PostgreSQL have in common: making, reading back, removing. A design adds tables and sessions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use gesta_load::machine::network::Network;
use gesta_load::machine::postgres;
use gesta_load::machine::store;
use gesta_load::target::{Events, Session, Stored, Target, TargetFacts};
use gesta_report::failure::{Context, Result};
use tokio_postgres::{Client, Row};

use super::database::Database;

/// Rows that the read-back takes at a time.
const PAGE: u16 = 10_000;

/// The tables of a design.
pub(super) struct Tables {
    /// Name of the target; the schema's name follows from it.
    pub(super) name: &'static str,
    /// Name in tables.
    pub(super) title: &'static str,
    /// How it is driven, in one sentence.
    pub(super) note: &'static str,
    /// The extension that the tables need.
    pub(super) extension: Option<&'static str>,
    /// Statements that make the tables.
    pub(super) create: &'static str,
    /// Table and column of the events' data.
    pub(super) payload: (&'static str, &'static str),
    /// Reads back: binds the beginning of streams' names; shows stream, revision, beginning of the data, their length.
    pub(super) read_back: &'static str,
}

/// One design: its tables and how they are written.
#[async_trait]
pub(super) trait Design: Send + Sync {
    fn tables(&self) -> &'static Tables;

    /// The statements that read everything back together, where one would be too much.
    async fn read_backs(&self, _: &Client, _schema: &str, _prefix: &str) -> Result<Vec<String>> {
        Ok(vec![self.tables().read_back.to_owned()])
    }

    /// Opens what a worker needs.
    async fn session(&self, database: &Arc<Database>) -> Result<Box<dyn Session>>;

    /// Forgets what it knows of the tables, and closes what workers share.
    async fn close(&self) {}
}

/// A journal on PostgreSQL.
pub(super) struct Journal {
    design: Box<dyn Design>,
    database: Arc<Database>,
    compression: Option<String>,
}

impl Journal {
    pub(super) fn new(
        design: Box<dyn Design>,
        url: &str,
        network: impl Into<Network>,
        compression: Option<&str>,
    ) -> Self {
        let schema = format!("gesta_lab_{}", design.tables().name.replace('-', "_"));
        Self {
            design,
            database: Arc::new(Database::new(url, schema, network)),
            compression: compression.map(str::to_owned),
        }
    }
}

#[async_trait]
impl Target for Journal {
    fn name(&self) -> &str {
        self.design.tables().name
    }

    fn title(&self) -> &str {
        self.design.tables().title
    }

    async fn prepare(&self) -> Result<()> {
        self.close().await?;
        let tables = self.design.tables();
        let client = self.database.make(tables.extension, tables.create).await?;
        if let Some(compression) = &self.compression {
            // Partitions that are made later get it from their parent.
            let (table, column) = tables.payload;
            let sql = postgres::compression_sql(table, column, compression);
            client.batch_execute(&sql).await.context("compression")?;
        }
        Ok(())
    }

    async fn facts(&self) -> Result<TargetFacts> {
        let facts = store::database_facts(self.database.url(), Duration::ZERO).await?;
        Ok(TargetFacts {
            engine: facts.engine,
            durability: facts.durability,
            durability_detail: facts.durability_detail,
            note: self.design.tables().note.into(),
        })
    }

    async fn connect(&self) -> Result<Box<dyn Session>> {
        self.design.session(&self.database).await
    }

    async fn read_back(&self, prefix: &str, see: &mut (dyn FnMut(Stored) + Send)) -> Result<()> {
        let mut client = self.database.direct().await?;
        let statements = self
            .design
            .read_backs(&client, self.database.schema(), prefix)
            .await?;
        for statement in statements {
            // A portal shows a result page by page, within a transaction.
            let transaction = client.transaction().await?;
            let portal = transaction.bind(&statement, &[&prefix]).await?;
            loop {
                let rows = transaction.query_portal(&portal, PAGE.into()).await?;
                for row in &rows {
                    see(stored(row)?);
                }
                if rows.len() < PAGE.into() {
                    break;
                }
            }
            transaction.commit().await?;
        }
        Ok(())
    }

    async fn disk_bytes(&self) -> Result<Option<u64>> {
        postgres::schema_bytes(self.database.url(), self.database.schema())
            .await
            .map(Some)
    }

    async fn close(&self) -> Result<()> {
        self.design.close().await;
        self.database.close().await;
        Ok(())
    }

    async fn remove(&self) -> Result<()> {
        self.close().await?;
        self.database.drop_all().await
    }
}

fn stored(row: &Row) -> Result<Stored> {
    let revision: i64 = row.try_get(1)?;
    let bytes: Option<i32> = row.try_get(3)?;
    Ok(Stored {
        stream: row.try_get(0)?,
        revision: u64::try_from(revision)?,
        mark: Events::mark_in(row.try_get(2)?),
        bytes: bytes.map(u64::try_from).transpose()?,
        whole: None,
    })
}
