//! Writes batches as the append pipeline would: knows the last row, the streams and the types.
#![allow(
    dead_code,
    clippy::expect_used,
    reason = "helpers of tests; each test file uses a part"
)]

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use gesta_core::backend::{
    Backend, Batch, BatchOutcome, LogEnd, LogSlice, LogWriter, Purpose, Row, RowId,
};
use gesta_core::{
    ContentType, Direction, EventId, EventType, Filter, LogId, Position, RecordedEvent, Revision,
    StreamId, Tag, Tags, Timestamp,
};
use gesta_sql::verify::{AuditReport, audit};
use gesta_sqlite::{SqliteBackend, SqliteConfig};

pub(crate) const LOG: LogId = LogId(0);

pub(crate) fn stream(name: &str) -> StreamId {
    StreamId::new(name).expect("valid")
}

/// One event to be.
#[derive(Clone)]
pub(crate) struct Event {
    pub(crate) stream: StreamId,
    pub(crate) event_type: EventType,
    pub(crate) data: Bytes,
    pub(crate) metadata: Bytes,
    pub(crate) tags: Vec<String>,
}

pub(crate) fn event(stream: &str, event_type: &str, data: &str) -> Event {
    Event {
        stream: self::stream(stream),
        event_type: EventType::new(event_type).expect("valid"),
        data: Bytes::copy_from_slice(data.as_bytes()),
        metadata: Bytes::from_static(b"{\"by\":\"test\"}"),
        tags: Vec::new(),
    }
}

impl Event {
    pub(crate) fn tagged(mut self, tags: &[&str]) -> Self {
        self.tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        self
    }
}

pub(crate) struct Author {
    pub(crate) writer: Box<dyn LogWriter>,
    pub(crate) end: LogEnd,
    pub(crate) streams: HashMap<StreamId, (RowId, u64)>,
    pub(crate) types: HashMap<EventType, RowId>,
    /// Time between two events, in µs.
    pub(crate) tick: i64,
}

impl Author {
    pub(crate) async fn new(backend: &SqliteBackend) -> Self {
        Self {
            writer: backend.open_writer(LOG).await.expect("opens"),
            end: backend.log_end(LOG, Purpose::Read).await.expect("known"),
            streams: HashMap::new(),
            types: HashMap::new(),
            tick: 1,
        }
    }

    /// The batch, chained to the last one; the author goes on as if it were stored.
    pub(crate) fn batch(&mut self, events: &[Event]) -> Arc<Batch> {
        let after = self.end;
        let mut batch = Batch {
            log: LOG,
            after,
            rows: Vec::new(),
            new_streams: Vec::new(),
            new_types: Vec::new(),
        };
        for event in events {
            let position = self.end.position.next();
            let (stream_row, revision) =
                self.streams.get(&event.stream).copied().unwrap_or_else(|| {
                    batch
                        .new_streams
                        .push((RowId(position.0), event.stream.clone()));
                    (RowId(position.0), 0)
                });
            self.streams
                .insert(event.stream.clone(), (stream_row, revision + 1));
            let type_row = *self
                .types
                .entry(event.event_type.clone())
                .or_insert_with(|| {
                    batch
                        .new_types
                        .push((RowId(position.0), event.event_type.clone()));
                    RowId(position.0)
                });
            let created = Timestamp(self.end.created.0.max(1_790_000_000_000_000) + self.tick);
            batch.rows.push(Row {
                position,
                stream: event.stream.clone(),
                stream_row,
                revision: Revision(revision),
                id: EventId::random(),
                event_type: event.event_type.clone(),
                type_row,
                created,
                content_type: ContentType::Json,
                data: event.data.clone(),
                packed: None,
                metadata: event.metadata.clone(),
                tags: Tags::new(
                    event
                        .tags
                        .iter()
                        .map(|tag| Tag::new(tag.as_str()).expect("valid"))
                        .collect(),
                )
                .expect("valid"),
            });
            self.end = LogEnd {
                position,
                writer: self.writer.epoch(),
                created,
            };
        }
        Arc::new(batch)
    }

    pub(crate) async fn submit(&mut self, batch: Arc<Batch>) -> BatchOutcome {
        self.writer.submit(batch).await
    }

    /// Stores events; returns what readers must see.
    pub(crate) async fn store(&mut self, events: &[Event]) -> Vec<RecordedEvent> {
        let batch = self.batch(events);
        let outcome = self.submit(batch.clone()).await;
        assert!(matches!(outcome, BatchOutcome::Committed), "{outcome:?}");
        batch.rows.iter().map(|row| row.to_recorded(LOG)).collect()
    }
}

/// Opens a store.
pub(crate) fn open(path: &Path) -> SqliteBackend {
    match try_open(path) {
        Ok(backend) => backend,
        Err(error) => panic!("opens: {error}"),
    }
}

/// Tries to open a store, as [`until_unlocked`] does.
pub(crate) fn try_open(path: &Path) -> gesta_core::Result<SqliteBackend> {
    until_unlocked(|| SqliteBackend::open(SqliteConfig::file(path)))
}

/// Does what needs the lock of a store. A process that another test of this program is just starting holds, for a
/// moment, all files that this one had open, the lock of a store that was closed meanwhile among them: that is waited
/// for, a minute at most.
pub(crate) fn until_unlocked<T>(
    mut attempt: impl FnMut() -> gesta_core::Result<T>,
) -> gesta_core::Result<T> {
    let begun = std::time::Instant::now();
    loop {
        match attempt() {
            Err(error) if begun.elapsed().as_secs() < 60 && is_locked(&error) => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            tried => return tried,
        }
    }
}

fn is_locked(error: &gesta_core::Error) -> bool {
    error.to_string().contains("which holds the lock")
}

pub(crate) fn whole_log() -> LogSlice {
    LogSlice {
        log: LOG,
        after: Position::START,
        to: Position::MAX,
        direction: Direction::Forwards,
        filter: Filter::ALL,
        limit: 10_000,
    }
}

/// All events of the log.
pub(crate) async fn read_all(backend: &SqliteBackend) -> Vec<RecordedEvent> {
    let mut slice = whole_log();
    let mut events = Vec::new();
    loop {
        let rows = backend.read_log(slice.clone()).await.expect("reads");
        events.extend(rows.events);
        if rows.complete {
            return events;
        }
        slice.after = events.last().expect("not empty").position;
    }
}

pub(crate) async fn verify(backend: &SqliteBackend) -> AuditReport {
    let mut source = backend.audit().await.expect("opens");
    audit(&mut source, &mut |_| {}).await.expect("readable")
}

/// Calls of the operating system can be recorded and made to fail; `None`, said aloud, where that is not possible.
///
/// # Panics
/// If `CI` is set and it is not possible: there it must be.
pub(crate) fn strace() -> Option<Command> {
    let works = |command: &mut Command| command.output().is_ok_and(|out| out.status.success());
    if works(Command::new("strace").args(["-o", "/dev/null", "true"])) {
        return Some(Command::new("strace"));
    }
    let text = "strace is missing or may not trace (Debian: apt-get install strace)";
    assert!(std::env::var_os("CI").is_none(), "{text}, and CI is set");
    // Past the test harness, which would hide it.
    let line = format!("SKIPPED: {text}: power loss and I/O errors are NOT tested\n");
    std::io::stderr()
        .write_all(line.as_bytes())
        .expect("stderr");
    None
}
