//! Subscriptions and consumers of groups as server-sent events (WHATWG HTML, section 9.2).
//!
//! Each message has `id:` (the checkpoint after which to resume, which browsers send back as `Last-Event-ID`), `event:`
//! (`event`, `checkpoint`, `caught_up`, `fell_behind`, `error`) and one line of `data:`. A consumer of a group gets
//! `joined`, with its number, then deliveries as `event`, without `id:`, because the group knows where it is.
//! Invariants: messages that wait are sent in one write, up to a bound; nothing is read from the subscription while the
//! client does not read. So a subscriber holds what its connection buffers, [`WRITE_BYTES`], and one event, which it
//! shares with others if it is large; all of it counts against the bytes in flight. A subscriber for whom these bytes
//! have no room is ended, and resumes later where it was.

use std::collections::VecDeque;
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::{BoxStream, Stream};
use gesta_core::shares::Holder;
use gesta_core::{
    Checkpoint, RecordedEvent, ResolvedMessage, Result, SharedEvent, Subscription,
    SubscriptionMessage,
};
use gesta_groups::ConsumerId;
use gesta_wire::event::link_field;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::call::Admitted;
use crate::call::deliveries::Shown;
use crate::shared::activity::Activity;
use crate::shared::body::{BrokenOff, PART_BYTES_MAX, Reservation};
use crate::shared::fanout::EncodedEvents;
use crate::shared::gate::{GaveWay, either};
use crate::shared::problem::{self, Problem};
use crate::state::State;

/// The media type of such answers.
pub(crate) const MEDIA_TYPE: &str = "text/event-stream";

/// Number of bytes after which messages that wait are sent without looking for more.
const WRITE_BYTES: usize = 64 * 1_024;

/// What a subscriber gets first. So the head of the answer is sent at once, and browsers learn how long to wait before
/// they connect again.
const BEGINNING: &[u8] = b"retry: 1000\n\n";

/// Where the events of an answer come from.
pub(crate) enum Feed {
    /// The events come from a subscription, with links as they are.
    Subscription(Subscription),
    /// The events come from a subscription, with the events to which links lead.
    Followed(BoxStream<'static, Result<ResolvedMessage>>),
    /// The events come from a consumer of a group.
    Consumer {
        id: ConsumerId,
        deliveries: BoxStream<'static, crate::shared::problem::Result<Shown>>,
    },
}

/// A message of a feed. The event of a subscription may have the link that led to it.
enum Message {
    Of(SubscriptionMessage, Option<SharedEvent>),
    Delivery(Shown),
}

impl From<Subscription> for Feed {
    fn from(subscription: Subscription) -> Self {
        Self::Subscription(subscription)
    }
}

impl Feed {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<crate::shared::problem::Result<Message>>> {
        match self {
            Feed::Subscription(subscription) => Pin::new(subscription)
                .poll_next(cx)
                .map_ok(|message| Message::Of(message, None))
                .map_err(Problem::from),
            Feed::Followed(messages) => messages
                .as_mut()
                .poll_next(cx)
                .map_ok(|ResolvedMessage { message, link }| Message::Of(message, link))
                .map_err(Problem::from),
            Feed::Consumer { deliveries, .. } => {
                deliveries.as_mut().poll_next(cx).map_ok(Message::Delivery)
            }
        }
    }
}

/// The body of a subscription, which has no end.
pub(crate) struct Events {
    state: Arc<State>,
    /// Who subscribes.
    holder: Holder,
    feed: Feed,
    /// Parts that are sent before `out`: a large event and what stands before it.
    parts: VecDeque<Bytes>,
    out: Vec<u8>,
    buffered: Buffered,
    heartbeat: Pin<Box<Sleep>>,
    last_sent: Instant,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Ends with the reason when the place of the subscription or of its connection is given up.
    gave_way: GaveWay,
    ended: bool,
    /// Share of what is kept of the filter.
    _filter: Option<Reservation>,
}

impl Events {
    pub(crate) fn new(
        state: Arc<State>,
        admitted: &Admitted,
        feed: Feed,
        activity: Arc<Activity>,
        gave_way: GaveWay,
        filter: Option<Reservation>,
    ) -> Self {
        let connection_gave_way = activity.gave_way();
        let heartbeat = tokio::time::sleep(state.config.heartbeat);
        let mut out = BEGINNING.to_vec();
        if let Feed::Consumer { id, .. } = &feed {
            let joined = format!("event: joined\ndata: {{\"consumer\":\"{id}\"}}\n\n");
            out.extend_from_slice(joined.as_bytes());
        }
        Self {
            feed,
            parts: VecDeque::new(),
            out,
            buffered: Buffered::new(activity, admitted.reservation_of_subscriptions(&state)),
            holder: admitted.holder().clone(),
            heartbeat: Box::pin(heartbeat),
            last_sent: Instant::now(),
            stopping: Box::pin(state.stopping.clone().cancelled_owned()),
            gave_way: either(gave_way, connection_gave_way),
            ended: false,
            _filter: filter,
            state,
        }
    }

    /// Takes the messages that the feed has ready.
    fn gather(&mut self, cx: &mut Context<'_>) {
        let mut events = 0;
        while !self.ended && self.parts.is_empty() && self.out.len() < WRITE_BYTES {
            match self.feed.poll(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(Message::Of(message, link)))) => {
                    events += u64::from(matches!(message, SubscriptionMessage::Event { .. }));
                    self.message(&message, link.as_deref());
                }
                Poll::Ready(Some(Ok(Message::Delivery(delivery)))) => {
                    events += 1;
                    self.delivery(&delivery);
                }
                Poll::Ready(Some(Err(problem))) => self.end(&problem),
                Poll::Ready(None) => self.end(&ended("the subscription has ended")),
            }
        }
        if events > 0 {
            self.state.metrics.subscription_events(events);
        }
        if let Err(problem) = self.buffered.hold(self.out.len())
            && !self.ended
        {
            self.end(&problem);
        }
    }

    fn message(&mut self, message: &SubscriptionMessage, link: Option<&RecordedEvent>) {
        match message {
            SubscriptionMessage::Event { event, checkpoint } => {
                if EncodedEvents::is_large(event) {
                    return self.large(event, checkpoint, link);
                }
                begin(&mut self.out, checkpoint, "event");
                self.state.encoded.append(&mut self.out, event);
                if let Some(link) = link {
                    // The brace that ends the event.
                    self.out.pop();
                    self.link(link);
                }
            }
            SubscriptionMessage::Checkpoint(checkpoint) => {
                begin(&mut self.out, checkpoint, "checkpoint");
                show_checkpoint(&mut self.out, checkpoint);
            }
            SubscriptionMessage::CaughtUp(checkpoint) => {
                begin(&mut self.out, checkpoint, "caught_up");
                show_checkpoint(&mut self.out, checkpoint);
            }
            SubscriptionMessage::FellBehind(checkpoint) => {
                begin(&mut self.out, checkpoint, "fell_behind");
                show_checkpoint(&mut self.out, checkpoint);
            }
        }
        self.out.extend_from_slice(b"\n\n");
    }

    /// Writes the field that tells about the link, and ends the event.
    fn link(&mut self, link: &RecordedEvent) {
        link_field(&mut self.out, link);
        self.out.push(b'}');
    }

    fn large(
        &mut self,
        event: &SharedEvent,
        checkpoint: &Checkpoint,
        link: Option<&RecordedEvent>,
    ) {
        let (encoded, budget) = (&self.state.encoded, &self.state.bounds.budget);
        match encoded.share(event, budget, &self.holder) {
            Ok(mut line) => {
                begin(&mut self.out, checkpoint, "event");
                if link.is_some() {
                    // All but the brace that ends the event.
                    line.truncate(line.len().saturating_sub(1));
                }
                self.shared(line);
                if let Some(link) = link {
                    self.link(link);
                }
                self.out.extend_from_slice(b"\n\n");
            }
            Err(problem) => self.end(&problem),
        }
    }

    /// Makes a line that is shared with others a part of its own.
    fn shared(&mut self, line: Bytes) {
        self.parts.push_back(std::mem::take(&mut self.out).into());
        self.parts.push_back(line);
    }

    fn delivery(&mut self, delivery: &Shown) {
        let (event, link) = (&delivery.resolved.event, delivery.resolved.link.as_deref());
        let (encoded, budget) = (&self.state.encoded, &self.state.bounds.budget);
        let large =
            EncodedEvents::is_large(event).then(|| encoded.share(event, budget, &self.holder));
        let (number, retries) = (delivery.number.0, delivery.retries);
        let begin =
            format!("event: event\ndata: {{\"delivery\":{number},\"retries\":{retries},\"event\":");
        match large {
            Some(Err(problem)) => return self.end(&problem),
            Some(Ok(mut line)) => {
                self.out.extend_from_slice(begin.as_bytes());
                if link.is_some() {
                    // All but the brace that ends the event.
                    line.truncate(line.len().saturating_sub(1));
                }
                self.shared(line);
            }
            None => {
                self.out.extend_from_slice(begin.as_bytes());
                self.state.encoded.append(&mut self.out, event);
                if link.is_some() {
                    self.out.pop();
                }
            }
        }
        if let Some(link) = link {
            self.link(link);
        }
        self.out.extend_from_slice(b"}\n\n");
    }

    fn end(&mut self, problem: &Problem) {
        if problem.store_is_away() {
            let readiness = &self.state.readiness;
            readiness.request_failed(problem.kind.name, problem.why());
        }
        self.out.extend_from_slice(b"event: error\ndata: ");
        self.out.extend_from_slice(&problem.to_json());
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

    /// Takes the next bytes to hand out; they are empty if there are none.
    fn part(&mut self) -> Bytes {
        let part = match self.parts.front_mut() {
            Some(first) if first.len() > PART_BYTES_MAX => first.split_to(PART_BYTES_MAX),
            Some(_) => self.parts.pop_front().unwrap_or_default(),
            // A silent subscriber keeps no buffer.
            None => std::mem::take(&mut self.out).into(),
        };
        self.buffered.hand(part.len());
        part
    }
}

/// Bytes that the connection of one subscriber buffers, counted against the bytes in flight.
struct Buffered {
    activity: Arc<Activity>,
    /// Number of bytes that the socket had taken when the subscription began.
    taken_before: usize,
    /// Number of bytes handed to the connection since then. It is never less than the bytes that the socket took.
    handed: usize,
    /// Bytes of the part that was handed last. An HTTP/2 stream buffers no more than that part.
    last: usize,
    held: Reservation,
}

impl Buffered {
    fn new(activity: Arc<Activity>, held: Reservation) -> Self {
        Self {
            taken_before: activity.written(),
            activity,
            handed: 0,
            last: 0,
            held,
        }
    }

    fn hand(&mut self, bytes: usize) {
        self.handed += bytes;
        self.last = bytes;
    }

    /// Counts the bytes that the socket has not taken yet, and `own` bytes that were not handed out.
    fn hold(&mut self, own: usize) -> crate::shared::problem::Result<()> {
        let taken = self.activity.written().wrapping_sub(self.taken_before);
        // The head of the answer and the frames of parts are taken too, but were not handed out.
        self.handed = self.handed.max(taken);
        let waiting = if self.activity.is_http2() {
            self.last
        } else {
            self.handed - taken
        };
        self.held.set(own + waiting)
    }
}

/// Makes the reason with which a subscription ends though nothing is wrong with it. It is not written to the log.
fn ended(detail: &str) -> Problem {
    Problem::new(problem::UNAVAILABLE, detail)
}

fn begin(out: &mut Vec<u8>, checkpoint: &Checkpoint, name: &str) {
    let written = write!(out, "id: {checkpoint}\nevent: {name}\ndata: ");
    debug_assert!(written.is_ok(), "writing to memory: {written:?}");
}

fn show_checkpoint(out: &mut Vec<u8>, checkpoint: &Checkpoint) {
    out.extend_from_slice(b"{\"checkpoint\":");
    gesta_wire::json::plain(out, checkpoint);
    out.push(b'}');
}

impl Stream for Events {
    type Item = std::result::Result<Bytes, BrokenOff>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        if self.parts.is_empty() {
            if self.ended && self.out.is_empty() {
                return Poll::Ready(None);
            }
            if !self.ended && self.stopping.as_mut().poll(cx).is_ready() {
                self.end(&ended("the server is stopping"));
            }
            if !self.ended
                && let Poll::Ready(problem) = self.gave_way.as_mut().poll(cx)
            {
                self.end(&problem);
            }
            self.gather(cx);
            if self.out.is_empty() {
                self.poll_heartbeat(cx);
            }
            if self.parts.is_empty() && self.out.is_empty() {
                return Poll::Pending;
            }
        }
        self.last_sent = Instant::now();
        Poll::Ready(Some(Ok(self.part())))
    }
}
