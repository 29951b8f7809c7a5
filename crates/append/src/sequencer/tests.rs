//! The sequencer driven by hand: each test gives every answer of the database itself, so that one decision can be seen
//! alone.

mod giving_way;
mod in_doubt;
mod looking_up;
mod preparing;
mod recovery;
mod repeated;
mod sending;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gesta_core::backend::{
    Batch, BatchOutcome, EventRef, Loaded, LoadedMeta, LoadedStream, LogEnd, Row, RowId, Signal,
    StreamHead, WriterEpoch,
};
use gesta_core::{
    After, Append, Appended, AppendedStream, Error, ErrorKind, EventData, EventId, EventType,
    ExpectedRevision, Incarnation, Lifecycle, LifecycleChange, LogId, Moment, Position, Result,
    Revision, StreamId, StreamMetadata, Timestamp,
};
use uuid::Uuid;

use super::job::{Answer, Gave, Job, JobId, What};
use super::lookup::{Found, Hits, Question};
use super::{Connected, Input, Now, Output, Sequencer, Setting};
use crate::command::Command;
use crate::stats::Stats;
use crate::{Config, PipelineStats};

use ExpectedRevision::{Any, Exact};

const LOG: LogId = LogId(0);
const MS: Duration = Duration::from_millis(1);

/// A sequencer, and all that it wants done and nobody has done yet.
struct Driver {
    sequencer: Sequencer<u32>,
    now: Now,
    stats: Arc<Stats>,
    /// What was stored.
    rows: Vec<(Row, WriterEpoch)>,
    /// What scavenging has removed of it. Only catching up and lookups notice.
    removed: Vec<Position>,
    epoch: WriterEpoch,
    /// Of the connections that are opened.
    is_gathered: bool,
    tickets: u32,
    wants_connection: bool,
    /// Batches in flight, oldest first.
    sent: VecDeque<Arc<Batch>>,
    reads: VecDeque<(JobId, Job)>,
    answers: BTreeMap<u32, Result<Appended>>,
    /// The tickets that were answered, in the order of the answers.
    order: Vec<u32>,
    /// Everything else that came out.
    others: Vec<Output<u32>>,
}

impl Driver {
    /// A sequencer that has just asked for its first connection.
    fn new(config: Config, in_flight_max: usize) -> Self {
        let now = Now {
            moment: Moment::START,
            wall: Timestamp(1_000_000_000_000),
            database: None,
        };
        let setting = Setting {
            config,
            log: LOG,
            logs: 1,
            incarnation: Incarnation::random(),
            in_flight_max,
        };
        let stats = Arc::new(Stats::default());
        let mut driver = Self {
            sequencer: Sequencer::new(setting, Arc::clone(&stats), now),
            now,
            stats,
            rows: Vec::new(),
            removed: Vec::new(),
            epoch: WriterEpoch(0),
            is_gathered: false,
            tickets: 0,
            wants_connection: false,
            sent: VecDeque::new(),
            reads: VecDeque::new(),
            answers: BTreeMap::new(),
            order: Vec::new(),
            others: Vec::new(),
        };
        driver.work();
        driver
    }

    /// One that is connected, with the streams `s` and `t` of one event each; the database is near.
    fn running(config: Config, in_flight_max: usize) -> Self {
        let mut driver = Self::new(config, in_flight_max);
        driver.connect();
        driver.do_reads();
        driver.append("s", Any, 1);
        driver.append("t", Any, 1);
        driver.settle();
        driver
    }

    fn on(&mut self, input: Input<u32>) {
        self.sequencer.on(input, self.now);
        self.work();
    }

    fn work(&mut self) {
        self.sequencer.work(self.now);
        for output in self.sequencer.take_outputs() {
            match output {
                Output::Connect => self.wants_connection = true,
                Output::Disconnect => self.sent.clear(),
                Output::Send(batch) => self.sent.push_back(batch),
                Output::Read(id, job) => self.reads.push_back((id, job)),
                Output::Answer(ticket, answer) => {
                    self.order.push(ticket);
                    assert!(
                        self.answers.insert(ticket, answer).is_none(),
                        "answered once"
                    );
                }
                other => self.others.push(other),
            }
        }
    }

    /// The time after a while, which has not passed yet.
    fn later(&self, time: Duration) -> Now {
        Now {
            moment: self.now.moment + time,
            ..self.now
        }
    }

    /// Time passes.
    fn pass(&mut self, time: Duration) {
        self.now.moment += time;
        self.now.wall.0 += i64::try_from(time.as_micros()).expect("short");
        self.work();
    }

    /// Opens the connection that was asked for.
    fn connect(&mut self) {
        assert!(std::mem::take(&mut self.wants_connection));
        self.epoch.0 += 1;
        self.on(Input::Connected(Ok(Connected {
            epoch: self.epoch,
            is_gathered: self.is_gathered,
        })));
    }

    /// Appends so many events with ids of the client; returns the ticket.
    fn append(&mut self, stream: &str, expected: ExpectedRevision, events: usize) -> u32 {
        self.request(Append::to(name(stream), expected, some(events)))
    }

    fn request(&mut self, request: Append) -> u32 {
        let ticket = self.bring(request);
        self.work();
        ticket
    }

    /// Asks whether the last event of a stream is still the last.
    fn question(&mut self, stream: &str) -> u32 {
        let (last, _) = self.last_of(&name(stream)).expect("there");
        self.owned(stream, last.id, 0)
    }

    /// Appends so many events of the owner of a stream, for whom this event is the last; returns the ticket.
    fn owned(&mut self, stream: &str, last: EventId, events: usize) -> u32 {
        self.tickets += 1;
        let (after, events) = (After::Event(last), some(events));
        let command = Command::owned(self.tickets, name(stream), after, events, self.now.moment);
        self.on(Input::Command(command.expect("valid")));
        self.tickets
    }

    /// Appends, together with what is brought next.
    fn bring(&mut self, request: Append) -> u32 {
        self.tickets += 1;
        let command = Command::append(self.tickets, request, self.now.moment).expect("valid");
        self.sequencer.on(Input::Command(command), self.now);
        self.tickets
    }

    /// The database executes the oldest batch in flight, and its answer comes.
    fn commit(&mut self) -> BatchOutcome {
        let batch = self.sent.pop_front().expect("in flight");
        let outcome = self.execute(&batch);
        self.on(Input::Outcome(outcome.clone()));
        outcome
    }

    /// The answer to the oldest batch in flight comes, which was not stored.
    fn fail(&mut self, outcome: BatchOutcome) {
        self.sent.pop_front().expect("in flight");
        self.on(Input::Outcome(outcome));
    }

    fn execute(&mut self, batch: &Batch) -> BatchOutcome {
        if batch.after.position != self.end().position || batch.after.writer != self.end().writer {
            return BatchOutcome::Missed;
        }
        self.rows
            .extend(batch.rows.iter().map(|row| (row.clone(), self.epoch)));
        BatchOutcome::Committed
    }

    /// Another process appends an event to a stream.
    fn append_by_other(&mut self, stream: &str) {
        self.store_by_other(stream, EventId::random());
    }

    /// Another process appends an event with this id to a stream.
    fn store_by_other(&mut self, stream: &str, id: EventId) {
        let (mut row, _) = self.last_of(&name(stream)).expect("there").clone();
        row.revision = row.revision.next();
        row.position = self.end().position.next();
        row.id = id;
        self.rows.push((row, WriterEpoch(1_000)));
    }

    /// Another process deletes a stream that has no metadata, or tombstones it.
    fn end_by_other(&mut self, stream: &str, kind: LifecycleChange) {
        let (last, _) = self.last_of(&name(stream)).expect("there").clone();
        let position = self.end().position.next();
        let lifecycle = Lifecycle {
            metadata: StreamMetadata::default(),
            deleted_before: match kind {
                LifecycleChange::Deleted => last.revision.next(),
                _ => Revision(0),
            },
            tombstoned: kind == LifecycleChange::Tombstone,
        };
        let event = lifecycle.to_event(kind);
        let row = Row {
            position,
            stream: name(stream).metadata_stream(),
            stream_row: RowId(position.0),
            revision: Revision(0),
            id: EventId::random(),
            event_type: event.event_type,
            type_row: RowId(position.0),
            data: event.data,
            metadata: event.metadata,
            ..last
        };
        self.rows.push((row, WriterEpoch(1_000)));
    }

    /// The last row of a stream.
    fn last_of(&self, stream: &StreamId) -> Option<&(Row, WriterEpoch)> {
        self.rows
            .iter()
            .rev()
            .find(|(row, _)| row.stream == *stream)
    }

    fn end(&self) -> LogEnd {
        self.rows
            .last()
            .map_or(LogEnd::default(), |(row, writer)| LogEnd {
                position: row.position,
                writer: *writer,
                created: row.created,
            })
    }

    /// The next read under way.
    fn next_read(&mut self) -> (JobId, What) {
        let (id, job) = self.reads.pop_front().expect("is read");
        (id, job.0)
    }

    /// The oldest read under way fails for a passing reason.
    fn fail_read(&mut self) {
        let (id, job) = self.reads.pop_front().expect("is read");
        self.on(Input::Read(id, job.fail(Error::unavailable("no answer"))));
    }

    /// Answers the reads under way from what is stored: searches find nothing; names and ids cannot be read.
    fn do_reads(&mut self) {
        while let Some((id, job)) = self.reads.pop_front() {
            let answer = self.read(&job);
            self.on(Input::Read(id, answer));
        }
    }

    fn read(&self, job: &Job) -> Answer {
        match &job.0 {
            What::End => Answer(Gave::End(Ok(self.end()))),
            What::After(after, limit) => {
                let is_there = |position| position > *after && !self.removed.contains(&position);
                let rows = self.rows.iter().filter(|(row, _)| is_there(row.position));
                Answer(Gave::After(Ok(rows.take(*limit).map(reference).collect())))
            }
            What::Load(request) => {
                let streams = request.streams.iter().map(|stream| self.stored(stream));
                let types = request.types.iter().map(|event_type| {
                    let row = self
                        .rows
                        .iter()
                        .find(|(row, _)| row.event_type == *event_type)?;
                    Some(row.0.type_row)
                });
                Answer(Gave::Loaded(Ok(Loaded {
                    end: self.end(),
                    streams: streams.collect(),
                    types: types.collect(),
                })))
            }
            What::Search(_) => Answer(Gave::Searched(Ok(Hits::new()))),
            What::LookUp(questions, _) => {
                let questions = questions.iter().map(Option::as_ref);
                let found = questions.map(|one| one.map_or(Found::Nothing, |one| self.find(one)));
                Answer(Gave::LookedUp(Ok(found.collect())))
            }
            _ => job.fail(Error::unavailable("not read")),
        }
    }

    /// Looks for the only event that a question is about, wherever it suspects the event.
    fn find(&self, question: &Question) -> Found {
        let rows = self.rows.iter().map(|(row, _)| row);
        let mut rows = rows.filter(|row| !self.removed.contains(&row.position));
        let is_it = |row: &&Row| row.stream == question.stream && [row.id] == question.ids[..];
        rows.find(is_it).map_or(Found::Nothing, |row| {
            Found::Stored(AppendedStream {
                stream: row.stream.clone(),
                first_revision: row.revision,
                last_revision: row.revision,
                position: row.position,
            })
        })
    }

    fn stored(&self, stream: &StreamId) -> LoadedStream {
        let head = |row: &Row| StreamHead {
            row: row.stream_row,
            last: row.revision,
            position: row.position,
            id: Some(row.id),
        };
        let meta = self.last_of(&stream.metadata_stream());
        LoadedStream {
            head: self.last_of(stream).map(|(row, _)| head(row)),
            meta: meta.map(|(row, _)| LoadedMeta {
                head: head(row),
                data: row.data.clone(),
                metadata: row.metadata.clone(),
            }),
        }
    }

    /// Does everything until nothing is under way.
    fn settle(&mut self) {
        while !self.sent.is_empty() || !self.reads.is_empty() || self.wants_connection {
            if self.wants_connection {
                self.connect();
            }
            self.do_reads();
            if !self.sent.is_empty() {
                self.commit();
            }
        }
    }

    fn kind(&self, ticket: u32) -> &ErrorKind {
        let answer = &self.answers[&ticket];
        answer.as_ref().expect_err("refused").kind()
    }

    fn position(&self, ticket: u32) -> Position {
        let answer = &self.answers[&ticket];
        answer.as_ref().expect("stored").position
    }

    fn is_open(&self, ticket: u32) -> bool {
        !self.answers.contains_key(&ticket)
    }

    /// How many rows each batch has that is in flight.
    fn sizes(&self) -> Vec<usize> {
        self.sent.iter().map(|batch| batch.rows.len()).collect()
    }

    fn stats(&self) -> PipelineStats {
        self.stats.snapshot([0; 2])
    }

    fn signals(&self) -> impl Iterator<Item = &Signal> {
        self.others.iter().filter_map(|output| match output {
            Output::Signal(signal) => Some(signal),
            _ => None,
        })
    }
}

fn reference((row, writer): &(Row, WriterEpoch)) -> EventRef {
    EventRef {
        position: row.position,
        writer: *writer,
        created: row.created,
        stream: row.stream.clone(),
        stream_row: row.stream_row,
        revision: row.revision,
        id: row.id,
        event_type: row.event_type.clone(),
        type_row: row.type_row,
    }
}

fn name(name: &str) -> StreamId {
    StreamId::new(name).expect("valid")
}

fn some(events: usize) -> Vec<EventData> {
    let event_type = EventType::new("e").expect("valid");
    let event = |_| EventData::json(event_type.clone(), "{}").with_id(EventId::random());
    (0..events).map(event).collect()
}

/// An event with this id.
fn with_id(id: EventId) -> Vec<EventData> {
    let events = some(1).into_iter();
    events.map(|event| event.with_id(id)).collect()
}

fn lost() -> BatchOutcome {
    BatchOutcome::Unknown(Error::unavailable("connection lost"))
}
