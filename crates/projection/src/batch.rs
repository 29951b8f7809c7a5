//! A batch: the events that are applied together, and the places between which they lie.

use gesta_core::{Checkpoint, LogId, Place, Position, RecordedEvent, SharedEvent, StoreInfo};

/// The events of a batch, as they came: a page of the store owns its events, a subscription shares them.
#[derive(Clone, Debug)]
pub(crate) enum Events {
    Page(Vec<RecordedEvent>),
    Live(Vec<SharedEvent>),
}

/// Events that are applied together, in order.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(crate) events: Events,
    pub(crate) from: Checkpoint,
    pub(crate) to: Checkpoint,
    pub(crate) caught_up: bool,
}

impl Batch {
    /// Makes a batch of events that lie between two places. For tests of projections.
    #[must_use]
    pub fn new(events: Vec<RecordedEvent>, from: Checkpoint, to: Checkpoint) -> Self {
        Self {
            events: Events::Page(events),
            from,
            to,
            caught_up: false,
        }
    }

    /// Returns the events, in the order in which they are to be applied. Those of a log are in the order of the log.
    pub fn events(&self) -> impl Iterator<Item = &RecordedEvent> {
        (0..self.len()).map(|at| self.event(at))
    }

    pub(crate) fn event(&self, at: usize) -> &RecordedEvent {
        match &self.events {
            Events::Page(events) => &events[at],
            Events::Live(events) => &events[at],
        }
    }

    /// Returns the place of the first event, by which it is known.
    pub(crate) fn first(&self) -> Option<(LogId, Position)> {
        let first = self.events().next()?;
        Some((first.log, first.position))
    }

    /// Returns the number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.events {
            Events::Page(events) => events.len(),
            Events::Live(events) => events.len(),
        }
    }

    /// Returns true if there are no events: the batch moves the checkpoint alone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the place after which the batch begins.
    #[must_use]
    pub fn from(&self) -> &Checkpoint {
        &self.from
    }

    /// Returns the place up to which the batch reaches.
    #[must_use]
    pub fn to(&self) -> &Checkpoint {
        &self.to
    }

    /// Returns true if nothing more was at hand when the batch was read: as a rule no event was stored after it. A
    /// subscription that reads from the database just then has nothing at hand either, so this says nothing for
    /// certain.
    #[must_use]
    pub fn is_caught_up(&self) -> bool {
        self.caught_up
    }

    /// Cuts the batch after this many events and returns the rest, or `None` if nothing would remain.
    pub(crate) fn cut(&mut self, at: usize) -> Option<Self> {
        if at == 0 || at >= self.len() {
            return None;
        }
        let last = self.event(at - 1);
        let middle = self.place_after(at, last.log, last.position);
        let rest = match &mut self.events {
            Events::Page(events) => Events::Page(events.split_off(at)),
            Events::Live(events) => Events::Live(events.split_off(at)),
        };
        let to = std::mem::replace(&mut self.to, middle.clone());
        let caught_up = std::mem::take(&mut self.caught_up);
        Some(Self {
            events: rest,
            from: middle,
            to,
            caught_up,
        })
    }

    /// Takes an event out. The place up to which the batch reaches stays.
    pub(crate) fn take(&mut self, at: usize) {
        match &mut self.events {
            Events::Page(events) => drop(events.remove(at)),
            Events::Live(events) => drop(events.remove(at)),
        }
    }

    /// The place right after the first events of the batch: that of the batch's begin, moved to the last event of each
    /// log among them. Never a place that this read has not passed.
    fn place_after(&self, count: usize, log: LogId, position: Position) -> Checkpoint {
        let mut place = self.from.clone();
        if let Place::Logs(positions) = &mut place.place {
            for event in self.events().take(count) {
                if let Some(at) = positions.get_mut(usize::from(event.log.0)) {
                    *at = (*at).max(event.position);
                }
            }
            if let Some(at) = positions.get_mut(usize::from(log.0)) {
                *at = (*at).max(position);
            }
        }
        place
    }
}

/// Returns the positions of a checkpoint of all events; none of a checkpoint of a stream.
pub(crate) fn positions(checkpoint: &Checkpoint) -> &[Position] {
    match &checkpoint.place {
        Place::Logs(positions) => positions,
        Place::Stream { .. } => &[],
    }
}

/// Returns true if `reached` is at `wanted` or after it in every log. Checkpoints of different stores, or of different
/// lives of a store, cannot be compared: then the answer is `None`.
#[must_use]
pub fn covers(reached: &Checkpoint, wanted: &Checkpoint) -> Option<bool> {
    let (here, there) = (positions(reached), positions(wanted));
    if reached.incarnation != wanted.incarnation || here.is_empty() || here.len() != there.len() {
        return None;
    }
    Some(here.iter().zip(there).all(|(here, there)| here >= there))
}

/// Returns by how many positions `reached` is before `wanted`, of all logs together.
pub(crate) fn distance(reached: &Checkpoint, wanted: &Checkpoint) -> u64 {
    let logs = positions(reached).iter().zip(positions(wanted));
    logs.map(|(here, there)| there.0.saturating_sub(here.0))
        .sum()
}

/// Says why a checkpoint cannot be of this store as it is now.
pub(crate) fn not_of(info: &StoreInfo, checkpoint: &Checkpoint) -> Option<String> {
    let found = match checkpoint.positions_for(info.incarnation, info.logs) {
        Ok(found) => found,
        Err(error) => return Some(format!("the store was restored or replaced: {error}")),
    };
    let ahead = found
        .iter()
        .zip(&info.heads)
        .position(|(at, head)| at > head)?;
    Some(format!(
        "the store was restored: the checkpoint is at position {} of log {ahead}, whose last event is at {}",
        found[ahead], info.heads[ahead]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::Incarnation;
    use uuid::Uuid;

    use crate::testing::History;

    fn place(logs: [u64; 2]) -> Checkpoint {
        let incarnation = Incarnation(Uuid::from_u128(1));
        Checkpoint::logs(incarnation, logs.map(Position).to_vec())
    }

    /// A batch of events at these places.
    fn batch(at: &[(u16, u64)], from: [u64; 2], to: [u64; 2]) -> Batch {
        let history = History::new().json("a-1", "noted", "{}");
        let events = at.iter().map(|(log, position)| {
            let mut event = history.events()[0].clone();
            (event.log, event.position) = (LogId(*log), Position(*position));
            event
        });
        let mut batch = Batch::new(events.collect(), place(from), place(to));
        batch.caught_up = true;
        batch
    }

    /// What happened in another system: the head was stored as the progress of a read that ended before it. Here each
    /// part of a batch ends at its own last event, in each log, and the last part where the read has ended.
    #[test]
    fn a_part_of_a_batch_ends_where_its_events_end() {
        let mut first = batch(&[(1, 4), (1, 7), (0, 2), (0, 3)], [1, 3], [9, 20]);
        let mut second = first.cut(1).expect("a rest");
        let third = second.cut(2).expect("a rest");
        assert_eq!(
            (first.len(), first.to(), first.is_caught_up()),
            (1, &place([1, 4]), false)
        );
        assert_eq!(
            (second.from(), second.to()),
            (&place([1, 4]), &place([2, 7]))
        );
        assert_eq!(
            (third.from(), third.to()),
            (&place([2, 7]), &place([9, 20]))
        );
        assert!(third.is_caught_up());
        assert!(third.clone().cut(1).is_none() && third.clone().cut(0).is_none());
    }

    #[test]
    fn places_are_compared_log_by_log() {
        assert_eq!(covers(&place([3, 5]), &place([3, 4])), Some(true));
        assert_eq!(covers(&place([3, 5]), &place([4, 0])), Some(false));
        let other = Checkpoint::logs(Incarnation(Uuid::from_u128(2)), vec![Position(1)]);
        assert_eq!(covers(&place([3, 5]), &other), None);
        assert_eq!(distance(&place([3, 5]), &place([5, 4])), 2);
    }
}
