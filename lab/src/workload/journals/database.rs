//! Connections to the PostgreSQL schema of one journal: direct ones, and those of workers, through the delay.

use gesta_report::failure::{Context, Result};
use gesta_rig::FaultProxy;
use tokio::sync::Mutex;
use tokio_postgres::Client;

use gesta_load::machine::network::Network;
use gesta_load::machine::postgres;
use gesta_load::machine::store;

/// Most partitions that are dropped by one statement. Each takes some seven locks (table, indexes, large values), and a
/// server with its own defaults has 6,400.
const PIECES: i64 = 100;

/// Where a journal lives.
pub(crate) struct Database {
    url: String,
    schema: String,
    network: Network,
    /// The URL of workers, and the proxy that it leads through.
    way: Mutex<Option<(String, Option<FaultProxy>)>>,
}

impl Database {
    /// The schema of this name.
    pub(crate) fn new(url: &str, schema: String, network: impl Into<Network>) -> Self {
        Self {
            url: url.to_owned(),
            schema,
            network: network.into(),
            way: Mutex::default(),
        }
    }

    /// Its URL, not delayed.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Name of the schema.
    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    /// A connection that is not delayed.
    pub(crate) async fn direct(&self) -> Result<Client> {
        self.search(postgres::connect(&self.url).await?).await
    }

    /// A connection for a worker.
    pub(crate) async fn worker(&self) -> Result<Client> {
        let mut way = self.way.lock().await;
        let (url, _) = match &mut *way {
            Some(way) => way,
            none => none.insert(store::delayed(&self.url, self.network)?),
        };
        let url = url.clone();
        drop(way);
        self.search(postgres::connect(&url).await?).await
    }

    async fn search(&self, client: Client) -> Result<Client> {
        let path = format!("SET search_path TO {}", self.schema);
        client.batch_execute(&path).await?;
        Ok(client)
    }

    /// Makes the schema anew and empty, with what these statements make. They find an extension's names too.
    pub(crate) async fn make(&self, extension: Option<&str>, tables: &str) -> Result<Client> {
        self.drop_all().await?;
        let client = postgres::connect(&self.url).await?;
        let mut path = self.schema.clone();
        if let Some(extension) = extension {
            path.push_str(", ");
            path.push_str(&home_of(&client, extension).await?);
        }
        let schema = &self.schema;
        let make = format!("CREATE SCHEMA {schema}; SET search_path TO {path}; {tables}");
        client.batch_execute(&make).await.context("making tables")?;
        Ok(client)
    }

    /// Drops the schema, its partitions piece by piece: all at once would take more locks than a server has.
    pub(crate) async fn drop_all(&self) -> Result<()> {
        let client = postgres::connect(&self.url).await?;
        let select = client.prepare(sql!("select_pieces")).await?;
        loop {
            let row = client.query_one(&select, &[&self.schema, &PIECES]).await?;
            let Some(pieces) = row.get::<_, Option<String>>(0) else {
                break;
            };
            let dropped = client.batch_execute(&format!("DROP TABLE {pieces}")).await;
            dropped.context("dropping partitions")?;
        }
        let drop = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema);
        client.batch_execute(&drop).await.context("dropping tables")
    }

    /// Ends the delay; the connections through it break.
    pub(crate) async fn close(&self) {
        self.way.lock().await.take();
    }
}

/// Makes sure of an extension, which stays; returns the schema that it lives in.
async fn home_of(client: &Client, extension: &str) -> Result<String> {
    let make = format!("CREATE EXTENSION IF NOT EXISTS {extension}");
    client.batch_execute(&make).await.context(format!(
        "this schema needs the extension {extension}, of PostgreSQL's contrib package, and a role that may create it"
    ))?;
    let home = "SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = $1";
    Ok(client.query_one(home, &[&extension]).await?.get(0))
}
