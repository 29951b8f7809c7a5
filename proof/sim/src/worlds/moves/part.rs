//! One database of the model as a backend. Something may happen before each of its answers.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use futures::stream::{BoxStream, StreamExt, empty};
use gesta_core::backend::{
    Backend, BackendInfo, Batch, BatchOutcome, EventLookup, EventRef, History, LoadRequest, Loaded,
    LogEnd, LogSlice, LogTail, LogWriter, Purpose, Removed, RowId, Rows, RunMode, Signal, StoredId,
    StreamSlice, Topic, WriterEpoch,
};
use gesta_core::registry::Registry;
use gesta_core::{
    Capabilities, ContentType, Durability, Error, EventId, EventType, Incarnation, LogId, Position,
    RecordedEvent, Result, Revision, StreamId, Tags, Timestamp, Visibility,
};
use gesta_postgres::core::several::{DatabasePart, KeepsMap, Several};
use gesta_postgres::{Held, HeldRow, MapCopy, RowMark};

use super::world::{DATABASES, Database, LOG, LOGS, Row, SharedWorld, World, lock};

/// Opens the store as a process does. Returns it with the number of the process.
pub(super) async fn open(world: &SharedWorld) -> Result<(Several, usize)> {
    let (parts, process) = parts(world);
    Ok((Several::open(&parts).await?, process))
}

/// Starts a process, which opens the databases. Returns them with the number of the process.
pub(super) fn parts(world: &SharedWorld) -> (Vec<DatabasePart>, usize) {
    let process = lock(world).start();
    let part = |place: usize| {
        let world = SharedWorld::clone(world);
        let copy = lock(&world).databases[place].copy.clone();
        let part = Arc::new(Part {
            world,
            process,
            place,
        });
        DatabasePart {
            copy: Arc::new(copy),
            backend: part.clone(),
            keeper: part,
        }
    };
    ((0..DATABASES).map(part).collect(), process)
}

/// A database, as one process sees it.
struct Part {
    world: SharedWorld,
    process: usize,
    place: usize,
}

impl Part {
    /// Something happens, and then the database answers, unless it is away. If it was set back, the process notices
    /// that before.
    fn ask<T>(&self, answer: impl FnOnce(&mut World) -> Result<T>) -> Result<T> {
        let mut world = lock(&self.world);
        world.disturb();
        if world.away[self.place] {
            return Err(Error::unavailable("away"));
        }
        world.notice(self.process, self.place);
        answer(&mut world)
    }

    /// The same for what all databases are asked. If this one does not answer, the process may go on without it.
    fn ask_keeper<T>(&self, answer: impl FnOnce(&mut World) -> T) -> Result<T> {
        let answer = self.ask(|world| Ok(answer(world)));
        if answer.is_err() {
            lock(&self.world).misses(self.process);
        }
        answer
    }

    /// Does not return if the database hangs.
    async fn hang(&self) {
        let hangs = {
            let mut world = lock(&self.world);
            let hangs = world.hangs[self.place];
            if hangs {
                world.misses(self.process);
            }
            hangs
        };
        if hangs {
            std::future::pending().await
        }
    }

    fn ask_database<T>(&self, answer: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        self.ask(|world| answer(&world.databases[self.place]))
    }

    fn end(database: &Database, log: LogId) -> Result<LogEnd> {
        if log != LOG {
            return Ok(LogEnd::default());
        }
        if database.closed {
            return Err(Error::log_closed(log));
        }
        Ok(LogEnd {
            position: database.last().position,
            writer: database.last().writer,
            created: Timestamp(0),
        })
    }

    fn page(database: &Database, slice: &LogSlice) -> Result<Rows> {
        let within = |row: &&Row| row.mark.position > slice.after && row.mark.position <= slice.to;
        let all: Vec<&Row> = database.rows.iter().filter(within).collect();
        let complete = all.len() <= slice.limit;
        if complete && database.closed && all.is_empty() {
            return Err(Error::log_closed(LOG));
        }
        let page = all.into_iter().take(slice.limit);
        Ok(Rows {
            events: page.map(event).collect(),
            complete,
            last_writer: None,
        })
    }
}

/// Makes the id of an event, which tells the row.
fn id_of(mark: RowMark) -> EventId {
    let writer = mark.writer.0.cast_unsigned();
    EventId(uuid::Uuid::from_u64_pair(mark.position.0, writer))
}

/// Tells the row of an event by its id.
pub(super) fn mark_of(id: EventId) -> RowMark {
    let (position, writer) = id.0.as_u64_pair();
    RowMark {
        position: Position(position),
        writer: WriterEpoch(writer.cast_signed()),
    }
}

/// The stream with this name.
pub(super) fn stream_of(name: u8) -> StreamId {
    StreamId::new(name.to_string()).expect("valid")
}

fn name_of(stream: &StreamId) -> u8 {
    stream.as_str().parse().expect("made of a name")
}

fn event(row: &Row) -> RecordedEvent {
    RecordedEvent {
        stream: StreamId::new("s").expect("valid"),
        revision: Revision(row.revision),
        log: LOG,
        position: row.mark.position,
        id: id_of(row.mark),
        event_type: EventType::new("t").expect("valid"),
        created: Timestamp(0),
        content_type: ContentType::Json,
        data: Bytes::new(),
        metadata: Bytes::new(),
        tags: Tags::default(),
    }
}

#[async_trait]
impl KeepsMap for Part {
    async fn read_map(&self) -> Result<Arc<MapCopy>> {
        self.hang().await;
        self.ask_keeper(|world| {
            world.count.maps += 1;
            Arc::new(world.databases[self.place].copy.clone())
        })
    }

    async fn read_held(&self) -> Result<Vec<Held>> {
        self.hang().await;
        self.ask_keeper(|world| {
            world.count.held += 1;
            world.answers(self.process, self.place);
            let database = &world.databases[self.place];
            let held = |log| match log == LOG.0 {
                true => Held {
                    closed: database.closed,
                    last: database.rows.last().map(Row::held),
                },
                false => Held {
                    closed: false,
                    last: None,
                },
            };
            (0..LOGS).map(held).collect()
        })
    }

    async fn shows(&self, rows: &[(LogId, HeldRow)]) -> Result<Vec<bool>> {
        self.ask_keeper(|world| {
            let database = &world.databases[self.place];
            rows.iter().map(|(_, row)| database.shows(row)).collect()
        })
    }
}

#[async_trait]
impl Backend for Part {
    fn info(&self) -> Arc<BackendInfo> {
        Arc::new(BackendInfo {
            backend: "model",
            engine: "model".to_owned(),
            logs: LOGS,
            durability: Durability::None,
            capabilities: Capabilities {
                persistent: true,
                shared: true,
                several_logs: true,
                batches_in_flight_max: 1,
            },
        })
    }

    fn history(&self) -> History {
        let world = lock(&self.world);
        History {
            number: world.noticed(self.process, self.place),
            incarnation: Incarnation(uuid::Uuid::nil()),
        }
    }

    fn ready(&self) -> Result<()> {
        Ok(())
    }

    fn pack(&self, _: &StreamId, _: ContentType, _: &Bytes) -> Option<Bytes> {
        None
    }

    async fn open_writer(&self, _: LogId) -> Result<Box<dyn LogWriter>> {
        let (epoch, history) =
            self.ask(|world| Ok((world.next_writer(), world.histories[self.place])))?;
        Ok(Box::new(Writer {
            world: Arc::clone(&self.world),
            process: self.process,
            place: self.place,
            history,
            epoch,
        }))
    }

    async fn log_end(&self, log: LogId, _: Purpose) -> Result<LogEnd> {
        self.ask_database(|database| Self::end(database, log))
    }

    async fn log_ends(&self, _: Purpose) -> Result<Vec<LogEnd>> {
        self.ask_database(|database| {
            let end = |log| Self::end(database, LogId(log)).unwrap_or(LogEnd::CLOSED);
            Ok((0..LOGS).map(end).collect())
        })
    }

    async fn read_log(&self, slice: LogSlice) -> Result<Rows> {
        self.ask_database(|database| Self::page(database, &slice))
    }

    async fn read_tail(&self, tail: LogTail) -> Result<Rows> {
        self.ask_database(|database| {
            let rows = Self::page(database, &tail.into())?;
            if rows.complete && tail.to.is_none() && database.closed {
                return Err(Error::log_closed(LOG));
            }
            Ok(rows)
        })
    }

    async fn load(&self, _: LogId, _: LoadRequest, _: Purpose) -> Result<Loaded> {
        Err(Error::unavailable("not in this model"))
    }

    async fn lookup(&self, _: LogId, _: EventLookup, _: Purpose) -> Result<Vec<EventRef>> {
        Ok(Vec::new())
    }

    async fn read_ids(&self, _: LogId, _: Position, _: Position) -> Result<Vec<StoredId>> {
        Ok(Vec::new())
    }

    async fn read_stream(&self, _: StreamSlice) -> Result<Rows> {
        Err(Error::unavailable("not in this model"))
    }

    async fn read_streams(&self, _: LogId, _: Vec<StreamSlice>) -> Result<Vec<Rows>> {
        Ok(Vec::new())
    }

    async fn list_streams(&self, _: &str, _: Option<&StreamId>, _: usize) -> Result<Vec<StreamId>> {
        Ok(Vec::new())
    }

    fn signals(&self, _: Topic) -> BoxStream<'static, Signal> {
        empty().boxed()
    }

    async fn send_signal(&self, _: Signal) {}

    async fn remove_hidden(
        &self,
        _: LogId,
        _: RowId,
        _: Visibility,
        _: RunMode,
    ) -> Result<Removed> {
        Ok(Removed::default())
    }

    fn registry(&self) -> Option<Arc<dyn Registry>> {
        None
    }

    async fn close(&self) {}
}

/// A handle of a connection, which ends with the history of its database.
struct Writer {
    world: SharedWorld,
    process: usize,
    place: usize,
    history: u64,
    epoch: WriterEpoch,
}

impl LogWriter for Writer {
    fn epoch(&self) -> WriterEpoch {
        self.epoch
    }

    fn is_gathered(&self) -> bool {
        false
    }

    fn submit(&mut self, batch: Arc<Batch>) -> BoxFuture<'static, BatchOutcome> {
        let mut world = lock(&self.world);
        // What it notices while the batch is under way comes too late.
        let knows = world.knows(self.process);
        world.disturb();
        let knows = knows && world.knows(self.process);
        if world.away[self.place] || world.histories[self.place] != self.history {
            let error = Error::unavailable("the connection has ended");
            return ready(BatchOutcome::Unknown(error)).boxed();
        }
        let event = |row: &gesta_core::backend::Row| {
            let mark = RowMark {
                position: row.position,
                writer: self.epoch,
            };
            (mark, name_of(&row.stream))
        };
        let events: Vec<(RowMark, u8)> = batch.rows.iter().map(event).collect();
        let outcome = match world.append(self.place, batch.after, &events, knows) {
            true => BatchOutcome::Committed,
            false => BatchOutcome::Missed,
        };
        ready(outcome).boxed()
    }
}
