//! What a process knows of the timers that it begins to fire: it is read from both streams.

use std::collections::HashSet;

use gesta_core::{Result, Revision};

use crate::book::Book;
use crate::requests::{Place, Requests};
use crate::states::States;

/// Reads the pending timers into the book, from the states up to a revision. Returns how far the requests are read, and
/// the number of states.
pub(crate) async fn load(
    requests: &Requests,
    states: &States,
    to: Option<Revision>,
    book: &mut Book,
) -> Result<(Place, u64)> {
    let mut lost = HashSet::new();
    let stored = loop {
        let stored = states.read(to, &lost).await?;
        let found = requests.lost(stored.rests_on()).await?;
        if found.is_empty() {
            break stored;
        }
        for through in &found {
            tracing::warn!(
                stream = %requests.stream,
                revision = through.revision,
                "a request is lost of which states tell: what they say of it does not count"
            );
        }
        lost.extend(found);
    };
    for kept in stored.kept {
        book.set(kept);
    }
    for id in &stored.fired {
        book.remove(*id);
    }
    if stored.is_settled {
        // Because of which events they were set still says which requests are out of date.
        book.remove_all();
    }
    let mut place = Place {
        through: stored.through,
        settled: stored.settled,
        fired: stored.fired,
        ..Place::default()
    };
    if stored.is_cut_by_others {
        let why = hidden(states);
        tracing::error!(stream = %states.stream, "{why}");
        place.unreadable = Some(why);
    }
    requests.read_on(&mut place, book).await?;
    Ok((place, stored.events))
}

/// Says that states are hidden.
pub(crate) fn hidden(states: &States) -> String {
    format!(
        "states in stream {} are hidden or removed, so timers may be missing or fire again: its metadata must not hide \
         events, except by the $tb that the owner sets",
        states.stream
    )
}
