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
use gesta_grpc::frame;
use gesta_grpc::messages::shared::{Empty, Uuid, uuid};
use gesta_grpc::messages::streams::{
    AppendReq, AppendResp, BatchAppendReq, BatchAppendResp, ReadReq, ReadResp, append_req,
    append_resp, batch_append_req, batch_append_resp, read_req, read_resp,
};
use gesta_report::failure::{Result, fail};
use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt as _, Full};
use hyper::Response;
use hyper::body::Incoming;
use tokio::sync::Mutex;

use super::gesta::{Expected, Form};
use super::{Append, AppendError, Event, Session};
use crate::machine::grpc::{self, Calls, Messages, STREAMS, identifier, read};

/// Calls that share a connection.
const CALLS_PER_CONNECTION: usize = 32;
/// The statuses of a server that cannot serve now.
const DEADLINE_EXCEEDED: &str = "4";
const RESOURCE_EXHAUSTED: &str = "8";
const UNAVAILABLE: &str = "14";
/// What events have in their metadata: a type, and that the data is JSON.
const METADATA: [(&str, &str); 2] = [("type", "lab-event"), ("content-type", "application/json")];
/// Connections to a server, shared by calls.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// The newest, and how many use it.
    newest: Mutex<Option<(Calls, usize)>>,
}

impl Connections {
    /// A place on a connection.
    pub(super) async fn take(&self, address: SocketAddr) -> Result<Calls> {
        let mut newest = self.newest.lock().await;
        match &mut *newest {
            Some((calls, used)) if *used < CALLS_PER_CONNECTION && !calls.is_closed() => {
                *used += 1;
                Ok(calls.clone())
            }
            _ => {
                let calls = grpc::open(address).await?;
                *newest = Some((calls.clone(), 1));
                Ok(calls)
            }
        }
    }
}

/// A session that makes a call for each append.
pub(super) fn session(calls: Calls, form: Form) -> GrpcSession {
    GrpcSession { calls, form }
}

/// A session whose appends travel in one call.
pub(super) async fn batch_session(mut calls: Calls, form: Form) -> Result<BatchSession> {
    let (sender, body) = Channel::new(4);
    calls.ready().await?;
    // The answer begins with the first batch, which cannot be sent before the call is made.
    let answering =
        tokio::spawn(async move { calls.call(STREAMS, "BatchAppend", body.boxed()).await });
    Ok(BatchSession {
        sender,
        answering: Some(answering),
        answer: None,
        form,
    })
}

/// Why a call ended, for an append that has no answer.
fn why(ended: &Messages) -> AppendError {
    match ended.status() {
        RESOURCE_EXHAUSTED => AppendError::Retry("overloaded".into()),
        UNAVAILABLE => AppendError::Retry("unavailable".into()),
        DEADLINE_EXCEEDED => AppendError::Retry(super::load::OUTCOME_UNKNOWN.into()),
        status => AppendError::Failed(format!("status {status}: {}", ended.text("grpc-message"))),
    }
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
        let answer = self
            .calls
            .call(STREAMS, "Append", body)
            .await
            .map_err(unknown)?;
        let mut messages = Messages::of(answer);
        let mut first = None;
        while let Some(message) = messages.next().await.map_err(unknown)? {
            first.get_or_insert(message);
        }
        let Some(first) = first else {
            return Err(why(&messages));
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
            return Err(why(answers));
        };
        let answer: BatchAppendResp = read(answer).map_err(unknown)?;
        match answer.result {
            Some(batch_append_resp::Result::Success(_)) => Ok(()),
            other => Err(AppendError::Failed(format!("{other:?}"))),
        }
    }
}

/// Reads `$all` from its beginning in one call; gives how many events there were, and how long it took.
pub async fn read_all(address: SocketAddr) -> Result<(u64, Duration)> {
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
    let mut messages = Messages::of(calls.call(STREAMS, "Read", body).await?);
    while let Some(message) = messages.next().await? {
        let message: ReadResp = read(message)?;
        if let Some(read_resp::Content::Event(event)) = message.content {
            std::hint::black_box(&event);
            events += 1;
        }
    }
    if messages.status() != grpc::OK {
        let why = messages.text("grpc-message");
        return fail(format!("the read ended with {}: {why}", messages.status()));
    }
    Ok((events, begun.elapsed()))
}
