//! A client that sends the bytes that it is told to, and takes everything that comes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gesta_core::EventStore;
use gesta_grpc::frame::{self, Frames};
use gesta_memory::MemoryStore;
use gesta_server::{Config, Handle, Registry};
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// No answer takes this long.
const ANSWER_MAX: Duration = Duration::from_secs(60);

pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(ANSWER_MAX, what)
        .await
        .expect("an answer")
}

/// A server, and a connection to it.
pub(crate) struct Client {
    pub(crate) server: Handle,
    sender: http2::SendRequest<Channel<Bytes, Infallible>>,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) trailers: HeaderMap,
    pub(crate) messages: Vec<Bytes>,
}

impl Ended {
    pub(crate) fn message(&self) -> String {
        let value = self.trailers.get("grpc-message");
        let text = value.map_or("", |value| value.to_str().expect("ASCII"));
        percent_decode(text)
    }

    /// The messages, read as what they are.
    pub(crate) fn read<M: Message + Default>(&self) -> Vec<M> {
        assert_eq!(self.code, 0, "{}", self.message());
        let messages = self.messages.iter().cloned();
        messages
            .map(|message| M::decode(message).expect("a message"))
            .collect()
    }
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let code = std::str::from_utf8(&after[..2]).expect("hexadecimal");
            bytes.push(u8::from_str_radix(code, 16).expect("hexadecimal"));
            rest = &after[2..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// A call that is going on.
pub(crate) struct Open {
    sender: Option<Sender<Bytes, Infallible>>,
    answering: Option<JoinHandle<hyper::Result<Response<Incoming>>>>,
    answer: Option<Incoming>,
    frames: Frames,
    data: Bytes,
    /// What the status stands in, once it has come.
    trailers: HeaderMap,
}

impl Open {
    /// Sends a message.
    pub(crate) async fn send(&mut self, message: &impl Message) {
        self.send_bytes(frame::framed(message)).await;
    }

    /// Sends bytes.
    pub(crate) async fn send_bytes(&mut self, bytes: Bytes) {
        let sender = self.sender.as_mut().expect("open");
        // The server may have ended the call.
        let _ = sender.send_data(bytes).await;
    }

    /// Says that nothing more is sent.
    pub(crate) fn close(&mut self) {
        self.sender = None;
    }

    /// The next message; `None` once the call has ended.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        if let Some(answering) = self.answering.take() {
            let answer = soon(answering).await.expect("no panic").expect("an answer");
            let (parts, body) = answer.into_parts();
            assert_eq!(parts.status, 200);
            self.trailers = parts.headers;
            self.answer = Some(body);
        }
        loop {
            let message = self.frames.next(&mut self.data).expect("good frames");
            if message.is_some() {
                return message;
            }
            match soon(self.answer.as_mut()?.frame()).await {
                None => return None,
                Some(Err(error)) => panic!("the call broke off: {error}"),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.data = data,
                    Err(frame) => self.trailers = frame.into_trailers().expect("trailers"),
                },
            }
        }
    }

    /// Takes everything to the end of the call.
    pub(crate) async fn end(mut self) -> Ended {
        let mut messages = Vec::new();
        while let Some(message) = self.next().await {
            messages.push(message);
        }
        let status = self.trailers.get("grpc-status").expect("a status");
        Ended {
            code: status.to_str().expect("ASCII").parse().expect("a number"),
            messages,
            trailers: self.trailers,
        }
    }
}

impl Client {
    /// A client of a new server over an empty store.
    pub(crate) async fn start() -> Self {
        Self::with(Config::default(), Arc::new(MemoryStore::new())).await
    }

    pub(crate) async fn with(config: Config, store: Arc<dyn EventStore>) -> Self {
        let config = Config {
            listen: ([127, 0, 0, 1], 0).into(),
            ..config
        };
        let server = gesta_server::start(config, store, Registry::default())
            .await
            .expect("a free port");
        Self::to(server).await
    }

    /// One more connection to a server.
    pub(crate) async fn to(server: Handle) -> Self {
        let sender = connect(server.local_addr()).await;
        Self { server, sender }
    }

    /// Begins a call with these headers more.
    pub(crate) async fn open(&self, path: &str, headers: &[(&str, &str)]) -> Open {
        let (sender, body) = Channel::new(16);
        let authority = self.server.local_addr();
        let mut request = Request::post(format!("http://{authority}{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body).expect("a request");
        let mut connection = self.sender.clone();
        soon(connection.ready()).await.expect("a connection");
        Open {
            sender: Some(sender),
            answering: Some(tokio::spawn(connection.send_request(request))),
            answer: None,
            frames: Frames::new(usize::MAX),
            data: Bytes::new(),
            trailers: HeaderMap::new(),
        }
    }

    /// A call with all that it is sent, to its end.
    pub(crate) async fn call_bytes(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        bytes: Bytes,
    ) -> Ended {
        let mut open = self.open(path, headers).await;
        open.send_bytes(bytes).await;
        open.close();
        open.end().await
    }

    /// A call with these messages, to its end.
    pub(crate) async fn call<M: Message>(&self, path: &str, messages: &[M]) -> Ended {
        let mut bytes = BytesMut::new();
        for message in messages {
            frame::write(&mut bytes, message);
        }
        self.call_bytes(path, &[], bytes.freeze()).await
    }
}

async fn connect(address: SocketAddr) -> http2::SendRequest<Channel<Bytes, Infallible>> {
    let socket = TcpStream::connect(address).await.expect("the server lives");
    socket.set_nodelay(true).expect("TCP_NODELAY");
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
        .await
        .expect("HTTP/2");
    tokio::spawn(connection);
    sender
}
