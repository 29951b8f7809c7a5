//! The gathering of a connection: several logs whose authors know nothing of each other, and one database.
//!
//! Some submit, some statements are executed, some answers arrive. Some close their queues, and open new ones once
//! everything is answered. Other processes append too, statements fail, keys are taken, and content is refused.
//!
//! Checked: chains are unbroken (`database` checks what each batch is stored upon); nothing is stored twice; every
//! batch is answered once and truly; no batch misses but for its own log's sake; nothing waits while nothing is under
//! way; nothing of a closed queue is sent; and only what is refused by itself is called refused.

mod database;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use gesta_core::backend::WriterEpoch;
use gesta_core::{LogId, Moment, Position};
use gesta_postgres::core::{
    BYTES_MAX, BatchVerdict, EVENTS_MAX, Gather, Piece, QueueId, RowPlace, Said, Ticket,
};

use self::database::{Answer, Database, Faults, RIVAL, TestBatch};
use crate::choices::Choices;
use crate::driver::{Form, Schedule, World};

/// The world.
pub static WORLD: World = World {
    name: "gather",
    forms: &[Form {
        name: "gather",
        turns: 1,
        run,
    }],
};

const MS: Duration = Duration::from_millis(1);
/// The most steps before peace.
const STEPS_MAX: u32 = 600;
/// How often a fault may happen, of 1,000 times.
const OFTEN: [u32; 4] = [0, 0, 20, 200];

/// One log, as whoever appends to it sees it.
struct Author {
    /// `None` while the queue is closed.
    queue: Option<QueueId>,
    log: LogId,
    epoch: WriterEpoch,
    /// What the next batch follows, and the batch that has stored it.
    tip: (RowPlace, u32),
    /// The author knows that something was not stored, or has closed its queue, and begins again at the end of the log.
    has_lost: bool,
}

/// A batch that waits for its verdict.
struct Pending {
    load: TestBatch,
    submitted: u64,
}

/// A connection with its authors, and the database.
struct Connection<'a> {
    schedule: &'a mut Schedule,
    gather: Gather<TestBatch>,
    now: Moment,
    batches: u32,
    /// The greatest epoch of an author.
    epochs: i64,
    authors: Vec<Author>,
    database: Database,
    pending: HashMap<Ticket, Pending>,
    /// The batches that had no verdict when their queue was closed.
    closed: HashSet<u32>,
    decided: Vec<(TestBatch, BatchVerdict)>,
    /// Other processes append too.
    has_rivals: bool,
    /// Times between two answers: near the database, or far from it.
    ticks: [Duration; 3],
}

fn run(schedule: &mut Schedule) -> Result<(), String> {
    let mut connection = Connection::new(schedule);
    for _ in 0..connection.choices().pick(STEPS_MAX) {
        match connection.choices().pick(80) {
            0..=39 => connection.submit(),
            40..=59 => connection.execute(),
            60..=78 => connection.answer(),
            _ => connection.close(),
        }
        connection.send();
    }
    while !connection.database.is_idle() {
        connection.execute();
        connection.answer();
        connection.send();
    }
    connection.check()
}

impl<'a> Connection<'a> {
    fn new(schedule: &'a mut Schedule) -> Self {
        let choices = &mut schedule.choices;
        let logs = 1 + u16::try_from(choices.pick(6)).expect("few");
        let mut often = || OFTEN[choices.index(OFTEN.len())];
        let faults = Faults {
            rivals: often(),
            collisions: often(),
            failures: often(),
        };
        let near = [MS; 3];
        let far = [Duration::ZERO, Duration::ZERO, MS * 100];
        let ticks = [near, far][choices.index(2)];
        let mut gather = Gather::new();
        let author = |log: u16| Author {
            queue: Some(gather.open(LogId(log)).expect("the first")),
            log: LogId(log),
            epoch: WriterEpoch(i64::from(log) + 1),
            tip: ((Position(0), WriterEpoch(0)), RIVAL),
            has_lost: false,
        };
        let authors = (0..logs).map(author).collect();
        Self {
            schedule,
            gather,
            now: Moment::START,
            batches: 0,
            epochs: i64::from(logs),
            authors,
            has_rivals: faults.rivals + faults.collisions > 0,
            database: Database::new(faults),
            pending: HashMap::new(),
            closed: HashSet::new(),
            decided: Vec::new(),
            ticks,
        }
    }

    fn choices(&mut self) -> &mut Choices {
        &mut self.schedule.choices
    }

    fn note(&self, what: impl FnOnce() -> String) {
        self.schedule.trace.note(self.now.0, what);
    }

    fn execute(&mut self) {
        self.database.execute(&mut self.schedule.choices);
    }

    fn send(&mut self) {
        while let Some(parts) = self.gather.next(self.now) {
            self.note(|| format!("sent: {parts:?}"));
            let mut batches = parts.iter().flat_map(|part| &part.batches);
            assert!(
                batches.all(|load| !self.closed.contains(&load.id)),
                "of a closed queue: {parts:?}"
            );
            self.database.send(parts);
        }
        assert!(
            self.pending.is_empty() || !self.database.is_idle(),
            "nothing is under way, and something waits"
        );
    }

    fn submit(&mut self) {
        let choices = &mut self.schedule.choices;
        let which = choices.index(self.authors.len());
        let author = &mut self.authors[which];
        let is_waiting = self.pending.values().any(|one| one.load.log == author.log);
        if author.queue.is_none() {
            author.queue = self.gather.open(author.log);
            assert_eq!(author.queue.is_none(), is_waiting, "a log has one queue");
            self.epochs += 1;
            author.epoch = WriterEpoch(self.epochs);
        }
        let Some(queue) = author.queue else {
            return;
        };
        // Some stop when something was not stored, as the pipeline does; some go on for a while. Nobody decides again
        // before all that he has sent is answered: two batches of one epoch at one place could not be told apart.
        let begins_again = author.has_lost && !is_waiting;
        if author.has_lost && !begins_again && choices.pick(10) < 8 {
            return;
        }
        if begins_again {
            author.tip = self.database.end(author.log);
            author.has_lost = false;
        }
        let events = match choices.pick(10) {
            0 | 1 => 0,
            9 => choices.index(EVENTS_MAX * 2),
            _ => 1 + choices.index(20),
        };
        self.batches += 1;
        let load = TestBatch {
            id: self.batches,
            log: author.log,
            after: author.tip.0,
            upon: author.tip.1,
            epoch: author.epoch,
            events,
            is_bad: events > 0 && choices.chance(3, 100),
        };
        if events > 0 {
            author.tip = (load.end(), load.id);
        }
        let piece = Piece {
            after: load.after,
            end: load.end(),
            events,
            bytes: choices.index(BYTES_MAX / 2),
            load: load.clone(),
        };
        let ticket = self.gather.submit(queue, piece);
        self.note(|| format!("submitted: {load:?}"));
        let submitted = self.database.step;
        self.pending.insert(ticket, Pending { load, submitted });
    }

    /// Closes the queue of an author. What waits is withdrawn: it is not stored.
    fn close(&mut self) {
        let which = self.schedule.choices.index(self.authors.len());
        let author = &mut self.authors[which];
        let Some(queue) = author.queue.take() else {
            return;
        };
        author.has_lost = true;
        let log = author.log;
        let left = self.pending.values().map(|one| &one.load);
        let left = left.filter(|load| load.log == log).map(|load| load.id);
        self.closed.extend(left);
        for ticket in self.gather.close(queue) {
            let Pending { load, .. } = self.pending.remove(&ticket).expect("once");
            self.decided.push((load, BatchVerdict::Missed));
        }
        self.note(|| format!("closed: the queue of log {log}"));
        self.schedule.reach("closed");
    }

    fn answer(&mut self) {
        let Some(answer) = self.database.answer() else {
            return;
        };
        self.note(|| format!("answered: {answer:?}"));
        let (said, name) = match &answer {
            Answer::Executed(good) => (Said::Executed(good), "executed"),
            Answer::Collided => (Said::Collided, "collided"),
            Answer::Refused => (Said::Refused, "refused"),
            Answer::Failed => (Said::Failed, "failed"),
        };
        self.schedule.reach(name);
        self.now += self.ticks[self.schedule.choices.index(3)];
        let verdicts = self.gather.answered(said, self.now);
        for (ticket, verdict) in verdicts.expect("possible") {
            let Pending { load, submitted } = self.pending.remove(&ticket).expect("once");
            let author = &mut self.authors[usize::from(load.log.0)];
            match verdict {
                BatchVerdict::Committed if load.events == 0 => {
                    let seen = self.database.seen.get(&(load.log, load.after));
                    assert!(seen.is_some_and(|step| *step >= submitted), "{load:?}");
                }
                BatchVerdict::Committed => {}
                BatchVerdict::Missed => {
                    assert!(self.has_rivals || author.has_lost, "in vain: {load:?}");
                    author.has_lost = true;
                    self.schedule.reach("missed");
                }
                BatchVerdict::Error => {
                    assert!(
                        answer != Answer::Refused || load.is_bad,
                        "innocent {load:?}"
                    );
                    assert!(answer != Answer::Collided);
                    author.has_lost = true;
                }
            }
            self.decided.push((load, verdict));
        }
    }

    /// Stored is what was answered as committed, once and whole, and nothing else.
    fn check(&self) -> Result<(), String> {
        if !self.pending.is_empty() {
            return Err(format!("{} batches are not answered", self.pending.len()));
        }
        for (load, verdict) in &self.decided {
            let expected = match verdict {
                BatchVerdict::Committed => load.events,
                BatchVerdict::Missed | BatchVerdict::Error => 0,
            };
            let stored = self.database.stored(load.log, load.id);
            if stored != expected {
                return Err(format!("{stored} events of {load:?}, {verdict:?}"));
            }
        }
        Ok(())
    }
}
