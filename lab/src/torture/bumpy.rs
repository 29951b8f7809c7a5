//! Stores that break their word now and then: what the checks of the lab must notice.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use gesta_core::{
    AllPage, Append, Appended, DeleteStream, Deleted, Error, ErrorKind, EventId, EventStore,
    ListStreams, ReadAll, ReadStream, Result, SetStreamMetadata, StoreInfo, StreamId,
    StreamMetadataRecord, StreamPage, StreamsPage, Subscribe, Subscription,
};
use gesta_memory::MemoryStore;

/// What happens to one append out of twenty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Breach {
    /// It is stored, and the answer is lost; or it is not, and the store says that it is unavailable. Both are allowed.
    Bumpy,
    /// It is acknowledged and not stored.
    Forget,
    /// A retry is stored again, as if it were new.
    Repeat,
    /// It is refused for no reason.
    Refuse,
}

/// A store that does so.
pub(crate) struct Bumpy {
    pub(crate) inner: MemoryStore,
    breach: Breach,
    count: AtomicU64,
}

impl Bumpy {
    /// An empty one.
    pub(crate) fn new(breach: Breach) -> Self {
        Self {
            inner: MemoryStore::new(),
            breach,
            count: AtomicU64::new(0),
        }
    }

    /// Appends that it was asked for so far.
    pub(crate) fn appends(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl EventStore for Bumpy {
    async fn append(&self, request: Append) -> Result<Appended> {
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        match (self.breach, n % 20) {
            (Breach::Bumpy | Breach::Repeat, 7) => Err(Error::unavailable("a bump")),
            (Breach::Bumpy, 13) => {
                self.inner.append(request).await?;
                Err(ErrorKind::OutcomeUnknown("a bump".into()).into())
            }
            (Breach::Forget, 7) => MemoryStore::new().append(request).await,
            (Breach::Repeat, 13) => {
                // Stored once under the ids asked for, once as the store of a careless retry would: again, at the end.
                let answer = self.inner.append(request.clone()).await?;
                let mut again = request;
                for part in &mut again.streams {
                    part.expected = gesta_core::ExpectedRevision::Any;
                    part.events
                        .iter_mut()
                        .for_each(|event| event.id = Some(EventId::random()));
                }
                self.inner.append(again).await?;
                Ok(answer)
            }
            (Breach::Refuse, 7) => Err(ErrorKind::Refused("no reason".into()).into()),
            _ => self.inner.append(request).await,
        }
    }
    async fn info(&self) -> Result<StoreInfo> {
        self.inner.info().await
    }
    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        self.inner.read_stream(request).await
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
