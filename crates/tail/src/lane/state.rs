//! The state that a lane keeps under its lock, and the changes of it.

use super::*;

impl State {
    pub(super) fn check(&self, log: LogId, generation: u64) -> Result<(), Error> {
        if self.generation != generation {
            return Err(self.lost.clone().unwrap_or_else(|| moved_back(log)));
        }
        Ok(())
    }

    /// Returns true if this committed segment cannot follow what the ring has seen: one of the two belongs to a history
    /// that was lost.
    pub(super) fn contradicts(&self, segment: &Segment) -> bool {
        let at = segment.after.position;
        if at == self.ring.end() && !self.last_row.may_be(&segment.after) {
            return true;
        }
        segment.events.first().is_some_and(|first| {
            self.ring.covers(first.position)
                && self
                    .ring
                    .get(first.position)
                    .is_some_and(|seen| seen.id != first.id)
        })
    }

    /// Enters another history: what was seen of the log no longer counts. It returns the events to drop.
    pub(super) fn enter(&mut self, log: LogId, history: u64) -> Vec<SharedEvent> {
        self.history = history;
        self.begin_generation(log)
    }

    /// Forgets everything that was seen, and begins a generation. The ring gets its place when the end of the log is
    /// known again. It returns the events to drop.
    pub(super) fn begin_generation(&mut self, log: LogId) -> Vec<SharedEvent> {
        if self.awake {
            let seen = self.ring.end();
            tracing::error!(%log, %seen, "the log is not the one that was seen: its subscribers end");
        }
        self.generation += 1;
        self.lost = Some(moved_back(log));
        self.alarm = true;
        self.placed = false;
        self.last_row = LastRow::default();
        self.hint = Hint::None;
        self.heard = Position::START;
        let mut dropped: Vec<SharedEvent> = self.ring.reset(Position::START).into();
        dropped.extend(self.drop_pending());
        dropped
    }

    /// Lets the ring begin after this row, which was the last of the log. It returns the events to drop.
    pub(super) fn place(&mut self, end: &LogEnd) -> Vec<SharedEvent> {
        self.placed = true;
        self.last_row = LastRow::of(end);
        if self.heard > end.position {
            self.hint = self.hint.max(Hint::More);
        }
        let mut dropped: Vec<SharedEvent> = self.ring.reset(end.position).into();
        dropped.extend(self.drop_pending());
        dropped
    }

    pub(super) fn push(&mut self, segment: Segment) -> Vec<SharedEvent> {
        if segment.end > self.ring.end() {
            self.last_row = LastRow {
                writer: None,
                created: segment.events.last().map(|event| event.created),
            };
        }
        self.ring.push(segment.events, segment.end)
    }

    pub(super) fn pop_pending(&mut self) -> Option<Segment> {
        let segment = self.pending.pop_front()?;
        self.pending_events -= segment.events.len();
        self.pending_bytes -= segment.bytes;
        Some(segment)
    }

    pub(super) fn drop_pending(&mut self) -> Vec<SharedEvent> {
        self.pending_events = 0;
        self.pending_bytes = 0;
        std::mem::take(&mut self.pending)
            .into_iter()
            .flat_map(|segment| segment.events)
            .collect()
    }
}
