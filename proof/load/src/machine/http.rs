//! One connection to an HTTP server, with at most one request under way.

use std::net::SocketAddr;

use bytes::Bytes;
use gesta_report::failure::{Context, Failure, Result, fail};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::http::request::Builder;
use hyper::{Method, Request, Response};
use tokio::net::TcpStream;

use crate::machine::store;

/// A connection. Whoever drops it closes it.
pub struct Connection {
    inner: crate::Connection,
    host: String,
    /// What says who calls.
    authorization: Option<String>,
    /// The owner of the log, as the last answer named it.
    owner: Option<String>,
}

impl Connection {
    /// Connects.
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let token = store::token()?.map(|token| format!("Bearer {token}"));
        Self::connect(address, token).await
    }

    /// Connects as the caller whom this value of `Authorization` names.
    pub async fn open_as(address: SocketAddr, authorization: &str) -> Result<Self> {
        Self::connect(address, Some(authorization.to_owned())).await
    }

    async fn connect(address: SocketAddr, authorization: Option<String>) -> Result<Self> {
        let socket = TcpStream::connect(address).await.context(address)?;
        socket.set_nodelay(true)?;
        Ok(Self {
            inner: crate::Connection::over(socket).await?,
            host: address.to_string(),
            authorization,
            owner: None,
        })
    }

    /// True if it can take a request.
    pub async fn is_ready(&mut self) -> bool {
        self.inner.is_ready().await
    }

    /// The address of the node that owns the log of the last append, if another one than the node asked does.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// Asks for something of this media type; the body of the answer as it comes. Another status than 200 is a failure.
    pub async fn stream(&mut self, path: &str, media_type: &str) -> Result<Incoming> {
        let request = self.request(Method::GET, path);
        let request = request.header("accept", media_type).body(Full::default())?;
        let answer = self.send(request).await?;
        match answer.status().as_u16() {
            200 => Ok(answer.into_body()),
            status => fail(format!("{path}: status {status}")),
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        let sent = self.inner.send(request).await;
        sent.map_err(|error| Failure(error.cause))
    }

    fn request(&self, method: Method, path: &str) -> Builder {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("host", &self.host);
        match &self.authorization {
            Some(authorization) => request.header("authorization", authorization),
            None => request,
        }
    }

    /// Sends a request, with a body of JSON if it has one; status and body of the answer.
    pub async fn ask(&mut self, method: Method, path: &str, body: Bytes) -> Result<(u16, Bytes)> {
        self.ask_by(None, method, path, body).await
    }

    /// The same, of a request with an idempotency key.
    pub async fn ask_once(
        &mut self,
        key: &str,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes)> {
        self.ask_by(Some(key), method, path, body).await
    }

    async fn ask_by(
        &mut self,
        key: Option<&str>,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes)> {
        let mut request = self.request(method, path);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        let request = request.body(Full::new(body))?;
        let answer = self.send(request).await?;
        let status = answer.status().as_u16();
        let owner = answer.headers().get("gesta-log-owner");
        let address = owner.and_then(|owner| owner.to_str().ok()?.split(';').next());
        self.owner = address.map(str::to_owned);
        Ok((status, answer.into_body().collect().await?.to_bytes()))
    }
}
