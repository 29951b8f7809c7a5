//! The [`EventStore`] trait: all that an application or a server needs of a store.

use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use futures::Stream;
use futures::stream::{BoxStream, StreamExt};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::ids::{Incarnation, StreamId};
use crate::info::StoreInfo;
use crate::request::{
    AllPage, Append, Appended, DeleteStream, Deleted, ListStreams, MetadataSet, ReadAll,
    ReadStream, SetStreamMetadata, SharedEvent, StreamMetadataRecord, StreamPage, StreamsPage,
    Subscribe,
};
use crate::resolved::Resolved;

/// A message that a subscription delivers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubscriptionMessage {
    /// An event, with the checkpoint from which a subscription resumes after it.
    Event {
        /// The event, shared with other subscribers.
        event: SharedEvent,
        /// Checkpoint right after the event.
        checkpoint: Checkpoint,
    },
    /// The subscription has looked at everything up to this place. A subscription to all events delivers this message
    /// at each 1,000th position of a log, or at each 10,000th while it is live, if no event there passes its filter. It
    /// may deliver it at other places too.
    Checkpoint(Checkpoint),
    /// The subscriber has seen all that was stored up to this place; what follows is live. The message comes again when
    /// the subscriber had to catch up again.
    CaughtUp(Checkpoint),
    /// The subscriber, which was live, was too slow, and reads from the store from this place on. When it is live again
    /// it is told that it has caught up.
    FellBehind(Checkpoint),
}

/// An endless read. Dropping it ends it and frees what it held.
///
/// A subscription ends with an error when the store closes (`Unavailable`), the stream gets a tombstone
/// (`StreamTombstoned`), or stored data cannot be read. The consumer resumes with the last checkpoint.
pub struct Subscription {
    messages: BoxStream<'static, Result<SubscriptionMessage>>,
}

impl Subscription {
    /// Makes a subscription of a stream of messages.
    #[must_use]
    pub fn new(messages: impl Stream<Item = Result<SubscriptionMessage>> + Send + 'static) -> Self {
        Self {
            messages: messages.fuse().boxed(),
        }
    }

    /// Waits for the next message. Returns `None` once the subscription has ended with an error.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<SubscriptionMessage>> {
        self.messages.next().await
    }

    /// Waits for the next event and skips other messages.
    ///
    /// # Errors
    /// Those of the subscription; `Unavailable` when the subscription has ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn next_event(&mut self) -> Result<SharedEvent> {
        loop {
            match self.next().await {
                Some(Ok(SubscriptionMessage::Event { event, .. })) => return Ok(event),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Err(Error::unavailable("the subscription has ended")),
            }
        }
    }
}

impl Stream for Subscription {
    type Item = Result<SubscriptionMessage>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.messages.poll_next_unpin(cx)
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Subscription")
    }
}

/// An event store that keeps the contract C1–C10 (see `docs/reference/contract.md`).
///
/// All methods take `&self`. An application shares a store as `Arc<dyn EventStore>`.
#[async_trait]
pub trait EventStore: Send + Sync + 'static {
    /// Returns what the store is, and the last position of each log.
    ///
    /// # Errors
    /// `Unavailable` if the store does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let store = gesta_memory::MemoryStore::new();
    /// let info = store.info().await?;
    /// println!("{} on {}, {} logs, heads {:?}", info.incarnation, info.backend, info.logs, info.heads);
    /// # Ok(()) }
    /// ```
    async fn info(&self) -> Result<StoreInfo>;

    /// Returns the incarnation that the store has, as far as this process has noticed. A store of this process asks no
    /// database for that: what it has answered so far is of this incarnation, or of an earlier one.
    ///
    /// # Errors
    /// `Unavailable` if the store is reached through a server that does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    async fn incarnation(&self) -> Result<Incarnation>;

    /// Tells whether an append can succeed now, as far as this can be told without appending.
    ///
    /// The call is for probes: its answer may be outdated when it arrives. A wrapper asks the store that it wraps.
    ///
    /// # Errors
    /// `Unavailable` with the reason if an append cannot succeed now.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let store = gesta_memory::MemoryStore::new();
    /// if let Err(error) = store.ready().await {
    ///     println!("appends fail at present: {error}");
    /// }
    /// # Ok(()) }
    /// ```
    async fn ready(&self) -> Result<()>;

    /// Appends events to one stream, or to several streams of one log, whole or not at all.
    ///
    /// The call returns once the events are durable. A retry with the same event ids gets the first answer.
    ///
    /// # Errors
    /// `InvalidArgument`, `WrongExpectedRevision`, `StreamTombstoned`, `Refused`, `Overloaded`,
    /// `Unavailable`: nothing was written. `OutcomeUnknown`: retry with the same ids.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the append: it is stored whole or not at all. A retry with the same ids tells
    /// which.
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let store = gesta_memory::MemoryStore::new();
    /// let cart = StreamId::new("cart-1")?;
    /// // The id is drawn here, before the first attempt, and is the same in every attempt.
    /// let added = EventData::new("item-added", &["book"])?;
    /// let append = Append::to(cart, ExpectedRevision::NoStream, vec![added]);
    /// let first = store.append(append.clone()).await?;
    /// let again = store.append(append).await?;
    /// assert_eq!(first, again);
    /// assert_eq!(first.streams[0].first_revision, Revision(0));
    /// # Ok(()) }
    /// ```
    async fn append(&self, request: Append) -> Result<Appended>;

    /// Reads one page of a stream.
    ///
    /// # Errors
    /// `InvalidArgument`, `StreamNotFound`, `StreamTombstoned`, `Unavailable`, `Corrupt`.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let store = gesta_memory::MemoryStore::new();
    /// # let event = EventData::new("item-added", &["book"])?;
    /// # store.append_to("cart-1", ExpectedRevision::Any, [event]).await?;
    ///
    /// let cart = StreamId::new("cart-1")?;
    /// let mut request = ReadStream::forwards(cart).limit(100);
    /// loop {
    ///     let page = store.read_stream(request.clone()).await?;
    ///     for event in &page.events {
    ///         println!("{} {}", event.revision, event.event_type);
    ///     }
    ///     match page.next {
    ///         Some(next) if !page.end => request = request.from(StreamFrom::Revision(next)),
    ///         _ => break,
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage>;

    /// Reads one page of all events.
    ///
    /// # Errors
    /// `InvalidArgument`, `InvalidCheckpoint`, `Unavailable`, `Corrupt`.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let store = gesta_memory::MemoryStore::new();
    /// # let event = EventData::new("item-added", &["book"])?;
    /// # store.append_to("cart-1", ExpectedRevision::Any, [event]).await?;
    ///
    /// let mut request = ReadAll::forwards().filter(Filter::category("cart"));
    /// loop {
    ///     let page = store.read_all(request.clone()).await?;
    ///     for event in &page.events {
    ///         println!("{} {} {}", event.position, event.stream, event.event_type);
    ///     }
    ///     // With a filter a page may be empty before the end.
    ///     if page.end {
    ///         break;
    ///     }
    ///     request = request.from(AllFrom::Checkpoint(page.next));
    /// }
    /// # Ok(()) }
    /// ```
    async fn read_all(&self, request: ReadAll) -> Result<AllPage>;

    /// Reads one page of the streams that exist.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unavailable`.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let store = gesta_memory::MemoryStore::new();
    /// # let event = EventData::new("item-added", &["book"])?;
    /// # store.append_to("cart-1", ExpectedRevision::Any, [event]).await?;
    ///
    /// let page = store.list_streams(ListStreams::of_prefix("cart-")).await?;
    /// assert_eq!(page.streams[0].stream.as_str(), "cart-1");
    /// # Ok(()) }
    /// ```
    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage>;

    /// Deletes a stream. Its events stay readable through all events until they are scavenged.
    ///
    /// # Errors
    /// Those of [`append`](EventStore::append); `StreamNotFound` if the stream does not exist. A tombstone may be set
    /// on a stream that does not exist if `Any` or `NoStream` is expected.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the delete, as with [`append`](EventStore::append).
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let store = gesta_memory::MemoryStore::new();
    /// # let event = EventData::new("item-added", &["book"])?;
    /// # store.append_to("cart-1", ExpectedRevision::Any, [event]).await?;
    ///
    /// let cart = StreamId::new("cart-1")?;
    /// let request = DeleteStream::soft(cart.clone()).expecting(ExpectedRevision::Exact(Revision(0)));
    /// store.delete_stream(request).await?;
    /// let error = store.read_stream(ReadStream::forwards(cart)).await.expect_err("it is deleted");
    /// assert!(matches!(error.kind(), ErrorKind::StreamNotFound(_)));
    /// # Ok(()) }
    /// ```
    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted>;

    /// Reads the metadata of a stream. They are empty if none were set.
    ///
    /// # Errors
    /// `StreamTombstoned`, `Unavailable`, `Corrupt`.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let store = gesta_memory::MemoryStore::new();
    /// let record = store.stream_metadata(StreamId::new("cart-1")?).await?;
    /// assert_eq!(record.metadata.json(), "{}");
    /// # Ok(()) }
    /// ```
    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord>;

    /// Replaces the metadata of a stream.
    ///
    /// # Errors
    /// Those of [`append`](EventStore::append).
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the change, as with [`append`](EventStore::append).
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let store = gesta_memory::MemoryStore::new();
    /// let cart = StreamId::new("cart-1")?;
    /// let metadata = StreamMetadata::parse(r#"{"$maxCount": 100, "owner": "shop"}"#)?;
    /// // A claim about the metadata, not about the stream.
    /// let request = SetStreamMetadata::new(cart.clone(), metadata).expecting(ExpectedRevision::NoStream);
    /// store.set_stream_metadata(request).await?;
    /// assert_eq!(store.stream_metadata(cart).await?.metadata.max_count, Some(100));
    /// # Ok(()) }
    /// ```
    async fn set_stream_metadata(&self, request: SetStreamMetadata) -> Result<MetadataSet>;

    /// Begins an endless read. It catches up and then goes on live, without a gap and without delivering an event
    /// twice.
    ///
    /// `InvalidArgument`, `InvalidCheckpoint` (another incarnation, or after the last event), `StreamTombstoned`,
    /// `Unavailable`.
    ///
    /// # Cancel safety
    /// Dropping the future begins no subscription.
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let store = gesta_memory::MemoryStore::new();
    /// # let event = EventData::new("item-added", &["book"])?;
    /// # store.append_to("cart-1", ExpectedRevision::Any, [event]).await?;
    ///
    /// let mut messages = store.subscribe(Subscribe::to(StreamId::new("cart-1")?)).await?;
    /// while let Some(message) = messages.next().await {
    ///     match message? {
    ///         SubscriptionMessage::Event { event, checkpoint } => {
    ///             println!("{}; resume after it with {checkpoint}", event.event_type);
    ///         }
    ///         SubscriptionMessage::Checkpoint(checkpoint) => println!("nothing for us up to {checkpoint}"),
    ///         // What follows is live; the example ends here.
    ///         SubscriptionMessage::CaughtUp(_) => break,
    ///         SubscriptionMessage::FellBehind(_) => println!("we are slow, and get what we missed from the store"),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    async fn subscribe(&self, request: Subscribe) -> Result<Subscription>;

    /// Follows links: gives for each event, in their order, what it leads to, or itself if it is no link.
    ///
    /// A link leads to what a read of its stream shows: if the event is hidden, deleted or scavenged, or if the link
    /// names a virtual stream, the link stays as it is. The answer is a page: it may be shorter than the request, but
    /// holds one event at least unless the request is empty. A store that has no better way does it by
    /// [`resolve_one_by_one`](crate::resolve_one_by_one).
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let store = gesta_memory::MemoryStore::new();
    /// # let event = EventData::new("item-added", &["book"])?;
    /// # store.append_to("cart-1", ExpectedRevision::Any, [event]).await?;
    ///
    /// // Virtual streams hold links; `read_stream_resolved` does these two steps.
    /// let links = store.read_stream(ReadStream::forwards(StreamId::new("$ce-cart")?)).await?;
    /// assert_eq!(&links.events[0].data[..], b"0@cart-1");
    /// let resolved = store.resolve(links.events.into_iter().map(Into::into).collect()).await?;
    /// assert_eq!(resolved[0].event.event_type.as_str(), "item-added");
    /// # Ok(()) }
    /// ```
    async fn resolve(&self, events: Vec<SharedEvent>) -> Result<Vec<Resolved>>;

    /// Lets queued appends finish, ends subscriptions and closes the database. Later calls get `Unavailable`.
    ///
    /// # Errors
    /// `Unavailable` if the queue could not be drained.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop a shutdown that has begun.
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let store = gesta_memory::MemoryStore::new();
    /// store.shutdown().await?;
    /// assert!(store.info().await.is_err());
    /// # Ok(()) }
    /// ```
    async fn shutdown(&self) -> Result<()>;
}
