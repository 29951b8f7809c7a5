//! Links are followed here, in pages and in subscriptions.
//!
//! Invariants: what a link leads to is what a read of its stream shows; each event keeps its place, and a page that
//! gets too large is cut, never skipped.
//! Not here: what a link is (`virtual_stream`); following many links at once (`gesta-store`).

use std::collections::VecDeque;
use std::sync::Arc;

use futures::Stream;
use futures::stream::{self, BoxStream, StreamExt};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::event::RecordedEvent;
use crate::ids::Revision;
use crate::limits::PAGE_BYTES_MAX;
use crate::request::{ReadStream, SharedEvent, StreamFrom};
use crate::resolved::Resolved;
use crate::store::{EventStore, Subscription, SubscriptionMessage};
use crate::virtual_stream::LinkTarget;

/// Largest number of messages of a subscription whose links are followed together.
const MESSAGES_AT_ONCE: usize = 256;

/// One page of a stream whose links were followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResolvedPage {
    /// The events, in the direction of the read.
    pub events: Vec<Resolved>,
    /// Revision to continue from, as in [`StreamPage`](crate::StreamPage).
    pub next: Option<Revision>,
    /// True if the stream had no further events in this direction when the page was read.
    pub end: bool,
    /// Last revision of the stream when the page was read.
    pub last_revision: Revision,
}

/// A message of a subscription whose links are followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResolvedMessage {
    /// The message. Its event is the one to which the link led.
    pub message: SubscriptionMessage,
    /// The link that led to the event; `None` if no link did.
    pub link: Option<SharedEvent>,
}

/// Follows links one after the other, by a read of a stream for each.
///
/// # Errors
/// As [`EventStore::resolve`].
///
/// # Cancel safety
/// Dropping the future changes nothing.
pub async fn resolve_one_by_one<S: EventStore + ?Sized>(
    store: &S,
    events: Vec<SharedEvent>,
) -> Result<Vec<Resolved>> {
    let mut resolved = Vec::with_capacity(events.len());
    let mut bytes = 0_usize;
    for event in events {
        let found = follow(store, event).await?;
        bytes = bytes.saturating_add(found.cost_bytes());
        if bytes > PAGE_BYTES_MAX && !resolved.is_empty() {
            break;
        }
        resolved.push(found);
    }
    Ok(resolved)
}

async fn follow<S: EventStore + ?Sized>(store: &S, event: SharedEvent) -> Result<Resolved> {
    let target = LinkTarget::of(&event).filter(|target| !target.stream.is_virtual());
    let Some(LinkTarget { stream, revision }) = target else {
        return Ok(Resolved::itself(event));
    };
    let read = ReadStream::forwards(stream)
        .from(StreamFrom::Revision(revision))
        .limit(1);
    let found = match store.read_stream(read).await {
        Ok(page) => page.events.into_iter().next(),
        Err(error) if leads_nowhere(&error) => None,
        Err(error) => return Err(error),
    };
    Ok(match found.filter(|found| found.revision == revision) {
        Some(found) => Resolved {
            event: Arc::new(found),
            link: Some(event),
        },
        None => Resolved::itself(event),
    })
}

fn leads_nowhere(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StreamNotFound(_) | ErrorKind::StreamTombstoned(_)
    )
}

pub(crate) async fn read_stream_resolved<S: EventStore + ?Sized>(
    store: &S,
    request: ReadStream,
) -> Result<ResolvedPage> {
    let page = store.read_stream(request).await?;
    let revisions: Vec<Revision> = page.events.iter().map(|event| event.revision).collect();
    let is_link = |event: &RecordedEvent| LinkTarget::of(event).is_some();
    let any = page.events.iter().any(is_link);
    let shared = page.events.into_iter().map(Arc::new);
    let events = match any {
        true => store.resolve(shared.collect()).await?,
        false => shared.map(Resolved::itself).collect(),
    };
    let cut = revisions.get(events.len()).copied();
    Ok(ResolvedPage {
        events,
        next: cut.or(page.next),
        end: page.end && cut.is_none(),
        last_revision: page.last_revision,
    })
}

struct Following {
    store: Arc<dyn EventStore>,
    messages: BoxStream<'static, Vec<Result<SubscriptionMessage>>>,
    /// Messages that have come and whose links are not followed yet.
    pending: VecDeque<Result<SubscriptionMessage>>,
    ready: VecDeque<ResolvedMessage>,
    ended: bool,
}

/// Returns the messages of a subscription with their links followed. Links of messages that have come by the same time
/// are followed together. The stream ends with the error of the subscription, or with one of following links. The
/// consumer resumes with the last checkpoint.
pub fn resolve_subscription(
    store: Arc<dyn EventStore>,
    subscription: Subscription,
) -> impl Stream<Item = Result<ResolvedMessage>> + Send + 'static {
    let following = Following {
        store,
        messages: subscription.ready_chunks(MESSAGES_AT_ONCE).boxed(),
        pending: VecDeque::new(),
        ready: VecDeque::new(),
        ended: false,
    };
    stream::unfold(following, |mut following| async move {
        let message = following.next().await?;
        Some((message, following))
    })
}

impl Following {
    async fn next(&mut self) -> Option<Result<ResolvedMessage>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(Ok(message));
            }
            if self.ended {
                return None;
            }
            if self.pending.is_empty() {
                match self.messages.next().await {
                    Some(messages) => self.pending = messages.into(),
                    None => self.ended = true,
                }
            } else if let Err(error) = self.resolve().await {
                self.ended = true;
                return Some(Err(error));
            }
        }
    }

    /// Follows the links of the pending messages, as far as one page goes.
    async fn resolve(&mut self) -> Result<()> {
        let before_error = self
            .pending
            .iter()
            .map_while(|message| message.as_ref().ok());
        let events = before_error.filter_map(|message| match message {
            SubscriptionMessage::Event { event, .. } => Some(Arc::clone(event)),
            SubscriptionMessage::Checkpoint(_)
            | SubscriptionMessage::CaughtUp(_)
            | SubscriptionMessage::FellBehind(_) => None,
        });
        let events: Vec<SharedEvent> = events.collect();
        let asked = events.len();
        let any = events.iter().any(|event| LinkTarget::of(event).is_some());
        let resolved = match any {
            true => self.store.resolve(events).await?,
            false => events.into_iter().map(Resolved::itself).collect(),
        };
        let mut resolved = resolved.into_iter();
        if asked > 0 && resolved.len() == 0 {
            return Err(Error::corrupt("the store gave no answer about links"));
        }
        loop {
            let message = match self.pending.pop_front() {
                Some(Ok(SubscriptionMessage::Event { event, checkpoint })) => {
                    match resolved.next() {
                        Some(resolved) => with_link(resolved, checkpoint),
                        None => {
                            let again = SubscriptionMessage::Event { event, checkpoint };
                            self.pending.push_front(Ok(again));
                            return Ok(());
                        }
                    }
                }
                Some(Ok(message)) => ResolvedMessage {
                    message,
                    link: None,
                },
                // What came before it is handed over first.
                Some(Err(error)) if self.ready.is_empty() => return Err(error),
                Some(Err(error)) => {
                    self.pending.push_front(Err(error));
                    return Ok(());
                }
                None => return Ok(()),
            };
            self.ready.push_back(message);
        }
    }
}

fn with_link(resolved: Resolved, checkpoint: Checkpoint) -> ResolvedMessage {
    let Resolved { event, link } = resolved;
    ResolvedMessage {
        message: SubscriptionMessage::Event { event, checkpoint },
        link,
    }
}
