//! Followers: subscribers that must get every event of the run once, in order, through all faults.
//!
//! The writers make their appends one after the other, so in the one log of the store each writer's events stand in
//! the order of their numbers: a follower needs one number per writer to notice what is missing, doubled or late.

use std::sync::{Arc, Mutex};

use gesta_core::{Checkpoint, Position, RecordedEvent};

use super::board::Board;
use super::plan::Which;
use crate::faults::tails::Sink;

/// How far a follower is.
#[derive(Debug, Clone)]
struct Place {
    position: Position,
    /// Of each writer, the number of the event that comes next.
    next: Vec<u64>,
}

/// The farthest that a follower ever was.
#[derive(Debug)]
pub(super) struct Reached {
    /// The last position.
    pub(super) position: Position,
    /// Of each writer, the number of the event that comes next.
    pub(super) next: Vec<u64>,
}

/// One follower. When it is told to let go, it goes back to where it was the last time, and catches up.
pub(super) struct Follower {
    name: String,
    /// True if the time until delivery is measured here.
    is_live: bool,
    board: Arc<Board>,
    place: Place,
    earlier: (Option<Checkpoint>, Place),
    /// For others to look at.
    reached: Arc<Mutex<Reached>>,
}

impl Follower {
    /// A follower that begins at a place in the log.
    pub(super) fn new(name: &str, is_live: bool, board: &Arc<Board>, start: &Checkpoint) -> Self {
        let next = vec![0; board.writers()];
        let position = Position(0);
        let place = Place {
            position,
            next: next.clone(),
        };
        Self {
            name: name.to_owned(),
            is_live,
            board: Arc::clone(board),
            earlier: (Some(start.clone()), place.clone()),
            place,
            reached: Arc::new(Mutex::new(Reached { position, next })),
        }
    }

    /// How far it is.
    pub(super) fn reached(&self) -> Arc<Mutex<Reached>> {
        Arc::clone(&self.reached)
    }

    /// Compares an event with what was due; returns which it is if it is of this run.
    fn compare(&mut self, event: &RecordedEvent) -> Option<Which> {
        let place = &mut self.place;
        if event.position <= place.position {
            let before = place.position;
            self.board.finding(format!(
                "{}: position {} came after {before}",
                self.name, event.position
            ));
        }
        place.position = event.position;
        let which = self.board.plan.which(event.id)?;
        let next = place.next.get_mut(which.writer)?;
        if which.event != *next {
            self.board.finding(format!(
                "{}: event {} of writer {} came where {next} was due",
                self.name, which.event, which.writer
            ));
        }
        *next = which.event + 1;
        let per_append = self.board.plan.per_append;
        if self.is_live && *next % per_append == 0 {
            self.board.delivered(which.writer, which.event / per_append);
        }
        Some(which)
    }
}

impl Sink for Follower {
    fn received(&mut self, event: &RecordedEvent) {
        let of_the_run = self.compare(event);
        let mut reached = self.reached.lock().expect("no panic under the lock");
        reached.position = reached.position.max(event.position);
        if let Some(which) = of_the_run {
            let next = &mut reached.next[which.writer];
            *next = (which.event + 1).max(*next);
        }
    }

    fn broken(&mut self, error: &gesta_core::Error) {
        self.board.error("subscription", error.kind());
    }

    fn wrong(&mut self, text: String) {
        self.board.finding(text);
    }

    fn let_go(&mut self, at: Option<Checkpoint>) -> Option<Checkpoint> {
        let here = (at, self.place.clone());
        let (back, place) = std::mem::replace(&mut self.earlier, here);
        self.place = place;
        back
    }
}
