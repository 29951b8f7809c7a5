//! Subscriptions as server-sent events (WHATWG HTML, section 9.2).
//!
//! Each message has `id:` (the checkpoint to resume after it, which browsers send back as
//! `Last-Event-ID`), `event:` (`event`, `checkpoint`, `caught_up`, `error`) and one line of `data:`.
//! Invariants: what waits is sent in one write, up to a bound; nothing is read from the subscription
//! while the client does not read, so a slow client costs one buffer.

use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::Stream;
use gesta_core::{Checkpoint, Error, Result, Subscription, SubscriptionMessage};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::body::BrokenOff;
use crate::problem::Problem;
use crate::state::State;

/// Bytes after which messages that wait are sent without looking for more.
const WRITE_BYTES: usize = 64 * 1_024;

/// What a subscriber gets first: the head of the answer leaves at once, and browsers learn how long to wait before they reconnect.
const BEGINNING: &[u8] = b"retry: 1000\n\n";

/// The endless body of a subscription.
pub(crate) struct Events {
    state: Arc<State>,
    subscription: Subscription,
    out: Vec<u8>,
    heartbeat: Pin<Box<Sleep>>,
    last_sent: Instant,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
    ended: bool,
}

impl Events {
    pub(crate) fn new(state: Arc<State>, subscription: Subscription) -> Self {
        let heartbeat = tokio::time::sleep(state.config.heartbeat);
        Self {
            subscription,
            out: BEGINNING.to_vec(),
            heartbeat: Box::pin(heartbeat),
            last_sent: Instant::now(),
            stopping: Box::pin(state.stopping.clone().cancelled_owned()),
            ended: false,
            state,
        }
    }

    /// Takes what the subscription has ready.
    fn gather(&mut self, cx: &mut Context<'_>) {
        let mut events = 0;
        while !self.ended && self.out.len() < WRITE_BYTES {
            match Pin::new(&mut self.subscription).poll_next(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(message))) => {
                    events += u64::from(matches!(message, SubscriptionMessage::Event { .. }));
                    self.message(&message);
                }
                Poll::Ready(Some(Err(error))) => self.end(&error),
                Poll::Ready(None) => self.end(&Error::unavailable("the subscription has ended")),
            }
        }
        if events > 0 {
            self.state.metrics.subscription_events(events);
        }
    }

    fn message(&mut self, message: &SubscriptionMessage) {
        match message {
            SubscriptionMessage::Event { event, checkpoint } => {
                begin(&mut self.out, checkpoint, "event");
                self.state.encoded.append(&mut self.out, event);
            }
            SubscriptionMessage::Checkpoint(checkpoint) => {
                begin(&mut self.out, checkpoint, "checkpoint");
                show_checkpoint(&mut self.out, checkpoint);
            }
            SubscriptionMessage::CaughtUp(checkpoint) => {
                begin(&mut self.out, checkpoint, "caught_up");
                show_checkpoint(&mut self.out, checkpoint);
            }
        }
        self.out.extend_from_slice(b"\n\n");
    }

    fn end(&mut self, error: &Error) {
        self.out.extend_from_slice(b"event: error\ndata: ");
        self.out.extend_from_slice(&Problem::from(error).to_json());
        self.out.extend_from_slice(b"\n\n");
        self.ended = true;
    }

    fn poll_heartbeat(&mut self, cx: &mut Context<'_>) {
        while self.heartbeat.as_mut().poll(cx).is_ready() {
            let due = self.last_sent + self.state.config.heartbeat;
            let now = Instant::now();
            if due <= now {
                self.out.extend_from_slice(b": heartbeat\n\n");
                self.heartbeat
                    .as_mut()
                    .reset(now + self.state.config.heartbeat);
                return;
            }
            self.heartbeat.as_mut().reset(due);
        }
    }
}

fn begin(out: &mut Vec<u8>, checkpoint: &Checkpoint, name: &str) {
    let written = write!(out, "id: {checkpoint}\nevent: {name}\ndata: ");
    debug_assert!(written.is_ok(), "writing to memory: {written:?}");
}

fn show_checkpoint(out: &mut Vec<u8>, checkpoint: &Checkpoint) {
    out.extend_from_slice(b"{\"checkpoint\":");
    crate::json::plain(out, checkpoint);
    out.push(b'}');
}

impl Stream for Events {
    type Item = std::result::Result<Bytes, BrokenOff>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        if self.ended && self.out.is_empty() {
            return Poll::Ready(None);
        }
        if !self.ended && self.stopping.as_mut().poll(cx).is_ready() {
            self.end(&Error::unavailable("the server is stopping"));
        }
        self.gather(cx);
        if self.out.is_empty() {
            self.poll_heartbeat(cx);
        }
        if self.out.is_empty() {
            return Poll::Pending;
        }
        self.last_sent = Instant::now();
        // A silent subscriber keeps no buffer.
        Poll::Ready(Some(Ok(std::mem::take(&mut self.out).into())))
    }
}
