//! The pure part of the tail hub of a process: the lane of the log, its reader, and one subscriber to all events.

use std::collections::VecDeque;
use std::sync::Arc;

use gesta_core::backend::{Batch, LogEnd, Rows};
use gesta_core::{EventId, LogId, Position, SharedEvent};
use gesta_tail::lane::{Interest, Lane, Task, Work};
use gesta_tail::ring::Taken;
use tokio::sync::watch;

use crate::database::Database;

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

/// What a read has found.
#[derive(Debug)]
enum Found {
    Rows(Rows),
    End(LogEnd),
}

/// A subscriber that began before the first event.
#[derive(Debug)]
struct Subscriber {
    _interest: Interest,
    generation: u64,
    position: Position,
    /// Positions and ids of the events that the subscriber was given.
    events: Vec<(Position, EventId)>,
}

/// The tail hub of a process.
pub struct Hub {
    lane: Arc<Lane>,
    subscriber: Option<Subscriber>,
    /// Interest of a subscriber that begins. It is kept from before the end of the log is asked for until the
    /// subscriber has begun.
    interest: Option<Interest>,
    /// Reads under way. A read that is executed has an answer, with the number of its history.
    reads: VecDeque<(Read, Option<(Found, u64)>)>,
    is_lane_reading: bool,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub")
            .field("subscriber", &self.subscriber)
            .field("reads", &self.reads)
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
            interest: None,
            reads: VecDeque::new(),
            is_lane_reading: false,
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

    /// Lets the hub look for rows that it may have missed, as it does once in a while.
    pub fn poll(&self) {
        self.lane.doubt();
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
                    self.subscriber = Some(Subscriber {
                        _interest: interest,
                        generation,
                        position: Position::START,
                        events: Vec::new(),
                    });
                }
            }
            (Read::Page(after, ring), Found::Rows(rows)) => {
                let Some(subscriber) = &mut self.subscriber else {
                    return;
                };
                if self.lane.check(subscriber.generation).is_err() || subscriber.position != after {
                    return;
                }
                for event in &rows.events {
                    subscriber.events.push((event.position, event.id));
                }
                let last = rows.events.last().map(|event| event.position);
                subscriber.position = match (rows.complete, last) {
                    (true, _) => ring,
                    (false, Some(last)) => last,
                    (false, None) => after,
                };
            }
            _ => {}
        }
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
        match self
            .lane
            .take(subscriber.generation, subscriber.position, &mut events)
        {
            // It ends with an error; its caller begins anew.
            Err(_) => {
                self.subscriber = None;
                true
            }
            Ok(Taken::Nothing) => has_worked,
            Ok(Taken::Events(covered)) => {
                let given = events.iter().map(|event| (event.position, event.id));
                subscriber.events.extend(given);
                subscriber.position = covered;
                true
            }
            Ok(Taken::BeforeRing(ring)) => {
                let page = Read::Page(subscriber.position, ring);
                self.reads.push_back((page, None));
                true
            }
        }
    }

    /// Checks what the subscriber was given against the log. If `is_at_peace`, the subscriber must have been given all
    /// of it.
    ///
    /// # Errors
    /// The event that is missing, doubled or of another history.
    pub fn check(&self, database: &Database, is_at_peace: bool) -> Result<(), String> {
        let Some(subscriber) = &self.subscriber else {
            return Ok(());
        };
        let events = &subscriber.events;
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
