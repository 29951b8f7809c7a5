//! Subscriptions to virtual streams.
//!
//! A subscriber reads links page by page from the index. Once it has caught up it follows the events of the log that
//! belong to its stream, through the hub. They only wake it: what it hands over comes from the index, which knows the
//! revisions. The subscription to the log begins before the first page is read, so no event is missed between the two.
//! Invariants: `next` only grows, so nothing comes twice; a subscriber holds one page of links, however slow it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::backend::{EntrySlice, History};
use gesta_core::{
    BackOff, CATEGORY_PREFIX, Checkpoint, Direction, Error, ErrorKind, EventType, Filter, Position,
    Query, RecordedEvent, Result, Revision, SharedEvent, StreamId, Subscribe, SubscribeFrom,
    SubscribeTo, Subscription, SubscriptionMessage, TYPE_PREFIX, virtual_streams_of,
};
use gesta_tail::Hub;

use super::VirtualStreams;

/// Largest number of links in one page of a subscriber.
const PAGE_LINKS: usize = 1_000;
/// Shortest pause of a subscriber while the database or the index does not answer.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause of a subscriber while the database or the index does not answer.
const PAUSE_MAX: Duration = Duration::from_secs(5);

struct Subscriber {
    streams: Arc<VirtualStreams>,
    stream: StreamId,
    history: History,
    /// Subscription to the events of the log that are stored from the beginning of this subscription on.
    log: Subscription,
    /// Next revision to hand over.
    next: Revision,
    links: VecDeque<SharedEvent>,
    /// Part of the log whose entries may not be read yet: up to this position, or up to the end of the log if no
    /// position is known. `None` if all entries are read.
    behind: Option<Option<Position>>,
    /// True once the subscriber has said that it has caught up.
    live: bool,
    /// True from when the subscription to the log has fallen behind until it has caught up.
    fell_behind: bool,
    ended: bool,
}

/// Begins a subscription to a virtual stream.
pub(crate) async fn subscribe(
    streams: &Arc<VirtualStreams>,
    hub: &Hub,
    stream: StreamId,
    from: SubscribeFrom,
) -> Result<Subscription> {
    let history = streams.backend.history();
    let to_log = Subscribe {
        to: SubscribeTo::All(filter_of(&stream)),
        from: SubscribeFrom::End,
    };
    let log = hub.subscribe(to_log).await?;
    let last = streams.last(&stream).await?;
    let after = match from {
        SubscribeFrom::Start => None,
        SubscribeFrom::Revision(revision) => Some(revision),
        SubscribeFrom::Checkpoint(checkpoint) => {
            checkpoint.revision_for(history.incarnation, &stream)?
        }
        SubscribeFrom::End => last,
    };
    if after > last {
        let text = format!("it is above the last revision of stream {stream}");
        return Err(ErrorKind::InvalidCheckpoint(text).into());
    }
    let subscriber = Subscriber {
        streams: Arc::clone(streams),
        stream,
        history,
        log,
        next: after.map_or(Revision(0), Revision::next),
        links: VecDeque::new(),
        behind: Some(None),
        live: false,
        fell_behind: false,
        ended: false,
    };
    let messages = futures::stream::unfold(Box::new(subscriber), |mut subscriber| async move {
        let message = subscriber.next().await?;
        Some((message, subscriber))
    });
    Ok(Subscription::new(messages))
}

impl VirtualStreams {
    /// Reads the last revision of a virtual stream, of everything that is committed now.
    async fn last(&self, stream: &StreamId) -> Result<Option<Revision>> {
        let slice = EntrySlice {
            stream: stream.clone(),
            from: Revision::MAX,
            to: Revision::MAX,
            direction: Direction::Forwards,
            limit: 1,
        };
        Ok(self.links(slice).await?.last)
    }
}

/// Makes a filter that lets through all events that can stand in a virtual stream, and few others.
fn filter_of(stream: &StreamId) -> Filter {
    let name = stream.as_str();
    let mut query = Query::default();
    if let Some(category) = name.strip_prefix(CATEGORY_PREFIX) {
        query.categories = vec![category.to_owned()];
    } else if let Some(event_type) = name.strip_prefix(TYPE_PREFIX) {
        query.types.extend(EventType::new(event_type));
    }
    Filter::query(query)
}

impl Subscriber {
    /// Waits for the next message. Returns `None` once the subscription has ended.
    async fn next(&mut self) -> Option<Result<SubscriptionMessage>> {
        if self.ended {
            return None;
        }
        let message = self.message().await;
        self.ended = message.is_err();
        Some(message)
    }

    async fn message(&mut self) -> Result<SubscriptionMessage> {
        loop {
            if let Some(event) = self.links.pop_front() {
                let revision = event.revision;
                let checkpoint = self.checkpoint(Some(revision));
                return Ok(SubscriptionMessage::Event { event, checkpoint });
            }
            if let Some(end) = self.behind {
                self.read_on(end).await?;
            } else if !self.live {
                self.live = true;
                return Ok(SubscriptionMessage::CaughtUp(self.reached()));
            } else if let Some(message) = self.follow().await? {
                return Ok(message);
            }
        }
    }

    /// Returns the checkpoint after what was delivered.
    fn reached(&self) -> Checkpoint {
        self.checkpoint(self.next.0.checked_sub(1).map(Revision))
    }

    fn checkpoint(&self, revision: Option<Revision>) -> Checkpoint {
        Checkpoint::stream(self.history.incarnation, &self.stream, revision)
    }

    /// Waits for the next event of the log, and notes whether it stands in this stream. Whoever falls behind in the log
    /// falls behind here; that the log has been caught up with counts only after that.
    async fn follow(&mut self) -> Result<Option<SubscriptionMessage>> {
        let ended = || Error::unavailable("the subscription has ended");
        match self.log.next().await.ok_or_else(ended)?? {
            SubscriptionMessage::Event { event, .. } => {
                self.behind = stands_in(&self.stream, &event).then_some(Some(event.position));
            }
            SubscriptionMessage::FellBehind(_) => {
                self.fell_behind = true;
                return Ok(Some(SubscriptionMessage::FellBehind(self.reached())));
            }
            SubscriptionMessage::CaughtUp(_) if std::mem::take(&mut self.fell_behind) => {
                return Ok(Some(SubscriptionMessage::CaughtUp(self.reached())));
            }
            SubscriptionMessage::CaughtUp(_) | SubscriptionMessage::Checkpoint(_) => {}
        }
        Ok(None)
    }

    /// Reads the next page of links. It waits while the database does not answer.
    async fn read_on(&mut self, end: Option<Position>) -> Result<()> {
        let mut back_off = BackOff::new(PAUSE_MIN, PAUSE_MAX);
        loop {
            let slice = EntrySlice {
                stream: self.stream.clone(),
                from: self.next,
                to: Revision::MAX,
                direction: Direction::Forwards,
                limit: PAGE_LINKS,
            };
            let found = match end {
                Some(end) => self.streams.links_of_log(slice, end).await,
                None => self.streams.links(slice).await,
            };
            self.check_history()?;
            match found {
                Ok(links) => {
                    self.behind = links.next.map(|_| end);
                    let after_last = links.last.map_or(self.next, Revision::next);
                    self.next = links.next.unwrap_or(after_last).max(self.next);
                    self.links = links.events.into_iter().map(Arc::new).collect();
                    return Ok(());
                }
                Err(error)
                    if error.is_retryable() && !self.streams.indexer.closed().is_cancelled() =>
                {
                    tokio::time::sleep(back_off.pause()).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Checks that the history of the store is the one in which the subscription began.
    ///
    /// # Errors
    /// `InvalidCheckpoint` if the store has another history now.
    fn check_history(&self) -> Result<()> {
        let now = self.streams.backend.history();
        if now == self.history {
            return Ok(());
        }
        let text = format!(
            "it is of incarnation {}, the store is now {}: the database has lost commits, was restored or replaced",
            self.history.incarnation, now.incarnation
        );
        Err(ErrorKind::InvalidCheckpoint(text).into())
    }
}

fn stands_in(stream: &StreamId, event: &RecordedEvent) -> bool {
    let found = virtual_streams_of(&event.stream, event.revision, &event.event_type);
    found.iter().any(|(_, name)| name == stream)
}
