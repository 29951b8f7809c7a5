//! [`HttpStore`]: the calls of [`EventStore`], each as one request.

use async_trait::async_trait;
use bytes::Bytes;
use gesta_core::{
    AllFrom, AllPage, Append, Appended, Checkpoint, DeleteKind, DeleteStream, Deleted, Direction,
    Error, ErrorKind, EventStore, Filter, Incarnation, ListStreams, MetadataSet, ReadAll,
    ReadStream, Resolved, Result, Revision, SetStreamMetadata, SharedEvent, StoreInfo, StreamFrom,
    StreamId, StreamMetadata, StreamMetadataRecord, StreamPage, StreamsPage, Subscribe,
    SubscribeFrom, SubscribeTo, Subscription, resolve_one_by_one,
};
use gesta_wire::answer::{self, AppendedSeveral, AppendedTo, Info, Stored, Streams};
use gesta_wire::{Expected, event, request};
use hyper::header::ETAG;
use hyper::{Method, StatusCode};
use tokio_util::sync::CancellationToken;

use crate::address::Path;
use crate::groups::HttpGroups;
use crate::sse;
use crate::transport::{Call, Config, ErrorDocument, ForeignAnswer, Transport};

/// What a server of Gesta answers when it is asked whether it is alive.
#[derive(serde::Deserialize)]
struct Live<'a> {
    status: &'a str,
}

/// With these a proxy answers who did not say who he is, or asks too often, whatever is behind it.
const KEEP_OUT: [StatusCode; 5] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::PROXY_AUTHENTICATION_REQUIRED,
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::TOO_MANY_REQUESTS,
];

/// What answers at the address of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Look {
    /// A server of Gesta, which is alive.
    Live,
    /// Nobody can tell: it answered with this status, as a proxy does that asks for credentials or limits rates.
    KeptOut(u16),
}

/// A store on a server, reached through its HTTP API. Clones are cheap and share connections.
///
/// An append whose answer did not come fails with `OutcomeUnknown`; it can be retried with the same event ids. A
/// subscription ends with `Unavailable` when its connection breaks; it can be resumed with the last checkpoint.
#[derive(Debug, Clone)]
pub struct HttpStore {
    transport: Transport,
    closed: CancellationToken,
}

impl HttpStore {
    /// Returns the store on the server at `url`, for example `http://127.0.0.1:2113`. Nothing is sent yet.
    ///
    /// # Errors
    /// `InvalidArgument` if the URL is not that of a server.
    pub fn connect(url: &str) -> Result<Self> {
        Self::with_config(url, Config::default())
    }

    /// Returns the store on the server at `url`, as [`connect`](Self::connect) does, with another configuration.
    ///
    /// # Errors
    /// `InvalidArgument` if the URL is not that of a server, or the TLS files or credentials cannot be used.
    pub fn with_config(url: &str, config: Config) -> Result<Self> {
        Ok(Self {
            transport: Transport::new(url, config)?,
            closed: CancellationToken::new(),
        })
    }

    /// Returns the store that these servers serve together, as nodes of one cluster. The first server is asked; if it
    /// cannot be reached, the next one is asked, and so on; after an answer that the store is unavailable the next call
    /// asks the next one. With [`OwnerHints::Follow`](crate::OwnerHints) changes go
    /// to the owner of their log, at the address that `/info` of one of these servers tells; if the owner cannot be
    /// reached, they go to one of these servers. Credentials are sent to every server to which a call goes.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no URL, a URL is not that of a server, or the TLS files or credentials cannot be
    /// used.
    pub fn connect_to_cluster(urls: &[&str], config: Config) -> Result<Self> {
        Ok(Self {
            transport: Transport::to_cluster(urls, config)?,
            closed: CancellationToken::new(),
        })
    }

    /// Returns the consumer groups of the server.
    #[must_use]
    pub fn groups(&self) -> HttpGroups {
        HttpGroups::new(self.transport.clone(), self.closed.clone())
    }

    /// Asks whether the server is alive. It is asked without credentials. Cancel safe.
    ///
    /// # Errors
    /// `Unavailable` if no server answers, or if nobody can tell what answers ([`Look::KeptOut`]); `Unsupported` as
    /// with [`look`](Self::look).
    pub async fn live(&self) -> Result<()> {
        match self.look().await? {
            Look::Live => Ok(()),
            Look::KeptOut(status) => Err(Error::unavailable(format!(
                "what answers there does not let GET /health/live through: it answered {status}"
            ))),
        }
    }

    /// Looks what answers at the address of the server, without credentials. Cancel safe.
    ///
    /// # Errors
    /// `Unavailable` if no server answers; `Unsupported` if TLS refuses the connection, or if what answers is no server
    /// of Gesta.
    pub async fn look(&self) -> Result<Look> {
        self.check_open()?;
        let asked = self.transport.present();
        let (server, path) = (asked.server(), asked.path().to_owned());
        // A path is for proxies; more often it was copied along.
        let meant = match path.is_empty() {
            true => String::new(),
            false => format!("; is {server} meant, without {path}?"),
        };
        let stranger = |rest: String| {
            let text = format!(
                "what answers at {server} is no server of Gesta, or a proxy before it does not let GET \
                 /health/live through{rest}{meant}"
            );
            Error::new(ErrorKind::Unsupported(text))
        };
        let call = Call::get(Path::of("/health/live")).anonymous();
        match self.transport.send(call).await {
            Ok(answer) => match answer::read::<Live>(&answer.body) {
                Ok(Live { status: "live" }) => Ok(Look::Live),
                _ => Err(stranger(String::new())),
            },
            Err(error) => {
                let source = std::error::Error::source(&error);
                let foreign = source.and_then(|source| source.downcast_ref::<ForeignAnswer>());
                let is_refusal = !error.is_retryable()
                    && source.is_some_and(|source| source.is::<ErrorDocument>());
                match foreign {
                    Some(ForeignAnswer(status)) if KEEP_OUT.contains(status) => {
                        Ok(Look::KeptOut(status.as_u16()))
                    }
                    // Others, as 502, come from a proxy whose server is away.
                    Some(ForeignAnswer(status)) if status.is_client_error() => {
                        Err(stranger(format!(": it answered {status}")))
                    }
                    // A server of Gesta knows nothing of that path, or takes it for that of a stream. One that speaks
                    // TLS only says so on every path.
                    None if is_refusal
                        && !path.is_empty()
                        && !error.to_string().contains("TLS") =>
                    {
                        let text = format!("nothing of Gesta is at {server}{path}{meant}");
                        Err(ErrorKind::Unsupported(text).into())
                    }
                    _ => Err(error),
                }
            }
        }
    }

    /// Returns what `GET /info` of the server tells, as JSON: the store, and the server itself. Cancel safe.
    ///
    /// # Errors
    /// `Unavailable` if no server answers.
    pub async fn info_document(&self) -> Result<Bytes> {
        self.get(Path::of("/info")).await
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.is_cancelled() {
            return Err(Error::unavailable("the store is closed"));
        }
        Ok(())
    }

    /// Sends a call whose answer is read part by part.
    pub(crate) async fn open(&self, call: Call) -> Result<hyper::Response<hyper::body::Incoming>> {
        self.check_open()?;
        self.transport.open(call).await
    }

    /// Sends a call and takes its whole answer.
    pub(crate) async fn send(&self, call: Call) -> Result<Bytes> {
        self.check_open()?;
        Ok(self.transport.send(call).await?.body)
    }

    /// Returns the longest silence in an answer that lasts.
    pub(crate) fn silence_max(&self) -> std::time::Duration {
        self.transport.config().silence_max
    }

    pub(crate) async fn get(&self, path: Path) -> Result<Bytes> {
        self.check_open()?;
        Ok(self.transport.send(Call::get(path)).await?.body)
    }

    /// Sends a change of streams of one log; `stream` is one of them.
    async fn write(
        &self,
        method: Method,
        path: Path,
        body: Bytes,
        stream: &StreamId,
    ) -> Result<Bytes> {
        self.check_open()?;
        let call = Call::write(method, path, body).of(stream);
        Ok(self.transport.send(call).await?.body)
    }
}

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Forwards => "forwards",
        Direction::Backwards => "backwards",
    }
}

#[async_trait]
impl EventStore for HttpStore {
    async fn incarnation(&self) -> Result<Incarnation> {
        Ok(self.info().await?.incarnation)
    }

    async fn info(&self) -> Result<StoreInfo> {
        let info: Info = answer::read(&self.get(Path::of("/info")).await?)?;
        info.try_into()
    }

    /// Asks the server, which asks its store.
    async fn ready(&self) -> Result<()> {
        self.get(Path::of("/health/ready")).await.map(drop)
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        request.validate()?;
        match request.streams.as_slice() {
            [part] if request.conditions.is_empty() => {
                let path = Path::of_stream(&part.stream, "");
                let body = request::append_to(part);
                let answer = self.write(Method::POST, path, body, &part.stream).await?;
                Ok(answer::read::<AppendedTo<'_>>(&answer)?.into())
            }
            parts => {
                let (path, body) = (Path::of("/append"), request::append_several(&request));
                let answer = match parts.first() {
                    Some(first) => self.write(Method::POST, path, body, &first.stream).await?,
                    None => return Err(Error::invalid("streams", "must not be empty")),
                };
                Ok(answer::read::<AppendedSeveral<'_>>(&answer)?.into())
            }
        }
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        request.validate()?;
        let from = match request.from {
            StreamFrom::Start => "start".to_owned(),
            StreamFrom::End => "end".to_owned(),
            StreamFrom::Revision(revision) => revision.to_string(),
        };
        let path = Path::of_stream(&request.stream, "")
            .with("from", from)
            .with("direction", direction(request.direction))
            .with("limit", request.limit.to_string());
        event::read_stream_page(&self.get(path).await?)
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        request.validate()?;
        if request.only.is_some() {
            let why = "a server reads all logs, not one of them alone".to_owned();
            return Err(Error::new(ErrorKind::Unsupported(why)));
        }
        let from = match request.from {
            AllFrom::Start => "start".to_owned(),
            AllFrom::End => "end".to_owned(),
            AllFrom::Checkpoint(checkpoint) => checkpoint.to_string(),
        };
        let path = Path::of("/all")
            .with("from", from)
            .with("direction", direction(request.direction))
            .with("limit", request.limit.to_string())
            .with_filter(&request.filter);
        event::read_all_page(&self.get(path).await?)
    }

    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage> {
        request.validate()?;
        let mut path = Path::of("/streams")
            .with("prefix", &request.prefix)
            .with("limit", request.limit.to_string());
        if let Some(after) = &request.after {
            path = path.with("after", after.as_str());
        }
        Ok(answer::read::<Streams<'_>>(&self.get(path).await?)?.into())
    }

    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted> {
        let tombstone = match request.kind {
            DeleteKind::Soft => "false",
            DeleteKind::Tombstone => "true",
        };
        let path = Path::of_stream(&request.stream, "")
            .with("expected", Expected(request.expected).to_string())
            .with("tombstone", tombstone);
        let stored = self
            .write(Method::DELETE, path, Bytes::new(), &request.stream)
            .await?;
        answer::read::<Stored<'_>>(&stored).map(Into::into)
    }

    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        self.check_open()?;
        let call = Call::get(Path::of_stream(&stream, "/metadata"));
        let answer = self.transport.send(call).await?;
        let unreadable = || Error::corrupt("answer of the server: metadata cannot be read");
        let revision = match answer.head.headers.get(ETAG) {
            None => None,
            Some(tag) => {
                let text = tag.to_str().map_err(|_| unreadable())?;
                let number = text.trim_matches('"').parse().map_err(|_| unreadable())?;
                Some(Revision(number))
            }
        };
        Ok(StreamMetadataRecord {
            metadata: StreamMetadata::parse(answer.body)
                .map_err(|error| unreadable().caused_by(error))?,
            revision,
        })
    }

    async fn set_stream_metadata(&self, request: SetStreamMetadata) -> Result<MetadataSet> {
        let path = Path::of_stream(&request.stream, "/metadata")
            .with("expected", Expected(request.expected).to_string());
        let body = request.metadata.json().clone();
        let stored = self.write(Method::PUT, path, body, &request.stream).await?;
        answer::read::<Stored<'_>>(&stored).map(Into::into)
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        self.check_open()?;
        request.validate()?;
        let (path, filter) = match &request.to {
            SubscribeTo::Stream(stream) => (Path::of_stream(stream, "/subscribe"), &Filter::ALL),
            SubscribeTo::All(filter) => (Path::of("/all/subscribe"), filter),
        };
        let after = match &request.from {
            SubscribeFrom::Start => "start".to_owned(),
            SubscribeFrom::End => "end".to_owned(),
            SubscribeFrom::Revision(revision) => revision.to_string(),
            SubscribeFrom::Checkpoint(checkpoint) => Checkpoint::to_string(checkpoint),
        };
        let path = path.with("after", after).with_filter(filter);
        let response = self.transport.open(Call::get(path)).await?;
        Ok(sse::subscription(
            response.into_body(),
            self.transport.config().silence_max,
            self.closed.clone(),
        ))
    }

    async fn resolve(&self, events: Vec<SharedEvent>) -> Result<Vec<Resolved>> {
        resolve_one_by_one(self, events).await
    }

    /// Closes this client: later calls get `Unavailable`, and its subscriptions end. The server goes on.
    async fn shutdown(&self) -> Result<()> {
        self.closed.cancel();
        Ok(())
    }
}
