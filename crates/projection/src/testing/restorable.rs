//! A store that is restored while processes use it, as each of them notices it: at a moment of its own.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::{FutureExt, StreamExt, stream};
use gesta_core::{
    AllPage, Append, Appended, DeleteStream, Deleted, Error, EventStore, Incarnation, ListStreams,
    MetadataSet, ReadAll, ReadStream, Resolved, Result, SetStreamMetadata, SharedEvent, StoreInfo,
    StreamId, StreamMetadataRecord, StreamPage, StreamsPage, Subscribe, Subscription,
};
use tokio::sync::watch;

/// A store as one process holds it: one life of it, until the process [notices](Self::notices) the next one. Then its
/// subscriptions end, as those of a store do whose database has lost commits.
#[derive(Clone)]
pub struct Restorable(watch::Sender<Arc<dyn EventStore>>);

impl fmt::Debug for Restorable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Restorable")
    }
}

impl Restorable {
    /// Makes the store of a process that knows this life of it.
    #[must_use]
    pub fn new(store: Arc<dyn EventStore>) -> Self {
        Self(watch::Sender::new(store))
    }

    /// Lets the process notice that the store is this one now.
    pub fn notices(&self, store: Arc<dyn EventStore>) {
        self.0.send_replace(store);
    }

    /// Returns the life of the store that the process knows.
    #[must_use]
    pub fn known(&self) -> Arc<dyn EventStore> {
        Arc::clone(&self.0.borrow())
    }
}

#[async_trait]
impl EventStore for Restorable {
    async fn incarnation(&self) -> Result<Incarnation> {
        self.known().incarnation().await
    }

    async fn info(&self) -> Result<StoreInfo> {
        self.known().info().await
    }

    async fn ready(&self) -> Result<()> {
        self.known().ready().await
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        self.known().append(request).await
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        self.known().read_stream(request).await
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        self.known().read_all(request).await
    }

    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage> {
        self.known().list_streams(request).await
    }

    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted> {
        self.known().delete_stream(request).await
    }

    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        self.known().stream_metadata(stream).await
    }

    async fn set_stream_metadata(&self, request: SetStreamMetadata) -> Result<MetadataSet> {
        self.known().set_stream_metadata(request).await
    }

    async fn resolve(&self, events: Vec<SharedEvent>) -> Result<Vec<Resolved>> {
        self.known().resolve(events).await
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        let mut changes = self.0.subscribe();
        let known = Arc::clone(&changes.borrow_and_update());
        let messages = known.subscribe(request).await?;
        let changed = async move { drop(changes.changed().await) }.boxed();
        let ended = Error::unavailable("the store was restored");
        let ended = stream::once(async move { Err(ended) });
        Ok(Subscription::new(messages.take_until(changed).chain(ended)))
    }

    async fn shutdown(&self) -> Result<()> {
        self.known().shutdown().await
    }
}
