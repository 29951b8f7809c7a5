//! One log as the hub sees it: its ring, who is interested, and what is known to be missing.
//!
//! A lane is *awake* while anybody is subscribed. Asleep it keeps nothing and asks nothing.
//!
//! Invariants: only events that follow the ring's end without a gap enter it. What was committed behind a
//! gap waits in `pending` until the reader task (`reader`) has filled the gap from the database. The end
//! never moves back while subscribers hold positions of it: if the log itself is found to have moved back (a
//! fail-over that lost commits), the lane begins a new *generation* and subscribers of the old one end.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gesta_core::backend::Batch;
use gesta_core::{Error, ErrorKind, LogId, Position, SharedEvent};
use tokio::sync::{Notify, watch};

use crate::ring::{Ring, Taken, cost};

/// Events that follow `after` without a gap.
struct Segment {
    after: Position,
    end: Position,
    events: Vec<SharedEvent>,
    bytes: usize,
}

/// What the reader task shall do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Read what is behind `after`; up to `to` if that is known to be committed.
    Read {
        after: Position,
        to: Option<Position>,
    },
    /// Ask for the end of the log: something may have been missed.
    Check { end: Position },
}

/// A suspicion that the log holds more than the ring.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hint {
    None,
    More,
    Doubt,
}

struct State {
    ring: Ring,
    /// Number of subscribers.
    interested: usize,
    /// Kept in step with [`Lane::awake`].
    awake: bool,
    pending: VecDeque<Segment>,
    pending_events: usize,
    pending_bytes: usize,
    hint: Hint,
    /// Highest position that anybody has spoken of.
    heard: Position,
    generation: u64,
    /// Why the last generation ended.
    lost: Option<Error>,
    /// Subscribers must look, even if the end is where it was.
    alarm: bool,
}

/// One log.
pub(crate) struct Lane {
    pub(crate) log: LogId,
    state: Mutex<State>,
    awake: AtomicBool,
    events_max: usize,
    bytes_max: usize,
    /// Wakes the reader task.
    pub(crate) wake: Notify,
    /// Changes whenever there may be something new for subscribers.
    pub(crate) head: watch::Sender<Position>,
    /// Changes with the heads of all lanes.
    pub(crate) pulse: Arc<watch::Sender<u64>>,
    /// Last position that this process committed, to be told to the others.
    pub(crate) announced: watch::Sender<Position>,
}

impl Lane {
    pub(crate) fn new(
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

    /// A batch of this process is durable.
    pub(crate) fn committed(&self, batch: &Batch) {
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
            if !state.awake {
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
            let end = segment.end;
            let dropped = state.begin_generation(self.log, end);
            return dropped.into();
        }
        if state.pending.is_empty() && segment.after <= state.ring.end() {
            return state.ring.push(segment.events, segment.end);
        }
        state.pending_events += segment.events.len();
        state.pending_bytes += segment.bytes;
        state.pending.push_back(segment);
        if state.pending_events > self.events_max || state.pending_bytes > self.bytes_max {
            // Too much waits behind the gap: it will be read instead.
            state.hint = state.hint.max(Hint::More);
            return state.drop_pending();
        }
        Vec::new()
    }

    /// Another process says that it has committed up to `position`. A hint, never believed.
    pub(crate) fn heard(&self, position: Position) {
        {
            let mut state = self.lock();
            state.heard = state.heard.max(position);
            if !state.awake || position <= state.ring.end() {
                return;
            }
            state.hint = state.hint.max(Hint::More);
        }
        self.wake.notify_one();
    }

    /// Something may have been missed: look at the end of the log.
    pub(crate) fn doubt(&self) {
        {
            let mut state = self.lock();
            state.hint = Hint::Doubt;
            if !state.awake {
                return;
            }
        }
        self.wake.notify_one();
    }

    // ---- the reader task ----

    /// Takes in what has become contiguous, and says what is to be read.
    pub(crate) fn next_work(&self) -> Option<Work> {
        let mut dropped = Vec::new();
        let mut state = self.lock();
        if !state.awake {
            return None;
        }
        let end = loop {
            let end = state.ring.end();
            match state.pending.front() {
                Some(segment) if segment.after <= end => {
                    if let Some(segment) = state.pop_pending() {
                        dropped.extend(state.ring.push(segment.events, segment.end));
                    }
                }
                _ => break end,
            }
        };
        let gap_to = state.pending.front().map(|segment| segment.after);
        let work = match (gap_to, std::mem::replace(&mut state.hint, Hint::None)) {
            (Some(to), hint) => {
                state.hint = hint;
                Some(Work::Read {
                    after: end,
                    to: Some(to),
                })
            }
            (None, Hint::Doubt) => Some(Work::Check { end }),
            (None, Hint::More) => Some(Work::Read {
                after: end,
                to: None,
            }),
            (None, Hint::None) => None,
        };
        drop(state);
        drop(dropped);
        work
    }

    /// Events that were read behind `after` (the whole of what is there, up to `covered`).
    pub(crate) fn filled(&self, after: Position, covered: Position, events: Vec<SharedEvent>) {
        let dropped = {
            let mut state = self.lock();
            // If the ring was reset meanwhile, these events have no place in it.
            if !state.awake || after > state.ring.end() {
                return;
            }
            state.ring.push(events, covered)
        };
        drop(dropped);
    }

    /// There was more than one page, or the read failed: the same work is still to be done.
    pub(crate) fn unfinished(&self, work: &Work) {
        let mut state = self.lock();
        let hint = match work {
            // As long as the gap is there, it is known from what is pending behind it.
            Work::Read { to: Some(_), .. } => Hint::None,
            Work::Read { to: None, .. } => Hint::More,
            Work::Check { .. } => Hint::Doubt,
        };
        state.hint = state.hint.max(hint);
    }

    /// The end of the log, asked for when the ring ended at `asked_at`.
    pub(crate) fn checked(&self, asked_at: Position, end: Position) {
        let dropped = {
            let mut state = self.lock();
            if !state.awake {
                return;
            }
            if end < asked_at {
                state.begin_generation(self.log, end)
            } else {
                if end > state.ring.end() {
                    state.hint = state.hint.max(Hint::More);
                }
                VecDeque::new()
            }
        };
        drop(dropped);
    }

    /// Tells the subscribers, if there is something new since the last time.
    pub(crate) fn publish(&self) {
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
    pub(crate) fn alarm(&self) {
        self.head.send_modify(|_| ());
        self.pulse.send_modify(|beat| *beat = beat.wrapping_add(1));
    }

    pub(crate) fn is_awake(&self) -> bool {
        self.awake.load(Ordering::Acquire)
    }

    // ---- subscribers ----

    /// Someone subscribes. From now on nothing of this process is missed.
    pub(crate) fn interest(self: &Arc<Self>) -> Interest {
        self.lock().interested += 1;
        Interest {
            lane: Arc::clone(self),
        }
    }

    /// The log ended at `end`, as read from the primary after [`interest`](Self::interest) was taken.
    ///
    /// Returns the generation to read in.
    pub(crate) fn awaken(&self, end: Position) -> u64 {
        let generation = {
            let mut state = self.lock();
            if !state.awake {
                state.awake = true;
                self.awake.store(true, Ordering::Release);
                // Empty while asleep.
                drop(state.ring.reset(end));
                if state.heard > end {
                    state.hint = state.hint.max(Hint::More);
                }
            } else if end > state.ring.end() && state.pending.is_empty() {
                state.hint = state.hint.max(Hint::More);
            }
            state.generation
        };
        self.wake.notify_one();
        generation
    }

    /// The next events behind `position`, for a subscriber of this generation.
    ///
    /// # Errors
    /// `InvalidCheckpoint` if the log was found to have moved back.
    pub(crate) fn take(
        &self,
        generation: u64,
        position: Position,
        into: &mut VecDeque<SharedEvent>,
    ) -> Result<Taken, Error> {
        let state = self.lock();
        if state.generation != generation {
            return Err(state.lost.clone().unwrap_or_else(|| moved_back(self.log)));
        }
        Ok(state.ring.take(position, into))
    }

    /// Where the ring ends now.
    pub(crate) fn end(&self) -> Position {
        self.lock().ring.end()
    }

    /// True if nothing behind `position` must be read from the database.
    pub(crate) fn reaches(&self, position: Position) -> bool {
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
            let end = state.ring.end();
            (state.ring.reset(end), state.drop_pending())
        };
        drop(dropped);
    }
}

impl State {
    /// True if this committed segment cannot follow what the ring has seen: the log has lost its end.
    fn contradicts(&self, segment: &Segment) -> bool {
        segment.events.first().is_some_and(|first| {
            self.ring.covers(first.position)
                && self
                    .ring
                    .get(first.position)
                    .is_some_and(|seen| seen.id != first.id)
        })
    }

    fn begin_generation(&mut self, log: LogId, end: Position) -> VecDeque<SharedEvent> {
        tracing::error!(
            %log, seen = %self.ring.end(), end = %end,
            "the log has moved back: the database has lost commits"
        );
        self.generation += 1;
        self.lost = Some(moved_back(log));
        self.alarm = true;
        let mut dropped = self.ring.reset(end);
        dropped.extend(self.drop_pending());
        dropped
    }

    fn pop_pending(&mut self) -> Option<Segment> {
        let segment = self.pending.pop_front()?;
        self.pending_events -= segment.events.len();
        self.pending_bytes -= segment.bytes;
        Some(segment)
    }

    fn drop_pending(&mut self) -> Vec<SharedEvent> {
        self.pending_events = 0;
        self.pending_bytes = 0;
        std::mem::take(&mut self.pending)
            .into_iter()
            .flat_map(|segment| segment.events)
            .collect()
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
            after: batch.after.position,
            end,
            bytes: events.iter().map(cost).sum(),
            events,
        }
    }
}

fn moved_back(log: LogId) -> Error {
    ErrorKind::InvalidCheckpoint(format!(
        "log {log} has moved back behind what was delivered: the database has lost commits"
    ))
    .into()
}

/// Keeps a lane awake.
pub(crate) struct Interest {
    lane: Arc<Lane>,
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.lane.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{batch, event};

    fn lane(events_max: usize) -> Arc<Lane> {
        let pulse = Arc::new(watch::Sender::new(0));
        Arc::new(Lane::new(LogId(0), events_max, usize::MAX, pulse))
    }

    fn read(after: u64, to: Option<u64>) -> Option<Work> {
        Some(Work::Read {
            after: Position(after),
            to: to.map(Position),
        })
    }

    /// Goal: a commit between the look at the end and the awakening that follows it is not missed.
    #[test]
    fn a_commit_while_awakening_is_looked_for() {
        let lane = lane(100);
        let _interest = lane.interest();
        lane.committed(&batch(1..=2));
        lane.awaken(Position(0));
        assert_eq!(lane.next_work(), read(0, None));
        lane.filled(Position(0), Position(2), vec![event(1, "a"), event(2, "a")]);
        assert_eq!((lane.next_work(), lane.end()), (None, Position(2)));
    }

    #[test]
    fn asleep_it_keeps_and_asks_nothing() {
        let lane = lane(100);
        lane.committed(&batch(1..=2));
        lane.heard(Position(9));
        assert_eq!((lane.next_work(), lane.end()), (None, Position(0)));
        let interest = lane.interest();
        lane.awaken(Position(9));
        lane.committed(&batch(10..=10));
        assert_eq!((lane.next_work(), lane.end()), (None, Position(10)));
        drop(interest);
        lane.committed(&batch(11..=11));
        assert_eq!((lane.next_work(), lane.end()), (None, Position(10)));
    }

    #[test]
    fn what_is_behind_a_gap_waits_until_it_is_filled() {
        let lane = lane(100);
        let _interest = lane.interest();
        lane.awaken(Position(1));
        lane.committed(&batch(4..=5));
        lane.committed(&batch(6..=6));
        assert_eq!(lane.next_work(), read(1, Some(3)));
        assert_eq!(lane.end(), Position(1));
        lane.filled(Position(1), Position(2), vec![event(2, "a")]);
        assert_eq!(lane.next_work(), read(2, Some(3)));
        lane.filled(Position(2), Position(3), vec![event(3, "a")]);
        assert_eq!((lane.next_work(), lane.end()), (None, Position(6)));
    }

    #[test]
    fn too_much_behind_a_gap_is_read_instead() {
        let lane = lane(3);
        let _interest = lane.interest();
        lane.awaken(Position(0));
        lane.committed(&batch(2..=3));
        lane.committed(&batch(4..=5));
        assert_eq!(lane.next_work(), read(0, None));
    }

    /// Goal: a message is only a hint. One that is wrong costs a look and moves nothing.
    #[test]
    fn a_wrong_message_is_not_believed() {
        let lane = lane(100);
        let _interest = lane.interest();
        lane.awaken(Position(3));
        lane.heard(Position(2));
        assert_eq!(lane.next_work(), None);
        lane.heard(Position::MAX);
        assert_eq!(lane.next_work(), read(3, None));
        lane.filled(Position(3), Position(3), Vec::new());
        assert_eq!((lane.next_work(), lane.end()), (None, Position(3)));
    }

    #[test]
    fn a_log_that_moved_back_begins_a_new_generation() {
        let lane = lane(100);
        let _interest = lane.interest();
        let old = lane.awaken(Position(0));
        lane.committed(&batch(1..=5));
        lane.checked(Position(5), Position(5));
        let mut events = VecDeque::new();
        assert!(lane.take(old, Position(0), &mut events).is_ok());
        // Other events at positions that were seen already.
        lane.committed(&batch(4..=4));
        assert!(lane.take(old, Position(5), &mut events).is_err());
        let new = lane.awaken(Position(4));
        assert_eq!(lane.end(), Position(4));
        lane.checked(Position(4), Position(2));
        assert!(lane.take(new, Position(4), &mut events).is_err());
    }
}
