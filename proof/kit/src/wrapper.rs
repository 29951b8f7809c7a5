//! Wraps a store in another one: a test says what is different, and every other call is passed on.

use std::ops::Deref;

use async_trait::async_trait;
use gesta_core::{
    AllPage, Append, Appended, DeleteStream, Deleted, EventStore, Incarnation, ListStreams,
    MetadataSet, ReadAll, ReadStream, Resolved, Result, SetStreamMetadata, SharedEvent, StoreInfo,
    StreamId, StreamMetadataRecord, StreamPage, StreamsPage, Subscribe, Subscription,
};

/// What a store that wraps another one does itself. [`Outer`] makes a store of it.
#[async_trait]
pub trait Wrapper: Send + Sync + 'static {
    /// Returns the inner store.
    fn inner(&self) -> &dyn EventStore;

    /// As [`EventStore::info`].
    async fn info(&self) -> Result<StoreInfo> {
        self.inner().info().await
    }

    /// Does what [`EventStore::ready`] does; by default the inner store does it.
    async fn ready(&self) -> Result<()> {
        self.inner().ready().await
    }

    /// Does what [`EventStore::append`] does; by default the inner store does it.
    async fn append(&self, request: Append) -> Result<Appended> {
        self.inner().append(request).await
    }

    /// Does what [`EventStore::read_stream`] does; by default the inner store does it.
    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        self.inner().read_stream(request).await
    }

    /// Does what [`EventStore::read_all`] does; by default the inner store does it.
    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        self.inner().read_all(request).await
    }

    /// Does what [`EventStore::delete_stream`] does; by default the inner store does it.
    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted> {
        self.inner().delete_stream(request).await
    }

    /// Does what [`EventStore::stream_metadata`] does; by default the inner store does it.
    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        self.inner().stream_metadata(stream).await
    }
}

/// A store made of an [`Wrapper`], which can be reached through it.
#[derive(Debug)]
pub struct Outer<T>(pub T);

impl<T> Deref for Outer<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

#[async_trait]
impl<T: Wrapper> EventStore for Outer<T> {
    async fn incarnation(&self) -> Result<Incarnation> {
        self.0.inner().incarnation().await
    }

    async fn info(&self) -> Result<StoreInfo> {
        Wrapper::info(&self.0).await
    }

    async fn ready(&self) -> Result<()> {
        Wrapper::ready(&self.0).await
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        Wrapper::append(&self.0, request).await
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        Wrapper::read_stream(&self.0, request).await
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        Wrapper::read_all(&self.0, request).await
    }

    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage> {
        self.0.inner().list_streams(request).await
    }

    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted> {
        Wrapper::delete_stream(&self.0, request).await
    }

    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        Wrapper::stream_metadata(&self.0, stream).await
    }

    async fn set_stream_metadata(&self, request: SetStreamMetadata) -> Result<MetadataSet> {
        self.0.inner().set_stream_metadata(request).await
    }

    async fn resolve(&self, events: Vec<SharedEvent>) -> Result<Vec<Resolved>> {
        self.0.inner().resolve(events).await
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        self.0.inner().subscribe(request).await
    }

    async fn shutdown(&self) -> Result<()> {
        self.0.inner().shutdown().await
    }
}
