//! What is made of the calls of [`EventStore`], for programs that use one.

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::event::{EventData, RecordedEvent};
use crate::ids::{Revision, StreamId};
use crate::links::{self, ResolvedPage};
use crate::request::{
    AllFrom, Append, Appended, ExpectedRevision, ReadAll, ReadStream, StreamFrom,
};
use crate::store::EventStore;

/// Shorter forms of frequent calls, built on [`EventStore`].
///
/// # Cancel safety
/// Dropping the future of a read changes nothing. Dropping that of [`append_to`](Self::append_to) does not undo the
/// append, as with [`EventStore::append`].
#[async_trait]
pub trait EventStoreExt: EventStore {
    /// Appends events to one stream. Events that were appended before and are appended again, for example after an
    /// error, are a retry: their ids were drawn when they were made.
    ///
    /// # Errors
    /// Those of [`EventStore::append`].
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let store = gesta_memory::MemoryStore::new();
    /// let added = EventData::new("item-added", &["book"])?;
    /// let appended = store.append_to("cart-1", ExpectedRevision::NoStream, [added.clone()]).await?;
    /// assert_eq!(appended.streams[0].last_revision, Revision(0));
    /// // The same value once more stores nothing, and gets the first answer.
    /// assert_eq!(store.append_to("cart-1", ExpectedRevision::NoStream, [added]).await?, appended);
    /// # Ok(()) }
    /// ```
    fn append_to(
        &self,
        stream: impl TryInto<StreamId, Error: Into<Error>>,
        expected: ExpectedRevision,
        events: impl IntoIterator<Item = EventData>,
    ) -> impl Future<Output = Result<Appended>> + Send {
        let stream = stream.try_into().map_err(Into::into);
        let events = events.into_iter().collect();
        async move { self.append(Append::to(stream?, expected, events)).await }
    }

    /// Reads all readable events of a stream, page by page.
    ///
    /// # Errors
    /// Those of [`EventStore::read_stream`].
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
    /// let events = store.read_whole_stream("cart-1").await?;
    /// assert_eq!(events[0].event_type.as_str(), "item-added");
    /// # Ok(()) }
    /// ```
    fn read_whole_stream(
        &self,
        stream: impl TryInto<StreamId, Error: Into<Error>>,
    ) -> impl Future<Output = Result<Vec<RecordedEvent>>> + Send {
        let stream = stream.try_into().map_err(Into::into);
        async move {
            let mut request = ReadStream::forwards(stream?);
            let mut events = Vec::new();
            loop {
                let page = self.read_stream(request.clone()).await?;
                events.extend(page.events);
                match page.next {
                    Some(next) if !page.end => request.from = StreamFrom::Revision(next),
                    _ => return Ok(events),
                }
            }
        }
    }

    /// Reads one event of a stream.
    ///
    /// # Errors
    /// Those of [`EventStore::read_stream`]; `EventNotFound` if the stream has no readable event of this revision.
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
    /// let event = store.read_event("cart-1", Revision(0)).await?;
    /// assert_eq!(event.event_type.as_str(), "item-added");
    /// # Ok(()) }
    /// ```
    fn read_event(
        &self,
        stream: impl TryInto<StreamId, Error: Into<Error>>,
        revision: Revision,
    ) -> impl Future<Output = Result<RecordedEvent>> + Send {
        let stream = stream.try_into().map_err(Into::into);
        async move {
            let stream = stream?;
            let request = ReadStream::forwards(stream.clone())
                .from(StreamFrom::Revision(revision))
                .limit(1);
            let found = self.read_stream(request).await?.events.into_iter().next();
            found
                .filter(|event| event.revision == revision)
                .ok_or_else(|| ErrorKind::EventNotFound { stream, revision }.into())
        }
    }

    /// Reads one page of a stream and follows its links.
    ///
    /// # Errors
    /// Those of [`EventStore::read_stream`] and [`EventStore::resolve`].
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
    /// let carts = ReadStream::forwards(StreamId::new("$ce-cart")?);
    /// for found in store.read_stream_resolved(carts).await?.events {
    ///     let place = found.link.as_ref().map_or(found.event.revision, |link| link.revision);
    ///     println!("{place}: {} {}", found.event.stream, found.event.event_type);
    /// }
    /// # Ok(()) }
    /// ```
    async fn read_stream_resolved(&self, request: ReadStream) -> Result<ResolvedPage> {
        links::read_stream_resolved(self, request).await
    }

    /// Reads all events up to the present end, page by page. The answer holds them all in memory: for small stores and
    /// tests.
    ///
    /// # Errors
    /// Those of [`EventStore::read_all`].
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
    /// for event in store.read_everything().await? {
    ///     println!("{} {} {}", event.position, event.stream, event.event_type);
    /// }
    /// # Ok(()) }
    /// ```
    async fn read_everything(&self) -> Result<Vec<RecordedEvent>> {
        let mut request = ReadAll::forwards();
        let mut events = Vec::new();
        loop {
            let page = self.read_all(request.clone()).await?;
            events.extend(page.events);
            if page.end {
                return Ok(events);
            }
            request.from = AllFrom::Checkpoint(page.next);
        }
    }
}

impl<S: EventStore + ?Sized> EventStoreExt for S {}
