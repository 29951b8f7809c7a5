//! The pure part of the tail hub of a process: the lane of the log, its reader, and one subscriber to all events.
//!
//! A subscriber keeps what it was given when its subscription ends, because its process has died or because it goes to
//! another one, and resumes after it with a checkpoint. Only if the checkpoint is of another history, it begins anew.

use std::collections::VecDeque;
use std::sync::Arc;

use gesta_core::backend::{Batch, LogEnd, Rows};
use gesta_core::{Checkpoint, EventId, LogId, Position, SharedEvent};
use gesta_tail::core::{Interest, Lane, Taken, Task, Work};
use tokio::sync::watch;

use crate::worlds::pipeline::database::{Database, incarnation};

/// Most events that the ring holds. They are few, so that positions of subscribers often lie before it.
const RING_EVENTS_MAX: usize = 6;
const RING_BYTES_MAX: usize = usize::MAX;
/// Most events that a page holds.
const PAGE_EVENTS_MAX: usize = 3;

/// A read that the hub has begun.
#[derive(Debug)]
enum Read {
    /// The read that the lane has asked for.
    Lane(Work),
    /// The read of a page for the subscriber: the events after the first position, up to the second, where the ring
    /// begins.
    Page(Position, Position),
    /// The read of the end of the log, for a subscriber that begins.
    Begin,
}

/// A look at the end of the log that the hub has begun by itself. Reads do not wait for it.
#[derive(Debug)]
struct Look {
    /// Generation and end of the ring when the look began.
    place: (u64, Position),
    /// What was found, with the number of its history. `None` until the look is executed.
    found: Option<(LogEnd, u64)>,
}

/// What a read has found.
#[derive(Debug)]
enum Found {
    Rows(Rows),
    End(LogEnd),
}

/// How far a subscriber has come that began before the first event.
#[derive(Debug, Default)]
pub struct Progress {
    /// Number of the history in which it was given the events.
    history: u64,
    position: Position,
    /// Positions and ids of the events that the subscriber was given.
    events: Vec<(Position, EventId)>,
}

impl Progress {
    /// Returns how far it had come if its checkpoint is accepted by a store with this history and this end of the log;
    /// else it begins anew.
    ///
    /// # Errors
    /// The checkpoint that is refused although it is good.
    fn resumed(self, history: u64, end: Position) -> Result<Self, String> {
        let checkpoint = Checkpoint::in_log(incarnation(self.history), 1, LogId(0), self.position);
        let is_known = self.position == Position::START || self.history == history;
        let positions = checkpoint.positions_for(incarnation(history), 1);
        let is_taken = positions.is_ok_and(|positions| positions[0] <= end);
        match (is_known, is_taken) {
            (true, false) if self.position > Position::START => Err(format!(
                "{checkpoint:?} is refused at {end} of history {history}"
            )),
            (_, true) => Ok(self),
            (_, false) => Ok(Self::default()),
        }
    }
}

#[derive(Debug)]
struct Subscriber {
    _interest: Interest,
    generation: u64,
    progress: Progress,
}

/// The tail hub of a process.
pub struct Hub {
    lane: Arc<Lane>,
    subscriber: Option<Subscriber>,
    /// How far the subscriber that begins next has come.
    resumes: Progress,
    /// Number of times that a subscriber has resumed behind the first event, and has begun anew.
    pub resumed: (u32, u32),
    /// Checkpoint that was refused although it was good.
    violation: Option<String>,
    /// Number of the history of the last subscriber that ended because the log was found to be another one.
    ended_in: Option<u64>,
    /// Interest of a subscriber that begins. It is kept from before the end of the log is asked for until the
    /// subscriber has begun.
    interest: Option<Interest>,
    /// Reads under way. A read that is executed has an answer, with the number of its history.
    reads: VecDeque<(Read, Option<(Found, u64)>)>,
    is_lane_reading: bool,
    /// Look under way. There is one at most.
    look: Option<Look>,
    /// Number of looks that found the log to end before what the ring held when they were answered.
    pub overtaken_looks: u32,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub")
            .field("subscriber", &self.subscriber)
            .field("reads", &self.reads)
            .field("look", &self.look)
            .finish_non_exhaustive()
    }
}

impl Default for Hub {
    fn default() -> Self {
        let pulse = Arc::new(watch::Sender::new(0));
        let lane = Lane::new(LogId(0), RING_EVENTS_MAX, RING_BYTES_MAX, pulse);
        Self {
            lane: Arc::new(lane),
            subscriber: None,
            resumes: Progress::default(),
            resumed: (0, 0),
            violation: None,
            ended_in: None,
            interest: None,
            reads: VecDeque::new(),
            is_lane_reading: false,
            look: None,
            overtaken_looks: 0,
        }
    }
}

impl Hub {
    /// Tells the hub of a history that the process knows.
    pub fn keep_up(&self, history: u64) {
        self.lane.keep_up(history);
    }

    /// Tells the hub of a batch that the process has committed.
    pub fn committed(&self, history: u64, batch: &Batch) {
        self.lane.committed(history, batch);
    }

    /// Lets the hub read the end of the log, which may hold more rows than it was told of.
    pub fn read_log_end(&self) {
        self.lane.doubt();
    }

    /// Tells the hub of a position that another process has announced.
    pub fn heard(&self, position: Position) {
        self.lane.heard(position);
    }

    /// Lets the hub begin a look for rows that it may have missed, as it does once in a while. It has one look under
    /// way at most, and none while the ring has no place in the log.
    pub fn poll(&mut self) {
        if self.look.is_none() {
            let place = self.lane.place();
            self.look = place.map(|place| Look { place, found: None });
        }
    }

    /// Returns true if a look is under way.
    #[must_use]
    pub fn is_looking(&self) -> bool {
        self.look.is_some()
    }

    /// Lets the look go on: it is executed, or its answer arrives, which may be older than what has been committed
    /// since. Returns the history of an answer that has arrived.
    pub fn go_on_looking(&mut self, database: &Database) -> Option<u64> {
        let look = self.look.as_mut()?;
        let Some((end, history)) = look.found.take() else {
            look.found = Some((database.end(), database.history()));
            return None;
        };
        let (generation, asked_at) = look.place;
        self.look = None;
        self.lane.keep_up(history);
        self.overtaken_looks += u32::from(end.position < self.lane.end());
        self.lane.checked(generation, asked_at, &end);
        Some(history)
    }

    /// Ends the subscription, and returns how far it has come.
    pub fn end_subscription(&mut self) -> Progress {
        // A subscriber that begins asks for the end of the log by itself.
        self.reads.retain(|(read, _)| matches!(read, Read::Lane(_)));
        self.interest = None;
        match self.subscriber.take() {
            Some(subscriber) => subscriber.progress,
            None => std::mem::take(&mut self.resumes),
        }
    }

    /// Lets the subscriber that begins next resume. There must be no other one.
    pub fn resume(&mut self, progress: Progress) {
        self.resumes = progress;
    }

    /// Returns true if the hub waits for a read.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Lets the oldest read go on: it is executed, or its answer arrives. Returns the history of an answer that has
    /// arrived.
    pub fn go_on(&mut self, database: &Database) -> Option<u64> {
        let (read, answer) = self.reads.pop_front()?;
        let Some((found, history)) = answer else {
            let found = execute(&read, database);
            self.reads
                .push_front((read, Some((found, database.history()))));
            return None;
        };
        self.lane.keep_up(history);
        self.arrive(read, found, history);
        Some(history)
    }

    fn arrive(&mut self, read: Read, found: Found, history: u64) {
        match (read, found) {
            (Read::Lane(work), Found::End(end)) => {
                self.is_lane_reading = false;
                if let Task::Check { end: asked_at } = work.task {
                    self.lane.checked(work.generation, asked_at, &end);
                }
            }
            (Read::Lane(work), Found::Rows(rows)) => {
                self.is_lane_reading = false;
                if let Task::Read { after, to } = work.task {
                    let is_complete = rows.complete;
                    self.lane.filled(work.generation, after, to, rows);
                    if !is_complete {
                        self.lane.unfinished(&work);
                    }
                }
            }
            (Read::Begin, Found::End(end)) => {
                let generation = self.lane.awaken(history, &end);
                if let (Some(generation), Some(interest)) = (generation, self.interest.take()) {
                    self.begin(interest, generation, history, &end);
                }
            }
            (Read::Page(after, ring), Found::Rows(rows)) => {
                let Some(subscriber) = &mut self.subscriber else {
                    return;
                };
                let progress = &mut subscriber.progress;
                if self.lane.check(subscriber.generation).is_err() || progress.position != after {
                    return;
                }
                for event in &rows.events {
                    progress.events.push((event.position, event.id));
                }
                let last = rows.events.last().map(|event| event.position);
                progress.position = match (rows.complete, last) {
                    (true, _) => ring,
                    (false, Some(last)) => last,
                    (false, None) => after,
                };
            }
            _ => {}
        }
    }

    fn begin(&mut self, interest: Interest, generation: u64, history: u64, end: &LogEnd) {
        let former = std::mem::take(&mut self.resumes);
        let had_begun = former.position > Position::START;
        let progress = former.resumed(history, end.position);
        let mut progress = progress.unwrap_or_else(|violation| {
            self.violation = Some(violation);
            Progress::default()
        });
        match progress.position > Position::START {
            true => self.resumed.0 += 1,
            false => self.resumed.1 += u32::from(had_begun),
        }
        progress.history = history;
        self.subscriber = Some(Subscriber {
            _interest: interest,
            generation,
            progress,
        });
    }

    /// Lets the reader and the subscriber do what they can without waiting. Returns true if they have done something.
    pub fn work(&mut self, history: u64) -> bool {
        self.lane.keep_up(history);
        let mut has_worked = false;
        if !self.is_lane_reading
            && let Some(work) = self.lane.next_work()
        {
            self.is_lane_reading = true;
            self.reads.push_back((Read::Lane(work), None));
            has_worked = true;
        }
        let is_beginning = self.interest.is_some();
        let Some(subscriber) = &mut self.subscriber else {
            if !is_beginning {
                self.interest = Some(self.lane.interest());
                self.reads.push_back((Read::Begin, None));
            } else if !self
                .reads
                .iter()
                .any(|(read, _)| matches!(read, Read::Begin))
            {
                // The history changed while it began.
                self.reads.push_back((Read::Begin, None));
            }
            return true;
        };
        let is_reading_page = self
            .reads
            .iter()
            .any(|(read, _)| matches!(read, Read::Page(..)));
        if is_reading_page {
            return has_worked;
        }
        let mut events: VecDeque<SharedEvent> = VecDeque::new();
        let progress = &mut subscriber.progress;
        match self
            .lane
            .take(subscriber.generation, progress.position, &mut events)
        {
            // It ends with an error; its caller tries to resume.
            Err(_) => {
                self.ended_in = Some(progress.history);
                self.resumes = std::mem::take(progress);
                self.subscriber = None;
                true
            }
            Ok(Taken::Nothing) => has_worked,
            Ok(Taken::Events(covered)) => {
                let given = events.iter().map(|event| (event.position, event.id));
                progress.events.extend(given);
                progress.position = covered;
                true
            }
            Ok(Taken::BeforeRing(ring)) => {
                let page = Read::Page(progress.position, ring);
                self.reads.push_back((page, None));
                true
            }
        }
    }

    /// Checks what the subscriber was given against the log, and that none has ended while no commit was lost. If
    /// `is_at_peace`, the subscriber must have been given all of the log.
    ///
    /// # Errors
    /// The event that is missing, doubled or of another history; the subscriber that has ended.
    pub fn check(&self, database: &Database, is_at_peace: bool) -> Result<(), String> {
        if let Some(violation) = &self.violation {
            return Err(violation.clone());
        }
        let history = database.history();
        if self.ended_in == Some(history) {
            return Err(format!(
                "a subscriber has ended in history {history}, which is the present one"
            ));
        }
        let Some(subscriber) = &self.subscriber else {
            return Ok(());
        };
        let events = &subscriber.progress.events;
        if let Some(pair) = events.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Err(format!(
                "a subscriber was given {:?} and then {:?}",
                pair[0], pair[1]
            ));
        }
        if !is_at_peace {
            return Ok(());
        }
        let rows = database.rows();
        let mut given = events.iter().peekable();
        for stored in &rows {
            let row = (stored.row.position, stored.row.id);
            match given.peek() {
                Some(event) if **event == row => {
                    given.next();
                }
                // Scavenged before it was read.
                _ if stored.is_removed => {}
                other => {
                    return Err(format!(
                        "a subscriber was given {other:?} where {row:?} is next"
                    ));
                }
            }
        }
        match given.next() {
            Some(event) => Err(format!(
                "a subscriber was given {event:?}, which is not there"
            )),
            None => Ok(()),
        }
    }
}

fn execute(read: &Read, database: &Database) -> Found {
    match read {
        Read::Begin => Found::End(database.end()),
        Read::Lane(work) => match work.task {
            Task::Check { .. } => Found::End(database.end()),
            Task::Read { after, to } => {
                Found::Rows(database.page(after, to.unwrap_or(Position::MAX), PAGE_EVENTS_MAX))
            }
        },
        Read::Page(after, ring) => Found::Rows(database.page(*after, *ring, PAGE_EVENTS_MAX)),
    }
}
