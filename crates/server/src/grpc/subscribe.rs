//! `Read` without an end: subscriptions to a stream or to all events.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::future::{BoxFuture, OptionFuture};
use futures::{FutureExt, stream};
use gesta_core::shares::Holder;
use gesta_core::{
    Checkpoint, Clock, ErrorKind, EventStore, Filter, Place, Position, ReadStream, RecordedEvent,
    Revision, SharedEvent, Subscribe, SubscribeFrom, SubscribeTo, Subscription,
    SubscriptionMessage, SystemClock,
};
use gesta_grpc::messages::streams::ReadResp;
use gesta_grpc::messages::streams::read_req::options::all_options::AllOption;
use gesta_grpc::messages::streams::read_req::options::stream_options::RevisionOption;
use gesta_grpc::messages::streams::read_req::options::{AllOptions, StreamOptions};
use gesta_grpc::messages::streams::read_resp::{
    CaughtUp, Checkpoint as Passed, Content, FellBehind, Position as At, SubscriptionConfirmation,
};
use gesta_grpc::{Positions, Refusal, frame, ids, stored};
use prost_types::Timestamp;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::call::GrpcCall;
use super::links::View;
use super::read::{
    CompiledFilter, Order, all_option, is_hidden, refuse_if_closed, refuse_virtual_alone,
};
use super::reply::{self, Reply};
use super::{Result, refusal_of};
use crate::call::Admitted;
use crate::shared::body::Reservation;
use crate::state::State;

/// Number of bytes after which messages that wait are sent without looking for more.
const WRITE_BYTES: usize = 64 * 1_024;
/// Most events that a filter of the store skips before the store tells its place: see the contract.
const STORE_TELLS_EVERY: u64 = 10_000;

/// Subscribes to a stream.
pub(crate) fn to_stream(call: &GrpcCall, options: &StreamOptions, view: View) -> Result<Reply> {
    let stream = ids::stream(options.stream_identifier.as_ref())?;
    let from = match options.revision_option {
        Some(RevisionOption::Start(_)) => SubscribeFrom::Start,
        Some(RevisionOption::End(_)) => SubscribeFrom::End,
        Some(RevisionOption::Revision(u64::MAX)) => SubscribeFrom::End,
        Some(RevisionOption::Revision(n)) => {
            SubscribeFrom::Revision(Revision(n.min(Revision::MAX.0)))
        }
        None => return Err(Refusal::invalid("where to begin must be given")),
    };
    let after = match from {
        SubscribeFrom::Revision(revision) => After::Revision(revision),
        _ => After::Nothing,
    };
    let request = Subscribe {
        to: SubscribeTo::Stream(stream),
        from,
    };
    begin(call, request, None, after, view)
}

/// Subscribes to all events.
pub(crate) async fn to_all(
    call: &GrpcCall,
    options: AllOptions,
    filter: Option<CompiledFilter>,
    view: View,
) -> Result<Reply> {
    let mut after = Position::START;
    refuse_virtual_alone(call, filter.as_ref()).await?;
    let order = Order::of(call).await?;
    let from = match all_option(options)? {
        AllOption::Start(_) => SubscribeFrom::Start,
        AllOption::End(_) => SubscribeFrom::End,
        AllOption::Position(at) if at.commit_position > Position::MAX.0 => SubscribeFrom::End,
        AllOption::Position(at) => {
            after = order.read(at.commit_position)?;
            if after > order.head {
                // Nothing is delivered until there is something beyond.
                SubscribeFrom::Checkpoint(order.checkpoint(order.head))
            } else {
                SubscribeFrom::Checkpoint(order.checkpoint(after))
            }
        }
    };
    let pace = filter
        .map(|filter| {
            filter
                .asked
                .checkpoint_interval()
                .map(|interval| Pace::new(filter, interval, after))
        })
        .transpose()?;
    let in_store = pace.as_ref().map_or(Filter::ALL, Pace::in_store);
    let request = Subscribe {
        to: SubscribeTo::All(in_store),
        from,
    };
    begin(call, request, pace, After::Position(after), view)
}

/// The events that the client says that it has seen. They may be beyond the end of the stream, or of all events. If one
/// of them is stored only now, the client has seen another one there, of a history that the store does not have any
/// more: it is told, and nothing is passed over.
#[derive(Clone, Copy)]
enum After {
    Nothing,
    /// The client has seen all events of a stream up to this revision.
    Revision(Revision),
    /// The client has seen all events up to this position.
    Position(Position),
}

impl After {
    /// Refuses to go on with an event that the client says that it has seen.
    fn check(self, event: &RecordedEvent) -> Result<()> {
        let (seen, place) = match self {
            After::Nothing => return Ok(()),
            After::Revision(after) => (
                event.revision <= after,
                format!("revision {after} of stream {}", event.stream),
            ),
            After::Position(after) => (event.position <= after, format!("position {after}")),
        };
        match seen {
            true => Err(Refusal::of_earlier_history(&place)),
            false => Ok(()),
        }
    }
}

fn begin(
    call: &GrpcCall,
    request: Subscribe,
    pace: Option<Pace>,
    after: After,
    view: View,
) -> Result<Reply> {
    request.validate()?;
    let ticket = call.enter_subscriptions()?;
    let mut out = BytesMut::new();
    confirm(&mut out);
    let live = Live {
        held: call.admitted.reservation_of_subscriptions(&call.state),
        stopping: call.state.stopping.clone(),
        state: call.state.clone(),
        admitted: call.admitted.clone(),
        source: EventSource::Asked(Box::new(request)),
        filter_gave_way: pace.as_ref().map(|pace| pace.filter.gave_way()).into(),
        pace,
        after,
        view,
        out,
        ending: None,
    };
    let parts = stream::unfold(Some(live), |live| async {
        let mut live = live?;
        match live.next().await {
            Ok(part) => Some((Ok(part), Some(live))),
            Err(refusal) => Some((Err(refusal), None)),
        }
    });
    Ok(Reply::Endless(reply::made(parts), Some(ticket)))
}

fn confirm(out: &mut BytesMut) {
    let confirmation = SubscriptionConfirmation {
        subscription_id: Uuid::new_v4().to_string(),
    };
    put(out, Content::Confirmation(confirmation));
}

fn put(out: &mut BytesMut, content: Content) {
    let message = ReadResp {
        content: Some(content),
    };
    frame::write(out, &message);
}

/// Where the events come from.
enum EventSource {
    /// The store has not been asked yet, because the confirmation is sent first.
    Asked(Box<Subscribe>),
    Open(Subscription),
}

/// A subscription of a client.
struct Live {
    state: Arc<State>,
    /// The caller, and the store as the caller may use it.
    admitted: Admitted,
    source: EventSource,
    pace: Option<Pace>,
    after: After,
    view: View,
    out: BytesMut,
    /// Refusal with which the subscription ends once the bytes in `out` are handed out.
    ending: Option<Refusal>,
    held: Reservation,
    /// Ends when the memory of the filter is given up.
    filter_gave_way: OptionFuture<BoxFuture<'static, ()>>,
    stopping: CancellationToken,
}

impl Live {
    /// Returns the next messages.
    async fn next(&mut self) -> Result<Bytes> {
        // The part before has left; a silent subscriber keeps no buffer.
        self.held.shrink_to(0);
        if let Some(Some(())) = (&mut self.filter_gave_way).now_or_never() {
            self.ending = Some(filter_given_up());
        }
        while self.ending.is_none() && self.out.len() < WRITE_BYTES {
            let Some(message) = self.message().await? else {
                break;
            };
            let taken = match message {
                Ok(message) => self.take(message).await,
                Err(refusal) => Err(refusal),
            };
            self.ending = taken.err();
        }
        if self.out.is_empty() {
            return Err(self
                .ending
                .take()
                .unwrap_or_else(|| Refusal::unavailable("the subscription has ended")));
        }
        let part = self.out.split().freeze();
        let held = self.held.set(part.len());
        held.map_err(|problem| refusal_of(&problem))?;
        Ok(part)
    }

    /// Takes the next message of the store; returns `None` if none is ready and others wait to be sent.
    async fn message(&mut self) -> Result<Option<Result<SubscriptionMessage>>> {
        let subscription = match &mut self.source {
            // The confirmation leaves before the store is asked.
            EventSource::Asked(_) if !self.out.is_empty() => return Ok(None),
            EventSource::Asked(request) => {
                let opened = {
                    let _turn = self.state.turn_to_read(self.admitted.holder()).await;
                    open(&*self.admitted.store, request).await?
                };
                self.source = EventSource::Open(opened);
                match &mut self.source {
                    EventSource::Open(subscription) => subscription,
                    EventSource::Asked(_) => return Ok(None),
                }
            }
            EventSource::Open(subscription) => subscription,
        };
        let next = if self.out.is_empty() {
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => {
                    return Err(Refusal::stopping());
                }
                Some(()) = &mut self.filter_gave_way => return Err(filter_given_up()),
                next = subscription.next() => next,
            }
        } else {
            match subscription.next().now_or_never() {
                Some(next) => next,
                None => return Ok(None),
            }
        };
        Ok(Some(match next {
            Some(Ok(message)) => Ok(message),
            Some(Err(error)) => Err(error.into()),
            None => Err(Refusal::unavailable("the subscription has ended")),
        }))
    }

    async fn take(&mut self, message: SubscriptionMessage) -> Result<()> {
        match message {
            SubscriptionMessage::Event { event, checkpoint } => {
                self.after.check(&event)?;
                self.view.positions = checkpoint.incarnation.into();
                let is_of_all = matches!(checkpoint.place, Place::Logs(_));
                if !is_of_all && stored::is_tombstone(&event) {
                    // The metadata of a stream end with the stream.
                    return Err(Refusal::stream_deleted(&event.stream));
                }
                let passes = match &mut self.pace {
                    None => !(is_of_all && is_hidden(&event)),
                    Some(pace) => {
                        pace.positions = checkpoint.incarnation.into();
                        let (state, holder) = (&self.state, self.admitted.holder());
                        let passes =
                            !is_hidden(&event) && pace.passes(&event, state, holder).await?;
                        pace.looked_at(event.position, passes, &mut self.out);
                        passes
                    }
                };
                if passes {
                    let store = &*self.admitted.store;
                    let mut events = VecDeque::from([event]);
                    self.view.write(store, &mut self.out, &mut events).await?;
                    self.state.metrics.subscription_events(1);
                }
            }
            SubscriptionMessage::Checkpoint(checkpoint) => {
                if let Some(pace) = &mut self.pace {
                    pace.passed(&checkpoint, &mut self.out);
                }
            }
            SubscriptionMessage::CaughtUp(checkpoint) => {
                if let Some(pace) = &mut self.pace {
                    pace.passed(&checkpoint, &mut self.out);
                }
                let (stream_revision, position) = place(&checkpoint, self.after);
                let caught_up = CaughtUp {
                    timestamp: Some(now()),
                    stream_revision,
                    position,
                };
                put(&mut self.out, Content::CaughtUp(caught_up));
            }
            SubscriptionMessage::FellBehind(checkpoint) => {
                let (stream_revision, position) = place(&checkpoint, self.after);
                let fell_behind = FellBehind {
                    timestamp: Some(now()),
                    stream_revision,
                    position,
                };
                put(&mut self.out, Content::FellBehind(fell_behind));
            }
        }
        Ok(())
    }
}

fn filter_given_up() -> Refusal {
    Refusal::overloaded(
        "the memory of the filter was needed by a caller who held less; subscribe again later",
    )
}

/// Opens a subscription. To these clients a stream may be followed from beyond its end on: nothing is delivered until
/// it has gone on so far.
async fn open(store: &dyn EventStore, request: &Subscribe) -> Result<Subscription> {
    let SubscribeTo::Stream(stream) = &request.to else {
        return Ok(store.subscribe(request.clone()).await?);
    };
    refuse_if_closed(store, stream).await?;
    let after = match (store.subscribe(request.clone()).await, &request.from) {
        (Err(error), SubscribeFrom::Revision(after))
            if matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)) =>
        {
            *after
        }
        (opened, _) => return Ok(opened?),
    };
    let last = ReadStream::backwards(stream.clone()).limit(1);
    let from = match store.read_stream(last).await {
        Ok(page) => SubscribeFrom::Revision(page.last_revision.min(after)),
        Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => SubscribeFrom::Start,
        Err(error) => return Err(error.into()),
    };
    let to = SubscribeTo::Stream(stream.clone());
    Ok(store.subscribe(Subscribe { to, from }).await?)
}

/// Returns the position of a checkpoint of all events, in the one log.
fn position_of(checkpoint: &Checkpoint) -> Position {
    match &checkpoint.place {
        Place::Logs(positions) => positions.first().copied().unwrap_or_default(),
        Place::Stream { .. } => Position::START,
    }
}

/// Returns the revision or the position of a checkpoint, as messages about the place of a subscription tell it.
fn place(checkpoint: &Checkpoint, after: After) -> (Option<i64>, Option<At>) {
    match &checkpoint.place {
        Place::Stream { revision, .. } => {
            // Whoever goes on from there must not get what they have seen.
            let revision = revision.map(|revision| match after {
                After::Revision(after) => revision.max(after),
                _ => revision,
            });
            let revision = revision.and_then(|revision| i64::try_from(revision.0).ok());
            (revision, None)
        }
        Place::Logs(_) => {
            let at = match after {
                After::Position(after) => position_of(checkpoint).max(after),
                _ => position_of(checkpoint),
            };
            let at = Positions::from(checkpoint.incarnation).shown(at);
            let position = (at > 0).then_some(At {
                commit_position: at,
                prepare_position: at,
            });
            (None, position)
        }
    }
}

/// Returns the time of this server, as these messages show it.
fn now() -> Timestamp {
    const MICROS: i64 = 1_000_000;
    let now = SystemClock.now().as_micros();
    Timestamp {
        seconds: now.div_euclid(MICROS),
        nanos: i32::try_from(now.rem_euclid(MICROS) * 1_000).unwrap_or(0),
    }
}

/// The filter of a client, and the checkpoints that are sent with it.
struct Pace {
    filter: CompiledFilter,
    interval: u64,
    /// Number of events since the last checkpoint.
    since: u64,
    /// Position of the last event that was read, and the position of which the client was told last.
    looked_at: Position,
    told: Position,
    /// Positions of the history that is read.
    positions: Positions,
}

impl Pace {
    fn new(filter: CompiledFilter, interval: u64, after: Position) -> Self {
        Self {
            filter,
            interval,
            since: 0,
            looked_at: after,
            told: after,
            positions: Positions::default(),
        }
    }

    /// What of the filter the store may do: nothing, if the client wants to be told of its place more often than the
    /// store tells what it has skipped.
    fn in_store(&self) -> Filter {
        match self.interval >= STORE_TELLS_EVERY {
            true => self.filter.in_store(),
            false => Filter::ALL,
        }
    }

    /// Returns true if an event passes the filter.
    async fn passes(&self, event: &SharedEvent, state: &State, holder: &Holder) -> Result<bool> {
        let pattern = &self.filter.held.pattern;
        if pattern.is_quick() {
            return Ok(pattern.matches(event)?);
        }
        let alone = vec![Arc::clone(event)];
        let passing = state
            .bounds
            .patterns
            .pass(&self.filter.held, alone, holder)
            .await?;
        Ok(!passing.is_empty())
    }

    /// Notes that an event was looked at. If it does not pass and a checkpoint is due, the checkpoint is written.
    fn looked_at(&mut self, position: Position, passes: bool, out: &mut BytesMut) {
        // A checkpoint is told before the event that makes it due if that one passes: it is not sent yet.
        if self.since >= self.interval {
            self.tell(out);
        }
        self.since += 1;
        self.looked_at = position;
        if !passes && self.since >= self.interval {
            self.tell(out);
        }
    }

    /// Notes that everything up to this position was read, and writes a checkpoint.
    fn passed(&mut self, checkpoint: &Checkpoint, out: &mut BytesMut) {
        self.positions = checkpoint.incarnation.into();
        self.looked_at = self.looked_at.max(position_of(checkpoint));
        self.tell(out);
    }

    fn tell(&mut self, out: &mut BytesMut) {
        self.since = 0;
        if self.looked_at <= self.told {
            return;
        }
        self.told = self.looked_at;
        let at = self.positions.shown(self.told);
        put(
            out,
            Content::Checkpoint(Passed {
                commit_position: at,
                prepare_position: at,
                timestamp: Some(now()),
            }),
        );
    }
}
