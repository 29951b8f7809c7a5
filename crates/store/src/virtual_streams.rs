//! Virtual streams (`$ce-…`, `$et-…` and `$streams`) are read here.
//!
//! A page takes its entries from the index, and makes a link of each by looking up the event that stands there. A read
//! reads the end of the log first, and waits until the log was looked at up to that end, so it contains what was
//! acknowledged before it began.
//! Invariants: an entry keeps its revision for ever. An entry whose event was scavenged is left out, which leaves a
//! gap. Every read asks the database whether virtual streams are on.
//! Not here: what writes the entries (`indexer`), following links (`links`).

pub(crate) mod indexer;
pub(crate) mod subscribe;

use std::collections::HashMap;
use std::sync::Arc;

use gesta_core::backend::{
    Backend, Batch, CommitObserver, Entries, Entry, EntrySlice, EventLookup, EventRef, IndexState,
    Purpose,
};
use gesta_core::shares::{self, Holder};
use gesta_core::{
    Direction, Error, ErrorKind, LogId, Position, ReadStream, RecordedEvent, Result, Revision,
    StreamFrom, StreamId, StreamPage, virtual_link,
};
use gesta_tail::Hub;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::indexer::{Config, Indexer, LOG};

/// The virtual streams of a store with one log.
pub(crate) struct VirtualStreams {
    backend: Arc<dyn Backend>,
    pub(crate) indexer: Arc<Indexer>,
}

/// The links of a part of a virtual stream.
struct Links {
    /// The links, in the direction asked for.
    events: Vec<RecordedEvent>,
    /// Last revision of the virtual stream; `None` if it has no entry.
    last: Option<Revision>,
    /// Revision at which the read goes on; `None` if there is nothing more.
    next: Option<Revision>,
}

impl VirtualStreams {
    /// Makes the virtual streams of a backend; `None` if it can have none.
    pub(crate) fn new(backend: &Arc<dyn Backend>, config: Config) -> Option<Arc<Self>> {
        if backend.info().logs != 1 {
            return None;
        }
        let index = backend.virtual_index()?;
        let indexer = Indexer::new(Arc::clone(backend), index, config);
        Some(Arc::new(Self {
            backend: Arc::clone(backend),
            indexer: Arc::new(indexer),
        }))
    }

    /// Reads one page of a virtual stream.
    ///
    /// # Errors
    /// Those of [`read_stream`](gesta_core::EventStore::read_stream); `Unsupported` if virtual streams are off.
    pub(crate) async fn page(&self, request: &ReadStream) -> Result<StreamPage> {
        request.validate()?;
        let first_only =
            request.direction == Direction::Backwards && request.from == StreamFrom::Start;
        let mut slice = EntrySlice {
            stream: request.stream.clone(),
            from: Revision(0),
            to: Revision::MAX,
            direction: request.direction,
            limit: request.limit,
        };
        match (request.direction, request.from) {
            (Direction::Forwards, StreamFrom::Revision(from)) => slice.from = from,
            // Nothing is above the highest revision, but the answer tells the last one.
            (Direction::Forwards, StreamFrom::End) => slice.from = Revision::MAX,
            (Direction::Backwards, StreamFrom::Revision(to)) => slice.to = to,
            (Direction::Backwards, StreamFrom::Start) => {
                slice.direction = Direction::Forwards;
                slice.limit = 1;
            }
            (Direction::Forwards, StreamFrom::Start) | (Direction::Backwards, StreamFrom::End) => {}
        }
        let asked = slice.from;
        let links = self.links(slice).await?;
        let Some(last) = links.last else {
            return Err(ErrorKind::StreamNotFound(request.stream.clone()).into());
        };
        let next = match (request.direction, request.from) {
            (Direction::Forwards, StreamFrom::End) => Some(last.next()),
            (Direction::Forwards, _) => Some(links.next.unwrap_or(asked.max(last.next()))),
            (Direction::Backwards, _) => links.next.filter(|_| !first_only),
        };
        Ok(StreamPage {
            events: links.events,
            next,
            end: first_only || links.next.is_none(),
            last_revision: last,
        })
    }

    /// Reads links, of everything that is committed now.
    async fn links(&self, slice: EntrySlice) -> Result<Links> {
        let end = self.backend.log_end(LOG, Purpose::Read).await?.position;
        self.links_of_log(slice, end).await
    }

    /// Reads links until there is one at least, or until the slice ends. They include the log up to `end` at least.
    async fn links_of_log(&self, mut slice: EntrySlice, end: Position) -> Result<Links> {
        loop {
            let found = self.entries(&slice, end).await?;
            let last = found.last;
            let next = next_of(&slice, &found);
            let events = self.links_of(&slice.stream, found.entries).await?;
            let Some(next) = next.filter(|_| events.is_empty()) else {
                return Ok(Links { events, last, next });
            };
            // All that stood here was scavenged.
            match slice.direction {
                Direction::Forwards => slice.from = next,
                Direction::Backwards => slice.to = next,
            }
        }
    }

    /// Reads entries once the log was looked at up to `end`.
    async fn entries(&self, slice: &EntrySlice, end: Position) -> Result<Entries> {
        let indexer = &self.indexer;
        if !indexer.may_reach(end) {
            indexer.reach(end).await?;
        }
        loop {
            let found = indexer.index.read(slice.clone()).await?;
            let IndexState { on, position } = found.state;
            if !on {
                return Err(off());
            }
            if position >= end {
                return Ok(found);
            }
            indexer.learn(found.state);
            if end.0 - position.0 > indexer.config.backlog_max {
                indexer.hurry();
                return Err(indexer.not_up_to_date(end));
            }
            indexer.reach(end).await?;
        }
    }

    /// Makes the links at these places, and leaves out those whose events are gone.
    async fn links_of(&self, stream: &StreamId, entries: Vec<Entry>) -> Result<Vec<RecordedEvent>> {
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let positions = entries.iter().map(|entry| entry.position).collect();
        let lookup = EventLookup::Positions(positions);
        let found = self.backend.lookup(LOG, lookup, Purpose::Read).await?;
        let found: HashMap<Position, EventRef> = found
            .into_iter()
            .map(|event| (event.position, event))
            .collect();
        let links = entries.iter().filter_map(|entry| {
            let to = found.get(&entry.position)?;
            Some(virtual_link(stream, entry.revision, to))
        });
        Ok(links.collect())
    }
}

/// The task that writes entries. Dropping this value ends the task.
pub(crate) struct Indexing {
    closes: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
    _guard: DropGuard,
}

impl Indexing {
    /// Starts the task. The caller must be in a tokio runtime.
    pub(crate) fn start(streams: &Arc<VirtualStreams>) -> Arc<Self> {
        let closes = streams.indexer.closed().clone();
        let indexing = Arc::clone(&streams.indexer).run();
        let task = tokio::spawn(shares::act_as(Holder::Server, indexing));
        Arc::new(Self {
            _guard: closes.clone().drop_guard(),
            closes,
            task: Mutex::new(Some(task)),
        })
    }

    /// Ends the task, and waits for its end.
    pub(crate) async fn end(&self) {
        self.closes.cancel();
        if let Some(task) = self.task.lock().await.take() {
            // A task that failed has nothing left to end.
            let _ = task.await;
        }
    }
}

/// Returns the observer of commits: the hub, and, if there are virtual streams, also what writes their entries.
pub(crate) fn observer(
    hub: &Arc<Hub>,
    streams: Option<&Arc<VirtualStreams>>,
) -> Arc<dyn CommitObserver> {
    let hub = Arc::clone(hub);
    match streams {
        Some(streams) => Arc::new(Observers {
            hub,
            indexer: Arc::clone(&streams.indexer),
        }),
        None => hub,
    }
}

struct Observers {
    hub: Arc<Hub>,
    indexer: Arc<Indexer>,
}

impl CommitObserver for Observers {
    fn committed(&self, batch: &Arc<Batch>) {
        self.hub.committed(batch);
        self.indexer.committed(batch);
    }

    fn read_log_end(&self, log: LogId) {
        self.hub.read_log_end(log);
        self.indexer.read_log_end(log);
    }
}

/// State of the virtual streams of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VirtualStreamsStatus {
    /// True if virtual streams are switched on.
    pub on: bool,
    /// Position up to which the entries of events are written.
    pub position: Position,
    /// Position of the last event of the log.
    pub end: Position,
}

/// Returns where a slice goes on after these entries; `None` if it has no more.
fn next_of(slice: &EntrySlice, found: &Entries) -> Option<Revision> {
    let (last, read) = (found.last?, found.entries.last()?.revision);
    if found.entries.len() < slice.limit {
        return None;
    }
    match slice.direction {
        Direction::Forwards => (read < last.min(slice.to)).then(|| read.next()),
        Direction::Backwards => {
            let before = read.0.checked_sub(1).map(Revision);
            before.filter(|before| *before >= slice.from)
        }
    }
}

pub(crate) fn off() -> Error {
    let text =
        "virtual streams are switched off; `gesta virtual-streams on --store URL` switches them on";
    ErrorKind::Unsupported(text.to_owned()).into()
}

/// Makes the error that tells why a store has no virtual streams.
pub(crate) fn none(logs: u16) -> Error {
    let text = match logs {
        1 => "this store keeps no virtual streams: a store in one database does".to_owned(),
        _ => format!(
            "virtual streams need one order of all events, and this store has {logs} logs: a store of one log has them"
        ),
    };
    ErrorKind::Unsupported(text).into()
}
