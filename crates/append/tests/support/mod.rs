//! A database in memory with scripted faults: executes chained inserts as a real one does, and can lose replies, refuse
//! content, hold commits back and let lost statements commit late.

pub(crate) mod start;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use gesta_append::{Config, Pipeline};
use gesta_core::backend::*;
use gesta_core::*;
use tokio::sync::{Semaphore, watch};

/// What happens to the next batch with rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Stored, but the reply is lost with the connection.
    LoseReply,
    /// The connection dies before the statement arrives.
    LoseRequest,
    /// The connection dies; the statement is executed when the test says so.
    CommitLate,
    /// A passing failure.
    Fail,
    /// A failure that lasts until somebody mends the database.
    FailLastingly,
}

#[derive(Default)]
struct State {
    rows: Vec<(Row, WriterEpoch)>,
    streams: HashMap<StreamId, RowId>,
    types: HashMap<EventType, RowId>,
    faults: VecDeque<Fault>,
    limbo: Vec<(Arc<Batch>, WriterEpoch)>,
    epochs: i64,
    down: bool,
    broken: bool,
    /// The next listing of names fails.
    listing_fails: bool,
    /// Lookups of ids so far: how many events each, and up to which position.
    id_lookups: Vec<(usize, Position)>,
    /// A stream in which no id can be looked up.
    too_long: Option<StreamId>,
    /// The mistake of comparing the predecessor's position alone.
    compares_numbers_only: bool,
    /// Runs while the data of an event are packed.
    packing: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// The database. Share it between pipelines to play several processes.
pub(crate) struct Sim {
    state: Arc<Mutex<State>>,
    info: Arc<BackendInfo>,
    history: CurrentHistory,
    /// Commits are answered while this is true.
    answering: watch::Sender<bool>,
    /// Connections for reads.
    readers: Semaphore,
    /// Streams are looked up while this is true.
    loading: watch::Sender<bool>,
    /// Pages of names are handed out while this is true.
    listing: watch::Sender<bool>,
    /// How many parts of the log may be read for their ids; `None` fails.
    reading_ids: watch::Sender<Option<usize>>,
}

impl Sim {
    pub(crate) fn new(batches_in_flight_max: usize) -> Arc<Self> {
        let capabilities = Capabilities {
            persistent: true,
            shared: true,
            several_logs: true,
            batches_in_flight_max,
        };
        let info = BackendInfo {
            backend: "sim",
            engine: String::new(),
            logs: 1,
            durability: Durability::None,
            capabilities,
        };
        Arc::new(Self {
            state: Arc::default(),
            info: Arc::new(info),
            history: CurrentHistory::new(Incarnation::random()),
            answering: watch::Sender::new(true),
            readers: Semaphore::new(2),
            loading: watch::Sender::new(true),
            listing: watch::Sender::new(true),
            reading_ids: watch::Sender::new(Some(usize::MAX)),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn fault(&self, fault: Fault) {
        self.state().faults.push_back(fault);
    }

    pub(crate) fn compare_numbers_only(&self) {
        self.state().compares_numbers_only = true;
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.state().down = down;
    }

    /// The end of the log cannot be read, and that is not passing.
    pub(crate) fn set_broken(&self, broken: bool) {
        self.state().broken = broken;
    }

    /// Removes a row, as scavenging does.
    pub(crate) fn scavenge(&self, position: Position) {
        self.state()
            .rows
            .retain(|(row, _)| row.position != position);
    }

    /// The stored metadata of a stream can no longer be read.
    pub(crate) fn damage_metadata(&self, stream: &StreamId) {
        let metadata = stream.metadata_stream();
        for (row, _) in &mut self.state().rows {
            if row.stream == metadata {
                row.data = "damaged".into();
            }
        }
    }

    /// This runs whenever the data of an event are packed.
    pub(crate) fn on_packing(&self, run: impl Fn() + Send + Sync + 'static) {
        self.state().packing = Some(Arc::new(run));
    }

    /// Holds the answers of commits back, or lets them go.
    pub(crate) fn set_answering(&self, answering: bool) {
        self.answering.send_replace(answering);
    }

    /// Holds lookups of streams back, each with its connection, or lets them go.
    pub(crate) fn set_loading(&self, loading: bool) {
        self.loading.send_replace(loading);
    }

    /// Holds pages of names back after they were read, or lets them go.
    pub(crate) fn set_listing(&self, listing: bool) {
        self.listing.send_replace(listing);
    }

    /// Lets so many parts of the log be read for their ids and no more; `None`: each fails.
    pub(crate) fn set_reading_ids(&self, parts: Option<usize>) {
        self.reading_ids.send_replace(parts);
    }

    /// How many more parts may be read for their ids.
    pub(crate) fn parts_left(&self) -> Option<usize> {
        *self.reading_ids.borrow()
    }

    /// Lookups of ids since the last call: how many events each, and up to which position.
    pub(crate) fn take_id_lookups(&self) -> Vec<(usize, Position)> {
        std::mem::take(&mut self.state().id_lookups)
    }

    /// Looking up an id in this stream fails from now on.
    pub(crate) fn set_too_long(&self, stream: StreamId) {
        self.state().too_long = Some(stream);
    }

    /// The listing under way, or the next one, fails.
    pub(crate) fn fail_listing(&self) {
        self.state().listing_fails = true;
    }

    /// Reads under way.
    pub(crate) fn reading(&self) -> usize {
        2 - self.readers.available_permits()
    }

    /// Statements that were lost and may yet commit.
    pub(crate) fn lost(&self) -> usize {
        self.state().limbo.len()
    }

    /// Executes what was lost, late. Returns how many batches were stored.
    pub(crate) fn commit_lost(&self) -> usize {
        let mut state = self.state();
        let limbo = std::mem::take(&mut state.limbo);
        limbo
            .into_iter()
            .filter(|(batch, epoch)| state.execute(batch, *epoch))
            .count()
    }

    /// Loses the newest rows, as a fail-over to a standby that lags does.
    pub(crate) fn lose_newest(&self, count: usize) {
        let mut state = self.state();
        let keep = state.rows.len() - count;
        state.rows.truncate(keep);
        let keep = keep as u64;
        state.streams.retain(|_, row| row.0 <= keep);
        state.types.retain(|_, row| row.0 <= keep);
    }

    /// All stored events.
    pub(crate) fn events(&self) -> Vec<Row> {
        self.state()
            .rows
            .iter()
            .map(|(row, _)| row.clone())
            .collect()
    }

    /// Checks what must always hold: positions and revisions without gaps.
    pub(crate) fn check(&self) {
        let mut next: HashMap<StreamId, u64> = HashMap::new();
        for (i, row) in self.events().iter().enumerate() {
            assert_eq!(row.position.0, i as u64 + 1);
            let revision = next.entry(row.stream.clone()).or_default();
            assert_eq!(row.revision.0, *revision, "stream {}", row.stream);
            *revision += 1;
        }
    }
}

impl State {
    fn end(&self) -> LogEnd {
        self.rows
            .last()
            .map_or(LogEnd::default(), |(row, writer)| LogEnd {
                position: row.position,
                writer: *writer,
                created: row.created,
            })
    }

    /// The chained insert.
    fn execute(&mut self, batch: &Batch, epoch: WriterEpoch) -> bool {
        let end = self.end();
        let other_writer = end.writer != batch.after.writer && !self.compares_numbers_only;
        if end.position != batch.after.position || other_writer {
            return false;
        }
        for (row, stream) in &batch.new_streams {
            assert!(
                self.streams.insert(stream.clone(), *row).is_none(),
                "stream {stream} created twice"
            );
        }
        for (row, event_type) in &batch.new_types {
            assert!(
                self.types.insert(event_type.clone(), *row).is_none(),
                "type created twice"
            );
        }
        for row in &batch.rows {
            assert_eq!(self.streams.get(&row.stream), Some(&row.stream_row));
            assert_eq!(self.types.get(&row.event_type), Some(&row.type_row));
            self.rows.push((row.clone(), epoch));
        }
        true
    }

    fn head(&self, stream: &StreamId) -> Option<(StreamHead, &Row)> {
        let (row, _) = self
            .rows
            .iter()
            .rev()
            .find(|(row, _)| row.stream == *stream)?;
        Some((
            StreamHead {
                row: row.stream_row,
                last: row.revision,
                position: row.position,
                id: Some(row.id),
            },
            row,
        ))
    }
}

struct SimWriter {
    state: Arc<Mutex<State>>,
    epoch: WriterEpoch,
    dead: bool,
    answering: watch::Receiver<bool>,
}

impl SimWriter {
    fn execute(&mut self, batch: &Arc<Batch>) -> BatchOutcome {
        let lost = || BatchOutcome::Unknown(Error::unavailable("connection lost"));
        let mut state = self.state.lock().unwrap();
        if self.dead || state.down {
            self.dead = true;
            return lost();
        }
        let fault = if batch.rows.is_empty() {
            None
        } else {
            state.faults.pop_front()
        };
        match fault {
            Some(Fault::Fail) => return BatchOutcome::Failed(Error::unavailable("lock time-out")),
            Some(Fault::FailLastingly) => {
                let full = ErrorKind::Unsupported("the disk is full".into());
                return BatchOutcome::Failed(full.into());
            }
            Some(Fault::LoseRequest) => {
                self.dead = true;
                return lost();
            }
            Some(Fault::CommitLate) => {
                state.limbo.push((Arc::clone(batch), self.epoch));
                self.dead = true;
                return lost();
            }
            _ => {}
        }
        if batch
            .rows
            .iter()
            .any(|row| row.event_type.as_str() == "poison")
        {
            return BatchOutcome::Refused(ErrorKind::Refused("poison".into()).into());
        }
        if !state.execute(batch, self.epoch) {
            return BatchOutcome::Missed;
        }
        if fault == Some(Fault::LoseReply) {
            self.dead = true;
            return lost();
        }
        BatchOutcome::Committed
    }
}

impl LogWriter for SimWriter {
    fn epoch(&self) -> WriterEpoch {
        self.epoch
    }

    fn is_gathered(&self) -> bool {
        false
    }

    fn submit(&mut self, batch: Arc<Batch>) -> BoxFuture<'static, BatchOutcome> {
        let outcome = self.execute(&batch);
        let mut answering = self.answering.clone();
        async move {
            let _ = answering.wait_for(|answering| *answering).await;
            tokio::task::yield_now().await;
            outcome
        }
        .boxed()
    }
}

#[async_trait]
impl Backend for Sim {
    fn info(&self) -> Arc<BackendInfo> {
        Arc::clone(&self.info)
    }

    fn history(&self) -> History {
        self.history.get()
    }

    fn pack(&self, _: &StreamId, _: ContentType, _: &Bytes) -> Option<Bytes> {
        let packing = self.state().packing.clone();
        if let Some(run) = packing {
            run();
        }
        None
    }

    async fn open_writer(&self, _: LogId) -> Result<Box<dyn LogWriter>> {
        let mut state = self.state();
        if state.down {
            return Err(Error::unavailable("down"));
        }
        state.epochs += 1;
        Ok(Box::new(SimWriter {
            state: Arc::clone(&self.state),
            epoch: WriterEpoch(state.epochs),
            dead: false,
            answering: self.answering.subscribe(),
        }))
    }

    async fn log_end(&self, _: LogId, _: Purpose) -> Result<LogEnd> {
        let state = self.state();
        if state.broken {
            return Err(ErrorKind::Unsupported("the database is broken".into()).into());
        }
        Ok(state.end())
    }

    async fn load(&self, _: LogId, request: LoadRequest, _: Purpose) -> Result<Loaded> {
        let _reader = self.readers.acquire().await;
        let _ = self.loading.subscribe().wait_for(|loading| *loading).await;
        tokio::task::yield_now().await;
        let state = self.state();
        let stream = |name: &StreamId| LoadedStream {
            head: state.head(name).map(|(head, _)| head),
            meta: state
                .head(&name.metadata_stream())
                .map(|(head, row)| LoadedMeta {
                    head,
                    data: row.data.clone(),
                    metadata: row.metadata.clone(),
                }),
        };
        Ok(Loaded {
            end: state.end(),
            streams: request.streams.iter().map(stream).collect(),
            types: request
                .types
                .iter()
                .map(|t| state.types.get(t).copied())
                .collect(),
        })
    }

    async fn lookup(&self, _: LogId, lookup: EventLookup, _: Purpose) -> Result<Vec<EventRef>> {
        let _reader = self.readers.acquire().await;
        tokio::task::yield_now().await;
        let mut state = self.state();
        if state.down {
            return Err(Error::unavailable("down"));
        }
        if let EventLookup::Ids { events, until, .. } = &lookup {
            state.id_lookups.push((events.len(), *until));
            let slow = state.too_long.as_ref();
            let slow = slow.and_then(|stream| state.streams.get(stream));
            if slow.is_some_and(|slow| events.iter().any(|(stream, _)| stream == slow)) {
                return Err(Error::unavailable("no answer within 10 s"));
            }
        }
        let limit = match &lookup {
            EventLookup::After { limit, .. } => *limit,
            _ => usize::MAX,
        };
        let wanted = |row: &Row| match &lookup {
            EventLookup::Revisions {
                stream,
                first,
                count,
            } => {
                row.stream_row == *stream
                    && (first.0..first.0 + *count as u64).contains(&row.revision.0)
            }
            EventLookup::Positions(positions) => positions.contains(&row.position),
            EventLookup::Ids {
                events,
                after,
                created_from,
                until,
            } => {
                events.contains(&(row.stream_row, row.id))
                    && row.position <= *until
                    && (row.position > *after || row.created >= *created_from)
            }
            EventLookup::After { position, .. } => row.position > *position,
        };
        let reference = |(row, writer): &(Row, WriterEpoch)| EventRef {
            position: row.position,
            writer: *writer,
            created: row.created,
            stream: row.stream.clone(),
            stream_row: row.stream_row,
            revision: row.revision,
            id: row.id,
            event_type: row.event_type.clone(),
            type_row: row.type_row,
        };
        Ok(state
            .rows
            .iter()
            .filter(|(row, _)| wanted(row))
            .take(limit)
            .map(reference)
            .collect())
    }

    async fn read_ids(&self, _: LogId, after: Position, to: Position) -> Result<Vec<StoredId>> {
        let mut reading = self.reading_ids.subscribe();
        let may = |left: &Option<usize>| *left != Some(0);
        reading.wait_for(may).await.expect("lives");
        if self.parts_left().is_none() {
            return Err(Error::unavailable("interrupted"));
        }
        self.reading_ids
            .send_modify(|left| *left = left.map(|left| left.saturating_sub(1)));
        let state = self.state();
        let wanted = state.rows.iter().map(|(row, _)| row);
        let id = |row: &Row| StoredId {
            stream: row.stream_row,
            id: row.id,
            position: row.position,
            created: row.created,
        };
        Ok(wanted
            .filter(|row| row.position > after && row.position <= to)
            .map(id)
            .collect())
    }

    async fn read_stream(&self, _: StreamSlice) -> Result<Rows> {
        unimplemented!("the pipeline does not read")
    }

    async fn read_streams(&self, _: LogId, _: Vec<StreamSlice>) -> Result<Vec<Rows>> {
        unimplemented!("the pipeline does not read")
    }

    async fn read_log(&self, _: LogSlice) -> Result<Rows> {
        unimplemented!("the pipeline does not read")
    }

    async fn list_streams(
        &self,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
    ) -> Result<Vec<StreamId>> {
        let _connection = self.readers.acquire().await.expect("never closed");
        if self.state().down {
            return Err(Error::unavailable("down"));
        }
        let mut names: Vec<StreamId> = self.state().streams.keys().cloned().collect();
        names.retain(|name| {
            name.as_str().starts_with(prefix)
                && name.as_str().starts_with('$') == prefix.starts_with('$')
                && after.is_none_or(|after| name > after)
        });
        names.sort();
        names.truncate(limit);
        let mut listing = self.listing.subscribe();
        listing.wait_for(|listing| *listing).await.expect("lives");
        if std::mem::take(&mut self.state().listing_fails) {
            return Err(Error::unavailable("interrupted"));
        }
        Ok(names)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        Box::pin(futures::stream::pending())
    }

    async fn send_signal(&self, _: Signal) {}

    async fn remove_hidden(
        &self,
        _: LogId,
        _: RowId,
        _: Visibility,
        _: RunMode,
    ) -> Result<Removed> {
        unimplemented!("the pipeline does not scavenge")
    }

    fn registry(&self) -> Option<Arc<dyn gesta_core::registry::Registry>> {
        None
    }

    async fn close(&self) {}
}

/// Waits until a condition holds, or fails after ten seconds.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "not within 10 s: {what}"
        );
        tokio::task::yield_now().await;
    }
}
