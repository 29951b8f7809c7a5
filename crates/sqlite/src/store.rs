//! The SQLite backend: opening, closing, and which connection does what.
//!
//! Opening, in this order: library version, directory, lock, file and its lock, the checks of the note, connection and
//! its settings, schema, mark of the opening, threads, reading connections. From then on no name of the store is used.
//! Closing, in this order: readers, queue of the writing thread, mark, connection (which empties the WAL), file, lock.

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
    LogEnd, LogSlice, LogTail, LogWriter, Purpose, Removed, RowId, Rows, RunMode, Signal, StoredId,
    StreamSlice, Topic, VirtualIndex,
};
use gesta_core::registry::Registry;
use gesta_core::{
    Capabilities, ContentType, Durability, Error, Incarnation, LogId, Position, Result, StreamId,
    Visibility,
};
use tokio::sync::oneshot;

use crate::append::SqliteWriter;
use crate::audit::SqliteAudit;
use crate::backup;
use crate::checkpoint::{CountedSnapshot, WalWatch};
use crate::config::{Location, Missing, SqliteConfig};
use crate::end_note::{self, EndNote, Opening};
use crate::error::{FaultMark, Outcome, closed, opening_failed, unfit};
use crate::files::{cannot_open, create_directories, with_suffix};
use crate::lock::StoreLock;
use crate::place::{self, Found, Place};
use crate::read_connection::ReadConnection;
use crate::reader::Readers;
use crate::schema::{self, Migrated};
use crate::virtual_index::SqliteIndex;
use crate::write_thread::{self, WriteState, WriteThread};
use crate::{connection, files, lookup, read, scavenge};

/// Largest number of batches that may wait for the writing thread: one is committed while the next is being sent.
const BATCHES_IN_FLIGHT_MAX: usize = 2;

/// A store in one SQLite file or in memory.
#[derive(Debug)]
pub struct SqliteBackend {
    info: Arc<BackendInfo>,
    history: CurrentHistory,
    place: Option<Arc<Place>>,
    readers: Readers,
    /// One more reading connection, with which copies are made.
    copier: Readers,
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
        let path = path_of(&opened.location);
        files::warn_of_others(&path);
        Self::start(opened, &config).map_err(|fault| opening_failed(&path, fault))
    }

    fn start(opened: Opened, config: &SqliteConfig) -> Outcome<Self> {
        let marks = schema::prepare(&opened.conn, &opened.location, config.missing)?;
        let opening = opened.begin()?;
        let Opened {
            conn,
            location,
            held,
        } = opened;
        let place = held.as_ref().map(|(place, _)| Arc::clone(place));
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
                Some(Arc::new(EndNote::open(path, marks.incarnation, opening)?))
            }
            _ => None,
        };
        let copies = Copies::default();
        let wal = match &location {
            Location::Memory => None,
            Location::File(_) => {
                let helper = connection::open_writing(&location, config)?;
                Some(WalWatch::start(
                    &conn,
                    helper,
                    config.wal_bytes_max,
                    fault.clone(),
                    note.clone(),
                    Arc::clone(&copies.snapshots),
                )?)
            }
        };
        // Before the thread, which gives the file up when it ends.
        let pools = match &place {
            None => None,
            Some(place) => {
                let pools = (
                    Readers::pool(place, config.readers)?,
                    Readers::pool(place, 1)?,
                );
                if let Found::Moved(text) = place.look_at_names() {
                    return Err(Error::unavailable(text).into());
                }
                Some(pools)
            }
        };
        let (thread, handle) = WriteThread::start(conn, fault.clone(), wal, note, held)?;
        let shared = || Readers::shared(thread.clone());
        let (readers, copier) = pools.unwrap_or_else(|| (shared(), shared()));
        Ok(Self {
            info: Arc::new(info),
            history: CurrentHistory::new(marks.incarnation),
            place,
            readers,
            copier,
            thread,
            fault,
            handle: Mutex::new(Some(handle)),
            copies,
        })
    }

    /// Brings a store to the schema version of this program. It creates the store if the configuration says so. The
    /// store must not be open. A backup stays a backup.
    ///
    /// # Errors
    /// Those of [`SqliteBackend::open`], but an older store is no error.
    pub fn migrate(config: &SqliteConfig) -> Result<Migrated> {
        connection::check_library()?;
        let opened = Opened::or_backup(config)?;
        opened.check_end()?;
        if config.missing == Missing::Refuse {
            schema::require(&opened.conn, &opened.location)?;
        }
        let opening = opened.begin()?;
        let migrated = schema::migrate(&opened.conn)?;
        match opening {
            Opening::BACKUP => opened.close_whole(Opening::BACKUP)?,
            _ => opened.close(),
        }
        Ok(migrated)
    }

    /// Begins a new life of a store, as must follow every restore of a backup. From then on checkpoints that were made
    /// before are refused, and events that are known to be missing are no longer missed. The store must not be open. A
    /// backup becomes a store where it is.
    ///
    /// # Errors
    /// Those of [`SqliteBackend::open`]. A store that does not exist is not created. `Unavailable` too if another
    /// program has the file open, so that not everything is in it: the call is to be repeated.
    pub fn new_incarnation(config: &SqliteConfig) -> Result<Incarnation> {
        connection::check_library()?;
        // What the note of the opening says is what shall be forgotten.
        let opened = Opened::unchecked(&config.clone().must_exist())?;
        schema::prepare(&opened.conn, &opened.location, Missing::Refuse)?;
        opened.begin()?;
        let incarnation = schema::new_incarnation(&opened.conn)?;
        opened.close_whole(Opening::NONE)?;
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
        opened.begin()?;
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
        opened.close();
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

    /// Copies the store, while it is in use, to a file without a name, which is gone once it is closed. It is made
    /// beside the store, or, if nothing can be written there any more, in the directory of temporary files.
    ///
    /// # Errors
    /// Those of [`SqliteBackend::backup`].
    ///
    /// # Cancel safety
    /// Dropping the future stops the copy soon; [`Backend::close`] waits for that.
    pub async fn backup_file(&self) -> Result<fs::File> {
        let paths = backup::nameless(self.place.as_deref());
        self.copy(move |from, stopped| backup::copy_without_name(from, &paths, stopped))
            .await
    }

    async fn copy<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ReadConnection, &dyn Fn() -> bool) -> Outcome<T> + Send + 'static,
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
        let snapshot = CountedSnapshot::new(&self.copies.snapshots);
        self.copier
            .run(move |from| {
                let result = work(from, &stopped);
                drop((snapshot, turn));
                result
            })
            .await
    }

    /// Opens one snapshot of the store for `gesta_sql::verify::audit`.
    ///
    /// # Errors
    /// `Unavailable` if the file cannot be opened or read.
    pub async fn audit(&self) -> Result<SqliteAudit> {
        match &self.place {
            None => Ok(SqliteAudit::of_memory(self.readers.clone())),
            Some(place) => {
                let place = Arc::clone(place);
                let snapshot = CountedSnapshot::new(&self.copies.snapshots);
                let work =
                    tokio::task::spawn_blocking(move || SqliteAudit::of_file(&place, snapshot));
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

/// A store whose lock is held and whose connection is open, not yet checked for its schema.
struct Opened {
    // Fields are dropped in this order: the lock last.
    conn: rusqlite::Connection,
    location: Location,
    held: Option<(Arc<Place>, StoreLock)>,
}

impl Opened {
    /// Opens a store of which nothing is missing, as far as the note of its opening tells.
    fn new(config: &SqliteConfig) -> Result<Self> {
        Self::open(config, |place| {
            let opening = place.mark()?;
            end_note::check_no_backup(place.path(), opening)?;
            end_note::check_opening(place.path(), opening)
        })
    }

    /// Opens a store as [`Opened::new`] does, or a backup.
    fn or_backup(config: &SqliteConfig) -> Result<Self> {
        Self::open(config, |place| match place.mark()? {
            Opening::BACKUP => end_note::check_alone(place.path(), Opening::BACKUP),
            opening => end_note::check_opening(place.path(), opening),
        })
    }

    /// Opens a store, or a backup, whatever was noted of its opening.
    fn unchecked(config: &SqliteConfig) -> Result<Self> {
        Self::open(config, |place| {
            end_note::check_alone(place.path(), place.mark()?)
        })
    }

    /// Opens a store. `check` runs before SQLite opens anything, because SQLite would change the files.
    fn open(config: &SqliteConfig, check: impl FnOnce(&Place) -> Result<()>) -> Result<Self> {
        let (location, held) = match &config.location {
            Location::Memory => (Location::Memory, None),
            Location::File(path) => {
                let given = path;
                let path = settle_path(given, config.missing)?;
                check_name(&path)?;
                place::check_is_database(&path)?;
                let lock = StoreLock::take(&path)?;
                end_note::check_file(&path)?;
                create_file(&path)?;
                let place = Place::take(&path, given)?;
                check(&place)?;
                // Left behind by a process that was killed.
                backup::remove_left_behind(&path);
                (Location::File(path), Some((Arc::new(place), lock)))
            }
        };
        let conn = connection::open_writing(&location, config)
            .map_err(|fault| opening_failed(&path_of(&location), fault))?;
        if let Location::File(path) = &location {
            // The name of a new file must be as durable as what will be stored in it.
            files::sync_directory_of(path).map_err(|error| cannot_open(path, error))?;
        }
        Ok(Self {
            conn,
            location,
            held,
        })
    }

    /// Marks the store as open, in the file itself, before anything else is changed. A store that was not closed in
    /// good order keeps the mark that it has. A file that is no store yet gets none.
    fn begin(&self) -> Outcome<Opening> {
        let (Some((place, _)), Some(marks)) = (&self.held, schema::read_marks(&self.conn)?) else {
            return Ok(Opening::NONE);
        };
        let mut opening = place.mark()?;
        if opening == Opening::NONE {
            opening = Opening::random();
            end_note::note_opening(place.path(), marks.incarnation, opening)?;
        }
        if opening == Opening::BACKUP {
            // If this ends on its way, the note says whose the write-ahead log is.
            end_note::note_opening(place.path(), marks.incarnation, opening)?;
        }
        if schema::read_mark(&self.conn)? != opening {
            schema::set_mark(&self.conn, opening)?;
        }
        if place.mark()? != opening {
            self.truncate_wal()?;
        }
        if place.mark()? != opening {
            tracing::warn!(
                file = %place.path().display(),
                "another program reads the store, so its file does not say yet that it is open"
            );
        }
        place.note_log();
        Ok(opening)
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

    fn close(self) {
        let place = self.held.as_ref().map(|(place, _)| &**place);
        write_thread::close(self.conn, place, Some(Opening::NONE));
    }

    /// Closes the store, which is a closed one or a backup from then on, as a file that is whole without any other: it
    /// may be moved, and the note beside it says nothing any more.
    ///
    /// # Errors
    /// `Unavailable` if something is in the write-ahead log alone.
    fn close_whole(self, mark: Opening) -> Result<()> {
        let place = self.held.as_ref().map(|(place, _)| &**place);
        write_thread::close(self.conn, place, Some(mark));
        let Some(place) = place else {
            return Ok(());
        };
        let (path, wal) = (place.path(), with_suffix(place.path(), "-wal"));
        let is_left = fs::metadata(&wal).is_ok_and(|found| found.len() > 0);
        if is_left || place.mark()? != mark {
            return Err(Error::unavailable(format!(
                "what was changed is not in {} yet, but in {} alone: another program has the file open, or the disk is \
                 full. End that program, and give this command again",
                path.display(),
                wal.display()
            )));
        }
        end_note::remove(path).map_err(|error| cannot_open(path, error))
    }
}

fn path_of(location: &Location) -> PathBuf {
    match location {
        Location::Memory => PathBuf::new(),
        Location::File(path) => path.clone(),
    }
}

/// Returns the canonical path, so that two names of a file share a lock. It creates the directories above the file.
fn settle_path(path: &Path, missing: Missing) -> Result<PathBuf> {
    let found = files::look(path)?;
    let is_there = found.as_ref().is_some_and(|found| found.len() > 0);
    if !is_there && missing == Missing::Refuse {
        return Err(schema::no_store(path));
    }
    let failed = |error| cannot_open(path, error);
    if found.is_some() {
        return files::canonical(path).map_err(failed);
    }
    // SQLite would follow a link to what does not exist yet, and so would have its files beside the target.
    let target = files::follow_links(path).map_err(failed)?;
    let name = target.file_name().ok_or_else(|| {
        Error::invalid(
            "store",
            format!("must name a file, found {}", path.display()),
        )
    })?;
    let parent = target
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    create_directories(parent).map_err(|error| {
        files::failed(
            &format!("the folder {} cannot be made", parent.display()),
            error,
        )
    })?;
    Ok(files::canonical(parent).map_err(failed)?.join(name))
}

/// Refuses the name of a file that belongs to another store, such as its write-ahead log while that is empty.
fn check_name(path: &Path) -> Result<()> {
    let name = path.to_string_lossy();
    let base = ["-wal", "-shm", "-end", "-journal", ".lock"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix));
    match base {
        Some(base) if Path::new(base).exists() => Err(Error::invalid(
            "store",
            format!("must be a database, and {name} belongs to the one at {base}"),
        )),
        _ => Ok(()),
    }
}

/// Creates the database file if there is none, for its owner alone.
fn create_file(path: &Path) -> Result<()> {
    let created = files::private().write(true).create_new(true).open(path);
    match created {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(files::failed(
            &format!("the database {} cannot be made", path.display()),
            error,
        )),
        _ => Ok(()),
    }
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

    fn ready(&self) -> Result<()> {
        self.fault.check()?;
        let found = self.place.as_ref().map(|place| place.look_and_try());
        match found.transpose()? {
            None | Some(Found::InPlace) => Ok(()),
            Some(Found::ReadOnly(text) | Found::Moved(text)) => Err(unfit(text)),
            Some(Found::WithoutLog) => {
                // The writing thread saves what the log holds, and says what to do.
                self.thread.run(|_| {})?;
                Err(Error::unavailable(
                    "the write-ahead log of the store was removed or replaced while the store was open",
                ))
            }
        }
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

    async fn read_tail(&self, tail: LogTail) -> Result<Rows> {
        self.read_log(tail.into()).await
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

    fn signals(&self, _: Topic) -> BoxStream<'static, Signal> {
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
                    state.check_writable()?;
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
        self.copier.close().await;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gesta_core::shares::{Holder, act, act_as};

    use super::*;

    /// What happened: what the server reads to go on waited for a connection behind its callers. Goal: one connection
    /// is kept for it, also while each other one is with a caller.
    #[tokio::test]
    async fn the_server_has_a_connection_to_read_that_callers_cannot_take() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = SqliteConfig::file(folder.path().join("store.db"));
        config.readers = 2;
        let backend = SqliteBackend::open(config).expect("opens");
        let (begins, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let mut ends = Vec::new();
        for name in ["a", "b", "c", "a", "b", "c"] {
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let (begins, readers) = (begins.clone(), backend.readers.clone());
            let reading = async move {
                let job = move |_: &mut ReadConnection| {
                    let _ = begins.send(());
                    let _ = ended.recv();
                    Ok(())
                };
                readers.run(job).await
            };
            tokio::spawn(act_as(Holder::User(name.into()), reading));
            ends.push(end);
        }
        for _ in 0..2 {
            begun.recv().await.expect("callers read");
        }
        let own = act(&Holder::Server, backend.readers.run(|_| Ok(7)));
        let own = tokio::time::timeout(Duration::from_secs(60), own).await;
        assert_eq!(own.expect("it waits for nobody").expect("reads"), 7);
        assert!(
            begun.try_recv().is_err(),
            "callers have two of three connections"
        );
        drop(ends);
    }
}
