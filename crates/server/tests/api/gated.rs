//! A store whose answers wait until a test lets them go, and which counts its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use gesta_core::{Append, Appended, EventStore, ReadStream, Result, StreamPage};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::MemoryStore;
use tokio::sync::Semaphore;

pub(crate) struct GatedStore {
    pub(crate) inner: MemoryStore,
    /// Permits for appends. Each permit lets one append go.
    pub(crate) appends: Semaphore,
    /// Number of appends that wait or went.
    pub(crate) waiting: AtomicUsize,
    /// Number of pages of streams that were read.
    pub(crate) pages: AtomicUsize,
}

impl GatedStore {
    pub(crate) fn new() -> Arc<Outer<Self>> {
        Arc::new(Outer(Self {
            inner: MemoryStore::new(),
            appends: Semaphore::new(0),
            waiting: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
        }))
    }

    /// Waits until `count` appends have come.
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
impl Wrapper for GatedStore {
    fn inner(&self) -> &dyn EventStore {
        &self.inner
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.appends.acquire().await.expect("never closed").forget();
        self.inner.append(request).await
    }
    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        self.pages.fetch_add(1, Ordering::SeqCst);
        self.inner.read_stream(request).await
    }
}
