//! A connection that sends the bytes that a test gives it, and takes everything that comes.
//!
//! Tests of other crates include this file. It names nothing of the tests of this crate.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gesta_grpc::frame::{self, Frames};
use gesta_grpc::request::Bounds;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Longest time that an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(60);

pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(ANSWER_MAX, what)
        .await
        .expect("an answer")
}

/// The bytes that a call is sent, as they come. The channel of `http_body_util` asks for frames first and then whether
/// the sender has gone: a frame that was sent between the two, on another thread, was lost.
struct Sent(mpsc::Receiver<Bytes>);

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let sent = self.0.poll_recv(context);
        sent.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// A connection to a server.
pub(crate) struct Connection {
    address: SocketAddr,
    sender: http2::SendRequest<Sent>,
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

    /// Reads the messages of the answer as messages of type `M`.
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
    pub(crate) sender: Option<mpsc::Sender<Bytes>>,
    answering: Option<JoinHandle<hyper::Result<Response<Incoming>>>>,
    answer: Option<Incoming>,
    frames: Frames,
    data: Bytes,
    /// Headers or trailers in which the status stands, once it has come.
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
        let _ = sender.send(bytes).await;
    }

    /// Tells the server that nothing more is sent.
    pub(crate) fn close(&mut self) {
        self.sender = None;
    }

    /// Gives the call up before its answer.
    pub(crate) fn cancel(self) {
        if let Some(answering) = &self.answering {
            answering.abort();
        }
    }

    /// Waits for the next message; returns `None` once the call has ended.
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

    /// Takes everything up to the end of the call.
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

impl Connection {
    pub(crate) async fn to(address: SocketAddr) -> Self {
        let sender = connect(address).await;
        Self { address, sender }
    }

    /// Begins a call with these additional headers.
    pub(crate) async fn open(&self, path: &str, headers: &[(&str, &str)]) -> Open {
        let (sender, body) = mpsc::channel(16);
        let authority = self.address;
        let mut request = Request::post(format!("http://{authority}{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Sent(body)).expect("a request");
        let mut connection = self.sender.clone();
        soon(connection.ready()).await.expect("a connection");
        Open {
            sender: Some(sender),
            answering: Some(tokio::spawn(connection.send_request(request))),
            answer: None,
            frames: Frames::new(Bounds {
                bytes_max: usize::MAX,
                ..Bounds::OTHERS
            }),
            data: Bytes::new(),
            trailers: HeaderMap::new(),
        }
    }

    /// Makes a call that sends these bytes, and waits for its end.
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

    /// Makes a call that sends these messages, and waits for its end.
    pub(crate) async fn call<M: Message>(&self, path: &str, messages: &[M]) -> Ended {
        let mut bytes = BytesMut::new();
        for message in messages {
            frame::write(&mut bytes, message);
        }
        self.call_bytes(path, &[], bytes.freeze()).await
    }
}

async fn connect(address: SocketAddr) -> http2::SendRequest<Sent> {
    let socket = TcpStream::connect(address).await.expect("the server lives");
    socket.set_nodelay(true).expect("TCP_NODELAY");
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
        .await
        .expect("HTTP/2");
    tokio::spawn(connection);
    sender
}
