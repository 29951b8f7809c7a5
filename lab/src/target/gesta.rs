//! Gesta as a target: in this process on a database, behind HTTP, or in memory.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{
    AllFrom, ContentType, EventData, EventId, EventStore, EventType, ExpectedRevision, ReadAll,
    Revision, StreamId,
};
use tokio::sync::Mutex;

use super::{Append, AppendError, Events, Session, Stored, Target, TargetFacts};
use crate::endpoint::{self, Endpoint};
use crate::failure::{Context, Failure, Result};
use crate::postgres;
use crate::store::{self, Opened};

/// Events per page of the read-back.
const PAGE: usize = 1_000;
/// Type of all events.
const EVENT_TYPE: &str = "lab-event";

/// A Gesta store.
pub struct GestaTarget {
    name: String,
    title: String,
    url: String,
    logs: u16,
    round_trip: Duration,
    /// The PostgreSQL schema that is dropped and made anew; none: the store is used as it is.
    schema: Option<String>,
    compression: Option<String>,
    content_type: ContentType,
    opened: Mutex<Option<Arc<Opened>>>,
}

impl GestaTarget {
    /// The store at a URL, by way of a delay. On PostgreSQL it is made anew in a schema of its own, with this
    /// compression of the data if one is named; another store is used as it is.
    #[must_use]
    pub fn new(url: &str, round_trip: Duration, compression: Option<&str>) -> Self {
        let is_postgres = Endpoint::parse(url).is_some_and(|endpoint| endpoint.is_postgres());
        let schema = is_postgres.then(|| "gesta_lab_gesta".to_owned());
        let url = match &schema {
            Some(schema) => endpoint::with_parameter(url, "schema", schema),
            None => url.to_owned(),
        };
        let (name, title) = if url.starts_with("http://") {
            ("gesta-http", "Gesta, through its HTTP server")
        } else {
            ("gesta", "Gesta")
        };
        Self {
            name: name.into(),
            title: title.into(),
            url,
            logs: 1,
            round_trip,
            schema,
            compression: compression.map(str::to_owned),
            content_type: ContentType::Json,
            opened: Mutex::default(),
        }
    }

    /// The same with so many logs, each of which has an order and a writing connection of its own.
    #[must_use]
    pub fn with_logs(mut self, logs: u16) -> Self {
        if logs > 1 {
            self.name = format!("gesta-{logs}-logs");
            self.title = format!("Gesta, {logs} logs");
            self.logs = logs;
        }
        self
    }

    /// The same with data that only their application understands, as most journals store them. Gesta compresses large
    /// ones itself, by LZ4; not if the table is to compress otherwise.
    #[must_use]
    pub fn opaque(mut self) -> Self {
        self.content_type = ContentType::Binary;
        if self.schema.is_some() && !matches!(self.compression.as_deref(), None | Some("lz4")) {
            self.url = endpoint::with_parameter(&self.url, "compression", "database");
        }
        self
    }

    /// The same with JSON under a name of its own: SQL can read it, so the database compresses it.
    #[must_use]
    pub fn readable(mut self) -> Self {
        self.name = "gesta-json".into();
        self.title = "Gesta, JSON readable with SQL".into();
        self
    }

    /// The open store.
    pub(crate) async fn opened(&self) -> Result<Arc<Opened>> {
        let mut opened = self.opened.lock().await;
        if let Some(opened) = opened.as_ref() {
            return Ok(Arc::clone(opened));
        }
        let new = Arc::new(store::open_url(&self.url, self.round_trip, self.logs).await?);
        Ok(Arc::clone(opened.insert(new)))
    }

    async fn drop_schema(&self) -> Result<()> {
        if let Some(schema) = &self.schema {
            let client = postgres::connect(&self.url).await?;
            client
                .batch_execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE"))
                .await
                .context("dropping the store of an earlier run")?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for GestaTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("GestaTarget")
            .field(&endpoint::redacted(&self.url))
            .finish()
    }
}

#[async_trait]
impl Target for GestaTarget {
    fn name(&self) -> &str {
        &self.name
    }

    fn title(&self) -> &str {
        &self.title
    }

    async fn prepare(&self) -> Result<()> {
        self.drop_schema().await?;
        self.opened().await?;
        if let (Some(schema), Some(compression)) = (&self.schema, &self.compression) {
            let client = postgres::connect(&self.url).await?;
            let sql = postgres::compression_sql(&format!("{schema}.events"), "data", compression);
            client.batch_execute(&sql).await.context("compression")?;
        }
        Ok(())
    }

    async fn facts(&self) -> Result<TargetFacts> {
        let opened = self.opened().await?;
        let facts = &opened.facts;
        Ok(TargetFacts {
            engine: facts.engine.clone(),
            durability: facts.durability.clone(),
            durability_detail: facts.durability_detail.clone(),
            note: match self.logs {
                1 => "every worker has an append under way; they share the store's one writing connection".into(),
                logs => format!("{logs} orders of events instead of one; each log has one writing connection"),
            },
        })
    }

    async fn connect(&self) -> Result<Box<dyn Session>> {
        let store = Arc::clone(&self.opened().await?.store);
        let event_type = EventType::new(EVENT_TYPE)?;
        Ok(Box::new(GestaSession {
            store,
            event_type,
            content_type: self.content_type,
        }))
    }

    async fn read_back(&self, prefix: &str, see: &mut (dyn FnMut(Stored) + Send)) -> Result<()> {
        let store = Arc::clone(&self.opened().await?.store);
        let mut request = ReadAll::forwards().limit(PAGE);
        loop {
            let page = store.read_all(request.clone()).await.context("read-back")?;
            for event in &page.events {
                if event.stream.as_str().starts_with(prefix) {
                    see(Stored {
                        stream: event.stream.to_string(),
                        revision: event.revision.0,
                        mark: Events::mark_in(&event.data),
                        bytes: Some(event.data.len() as u64),
                    });
                }
            }
            if page.end {
                return Ok(());
            }
            request.from = AllFrom::Checkpoint(page.next);
        }
    }

    async fn disk_bytes(&self) -> Result<Option<u64>> {
        match &self.schema {
            Some(schema) => postgres::schema_bytes(&self.url, schema).await.map(Some),
            None => Ok(store::file_bytes(&self.url)),
        }
    }

    fn is_embedded(&self) -> bool {
        !self.url.starts_with("http://")
    }

    async fn close(&self) -> Result<()> {
        if let Some(opened) = self.opened.lock().await.take() {
            opened.store.shutdown().await?;
        }
        Ok(())
    }

    async fn remove(&self) -> Result<()> {
        self.close().await?;
        self.drop_schema().await
    }
}

struct GestaSession {
    store: Arc<dyn EventStore>,
    event_type: EventType,
    content_type: ContentType,
}

#[async_trait]
impl Session for GestaSession {
    async fn append(&mut self, append: &Append<'_>) -> std::result::Result<(), AppendError> {
        let failed = |error: gesta_core::Error| AppendError::Failed(error.to_string());
        let stream = StreamId::new(append.stream).map_err(failed)?;
        let expected = match append.revision.checked_sub(1) {
            None => ExpectedRevision::NoStream,
            Some(last) => ExpectedRevision::Exact(Revision(last)),
        };
        let events = append.events.iter().map(|event| EventData {
            id: Some(EventId(event.id)),
            content_type: self.content_type,
            ..EventData::json(self.event_type.clone(), event.data.clone())
        });
        let request = gesta_core::Append::to(stream, expected, events.collect());
        match self.store.append(request).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_retryable() => Err(AppendError::Retry(
                crate::load::error_name(error.kind()).into(),
            )),
            Err(error) => Err(AppendError::Failed(Failure::from(error).0)),
        }
    }
}
