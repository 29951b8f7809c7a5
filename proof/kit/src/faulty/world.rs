//! [`World`], the database, and what a test may see and do without any process of it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use gesta_core::backend::*;
use gesta_core::*;
use tokio::sync::mpsc::UnboundedSender;

use super::clock::TokioClock;
use crate::database::{Log, Moment, VirtualTables};

/// What a listener wants to be told, and its way there.
type Listener = (Topic, UnboundedSender<Signal>);

/// An event of a [`World`], with the moment at which it became durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// The event itself.
    pub event: RecordedEvent,
    /// The moment at which it became durable.
    pub durable: Moment,
}

/// A database in memory. It must be made, and used, within a tokio runtime.
pub struct World {
    logs: u16,
    incarnation: Mutex<Incarnation>,
    batches_in_flight_max: AtomicUsize,
    clock: Arc<dyn Clock>,
    tables: Mutex<Vec<Log>>,
    virtual_tables: Mutex<VirtualTables>,
    refuses_entries: AtomicBool,
    listeners: Mutex<Vec<Vec<Listener>>>,
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
    /// Makes an empty database of this many logs, whose time is that of tokio (see [`TokioClock`]).
    #[must_use]
    pub fn new(logs: u16) -> Arc<Self> {
        Self::with_clock(logs, Arc::new(TokioClock::new()))
    }

    /// Makes an empty database of this many logs, whose stores take the time from `clock`.
    #[must_use]
    pub fn with_clock(logs: u16, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            logs,
            incarnation: Mutex::new(Incarnation::random()),
            batches_in_flight_max: AtomicUsize::new(64),
            clock,
            tables: Mutex::new(vec![Log::default(); usize::from(logs)]),
            virtual_tables: Mutex::default(),
            refuses_entries: AtomicBool::new(false),
            listeners: Mutex::default(),
            moments: AtomicU64::new(0),
            epochs: AtomicI64::new(0),
            violations: Mutex::default(),
        })
    }

    /// Returns how many logs the database has.
    #[must_use]
    pub fn logs(&self) -> u16 {
        self.logs
    }

    /// Returns the incarnation, which checkpoints carry.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        *lock(&self.incarnation)
    }

    /// Returns the incarnation that comes after this one; begins it if no process has.
    pub(super) fn incarnation_after(&self, known: Incarnation) -> Incarnation {
        let mut incarnation = lock(&self.incarnation);
        if *incarnation == known {
            *incarnation = Incarnation::random();
        }
        *incarnation
    }

    /// Returns how many batches of one log a process may have in flight.
    #[must_use]
    pub fn batches_in_flight_max(&self) -> usize {
        self.batches_in_flight_max.load(Ordering::SeqCst)
    }

    /// Sets how many batches of one log a process that is started from now on may have in flight.
    pub fn set_batches_in_flight_max(&self, count: usize) {
        self.batches_in_flight_max.store(count, Ordering::SeqCst);
    }

    /// Returns the end of a log.
    #[must_use]
    pub fn end(&self, log: LogId) -> LogEnd {
        self.with(log, |rows| rows.end())
    }

    /// Returns the clock of the stores.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    /// Returns a new moment, after all earlier ones.
    pub fn moment(&self) -> Moment {
        Moment(self.moments.fetch_add(1, Ordering::SeqCst))
    }

    /// Appends events as a process that no other one knows, without announcing them. Returns the revision of the first
    /// event.
    ///
    /// # Errors
    /// `InvalidArgument` if the name of the stream is not valid, or there are no events.
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

    /// Returns all events, in order of log and position, with the moments at which they became durable.
    ///
    /// # Panics
    /// If a process has sent what no process may send, so that a constraint of the database would have been broken.
    #[must_use]
    pub fn stored(&self) -> Vec<StoredEvent> {
        let violations = lock(&self.violations).clone();
        assert!(violations.is_empty(), "{violations:?}");
        let tables = lock(&self.tables);
        let logs = (0..self.logs).map(LogId).zip(tables.iter());
        let rows = logs.flat_map(|(log, table)| table.rows().iter().map(move |row| (log, row)));
        let there = rows.filter(|(_, stored)| !stored.is_removed);
        there
            .map(|(log, stored)| StoredEvent {
                event: stored.row.to_recorded(log),
                durable: stored.durable,
            })
            .collect()
    }

    /// Loses the newest `count` rows of a log, as a fail-over to a lagging standby does. What was written to virtual
    /// streams after these rows was committed later, so it is lost as well.
    pub fn lose_newest(&self, log: LogId, count: usize) {
        self.with(log, |rows| rows.lose_newest(count));
        if log == LogId(0) {
            let end = self.end(log).position;
            self.with_virtual(|tables, _| tables.lose_after(end));
        }
    }

    /// Removes a row, as scavenging does.
    pub fn remove(&self, log: LogId, position: Position) {
        let is_it = |row: &Row| row.position == position;
        self.with(log, |rows| rows.remove(is_it, RunMode::Real));
    }

    /// Damages the stored metadata of a stream, so that it cannot be read any more.
    ///
    /// # Panics
    /// If the stream has no metadata.
    pub fn damage_metadata(&self, stream: &StreamId) {
        let log = log_of(stream, self.logs);
        self.with(log, |rows| rows.damage_last(&stream.metadata_stream()));
    }

    /// Plants a mistake: chained inserts compare only the position of the last row, not its writer.
    pub fn forget_writers(&self) {
        lock(&self.tables).iter_mut().for_each(Log::forget_writers);
    }

    /// Says whether writes of entries of virtual streams fail from now on.
    pub fn refuse_entries(&self, refuse: bool) {
        self.refuses_entries.store(refuse, Ordering::SeqCst);
    }

    // ---- for the backend ----

    pub(super) fn with<T>(&self, log: LogId, on: impl FnOnce(&mut Log) -> T) -> T {
        on(&mut lock(&self.tables)[usize::from(log.0)])
    }

    /// Works on the tables of virtual streams, given the log.
    pub(super) fn with_virtual<T>(&self, on: impl FnOnce(&mut VirtualTables, &Log) -> T) -> T {
        let tables = lock(&self.tables);
        on(&mut lock(&self.virtual_tables), &tables[0])
    }

    pub(super) fn refuses_entries(&self) -> bool {
        self.refuses_entries.load(Ordering::SeqCst)
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
        let names = tables.iter().flat_map(|log| log.names(prefix, after));
        let mut names: Vec<StreamId> = names.cloned().collect();
        names.sort();
        names.truncate(limit);
        names
    }

    // ---- messages ----

    /// Returns the number of a new process.
    pub(super) fn join(&self) -> usize {
        let mut listeners = lock(&self.listeners);
        listeners.push(Vec::new());
        listeners.len() - 1
    }

    pub(super) fn listen(&self, process: usize, topic: Topic, sender: UnboundedSender<Signal>) {
        lock(&self.listeners)[process].push((topic, sender));
    }

    pub(super) fn tell(&self, process: usize, signal: Signal) {
        lock(&self.listeners)[process].retain(|(topic, listener)| match topic.includes(signal) {
            true => listener.send(signal).is_ok(),
            false => !listener.is_closed(),
        });
    }

    pub(super) fn tell_others(&self, from: usize, signal: Signal) {
        let processes = lock(&self.listeners).len();
        for process in (0..processes).filter(|process| *process != from) {
            self.tell(process, signal);
        }
    }
}

/// Locks a mutex. Nothing panics under the lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic under the lock")
}
