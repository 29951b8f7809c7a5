//! Followers: subscribers that must get every event of the run once, in order, through all faults.
//!
//! The writers make their appends one after the other, so in the one log of the store each writer's events stand in
//! the order of their numbers: a follower needs one number per writer to notice what is missing, doubled or late.

use std::sync::{Arc, Mutex};

use gesta_core::{Checkpoint, Position, RecordedEvent};

use super::state::SteadyState;
use crate::load::appends::tails::Sink;

/// How far a follower is: the last position, and of each writer the number of the event that comes next.
#[derive(Debug, Clone)]
pub(super) struct FollowerPlace {
    pub(super) position: Position,
    pub(super) next: Vec<u64>,
}

/// One follower. When it is told to let go, it goes back to where it was the last time, and catches up.
pub(super) struct Follower {
    name: String,
    /// True if the time until delivery is measured here.
    is_live: bool,
    state: Arc<SteadyState>,
    place: FollowerPlace,
    earlier: (Option<Checkpoint>, FollowerPlace),
    /// The farthest that it ever was.
    reached: Arc<Mutex<FollowerPlace>>,
}

impl Follower {
    /// A follower that begins at a place in the log.
    pub(super) fn new(
        name: &str,
        is_live: bool,
        state: &Arc<SteadyState>,
        start: &Checkpoint,
    ) -> Self {
        let place = FollowerPlace {
            position: Position(0),
            next: vec![0; state.writers()],
        };
        Self {
            name: name.to_owned(),
            is_live,
            state: Arc::clone(state),
            earlier: (Some(start.clone()), place.clone()),
            reached: Arc::new(Mutex::new(place.clone())),
            place,
        }
    }

    /// How far it is, for others to look at.
    pub(super) fn reached(&self) -> Arc<Mutex<FollowerPlace>> {
        Arc::clone(&self.reached)
    }

    /// Compares an event with what was due.
    fn compare(&mut self, event: &RecordedEvent) -> Option<()> {
        let (state, name, place) = (&self.state, &self.name, &mut self.place);
        let (position, before) = (event.position, place.position);
        if position <= before {
            state
                .findings
                .add(format!("{name}: position {position} came after {before}"));
        }
        place.position = position;
        let (writer, number) = state.plan.which(event.id)?;
        let next = place.next.get_mut(writer as usize)?;
        if number != *next {
            state.findings.add(format!(
                "{name}: event {number} of writer {writer} came where {next} was due"
            ));
        }
        *next = number + 1;
        let per_append = state.plan.per_append;
        if self.is_live && *next % per_append == 0 {
            state.delivered(writer, number / per_append);
        }
        let mut reached = self.reached.lock().expect("no panic under the lock");
        let reached = &mut reached.next[writer as usize];
        *reached = (*reached).max(*next);
        Some(())
    }
}

impl Sink for Follower {
    fn received(&mut self, event: &RecordedEvent) {
        self.compare(event);
        let mut reached = self.reached.lock().expect("no panic under the lock");
        reached.position = reached.position.max(event.position);
    }

    fn broken(&mut self, _: &gesta_core::Error) {
        self.state.error("subscription broken");
    }

    fn wrong(&mut self, text: String) {
        self.state.findings.add(text);
    }

    fn let_go(&mut self, at: Option<Checkpoint>) -> Option<Checkpoint> {
        let here = (at, self.place.clone());
        let (back, place) = std::mem::replace(&mut self.earlier, here);
        self.place = place;
        back
    }
}
