//! The wrapper: every call goes to the right store, and some are spoilt.

use async_trait::async_trait;
use gesta_core::{
    AllPage, Append, Appended, DeleteStream, Deleted, EventStore, EventStoreExt, Incarnation,
    ListStreams, MetadataSet, ReadAll, ReadStream, Resolved, Result, SetStreamMetadata,
    SharedEvent, StoreInfo, StreamId, StreamInfo, StreamMetadataRecord, StreamPage, StreamsPage,
    Subscribe, Subscription, resolve_one_by_one,
};

use super::Fault;
use super::faults::{self, BrokenStore};

#[async_trait]
impl EventStore for BrokenStore {
    async fn incarnation(&self) -> Result<Incarnation> {
        self.inner.incarnation().await
    }

    async fn info(&self) -> Result<StoreInfo> {
        self.inner.info().await
    }

    async fn ready(&self) -> Result<()> {
        self.inner.ready().await
    }

    async fn append(&self, mut request: Append) -> Result<Appended> {
        for part in &mut request.streams {
            part.stream = self.folded(part.stream.clone());
        }
        faults::append(self, request).await
    }

    async fn read_stream(&self, mut request: ReadStream) -> Result<StreamPage> {
        request.stream = self.folded(request.stream);
        let mut page = self.inner.read_stream(request).await?;
        if self.fault == Fault::ReorderedRevisions && page.events.len() > 1 {
            page.events.swap(0, 1);
        }
        Ok(page)
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        faults::read_all(self, request).await
    }

    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage> {
        let mut page = self.inner.list_streams(request.clone()).await?;
        if self.fault == Fault::ListsDeleted && page.next.is_none() {
            let all = self.inner.read_everything().await?;
            for event in all.iter().filter(|event| !event.stream.is_system()) {
                let known = |info: &StreamInfo| info.stream == event.stream;
                if !page.streams.iter().any(known) && page.streams.len() < request.limit {
                    page.streams.push(StreamInfo {
                        stream: event.stream.clone(),
                        last_revision: event.revision,
                    });
                }
            }
        }
        Ok(page)
    }

    async fn delete_stream(&self, mut request: DeleteStream) -> Result<Deleted> {
        request.stream = self.folded(request.stream);
        self.inner.delete_stream(request).await
    }

    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        self.inner.stream_metadata(self.folded(stream)).await
    }

    async fn set_stream_metadata(&self, mut request: SetStreamMetadata) -> Result<MetadataSet> {
        request.stream = self.folded(request.stream);
        self.inner.set_stream_metadata(request).await
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        let subscription = self.inner.subscribe(request).await?;
        Ok(faults::subscription(self.fault, subscription))
    }

    async fn resolve(&self, events: Vec<SharedEvent>) -> Result<Vec<Resolved>> {
        resolve_one_by_one(self, events).await
    }

    async fn shutdown(&self) -> Result<()> {
        self.inner.shutdown().await
    }
}
