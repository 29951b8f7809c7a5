//! Bodies of answers over gRPC: messages in their frames, and after them the trailers with the status.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use gesta_grpc::{Refusal, refusal};
use hyper::body::Frame;
use hyper::header::HeaderMap;
use tokio::time::Sleep;

use super::PART_BYTES_MAX;
use crate::shared::gate::{GaveWay, either};
use crate::shared::problem::tell_operators;

type Result<T> = std::result::Result<T, Refusal>;

/// Where the messages of an answer come from. A part may hold several messages, or a piece of one.
pub(crate) enum MessageSource {
    /// All messages are here already.
    Framed(Bytes),
    /// The messages are made on the way. Nothing follows an error.
    Made(BoxStream<'static, Result<Bytes>>),
}

/// The messages of an answer, and the trailers after them.
pub(crate) struct Messages {
    source: Option<MessageSource>,
    /// What is left of a part that is handed out in pieces.
    rest: Bytes,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Ends messages that are made on the way when their place is given up.
    gave_way: Option<GaveWay>,
    ended: bool,
}

impl Messages {
    pub(crate) fn new(source: MessageSource, deadline: Option<Pin<Box<Sleep>>>) -> Self {
        Self {
            source: Some(source),
            rest: Bytes::new(),
            deadline,
            gave_way: None,
            ended: false,
        }
    }

    /// Lets messages that are made on the way end with a refusal when a place that they need is given up.
    pub(crate) fn end_with(&mut self, gave_way: GaveWay) {
        if let Some(MessageSource::Made(_)) = self.source {
            self.gave_way = Some(match self.gave_way.take() {
                Some(other) => either(other, gave_way),
                None => gave_way,
            });
        }
    }

    /// Returns true if the trailers were handed out.
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
                Poll::Ready(Some(Err(refusal))) => {
                    tell_operators(None, &refusal);
                    return self.end(refusal.to_trailers());
                }
                Poll::Ready(None) => return self.end(refusal::success()),
            }
        }
        let piece = self.rest.split_to(self.rest.len().min(PART_BYTES_MAX));
        Poll::Ready(Some(Frame::data(piece)))
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        match &mut self.source {
            None => Poll::Ready(None),
            Some(MessageSource::Framed(_)) => match self.source.take() {
                Some(MessageSource::Framed(bytes)) => Poll::Ready(Some(Ok(bytes))),
                _ => Poll::Ready(None),
            },
            Some(MessageSource::Made(parts)) => {
                if let Some(deadline) = &mut self.deadline
                    && deadline.as_mut().poll(cx).is_ready()
                {
                    return Poll::Ready(Some(Err(Refusal::deadline())));
                }
                if let Some(gave_way) = &mut self.gave_way
                    && let Poll::Ready(problem) = gave_way.as_mut().poll(cx)
                {
                    self.gave_way = None;
                    return Poll::Ready(Some(Err(Refusal::overloaded(&problem.detail))));
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
