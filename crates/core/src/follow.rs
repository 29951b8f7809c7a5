//! Following events: a subscription as a program reads it that wants events and where to resume.
//!
//! Not here: subscriptions themselves (`store`), following links (`links`).

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::ids::Revision;
use crate::links::{ResolvedMessage, resolve_subscription};
use crate::request::{SharedEvent, Subscribe, SubscribeFrom, SubscribeTo};
use crate::store::{EventStore, SubscriptionMessage};

/// A subscription that has not begun. It begins when it is awaited; without another word, at the first event.
///
/// # Examples
/// ```
/// # use std::sync::Arc;
/// # use gesta_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let store = Arc::new(gesta_memory::MemoryStore::new());
/// # store.append_to("cart-1", ExpectedRevision::Any, [EventData::new("item-added", "book")?]).await?;
/// let mut carts = Follow::new(store, Filter::category("cart")).from_start().await?;
/// while let Some(next) = carts.next().await {
///     let (event, checkpoint) = next?;
///     let item: String = event.json()?;
///     println!("{item}; resume after it with {checkpoint}");
/// #   break;
/// }
/// # Ok(()) }
/// ```
#[must_use = "nothing is followed until it is awaited"]
pub struct Follow {
    store: Arc<dyn EventStore>,
    to: Result<SubscribeTo>,
    from: SubscribeFrom,
    resolve_links: bool,
}

impl Follow {
    /// Makes a subscription to the events that pass a filter, or to those of one stream, which may be given by its
    /// name.
    pub fn new(
        store: Arc<dyn EventStore>,
        to: impl TryInto<SubscribeTo, Error: Into<Error>>,
    ) -> Self {
        Self {
            store,
            to: to.try_into().map_err(Into::into),
            from: SubscribeFrom::Start,
            resolve_links: false,
        }
    }

    /// Begins with the first event.
    pub fn from_start(self) -> Self {
        self.from(SubscribeFrom::Start)
    }

    /// Begins after the place of this checkpoint. `None`, the checkpoint of who has none yet, begins with the first
    /// event.
    pub fn from_checkpoint(self, checkpoint: impl Into<Option<Checkpoint>>) -> Self {
        self.from(match checkpoint.into() {
            Some(checkpoint) => SubscribeFrom::Checkpoint(checkpoint),
            None => SubscribeFrom::Start,
        })
    }

    /// Begins after this revision of the stream. This is for one stream only.
    pub fn from_revision(self, after: Revision) -> Self {
        self.from(SubscribeFrom::Revision(after))
    }

    /// Delivers only events that are stored from now on.
    pub fn from_end(self) -> Self {
        self.from(SubscribeFrom::End)
    }

    /// Delivers the events to which links lead in place of the links: for virtual streams such as `$ce-cart`.
    pub fn resolve_links(mut self) -> Self {
        self.resolve_links = true;
        self
    }

    fn from(mut self, from: SubscribeFrom) -> Self {
        self.from = from;
        self
    }

    async fn begin(self) -> Result<Following> {
        let request = Subscribe::to(self.to?).from(self.from);
        let subscription = self.store.subscribe(request).await?;
        let messages = if self.resolve_links {
            resolve_subscription(self.store, subscription).boxed()
        } else {
            let unresolved = subscription.map(|message| {
                message.map(|message| ResolvedMessage {
                    message,
                    link: None,
                })
            });
            unresolved.boxed()
        };
        Ok(Following { messages })
    }
}

impl IntoFuture for Follow {
    type Output = Result<Following>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.begin())
    }
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow")
            .field("to", &self.to)
            .field("from", &self.from)
            .field("resolve_links", &self.resolve_links)
            .finish_non_exhaustive()
    }
}

/// A subscription that gives events, each with the checkpoint from which to go on after it. Dropping it ends it.
///
/// It ends with an error when the store closes (`Unavailable`), the connection to the server breaks (`Unavailable`), or
/// the stream gets a tombstone (`StreamTombstoned`). Who has kept the last checkpoint follows again from there.
pub struct Following {
    messages: BoxStream<'static, Result<ResolvedMessage>>,
}

impl Following {
    /// Waits for the next event. Returns `None` once the subscription has ended with an error.
    ///
    /// # Errors
    /// The error with which the subscription ends.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Result<(SharedEvent, Checkpoint)>> {
        StreamExt::next(self).await
    }

    /// Waits for the next message: an event, with the link that led to it, or what the subscription says besides. For
    /// who keeps checkpoints also while a filter passes over much, or wants to know when what follows is live. Returns
    /// `None` once the subscription has ended with an error.
    ///
    /// # Errors
    /// The error with which the subscription ends.
    ///
    /// # Cancel safety
    /// Dropping the future loses no message.
    pub async fn next_message(&mut self) -> Option<Result<ResolvedMessage>> {
        self.messages.next().await
    }
}

impl Stream for Following {
    type Item = Result<(SharedEvent, Checkpoint)>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            return match self.messages.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(message))) => match message.message {
                    SubscriptionMessage::Event { event, checkpoint } => {
                        Poll::Ready(Some(Ok((event, checkpoint))))
                    }
                    SubscriptionMessage::Checkpoint(_)
                    | SubscriptionMessage::CaughtUp(_)
                    | SubscriptionMessage::FellBehind(_) => continue,
                },
                Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            };
        }
    }
}

impl fmt::Debug for Following {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Following")
    }
}
