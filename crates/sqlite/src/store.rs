//! The SQLite backend: opening, closing, and which connection does what.
//!
//! Opening, in this order: library version, directory, lock, connection and its settings, schema, threads.
//! Closing, in this order: readers, queue of the writing thread, connection (which empties the WAL), lock.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use gesta_core::backend::{
    Backend, BackendInfo, CurrentHistory, EventLookup, EventRef, History, LoadRequest, Loaded,
    LogEnd, LogSlice, LogWriter, Purpose, Removed, RowId, Rows, RunMode, Signal, StoredId,
    StreamSlice, VirtualIndex,
};
use gesta_core::registry::Registry;
use gesta_core::{
    Capabilities, ContentType, Durability, Error, Incarnation, LogId, Position, Result, StreamId,
    Visibility,
};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::append::SqliteWriter;
use crate::audit::SqliteAudit;
use crate::backup::{self, Source};
use crate::checkpoint::WalWatch;
use crate::config::{Location, Missing, SqliteConfig};
use crate::end_note::{self, EndNote};
use crate::error::{FaultMark, Outcome, closed};
use crate::lock::StoreLock;
use crate::read_connection::ReadConnection;
use crate::reader::Readers;
use crate::schema::{self, Migrated};
use crate::virtual_index::SqliteIndex;
use crate::write_thread::{WriteState, WriteThread};
use crate::{connection, files, lookup, read, scavenge};

/// Largest number of batches that may wait for the writing thread: one is committed while the next is being sent.
const BATCHES_IN_FLIGHT_MAX: usize = 2;

/// A store in one SQLite file or in memory.
#[derive(Debug)]
pub struct SqliteBackend {
    info: Arc<BackendInfo>,
    history: CurrentHistory,
    location: Location,
    readers: Readers,
    thread: WriteThread,
    fault: FaultMark,
    handle: Mutex<Option<JoinHandle<()>>>,
    copies: Copies,
}

/// Copies of the store that are being made: one at a time.
#[derive(Debug, Default)]
struct Copies {
    one: Arc<tokio::sync::Mutex<()>>,
    /// Number of snapshots that last. While there are any, the write-ahead log cannot be started again.
    snapshots: Arc<AtomicUsize>,
    closing: Arc<AtomicBool>,
}

impl SqliteBackend {
    /// Opens a store. A file that is missing or empty becomes a store, if the configuration says so. The call blocks
    /// for some milliseconds.
    ///
    /// # Errors
    /// `Unavailable` if another process has the store open, or the file cannot be opened. `Schema` if the store needs a
    /// migration, is newer than this program, does not exist (and must), or if the file is not of Gesta. `Unsupported`
    /// if SQLite cannot keep the contract here. `Corrupt` if committed events are missing.
    pub fn open(config: SqliteConfig) -> Result<Self> {
        connection::check_library()?;
        let opened = Opened::new(&config)?;
        opened.check_end()?;
        Ok(Self::start(opened, &config)?)
    }

    fn start(opened: Opened, config: &SqliteConfig) -> Outcome<Self> {
        let Opened {
            mut conn,
            location,
            lock,
        } = opened;
        let marks = schema::prepare(&conn, &location, config.missing)?;
        let info = BackendInfo {
            backend: "sqlite",
            engine: format!("SQLite {}", rusqlite::version()),
            logs: marks.logs,
            durability: connection::durability(&conn, &location)?,
            capabilities: Capabilities {
                persistent: matches!(location, Location::File(_)),
                shared: false,
                several_logs: false,
                batches_in_flight_max: BATCHES_IN_FLIGHT_MAX,
            },
        };
        let fault = FaultMark::default();
        let note = match &location {
            Location::File(path) if matches!(info.durability, Durability::Full(_)) => {
                Some(Arc::new(EndNote::open(path, marks.incarnation)?))
            }
            _ => None,
        };
        let copies = Copies::default();
        let wal = match &location {
            Location::Memory => None,
            Location::File(_) => {
                let helper = connection::open_writing(&location, config)?;
                Some(WalWatch::start(
                    &mut conn,
                    helper,
                    config.wal_bytes_max,
                    fault.clone(),
                    note.clone(),
                    Arc::clone(&copies.snapshots),
                )?)
            }
        };
        let (thread, handle) = WriteThread::start(conn, fault.clone(), wal, note, lock)?;
        let readers = match &location {
            Location::Memory => Readers::shared(thread.clone()),
            Location::File(path) => Readers::pool(path.clone(), config.readers),
        };
        Ok(Self {
            info: Arc::new(info),
            history: CurrentHistory::new(marks.incarnation),
            location,
            readers,
            thread,
            fault,
            handle: Mutex::new(Some(handle)),
            copies,
        })
    }

    /// Brings a store to the schema version of this program. It creates the store if the configuration says so. The
    /// store must not be open.
    ///
    /// # Errors
    /// Those of [`SqliteBackend::open`], but an older store is no error.
    pub fn migrate(config: &SqliteConfig) -> Result<Migrated> {
        connection::check_library()?;
        let opened = Opened::new(config)?;
        opened.check_end()?;
        if config.missing == Missing::Refuse {
            schema::require(&opened.conn, &opened.location)?;
        }
        let migrated = schema::migrate(&opened.conn)?;
        opened.close()?;
        Ok(migrated)
    }

    /// Begins a new life of a store, as must follow every restore of a backup. From then on checkpoints that were made
    /// before are refused, and events that are known to be missing are no longer missed. The store must not be open.
    ///
    /// # Errors
    /// Those of [`SqliteBackend::open`]. A store that does not exist is not created.
    pub fn new_incarnation(config: &SqliteConfig) -> Result<Incarnation> {
        connection::check_library()?;
        let opened = Opened::new(&config.clone().must_exist())?;
        schema::prepare(&opened.conn, &opened.location, Missing::Refuse)?;
        let incarnation = schema::new_incarnation(&opened.conn)?;
        if let Location::File(path) = &opened.location {
            end_note::remove(path).map_err(|error| cannot_open(path, error))?;
        }
        opened.close()?;
        Ok(incarnation)
    }

    /// Gives the space that removed events have left in the file back to the file system. The store must not be open.
    /// The whole store is written anew, so there must be space for two more of it. The answer is the size of the file
    /// before and after, in bytes.
    ///
    /// # Errors
    /// Those of [`SqliteBackend::open`]. A store that does not exist is not created.
    pub fn compact(config: &SqliteConfig) -> Result<(u64, u64)> {
        connection::check_library()?;
        let opened = Opened::new(&config.clone().must_exist())?;
        opened.check_end()?;
        schema::prepare(&opened.conn, &opened.location, Missing::Refuse)?;
        let Location::File(path) = opened.location.clone() else {
            return Ok((0, 0));
        };
        let bytes = || {
            let found = fs::metadata(&path).map_err(|error| cannot_open(&path, error));
            found.map(|found| found.len())
        };
        opened.truncate_wal()?;
        let before = bytes()?;
        opened.vacuum()?;
        opened.truncate_wal()?;
        let after = bytes()?;
        opened.close()?;
        Ok((before, after))
    }

    /// Copies the store, while it is in use, to a new file. The copy is on disk when this returns. Appends go on.
    ///
    /// # Errors
    /// `InvalidArgument` if `to` exists; `Overloaded` while another copy is being made; `Unavailable` if the copy
    /// cannot be written. Nothing is left behind then.
    ///
    /// # Cancel safety
    /// Dropping the future stops the backup soon, and removes what it wrote; [`Backend::close`] waits for that.
    pub async fn backup(&self, to: impl Into<PathBuf>) -> Result<()> {
        let to = to.into();
        self.copy(move |from, stopped| backup::back_up(from, &to, stopped))
            .await
    }

    /// Copies the store, while it is in use, to a file without a name, which is gone once it is closed.
    ///
    /// # Errors
    /// Those of [`SqliteBackend::backup`].
    ///
    /// # Cancel safety
    /// Dropping the future stops the copy soon; [`Backend::close`] waits for that.
    pub async fn backup_file(&self) -> Result<fs::File> {
        let path = match &self.location {
            Location::File(path) => backup::nameless(path),
            Location::Memory => std::env::temp_dir().join(format!("gesta-copy-{}", Uuid::new_v4())),
        };
        self.copy(move |from, stopped| backup::copy_without_name(from, &path, stopped))
            .await
    }

    async fn copy<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Source<'_>, &dyn Fn() -> bool) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let busy = |_| {
            Error::from(gesta_core::ErrorKind::Overloaded(
                "a copy is being made already".into(),
            ))
        };
        let turn = Arc::clone(&self.copies.one)
            .try_lock_owned()
            .map_err(busy)?;
        let closing = Arc::clone(&self.copies.closing);
        let dropped = StopOnDrop::default();
        let flag = Arc::clone(&dropped.0);
        let stopped = move || flag.load(Ordering::Relaxed) || closing.load(Ordering::Relaxed);
        match &self.location {
            Location::Memory => {
                self.readers
                    .run(move |reader| work(&Source::Memory(&reader.conn), &stopped))
                    .await
            }
            Location::File(path) => {
                let (path, snapshot) = (path.clone(), Counted::new(&self.copies.snapshots));
                let copying = tokio::task::spawn_blocking(move || {
                    let result = work(&Source::File(&path), &stopped);
                    drop((snapshot, turn));
                    result
                });
                Ok(copying.await.map_err(|error| closed().caused_by(error))??)
            }
        }
    }

    /// Opens one snapshot of the store for `gesta_sql::verify::audit`.
    ///
    /// # Errors
    /// `Unavailable` if the file cannot be opened or read.
    pub async fn audit(&self) -> Result<SqliteAudit> {
        match &self.location {
            Location::Memory => Ok(SqliteAudit::of_memory(self.readers.clone())),
            Location::File(path) => {
                let path = path.clone();
                let work = tokio::task::spawn_blocking(move || SqliteAudit::of_file(&path));
                Ok(work.await.map_err(|error| closed().caused_by(error))??)
            }
        }
    }

    /// Runs a job on the writing thread.
    async fn on_thread<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut WriteState) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        self.thread.run(move |state| {
            let _ = answer.send(job(state));
        })?;
        answered.await.map_err(|_| closed())?
    }

    async fn read<T: Send + 'static>(
        &self,
        log: LogId,
        job: impl FnOnce(&mut ReadConnection) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        check_log(log)?;
        self.readers.run(job).await
    }
}

/// Tells the work for which a future waits that the future was dropped.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Counts one more of something, until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A store whose lock is held and whose connection is open, not yet checked for its schema.
struct Opened {
    // Fields are dropped in this order: the lock last.
    conn: rusqlite::Connection,
    location: Location,
    lock: Option<StoreLock>,
}

impl Opened {
    fn new(config: &SqliteConfig) -> Result<Self> {
        let (location, lock) = match &config.location {
            Location::Memory => (Location::Memory, None),
            Location::File(path) => {
                let path = settle_path(path, config.missing)?;
                let lock = StoreLock::take(&path)?;
                end_note::check_file(&path)?;
                // Left behind by a process that was killed.
                backup::remove_if_there(&backup::nameless(&path));
                (Location::File(path), Some(lock))
            }
        };
        let conn = connection::open_writing(&location, config)?;
        if let Location::File(path) = &location {
            // The name of a new file must be as durable as what will be stored in it.
            files::sync_directory_of(path).map_err(|error| cannot_open(path, error))?;
        }
        Ok(Self {
            conn,
            location,
            lock,
        })
    }

    /// Copies the write-ahead log into the file, and empties it.
    fn truncate_wal(&self) -> Outcome<()> {
        let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
        Ok(self.conn.query_row(sql, [], |_| Ok(()))?)
    }

    fn vacuum(&self) -> Outcome<()> {
        Ok(self.conn.execute_batch("VACUUM")?)
    }

    /// Refuses a log that ends before a position that was committed.
    fn check_end(&self) -> Outcome<()> {
        let Location::File(path) = &self.location else {
            return Ok(());
        };
        let marks = schema::read_marks(&self.conn)?;
        let end = match marks {
            Some(_) => lookup::log_end(&self.conn)?.position,
            None => Position::START,
        };
        Ok(end_note::check_end(
            path,
            marks.map(|marks| marks.incarnation),
            end,
        )?)
    }

    fn close(self) -> Outcome<()> {
        let Opened { conn, lock, .. } = self;
        conn.close().map_err(|(_, error)| error)?;
        drop(lock);
        Ok(())
    }
}

/// Returns the canonical path, so that two names of a file share a lock. It creates the directories above the file.
fn settle_path(path: &Path, missing: Missing) -> Result<PathBuf> {
    let is_there = fs::metadata(path).is_ok_and(|found| found.len() > 0);
    if !is_there && missing == Missing::Refuse {
        return Err(schema::no_store(path));
    }
    if let Ok(found) = fs::canonicalize(path) {
        return Ok(found);
    }
    let name = path.file_name().ok_or_else(|| {
        Error::invalid(
            "store",
            format!("must name a file, found {}", path.display()),
        )
    })?;
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let failed = |error| cannot_open(path, error);
    create_directories(parent).map_err(failed)?;
    Ok(fs::canonicalize(parent).map_err(failed)?.join(name))
}

/// Creates a directory and those above it, and makes their names durable.
fn create_directories(path: &Path) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        create_directories(parent)?;
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => files::sync_directory_of(path),
    }
}

fn cannot_open(path: &Path, error: std::io::Error) -> Error {
    Error::unavailable(format!("cannot open {}: {error}", path.display())).caused_by(error)
}

fn check_log(log: LogId) -> Result<()> {
    if log == LogId(0) {
        return Ok(());
    }
    Err(Error::invalid(
        "log",
        format!("must be 0, the only one of a SQLite store, found {log}"),
    ))
}

#[async_trait]
impl Backend for SqliteBackend {
    fn info(&self) -> Arc<BackendInfo> {
        Arc::clone(&self.info)
    }

    fn history(&self) -> History {
        self.history.get()
    }

    fn pack(&self, _: &StreamId, _: ContentType, _: &Bytes) -> Option<Bytes> {
        None
    }

    async fn open_writer(&self, log: LogId) -> Result<Box<dyn LogWriter>> {
        check_log(log)?;
        self.fault.check()?;
        Ok(Box::new(SqliteWriter::new(self.thread.clone())))
    }

    async fn log_end(&self, log: LogId, _: Purpose) -> Result<LogEnd> {
        self.read(log, |reader| lookup::log_end(&reader.conn)).await
    }

    async fn load(&self, log: LogId, request: LoadRequest, _: Purpose) -> Result<Loaded> {
        self.read(log, move |reader| {
            reader.in_snapshot(|conn, names| lookup::load(conn, names, &request))
        })
        .await
    }

    async fn lookup(&self, log: LogId, lookup: EventLookup, _: Purpose) -> Result<Vec<EventRef>> {
        self.read(log, move |reader| {
            reader.in_snapshot(|conn, names| lookup::lookup(conn, names, &lookup))
        })
        .await
    }

    async fn read_ids(&self, log: LogId, after: Position, to: Position) -> Result<Vec<StoredId>> {
        self.read(log, move |reader| {
            reader.in_snapshot(|conn, _| lookup::ids(conn, after, to))
        })
        .await
    }

    async fn read_stream(&self, slice: StreamSlice) -> Result<Rows> {
        let log = slice.log;
        self.read(log, move |reader| {
            reader.in_snapshot(|conn, names| read::stream_page(conn, names, &slice))
        })
        .await
    }

    async fn read_streams(&self, log: LogId, slices: Vec<StreamSlice>) -> Result<Vec<Rows>> {
        self.read(log, move |reader| {
            reader.in_snapshot(|conn, names| read::streams_page(conn, names, &slices))
        })
        .await
    }

    async fn read_log(&self, slice: LogSlice) -> Result<Rows> {
        let log = slice.log;
        self.read(log, move |reader| {
            reader.in_snapshot(|conn, names| read::log_page(conn, names, &slice))
        })
        .await
    }

    async fn list_streams(
        &self,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
    ) -> Result<Vec<StreamId>> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        self.readers
            .run(move |reader| lookup::list_streams(&reader.conn, &prefix, after.as_ref(), limit))
            .await
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        stream::pending().boxed()
    }

    async fn send_signal(&self, _signal: Signal) {
        // Nobody shares the store.
    }

    async fn remove_hidden(
        &self,
        log: LogId,
        stream: RowId,
        visibility: Visibility,
        mode: RunMode,
    ) -> Result<Removed> {
        if mode == RunMode::Dry {
            return self
                .read(log, move |reader| {
                    reader.in_snapshot(|conn, _| scavenge::count(conn, stream, visibility))
                })
                .await;
        }
        check_log(log)?;
        let mut total = Removed::default();
        loop {
            let removed = self
                .on_thread(move |state| {
                    state.fault.check()?;
                    Ok(scavenge::remove_some(
                        &state.reader.conn,
                        stream,
                        visibility,
                    )?)
                })
                .await?;
            if removed.events == 0 {
                return Ok(total);
            }
            total.events += removed.events;
            total.payload_bytes += removed.payload_bytes;
        }
    }

    fn registry(&self) -> Option<Arc<dyn Registry>> {
        // One process has the file.
        None
    }

    fn virtual_index(&self) -> Option<Arc<dyn VirtualIndex>> {
        Some(Arc::new(SqliteIndex::new(&self.readers, &self.thread)))
    }

    async fn close(&self) {
        self.copies.closing.store(true, Ordering::Relaxed);
        drop(self.copies.one.lock().await);
        self.readers.close().await;
        self.thread.stop();
        let handle = self
            .handle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(handle) = handle else { return };
        let joined = tokio::task::spawn_blocking(move || handle.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            tracing::error!("the writing thread has panicked");
        }
    }
}
