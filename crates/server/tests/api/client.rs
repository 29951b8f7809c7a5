//! Starts a server for a test, and makes the calls of tests.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::EventStore;
use gesta_memory::MemoryStore;
use gesta_server::{Config, Handle, Registry};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

pub(crate) use crate::raw::{Raw, soon};

/// A configuration in which nothing is too slow, also if this machine stands still for a while.
pub(crate) fn config() -> Config {
    Config {
        listen: ([127, 0, 0, 1], 0).into(),
        handshake_max: Duration::from_secs(60),
        head_read_max: Duration::from_secs(60),
        write_stall_max: Duration::from_secs(600),
        slow_reader_window: Duration::from_secs(600),
        shutdown_grace: Duration::from_secs(30),
        ..Config::default()
    }
}

pub(crate) struct Server {
    pub(crate) handle: Handle,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: Response<()>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.head.headers().get(name);
        value.map_or("", |value| value.to_str().expect("text"))
    }

    /// Returns the name of the problem, and its field.
    pub(crate) fn problem(&self) -> (String, Value) {
        let document = self.json();
        let name = document["type"]
            .as_str()
            .and_then(|t| t.strip_prefix("urn:gesta:problem:"));
        (
            name.expect("a problem").to_owned(),
            document["field"].clone(),
        )
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(config(), Arc::new(MemoryStore::new())).await
    }

    pub(crate) async fn with(config: Config, store: Arc<dyn EventStore>) -> Self {
        let handle = gesta_server::start(config, store, Registry::default())
            .await
            .expect("a free port");
        Self::of(handle)
    }

    pub(crate) fn of(handle: Handle) -> Self {
        let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        Self { handle, client }
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{target}", self.handle.local_addr()));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(Full::from(body.to_owned()))
            .expect("a request");
        let (head, body) = soon(self.client.request(request))
            .await
            .expect("an answer")
            .into_parts();
        let body = soon(body.collect())
            .await
            .expect("a whole answer")
            .to_bytes();
        Answer {
            status: head.status.as_u16(),
            head: Response::from_parts(head, ()),
            body: String::from_utf8(body.to_vec()).expect("text"),
        }
    }

    pub(crate) async fn get(&self, target: &str) -> Answer {
        self.send("GET", target, &[], "").await
    }

    pub(crate) async fn json(&self, method: &str, target: &str, body: &str) -> Answer {
        self.send(
            method,
            target,
            &[("content-type", "application/json")],
            body,
        )
        .await
    }

    /// Appends events of type `T` with these data.
    pub(crate) async fn append(&self, stream: &str, data: &[&str]) -> Answer {
        let events: Vec<String> = data
            .iter()
            .map(|d| format!(r#"{{"type":"T","data":{d}}}"#))
            .collect();
        let body = format!(r#"{{"events":[{}]}}"#, events.join(","));
        let answer = self
            .json("POST", &format!("/streams/{stream}"), &body)
            .await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer
    }

    pub(crate) async fn raw(&self, bytes: &str) -> Raw {
        Raw::to(self.handle.local_addr(), bytes).await
    }
}
