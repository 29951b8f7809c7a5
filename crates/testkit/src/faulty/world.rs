//! [`World`]: the database, and what a test may see and do without any process of it.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use gesta_core::backend::*;
use gesta_core::*;
use tokio::sync::mpsc::UnboundedSender;

use super::clock::TokioClock;
use super::store::FaultyStore;
use super::tables::Log;

/// A moment in the life of a [`World`]: a number that grows with whatever asks for one or becomes durable.
/// Two things that happened in one order have moments in that order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub u64);

/// An event of a [`World`], and when it became durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// The event.
    pub event: RecordedEvent,
    /// When it became durable.
    pub durable: Moment,
}

/// A database in memory. Must be made, and used, within a tokio runtime.
pub struct World {
    pub(super) logs: u16,
    pub(super) incarnation: Incarnation,
    clock: Arc<dyn Clock>,
    tables: Mutex<Vec<Log>>,
    listeners: Mutex<Vec<Vec<UnboundedSender<Signal>>>>,
    moments: AtomicU64,
    epochs: AtomicI64,
    violations: Mutex<Vec<String>>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("logs", &self.logs)
            .finish_non_exhaustive()
    }
}

impl World {
    /// An empty database of this many logs, whose time is tokio's (see [`TokioClock`]).
    #[must_use]
    pub fn new(logs: u16) -> Arc<Self> {
        Self::with_clock(logs, Arc::new(TokioClock::new()))
    }

    /// An empty database of this many logs. Its stores take the time from `clock`.
    #[must_use]
    pub fn with_clock(logs: u16, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            logs,
            incarnation: Incarnation::random(),
            clock,
            tables: Mutex::new(vec![Log::default(); usize::from(logs)]),
            listeners: Mutex::default(),
            moments: AtomicU64::new(0),
            epochs: AtomicI64::new(0),
            violations: Mutex::default(),
        })
    }

    /// A further process with its own store on this database.
    #[must_use]
    pub fn store(self: &Arc<Self>) -> FaultyStore {
        FaultyStore::on(self, gesta_store::Config::default())
    }

    /// The clock of the stores.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    /// A new moment, after all that were.
    pub fn moment(&self) -> Moment {
        Moment(self.moments.fetch_add(1, Ordering::SeqCst))
    }

    /// Appends events as a process that none of the others knows, and announces nothing. Returns the revision of the
    /// first one.
    ///
    /// # Errors
    /// `InvalidArgument` if the name of the stream is none, or there are no events.
    pub fn foreign_append(&self, stream: &str, events: Vec<EventData>) -> Result<Revision> {
        let stream = StreamId::new(stream)?;
        let append = Append::to(stream.clone(), ExpectedRevision::Any, events);
        append.validate()?;
        let events = append.streams.into_iter().flat_map(|part| part.events);
        let log = log_of(&stream, self.logs);
        let first = self.append_as_foreigner(log, &stream, events.collect());
        Ok(first)
    }

    pub(super) fn append_as_foreigner(
        &self,
        log: LogId,
        stream: &StreamId,
        events: Vec<EventData>,
    ) -> Revision {
        let writer = self.new_epoch();
        let batch = self.with(log, |rows| {
            let batch = rows.batch_of(log, stream, events, self.clock.now());
            let inserted = rows.insert(&batch, writer, self.moment());
            assert_eq!(inserted, Ok(true), "nobody else has the lock");
            batch
        });
        if let Some(last) = batch.rows.last() {
            let position = last.position;
            self.tell_others(usize::MAX, Signal::Appended { log, position });
        }
        batch.rows.first().map_or(Revision(0), |row| row.revision)
    }

    /// All events, in order of log and position, and when they became durable.
    ///
    /// # Panics
    /// If a process has sent what no process may send: the constraints of the database were about to be broken.
    #[must_use]
    pub fn stored(&self) -> Vec<StoredEvent> {
        let violations = lock(&self.violations).clone();
        assert!(violations.is_empty(), "{violations:?}");
        let tables = lock(&self.tables);
        let logs = (0..self.logs).map(LogId).zip(tables.iter());
        let rows = logs.flat_map(|(log, table)| table.rows.values().map(move |row| (log, row)));
        rows.map(|(log, stored)| StoredEvent {
            event: stored.row.to_recorded(log),
            durable: stored.durable,
        })
        .collect()
    }

    /// Loses the newest `count` rows of a log, as a fail-over to a lagging standby does.
    pub fn lose_newest(&self, log: LogId, count: usize) {
        self.with(log, |rows| rows.lose_newest(count));
    }

    // ---- for the backend ----

    pub(super) fn with<T>(&self, log: LogId, on: impl FnOnce(&mut Log) -> T) -> T {
        on(&mut lock(&self.tables)[usize::from(log.0)])
    }

    pub(super) fn new_epoch(&self) -> WriterEpoch {
        WriterEpoch(self.epochs.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Executes a batch.
    pub(super) fn commit(&self, batch: &Batch, writer: WriterEpoch) -> BatchOutcome {
        let inserted = self.with(batch.log, |rows| rows.insert(batch, writer, self.moment()));
        match inserted {
            Ok(true) => BatchOutcome::Committed,
            Ok(false) => BatchOutcome::Missed,
            Err(violation) => {
                lock(&self.violations).push(violation.clone());
                BatchOutcome::Refused(ErrorKind::Refused(violation).into())
            }
        }
    }

    pub(super) fn list(
        &self,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
    ) -> Vec<StreamId> {
        let tables = lock(&self.tables);
        let names = tables.iter().flat_map(|log| log.streams.keys());
        let mut names: Vec<StreamId> = names
            .filter(|name| name.as_str().starts_with(prefix))
            .filter(|name| !name.is_system() || prefix.starts_with('$'))
            .filter(|name| after.is_none_or(|after| *name > after))
            .cloned()
            .collect();
        names.sort();
        names.truncate(limit);
        names
    }

    // ---- messages ----

    /// The number of a new process.
    pub(super) fn join(&self) -> usize {
        let mut listeners = lock(&self.listeners);
        listeners.push(Vec::new());
        listeners.len() - 1
    }

    pub(super) fn listen(&self, process: usize, sender: UnboundedSender<Signal>) {
        lock(&self.listeners)[process].push(sender);
    }

    pub(super) fn tell(&self, process: usize, signal: Signal) {
        lock(&self.listeners)[process].retain(|listener| listener.send(signal).is_ok());
    }

    pub(super) fn tell_others(&self, from: usize, signal: Signal) {
        let processes = lock(&self.listeners).len();
        for process in (0..processes).filter(|process| *process != from) {
            self.tell(process, signal);
        }
    }
}

/// A lock under which nothing panics.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic under the lock")
}
