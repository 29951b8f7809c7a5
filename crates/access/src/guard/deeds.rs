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

struct Deed {
    make: Make,
    stream: StreamId,
    detail: String,
}

/// The changes of one call that are to be told. Most calls have none.
pub(super) struct Deeds<'a> {
    guarded: &'a Guarded,
    deeds: Vec<Deed>,
}

impl<'a> Deeds<'a> {
    /// Begins with one change.
    pub(super) fn of(guarded: &'a Guarded, make: Make, stream: &StreamId) -> Self {
        let mut deeds = Self {
            guarded,
            deeds: Vec::new(),
        };
        deeds.add(make, stream, &[]);
        deeds
    }

    /// Begins with the changes of an append.
    pub(super) fn of_append(guarded: &'a Guarded, request: &Append) -> Self {
        let mut deeds = Self {
            guarded,
            deeds: Vec::new(),
        };
        for append in &request.streams {
            deeds.add(
                |stream| Operation::Append(stream),
                &append.stream,
                &append.events,
            );
        }
        deeds
    }

    fn add(&mut self, make: Make, stream: &StreamId, events: &[EventData]) {
        let shared = &self.guarded.access.shared;
        if !shared.tells(make(stream)) {
            return;
        }
        let is_account = names::kind(stream.as_str()) == Kind::Account;
        let details = events.iter().filter(|_| is_account).map(record::told);
        self.deeds.push(Deed {
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
        for deed in self.deeds.drain(..) {
            let operation = (deed.make)(&deed.stream);
            access.done_in_detail(caller, operation, "", &deed.detail, outcome);
        }
    }
}

impl Drop for Deeds<'_> {
    fn drop(&mut self) {
        self.tell::<(), _>(&Err("the caller left before the outcome was known"));
    }
}
