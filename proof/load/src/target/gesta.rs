//! Gesta as a target: in this process on a database, behind HTTP, or in memory.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use gesta_core::{
    AllFrom, Checkpoint, ContentType, ErrorKind, EventData, EventId, EventType, ExpectedRevision,
    Filter, Query, RecordedEvent, Revision, StreamId, Tag, Tags,
};
use gesta_report::endpoint::{self, Endpoint};
use gesta_report::failure::{Context, Failure, Result, fail};
use hyper::Method;
use tokio::sync::Mutex;

use super::grpc::{self, Connections};
use super::load::OUTCOME_UNKNOWN;
use super::{Append, AppendError, Session, Stored, StoredAt, Target, TargetFacts, Whole};
use crate::machine::http::Connection;
use crate::machine::network::Network;
use crate::machine::postgres;
use crate::machine::store::{self, Opened};
use crate::machine::{CurrentStore, ask};

/// How long the store may be unavailable while it is read back.
const PATIENCE: Duration = Duration::from_secs(60);
/// Type of all events.
const EVENT_TYPE: &str = "lab-event";
/// The schema of a PostgreSQL database that the store is made in.
const SCHEMA: &str = "gesta_lab_gesta";

/// What appends expect of their stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// Nothing.
    Any,
    /// The exact revision.
    Exact,
}

/// How a server is spoken to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// By Gesta's client library, over HTTP.
    #[default]
    Library,
    /// By HTTP requests that are written by hand, on a connection of each worker.
    Bare,
    /// By gRPC, a call for each append.
    Grpc,
    /// By gRPC, all appends of a worker in one call of BatchAppend.
    GrpcBatch,
}

impl Protocol {
    /// What a person calls it.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Library => "through the client library",
            Protocol::Bare => "by bare HTTP",
            Protocol::Grpc => "by gRPC",
            Protocol::GrpcBatch => "by batches of gRPC",
        }
    }
}

/// What events have, beside their data.
#[derive(Debug, Clone)]
pub(super) struct Form {
    event_type: EventType,
    content_type: ContentType,
    pub(super) metadata: Bytes,
    pub(super) expected: Expected,
    /// Whether the name of the stream is a tag, and the condition is that nothing with it has come since the last
    /// append.
    by_tag: bool,
}

/// A Gesta store.
pub struct GestaTarget {
    name: String,
    title: String,
    url: String,
    logs: u16,
    network: Network,
    /// True if the PostgreSQL schema is dropped and made anew; else the store is used as it is.
    drops_schema: bool,
    /// The folder of a file that was made for this target.
    folder: Option<tempfile::TempDir>,
    compression: Option<String>,
    form: Form,
    protocol: Protocol,
    /// Connections of gRPC, which workers share.
    connections: Connections,
    /// Where clients reach the node of each address in hints; connections go where the hints say.
    following: Arc<[(String, SocketAddr)]>,
    opened: Mutex<Option<Arc<Opened>>>,
    /// A store that is not this target's to open and close.
    current: Option<Arc<CurrentStore>>,
}

impl GestaTarget {
    /// The store at a URL, by way of a delay. On PostgreSQL it is made anew in a schema of its own, with this
    /// compression of the data if one is named; another store is used as it is.
    ///
    /// # Panics
    /// Never: the name of the type is valid.
    #[must_use]
    pub fn new(url: &str, network: impl Into<Network>, compression: Option<&str>) -> Self {
        let is_postgres = Endpoint::parse(url).is_some_and(|endpoint| endpoint.is_postgres());
        let url = match is_postgres {
            true => endpoint::with_parameter(url, "schema", SCHEMA),
            false => url.to_owned(),
        };
        let (name, title) = match store::is_server(&url) {
            true => ("gesta-http", "Gesta, through its HTTP server"),
            false => ("gesta", "Gesta"),
        };
        Self {
            name: name.into(),
            title: title.into(),
            url,
            logs: 1,
            network: network.into(),
            drops_schema: is_postgres,
            folder: None,
            compression: compression.map(str::to_owned),
            form: Form {
                event_type: EventType::new(EVENT_TYPE).expect("a valid type"),
                content_type: ContentType::Json,
                metadata: Bytes::new(),
                expected: Expected::Exact,
                by_tag: false,
            },
            protocol: Protocol::Library,
            connections: Connections::default(),
            following: Arc::default(),
            opened: Mutex::default(),
            current: None,
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
    /// ones itself, by LZ4.
    #[must_use]
    pub fn opaque(mut self) -> Self {
        self.form.content_type = ContentType::Binary;
        self
    }

    /// The same with JSON under a name of its own: SQL can read it, so the database compresses it.
    #[must_use]
    pub fn readable(mut self) -> Self {
        self.name = "gesta-json".into();
        self.title = "Gesta, JSON readable with SQL".into();
        self
    }

    /// The same by tags: the name of the stream is the tag of its events, and instead of a revision each append claims
    /// that nothing with this tag has come since the last one.
    #[must_use]
    pub fn by_tags(mut self) -> Self {
        self.form.expected = Expected::Any;
        self.form.by_tag = true;
        self
    }

    /// The same with this claim in each append and these metadata at each event.
    pub fn appending(mut self, expected: Expected, metadata: Bytes) -> Self {
        self.form.expected = expected;
        self.form.metadata = metadata;
        self
    }

    /// The same, but a SQLite store is a new file beside the named one, which goes with this target. An index over many
    /// streams becomes slower with every million rows; whoever compares two ways to write needs equal tables.
    pub fn fresh(mut self) -> Result<Self> {
        let Some(path) = self.url.strip_prefix("sqlite:") else {
            return Ok(self);
        };
        let path = Path::new(path.split('?').next().unwrap_or(path));
        let parent = path.parent().filter(|dir| dir.is_dir());
        let folder = tempfile::Builder::new()
            .prefix(SCHEMA)
            .tempdir_in(parent.unwrap_or(Path::new(".")))
            .context("making a folder")?;
        self.url = format!("sqlite:{}", folder.path().join("store.db").display());
        self.folder = Some(folder);
        Ok(self)
    }

    /// The same by another protocol.
    pub fn by(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// The same with connections that go to the owner of the log when an answer names it.
    pub fn following(mut self, addresses: Vec<(String, SocketAddr)>) -> Self {
        self.following = addresses.into();
        self
    }

    /// Another process on this store, at its own distance.
    pub fn again(&self, round_trip: Duration) -> Self {
        let Form {
            expected, metadata, ..
        } = self.form.clone();
        let mut again = Self::new(&self.url, round_trip, None).appending(expected, metadata);
        again.drops_schema = false;
        again.logs = self.logs;
        again
    }

    /// A store that somebody else opens and closes.
    pub fn around(store: Arc<CurrentStore>) -> Self {
        Self {
            current: Some(store),
            ..Self::new("memory:", Duration::ZERO, None)
        }
    }

    async fn store(&self) -> Result<Arc<CurrentStore>> {
        if let Some(current) = &self.current {
            return Ok(Arc::clone(current));
        }
        let store = Arc::clone(&self.opened().await?.store);
        Ok(CurrentStore::new(store, None))
    }

    /// Its URL, not delayed, with the schema.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The schema or the file is made for this target and removed afterwards.
    pub fn is_fresh(&self) -> bool {
        self.drops_schema || self.folder.is_some()
    }

    /// The open store.
    pub async fn opened(&self) -> Result<Arc<Opened>> {
        let mut opened = self.opened.lock().await;
        if let Some(opened) = opened.as_ref() {
            return Ok(Arc::clone(opened));
        }
        let new = Arc::new(store::open_url(&self.url, self.network, self.logs).await?);
        Ok(Arc::clone(opened.insert(new)))
    }

    /// Writes out what the database holds back, where that is allowed, so that no earlier work burdens what comes next.
    pub async fn settle(&self) -> Result<()> {
        if self.drops_schema {
            let client = postgres::connect(&self.url).await?;
            // Only superusers and pg_checkpoint may.
            let _ = client.batch_execute("CHECKPOINT").await;
        }
        Ok(())
    }

    async fn drop_schema(&self) -> Result<()> {
        if self.drops_schema {
            let client = postgres::connect(&self.url).await?;
            let drop = format!("DROP SCHEMA IF EXISTS {SCHEMA} CASCADE");
            client.batch_execute(&drop).await.context(drop)?;
        }
        Ok(())
    }

    /// How an event is shown. The mark is the id; of an event with another type or other metadata nothing is known.
    fn stored(&self, event: &RecordedEvent) -> Stored {
        let is_whole =
            event.event_type == self.form.event_type && event.metadata == self.form.metadata;
        Stored {
            stream: event.stream.to_string(),
            revision: event.revision.0,
            mark: match is_whole {
                true => event.id.0.as_simple().to_string(),
                false => format!("{} with other metadata", event.event_type),
            },
            bytes: Some(event.data.len() as u64),
            whole: Some(Whole {
                position: event.position.0,
                data: event.data.clone(),
            }),
        }
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
        if let Some(compression) = self.compression.as_ref().filter(|_| self.drops_schema) {
            let client = postgres::connect(&self.url).await?;
            let sql = postgres::compression_sql(&format!("{SCHEMA}.events"), "data", compression);
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
        let form = self.form.clone();
        if self.protocol == Protocol::Library {
            return Ok(Box::new(GestaSession {
                store: self.store().await?,
                form,
                place: None,
                ends: HashMap::new(),
            }));
        }
        let Some(endpoint) = Endpoint::parse(&self.url) else {
            return fail(format!("{:?} is no server, http://…", self.url));
        };
        let address = endpoint.address()?;
        if self.protocol == Protocol::Bare {
            return Ok(Box::new(BareSession {
                connection: Connection::open(address).await?,
                following: Arc::clone(&self.following),
                form,
            }));
        }
        let calls = self.connections.take(address).await?;
        Ok(match self.protocol {
            Protocol::GrpcBatch => Box::new(grpc::batch_session(calls, form).await?),
            _ => Box::new(grpc::session(calls, form)),
        })
    }

    async fn read_back(&self, prefix: &str, see: &mut (dyn FnMut(Stored) + Send)) -> Result<()> {
        let own = |event: RecordedEvent| {
            if event.stream.as_str().starts_with(prefix) {
                see(self.stored(&event));
            }
        };
        let read = ask::read_all(&*self.store().await?, AllFrom::Start, PATIENCE, own).await;
        read.context("read-back").map(drop)
    }

    async fn disk_bytes(&self) -> Result<Option<u64>> {
        match self.drops_schema {
            true => postgres::schema_bytes(&self.url, SCHEMA).await.map(Some),
            false => Ok(store::file_bytes(&self.url)),
        }
    }

    fn is_embedded(&self) -> bool {
        !store::is_server(&self.url)
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
    store: Arc<CurrentStore>,
    form: Form,
    place: Option<StoredAt>,
    /// Where the last append of each stream ended, if streams are tags.
    ends: HashMap<String, Checkpoint>,
}

#[async_trait]
impl Session for GestaSession {
    async fn append(&mut self, append: &Append<'_>) -> std::result::Result<(), AppendError> {
        let failed = |error: gesta_core::Error| AppendError::Failed(error.to_string());
        let stream = StreamId::new(append.stream).map_err(failed)?;
        let expected = match (self.form.expected, append.revision.checked_sub(1)) {
            (Expected::Any, _) => ExpectedRevision::Any,
            (Expected::Exact, None) => ExpectedRevision::NoStream,
            (Expected::Exact, Some(last)) => ExpectedRevision::Exact(Revision(last)),
        };
        let tag = self.form.by_tag.then(|| Tag::new(append.stream));
        let tag = tag.transpose().map_err(failed)?;
        let tags = tag.clone().into_iter().collect::<Vec<_>>();
        let tags = Tags::new(tags).map_err(failed)?;
        let events = append.events.iter().map(|event| EventData {
            id: Some(EventId(event.id)),
            content_type: self.form.content_type,
            metadata: self.form.metadata.clone(),
            tags: tags.clone(),
            ..EventData::json(self.form.event_type.clone(), event.data.clone())
        });
        let mut request = gesta_core::Append::to(stream, expected, events.collect());
        if let Some(tag) = tag {
            let query = Query {
                tags: vec![tag],
                ..Query::default()
            };
            let after = self.ends.get(append.stream).cloned();
            request = request.provided_no_match(Filter::query(query), after);
        }
        match self.store.get().append(request).await {
            Ok(appended) => {
                if self.form.by_tag {
                    let end = appended.checkpoint.clone();
                    self.ends.insert(append.stream.to_owned(), end);
                }
                self.place = Some(StoredAt {
                    revision: appended.streams[0].first_revision.0,
                    position: appended.position.0,
                });
                Ok(())
            }
            Err(error) if error.is_retryable() => {
                Err(AppendError::Retry(error_name(error.kind()).into()))
            }
            Err(error) => Err(AppendError::Failed(Failure::from(error).0)),
        }
    }

    fn place(&self) -> Option<StoredAt> {
        self.place
    }
}

/// One name per kind of error that passes.
fn error_name(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Overloaded(_) => "overloaded",
        ErrorKind::Unavailable(_) => "unavailable",
        ErrorKind::OutcomeUnknown(_) => OUTCOME_UNKNOWN,
        _ => "other",
    }
}

/// A worker's own connection to the HTTP server.
struct BareSession {
    connection: Connection,
    following: Arc<[(String, SocketAddr)]>,
    form: Form,
}

impl BareSession {
    /// Goes to the owner of the log if the last answer named one.
    async fn follow(&mut self) -> std::result::Result<(), AppendError> {
        let owner = self.connection.owner();
        let mut known = self.following.iter();
        let Some((_, address)) = known.find(|(node, _)| Some(node.as_str()) == owner) else {
            return Ok(());
        };
        let moved = Connection::open(*address).await;
        // The append was acknowledged before; only the next one has no connection.
        self.connection = moved.map_err(|failure| AppendError::Failed(failure.0))?;
        Ok(())
    }

    fn body(&self, append: &Append<'_>) -> Vec<u8> {
        let mut body = Vec::with_capacity(256);
        let expected = match (self.form.expected, append.revision.checked_sub(1)) {
            (Expected::Any, _) => "\"any\"".to_owned(),
            (Expected::Exact, None) => "\"no_stream\"".to_owned(),
            (Expected::Exact, Some(last)) => last.to_string(),
        };
        body.extend_from_slice(format!(r#"{{"expected":{expected},"events":["#).as_bytes());
        for (n, event) in append.events.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            let (id, kind) = (event.id, &self.form.event_type);
            let head = format!(r#"{comma}{{"id":"{id}","type":"{kind}","data":"#);
            body.extend_from_slice(head.as_bytes());
            body.extend_from_slice(&event.data);
            if !self.form.metadata.is_empty() {
                body.extend_from_slice(br#","metadata":"#);
                body.extend_from_slice(&self.form.metadata);
            }
            body.push(b'}');
        }
        body.extend_from_slice(b"]}");
        body
    }
}

#[async_trait]
impl Session for BareSession {
    async fn append(&mut self, append: &Append<'_>) -> std::result::Result<(), AppendError> {
        if self.form.content_type != ContentType::Json {
            return Err(AppendError::Failed("bare requests carry JSON alone".into()));
        }
        let (path, body) = (format!("/streams/{}", append.stream), self.body(append));
        let asked = self.connection.ask(Method::POST, &path, body.into()).await;
        match asked {
            Ok((200..=299, _)) => self.follow().await,
            Ok((status @ (429 | 503), _)) => Err(AppendError::Retry(status.to_string())),
            Ok((504, _)) => Err(AppendError::Retry(OUTCOME_UNKNOWN.into())),
            Ok((status, body)) => {
                let said = String::from_utf8_lossy(&body);
                Err(AppendError::Failed(format!("{status} {said}")))
            }
            Err(failure) => Err(AppendError::Unknown(failure.0)),
        }
    }
}
