//! Answers: messages in their frames, and the trailers with the status after them.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::{BoxStream, Stream, StreamExt};
use gesta_grpc::{Refusal, frame, refusal};
use hyper::Response;
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use prost::Message;
use tokio::time::{Instant, Sleep};

use super::Result;
use crate::api::Answer;
use crate::body::{AnswerBody, PART_BYTES_MAX};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc+proto");

/// What a call answers.
pub(crate) enum Reply {
    /// Messages that come to an end by themselves; the call counts as a request until then.
    Finite(Source),
    /// Messages without an end; the call holds a place among the subscriptions.
    Endless(Source),
}

impl Reply {
    /// One message.
    pub(crate) fn message(message: &impl Message) -> Self {
        Reply::Finite(Source::Framed(frame::framed(message)))
    }
}

/// Where the messages of an answer come from; parts may hold several messages, or a piece of one.
pub(crate) enum Source {
    /// All that there is.
    Framed(Bytes),
    /// What is made on the way. Nothing follows an error.
    Made(BoxStream<'static, Result<Bytes>>),
}

/// The messages of an answer, and the trailers after them.
pub(crate) struct Messages {
    source: Option<Source>,
    /// A part that is handed out in pieces.
    rest: Bytes,
    deadline: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

/// An answer whose head leaves at once.
pub(crate) fn answer(source: Source, deadline: Option<Instant>) -> Answer {
    // What is whole already is in time.
    let deadline = match source {
        Source::Framed(_) => None,
        Source::Made(_) => deadline.map(|at| Box::pin(tokio::time::sleep_until(at))),
    };
    let mut answer = Response::new(AnswerBody::messages(Messages {
        source: Some(source),
        rest: Bytes::new(),
        deadline,
        ended: false,
    }));
    answer.headers_mut().insert(CONTENT_TYPE, GRPC);
    answer
}

/// An answer that is a refusal alone: its trailers are the head.
pub(crate) fn refuse(refusal: &Refusal) -> Answer {
    let mut answer = Response::new(AnswerBody::whole(Bytes::new()));
    *answer.headers_mut() = refusal.to_trailers();
    answer.headers_mut().insert(CONTENT_TYPE, GRPC);
    answer
}

/// What `work` comes to, unless the deadline comes first.
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

impl Messages {
    /// Whether the trailers were handed out.
    pub(crate) fn is_end(&self) -> bool {
        self.ended
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.rest.is_empty() {
            match self.poll_part(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(part))) => self.rest = part,
                Poll::Ready(Some(Err(refusal))) => return self.end(refusal.to_trailers()),
                Poll::Ready(None) => return self.end(refusal::success()),
            }
        }
        let piece = self.rest.split_to(self.rest.len().min(PART_BYTES_MAX));
        Poll::Ready(Some(Frame::data(piece)))
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        match &mut self.source {
            None => Poll::Ready(None),
            Some(Source::Framed(_)) => match self.source.take() {
                Some(Source::Framed(bytes)) => Poll::Ready(Some(Ok(bytes))),
                _ => Poll::Ready(None),
            },
            Some(Source::Made(parts)) => {
                if let Some(deadline) = &mut self.deadline
                    && deadline.as_mut().poll(cx).is_ready()
                {
                    return Poll::Ready(Some(Err(Refusal::deadline())));
                }
                parts.poll_next_unpin(cx)
            }
        }
    }

    fn end(&mut self, trailers: HeaderMap) -> Poll<Option<Frame<Bytes>>> {
        self.ended = true;
        // What the messages held is free before the client reads that they ended.
        self.source = None;
        Poll::Ready(Some(Frame::trailers(trailers)))
    }
}

/// An answer that is made on the way.
pub(crate) fn made(parts: impl Stream<Item = Result<Bytes>> + Send + 'static) -> Source {
    Source::Made(parts.boxed())
}
