//! A model of the database, and of the batches of its writers.
//!
//! The database executes statements in the order in which they were sent, and answers in that order, each at a random
//! moment. It knows rows by position and epoch only, as the real one does. The model also knows *which* batch stored
//! each row, and so finds a batch that was stored after another one than it was decided upon.

use std::collections::{HashMap, VecDeque};

use gesta_core::backend::WriterEpoch;
use gesta_core::{LogId, Position};
use gesta_postgres::core::{EVENTS_MAX, RowPlace, StatementPart};

use crate::choices::Choices;

/// The number of all batches of other processes.
pub(super) const RIVAL: u32 = 0;

/// A batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TestBatch {
    pub(super) id: u32,
    pub(super) log: LogId,
    pub(super) after: RowPlace,
    /// The batch that it was decided upon.
    pub(super) upon: u32,
    pub(super) epoch: WriterEpoch,
    pub(super) events: usize,
    /// Whether the database refuses it.
    pub(super) is_bad: bool,
}

impl TestBatch {
    pub(super) fn end(&self) -> RowPlace {
        match self.events {
            0 => self.after,
            events => (Position(self.after.0.0 + events as u64), self.epoch),
        }
    }
}

/// What the model says about a statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Executed(Vec<bool>),
    Collided,
    Refused,
    Failed,
}

/// How often each fault happens, of 1,000 times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    pub(super) rivals: u32,
    pub(super) collisions: u32,
    pub(super) failures: u32,
}

pub(super) struct Database {
    /// The rows of each log: the epoch of the writer, and the batch.
    logs: HashMap<LogId, Vec<(WriterEpoch, u32)>>,
    sent: VecDeque<Vec<StatementPart<TestBatch>>>,
    answers: VecDeque<Answer>,
    /// The ends of logs that a statement has seen.
    pub(super) seen: HashMap<(LogId, RowPlace), u64>,
    pub(super) step: u64,
    faults: Faults,
}

impl Database {
    pub(super) fn new(faults: Faults) -> Self {
        Self {
            logs: HashMap::new(),
            sent: VecDeque::new(),
            answers: VecDeque::new(),
            seen: HashMap::new(),
            step: 0,
            faults,
        }
    }

    pub(super) fn end(&self, log: LogId) -> (RowPlace, u32) {
        let rows = self.logs.get(&log).map_or(&[] as &[_], Vec::as_slice);
        match rows.last() {
            Some((writer, batch)) => ((Position(rows.len() as u64), *writer), *batch),
            None => ((Position(0), WriterEpoch(0)), RIVAL),
        }
    }

    /// Returns how many events of a batch are stored.
    pub(super) fn stored(&self, log: LogId, batch: u32) -> usize {
        let rows = self.logs.get(&log).into_iter().flatten();
        rows.filter(|(_, stored)| *stored == batch).count()
    }

    pub(super) fn send(&mut self, parts: Vec<StatementPart<TestBatch>>) {
        check(&parts);
        self.sent.push_back(parts);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.answers.is_empty()
    }

    pub(super) fn answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    /// Executes the oldest statement, if there is one.
    pub(super) fn execute(&mut self, choices: &mut Choices) {
        self.step += 1;
        let Some(parts) = self.sent.pop_front() else {
            return;
        };
        if choices.chance(self.faults.rivals, 1_000) {
            let part = &parts[choices.index(parts.len())];
            self.rival(part.log, choices);
        }
        let is_good: Vec<bool> = parts.iter().map(|part| self.is_good(part)).collect();
        let is_executed = |index: usize| is_good[index];
        let good = || (0..parts.len()).filter(|index| is_executed(*index));
        let is_refused = good().any(|index| parts[index].batches.iter().any(|load| load.is_bad));
        let answer = if choices.chance(self.faults.failures, 1_000) {
            Answer::Failed
        } else if good().count() > 0 && choices.chance(self.faults.collisions, 1_000) {
            // Another process has stored something after the snapshot of this statement.
            let index = good().nth(choices.index(good().count())).expect("one");
            if parts[index].batches.iter().any(|load| load.events > 0) {
                self.rival(parts[index].log, choices);
                Answer::Collided
            } else {
                Answer::Failed
            }
        } else if is_refused {
            Answer::Refused
        } else {
            for index in good() {
                self.store(&parts[index]);
            }
            Answer::Executed(is_good)
        };
        self.answers.push_back(answer);
    }

    fn rival(&mut self, log: LogId, choices: &mut Choices) {
        let epoch = WriterEpoch(-1 - i64::try_from(choices.index(1_000_000)).expect("small"));
        let rows = self.logs.entry(log).or_default();
        rows.extend(vec![(epoch, RIVAL); 1 + choices.index(3)]);
    }

    fn is_good(&mut self, part: &StatementPart<TestBatch>) -> bool {
        let (end, batch) = self.end(part.log);
        self.seen.insert((part.log, end), self.step);
        let first = &part.batches[0];
        let is_good = first.after == end;
        assert!(
            !is_good || end.0 == Position(0) || first.upon == batch,
            "{first:?} is stored upon batch {batch}"
        );
        is_good
    }

    fn store(&mut self, part: &StatementPart<TestBatch>) {
        let rows = self.logs.entry(part.log).or_default();
        for load in &part.batches {
            rows.extend(vec![(load.epoch, load.id); load.events]);
            self.seen.insert((part.log, load.end()), self.step);
        }
    }
}

/// Checks what must hold for every statement.
fn check(parts: &[StatementPart<TestBatch>]) {
    assert!(!parts.is_empty());
    assert!(
        parts.windows(2).all(|pair| pair[0].log < pair[1].log),
        "in order of log, each once: {parts:?}"
    );
    let batches: Vec<&TestBatch> = parts.iter().flat_map(|part| &part.batches).collect();
    let events: usize = batches.iter().map(|load| load.events).sum();
    assert!(events <= EVENTS_MAX || batches.len() == 1, "{events}");
    for part in parts {
        assert!(part.batches.iter().all(|load| load.log == part.log));
        let mut pairs = part.batches.windows(2);
        assert!(pairs.all(|pair| pair[0].end() == pair[1].after), "{part:?}");
    }
}
