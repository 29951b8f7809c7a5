//! Prepares for a log to which others have appended, and which this process is about to append to.
//!
//! Without it, the first batch misses, because the log has grown; then what the others have appended is read, and the
//! streams are looked up. Preparing does both in advance. Nothing rests on it: what others append meanwhile makes a
//! batch miss, as ever.

use std::collections::HashSet;

use gesta_core::StreamId;
use gesta_core::backend::{EventRef, LoadRequest};

use super::reads::LOAD_STREAMS_MAX;
use super::{Output, Sequencer};

impl<T> Sequencer<T> {
    /// Returns whether what [`Input::Prepare`](super::Input::Prepare) asks for is still under way.
    #[must_use]
    pub fn is_preparing(&self) -> bool {
        self.is_recovering() || self.reads.has_loads()
    }

    /// Begins to prepare. If appends are under way or wait, they find out by themselves what others have appended: a
    /// preparation must not make them begin anew. A recovery reads the log in any case.
    pub(super) fn prepare(&mut self) {
        let is_idle = self.in_flight.is_empty() && !self.has_work();
        if self.is_running() && is_idle {
            self.recovery.to_look_up = Some(Vec::new());
            self.undo_all(Vec::new());
            self.read_on(None);
        }
    }

    /// Notes the streams of a page of the log that will be looked up: those of the newest events.
    pub(super) fn note_to_look_up(&mut self, page: &[EventRef]) {
        let Some(older) = self.recovery.to_look_up.take() else {
            return;
        };
        let mut noted = HashSet::new();
        let newest_first = page.iter().rev().map(|event| &event.stream);
        let unknown = newest_first.chain(&older).filter(|stream| {
            let has_entry = stream.described_stream().is_none();
            has_entry && !self.knowledge.knows_stream(stream) && noted.insert((*stream).clone())
        });
        self.recovery.to_look_up = Some(unknown.take(LOAD_STREAMS_MAX).cloned().collect());
    }

    /// Looks the noted streams up, now that the log has been read.
    pub(super) fn look_noted_up(&mut self) {
        let mut streams: Vec<StreamId> = self.recovery.to_look_up.take().unwrap_or_default();
        if streams.is_empty() || self.reads.has_loads() {
            return;
        }
        streams.retain(|stream| self.reads.claim(stream));
        self.stats.loads.add(1);
        let (id, job) = self.reads.load(LoadRequest {
            streams,
            types: Vec::new(),
        });
        self.outputs.push(Output::Read(id, job));
    }
}
