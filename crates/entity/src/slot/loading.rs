//! An entity that is being loaded: its snapshot, if it can be used, and the events after it.
//!
//! Invariant: an entity is made of all its events, or of a snapshot and all events after it. A read shows only what
//! metadata and scavenging leave; so events are counted, and one that is missing ends the load with an error. Otherwise
//! an entity whose front is hidden would wake with half a history, and take back what it has promised.

use std::collections::VecDeque;

use gesta_core::{After, ErrorKind, EventId, RecordedEvent, Revision, StreamId};

use super::Active;
use crate::ask::Ask;
use crate::decider::Decider;
use crate::env::Env;
use crate::load::UseSnapshot;
use crate::message::{Deleted, LoadedPart};

/// An entity that is being loaded.
pub(crate) struct Loading<D: Decider> {
    /// The number of the load. Parts of other loads are dropped.
    pub(super) number: u64,
    pub(super) waiting: VecDeque<Ask<D>>,
    pub(super) building: Active<D>,
    /// The event after which the snapshot was taken. That event must come first.
    pub(super) expected: Option<(Revision, EventId)>,
    /// The revision that the next event must have; `None` before the first event.
    pub(super) next: Option<Revision>,
    /// What the first page has told of deletes. A later page that tells something else is of another life of the
    /// stream.
    pub(super) deleted: Option<Deleted>,
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
            LoadedPart::Events { deleted, .. } | LoadedPart::End { deleted, .. }
                if self
                    .deleted
                    .is_some_and(|known| known.before != deleted.before) =>
            {
                self.start_over(stream, "of a stream that was deleted meanwhile", env);
                Ok(Progress::More)
            }
            LoadedPart::Events { events, deleted } => {
                self.deleted = Some(deleted);
                let mut events = events.as_slice();
                if let Some((revision, id)) = self.expected.take() {
                    match events.split_first() {
                        Some((first, rest)) if (first.revision, first.id) == (revision, id) => {
                            events = rest;
                            self.next = Some(revision.next());
                        }
                        _ => {
                            self.start_over(stream, "of another history", env);
                            return Ok(Progress::More);
                        }
                    }
                }
                for event in events {
                    let next = self.next.unwrap_or(deleted.before);
                    self.check(stream, next, event.revision, env)?;
                    self.next = Some(event.revision.next());
                }
                self.building.replay(events, env)?;
                Ok(Progress::More)
            }
            LoadedPart::End { .. } if self.expected.is_some() => {
                self.start_over(stream, "of events that are not there", env);
                Ok(Progress::More)
            }
            LoadedPart::End { last, deleted } => {
                if let (Some(last), Some(next)) = (last, self.next) {
                    self.check(stream, next, last.next(), env)?;
                }
                if deleted.before > Revision(0) {
                    self.building.deleted_until = deleted.until;
                }
                if last.is_none() {
                    let next = deleted.before;
                    self.building.after = After::NoStream { next };
                }
                Ok(Progress::Complete)
            }
            LoadedPart::Failed(error) => Err(error),
        }
    }

    /// Checks that no event is missing between revision `next` and the revision that was found.
    fn check(
        &self,
        stream: &StreamId,
        next: Revision,
        found: Revision,
        env: &Env<D>,
    ) -> gesta_core::Result<()> {
        if next == found || env.kind.may_be_truncated {
            return Ok(());
        }
        let missing = match found.0.checked_sub(1) {
            Some(last) if last > next.0 => format!("events {next} to {last} are not readable"),
            _ => format!("event {next} is not readable"),
        };
        Err(ErrorKind::Unsupported(format!(
            "stream {stream}: {missing}, because its metadata ($tb, $maxAge or $maxCount) hide them or scavenging has removed them: an entity needs all its events, or a snapshot and all events after it; if later events tell all that counts, the entity type must say that its streams may be truncated"
        ))
        .into())
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
        self.next = None;
        self.deleted = None;
        env.load(stream, self.number, UseSnapshot::No);
    }
}
