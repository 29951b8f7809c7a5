//! [`MemoryStore`]: an [`EventStore`] in memory.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{
    AllPage, Append, Appended, Capabilities, DeleteStream, Deleted, Durability, EventStore,
    IdempotencyWindow, Incarnation, ListStreams, MetadataSet, ReadAll, ReadStream, RecordedEvent,
    Resolved, Result, SetStreamMetadata, SharedEvent, StoreInfo, StreamId, StreamMetadataRecord,
    StreamPage, StreamsPage, Subscribe, Subscription, limits, resolve_one_by_one,
};
use tokio::sync::watch;

use crate::shared::{Config, Inner};
use crate::state::State;

/// An [`EventStore`] in memory. Cloning it gives another handle of the same store.
///
/// ```
/// # use gesta_core::*;
/// # use gesta_memory::MemoryStore;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let store = MemoryStore::new();
/// let event = EventData::json(EventType::new("added")?, r#"{"item":1}"#);
/// store.append_to("cart-1", ExpectedRevision::NoStream, vec![event]).await?;
/// assert_eq!(store.read_whole_stream("cart-1").await?.len(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore")
            .field("config", &self.inner.config)
            .finish_non_exhaustive()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// Makes an empty store of one log.
    #[must_use]
    pub fn new() -> Self {
        Self::with_config(Config::default())
    }

    /// Makes an empty store. A number of logs outside 1 to 1,024 is taken as the nearest in that range.
    #[must_use]
    pub fn with_config(config: Config) -> Self {
        let logs = config.logs.clamp(1, limits::LOGS_MAX);
        let state = State::new(logs, config.incarnation);
        Self::with_state(Config { logs, ..config }, state)
    }

    /// Makes a store that holds events of an earlier life: each log whole from its first event on, in order.
    ///
    /// # Errors
    /// `Corrupt` if an event does not follow the ones before it.
    pub fn restored(
        config: Config,
        events: impl IntoIterator<Item = RecordedEvent>,
    ) -> Result<Self> {
        let logs = config.logs.clamp(1, limits::LOGS_MAX);
        let mut state = State::new(logs, config.incarnation);
        for event in events {
            state.restore(event)?;
        }
        Ok(Self::with_state(Config { logs, ..config }, state))
    }

    fn with_state(config: Config, state: State) -> Self {
        Self {
            inner: Arc::new(Inner {
                config,
                state: Mutex::new(state),
                changed: watch::Sender::new(0),
            }),
        }
    }
}

#[async_trait]
impl EventStore for MemoryStore {
    async fn incarnation(&self) -> Result<Incarnation> {
        Ok(self.inner.config.incarnation)
    }

    async fn info(&self) -> Result<StoreInfo> {
        let heads = self.inner.look(|state| Ok(state.heads()))?;
        Ok(StoreInfo {
            backend: "memory".into(),
            engine: env!("CARGO_PKG_VERSION").into(),
            incarnation: self.inner.config.incarnation,
            logs: self.inner.config.logs,
            durability: Durability::None,
            capabilities: Capabilities {
                persistent: false,
                shared: false,
                several_logs: true,
                batches_in_flight_max: 1,
            },
            idempotency: IdempotencyWindow {
                time: Duration::from_secs(600),
                positions: 100_000,
            },
            heads,
            newest_event_ahead: Duration::ZERO,
        })
    }

    async fn ready(&self) -> Result<()> {
        let open = self.inner.look(|_| Ok(()));
        open.map_err(|error| error.during("ready"))
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        let stored = self.inner.change(|state, now| state.append(request, now));
        let stored = stored.map_err(|error| error.during("append"))?;
        Ok(Appended {
            streams: stored.streams,
            log: stored.log,
            position: stored.position,
            checkpoint: self.inner.after(stored.log, stored.position),
        })
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        let now = self.inner.now();
        let page = self.inner.look(|state| state.read_stream(&request, now));
        page.map_err(|error| error.during("read stream"))
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        let page = self
            .inner
            .look(|state| self.inner.read_all(state, &request));
        page.map_err(|error| error.during("read all"))
    }

    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage> {
        let page = self.inner.look(|state| state.list(&request));
        page.map_err(|error| error.during("list streams"))
    }

    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted> {
        let deleted = self.inner.change(|state, now| state.delete(&request, now));
        let (log, position) = deleted.map_err(|error| error.during("delete stream"))?;
        Ok(Deleted {
            log,
            position,
            checkpoint: self.inner.after(log, position),
        })
    }

    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        let record = self.inner.look(|state| {
            Ok(StreamMetadataRecord {
                metadata: state.lifecycle_unless_tombstoned(&stream)?.metadata,
                revision: state.last(&stream.metadata_stream()),
            })
        });
        record.map_err(|error| error.during("read metadata"))
    }

    async fn set_stream_metadata(&self, request: SetStreamMetadata) -> Result<MetadataSet> {
        let set = self
            .inner
            .change(|state, now| state.set_metadata(request, now));
        let (log, position) = set.map_err(|error| error.during("set metadata"))?;
        Ok(MetadataSet {
            log,
            position,
            checkpoint: self.inner.after(log, position),
        })
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        crate::subscribe::subscribe(&self.inner, request).map_err(|error| error.during("subscribe"))
    }

    async fn resolve(&self, events: Vec<SharedEvent>) -> Result<Vec<Resolved>> {
        resolve_one_by_one(self, events).await
    }

    async fn shutdown(&self) -> Result<()> {
        self.inner.lock().closed = true;
        self.inner
            .changed
            .send_modify(|count| *count = count.wrapping_add(1));
        Ok(())
    }
}
