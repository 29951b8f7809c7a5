//! [`Store`]: it is opened here, passes each call to the pipeline of its log, and is closed.

mod virtual_streams;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, join_all};
use gesta_append::{Pipeline, PipelineStats};
use gesta_core::backend::{Backend, BackendInfo, History, Purpose};
use gesta_core::limits::LOGS_MAX;
use gesta_core::{
    AllPage, Append, Appended, Clock, DeleteStream, Deleted, Error, EventStore, IdempotencyWindow,
    Incarnation, KnownEnd, ListStreams, LogId, MetadataSet, Position, ReadAll, ReadStream,
    Resolved, Result, SetStreamMetadata, SharedEvent, StoreInfo, StreamId, StreamMetadataRecord,
    StreamPage, StreamsPage, Subscribe, SubscribeTo, Subscription, log_of,
};
use gesta_tail::Hub;

use crate::virtual_streams::{Indexing, VirtualStreams, indexer, observer};

/// Number of attempts of a read, if the history of the store changes while the read runs.
const READS_MAX: u32 = 3;

/// Bounds and times of the parts of a store.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Bounds and times of the append pipelines.
    pub append: gesta_append::Config,
    /// Bounds and times of the tail hub.
    pub tail: gesta_tail::Config,
    /// Bounds and times of virtual streams.
    pub virtual_streams: indexer::Config,
}

/// An event store on top of a [`Backend`].
///
/// The owner calls [`shutdown`](EventStore::shutdown) when done. A store that is only dropped ends its subscriptions
/// and, in the background, stores what was queued, but nobody learns when that is done.
pub struct Store {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    /// One pipeline per log, in the order of the logs.
    pipelines: Vec<Pipeline>,
    pub(crate) hub: Arc<Hub>,
    /// The virtual streams; `None` if the store can have none.
    pub(crate) virtual_streams: Option<Arc<VirtualStreams>>,
    /// The task that writes the entries of virtual streams.
    indexing: Option<Arc<Indexing>>,
    idempotency: IdempotencyWindow,
    closed: AtomicBool,
    /// The shutdown, once somebody has begun it. It runs in a task of its own: all callers wait for the same end, and a
    /// caller that gives up waiting does not stop it.
    ended: OnceLock<Shared<BoxFuture<'static, Result<()>>>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("info", &self.backend.info())
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Starts the pipelines and the tail hub of an open backend. The caller must be in a tokio runtime.
    ///
    /// # Errors
    /// `Corrupt` if the number of logs that the backend reports is not 1 to 1,024.
    pub fn open(
        backend: Arc<dyn Backend>,
        config: Config,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>> {
        let logs = backend.info().logs;
        if !(1..=LOGS_MAX).contains(&logs) {
            return Err(
                Error::corrupt(format!("the store claims to have {logs} logs")).during("open"),
            );
        }
        let idempotency = config.append.idempotency();
        let hub = Hub::start(Arc::clone(&backend), config.tail, Arc::clone(&clock));
        let virtual_streams = VirtualStreams::new(&backend, config.virtual_streams);
        let indexing = virtual_streams.as_ref().map(Indexing::start);
        let observer = observer(&hub, virtual_streams.as_ref());
        let (admission, of_each) = (config.append.admission(), config.append.for_each_of(logs));
        let pipelines = (0..logs)
            .map(|log| {
                Pipeline::start_sharing(
                    Arc::clone(&backend),
                    LogId(log),
                    of_each.clone(),
                    Arc::clone(&clock),
                    Arc::clone(&observer),
                    Arc::clone(&admission),
                )
            })
            .collect();
        Ok(Arc::new(Self {
            backend,
            clock,
            pipelines,
            hub,
            virtual_streams,
            indexing,
            idempotency,
            closed: AtomicBool::new(false),
            ended: OnceLock::new(),
        }))
    }

    /// Returns the database below, for administration.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Returns for how long retries are recognised.
    #[must_use]
    pub fn idempotency(&self) -> IdempotencyWindow {
        self.idempotency
    }

    /// Returns what the pipeline of each log has done so far, in the order of the logs.
    #[must_use]
    pub fn pipeline_stats(&self) -> Vec<PipelineStats> {
        self.pipelines.iter().map(Pipeline::stats).collect()
    }

    /// Returns what the pipeline of one log has done so far; `None` if there is no such log.
    #[must_use]
    pub fn stats_of(&self, log: LogId) -> Option<PipelineStats> {
        self.pipelines.get(usize::from(log.0)).map(Pipeline::stats)
    }

    /// Waits until nothing of a log waits or is in flight in this process. It returns at once if there is no such log.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn idle(&self, log: LogId) {
        if let Some(pipeline) = self.pipelines.get(usize::from(log.0)) {
            pipeline.idle().await;
        }
    }

    /// Prepares for appends to a log to which other processes have appended, as [`Pipeline::prepare`] does. It returns
    /// at once if there is no such log.
    ///
    /// # Cancel safety
    /// Dropping the future does not end the preparation.
    pub fn prepare(&self, log: LogId) -> impl Future<Output = ()> + Send + use<> {
        let prepared = self
            .pipelines
            .get(usize::from(log.0))
            .map(Pipeline::prepare);
        async move {
            if let Some(prepared) = prepared {
                prepared.await;
            }
        }
    }

    /// Takes the message of another process that it has committed up to this position of a log. While anybody is
    /// subscribed, the log is read at once; the message itself is never believed.
    pub fn heard(&self, log: LogId, position: Position) {
        self.hub.heard(log, position);
    }

    /// Notes that a read has found a log to reach up to this position.
    pub(crate) fn note_end(&self, log: LogId, position: Position) {
        if let Some(pipeline) = self.pipelines.get(usize::from(log.0)) {
            pipeline.heard_of_end(position);
        }
    }

    /// Returns the last position of a log that this process knows of, with the history to which it belongs. It may be
    /// far before the end of the log.
    #[doc(hidden)]
    #[must_use]
    pub fn known_end_of(&self, log: LogId) -> KnownEnd {
        // A pipeline reads nothing while others append.
        self.hear_of_end(log, self.hub.read_end(log));
        let pipeline = self.pipelines.get(usize::from(log.0));
        pipeline.map_or(KnownEnd::NOTHING, Pipeline::known_end_in_history)
    }

    /// Notes that another process has seen a log reach up to this position.
    #[doc(hidden)]
    pub fn hear_of_end(&self, log: LogId, end: KnownEnd) {
        if let Some(pipeline) = self.pipelines.get(usize::from(log.0)) {
            pipeline.hear_of_end(end);
        }
    }

    /// Returns the number of subscriptions.
    #[must_use]
    pub fn subscribers(&self) -> usize {
        self.hub.subscribers()
    }

    pub(crate) fn backend_info(&self) -> Arc<BackendInfo> {
        self.backend.info()
    }

    /// Returns the log of a stream.
    #[must_use]
    pub fn log_of(&self, stream: &StreamId) -> LogId {
        log_of(stream, self.backend_info().logs)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::unavailable("the store was shut down"));
        }
        Ok(())
    }

    /// Runs reads that belong together, and runs them again if the history of the store has changed meanwhile. Parts of
    /// two histories make no answer: rows of streams that were looked up in one history are other streams' rows in the
    /// next.
    pub(crate) async fn in_one_history<T, F: Future<Output = Result<T>>>(
        &self,
        reads: impl Fn(History) -> F,
    ) -> Result<T> {
        for _ in 0..READS_MAX {
            let history = self.backend.history();
            let found = reads(history).await;
            if self.backend.history() == history {
                return found;
            }
        }
        Err(Error::unavailable(
            "the history of the store changes again and again",
        ))
    }

    /// Reads the last position of each log from the primary.
    pub(crate) async fn heads(&self) -> Result<Vec<Position>> {
        let ends = self.backend.log_ends(Purpose::Read).await?;
        Ok(ends.into_iter().map(|end| end.position).collect())
    }

    pub(crate) fn pipeline_of(&self, log: LogId) -> Result<&Pipeline> {
        self.check_open()?;
        self.pipelines
            .get(usize::from(log.0))
            .ok_or_else(|| Error::corrupt(format!("the store has no log {log}")))
    }

    async fn read_info(&self, history: History) -> Result<StoreInfo> {
        self.check_open()?;
        let info = BackendInfo::clone(&self.backend_info());
        let ends = self.backend.log_ends(Purpose::Read).await?;
        let newest = ends.iter().map(|end| end.created.0).max();
        let ahead = newest.unwrap_or(0).saturating_sub(self.clock.now().0);
        Ok(StoreInfo {
            backend: info.backend.to_owned(),
            engine: info.engine,
            incarnation: history.incarnation,
            logs: info.logs,
            durability: info.durability,
            capabilities: info.capabilities,
            idempotency: self.idempotency,
            heads: ends.into_iter().map(|end| end.position).collect(),
            newest_event_ahead: Duration::from_micros(u64::try_from(ahead).unwrap_or(0)),
        })
    }
}

impl Store {
    /// Asks every pipeline first, which knows without the database, and then reads the end of every log.
    async fn check_ready(&self) -> Result<()> {
        self.check_open()?;
        self.backend.ready()?;
        for pipeline in &self.pipelines {
            pipeline.ready().await?;
        }
        self.heads().await.map(drop)
    }
}

#[async_trait]
impl EventStore for Store {
    async fn incarnation(&self) -> Result<Incarnation> {
        Ok(self.backend.history().incarnation)
    }

    async fn info(&self) -> Result<StoreInfo> {
        let info = self.in_one_history(|history| self.read_info(history)).await;
        info.map_err(|error| error.during("info"))
    }

    async fn ready(&self) -> Result<()> {
        let ready = self.check_ready().await;
        ready.map_err(|error| error.during("ready"))
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        self.begin_append(request).await
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        let page = match request.stream.is_virtual() {
            true => self.in_one_history(|_| self.virtual_page(&request)).await,
            false => {
                let page = self.in_one_history(|_| self.stream_page(request.clone()));
                page.await
            }
        };
        page.map_err(|error| error.during("read stream"))
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        let page = self.in_one_history(|history| self.all_page(&request, history));
        let page = page.await;
        page.map_err(|error| error.during("read all"))
    }

    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage> {
        let page = self.in_one_history(|_| self.streams_page(request.clone()));
        let page = page.await;
        page.map_err(|error| error.during("list streams"))
    }

    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted> {
        self.begin_delete(request, None).await
    }

    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        let record = self.in_one_history(|_| self.metadata_record(&stream)).await;
        record.map_err(|error| error.during("read metadata"))
    }

    async fn set_stream_metadata(&self, request: SetStreamMetadata) -> Result<MetadataSet> {
        self.begin_set_metadata(request, None).await
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        self.check_open()
            .map_err(|error| error.during("subscribe"))?;
        let subscription = match request.to {
            SubscribeTo::Stream(stream) if stream.is_virtual() => {
                self.subscribe_virtual(stream, request.from).await
            }
            _ => self.hub.subscribe(request).await,
        };
        subscription.map_err(|error| error.during("subscribe"))
    }

    async fn resolve(&self, events: Vec<SharedEvent>) -> Result<Vec<Resolved>> {
        let resolved = self.in_one_history(|_| self.follow_links(&events)).await;
        resolved.map_err(|error| error.during("follow links"))
    }

    async fn shutdown(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        let ended = self.ended.get_or_init(|| {
            let (pipelines, hub) = (self.pipelines.clone(), Arc::clone(&self.hub));
            let indexing = self.indexing.clone();
            let ending = tokio::spawn(end(pipelines, hub, indexing, Arc::clone(&self.backend)));
            let failed = |error| Error::unavailable("shutting down failed").caused_by(error);
            let ended = ending.map(move |ended| ended.map_err(failed)?);
            ended.boxed().shared()
        });
        ended.clone().await
    }
}

/// Lets what was queued finish, and then closes everything.
async fn end(
    pipelines: Vec<Pipeline>,
    hub: Arc<Hub>,
    indexing: Option<Arc<Indexing>>,
    backend: Arc<dyn Backend>,
) -> Result<()> {
    // Pipelines first: what they still commit is told to the other processes by the hub.
    let drained = join_all(pipelines.iter().map(Pipeline::shutdown)).await;
    hub.shutdown().await;
    if let Some(indexing) = indexing {
        indexing.end().await;
    }
    backend.close().await;
    let drained: Result<Vec<()>> = drained.into_iter().collect();
    drained.map(drop).map_err(|error| error.during("shut down"))
}
