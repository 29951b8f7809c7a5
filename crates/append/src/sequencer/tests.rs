//! The sequencer driven by hand: each test gives every answer of the database itself, so that one decision can be seen alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gesta_core::backend::{
    Batch, BatchOutcome, EventRef, Loaded, LoadedMeta, LoadedStream, LogEnd, Row, RowId, Signal,
    StreamHead, WriterEpoch,
};
use gesta_core::{
    Append, Appended, Error, ErrorKind, EventData, EventId, EventType, ExpectedRevision,
    Incarnation, LogId, Position, Result, Revision, StreamId, Timestamp,
};
use tokio::time::Instant;
use uuid::Uuid;

use super::job::{Answer, Gave, Job, JobId, What};
use super::lookup::{Found, Hits};
use super::{Input, Now, Output, Sequencer, Setting};
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
    /// What is stored.
    rows: Vec<(Row, WriterEpoch)>,
    epoch: WriterEpoch,
    tickets: u32,
    wants_connection: bool,
    /// Batches in flight, oldest first.
    sent: VecDeque<Arc<Batch>>,
    reads: VecDeque<(JobId, Job)>,
    answers: BTreeMap<u32, Result<Appended>>,
    /// Everything else that came out.
    others: Vec<Output<u32>>,
}

impl Driver {
    /// A sequencer that has just asked for its first connection.
    fn new(config: Config, in_flight_max: usize) -> Self {
        let now = Now {
            instant: Instant::now(),
            wall: Timestamp(1_000_000_000_000),
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
            epoch: WriterEpoch(0),
            tickets: 0,
            wants_connection: false,
            sent: VecDeque::new(),
            reads: VecDeque::new(),
            answers: BTreeMap::new(),
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
                    assert!(
                        self.answers.insert(ticket, answer).is_none(),
                        "answered once"
                    );
                }
                other => self.others.push(other),
            }
        }
    }

    /// Time passes.
    fn pass(&mut self, time: Duration) {
        self.now.instant += time;
        self.now.wall.0 += i64::try_from(time.as_micros()).expect("short");
        self.work();
    }

    /// Opens the connection that was asked for.
    fn connect(&mut self) {
        assert!(std::mem::take(&mut self.wants_connection));
        self.epoch.0 += 1;
        self.on(Input::Connected(Ok(self.epoch)));
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

    /// Appends, together with what is brought next.
    fn bring(&mut self, request: Append) -> u32 {
        self.tickets += 1;
        let command = Command::append(self.tickets, request, self.now.instant).expect("valid");
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
        let last = |row: &&(Row, WriterEpoch)| row.0.stream == name(stream);
        let (mut row, _) = self.rows.iter().rev().find(last).expect("there").clone();
        row.revision = row.revision.next();
        row.position = self.end().position.next();
        row.id = EventId::random();
        self.rows.push((row, WriterEpoch(1_000)));
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

    /// Answers the reads under way from what is stored: no append is a retry; names and ids cannot be read.
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
                let rows = self.rows.iter().filter(|(row, _)| row.position > *after);
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
                Answer(Gave::LookedUp(Ok(vec![Found::Nothing; questions.len()])))
            }
            _ => job.fail(Error::unavailable("not read")),
        }
    }

    fn stored(&self, stream: &StreamId) -> LoadedStream {
        let row = self
            .rows
            .iter()
            .rev()
            .find(|(row, _)| row.stream == *stream);
        LoadedStream {
            head: row.map(|(row, _)| StreamHead {
                row: row.stream_row,
                last: row.revision,
                position: row.position,
                id: Some(row.id),
            }),
            meta: None,
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
        self.stats.snapshot(0)
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

fn lost() -> BatchOutcome {
    BatchOutcome::Unknown(Error::unavailable("connection lost"))
}

// ---- sending ----

/// Goal: a batch takes as many events as it may, not one less, and the next append goes into the next batch.
#[test]
fn a_batch_is_filled_to_its_bounds() {
    let config = Config {
        batch_events_max: 4,
        ..Config::default()
    };
    let mut d = Driver::running(config, 1);
    for (stream, events) in [("s", 1), ("s", 2), ("t", 2), ("s", 1)] {
        d.append(stream, Any, events);
    }
    for size in [1, 4, 1] {
        assert_eq!(d.sizes(), [size]);
        d.commit();
    }
    assert!(d.sent.is_empty());
}

/// Goal: so many bytes fit as well, not one more.
#[test]
fn a_batch_is_filled_with_bytes_to_its_bound() {
    let cost = Command::append(0, Append::to(name("s"), Any, some(1)), Instant::now());
    let cost = cost.expect("valid").cost.bytes;
    for (bytes, sizes) in [(cost * 2, [1, 2, 1]), (cost * 2 - 1, [1, 1, 1])] {
        let config = Config {
            batch_bytes_max: bytes,
            ..Config::default()
        };
        let mut d = Driver::running(config, 1);
        (0..4).for_each(|_| {
            d.append("s", Any, 1);
        });
        for size in sizes {
            assert_eq!(d.sizes(), [size], "{bytes}");
            d.commit();
        }
    }
}

/// Goal: an append that is larger than a batch may be is stored, alone.
#[test]
fn an_append_larger_than_a_batch_travels_alone() {
    let config = Config {
        batch_events_max: 4,
        ..Config::default()
    };
    let mut d = Driver::running(config, 1);
    for events in [1, 1, 6, 1] {
        d.append("s", Any, events);
    }
    for size in [1, 1, 6, 1] {
        assert_eq!(d.sizes(), [size]);
        d.commit();
    }
}

/// Goal: near the database a batch waits until it is as large as the one under way, and two are under way at most.
#[test]
fn near_the_database_two_batches_are_under_way() {
    let mut d = Driver::running(Config::default(), 4);
    d.append("s", Any, 2);
    d.append("s", Any, 1);
    assert_eq!(d.sizes(), [2], "smaller than the one under way");
    d.append("t", Any, 1);
    assert_eq!(d.sizes(), [2, 2]);
    d.append("s", Any, 5);
    assert_eq!(d.sizes(), [2, 2], "two are enough");
    d.commit();
    assert_eq!(d.sizes(), [2, 5]);
}

/// Goal: a batch that has no room for the next append is sent although it is smaller than the one under way.
#[test]
fn a_batch_without_room_for_the_next_append_is_large_enough() {
    let config = Config {
        batch_events_max: 4,
        ..Config::default()
    };
    let mut d = Driver::running(config, 4);
    d.append("s", Any, 4);
    d.append("s", Any, 3);
    assert_eq!(d.sizes(), [4]);
    d.append("s", Any, 2);
    assert_eq!(d.sizes(), [4, 3]);
}

/// A database 30 ms away that works 12 ms on each batch.
fn far() -> Driver {
    let mut d = Driver::new(Config::default(), 8);
    d.connect();
    d.do_reads();
    assert_eq!(d.sizes(), [0], "a probe");
    d.pass(MS * 30);
    d.commit();
    assert!(d.sent.is_empty(), "one answer tells that it is far");
    d.append("s", Any, 2);
    d.do_reads();
    d.pass(MS * 30);
    d.commit();
    d.append("s", Any, 2);
    d.append("s", Any, 1);
    assert_eq!(d.sizes(), [2, 1], "small ones go: no work is known");
    d.pass(MS * 30);
    d.commit();
    d.pass(MS * 12);
    d.commit();
    d
}

/// Goal: far away a small batch goes while the database would be idle; four are under way if each is as large as the others.
#[test]
fn far_from_the_database_four_batches_are_under_way() {
    let mut d = far();
    d.append("s", Any, 3);
    d.append("s", Any, 3);
    d.append("s", Any, 1);
    assert_eq!(d.sizes(), [3, 3], "two keep the database busy");
    d.append("s", Any, 2);
    d.append("s", Any, 3);
    d.append("s", Any, 3);
    assert_eq!(d.sizes(), [3, 3, 3, 3], "four are enough");
}

/// Goal: the way to the database is measured by empty batches only where several may be under way.
#[test]
fn the_way_is_not_measured_where_one_batch_is_under_way() {
    for (in_flight_max, sizes) in [(1, vec![]), (2, vec![0])] {
        let mut d = Driver::new(Config::default(), in_flight_max);
        d.connect();
        d.do_reads();
        assert_eq!(d.sizes(), sizes);
    }
}

/// Goal: after a fault an empty batch shows that commits work again; then nothing is sent for nothing.
#[test]
fn a_batch_without_rows_proves_that_a_fault_is_over() {
    let mut d = Driver::new(Config::default(), 1);
    d.wants_connection = false;
    d.on(Input::Connected(Err(Error::unavailable("away"))));
    d.pass(MS * 10);
    d.connect();
    d.do_reads();
    let later = d.now.instant + Duration::from_secs(2);
    assert!(d.sequencer.why_not_ready(later).is_some());
    assert_eq!(d.sizes(), [0]);
    d.commit();
    assert_eq!(d.sequencer.why_not_ready(later), None);
    assert!(d.sent.is_empty());
}

/// Goal: commands that cannot be decided yet are left where they are, unless their age is to be watched.
#[test]
fn commands_are_taken_while_fewer_wait_than_is_enough() {
    let config = Config {
        batch_events_max: 1,
        ..Config::default()
    };
    let mut d = Driver::running(config, 1);
    // One is in flight, one decided, one waits.
    (0..3).for_each(|_| {
        d.append("s", Any, 1);
    });
    assert!(!d.sequencer.takes_commands(1));
    assert!(d.sequencer.takes_commands(2));
    d.fail(lost());
    assert!(d.sequencer.takes_commands(0));
}

/// Goal: a claim that fails on what is still being committed is compared with what is stored only after that, and one that fails
/// on what is committed at once.
#[test]
fn open_commits_are_awaited_before_events_are_compared() {
    let mut d = Driver::running(Config::default(), 1);
    let early = d.append("t", Exact(Revision(0)), 1);
    d.settle();
    assert_eq!(d.position(early), Position(3));
    let late = d.append("t", Exact(Revision(0)), 1);
    assert!(d.sent.is_empty());
    let (id, what) = d.next_read();
    assert!(matches!(what, What::LookUp(..)), "{what:?}");
    let nothing = || Answer(Gave::LookedUp(Ok(vec![Found::Nothing])));
    d.on(Input::Read(id, nothing()));
    assert!(
        d.is_open(late),
        "the refusal rests on nothing else being stored"
    );
    d.settle();
    assert!(matches!(
        d.kind(late),
        ErrorKind::WrongExpectedRevision { .. }
    ));

    d.append("s", Any, 1);
    let late = d.append("s", Exact(Revision(0)), 1);
    assert!(
        d.reads.is_empty(),
        "the event at its place is not stored yet"
    );
    d.commit();
    d.commit();
    let (id, what) = d.next_read();
    assert!(matches!(what, What::LookUp(..)), "{what:?}");
    d.on(Input::Read(id, nothing()));
    d.settle();
    assert!(matches!(
        d.kind(late),
        ErrorKind::WrongExpectedRevision { .. }
    ));
}

/// Goal: a stream that is appended to without a pause does not keep a comparison waiting: what was open at first counts.
#[test]
fn later_commits_are_not_awaited_before_events_are_compared() {
    let mut d = Driver::running(Config::default(), 1);
    d.append("s", Any, 1);
    d.append("s", Exact(Revision(0)), 1);
    d.append("s", Any, 1);
    d.commit();
    d.append("s", Any, 1);
    assert!(d.reads.is_empty());
    d.commit();
    assert_eq!(d.sizes(), [1], "the stream is open again");
    assert!(matches!(d.next_read().1, What::LookUp(..)));
}

/// Goal: what was open at first is awaited again when it was undone.
#[test]
fn commits_that_were_undone_are_awaited_again() {
    let mut d = Driver::running(Config::default(), 1);
    d.append("s", Any, 1);
    d.append("s", Exact(Revision(0)), 1);
    d.append_by_other("t");
    assert!(matches!(d.commit(), BatchOutcome::Missed));
    let (id, job) = d.reads.pop_front().expect("looks what was appended");
    let answer = d.read(&job);
    d.on(Input::Read(id, answer));
    assert_eq!(d.sizes(), [1]);
    assert!(
        d.reads.is_empty(),
        "the event at its place is not stored yet"
    );
}

// ---- looking up ----

/// Goal: a stream whose stored state cannot be read fails its own appends and no others that were looked up with it.
#[test]
fn a_stream_that_cannot_be_read_fails_alone() {
    let mut d = Driver::running(Config::default(), 1);
    let [bad, good] = ["bad", "good"].map(|stream| d.bring(Append::to(name(stream), Any, some(1))));
    d.work();
    let (id, what) = d.next_read();
    let What::Load(request) = what else {
        panic!("{what:?}");
    };
    assert_eq!(request.streams, [name("bad"), name("good")]);
    let head = StreamHead {
        row: RowId(1),
        last: Revision(0),
        position: Position(1),
        id: None,
    };
    let meta = LoadedMeta {
        head,
        data: Bytes::from_static(b"no document"),
        metadata: Bytes::new(),
    };
    let unreadable = LoadedStream {
        head: None,
        meta: Some(meta),
    };
    let loaded = Loaded {
        end: d.end(),
        streams: vec![unreadable, LoadedStream::default()],
        types: vec![None; request.types.len()],
    };
    d.on(Input::Read(id, Answer(Gave::Loaded(Ok(loaded)))));
    assert!(!d.is_open(bad));
    assert_eq!(d.sizes(), [1]);
    d.commit();
    assert_eq!(d.position(good), Position(3));
}

/// Goal: while streams cannot be looked up it is tried again after ever longer pauses, and appends that wait for that are
/// given up in time.
#[test]
fn looking_up_is_tried_again_until_the_append_is_given_up() {
    let mut d = Driver::running(Config::default(), 1);
    let began = d.now.instant;
    let waits = d.append("new", Any, 1);
    let mut pauses = Vec::new();
    while d.is_open(waits) {
        d.fail_read();
        assert!(d.reads.is_empty(), "not at once");
        let wake = d.sequencer.wake_at().expect("is tried again");
        pauses.push(wake - d.now.instant);
        d.pass(wake - d.now.instant);
        assert!(d.now.instant - began < Duration::from_secs(32));
    }
    assert_eq!(pauses[..3], [MS * 10, MS * 20, MS * 40]);
    assert!(d.now.instant - began >= Duration::from_secs(30));
    assert!(matches!(d.kind(waits), ErrorKind::Unavailable(_)));
    assert!(d.reads.is_empty());
}

/// Goal: a type that is not known is looked up together with the stream, also while other streams are being looked up.
#[test]
fn a_type_is_looked_up_with_its_stream() {
    let mut d = Driver::running(Config::default(), 1);
    d.append("first", Any, 1);
    let event = EventData::json(EventType::new("unknown").expect("valid"), "{}");
    d.request(Append::to(name("second"), Any, vec![event]));
    let asked = d.reads.iter().map(|(_, job)| match &job.0 {
        What::Load(request) => (request.streams.len(), request.types.len()),
        other => panic!("{other:?}"),
    });
    assert_eq!(asked.collect::<Vec<_>>(), [(1, 0), (1, 1)]);
}

/// Goal: appends that waited for the same look and do not fit into one batch go with the next ones.
#[test]
fn what_has_waited_and_does_not_fit_goes_with_the_next_batch() {
    let config = Config {
        batch_events_max: 1,
        ..Config::default()
    };
    let mut d = Driver::running(config, 1);
    let waits = ["a", "b", "c"].map(|stream| d.bring(Append::to(name(stream), Any, some(1))));
    d.work();
    d.do_reads();
    for (waited, position) in waits.into_iter().zip(3..) {
        assert_eq!(d.sizes(), [1]);
        d.commit();
        assert_eq!(d.position(waited), Position(position));
    }
}

/// Goal: an append that is given up tells why.
#[test]
fn an_append_that_is_given_up_names_the_fault() {
    let mut d = Driver::running(Config::default(), 1);
    let doubtful = d.append("s", Any, 1);
    let waits = d.append("t", Any, 1);
    d.fail(lost());
    d.wants_connection = false;
    d.on(Input::Connected(Err(Error::unavailable("away"))));
    d.pass(Duration::from_secs(30));
    assert!(matches!(d.kind(doubtful), ErrorKind::OutcomeUnknown(_)));
    let ErrorKind::Unavailable(why) = d.kind(waits) else {
        panic!("{}", d.kind(waits));
    };
    assert!(why.contains("away"), "{why}");
}

// ---- a batch that does not commit ----

/// Goal: an append in doubt that is then refused for another reason is not said to be unstored: the lost statement may still
/// commit. Once another row has taken its place it cannot.
#[test]
fn what_may_commit_late_is_unknown_however_it_is_refused() {
    let poison = || BatchOutcome::Refused(ErrorKind::Refused("poison".into()).into());
    for moves_on in [false, true] {
        let mut d = Driver::running(Config::default(), 1);
        let first = d.append("s", Any, 1);
        d.fail(lost());
        d.connect();
        if moves_on {
            d.append_by_other("t");
        }
        d.do_reads();
        d.fail(poison());
        let is_unknown = matches!(d.kind(first), ErrorKind::OutcomeUnknown(_));
        assert_eq!(is_unknown, !moves_on, "{}", d.kind(first));
    }
}

/// Goal: batches stay small until the last append among which the refused one was sought is stored; then they grow again.
#[test]
fn batches_stay_small_until_all_suspects_are_stored() {
    let mut d = Driver::running(Config::default(), 1);
    let append = |d: &mut Driver, count| {
        (0..count).for_each(|_| {
            d.append("s", Any, 1);
        });
    };
    append(&mut d, 1 + 8);
    d.commit();
    assert_eq!(d.sizes(), [8]);
    d.fail(BatchOutcome::Refused(
        ErrorKind::Refused("poison".into()).into(),
    ));
    d.do_reads();
    for (size, more) in [(4, 0), (4, 6), (4, 5), (7, 0)] {
        assert_eq!(d.sizes(), [size]);
        append(&mut d, more);
        d.commit();
    }
    assert!(d.sent.is_empty());
}

/// Goal: a batch can only commit after those before it: one whose answer was lost is stored if the next has committed.
#[test]
fn a_commit_proves_the_batches_before_it() {
    let mut d = Driver::running(Config::default(), 4);
    let first = d.append("s", Any, 1);
    let second = d.append("s", Any, 1);
    let batch = d.sent.pop_front().expect("in flight");
    assert!(matches!(d.execute(&batch), BatchOutcome::Committed));
    d.on(Input::Outcome(lost()));
    d.commit();
    assert_eq!(
        (d.position(first), d.position(second)),
        (Position(3), Position(4))
    );
}

/// Goal: a batch without rows that failed has not been missed by the one after it.
#[test]
fn a_commit_after_an_empty_batch_that_failed_counts() {
    let mut d = Driver::running(Config::default(), 4);
    let refused = d.append("s", Exact(Revision(7)), 1);
    let stored = d.append("s", Any, 1);
    assert_eq!(d.sizes(), [0, 1]);
    d.fail(BatchOutcome::Failed(Error::unavailable("lock time-out")));
    d.commit();
    assert_eq!(d.position(stored), Position(3));
    assert!(d.is_open(refused));
    d.pass(MS * 10);
    d.settle();
    assert!(matches!(
        d.kind(refused),
        ErrorKind::WrongExpectedRevision { .. }
    ));
    assert!(!d.wants_connection);
    assert_eq!(d.stats().reconnects, 0);
}

/// Goal: a database that refuses the next row again and again although nothing is in its place makes everything known doubtful;
/// losing against another process as often does not.
#[test]
fn missing_in_vain_makes_everything_known_doubtful() {
    let mut d = Driver::running(Config::default(), 1);
    let loads = d.stats().loads;
    let first = d.append("s", Any, 1);
    for _ in 0..5 {
        d.append_by_other("s");
        assert!(matches!(d.commit(), BatchOutcome::Missed));
        d.do_reads();
        assert_eq!(d.sizes(), [1], "goes on at once");
    }
    d.commit();
    assert_eq!((d.position(first), d.stats().loads), (Position(8), loads));

    let second = d.append("s", Any, 1);
    d.fail(BatchOutcome::Missed);
    d.do_reads();
    d.fail(BatchOutcome::Missed);
    d.do_reads();
    assert!(d.sent.is_empty(), "waits");
    d.pass(MS * 10);
    assert!(matches!(d.reads[0].1.0, What::End));
    d.settle();
    assert_eq!(
        (d.position(second), d.stats().loads),
        (Position(9), loads + 1)
    );
}

/// Goal: another row at the place of the last one known shows that the database has lost commits: nothing known counts any more.
#[test]
fn another_row_in_the_place_of_the_last_one_known_is_noticed() {
    let mut d = Driver::running(Config::default(), 1);
    let (row, _) = d.rows.pop().expect("stored");
    assert_eq!(row.stream, name("t"));
    d.append_by_other("s");
    let append = d.append("s", Any, 1);
    assert!(matches!(d.commit(), BatchOutcome::Missed));
    d.do_reads();
    assert!(matches!(d.commit(), BatchOutcome::Committed));
    assert_eq!(
        d.rows.last().map(|(row, _)| row.revision),
        Some(Revision(2))
    );
    assert_eq!(d.position(append), Position(3));
}

/// Goal: a log that has grown far is not read to its end: it is quicker to forget everything known.
#[test]
fn a_log_that_has_grown_far_is_not_followed() {
    for (grown, is_followed) in [(60_000, true), (60_001, false)] {
        let mut d = Driver::running(Config::default(), 1);
        d.append("s", Any, 1);
        let limit = d.end().position.0 + grown;
        d.append_by_other("s");
        d.commit();
        let (id, what) = d.next_read();
        let What::After(after, count) = what else {
            panic!("{what:?}");
        };
        let known = reference(&d.rows[1]);
        let next = reference(&d.rows[2]);
        let page = (after.0 + 2..).take(count - 1).map(|position| EventRef {
            position: Position(position),
            id: EventId::random(),
            ..next.clone()
        });
        let page = std::iter::once(known).chain(page).collect();
        d.on(Input::Read(id, Answer(Gave::After(Ok(page)))));
        let (id, what) = d.next_read();
        assert!(matches!(what, What::End), "{what:?}");
        let end = LogEnd {
            position: Position(limit),
            ..d.end()
        };
        d.on(Input::Read(id, Answer(Gave::End(Ok(end)))));
        let is_next = matches!(d.next_read().1, What::After(..));
        assert_eq!(is_next, is_followed);
    }
}

/// Goal: while the answers to batches after one that missed stay away, appends cannot succeed, and that is told.
#[test]
fn answers_that_stay_away_after_a_miss_are_told() {
    let mut d = Driver::running(Config::default(), 4);
    d.append("s", Any, 1);
    d.append("s", Any, 1);
    assert_eq!(d.sizes(), [1, 1]);
    d.fail(BatchOutcome::Missed);
    assert_eq!(d.sequencer.why_not_ready(d.now.instant), None);
    let later = d.now.instant + Duration::from_secs(3);
    assert!(d.sequencer.why_not_ready(later).is_some());
}

/// Goal: pauses are short enough to give appends up in time.
#[test]
fn a_pause_is_short_beside_the_time_after_which_appends_are_given_up() {
    let config = Config {
        give_up_after: MS * 8,
        ..Config::default()
    };
    let mut d = Driver::new(config, 1);
    d.on(Input::Connected(Err(Error::unavailable("away"))));
    assert_eq!(d.sequencer.wake_at(), Some(d.now.instant + MS * 2));
}

/// Goal: an append is woken for when it is to be given up, also while the answer of a connection is awaited.
#[test]
fn the_oldest_append_is_given_up_while_connecting() {
    let mut d = Driver::new(Config::default(), 1);
    assert_eq!(d.sequencer.wake_at(), None);
    let waits = d.append("s", Any, 1);
    let wake = d.now.instant + Duration::from_secs(30);
    assert_eq!(d.sequencer.wake_at(), Some(wake));
    d.pass(Duration::from_secs(30) - MS);
    assert!(d.is_open(waits));
    d.pass(MS);
    assert!(!d.is_open(waits));
}

/// Goal: when history changes, what is in flight is in doubt for good; what was not sent yet is stored in the new history.
#[test]
fn a_change_of_history_leaves_what_is_in_flight_unknown() {
    let mut d = Driver::running(Config::default(), 1);
    let sent = d.append("s", Any, 1);
    let waits = d.append("t", Any, 1);
    let next = Incarnation::random();
    d.on(Input::HistoryChanged(next));
    assert!(d.sent.is_empty(), "disconnected");
    d.connect();
    assert!(matches!(d.reads[0].1.0, What::End), "all is forgotten");
    d.do_reads();
    assert!(matches!(d.kind(sent), ErrorKind::OutcomeUnknown(_)));
    let tells = |output: &Output<u32>| matches!(output, Output::LookBehind);
    assert!(d.others.iter().any(tells));
    d.settle();
    let stored = d.answers[&waits].as_ref().expect("stored");
    let expected = gesta_core::Checkpoint::in_log(next, 1, LOG, Position(3));
    assert_eq!(stored.checkpoint, expected);
}

/// Goal: a change of history while connecting asks for no second connection, but nothing known counts on the one that comes.
#[test]
fn a_change_of_history_while_connecting_is_remembered() {
    let mut d = Driver::running(Config::default(), 1);
    d.append("s", Any, 1);
    d.fail(lost());
    assert!(std::mem::take(&mut d.wants_connection));
    d.on(Input::HistoryChanged(Incarnation::random()));
    assert!(!d.wants_connection, "one is being opened");
    d.wants_connection = true;
    d.connect();
    assert!(matches!(d.reads[0].1.0, What::End), "all is forgotten");

    d.fail_read();
    d.on(Input::Connected(Ok(WriterEpoch(99))));
    assert!(d.reads.is_empty(), "nobody has asked for this one");
}

/// Goal: one that waits before it connects again waits as long after a change of history.
#[test]
fn a_change_of_history_does_not_end_a_pause() {
    let mut d = Driver::running(Config::default(), 1);
    d.append("s", Any, 1);
    d.fail(lost());
    d.wants_connection = false;
    d.on(Input::Connected(Err(Error::unavailable("away"))));
    d.on(Input::HistoryChanged(Incarnation::random()));
    assert!(!d.wants_connection);
    d.pass(d.sequencer.wake_at().expect("waits") - d.now.instant);
    d.connect();
    assert!(matches!(d.reads[0].1.0, What::End), "all is forgotten");
}

// ---- turns ----

fn granted(d: &Driver) -> Vec<Uuid> {
    let granted = |signal: &Signal| match signal {
        Signal::TurnGranted { to, .. } => Some(*to),
        _ => None,
    };
    d.signals().filter_map(granted).collect()
}

fn requested(d: &Driver) -> Vec<Uuid> {
    let requested = |signal: &Signal| match signal {
        Signal::TurnRequested { by, .. } => Some(*by),
        _ => None,
    };
    d.signals().filter_map(requested).collect()
}

/// Goal: who has had its turn lets another process go once nothing is in flight, and goes on when it is its turn again, after
/// looking at what the other has appended.
#[test]
fn the_turn_goes_to_another_process_and_comes_back() {
    let mut d = Driver::running(Config::default(), 1);
    let other = Uuid::new_v4();
    d.append("s", Any, 1);
    d.on(Input::Signal(Signal::TurnRequested {
        log: LOG,
        by: other,
    }));
    assert_eq!(d.sequencer.wake_at(), None, "an answer comes first");
    d.pass(MS * 300);
    let waits = d.append("s", Any, 1);
    assert!(granted(&d).is_empty(), "a batch is in flight");
    d.commit();
    assert_eq!(granted(&d), [other]);
    assert!(d.sent.is_empty(), "it is the turn of another");
    d.work();
    d.work();
    let [me] = requested(&d)[..] else {
        panic!("asks once: {:?}", requested(&d));
    };
    assert_eq!(d.sequencer.wake_at(), Some(d.now.instant + MS * 1_000));
    d.append_by_other("s");
    d.on(Input::Signal(Signal::TurnGranted { log: LOG, to: me }));
    assert!(d.sent.is_empty(), "looks first");
    d.do_reads();
    d.commit();
    assert_eq!((d.position(waits), d.stats().misses), (Position(5), 0));
}

/// Goal: a process without work gives its turn away early, and asks for none.
#[test]
fn who_has_no_work_gives_its_turn_away() {
    let mut d = Driver::running(Config::default(), 1);
    let other = Uuid::new_v4();
    d.on(Input::Signal(Signal::TurnRequested {
        log: LOG,
        by: other,
    }));
    assert_eq!(d.sequencer.wake_at(), Some(d.now.instant + MS * 3));
    assert!(granted(&d).is_empty());
    d.pass(MS * 3);
    assert_eq!(granted(&d), [other]);
    d.pass(MS);
    assert!(requested(&d).is_empty());
    let waits = d.append("s", Any, 1);
    assert!(d.sent.is_empty());
    d.pass(MS * 1_000);
    d.commit();
    assert_eq!(
        d.position(waits),
        Position(3),
        "goes on when nothing is heard of the other"
    );
}
