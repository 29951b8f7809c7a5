//! What a call changes, as the audit log tells it once the outcome is known.
//!
//! Invariant: a change that was begun is told, also if its caller leaves before the answer, because it may be stored
//! nevertheless.

use gesta_core::{Append, EventData, Result, StreamId};

use super::Guarded;
use crate::names::{self, Kind};
use crate::record;
use crate::rights::Operation;

type Make = for<'a> fn(&'a StreamId) -> Operation<'a>;

struct Change {
    make: Make,
    stream: StreamId,
    detail: String,
}

/// The changes of one call that are to be told. Most calls have none.
pub(super) struct Changes<'a> {
    guarded: &'a Guarded,
    changes: Vec<Change>,
}

impl<'a> Changes<'a> {
    /// Begins with one change.
    pub(super) fn of(guarded: &'a Guarded, make: Make, stream: &StreamId) -> Self {
        let mut changes = Self {
            guarded,
            changes: Vec::new(),
        };
        changes.add(make, stream, &[]);
        changes
    }

    /// Begins with the changes of an append. `deleted` are the streams that it deletes.
    pub(super) fn of_append(guarded: &'a Guarded, request: &Append, deleted: &[StreamId]) -> Self {
        let mut changes = Self {
            guarded,
            changes: Vec::new(),
        };
        for append in &request.streams {
            // An append to a metadata stream changes the metadata, or deletes the stream if that is what these say.
            match append.stream.described_stream() {
                None => changes.add(
                    |stream| Operation::Append(stream),
                    &append.stream,
                    &append.events,
                ),
                Some(described) if deleted.contains(&described) => {
                    changes.add(|stream| Operation::Delete(stream), &described, &[]);
                }
                Some(described) => {
                    changes.add(|stream| Operation::WriteMetadata(stream), &described, &[])
                }
            }
        }
        changes
    }

    fn add(&mut self, make: Make, stream: &StreamId, events: &[EventData]) {
        let shared = &self.guarded.access.shared;
        if !shared.tells(make(stream)) {
            return;
        }
        let is_account = names::kind(stream.as_str()) == Kind::Account;
        let details = events.iter().filter(|_| is_account).map(record::told);
        self.changes.push(Change {
            make,
            stream: stream.clone(),
            detail: details.collect::<Vec<_>>().join("; "),
        });
    }

    /// Tells how the call ended.
    pub(super) fn ended<T>(mut self, outcome: &Result<T>) {
        self.tell(outcome);
    }

    fn tell<T, E: std::fmt::Display>(&mut self, outcome: &std::result::Result<T, E>) {
        let Guarded { access, caller, .. } = self.guarded;
        for change in self.changes.drain(..) {
            let operation = (change.make)(&change.stream);
            access.done_in_detail(caller, operation, "", &change.detail, outcome);
        }
    }
}

impl Drop for Changes<'_> {
    fn drop(&mut self) {
        self.tell::<(), _>(&Err("the caller left before the outcome was known"));
    }
}
