//! The layout of akka-persistence-jdbc's journal in a SQLite file, as one would write it there: one thread, one connection,
//! one transaction per append.
//!
//! Like the real one: columns and keys. The plugin itself does not know SQLite. Durability is full: a write-ahead log
//! that is flushed with each commit; everything else is SQLite's default.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use rusqlite::{Connection, ErrorCode, params};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::SQLITE;
use super::rows::{Answer, millis, sequence, writer};
use crate::failure::{Context, Result, fail};
use crate::target::{Append, AppendError, Event, Events, Session, Stored, Target, TargetFacts};

/// Appends that may wait for the writing thread; further ones wait for a place.
const QUEUE_APPENDS_MAX: usize = 1_024;
/// Events that the read-back hands over at a time.
const PAGE: usize = 1_000;
/// What SQLite puts beside a file.
const BESIDE: [&str; 3] = ["", "-wal", "-shm"];

/// The journal; the writing thread is started by the first worker.
pub(super) struct SqliteJournal {
    path: PathBuf,
    thread: Mutex<Option<WritingThread>>,
}

struct WritingThread {
    queue: mpsc::Sender<Message>,
    /// Is heard of when the thread has closed its connection.
    ended: oneshot::Receiver<()>,
}

impl SqliteJournal {
    /// Beside the file of a store's URL.
    pub(super) fn new(url: &str) -> Result<Self> {
        let path = url.strip_prefix("sqlite:").unwrap_or_default();
        match path.split('?').next() {
            None | Some("" | ":memory:") => fail(format!("the journal {SQLITE} needs sqlite:PATH")),
            Some(path) => Ok(Self {
                path: format!("{path}.{SQLITE}").into(),
                thread: Mutex::default(),
            }),
        }
    }

    fn files(&self) -> impl Iterator<Item = PathBuf> {
        BESIDE.iter().map(|suffix| {
            let mut name = self.path.clone().into_os_string();
            name.push(suffix);
            name.into()
        })
    }

    fn remove_files(&self) -> Result<()> {
        for file in self.files() {
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).context(file.display());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Target for SqliteJournal {
    fn name(&self) -> &str {
        SQLITE
    }

    fn title(&self) -> &str {
        "akka-persistence-jdbc's layout in SQLite"
    }

    async fn prepare(&self) -> Result<()> {
        self.close().await?;
        self.remove_files()?;
        let connection = open(&self.path)?;
        let tables = include_str!("../../sql/journals/jdbc_sqlite/create_tables.sql");
        connection.execute_batch(tables).context("making tables")
    }

    async fn facts(&self) -> Result<TargetFacts> {
        Ok(TargetFacts {
            engine: format!("SQLite {}", rusqlite::version()),
            durability: "full".into(),
            durability_detail: "journal_mode=wal, synchronous=full".into(),
            note: "one thread writes, one transaction per append; all workers wait for it".into(),
        })
    }

    async fn connect(&self) -> Result<Box<dyn Session>> {
        let mut thread = self.thread.lock().await;
        let thread = match thread.as_ref() {
            Some(thread) => thread,
            None => thread.insert(WritingThread::start(&self.path)?),
        };
        Ok(Box::new(Queued(thread.queue.clone())))
    }

    async fn read_back(&self, prefix: &str, see: &mut (dyn FnMut(Stored) + Send)) -> Result<()> {
        let (sender, mut pages) = mpsc::channel(2);
        let (path, prefix) = (self.path.clone(), prefix.to_owned());
        let reading = tokio::task::spawn_blocking(move || read(&path, &prefix, &sender));
        while let Some(page) = pages.recv().await {
            for stored in page {
                see(stored);
            }
        }
        reading.await?
    }

    async fn disk_bytes(&self) -> Result<Option<u64>> {
        let files = self.files().filter_map(|file| std::fs::metadata(file).ok());
        Ok(Some(files.map(|file| file.len()).sum()))
    }

    fn is_embedded(&self) -> bool {
        true
    }

    async fn close(&self) -> Result<()> {
        if let Some(thread) = self.thread.lock().await.take() {
            // SQLite removes files by name when it closes: that must be over before new ones are made.
            let _ = thread.queue.send(Message::Close).await;
            let _ = thread.ended.await;
        }
        Ok(())
    }

    async fn remove(&self) -> Result<()> {
        self.close().await?;
        self.remove_files()
    }
}

fn open(path: &Path) -> Result<Connection> {
    let connection = Connection::open(path).context(path.display())?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return fail(format!("SQLite cannot use a write-ahead log here: {mode}"));
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

impl WritingThread {
    fn start(path: &Path) -> Result<Self> {
        let connection = open(path)?;
        let (queue, messages) = mpsc::channel(QUEUE_APPENDS_MAX);
        let (end, ended) = oneshot::channel();
        let run = move || {
            write(&connection, messages);
            drop(connection);
            // Nobody may wait for it.
            let _ = end.send(());
        };
        std::thread::Builder::new().name(SQLITE.into()).spawn(run)?;
        Ok(Self { queue, ended })
    }
}

/// What the writing thread is told.
enum Message {
    Append(Waiting),
    Close,
}

/// An append that waits.
struct Waiting {
    stream: String,
    first: i64,
    events: Vec<Event>,
    answer: oneshot::Sender<Answer<()>>,
}

struct Queued(mpsc::Sender<Message>);

#[async_trait]
impl Session for Queued {
    async fn append(&mut self, append: &Append<'_>) -> Answer<()> {
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            stream: append.stream.to_owned(),
            first: sequence(append.revision),
            events: append.events.to_vec(),
            answer,
        };
        let sent = self.0.send(Message::Append(waiting)).await;
        sent.map_err(|_| AppendError::Failed("the writing thread ended".into()))?;
        match answered.await {
            Ok(answer) => answer,
            Err(_) => Err(AppendError::Unknown("the writing thread ended".into())),
        }
    }
}

/// The writing thread, until it is told to close.
fn write(connection: &Connection, mut queue: mpsc::Receiver<Message>) {
    let name = writer();
    while let Some(Message::Append(waiting)) = queue.blocking_recv() {
        let written = insert(connection, &waiting, &name).map_err(|error| append_error(&error));
        // The worker may have given up.
        let _ = waiting.answer.send(written);
    }
}

fn insert(connection: &Connection, waiting: &Waiting, writer: &str) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(include_str!(
        "../../sql/journals/jdbc_sqlite/insert_event.sql"
    ))?;
    // Rolls back if it is dropped before the commit.
    let transaction = connection.unchecked_transaction()?;
    let now = millis();
    for (number, event) in (waiting.first..).zip(&waiting.events) {
        statement.execute(params![
            waiting.stream,
            number,
            writer,
            now,
            &event.data[..]
        ])?;
    }
    transaction.commit()
}

fn append_error(error: &rusqlite::Error) -> AppendError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            AppendError::Retry("busy".into())
        }
        Some(ErrorCode::SystemIoFailure) => AppendError::Unknown(error.to_string()),
        _ => AppendError::Failed(error.to_string()),
    }
}

fn read(path: &Path, prefix: &str, pages: &mpsc::Sender<Vec<Stored>>) -> Result<()> {
    let connection = open(path)?;
    let mut statement =
        connection.prepare(include_str!("../../sql/journals/jdbc_sqlite/read_back.sql"))?;
    let rows = statement.query_map([prefix], |row| {
        let head: Vec<u8> = row.get(2)?;
        let (revision, bytes): (i64, i64) = (row.get(1)?, row.get(3)?);
        Ok(Stored {
            stream: row.get(0)?,
            // What is below 0 belongs to no event, and so is found misplaced.
            revision: u64::try_from(revision).unwrap_or(u64::MAX),
            mark: Events::mark_in(&head),
            bytes: u64::try_from(bytes).ok(),
            whole: None,
        })
    })?;
    let mut page = Vec::with_capacity(PAGE);
    for row in rows {
        page.push(row?);
        if page.len() == PAGE {
            let full = std::mem::replace(&mut page, Vec::with_capacity(PAGE));
            // Nobody listens any more: nothing to read for.
            if pages.blocking_send(full).is_err() {
                return Ok(());
            }
        }
    }
    let _ = pages.blocking_send(page);
    Ok(())
}
