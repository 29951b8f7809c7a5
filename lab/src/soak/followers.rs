//! Followers: subscribers that must get every event of the run once, in order, through all faults.
//!
//! The writers make their appends one after the other, so in the one log of the store each writer's events stand in
//! the order of their numbers: a follower needs one number per writer to notice what is missing, doubled or late.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_core::{
    Checkpoint, ErrorKind, Filter, Position, RecordedEvent, Subscribe, SubscribeFrom, SubscribeTo,
    SubscriptionMessage,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::board::Board;
use super::door::Door;
use super::plan::Which;

/// Pause before a follower that was thrown out comes back.
const BACK_OFF: Duration = Duration::from_millis(20);

/// How it follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// Live; after a break it resumes by its checkpoint.
    Live,
    /// After each slice it goes back to where it was a slice before, and catches up.
    CatchingUp,
}

/// How far a follower is.
#[derive(Debug, Clone)]
pub(super) struct Place {
    at: Option<Checkpoint>,
    position: Position,
    /// Of each writer, the number of the event that comes next.
    next: Vec<u64>,
}

/// One follower.
pub(super) struct Follower {
    pub(super) name: String,
    pub(super) manner: Manner,
    pub(super) door: Arc<Door>,
    pub(super) board: Arc<Board>,
    /// Counts slices.
    pub(super) slices: watch::Receiver<u64>,
    pub(super) over: CancellationToken,
    /// For others to look at.
    pub(super) reached: Arc<Mutex<Reached>>,
}

/// The farthest that a follower ever was.
#[derive(Debug)]
pub(super) struct Reached {
    /// The last position.
    pub(super) position: Position,
    /// Of each writer, the number of the event that comes next.
    pub(super) next: Vec<u64>,
}

impl Follower {
    /// Follows from a place in the log until the run is over.
    pub(super) async fn run(mut self, start: Checkpoint) {
        let over = self.over.clone();
        tokio::select! {
            () = over.cancelled() => {}
            () = self.follow(start) => {}
        }
    }

    async fn follow(&mut self, start: Checkpoint) {
        let mut place = Place {
            at: Some(start),
            position: Position(0),
            next: vec![0; self.board.writers()],
        };
        let mut earlier = place.clone();
        loop {
            match self.subscription(&mut place).await {
                // A slice is over.
                Ok(()) => {
                    let back = std::mem::replace(&mut earlier, place.clone());
                    place = back;
                }
                Err(error) => {
                    self.board.error("subscription", error.kind());
                    if matches!(
                        error.kind(),
                        ErrorKind::InvalidCheckpoint(_)
                            | ErrorKind::InvalidArgument { .. }
                            | ErrorKind::Corrupt(_)
                    ) {
                        self.board.finding(format!("{}: {error}", self.name));
                        return;
                    }
                    tokio::time::sleep(BACK_OFF).await;
                }
            }
        }
    }

    /// One subscription, until it breaks, or a slice is over and the follower goes back.
    async fn subscription(&mut self, place: &mut Place) -> gesta_core::Result<()> {
        self.slices.mark_unchanged();
        let from = place
            .at
            .clone()
            .map_or(SubscribeFrom::Start, SubscribeFrom::Checkpoint);
        let request = Subscribe {
            to: SubscribeTo::All(Filter::ALL),
            from,
        };
        let mut subscription = self.door.store().subscribe(request).await?;
        loop {
            let message = tokio::select! {
                message = subscription.next() => message,
                Ok(()) = self.slices.changed(), if self.manner == Manner::CatchingUp => return Ok(()),
            };
            match message {
                Some(Ok(SubscriptionMessage::Event { event, checkpoint })) => {
                    self.received(&event, place);
                    place.at = Some(checkpoint);
                }
                Some(Ok(
                    SubscriptionMessage::Checkpoint(checkpoint)
                    | SubscriptionMessage::CaughtUp(checkpoint),
                )) => place.at = Some(checkpoint),
                Some(Err(error)) => return Err(error),
                None => return Err(gesta_core::Error::unavailable("the subscription ended")),
            }
        }
    }

    fn received(&self, event: &RecordedEvent, place: &mut Place) {
        let of_the_run = self.compare(event, place);
        let mut reached = self.reached();
        reached.position = reached.position.max(event.position);
        if let Some(which) = of_the_run {
            let next = &mut reached.next[which.writer];
            *next = (which.event + 1).max(*next);
        }
    }

    /// Compares an event with what was due; returns which it is if it is of this run.
    fn compare(&self, event: &RecordedEvent, place: &mut Place) -> Option<Which> {
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
        if self.manner == Manner::Live && *next % per_append == 0 {
            self.board.delivered(which.writer, which.event / per_append);
        }
        Some(which)
    }

    fn reached(&self) -> std::sync::MutexGuard<'_, Reached> {
        self.reached.lock().expect("no panic under the lock")
    }
}
