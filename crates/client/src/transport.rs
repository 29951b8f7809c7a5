//! Sends requests to one of several servers and takes their answers, with a maximum for every wait.
//!
//! Invariant: a change is sent a second time only if nothing of it has reached the first server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_core::{Error, ErrorKind, LogId, Result, StreamId};
use gesta_wire::answer;
use gesta_wire::problem::Document;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::http::response::Parts;
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::Instant;

use crate::address::{Base, Path};
use crate::owners::{Hint, Info, Owners};
use crate::tls::{self, Credentials, Tls};

/// The largest answer, in bytes: a page of the largest events in base64, with their names and tags.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The most connections to each server that are kept for later calls.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// How long idle connections are kept. Servers keep them for longer, so that a request seldom meets a closing one.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// The longest wait for a connection to the owner of a log, whose address may not be reachable from here.
const CONNECT_OWNER_MAX: Duration = Duration::from_secs(1);

/// Whether a client of a cluster sends changes to the owners of their logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OwnerHints {
    /// The client sends changes to the owners once it has been told who they are. A change is then not forwarded from
    /// one node to another.
    #[default]
    Follow,
    /// The client asks only the servers that it was given. This is for clients that reach nodes by other addresses than
    /// the nodes tell.
    Ignore,
}

/// Whether a client shows who it is over `http`, where everybody in between can read a token or a password and use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlainHttp {
    /// The client sends credentials over `http` to servers on this machine alone: to `localhost` and to loopback
    /// addresses. To a server elsewhere it sends them over `https`.
    #[default]
    Loopback,
    /// The client sends credentials over `http` to every server that it asks.
    Anywhere,
}

/// How long a client waits at most, whom it believes, and which servers it asks.
#[derive(Debug, Clone)]
pub struct Config {
    /// The longest wait for a connection.
    pub connect_max: Duration,
    /// The longest time from a request to the end of its answer; of a subscription, to its beginning.
    pub answer_max: Duration,
    /// The longest silence in a subscription. Servers send a heartbeat every 15 seconds.
    pub silence_max: Duration,
    /// Which authorities the client believes, for `https`, and the certificate that it shows.
    pub tls: Tls,
    /// Who the client is.
    pub credentials: Option<Credentials>,
    /// Whether credentials are sent over `http`.
    pub plain_http: PlainHttp,
    /// Whether changes go straight to the owners of their logs. A client of one URL
    /// ([`HttpStore::connect`](crate::HttpStore::connect)) never does that.
    pub owner_hints: OwnerHints,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            connect_max: Duration::from_secs(10),
            answer_max: Duration::from_secs(120),
            silence_max: Duration::from_secs(60),
            tls: Tls::default(),
            credentials: None,
            plain_http: PlainHttp::default(),
            owner_hints: OwnerHints::default(),
        }
    }
}

impl Config {
    /// Sets the longest wait for a connection.
    #[must_use]
    pub fn with_connect_max(mut self, time: Duration) -> Self {
        self.connect_max = time;
        self
    }

    /// Sets the longest time from a request to the end of its answer; of a subscription, to its beginning.
    #[must_use]
    pub fn with_answer_max(mut self, time: Duration) -> Self {
        self.answer_max = time;
        self
    }

    /// Sets the longest silence in a subscription.
    #[must_use]
    pub fn with_silence_max(mut self, time: Duration) -> Self {
        self.silence_max = time;
        self
    }

    /// Sets which authorities the client believes, and the certificate that it shows.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// Sets who the client is.
    #[must_use]
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Sets whether changes go straight to the owners of their logs.
    #[must_use]
    pub fn with_owner_hints(mut self, hints: OwnerHints) -> Self {
        self.owner_hints = hints;
        self
    }
}

/// What a call may have done when no answer comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The call only reads, so nothing was written.
    Reads,
    /// The call may have written something.
    Writes,
}

impl Effect {
    fn error(self, detail: String) -> Error {
        match self {
            Effect::Reads => Error::unavailable(detail),
            Effect::Writes => ErrorKind::OutcomeUnknown(detail).into(),
        }
    }
}

/// A call before it is sent.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: Path,
    pub(crate) body: Bytes,
    pub(crate) effect: Effect,
    /// The stream that is changed. The owner of its log does this without forwarding.
    pub(crate) stream: Option<StreamId>,
    /// Whether it is sent without the credentials of the client.
    pub(crate) is_anonymous: bool,
}

impl Call {
    pub(crate) fn get(path: Path) -> Self {
        Self {
            method: Method::GET,
            path,
            body: Bytes::new(),
            effect: Effect::Reads,
            stream: None,
            is_anonymous: false,
        }
    }

    /// Lets the call go without credentials, to what may be no server of Gesta.
    pub(crate) fn anonymous(self) -> Self {
        Self {
            is_anonymous: true,
            ..self
        }
    }

    pub(crate) fn write(method: Method, path: Path, body: Bytes) -> Self {
        Self {
            method,
            path,
            body,
            effect: Effect::Writes,
            stream: None,
            is_anonymous: false,
        }
    }

    /// Notes that the call changes this stream.
    pub(crate) fn of(self, stream: &StreamId) -> Self {
        let stream = Some(stream.clone());
        Self { stream, ..self }
    }
}

/// A whole answer that is no error.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: Parts,
    pub(crate) body: Bytes,
}

/// How long a connection may be silent before the system asks whether the server is there, and how often it asks.
const TCP_SILENCE_MAX: Duration = Duration::from_secs(5);
/// How long what was sent may go without acknowledgement.
#[cfg(target_os = "linux")]
const TCP_ANSWER_MAX: Duration = Duration::from_secs(20);

type Connections = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The connections to the servers.
#[derive(Debug, Clone)]
pub(crate) struct Transport {
    client: Connections,
    /// Connections to owners of logs, with a shorter wait.
    to_owners: Connections,
    servers: Arc<Servers>,
    authorization: Option<HeaderValue>,
    config: Config,
}

/// The servers that a client was given, and the owners of logs that they have told.
#[derive(Debug)]
struct Servers {
    given: Vec<Base>,
    /// Counts how often a server could not be reached, or its store was away. It says which of the given servers is
    /// asked.
    turn: AtomicUsize,
    /// The owners of logs; `None` if hints are not followed.
    owners: Option<Owners>,
}

impl Servers {
    /// Returns the server that is asked now, with its turn.
    fn present(&self) -> (usize, &Base) {
        let turn = self.turn.load(Ordering::Relaxed);
        (turn, &self.given[turn % self.given.len()])
    }

    /// Notes that a server could not be reached or has not answered: others are asked from now on.
    fn lost(&self, asked: &LastServer) {
        match (asked, &self.owners) {
            (LastServer::Given(turn), _) => {
                let order = Ordering::Relaxed;
                let next = turn.wrapping_add(1);
                // Another call may have noted this already.
                let _ = self.turn.compare_exchange(*turn, next, order, order);
            }
            (LastServer::Owner(api), Some(owners)) => owners.lost(api, Instant::now()),
            _ => {}
        }
    }
}

/// Why there is no answer.
enum Trouble {
    /// There was no connection, so nothing has reached the server.
    NotSent(Error),
    /// Anything else went wrong.
    Failed(Error),
}

/// Which server was asked last.
#[derive(Default)]
enum LastServer {
    #[default]
    Nobody,
    /// A server that the client was given, in this turn.
    Given(usize),
    /// The owner of a log.
    Owner(Authority),
}

fn connections(config: &Config, is_encrypted: bool, connect_max: Duration) -> Result<Connections> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(connect_max));
    // A server that has vanished without closing is found out within some twenty seconds, also while it owes an answer.
    connector.set_keepalive(Some(TCP_SILENCE_MAX.min(config.silence_max / 2)));
    connector.set_keepalive_interval(Some(TCP_SILENCE_MAX));
    #[cfg(target_os = "linux")]
    connector.set_tcp_user_timeout(Some(TCP_ANSWER_MAX));
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config.tls.config(is_encrypted)?)
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector);
    let client = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_MAX)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .build(connector);
    Ok(client)
}

/// Tells whether everybody between this machine and a server could read the credentials, and the configuration does not
/// allow it.
fn shows_secrets(config: &Config, base: &Base) -> bool {
    config.credentials.is_some()
        && config.plain_http == PlainHttp::Loopback
        && !base.is_encrypted()
        && !base.is_loopback()
}

/// Returns the error of a connection that was not made. One that TLS has refused will be refused again, so it is not
/// `Unavailable`: a client that waited for it would wait for ever.
fn not_connected(base: &Base, error: hyper_util::client::legacy::Error) -> Error {
    let server = base.server();
    let refused = match tls::refusal(&error) {
        None => {
            return Error::unavailable(format!("no server answers at {server}")).caused_by(error);
        }
        Some(refused) => refused,
    };
    ErrorKind::Unsupported(format!("{server}: {refused}")).into()
}

impl Transport {
    /// Makes the connections to one server; no other is asked.
    pub(crate) fn new(url: &str, config: Config) -> Result<Self> {
        Self::start(vec![Base::parse(url)?], None, config)
    }

    /// Makes the connections to the servers of one cluster.
    pub(crate) fn to_cluster(urls: &[&str], config: Config) -> Result<Self> {
        let given: Result<Vec<Base>> = urls.iter().map(|url| Base::parse(url)).collect();
        let given = given?;
        if given.is_empty() {
            return Err(Error::invalid("urls", "must name at least one server"));
        }
        let owners = (config.owner_hints == OwnerHints::Follow).then(Owners::default);
        Self::start(given, owners, config)
    }

    fn start(given: Vec<Base>, owners: Option<Owners>, config: Config) -> Result<Self> {
        if let Some(base) = given.iter().find(|base| shows_secrets(&config, base)) {
            let rule = format!(
                "must begin with https://, for a token or a password would travel to {} as plain text; where nobody can \
                 listen on the way, `--plain-http` (`Config::plain_http`) allows it",
                base.host()
            );
            return Err(Error::invalid("url", rule));
        }
        let is_encrypted = given.iter().any(Base::is_encrypted);
        let connect_max = config.connect_max;
        let client = connections(&config, is_encrypted, connect_max)?;
        let to_owners = match owners {
            Some(_) => connections(&config, is_encrypted, connect_max.min(CONNECT_OWNER_MAX))?,
            None => client.clone(),
        };
        let credentials = config.credentials.as_ref();
        Ok(Self {
            client,
            to_owners,
            servers: Arc::new(Servers {
                given,
                turn: AtomicUsize::new(0),
                owners,
            }),
            authorization: credentials.map(Credentials::header).transpose()?,
            config,
        })
    }

    /// Returns the connections to each of the servers alone that this client was given; none if it is one.
    pub(crate) fn each_server(&self) -> Vec<Self> {
        let given = self.servers.given.iter();
        let alone = |base: &Base| Self {
            servers: Arc::new(Servers {
                given: vec![base.clone()],
                turn: AtomicUsize::new(0),
                owners: None,
            }),
            ..self.clone()
        };
        match given.len() {
            1 => Vec::new(),
            _ => given.map(alone).collect(),
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Sends a call and takes its whole answer.
    pub(crate) async fn send(&self, call: Call) -> Result<Answer> {
        let effect = call.effect;
        let mut asked = LastServer::default();
        let answer = async {
            let (head, body) = self.begin(call, &mut asked).await?.into_parts();
            let body = whole(body, effect).await?;
            Ok(Answer { head, body })
        };
        let answer = tokio::time::timeout(self.config.answer_max, answer).await;
        answer.unwrap_or_else(|_| Err(self.late(&asked, effect)))
    }

    /// Sends a call whose answer does not end.
    pub(crate) async fn open(&self, call: Call) -> Result<Response<Incoming>> {
        let effect = call.effect;
        let mut asked = LastServer::default();
        let answer = self.begin(call, &mut asked);
        let answer = tokio::time::timeout(self.config.answer_max, answer).await;
        answer.unwrap_or_else(|_| Err(self.late(&asked, effect)))
    }

    /// Returns the error of a call that is not answered in time.
    fn late(&self, asked: &LastServer, effect: Effect) -> Error {
        self.servers.lost(asked);
        let seconds = self.config.answer_max.as_secs();
        effect.error(format!("no answer within {seconds} s"))
    }

    /// Sends a call. An answer that is an error becomes an error.
    async fn begin(&self, call: Call, asked: &mut LastServer) -> Result<Response<Incoming>> {
        if let Some(answer) = self.ask_owner(&call, asked).await {
            return answer;
        }
        let mut tries = self.servers.given.len();
        loop {
            tries -= 1;
            let (turn, base) = self.servers.present();
            *asked = LastServer::Given(turn);
            match self.ask(&self.client, base, &call, None).await {
                Ok(response) => {
                    let is_away = response.status() == StatusCode::SERVICE_UNAVAILABLE;
                    let answer = answered(response, call.effect).await;
                    let is_unavailable = |error: &Error| {
                        is_away && matches!(error.kind(), ErrorKind::Unavailable(_))
                    };
                    // The store of this server is away, or has moved to another database: the next call asks another.
                    if answer.as_ref().is_err_and(is_unavailable) {
                        self.servers.lost(asked);
                    }
                    return answer;
                }
                Err(trouble) => {
                    self.servers.lost(asked);
                    match trouble {
                        Trouble::NotSent(_) if tries > 0 => {}
                        Trouble::NotSent(error) | Trouble::Failed(error) => return Err(error),
                    }
                }
            }
        }
    }

    /// Sends a change to the owner of its log; `None` if the owner is not known or cannot be reached.
    async fn ask_owner(
        &self,
        call: &Call,
        asked: &mut LastServer,
    ) -> Option<Result<Response<Incoming>>> {
        let owners = self.servers.owners.as_ref()?;
        let (log, api) = owners.of(call.stream.as_ref()?, Instant::now())?;
        let base = self.servers.present().1.of_server(api.clone());
        // The address comes from a server, which may be reached otherwise than by the address that it tells.
        if shows_secrets(&self.config, &base) {
            return None;
        }
        *asked = LastServer::Owner(api);
        match self.ask(&self.to_owners, &base, call, Some(log)).await {
            Ok(response) => {
                if response.status() == StatusCode::SERVICE_UNAVAILABLE {
                    owners.forget(log);
                }
                Some(answered(response, call.effect).await)
            }
            Err(trouble) => {
                self.servers.lost(asked);
                match trouble {
                    Trouble::NotSent(_) => None,
                    Trouble::Failed(error) => Some(Err(error)),
                }
            }
        }
    }

    /// Sends a call to a server. `direct` is the log of which the server is believed to be the owner.
    async fn ask(
        &self,
        client: &Connections,
        base: &Base,
        call: &Call,
        direct: Option<LogId>,
    ) -> std::result::Result<Response<Incoming>, Trouble> {
        let request = self.request(base, call).map_err(Trouble::Failed)?;
        let response = client.request(request).await.map_err(|error| {
            if error.is_connect() {
                Trouble::NotSent(not_connected(base, error))
            } else {
                let text = "the connection broke before the answer came";
                Trouble::Failed(call.effect.error(text.into()).caused_by(error))
            }
        })?;
        if let Some(owners) = &self.servers.owners {
            let hint = Hint::of(response.headers());
            if owners.heard(hint, direct, Instant::now()) {
                tokio::spawn(self.clone().learn());
            }
        }
        Ok(response)
    }

    fn request(&self, base: &Base, call: &Call) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::new(Full::new(call.body.clone()));
        *request.uri_mut() = base.join(&call.path)?;
        *request.method_mut() = call.method.clone();
        let headers = request.headers_mut();
        if call.method != Method::GET {
            let json = HeaderValue::from_static("application/json");
            headers.insert(CONTENT_TYPE, json);
        }
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        if let Some(authorization) = self.authorization.as_ref().filter(|_| !call.is_anonymous) {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        Ok(request)
    }

    /// Returns the server that is asked now.
    pub(crate) fn present(&self) -> &Base {
        self.servers.present().1
    }

    /// Asks one of the servers that the client was given where all servers are, and who owns which log.
    fn learn(self) -> BoxFuture<'static, ()> {
        let learn = async move {
            let answer = self.send(Call::get(Path::of("/info"))).await;
            let info = answer.and_then(|answer| answer::read::<Info>(&answer.body));
            // If there is no answer, the next hint asks again.
            if let (Some(owners), Ok(info)) = (&self.servers.owners, info) {
                owners.learn(info);
            }
        };
        learn.boxed()
    }
}

async fn answered(response: Response<Incoming>, effect: Effect) -> Result<Response<Incoming>> {
    if response.status().is_success() {
        return Ok(response);
    }
    let (head, body) = response.into_parts();
    let body = whole(body, effect).await?;
    Err(told(&body).unwrap_or_else(|| {
        let error = effect.error(format!("the server answered {}", head.status));
        error.caused_by(ForeignAnswer(head.status))
    }))
}

/// A refusal that is no document of this API: what answers may be a proxy, or no server of Gesta.
#[derive(Debug)]
pub(crate) struct ForeignAnswer(pub(crate) StatusCode);

impl std::fmt::Display for ForeignAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("without a problem document")
    }
}

impl std::error::Error for ForeignAnswer {}

/// Returns the error that a problem document stands for; `None` if the text is no problem document of this API.
pub(crate) fn told(json: &[u8]) -> Option<Error> {
    let document = Document::read(json)?;
    let kind = document.clone().into_error()?;
    Some(Error::new(kind).caused_by(ErrorDocument(document)))
}

/// The document of which an error was made, for callers that can tell more from it than from the kind of the error.
#[derive(Debug)]
pub(crate) struct ErrorDocument(pub(crate) Document);

impl std::fmt::Display for ErrorDocument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the server answered {}", self.0.kind.name)
    }
}

impl std::error::Error for ErrorDocument {}

async fn whole(body: Incoming, effect: Effect) -> Result<Bytes> {
    let collected = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    collected
        .map(http_body_util::Collected::to_bytes)
        .map_err(|error| {
            if error.is::<LengthLimitError>() {
                return Error::corrupt(format!(
                    "the answer is larger than {ANSWER_BYTES_MAX} bytes"
                ));
            }
            effect
                .error("the connection broke in the middle of the answer".into())
                .caused_by(error)
        })
}
