//! Appends and reads by the gRPC protocol of the EventStoreDB and KurrentDB clients: HTTP/2 with prior knowledge, one
//! call per append, or one call per worker that carries its batches.
//!
//! A client library costs as much as the server; this one only writes and reads messages. As with those libraries, the
//! calls of many workers share a connection.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use gesta_grpc::frame::{self, Frames};
use gesta_grpc::messages::shared::{Empty, StreamIdentifier, Uuid, uuid};
use gesta_grpc::messages::streams::{
    AppendReq, AppendResp, BatchAppendReq, BatchAppendResp, ReadReq, ReadResp, append_req,
    append_resp, batch_append_req, batch_append_resp, read_req, read_resp,
};
use gesta_grpc::request::Bounds;
use http_body_util::channel::{Channel, Sender};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::gesta::{Expected, Form};
use super::{Append, AppendError, Event, Session};
use crate::failure::{Context, Result, fail};

/// Calls that share a connection.
const CALLS_PER_CONNECTION: usize = 32;
/// The statuses of a server that cannot serve now.
const DEADLINE_EXCEEDED: &str = "4";
const RESOURCE_EXHAUSTED: &str = "8";
const UNAVAILABLE: &str = "14";
/// What events have in their metadata: a type, and that the data is JSON.
const METADATA: [(&str, &str); 2] = [("type", "lab-event"), ("content-type", "application/json")];
/// Flow control of what arrives; the libraries of the field have megabytes too.
const WINDOW_BYTES: u32 = 4 << 20;

type Body = BoxBody<Bytes, Infallible>;

/// Connections to a server, shared by calls.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// The newest, and how many use it.
    newest: Mutex<Option<(SendRequest<Body>, usize)>>,
}

impl Connections {
    /// A place on a connection.
    pub(super) async fn take(&self, address: SocketAddr) -> Result<Calls> {
        let mut newest = self.newest.lock().await;
        let sender = match &mut *newest {
            Some((sender, used)) if *used < CALLS_PER_CONNECTION && !sender.is_closed() => {
                *used += 1;
                sender.clone()
            }
            _ => {
                let sender = open(address).await?;
                *newest = Some((sender.clone(), 1));
                sender
            }
        };
        Ok(Calls { sender, address })
    }
}

async fn open(address: SocketAddr) -> Result<SendRequest<Body>> {
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
    Ok(sender)
}

/// Begins calls on a connection.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    sender: SendRequest<Body>,
    address: SocketAddr,
}

impl Calls {
    async fn call(&mut self, method: &str, body: Body) -> Result<Response<Incoming>> {
        let path = format!("/event_store.client.streams.Streams/{method}");
        let request = Request::post(format!("http://{}{path}", self.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(body)?;
        self.sender.ready().await?;
        Ok(self.sender.send_request(request).await?)
    }

    /// A session that makes a call for each append.
    pub(super) fn session(self, form: Form) -> GrpcSession {
        GrpcSession { calls: self, form }
    }

    /// A session whose appends travel in one call.
    pub(super) async fn batch_session(mut self, form: Form) -> Result<BatchSession> {
        let (sender, body) = Channel::new(4);
        let mut calls = self.clone();
        // The answer begins with the first batch, which cannot be sent before the call is made.
        let answering = tokio::spawn(async move { calls.call("BatchAppend", body.boxed()).await });
        self.sender.ready().await?;
        Ok(BatchSession {
            sender,
            answering: Some(answering),
            answer: None,
            form,
        })
    }
}

/// Messages that arrive.
struct Messages {
    body: Incoming,
    frames: Frames,
    data: Bytes,
    /// What the status stands in.
    trailers: HeaderMap,
}

impl Messages {
    fn of(answer: Response<Incoming>) -> Self {
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
    async fn next(&mut self) -> Result<Option<Bytes>> {
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

    /// Why the call ended, for an append that has no answer.
    fn refusal(&self) -> AppendError {
        let text = |name: &str| {
            let value = self.trailers.get(name);
            value.map_or("", |value| value.to_str().unwrap_or_default())
        };
        match text("grpc-status") {
            RESOURCE_EXHAUSTED => AppendError::Retry("overloaded".into()),
            UNAVAILABLE => AppendError::Retry("unavailable".into()),
            DEADLINE_EXCEEDED => AppendError::Retry(super::load::OUTCOME_UNKNOWN.into()),
            status => AppendError::Failed(format!("status {status}: {}", text("grpc-message"))),
        }
    }
}

/// What a message says.
fn read<M: prost::Message + Default>(message: Bytes) -> Result<M> {
    M::decode(message).or_else(|error| fail(error.to_string()))
}

fn identifier(stream: &str) -> Option<StreamIdentifier> {
    let stream_name = Bytes::copy_from_slice(stream.as_bytes());
    Some(StreamIdentifier { stream_name })
}

fn id_of(event: &Event) -> Option<Uuid> {
    let (high, low) = event.id.as_u64_pair();
    let value = uuid::Value::Structured(uuid::Structured {
        most_significant_bits: high.cast_signed(),
        least_significant_bits: low.cast_signed(),
    });
    Some(Uuid { value: Some(value) })
}

fn metadata() -> std::collections::BTreeMap<String, String> {
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    METADATA.into_iter().map(own).collect()
}

fn unknown(failure: impl std::fmt::Display) -> AppendError {
    AppendError::Unknown(failure.to_string())
}

/// A call for each append.
pub(super) struct GrpcSession {
    calls: Calls,
    form: Form,
}

impl GrpcSession {
    fn messages(&self, append: &Append<'_>) -> Bytes {
        use append_req::options::ExpectedStreamRevision as Revision;
        let expected = match (self.form.expected, append.revision.checked_sub(1)) {
            (Expected::Any, _) => Revision::Any(Empty {}),
            (Expected::Exact, None) => Revision::NoStream(Empty {}),
            (Expected::Exact, Some(last)) => Revision::Revision(last),
        };
        let options = append_req::Content::Options(append_req::Options {
            stream_identifier: identifier(append.stream),
            expected_stream_revision: Some(expected),
        });
        let mut out = BytesMut::with_capacity(256);
        let mut write = |content| {
            let content = Some(content);
            frame::write(&mut out, &AppendReq { content });
        };
        write(options);
        for event in append.events {
            let proposed = append_req::ProposedMessage {
                id: id_of(event),
                metadata: metadata(),
                custom_metadata: self.form.metadata.clone(),
                data: event.data.clone(),
            };
            write(append_req::Content::ProposedMessage(proposed));
        }
        out.freeze()
    }
}

#[async_trait]
impl Session for GrpcSession {
    async fn append(&mut self, append: &Append<'_>) -> std::result::Result<(), AppendError> {
        let body = Full::new(self.messages(append)).boxed();
        let answer = self.calls.call("Append", body).await.map_err(unknown)?;
        let mut messages = Messages::of(answer);
        let mut first = None;
        while let Some(message) = messages.next().await.map_err(unknown)? {
            first.get_or_insert(message);
        }
        let Some(first) = first else {
            return Err(messages.refusal());
        };
        let answer: AppendResp = read(first).map_err(unknown)?;
        match answer.result {
            Some(append_resp::Result::Success(_)) => Ok(()),
            other => Err(AppendError::Failed(format!("{other:?}"))),
        }
    }
}

/// One call for all appends of a worker.
pub(super) struct BatchSession {
    sender: Sender<Bytes, Infallible>,
    answering: Option<tokio::task::JoinHandle<Result<Response<Incoming>>>>,
    answer: Option<Messages>,
    form: Form,
}

impl BatchSession {
    fn message(&self, append: &Append<'_>) -> Bytes {
        use batch_append_req::options::ExpectedStreamPosition as Expects;
        let expected = match (self.form.expected, append.revision.checked_sub(1)) {
            (Expected::Any, _) => Expects::Any(()),
            (Expected::Exact, None) => Expects::NoStream(()),
            (Expected::Exact, Some(last)) => Expects::StreamPosition(last),
        };
        let options = batch_append_req::Options {
            stream_identifier: identifier(append.stream),
            expected_stream_position: Some(expected),
            deadline_option: None,
        };
        let proposed = |event: &Event| batch_append_req::ProposedMessage {
            id: id_of(event),
            metadata: metadata(),
            custom_metadata: self.form.metadata.clone(),
            data: event.data.clone(),
        };
        frame::framed(&BatchAppendReq {
            correlation_id: id_of(&append.events[0]),
            options: Some(options),
            proposed_messages: append.events.iter().map(proposed).collect(),
            is_final: true,
        })
    }

    async fn answers(&mut self) -> std::result::Result<&mut Messages, AppendError> {
        if let Some(answering) = self.answering.take() {
            let answer = answering.await.map_err(unknown)?.map_err(unknown)?;
            self.answer = Some(Messages::of(answer));
        }
        let ended = || unknown("the call has ended");
        self.answer.as_mut().ok_or_else(ended)
    }
}

#[async_trait]
impl Session for BatchSession {
    async fn append(&mut self, append: &Append<'_>) -> std::result::Result<(), AppendError> {
        let message = self.message(append);
        self.sender.send_data(message).await.map_err(unknown)?;
        let answers = self.answers().await?;
        let Some(answer) = answers.next().await.map_err(unknown)? else {
            return Err(answers.refusal());
        };
        let answer: BatchAppendResp = read(answer).map_err(unknown)?;
        match answer.result {
            Some(batch_append_resp::Result::Success(_)) => Ok(()),
            other => Err(AppendError::Failed(format!("{other:?}"))),
        }
    }
}

/// Reads `$all` from its beginning in one call; gives how many events there were, and how long it took.
pub(crate) async fn read_all(address: SocketAddr) -> Result<(u64, Duration)> {
    use read_req::options::{
        AllOptions, CountOption, FilterOption, StreamOption, UuidOption, all_options, uuid_option,
    };
    let from = all_options::AllOption::Start(Empty {});
    let ids = uuid_option::Content::Structured(Empty {});
    let options = read_req::Options {
        read_direction: 0,
        resolve_links: false,
        uuid_option: Some(UuidOption { content: Some(ids) }),
        control_option: None,
        stream_option: Some(StreamOption::All(AllOptions {
            all_option: Some(from),
        })),
        count_option: Some(CountOption::Count(u64::MAX)),
        filter_option: Some(FilterOption::NoFilter(Empty {})),
    };
    let request = ReadReq {
        options: Some(options),
    };
    let mut calls = Connections::default().take(address).await?;
    let (begun, mut events) = (Instant::now(), 0);
    let body = Full::new(frame::framed(&request)).boxed();
    let mut messages = Messages::of(calls.call("Read", body).await?);
    while let Some(message) = messages.next().await? {
        let message: ReadResp = read(message)?;
        if let Some(read_resp::Content::Event(event)) = message.content {
            std::hint::black_box(&event);
            events += 1;
        }
    }
    let status = messages.trailers.get("grpc-status");
    if status.is_none_or(|status| status != "0") {
        return fail(format!("the read ended with {:?}", messages.trailers));
    }
    Ok((events, begun.elapsed()))
}
