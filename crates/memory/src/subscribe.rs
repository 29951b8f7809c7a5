//! Subscriptions: each looks at the collections itself and waits until something was appended.
//!
//! Invariants: the cursor only moves forwards, past every event that was looked at, so nothing is sent twice or left
//! out; the wake-up is armed before looking, so none is missed.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::stream::{self, StreamExt};
use gesta_core::{
    CHECKPOINT_POSITIONS_CATCHING_UP, Checkpoint, ErrorKind, Filter, Position, Result, Revision,
    SharedEvent, StreamId, Subscribe, SubscribeFrom, SubscribeTo, Subscription,
    SubscriptionMessage,
};
use tokio::sync::watch;

use crate::shared::Inner;
use crate::state::State;

/// Largest number of events of one log that are looked at before those of the next one, whether they pass the filter or
/// not.
const LOOK_MAX: usize = 1_000;

/// What a subscriber reads, and how far it is.
enum Cursor {
    /// The subscriber reads all logs. The positions are the last one looked at in each.
    All(Filter, Vec<Position>),
    /// The subscriber reads one stream. The revision is the next one.
    Stream(StreamId, Revision),
}

struct Subscriber {
    store: Arc<Inner>,
    changed: watch::Receiver<u64>,
    cursor: Cursor,
    ready: VecDeque<SubscriptionMessage>,
    live: bool,
    ended: bool,
}

/// Begins a subscription.
pub(crate) fn subscribe(store: &Arc<Inner>, request: Subscribe) -> Result<Subscription> {
    request.validate()?;
    let cursor = {
        let mut state = store.lock();
        begin(store, state.open()?, request)?
    };
    let reader = Subscriber {
        store: Arc::clone(store),
        changed: store.changed.subscribe(),
        cursor,
        ready: VecDeque::new(),
        live: false,
        ended: false,
    };
    let messages = stream::unfold(reader, |mut reader| async {
        Some((reader.next().await?, reader))
    });
    Ok(Subscription::new(messages.fuse()))
}

fn begin(store: &Inner, state: &State, request: Subscribe) -> Result<Cursor> {
    match request.to {
        SubscribeTo::All(filter) => {
            let at = match request.from {
                SubscribeFrom::Start | SubscribeFrom::Revision(_) => {
                    vec![Position::START; state.logs.len()]
                }
                SubscribeFrom::Checkpoint(checkpoint) => store.positions(state, &checkpoint)?,
                SubscribeFrom::End => state.heads(),
            };
            Ok(Cursor::All(filter, at))
        }
        SubscribeTo::Stream(stream) => {
            state.check_has(&stream)?;
            state.lifecycle_unless_tombstoned(&stream)?;
            let last = state.last(&stream);
            let after = match request.from {
                SubscribeFrom::Start => None,
                SubscribeFrom::Revision(revision) => Some(revision),
                SubscribeFrom::Checkpoint(checkpoint) => {
                    checkpoint.revision_for(store.config.incarnation, &stream)?
                }
                SubscribeFrom::End => last,
            };
            if after > last {
                return Err(ErrorKind::InvalidCheckpoint(format!(
                    "it is above the last revision of stream {stream}"
                ))
                .into());
            }
            Ok(Cursor::Stream(
                stream,
                after.map_or(Revision(0), Revision::next),
            ))
        }
    }
}

impl Subscriber {
    async fn next(&mut self) -> Option<Result<SubscriptionMessage>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(Ok(message));
            }
            if self.ended {
                return None;
            }
            self.changed.borrow_and_update();
            if let Err(error) = self.look() {
                self.ended = true;
                return Some(Err(error));
            }
            // The sender lives in the store that this reader holds, so this cannot fail.
            if self.ready.is_empty() && self.live && self.changed.changed().await.is_err() {
                self.ended = true;
            }
        }
    }

    /// Looks at the next events, and makes messages of them.
    fn look(&mut self) -> Result<()> {
        let store = Arc::clone(&self.store);
        let before = self.checkpoint();
        let mut state = store.lock();
        let state = state.open()?;
        let at_head = match &self.cursor {
            Cursor::All(..) => self.look_at_all(state),
            Cursor::Stream(..) => self.look_at_stream(state)?,
        };
        if at_head && !self.live {
            self.ready
                .push_back(SubscriptionMessage::CaughtUp(self.checkpoint()));
        } else if !at_head && self.live {
            self.ready
                .push_front(SubscriptionMessage::FellBehind(before));
        }
        self.live = at_head;
        Ok(())
    }

    fn look_at_all(&mut self, state: &State) -> bool {
        for (log, events) in state.logs.iter().enumerate() {
            let from = self.position(log);
            let events = events.get(from..).unwrap_or_default();
            for event in events.iter().take(LOOK_MAX) {
                self.pass(log, event);
            }
        }
        matches!(&self.cursor, Cursor::All(_, at) if *at == state.heads())
    }

    /// Moves past one event, and sends the event if it passes the filter. Checkpoints come as often while the
    /// subscriber is live as while it catches up, which is more often than is promised.
    fn pass(&mut self, log: usize, event: &SharedEvent) {
        let Cursor::All(filter, at) = &mut self.cursor else {
            return;
        };
        at[log] = event.position;
        if filter.matches(event) {
            self.send(event);
        } else if event
            .position
            .0
            .is_multiple_of(CHECKPOINT_POSITIONS_CATCHING_UP)
        {
            self.ready
                .push_back(SubscriptionMessage::Checkpoint(self.checkpoint()));
        }
    }

    fn look_at_stream(&mut self, state: &State) -> Result<bool> {
        let Cursor::Stream(stream, from) = &self.cursor else {
            return Ok(true);
        };
        let (stream, from) = (stream.clone(), *from);
        let events = state.visible(&stream, self.store.config.clock.now())?;
        let mut rest = events.into_iter().filter(|event| event.revision >= from);
        for event in rest.by_ref().take(LOOK_MAX) {
            self.cursor = Cursor::Stream(stream.clone(), event.revision.next());
            self.send(&event);
        }
        let at_head = rest.next().is_none();
        if at_head {
            // What is hidden at the end is passed, too.
            let next = state
                .last(&stream)
                .map_or(from, |last| last.next().max(from));
            self.cursor = Cursor::Stream(stream, next);
        }
        Ok(at_head)
    }

    fn send(&mut self, event: &SharedEvent) {
        self.ready.push_back(SubscriptionMessage::Event {
            event: Arc::clone(event),
            checkpoint: self.checkpoint(),
        });
    }

    fn checkpoint(&self) -> Checkpoint {
        let incarnation = self.store.config.incarnation;
        match &self.cursor {
            Cursor::All(_, at) => Checkpoint::logs(incarnation, at.clone()),
            Cursor::Stream(stream, next) => {
                Checkpoint::stream(incarnation, stream, next.0.checked_sub(1).map(Revision))
            }
        }
    }

    fn position(&self, log: usize) -> usize {
        match &self.cursor {
            Cursor::All(_, at) => usize::try_from(at[log].0).unwrap_or(usize::MAX),
            Cursor::Stream(..) => usize::MAX,
        }
    }
}
