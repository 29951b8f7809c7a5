//! Calls by gRPC: HTTP/2 with prior knowledge, and the messages of an answer.
//!
//! Not here: what is called.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use gesta_grpc::frame::Frames;
use gesta_grpc::messages::shared::StreamIdentifier;
use gesta_grpc::request::Bounds;
use http_body_util::BodyExt as _;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use gesta_report::failure::{Context, Result, fail};

/// The service that reads and appends.
pub const STREAMS: &str = "event_store.client.streams.Streams";
/// The service of consumer groups.
pub const GROUPS: &str = "event_store.client.persistent_subscriptions.PersistentSubscriptions";
/// The status of a call that has done what it was asked for.
pub const OK: &str = "0";
/// Flow control of what arrives; the libraries of the field have megabytes too.
const WINDOW_BYTES: u32 = 4 << 20;

/// What a call sends.
pub type Body = BoxBody<Bytes, Infallible>;

/// A new connection to a server.
pub async fn open(address: SocketAddr) -> Result<Calls> {
    let socket = TcpStream::connect(address).await.context(address)?;
    socket.set_nodelay(true)?;
    let (sender, driver) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .handshake(TokioIo::new(socket))
        .await?;
    // Ends with the connection; what breaks it shows in the calls under way.
    tokio::spawn(async move {
        let _ = driver.await;
    });
    Ok(Calls { sender, address })
}

/// A new connection to the server at this URL.
pub async fn open_url(url: &str) -> Result<Calls> {
    let address = url.trim_start_matches("http://");
    open(address.parse::<SocketAddr>().context(url)?).await
}

/// Begins calls on a connection.
#[derive(Debug, Clone)]
pub struct Calls {
    sender: SendRequest<Body>,
    address: SocketAddr,
}

impl Calls {
    /// True if the connection is gone.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Waits until the connection takes a call.
    pub async fn ready(&mut self) -> Result<()> {
        Ok(self.sender.ready().await?)
    }

    /// Calls a method of a service.
    pub async fn call(
        &mut self,
        service: &str,
        method: &str,
        body: Body,
    ) -> Result<Response<Incoming>> {
        let request = Request::post(format!("http://{}/{service}/{method}", self.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(body)?;
        self.sender.ready().await?;
        Ok(self.sender.send_request(request).await?)
    }
}

/// Messages that arrive.
pub struct Messages {
    body: Incoming,
    frames: Frames,
    data: Bytes,
    /// What the status stands in.
    trailers: HeaderMap,
}

impl Messages {
    /// Those of this answer.
    pub fn of(answer: Response<Incoming>) -> Self {
        let (head, body) = answer.into_parts();
        Self {
            body,
            frames: Frames::new(Bounds {
                bytes_max: usize::MAX,
                ..Bounds::OTHERS
            }),
            data: Bytes::new(),
            trailers: head.headers,
        }
    }

    /// The next one; `None` once the call has ended.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            match self.frames.next(&mut self.data) {
                Ok(None) => {}
                Ok(message) => return Ok(message),
                Err(refusal) => return fail(format!("{refusal:?}")),
            }
            match self.body.frame().await.transpose()? {
                None => return Ok(None),
                Some(frame) => match frame.into_data() {
                    Ok(data) => self.data = data,
                    Err(frame) => self.trailers = frame.into_trailers().unwrap_or_default(),
                },
            }
        }
    }

    /// The status with which the call has ended; empty if it has not told any.
    pub fn status(&self) -> &str {
        self.text("grpc-status")
    }

    /// A trailer; empty if there is none.
    pub fn text(&self, name: &str) -> &str {
        let value = self.trailers.get(name);
        value.map_or("", |value| value.to_str().unwrap_or_default())
    }
}

/// What a message says.
pub fn read<M: prost::Message + Default>(message: Bytes) -> Result<M> {
    M::decode(message).or_else(|error| fail(error.to_string()))
}

/// A stream as messages name it.
pub fn identifier(stream: &str) -> Option<StreamIdentifier> {
    let stream_name = Bytes::copy_from_slice(stream.as_bytes());
    Some(StreamIdentifier { stream_name })
}
