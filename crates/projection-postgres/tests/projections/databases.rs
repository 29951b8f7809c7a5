//! Schemas for the tests, and readers that do not go through the target.

use std::sync::{Mutex, PoisonError};

use gesta_pgtest::{Server, fresh_schema, shared};
use tokio_postgres::{Client, NoTls};

use crate::flavour::{Limits, Target, target};

/// Connects as somebody else than the target, to a schema.
pub(crate) async fn connect(url: &str, schema: &str) -> Client {
    let (client, driver) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("connected");
    tokio::spawn(driver);
    let set = format!("SET search_path = \"{schema}\"");
    client.batch_execute(&set).await.expect("set");
    client
}

/// A schema of a server.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) schema: String,
}

impl Place {
    /// Makes a schema on a server.
    pub(crate) async fn on(url: &str) -> Self {
        let schema = fresh_schema();
        let client = connect(url, "public").await;
        let create = format!("CREATE SCHEMA {schema}");
        client.batch_execute(&create).await.expect("made");
        let url = url.to_owned();
        Self { url, schema }
    }

    pub(crate) fn target(&self, limits: Limits) -> Target {
        target(&self.url, &self.schema, limits)
    }

    /// Makes a target that reaches the same schema by another way.
    pub(crate) fn target_by(&self, url: &str, limits: Limits) -> Target {
        target(url, &self.schema, limits)
    }

    pub(crate) async fn connect(&self) -> Client {
        connect(&self.url, &self.schema).await
    }
}

/// Schemas of the shared server, one after the other, and readers of the last one.
#[derive(Debug)]
pub(crate) struct Databases {
    server: Option<&'static Server>,
    last: Mutex<Option<Place>>,
}

impl Databases {
    pub(crate) fn new() -> Self {
        Self {
            server: shared(),
            last: Mutex::default(),
        }
    }

    /// Makes a target in a new schema.
    pub(crate) async fn make(&self) -> Target {
        let url = self.server.expect("PostgreSQL is installed").url();
        let place = Place::on(&url).await;
        let made = place.target(Limits::default());
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        made
    }

    fn last(&self) -> Place {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone().expect("a target was made")
    }

    /// Connects to the last schema.
    pub(crate) async fn open(&self) -> Client {
        self.last().connect().await
    }
}
