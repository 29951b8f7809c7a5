//! A subscription to one stream.
//!
//! A subscriber alternates between two modes. *Catching up*: it looks up the stream (its last revision, its metadata,
//! and the end of the log, all of one snapshot), reads it page by page up to that revision, and continues live after
//! that end. *Live*: it picks the stream's events, and the changes of its metadata, out of the ring. A subscriber whose
//! position lies before the ring looks the stream up again, however much was stored meanwhile by others. Invariants:
//! `next` only grows, so nothing comes twice; what a read would hide is skipped.

use std::collections::VecDeque;
use std::sync::Arc;

use gesta_core::backend::{History, LoadRequest, LogEnd, RowId, StreamSlice};
use gesta_core::{
    Checkpoint, Direction, Error, ErrorKind, Lifecycle, Position, Result, Revision, SharedEvent,
    StreamId, SubscribeFrom, Subscription, SubscriptionMessage,
};
use tokio::sync::watch;

use crate::lane::Lane;
use crate::pages::{CatchUp, Pages, Patience};
use crate::ring::Taken;
use crate::{Membership, Shared, Subscriber, subscription};

/// What one snapshot of the database says about the stream.
struct Snapshot {
    end: LogEnd,
    /// Row id and last revision of the stream; `None` if nothing was ever written to it.
    head: Option<(RowId, Revision)>,
    lifecycle: Lifecycle,
}

/// The stream to which the subscriber is subscribed.
struct Subject {
    stream: StreamId,
    /// The stream that holds its metadata; `None` for metadata streams.
    metadata: Option<StreamId>,
}

enum Mode {
    /// The subscriber reads the stream up to the revision of this snapshot. Then it is live from the end of the
    /// snapshot.
    CatchingUp(Snapshot),
    /// The subscriber has looked at every event of the log up to this position.
    Live(Position),
}

struct StreamSubscriber {
    hub: Arc<Shared>,
    /// History that the subscriber reads. Its checkpoints carry the incarnation of that history.
    history: History,
    lane: Arc<Lane>,
    generation: u64,
    head: watch::Receiver<Position>,
    subject: Subject,
    lifecycle: Lifecycle,
    mode: Mode,
    /// Next revision to hand over.
    next: Revision,
    events: VecDeque<SharedEvent>,
    catch_up: Option<CatchUp>,
    /// True from the message that the subscriber has caught up until it is told that it has fallen behind.
    live: bool,
    ended: bool,
    _membership: Membership,
}

pub(crate) async fn subscribe(
    hub: &Arc<Shared>,
    stream: StreamId,
    from: SubscribeFrom,
) -> Result<Subscription> {
    subscription(|| begin(hub, &stream, &from)).await
}

/// Finds where the subscriber begins. Returns `None` if the history has changed meanwhile.
async fn begin(
    hub: &Arc<Shared>,
    stream: &StreamId,
    from: &SubscribeFrom,
) -> Result<Option<StreamSubscriber>> {
    let lane = hub
        .lane_of(stream)
        .ok_or_else(|| Error::corrupt("the store has no logs"))?;
    let history = hub.backend.history();
    let membership = hub.enter([lane]);
    let head = lane.head.subscribe();
    let subject = Subject::new(stream.clone());
    let snapshot = subject.load(&hub.pages, lane, Patience::No).await?;
    if hub.backend.history() != history {
        return Ok(None);
    }
    let last = snapshot.head.map(|(_, last)| last);
    let after = match from {
        SubscribeFrom::Start => None,
        SubscribeFrom::Revision(revision) => Some(*revision),
        SubscribeFrom::Checkpoint(checkpoint) => {
            checkpoint.revision_for(history.incarnation, &subject.stream)?
        }
        SubscribeFrom::End => last,
    };
    if after > last {
        return Err(ErrorKind::InvalidCheckpoint(format!(
            "it is above the last revision of stream {}",
            subject.stream
        ))
        .into());
    }
    let Some(generation) = lane.awaken(history.number, &snapshot.end) else {
        return Ok(None);
    };
    Ok(Some(StreamSubscriber {
        history,
        generation,
        head,
        subject,
        lifecycle: snapshot.lifecycle.clone(),
        mode: Mode::CatchingUp(snapshot),
        next: after.map_or(Revision(0), Revision::next),
        events: VecDeque::new(),
        catch_up: None,
        live: false,
        ended: false,
        _membership: membership,
        lane: Arc::clone(lane),
        hub: Arc::clone(hub),
    }))
}

impl Subject {
    fn new(stream: StreamId) -> Self {
        let metadata = stream
            .described_stream()
            .is_none()
            .then(|| stream.metadata_stream());
        Self { stream, metadata }
    }

    /// Looks the stream up in one snapshot.
    async fn load(&self, pages: &Pages, lane: &Lane, patience: Patience) -> Result<Snapshot> {
        let described = self.stream.described_stream();
        let name = described.as_ref().unwrap_or(&self.stream);
        let request = LoadRequest {
            streams: vec![name.clone()],
            types: Vec::new(),
        };
        let mut loaded = pages.load(lane.log, request, patience).await?;
        let end = loaded.end;
        let found = loaded.streams.pop().unwrap_or_default();
        let row = |head: gesta_core::backend::StreamHead| (head.row, head.last);
        if described.is_some() {
            return Ok(Snapshot {
                end,
                head: found.meta.map(|meta| row(meta.head)),
                lifecycle: Lifecycle::default(),
            });
        }
        let lifecycle = match &found.meta {
            Some(meta) => Lifecycle::from_event(&meta.data, &meta.metadata)?,
            None => Lifecycle::default(),
        };
        if lifecycle.tombstoned {
            return Err(ErrorKind::StreamTombstoned(self.stream.clone()).into());
        }
        Ok(Snapshot {
            end,
            head: found.head.map(row),
            lifecycle,
        })
    }
}

impl Subscriber for StreamSubscriber {
    async fn next(&mut self) -> Option<Result<SubscriptionMessage>> {
        while !self.ended {
            let found = match self.hand_over() {
                Ok(None) => Box::pin(self.look()).await,
                found => found,
            };
            match found {
                Ok(Some(message)) => return Some(Ok(message)),
                Ok(None) => {}
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error.during("subscription")));
                }
            }
        }
        None
    }
}

impl StreamSubscriber {
    /// Makes the next message of the events at hand; `None` if no message is left in them.
    fn hand_over(&mut self) -> Result<Option<SubscriptionMessage>> {
        while let Some(event) = self.events.pop_front() {
            if event.stream == self.subject.stream {
                if event.revision >= self.next && self.shows(&event) {
                    self.next = event.revision.next();
                    let checkpoint = self.checkpoint();
                    return Ok(Some(SubscriptionMessage::Event { event, checkpoint }));
                }
            } else if self.subject.metadata.as_ref() == Some(&event.stream) {
                self.lifecycle = Lifecycle::from_event(&event.data, &event.metadata)?;
                if self.lifecycle.tombstoned {
                    let stream = self.subject.stream.clone();
                    return Err(ErrorKind::StreamTombstoned(stream).into());
                }
            }
        }
        Ok(None)
    }

    /// Returns true if a read would show this event as the last one of the stream.
    fn shows(&self, event: &SharedEvent) -> bool {
        let now = self.hub.clock.now();
        let visibility = self.lifecycle.visibility(event.revision, now);
        visibility.shows(event.revision, event.created)
    }

    fn checkpoint(&self) -> Checkpoint {
        let done = self.next.0.checked_sub(1).map(Revision);
        Checkpoint::stream(self.history.incarnation, &self.subject.stream, done)
    }

    /// Gets the next events at hand, and waits for them if there are none.
    async fn look(&mut self) -> Result<Option<SubscriptionMessage>> {
        tokio::task::coop::consume_budget().await;
        self.hub.check_open()?;
        self.hub.check_history(self.history)?;
        let position = match &self.mode {
            Mode::CatchingUp(_) => return self.read().await,
            Mode::Live(position) => *position,
        };
        self.head.borrow_and_update();
        match self
            .lane
            .take(self.generation, position, &mut self.events)?
        {
            Taken::Events(covered) => self.mode = Mode::Live(covered),
            Taken::BeforeRing(_) if self.live => {
                self.live = false;
                return Ok(Some(SubscriptionMessage::FellBehind(self.checkpoint())));
            }
            Taken::BeforeRing(_) => {
                if self.catch_up.is_none() {
                    self.catch_up = Some(self.hub.pages.begin_catch_up());
                }
                let snapshot = self
                    .subject
                    .load(&self.hub.pages, &self.lane, Patience::Yes)
                    .await?;
                self.hub.check_history(self.history)?;
                self.lifecycle = snapshot.lifecycle.clone();
                self.mode = Mode::CatchingUp(snapshot);
            }
            Taken::Nothing => {
                // The sender lives in the lane, which this reader holds.
                let _ = self.head.changed().await;
            }
        }
        Ok(None)
    }

    /// Reads the next page up to the end of the snapshot, or goes live if nothing is left to read.
    async fn read(&mut self) -> Result<Option<SubscriptionMessage>> {
        let Mode::CatchingUp(snapshot) = &self.mode else {
            return Ok(None);
        };
        let end = snapshot.end.position;
        let Some(slice) = self.slice_left(snapshot) else {
            let last = snapshot.head.map(|(_, last)| last);
            self.next = self.next.max(last.map_or(Revision(0), Revision::next));
            self.mode = Mode::Live(end);
            if !self.lane.reaches(end) {
                return Ok(None);
            }
            self.catch_up = None;
            self.live = true;
            return Ok(Some(SubscriptionMessage::CaughtUp(self.checkpoint())));
        };
        if self.catch_up.is_none() {
            self.catch_up = Some(self.hub.pages.begin_catch_up());
        }
        let to = slice.to;
        let rows = self.hub.pages.stream(slice).await?;
        self.hub.check_history(self.history)?;
        if rows.complete {
            // What follows in the snapshot is hidden or gone.
            if let Mode::CatchingUp(snapshot) = &mut self.mode {
                snapshot.head = None;
            }
        }
        self.events = rows.events.into_iter().map(Arc::new).collect();
        if rows.complete && self.events.is_empty() {
            self.next = self.next.max(to.next());
        }
        Ok(None)
    }

    /// Returns the revisions of the snapshot that are still to be read; `None` if there are none.
    fn slice_left(&self, snapshot: &Snapshot) -> Option<StreamSlice> {
        let (row, last) = snapshot.head?;
        let visibility = snapshot.lifecycle.visibility(last, self.hub.clock.now());
        let from = self.next.max(visibility.from);
        (from <= last).then(|| StreamSlice {
            log: self.lane.log,
            stream: self.subject.stream.clone(),
            stream_row: row,
            from,
            to: last,
            created_from: visibility.created_from,
            direction: Direction::Forwards,
            limit: 1,
        })
    }
}
