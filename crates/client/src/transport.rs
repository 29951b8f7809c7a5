//! Sending a request and taking its answer, with a maximum for every wait.

use std::time::Duration;

use bytes::Bytes;
use gesta_core::{Error, ErrorKind, Result};
use gesta_wire::problem::Document;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::http::response::Parts;
use hyper::{Method, Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::address::{Base, Path};
use crate::tls::{Credentials, Tls};

/// Largest answer: a page of the largest events in base64, with their names and tags.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Connections to the server that are kept for later calls.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// Shorter than servers keep idle connections, so that a request seldom meets a closing one.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Longest waits of a client.
#[derive(Debug, Clone)]
pub struct Config {
    /// For a connection.
    pub connect_max: Duration,
    /// From a request to the end of its answer.
    pub answer_max: Duration,
    /// For a sign of life in a subscription; servers send one every 15 seconds.
    pub silence_max: Duration,
    /// Whom the client believes to be the server, for `https`.
    pub tls: Tls,
    /// Who the client is. Over `http` everybody in between can read it.
    pub credentials: Option<Credentials>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            connect_max: Duration::from_secs(10),
            answer_max: Duration::from_secs(120),
            silence_max: Duration::from_secs(60),
            tls: Tls::default(),
            credentials: None,
        }
    }
}

/// What it means for the caller when no answer comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing can have been written.
    Reads,
    /// It may have been written.
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
}

impl Call {
    pub(crate) fn get(path: Path) -> Self {
        Self {
            method: Method::GET,
            path,
            body: Bytes::new(),
            effect: Effect::Reads,
        }
    }

    pub(crate) fn write(method: Method, path: Path, body: Bytes) -> Self {
        Self {
            method,
            path,
            body,
            effect: Effect::Writes,
        }
    }
}

/// A whole answer that is no error.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: Parts,
    pub(crate) body: Bytes,
}

/// The connections to a server.
#[derive(Debug, Clone)]
pub(crate) struct Transport {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: Base,
    authorization: Option<HeaderValue>,
    config: Config,
}

impl Transport {
    pub(crate) fn new(url: &str, config: Config) -> Result<Self> {
        let mut connector = HttpConnector::new();
        let base = Base::parse(url)?;
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(config.connect_max));
        connector.set_keepalive(Some(config.silence_max / 2));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config.tls.config(base.is_encrypted())?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(connector);
        let credentials = config.credentials.as_ref();
        Ok(Self {
            client,
            base,
            authorization: credentials.map(Credentials::header).transpose()?,
            config,
        })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Sends a call and takes its whole answer.
    pub(crate) async fn send(&self, call: Call) -> Result<Answer> {
        let effect = call.effect;
        let time_max = self.config.answer_max;
        tokio::time::timeout(time_max, async {
            let (head, body) = self.begin(call).await?.into_parts();
            let body = whole(body, effect).await?;
            Ok(Answer { head, body })
        })
        .await
        .unwrap_or_else(|_| Err(effect.error(format!("no answer within {} s", time_max.as_secs()))))
    }

    /// Sends a call whose answer does not end.
    pub(crate) async fn open(&self, call: Call) -> Result<Response<Incoming>> {
        let effect = call.effect;
        let time_max = self.config.answer_max;
        tokio::time::timeout(time_max, self.begin(call))
            .await
            .unwrap_or_else(|_| {
                Err(effect.error(format!("no answer within {} s", time_max.as_secs())))
            })
    }

    /// Sends a call; an error answer is an error.
    async fn begin(&self, call: Call) -> Result<Response<Incoming>> {
        let effect = call.effect;
        let mut request = Request::new(Full::new(call.body));
        *request.uri_mut() = self.base.join(call.path)?;
        if call.method != Method::GET {
            let json = HeaderValue::from_static("application/json");
            request.headers_mut().insert(CONTENT_TYPE, json);
        }
        *request.method_mut() = call.method;
        let any = HeaderValue::from_static("*/*");
        request.headers_mut().insert(ACCEPT, any);
        if let Some(authorization) = &self.authorization {
            let headers = request.headers_mut();
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let response = self.client.request(request).await.map_err(|error| {
            if error.is_connect() {
                Error::unavailable("cannot connect to the server").caused_by(error)
            } else {
                effect
                    .error("the connection broke before the answer came".into())
                    .caused_by(error)
            }
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let body = whole(body, effect).await?;
        Err(told(&body)
            .unwrap_or_else(|| effect.error(format!("the server answered {}", head.status))))
    }
}

/// The error that a problem document tells of; `None` if it is not one of this API.
pub(crate) fn told(json: &[u8]) -> Option<Error> {
    let document = Document::read(json)?;
    let kind = document.clone().into_error()?;
    Some(Error::new(kind).caused_by(Told(document)))
}

/// The document that an error was made of, for who can tell more of it than its kind.
#[derive(Debug)]
pub(crate) struct Told(pub(crate) Document);

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the server answered {}", self.0.kind.name)
    }
}

impl std::error::Error for Told {}

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
