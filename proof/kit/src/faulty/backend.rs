//! [`FaultyBackend`], the backend by which one process uses a [`World`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, FuturesUnordered, StreamExt};
use gesta_core::backend::*;
use gesta_core::*;
use tokio::sync::mpsc;

use super::process::Process;
use super::read::Read;
use super::world::World;
use super::writer::Writer;

/// A [`Backend`] on a [`World`], with the faults of one process.
pub struct FaultyBackend {
    info: Arc<BackendInfo>,
    pub(super) process: Arc<Process>,
}

impl std::fmt::Debug for FaultyBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyBackend")
            .field("process", &self.process.number)
            .finish_non_exhaustive()
    }
}

impl FaultyBackend {
    /// Makes the backend of a further process of a world.
    #[must_use]
    pub fn new(world: &Arc<World>) -> Arc<Self> {
        let capabilities = Capabilities {
            persistent: true,
            shared: true,
            several_logs: true,
            batches_in_flight_max: world.batches_in_flight_max(),
        };
        let info = BackendInfo {
            backend: "faulty",
            engine: "in memory".into(),
            logs: world.logs(),
            durability: Durability::None,
            capabilities,
        };
        Arc::new(Self {
            info: Arc::new(info),
            process: Arc::new(Process::new(world)),
        })
    }
}

#[async_trait]
impl Backend for FaultyBackend {
    fn info(&self) -> Arc<BackendInfo> {
        Arc::clone(&self.info)
    }

    fn history(&self) -> History {
        self.process.history.get()
    }

    fn pack(&self, _: &StreamId, _: ContentType, data: &Bytes) -> Option<Bytes> {
        let packing = self.process.plan().packing.clone();
        packing.and_then(|pack| pack(data))
    }

    fn ready(&self) -> Result<()> {
        Ok(())
    }

    async fn open_writer(&self, _: LogId) -> Result<Box<dyn LogWriter>> {
        self.process.read(Read::Connect, |_| ()).await?;
        Ok(Box::new(Writer::open(Arc::clone(&self.process))))
    }

    async fn log_end(&self, log: LogId, _: Purpose) -> Result<LogEnd> {
        self.process
            .read(Read::LogEnd(log), |world| {
                world.with(log, |rows| rows.end())
            })
            .await
    }

    /// As if each log lay in a database of its own.
    fn each_log_end(&self, purpose: Purpose) -> BoxStream<'_, (LogId, Result<LogEnd>)> {
        let logs = (0..self.info().logs).map(LogId);
        let asked = logs.map(|log| async move { (log, self.log_end(log, purpose).await) });
        asked.collect::<FuturesUnordered<_>>().boxed()
    }

    async fn load(&self, log: LogId, request: LoadRequest, _: Purpose) -> Result<Loaded> {
        let load = |world: &World| world.with(log, |rows| rows.load(&request));
        self.process.read(Read::Load(&request), load).await
    }

    async fn lookup(&self, log: LogId, lookup: EventLookup, _: Purpose) -> Result<Vec<EventRef>> {
        let look_up = |world: &World| world.with(log, |rows| rows.lookup(&lookup));
        self.process.read(Read::Lookup(&lookup), look_up).await
    }

    async fn read_ids(&self, log: LogId, after: Position, to: Position) -> Result<Vec<StoredId>> {
        let ids = |world: &World| world.with(log, |rows| rows.read_ids(after, to));
        self.process.read(Read::Ids, ids).await
    }

    async fn read_stream(&self, slice: StreamSlice) -> Result<Rows> {
        let bytes_max = self.process.plan().page_bytes_max;
        let read =
            |world: &World| world.with(slice.log, |rows| rows.read_stream(&slice, bytes_max));
        self.process.read(Read::Stream(&slice), read).await
    }

    async fn read_streams(&self, log: LogId, slices: Vec<StreamSlice>) -> Result<Vec<Rows>> {
        let bytes_max = self.process.plan().page_bytes_max;
        let read = |world: &World| world.with(log, |rows| rows.read_streams(&slices, bytes_max));
        self.process.read(Read::Streams(&slices), read).await
    }

    async fn read_log(&self, slice: LogSlice) -> Result<Rows> {
        let bytes_max = self.process.plan().page_bytes_max;
        let read = |world: &World| world.with(slice.log, |rows| rows.read_log(&slice, bytes_max));
        self.process.read(Read::Log(&slice), read).await
    }

    async fn read_tail(&self, tail: LogTail) -> Result<Rows> {
        self.read_log(tail.into()).await
    }

    async fn list_streams(
        &self,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
    ) -> Result<Vec<StreamId>> {
        let list = |world: &World| world.list(prefix, after, limit);
        self.process.read(Read::Names, list).await
    }

    fn signals(&self, topic: Topic) -> BoxStream<'static, Signal> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.process
            .world
            .listen(self.process.number, topic, sender);
        stream::unfold(receiver, |mut receiver| async move {
            match receiver.recv().await {
                Some(signal) => Some((signal, receiver)),
                None => std::future::pending().await,
            }
        })
        .boxed()
    }

    async fn send_signal(&self, signal: Signal) {
        self.process.half_a_round_trip().await;
        self.process.messages.fetch_add(1, Ordering::SeqCst);
        if !self.process.plan().loses_message() {
            self.process.world.tell_others(self.process.number, signal);
        }
    }

    async fn remove_hidden(
        &self,
        log: LogId,
        stream: RowId,
        visibility: Visibility,
        mode: RunMode,
    ) -> Result<Removed> {
        let is_hidden =
            |row: &Row| row.stream_row == stream && !visibility.shows(row.revision, row.created);
        let remove = |world: &World| world.with(log, |rows| rows.remove(is_hidden, mode));
        self.process.read(Read::Hidden, remove).await
    }

    fn registry(&self) -> Option<Arc<dyn registry::Registry>> {
        None
    }

    fn virtual_index(&self) -> Option<Arc<dyn VirtualIndex>> {
        let world = Arc::clone(&self.process.world);
        Some(Arc::new(WorldIndex(world)))
    }

    async fn close(&self) {
        self.process.half_a_round_trip().await;
        self.process.is_closed.store(true, Ordering::SeqCst);
    }
}

/// The virtual streams of a world. Each statement lets other tasks run in between, as with a database.
struct WorldIndex(Arc<World>);

impl WorldIndex {
    async fn with<T>(&self, work: impl FnOnce(&World) -> T) -> T {
        tokio::task::yield_now().await;
        let done = work(&self.0);
        tokio::task::yield_now().await;
        done
    }
}

#[async_trait]
impl VirtualIndex for WorldIndex {
    async fn state(&self) -> Result<IndexState> {
        let state = |world: &World| world.with_virtual(|tables, _| tables.state());
        Ok(self.with(state).await)
    }

    async fn switch(&self, on: bool) -> Result<IndexState> {
        let switch = |world: &World| world.with_virtual(|tables, _| tables.switch(on));
        Ok(self.with(switch).await)
    }

    async fn write(&self, page: IndexPage) -> Result<IndexWrite> {
        // A write takes longer than a read, so that more can happen meanwhile.
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        let written = self.with(|world| match world.refuses_entries() {
            true => Err(Error::unavailable("away, as planned")),
            false => Ok(world.with_virtual(|tables, log| tables.write(&page, log))),
        });
        written.await
    }

    async fn read(&self, slice: EntrySlice) -> Result<Entries> {
        let read = |world: &World| world.with_virtual(|tables, _| tables.read(&slice));
        Ok(self.with(read).await)
    }
}
