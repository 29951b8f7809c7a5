//! One log as the hub sees it: its ring, its subscribers, and what is known to be missing.
//!
//! A lane is *awake* while anybody is subscribed. A lane that is not awake keeps no events and reads nothing.
//!
//! Invariants: only events that follow the ring's end without a gap enter it. What was committed after a gap waits in
//! `pending` until the reader task (`reader`) has filled the gap from the database. The end never moves back while
//! subscribers hold positions of it: if the log is found to be another one than was seen (a fail-over that lost
//! commits), the lane begins a new *generation*: all that it holds is forgotten, and subscribers of the old one end.
//! That is found by the number of the backend's history, which every call brings along, or by rows that do not follow
//! each other. Positions alone prove nothing, because they are used again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gesta_core::backend::{Batch, LogEnd, Rows, WriterEpoch};
use gesta_core::{Error, ErrorKind, KnownEnd, LogId, Position, SharedEvent, Timestamp};
use tokio::sync::{Notify, watch};

use crate::ring::{Ring, Taken};

/// What is known of the last row that the ring covers. What is unknown is not compared.
#[derive(Clone, Copy, Default)]
struct LastRow {
    writer: Option<WriterEpoch>,
    created: Option<Timestamp>,
}

impl LastRow {
    fn of(end: &LogEnd) -> Self {
        let known = end.position > Position::START;
        Self {
            writer: known.then_some(end.writer),
            created: known.then_some(end.created),
        }
    }

    /// Returns false if this row and the other one, of the same position, cannot be the same row.
    fn may_be(&self, other: &LogEnd) -> bool {
        self.writer.is_none_or(|writer| writer == other.writer)
            && self.created.is_none_or(|created| created == other.created)
    }
}

/// Events that follow the row `after` without a gap.
struct Segment {
    after: LogEnd,
    end: Position,
    events: Vec<SharedEvent>,
    bytes: usize,
}

/// Next work of the reader task, and the generation to which it belongs.
#[derive(Debug, PartialEq, Eq)]
pub struct Work {
    /// Generation of the lane for which the work is.
    pub generation: u64,
    /// What is to be done.
    pub task: Task,
}

/// What the reader task is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Task {
    /// The task reads the events after `after`, up to `to` if that is known to be committed.
    Read {
        /// Position after which events are to be read.
        after: Position,
        /// Position up to which events are to be read, if it is known to be committed.
        to: Option<Position>,
    },
    /// The task reads the end of the log, because something may have been missed, or because the ring has no place yet.
    Check {
        /// Position at which the ring ended when this was asked for.
        end: Position,
    },
}

/// A suspicion that the log holds more than the ring.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hint {
    None,
    /// Something has named the position [`State::heard`]. It may come into the ring before it is asked for.
    Named,
    More,
    Doubt,
}

struct State {
    ring: Ring,
    /// Number of subscribers of the log.
    interested: usize,
    /// The same value as [`Lane::awake`].
    awake: bool,
    pending: VecDeque<Segment>,
    pending_events: usize,
    pending_bytes: usize,
    hint: Hint,
    /// Highest position that a commit or a message has named since the last read without an end began.
    heard: Position,
    generation: u64,
    /// Number of the backend's history to which the generation belongs.
    history: u64,
    /// False from the beginning of a generation until the end of the log is known again.
    placed: bool,
    last_row: LastRow,
    /// Where reads of this process have found the log to end, whether anybody is subscribed or not.
    read_end: KnownEnd,
    /// Error that tells why the last generation ended.
    lost: Option<Error>,
    /// True if subscribers must be woken even if the end has not moved.
    alarm: bool,
}

/// What the hub knows of one log.
pub struct Lane {
    /// Number of the log.
    pub log: LogId,
    state: Mutex<State>,
    awake: AtomicBool,
    events_max: usize,
    bytes_max: usize,
    /// Wakes the reader task when there may be work.
    pub wake: Notify,
    /// Position at which the ring ended when subscribers were last woken. It changes whenever there may be something
    /// new for them.
    pub head: watch::Sender<Position>,
    /// Number that changes whenever the head of any lane does. All lanes share it.
    pub pulse: Arc<watch::Sender<u64>>,
    /// Last position that this process has committed. The announcer tells it to the other processes.
    pub announced: watch::Sender<Position>,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane")
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

impl Lane {
    /// Makes a lane that is not awake. Its ring keeps at most `events_max` events and `bytes_max` bytes. `pulse`
    /// changes with the heads of all lanes.
    pub fn new(
        log: LogId,
        events_max: usize,
        bytes_max: usize,
        pulse: Arc<watch::Sender<u64>>,
    ) -> Self {
        Self {
            log,
            state: Mutex::new(State {
                ring: Ring::new(events_max, bytes_max),
                interested: 0,
                awake: false,
                pending: VecDeque::new(),
                pending_events: 0,
                pending_bytes: 0,
                hint: Hint::None,
                heard: Position::START,
                generation: 0,
                history: 0,
                placed: false,
                last_row: LastRow::default(),
                read_end: KnownEnd::NOTHING,
                lost: None,
                alarm: false,
            }),
            awake: AtomicBool::new(false),
            events_max,
            bytes_max,
            wake: Notify::new(),
            head: watch::Sender::new(Position::START),
            pulse,
            announced: watch::Sender::new(Position::START),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- what comes in ----

    /// Takes the number of the backend's history. If it differs from the one before, a new generation begins.
    pub fn keep_up(&self, history: u64) {
        let dropped = {
            let mut state = self.lock();
            if history <= state.history {
                return;
            }
            state.enter(self.log, history)
        };
        drop(dropped);
        self.wake.notify_one();
    }

    /// Takes a durable batch of this process.
    pub fn committed(&self, history: u64, batch: &Batch) {
        self.keep_up(history);
        let Some(last) = batch.rows.last() else {
            return;
        };
        let end = last.position;
        self.announced.send_replace(end);
        // Made outside the lock, and only if anybody wants it.
        let segment = self
            .awake
            .load(Ordering::Acquire)
            .then(|| Segment::of(self.log, batch, end));
        let dropped = {
            let mut state = self.lock();
            state.heard = state.heard.max(end);
            if !state.awake || !state.placed {
                return;
            }
            match segment {
                Some(segment) => self.receive(&mut state, segment),
                None => {
                    state.hint = state.hint.max(Hint::More);
                    Vec::new()
                }
            }
        };
        drop(dropped);
        self.wake.notify_one();
    }

    fn receive(&self, state: &mut State, segment: Segment) -> Vec<SharedEvent> {
        if state.contradicts(&segment) {
            return state.begin_generation(self.log);
        }
        if state.pending.is_empty() && segment.after.position <= state.ring.end() {
            return state.push(segment);
        }
        state.pending_events += segment.events.len();
        state.pending_bytes += segment.bytes;
        state.pending.push_back(segment);
        if state.pending_events > self.events_max || state.pending_bytes > self.bytes_max {
            // Too much waits after the gap: it will be read instead.
            state.hint = state.hint.max(Hint::More);
            return state.drop_pending();
        }
        Vec::new()
    }

    /// Takes a message of another process, that it has committed up to `position`. The message is a hint and never
    /// believed.
    pub fn heard(&self, position: Position) {
        {
            let mut state = self.lock();
            state.heard = state.heard.max(position);
            if !state.awake || !state.placed || position <= state.ring.end() {
                return;
            }
            state.hint = state.hint.max(Hint::Named);
        }
        self.wake.notify_one();
    }

    /// Lets the reader task read the end of the log, because something may have been missed. A subscriber that comes
    /// later reads the end itself.
    pub fn doubt(&self) {
        {
            let mut state = self.lock();
            if state.interested == 0 {
                return;
            }
            state.hint = Hint::Doubt;
            if !state.awake {
                return;
            }
        }
        self.wake.notify_one();
    }

    // ---- the reader task ----

    /// Moves pending events that now follow the ring's end into the ring, and says what is to be read.
    pub fn next_work(&self) -> Option<Work> {
        let mut dropped = Vec::new();
        let mut state = self.lock();
        if !state.awake {
            return None;
        }
        let end = loop {
            let end = state.ring.end();
            match state.pending.front() {
                Some(segment) if segment.after.position <= end => {
                    if state.contradicts(segment) {
                        dropped.extend(state.begin_generation(self.log));
                    } else if let Some(segment) = state.pop_pending() {
                        dropped.extend(state.push(segment));
                    }
                }
                _ => break state.ring.end(),
            }
        };
        let gap_to = state.pending.front().map(|segment| segment.after.position);
        let task = match (gap_to, std::mem::replace(&mut state.hint, Hint::None)) {
            (Some(to), hint) => {
                state.hint = hint;
                Some(Task::Read {
                    after: end,
                    to: Some(to),
                })
            }
            (None, Hint::Doubt) => Some(Task::Check { end }),
            (None, _) if !state.placed => Some(Task::Check { end }),
            // A read that was under way when the message came has brought what it names.
            (None, Hint::Named) if state.heard <= end => None,
            (None, Hint::More | Hint::Named) => {
                // What was named until now, the read finds, or it is not there and must not be believed any longer.
                state.heard = Position::START;
                Some(Task::Read {
                    after: end,
                    to: None,
                })
            }
            (None, Hint::None) => None,
        };
        let generation = state.generation;
        drop(state);
        drop(dropped);
        task.map(|task| Work { generation, task })
    }

    /// Takes the rows that were read after `after`. They are all that there are up to `to`, if the rows are complete.
    pub fn filled(&self, generation: u64, after: Position, to: Option<Position>, rows: Rows) {
        let last = rows.events.last();
        let last_row = LastRow {
            writer: rows.last_writer,
            created: last.map(|event| event.created),
        };
        let last = last.map_or(after, |event| event.position);
        let events: Vec<SharedEvent> = rows.events.into_iter().map(Arc::new).collect();
        let dropped = {
            let mut state = self.lock();
            // If the ring was reset meanwhile, these events have no place in it.
            if !state.awake || generation != state.generation || after > state.ring.end() {
                return;
            }
            let mut dropped = Vec::new();
            if to.is_some_and(|to| rows.complete && last < to) {
                // The row before the gap's end is gone: scavenged, or of a history that was lost. What is pending after
                // it is read instead.
                dropped.extend(state.drop_pending());
                state.hint = Hint::Doubt;
            }
            // An end that is only a hint is not believed: the last event that was seen is.
            let grown = last > state.ring.end();
            dropped.extend(state.ring.push(events, last));
            if grown {
                state.last_row = last_row;
            }
            dropped
        };
        drop(dropped);
    }

    /// Notes that the same work is still to be done: there was more than one page, or the read has failed.
    pub fn unfinished(&self, work: &Work) {
        let mut state = self.lock();
        if work.generation != state.generation {
            return;
        }
        let hint = match work.task {
            // As long as the gap is there, it is known from what is pending after it.
            Task::Read { to: Some(_), .. } => Hint::None,
            Task::Read { to: None, .. } => Hint::More,
            Task::Check { .. } => Hint::Doubt,
        };
        state.hint = state.hint.max(hint);
    }

    /// Returns the generation of the ring and its end, if somebody is subscribed and the ring has a place in the log.
    pub fn place(&self) -> Option<(u64, Position)> {
        let state = self.lock();
        let is_placed = state.awake && state.placed;
        is_placed.then(|| (state.generation, state.ring.end()))
    }

    /// Takes the end of the log, which was asked for when the ring ended at `asked_at`.
    pub fn checked(&self, generation: u64, asked_at: Position, end: &LogEnd) {
        let dropped = {
            let mut state = self.lock();
            if !state.awake || generation != state.generation {
                return;
            }
            let at = state.ring.end();
            if !state.placed {
                state.place(end)
            } else if end.position < asked_at || end.position == at && !state.last_row.may_be(end) {
                state.begin_generation(self.log)
            } else {
                if end.position > at {
                    state.hint = state.hint.max(Hint::More);
                }
                Vec::new()
            }
        };
        drop(dropped);
    }

    /// Notes that a read has found the log to reach up to this position.
    pub fn note_end(&self, end: KnownEnd) {
        let known = &mut self.lock().read_end;
        let before = known.within(end.incarnation);
        *known = KnownEnd {
            position: end.position.max(before),
            ..end
        };
    }

    /// Returns the last position up to which reads have found the log to reach, in the history to which it belongs.
    pub fn read_end(&self) -> KnownEnd {
        self.lock().read_end
    }

    /// Wakes the subscribers if there is something new since the last time.
    pub fn publish(&self) {
        let (end, alarm) = {
            let mut state = self.lock();
            (state.ring.end(), std::mem::take(&mut state.alarm))
        };
        let changed = self.head.send_if_modified(|head| {
            let changed = alarm || *head != end;
            *head = end;
            changed
        });
        if changed {
            self.pulse.send_modify(|beat| *beat = beat.wrapping_add(1));
        }
    }

    /// Wakes every subscriber.
    pub fn alarm(&self) {
        self.head.send_modify(|_| ());
        self.pulse.send_modify(|beat| *beat = beat.wrapping_add(1));
    }

    // ---- subscribers ----

    /// Counts a new subscriber. From now on no commit of this process is missed.
    pub fn interest(self: &Arc<Self>) -> Interest {
        self.lock().interested += 1;
        Interest {
            lane: Arc::clone(self),
        }
    }

    /// Takes the end of the log, as read from the primary in this history after [`interest`](Self::interest) was taken.
    ///
    /// Returns the generation in which the subscriber reads; `None` if the history has changed since.
    pub fn awaken(&self, history: u64, end: &LogEnd) -> Option<u64> {
        self.keep_up(history);
        let generation = {
            let mut state = self.lock();
            if history != state.history {
                return None;
            }
            if !state.awake || !state.placed {
                state.awake = true;
                self.awake.store(true, Ordering::Release);
                // Empty while asleep, or without a place.
                drop(state.place(end));
            } else if end.position > state.ring.end() {
                state.hint = state.hint.max(Hint::More);
            }
            state.generation
        };
        self.wake.notify_one();
        Some(generation)
    }

    /// Checks that this generation is the present one.
    ///
    /// # Errors
    /// `InvalidCheckpoint` if the generation has ended.
    pub fn check(&self, generation: u64) -> Result<(), Error> {
        self.lock().check(self.log, generation)
    }

    /// Takes the next events after `position`, for a subscriber of this generation, and adds them to `into`.
    ///
    /// # Errors
    /// `InvalidCheckpoint` if the generation has ended, because the log was found to be another one.
    pub fn take(
        &self,
        generation: u64,
        position: Position,
        into: &mut VecDeque<SharedEvent>,
    ) -> Result<Taken, Error> {
        let state = self.lock();
        state.check(self.log, generation)?;
        Ok(state.ring.take(position, into))
    }

    /// Returns the position at which the ring ends now.
    pub fn end(&self) -> Position {
        self.lock().ring.end()
    }

    /// Returns true if no event after `position` must be read from the database.
    pub fn reaches(&self, position: Position) -> bool {
        self.lock().ring.reaches(position)
    }

    fn leave(&self) {
        let dropped = {
            let mut state = self.lock();
            state.interested = state.interested.saturating_sub(1);
            if state.interested > 0 {
                return;
            }
            state.awake = false;
            self.awake.store(false, Ordering::Release);
            state.hint = Hint::None;
            state.placed = false;
            state.last_row = LastRow::default();
            let end = state.ring.end();
            (state.ring.reset(end), state.drop_pending())
        };
        drop(dropped);
    }
}

impl Segment {
    fn of(log: LogId, batch: &Batch, end: Position) -> Self {
        let events: Vec<SharedEvent> = batch
            .rows
            .iter()
            .map(|row| Arc::new(row.to_recorded(log)))
            .collect();
        Self {
            after: batch.after,
            end,
            bytes: events.iter().map(|event| event.cost_bytes()).sum(),
            events,
        }
    }
}

fn moved_back(log: LogId) -> Error {
    ErrorKind::InvalidCheckpoint(format!(
        "log {log} is not the one that was delivered any more: the database has lost commits, or another incarnation has begun"
    ))
    .into()
}

/// The interest of one subscriber in a lane. It keeps the lane awake until it is dropped.
#[derive(Debug)]
pub struct Interest {
    lane: Arc<Lane>,
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.lane.leave();
    }
}

mod state;
#[cfg(test)]
mod tests;
