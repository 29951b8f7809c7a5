//! Answers of calls: their heads, and where their messages come from. Their bodies are `body::Messages`.

use bytes::Bytes;
use futures::stream::{Stream, StreamExt};
use gesta_grpc::{Refusal, frame};
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use prost::Message;
use tokio::time::Instant;

use super::Result;
use crate::call::Answer;
use crate::shared::body::{AnswerBody, MessageSource, Messages};
use crate::shared::gate::Ticket;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc+proto");
/// What tells clients which compression of messages the server takes: none.
const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// The answer of a call.
pub(crate) enum Reply {
    /// Messages that come to an end by themselves. The call counts as a request until then.
    Finite(MessageSource),
    /// Messages without an end. The call holds this place among the subscriptions, or one that the messages hold.
    Endless(MessageSource, Option<Ticket>),
}

impl Reply {
    /// Makes an answer of one message.
    pub(crate) fn message(message: &impl Message) -> Self {
        Reply::Finite(MessageSource::Framed(frame::framed(message)))
    }
}

/// Makes an answer whose head is sent at once.
pub(crate) fn answer(source: MessageSource, deadline: Option<Instant>) -> Answer {
    // What is whole already is in time.
    let deadline = match source {
        MessageSource::Framed(_) => None,
        MessageSource::Made(_) => deadline.map(|at| Box::pin(tokio::time::sleep_until(at))),
    };
    let mut answer = Response::new(AnswerBody::messages(Messages::new(source, deadline)));
    begin(&mut answer);
    answer
}

fn begin(answer: &mut Answer) {
    let head = answer.headers_mut();
    head.insert(CONTENT_TYPE, GRPC);
    head.insert(ACCEPT_ENCODING, IDENTITY);
}

/// Makes an answer that is a refusal alone: its head holds the trailers.
pub(crate) fn refuse(refusal: &Refusal) -> Answer {
    let mut answer = Response::new(AnswerBody::whole(Bytes::new()));
    *answer.headers_mut() = refusal.to_trailers();
    begin(&mut answer);
    answer
}

/// Waits for `work`, and refuses the call if the deadline comes first.
pub(crate) async fn in_time<T>(
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    match deadline {
        None => work.await,
        Some(deadline) => tokio::time::timeout_at(deadline, work)
            .await
            .unwrap_or_else(|_| Err(Refusal::deadline())),
    }
}

/// Makes the source of messages that are made on the way.
pub(crate) fn made(parts: impl Stream<Item = Result<Bytes>> + Send + 'static) -> MessageSource {
    MessageSource::Made(parts.boxed())
}
