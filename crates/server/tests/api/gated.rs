//! A store whose answers wait until a test lets them go, and which counts what it is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use gesta_core::{
    AllPage, Append, Appended, DeleteStream, Deleted, EventStore, ListStreams, ReadAll, ReadStream,
    Result, SetStreamMetadata, StoreInfo, StreamId, StreamMetadataRecord, StreamPage, StreamsPage,
    Subscribe, Subscription,
};
use gesta_memory::MemoryStore;
use tokio::sync::Semaphore;

pub(crate) struct GatedStore {
    pub(crate) inner: MemoryStore,
    /// One permit lets one append go.
    pub(crate) appends: Semaphore,
    /// Appends that wait or went.
    pub(crate) waiting: AtomicUsize,
    /// Pages of streams that were read.
    pub(crate) pages: AtomicUsize,
}

impl GatedStore {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryStore::new(),
            appends: Semaphore::new(0),
            waiting: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
        })
    }

    /// Waits until so many appends have come.
    pub(crate) async fn appends_have_come(&self, count: usize) {
        crate::client::soon(async {
            while self.waiting.load(Ordering::SeqCst) < count {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[async_trait]
impl EventStore for GatedStore {
    async fn append(&self, request: Append) -> Result<Appended> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.appends.acquire().await.expect("never closed").forget();
        self.inner.append(request).await
    }
    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        self.pages.fetch_add(1, Ordering::SeqCst);
        self.inner.read_stream(request).await
    }
    async fn info(&self) -> Result<StoreInfo> {
        self.inner.info().await
    }
    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        self.inner.read_all(request).await
    }
    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage> {
        self.inner.list_streams(request).await
    }
    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted> {
        self.inner.delete_stream(request).await
    }
    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        self.inner.stream_metadata(stream).await
    }
    async fn set_stream_metadata(&self, request: SetStreamMetadata) -> Result<Deleted> {
        self.inner.set_stream_metadata(request).await
    }
    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        self.inner.subscribe(request).await
    }
    async fn shutdown(&self) -> Result<()> {
        self.inner.shutdown().await
    }
}
