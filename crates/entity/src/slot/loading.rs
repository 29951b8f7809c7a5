//! An entity that is being loaded: its snapshot, if it can be used, and the events after it.

use std::collections::VecDeque;

use gesta_core::{After, EventId, RecordedEvent, Revision, StreamId};

use super::Active;
use crate::ask::Ask;
use crate::decider::Decider;
use crate::env::Env;
use crate::load::UseSnapshot;
use crate::message::LoadedPart;

/// An entity that is being loaded.
pub(crate) struct Loading<D: Decider> {
    /// The number of the load. Parts of other loads are dropped.
    pub(super) number: u64,
    pub(super) waiting: VecDeque<Ask<D>>,
    pub(super) building: Active<D>,
    /// The event after which the snapshot was taken. That event must come first.
    pub(super) expected: Option<(Revision, EventId)>,
}

pub(super) enum Progress {
    More,
    Complete,
}

impl<D: Decider> Loading<D> {
    pub(super) fn take(
        &mut self,
        stream: &StreamId,
        part: LoadedPart,
        env: &mut Env<D>,
    ) -> gesta_core::Result<Progress> {
        match part {
            LoadedPart::Snapshot(event) => {
                self.restore(stream, &event, env);
                Ok(Progress::More)
            }
            LoadedPart::Events(events) => {
                let mut events = events.as_slice();
                if let Some((revision, id)) = self.expected.take() {
                    match events.split_first() {
                        Some((first, rest)) if (first.revision, first.id) == (revision, id) => {
                            events = rest;
                        }
                        _ => {
                            self.start_over(stream, "of another history", env);
                            return Ok(Progress::More);
                        }
                    }
                }
                self.building.replay(events, env)?;
                Ok(Progress::More)
            }
            LoadedPart::End if self.expected.is_some() => {
                self.start_over(stream, "of events that are not there", env);
                Ok(Progress::More)
            }
            LoadedPart::End => Ok(Progress::Complete),
            LoadedPart::Failed(error) => Err(error),
        }
    }

    pub(super) fn restore(&mut self, stream: &StreamId, event: &RecordedEvent, env: &mut Env<D>) {
        let Some(snapshots) = &env.kind.snapshots else {
            return self.start_over(stream, "not wanted", env);
        };
        match snapshots.read(event) {
            Ok(restored) => {
                self.expected = Some((restored.revision, restored.last));
                self.building.state = restored.state;
                self.building.after = After::Event(restored.last);
                self.building.restore_keys(restored.keys, env);
            }
            Err(why) => self.start_over(stream, &why, env),
        }
    }

    /// Loads the entity again without its snapshot, which cannot be used.
    pub(super) fn start_over(&mut self, stream: &StreamId, why: &str, env: &mut Env<D>) {
        env.counters.snapshots_ignored.add(1);
        tracing::info!(%stream, why, "snapshot ignored");
        self.number = env.next_number();
        self.building = Active::new(self.number);
        self.expected = None;
        env.load(stream, self.number, UseSnapshot::No);
    }
}
