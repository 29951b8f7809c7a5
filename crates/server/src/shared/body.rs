//! Bodies: reads requests within bounds of size, time and memory; sends answers that are whole or made on the way.
//!
//! Invariants: a request body counts against the budget as it arrives, not as it is announced, so a slow sender holds
//! no more than it has sent; what a guard counts is freed when the body is dropped.

mod messages;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{BoxStream, Stream};
use gesta_core::ErrorKind;
use gesta_core::shares::{self, Holder, Load, Share, Shares, TooMuch};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::shared::activity::Running;
use crate::shared::gate::{GaveWay, Ticket};
use crate::shared::pace::Paced;
use crate::shared::problem::{self, Problem, Result};

pub(crate) use messages::{MessageSource, Messages};

/// A whole request body.
#[derive(Debug)]
pub(crate) struct Payload {
    pub(crate) bytes: Bytes,
    /// True if the memory of which `bytes` is a part holds nothing else, so that events may keep slices of it.
    pub(crate) owned: bool,
}

impl Payload {
    /// Returns the bytes of a part of the body that is to be kept. They are shared if that wastes little memory, else
    /// copied.
    pub(crate) fn keep(&self, part: &str) -> Bytes {
        if self.owned && part.len() >= self.bytes.len() / 2 {
            self.bytes.slice_ref(part.as_bytes())
        } else {
            Bytes::copy_from_slice(part.as_bytes())
        }
    }
}

/// Number of bytes that requests and answers may hold at once, in sum and of one caller.
#[derive(Debug)]
pub(crate) struct Budget {
    shares: Arc<Shares>,
}

impl Budget {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            shares: Shares::new(max),
        }
    }

    /// Makes a reservation of a caller that holds nothing yet.
    pub(crate) fn reservation(&self, holder: &Holder) -> Reservation {
        self.up_to(holder, self.shares.max())
    }

    /// Makes a reservation for what a subscriber holds. It takes bytes of the first half of the budget only, so that
    /// subscribers who do not read leave enough memory for appends and reads.
    pub(crate) fn reservation_of_subscriptions(&self, holder: &Holder) -> Reservation {
        self.up_to(holder, self.shares.max() / 2)
    }

    fn up_to(&self, holder: &Holder, max: usize) -> Reservation {
        Reservation {
            share: self.shares.empty(holder.clone(), max),
        }
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.shares.taken()
    }

    pub(crate) fn load(&self) -> Load {
        self.shares.load()
    }
}

/// Bytes of a budget, which are given back when the reservation is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    share: Share,
}

impl Reservation {
    /// Takes more bytes.
    ///
    /// # Errors
    /// Overloaded if there are too few left, in sum or for this caller; then the reservation is unchanged.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<()> {
        self.share.grow(bytes).map_err(|refused| {
            let (max, holder) = (self.share.max(), self.share.holder());
            Problem::overloaded(match refused {
                TooMuch::InSum => format!("requests and answers in flight hold {max} bytes at most"),
                TooMuch::OfOne => format!(
                    "requests and answers of {holder} in flight hold no more bytes than are left for all others of {max}"
                ),
                TooMuch::GaveWay => format!(
                    "all {max} bytes for requests and answers in flight were held when a caller who held fewer needed some, and {holder}, who held most, gave up the newest"
                ),
            })
        })
    }

    /// Makes the reservation hold this number of bytes at least.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<()> {
        match bytes.saturating_sub(self.share.held()) {
            0 => Ok(()),
            more => self.grow(more),
        }
    }

    /// Makes the reservation hold this number of bytes, which may be more or fewer than before.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<()> {
        match bytes.checked_sub(self.share.held()) {
            Some(0) => Ok(()),
            Some(more) => self.grow(more),
            None => {
                self.shrink_to(bytes);
                Ok(())
            }
        }
    }

    /// Waits until what it holds is given up for a caller who holds less.
    pub(crate) fn gave_way(&self) -> shares::GaveWay {
        self.share.gave_way()
    }

    /// Waits until what it holds, which is `what`, is given up. Whoever needs it is to end then, with this problem.
    pub(crate) fn gave_way_as(&self, what: &'static str) -> GaveWay {
        let problem = move |()| {
            let detail = format!("the memory of {what} was needed by a caller who held less");
            Problem::overloaded(format!("{detail}: subscribe again later"))
        };
        self.share.gave_way().map(problem).boxed()
    }

    /// Gives back the bytes above this number.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        self.share.shrink_to(bytes);
    }
}

/// Most bytes of a body that is not needed that are still taken, so that the connection can be used again.
const DISCARD_BYTES_MAX: u64 = 1024 * 1024;
/// How long to wait for the rest of such a body.
const DISCARD_MAX: Duration = Duration::from_millis(500);

/// The body of a request, which the call may read or not.
#[derive(Debug)]
pub(crate) struct RequestBody {
    incoming: Incoming,
    /// True if nothing of the body is left.
    ended: bool,
    /// True if the body could not be read, so that its end is not known.
    broken: bool,
}

impl RequestBody {
    pub(crate) fn new(incoming: Incoming) -> Self {
        Self {
            ended: incoming.is_end_stream(),
            broken: false,
            incoming,
        }
    }

    /// Reads the whole body: at most `bytes_max` bytes, within `time_max`. The bytes count against `reservation` as
    /// they arrive.
    pub(crate) async fn read(
        &mut self,
        bytes_max: usize,
        time_max: Duration,
        reservation: &mut Reservation,
    ) -> Result<Payload> {
        if self.incoming.size_hint().lower() > u64::try_from(bytes_max).unwrap_or(u64::MAX) {
            return Err(too_large(bytes_max));
        }
        // The timer starts only if the body is not there yet.
        tokio::time::timeout(time_max, self.collect(bytes_max, reservation))
            .await
            .unwrap_or_else(|_| {
                Err(Problem::new(
                    problem::REQUEST_TIMEOUT,
                    format!("the body did not arrive within {} s", time_max.as_secs()),
                ))
            })
    }

    async fn collect(
        &mut self,
        bytes_max: usize,
        reservation: &mut Reservation,
    ) -> Result<Payload> {
        let first = self.next().await?.unwrap_or_default();
        reservation.grow(first.len())?;
        if self.ended && first.len() <= bytes_max {
            // A slice of the connection's read buffer: see `Payload::owned`.
            return Ok(Payload {
                bytes: first,
                owned: false,
            });
        }
        let mut gathered = Vec::with_capacity(first.len() * 2);
        gathered.extend_from_slice(&first);
        drop(first);
        while let Some(data) = self.next().await? {
            reservation.grow(data.len())?;
            if gathered.len() + data.len() > bytes_max {
                return Err(too_large(bytes_max));
            }
            gathered.extend_from_slice(&data);
        }
        if gathered.len() > bytes_max {
            return Err(too_large(bytes_max));
        }
        // Events may keep the memory for as long as subscribers may ask for them.
        gathered.shrink_to_fit();
        Ok(Payload {
            bytes: gathered.into(),
            owned: true,
        })
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        while !self.ended {
            let incoming = &mut self.incoming;
            let frame = std::future::poll_fn(|cx| Pin::new(&mut *incoming).poll_frame(cx)).await;
            self.ended = frame.is_none() || self.incoming.is_end_stream();
            match frame.transpose() {
                Ok(frame) => {
                    if let Some(data) = frame.and_then(|frame| frame.into_data().ok()) {
                        return Ok(Some(data));
                    }
                }
                Err(error) => {
                    self.broken = true;
                    return Err(Problem::new(
                        problem::MALFORMED_REQUEST,
                        format!("the body cannot be read: {error}"),
                    )
                    .field("body"));
                }
            }
        }
        Ok(None)
    }

    /// Takes what is left of the body if it is little and comes at once. Returns false if some is left: then the
    /// connection cannot carry another request. `waits` tells that the client waits for `100 Continue`.
    pub(crate) async fn discard(mut self, waits: bool) -> bool {
        if self.broken {
            return false;
        }
        if self.ended {
            return true;
        }
        if waits || self.incoming.size_hint().lower() > DISCARD_BYTES_MAX {
            return false;
        }
        let rest = async {
            let mut left = DISCARD_BYTES_MAX;
            while let Ok(Some(data)) = self.next().await {
                left = left.saturating_sub(u64::try_from(data.len()).unwrap_or(u64::MAX));
                if left == 0 {
                    return;
                }
            }
        };
        let in_time = tokio::time::timeout(DISCARD_MAX, rest).await.is_ok();
        in_time && self.ended && !self.broken
    }
}

fn too_large(bytes_max: usize) -> Problem {
    Problem::new(
        problem::PAYLOAD_TOO_LARGE,
        format!("the body must be at most {bytes_max} bytes"),
    )
    .field("body")
}

/// Most bytes of an answer that are handed out at once. They are copied into the write buffer of the connection, which
/// keeps its size.
pub(crate) const PART_BYTES_MAX: usize = 64 * 1024;

/// After so many bytes of an answer that come without waiting others get a turn on the thread. A client that reads fast
/// would keep it for as long as there is more to read.
const STRETCH_BYTES_MAX: usize = 256 * 1024;

/// The error with which an answer breaks off: the client sees its connection close in the middle.
pub(crate) type BrokenOff = gesta_core::Error;

/// The body of an answer.
pub(crate) struct AnswerBody {
    content: Content,
    /// Ends an answer in parts when its place is given up.
    gave_way: Option<GaveWay>,
    /// Guards that count the request as in flight until its answer is written or given up.
    guards: Guards,
    /// Bytes that were handed out since others last had a turn on this thread.
    at_a_stretch: usize,
}

/// What is counted while an answer is being sent.
#[derive(Debug, Default)]
pub(crate) struct Guards {
    pub(crate) request: Option<Ticket>,
    pub(crate) bytes: Option<Reservation>,
    pub(crate) running: Option<Running>,
    /// For whom the parts of the answer are made.
    pub(crate) holder: Option<Holder>,
    /// How soon one part may follow the other.
    pub(crate) paced: Option<Paced>,
}

/// Where the bytes of an answer come from.
enum Content {
    Whole(Option<Bytes>),
    Parts(BoxStream<'static, std::result::Result<Bytes, BrokenOff>>),
    /// Messages of gRPC in their frames, and the trailers after them.
    Messages(Messages),
}

impl AnswerBody {
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self {
            content: Content::Whole((!bytes.is_empty()).then_some(bytes)),
            gave_way: None,
            guards: Guards::default(),
            at_a_stretch: 0,
        }
    }

    pub(crate) fn parts(
        parts: impl Stream<Item = std::result::Result<Bytes, BrokenOff>> + Send + 'static,
    ) -> Self {
        Self {
            content: Content::Parts(Box::pin(parts)),
            gave_way: None,
            guards: Guards::default(),
            at_a_stretch: 0,
        }
    }

    pub(crate) fn messages(messages: Messages) -> Self {
        Self {
            content: Content::Messages(messages),
            gave_way: None,
            guards: Guards::default(),
            at_a_stretch: 0,
        }
    }

    /// Lets the answer keep a place until it is sent. If the place is given up before, an answer that is made in parts
    /// breaks off. One that is whole takes no more than it has.
    pub(crate) fn keep(&mut self, ticket: Ticket) {
        match &mut self.content {
            Content::Whole(_) => {}
            Content::Parts(_) => self.gave_way = Some(ticket.gave_way()),
            Content::Messages(messages) => messages.end_with(ticket.gave_way()),
        }
        self.guards.request = Some(ticket);
    }

    /// Lets messages end with a refusal when a place that they need is given up.
    pub(crate) fn end_with(&mut self, gave_way: GaveWay) {
        if let Content::Messages(messages) = &mut self.content {
            messages.end_with(gave_way);
        }
    }

    pub(crate) fn guards(&mut self) -> &mut Guards {
        &mut self.guards
    }

    /// Returns true for an answer that is whole, and for which its caller holds no place.
    pub(crate) fn is_without_place(&self) -> bool {
        matches!(self.content, Content::Whole(_)) && self.guards.request.is_none()
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, BrokenOff>>> {
        let this = &mut *self;
        if this.at_a_stretch >= STRETCH_BYTES_MAX {
            this.at_a_stretch = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(gave_way) = &mut this.gave_way
            && let Poll::Ready(problem) = gave_way.as_mut().poll(cx)
        {
            this.gave_way = None;
            this.content = Content::Whole(None);
            let detail = problem.detail.clone();
            tracing::debug!(detail, "answer breaks off");
            return Poll::Ready(Some(Err(ErrorKind::Overloaded(detail).into())));
        }
        if let Some(paced) = &mut this.guards.paced
            && !matches!(this.content, Content::Whole(_))
            && paced.poll(cx).is_pending()
        {
            return Poll::Pending;
        }
        let holder = this.guards.holder.as_ref();
        let acting = holder.unwrap_or(&Holder::Everybody);
        let part = match &mut this.content {
            Content::Whole(bytes) => {
                let mut part = bytes.take();
                if let Some(part) = part.as_mut().filter(|part| part.len() > PART_BYTES_MAX) {
                    *bytes = Some(part.split_off(PART_BYTES_MAX));
                }
                Poll::Ready(part.map(|part| Ok(Frame::data(part))))
            }
            Content::Parts(parts) => shares::acting(acting, || parts.as_mut().poll_next(cx))
                .map(|part| part.map(|part| part.map(Frame::data))),
            Content::Messages(messages) => {
                let part = shares::acting(acting, || messages.poll_frame(cx));
                if messages.is_end() {
                    // It is free before the client reads that the messages ended.
                    this.guards.request = None;
                }
                part.map(|part| part.map(Ok))
            }
        };
        this.at_a_stretch += match &part {
            Poll::Ready(Some(Ok(frame))) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        // Unless it is asked for more at once, the connection cannot take it.
        let waits = matches!(part, Poll::Ready(Some(Ok(_)))) && !self.is_end_stream();
        if let Some(running) = &mut self.guards.running {
            running.set_waiting(waits);
        }
        part
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(bytes) => bytes.is_none(),
            Content::Parts(_) => false,
            Content::Messages(messages) => messages.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => {
                let len = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(len).unwrap_or(u64::MAX))
            }
            Content::Parts(_) | Content::Messages(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use futures::task::noop_waker;

    use super::*;
    use crate::shared::gate::Gate;

    /// Goal: a client that reads fast does not keep a thread to itself.
    #[test]
    fn an_answer_without_end_lets_others_have_the_thread() {
        let parts = stream::repeat_with(|| Ok(Bytes::from_static(&[0; PART_BYTES_MAX])));
        let mut body = AnswerBody::parts(parts);
        let waker = noop_waker();
        let mut poll = || Pin::new(&mut body).poll_frame(&mut Context::from_waker(&waker));
        for _ in 0..3 {
            let stretch = (0..100).take_while(|_| poll().is_ready()).count();
            assert_eq!(stretch, STRETCH_BYTES_MAX / PART_BYTES_MAX);
        }
    }

    /// Goal: an answer that may last for ever, and whose place is given up for a caller who has fewer, ends and says
    /// why; one that is whole is sent.
    #[test]
    fn an_answer_ends_when_its_place_is_given_up() {
        let bodies = [
            AnswerBody::parts(stream::pending()),
            AnswerBody::messages(Messages::new(
                MessageSource::Made(Box::pin(stream::pending())),
                None,
            )),
            AnswerBody::whole("whole"),
        ];
        let ended = bodies.map(|mut body| {
            let gate = Gate::new("requests", 4);
            let enter = |name: &str| gate.enter(&Holder::User(name.into())).expect("a place");
            let _oldest = enter("most");
            body.keep(enter("most"));
            let waker = noop_waker();
            let mut poll = || Pin::new(&mut body).poll_frame(&mut Context::from_waker(&waker));
            let first = poll();
            let _others = ["a", "b", "c"].map(enter);
            match first {
                Poll::Pending => poll(),
                first => first,
            }
        });
        let [parts, messages, whole] = ended.map(|ended| match ended {
            Poll::Ready(Some(frame)) => frame,
            other => panic!("{other:?}"),
        });
        let broken_off = parts.expect_err("it breaks off").to_string();
        assert!(broken_off.contains("gave up the newest"), "{broken_off}");
        let trailers = messages.expect("trailers").into_trailers();
        assert_eq!(trailers.expect("trailers")["grpc-status"], "14");
        let whole = whole.expect("it is sent").into_data();
        assert_eq!(whole.expect("data"), "whole");
    }
}
