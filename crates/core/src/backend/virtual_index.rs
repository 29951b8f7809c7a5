//! Virtual streams in a database: their entries, and the position up to which the log was looked at for them.
//!
//! Invariants: an entry that was written stays, with its revision. Entries and the position up to which the log was
//! looked at are written together, and only if nobody else has moved that position: several processes may try at once.
//! Not here: in which virtual streams an event stands ([`virtual_streams_of`](crate::virtual_streams_of)).

use std::collections::HashMap;

use async_trait::async_trait;

use super::{EventRef, WriterEpoch};
use crate::error::Result;
use crate::ids::{Position, Revision, StreamId};
use crate::request::Direction;
use crate::virtual_stream::{LinkTo, virtual_number, virtual_streams_of};

impl<'a> From<&'a EventRef> for LinkTo<'a> {
    fn from(event: &'a EventRef) -> Self {
        Self {
            stream: &event.stream,
            revision: event.revision,
            position: event.position,
            created: event.created,
        }
    }
}

/// State of the virtual streams of a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexState {
    /// True if virtual streams are switched on: new events are looked at, and the streams can be read.
    pub on: bool,
    /// Position up to which events were looked at; 0 before the first event.
    pub position: Position,
}

/// New entries of one virtual stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewEntries {
    /// Name of the virtual stream.
    pub stream: StreamId,
    /// Number that stands for the virtual stream in what is stored. It counts only if these are the first entries of
    /// the stream.
    pub number: u64,
    /// Positions of the events, in their order; at least one.
    pub positions: Vec<Position>,
}

/// A part of the log that was looked at, written in one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexPage {
    /// Position up to which the log had been looked at before.
    pub after: Position,
    /// Position of the last event that was looked at now.
    pub through: Position,
    /// Epoch of the writer of the event at `through`. The page is about the history that the database has only if the
    /// log has an event of this writer there.
    pub writer: WriterEpoch,
    /// New entries of each virtual stream, in order of the names.
    pub entries: Vec<NewEntries>,
}

impl IndexPage {
    /// Makes the page of these events, which follow the position `after` in their order. Returns `None` if there are no
    /// events.
    #[must_use]
    pub fn of(after: Position, events: &[EventRef]) -> Option<Self> {
        let last = events.last()?;
        let mut entries: Vec<NewEntries> = Vec::new();
        let mut places: HashMap<StreamId, usize> = HashMap::new();
        for event in events {
            let streams = virtual_streams_of(&event.stream, event.revision, &event.event_type);
            for (kind, stream) in streams {
                let place = *places.entry(stream).or_insert_with_key(|stream| {
                    entries.push(NewEntries {
                        stream: stream.clone(),
                        number: virtual_number(kind, event.position),
                        positions: Vec::new(),
                    });
                    entries.len() - 1
                });
                if let Some(entries) = entries.get_mut(place) {
                    entries.positions.push(event.position);
                }
            }
        }
        // All processes lock rows in one order.
        entries.sort_unstable_by(|a, b| a.stream.cmp(&b.stream));
        Some(Self {
            after,
            through: last.position,
            writer: last.writer,
            entries,
        })
    }
}

/// Outcome of writing a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexWrite {
    /// The page is stored.
    Written,
    /// Nothing is stored: the log was looked at up to another position, the page is about another history, or the
    /// virtual streams were switched off. The caller must read the state again and begin anew.
    Missed,
}

/// Request to read a part of a virtual stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntrySlice {
    /// Name of the virtual stream.
    pub stream: StreamId,
    /// Lowest revision wanted, included.
    pub from: Revision,
    /// Highest revision wanted, included.
    pub to: Revision,
    /// Direction of the read.
    pub direction: Direction,
    /// Largest number of entries in the answer.
    pub limit: usize,
}

/// One place of a virtual stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Number of the place in the virtual stream; the first is 0.
    pub revision: Revision,
    /// Position of the event that stands at the place. The event may have been scavenged.
    pub position: Position,
}

/// Entries of a slice, in the direction asked for, without a gap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entries {
    /// State of the virtual streams, not newer than the entries.
    pub state: IndexState,
    /// Last revision of the virtual stream, not newer than the entries; `None` if it has no entry.
    pub last: Option<Revision>,
    /// The entries, none of them above `last`.
    pub entries: Vec<Entry>,
}

/// The virtual streams of a store with one log.
///
/// # Cancel safety
/// Dropping the future of a read changes nothing. A dropped `switch` or `write` takes effect whole or not at all, now
/// or later.
#[async_trait]
pub trait VirtualIndex: Send + Sync {
    /// Reads the state from the primary.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn state(&self) -> Result<IndexState>;

    /// Switches virtual streams on or off, and returns the new state. What was looked at and written before stays, so
    /// that switching them on again goes on from there.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer; `Unsupported` if the rights do not suffice.
    async fn switch(&self, on: bool) -> Result<IndexState>;

    /// Writes a page, whole or not at all.
    ///
    /// # Errors
    /// `Unavailable` if there is no answer: the page may be stored now or later. `Unsupported` if the rights do not
    /// suffice.
    async fn write(&self, page: IndexPage) -> Result<IndexWrite>;

    /// Reads a part of a virtual stream, whether virtual streams are switched on or not.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`.
    async fn read(&self, slice: EntrySlice) -> Result<Entries>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::RowId;
    use crate::clock::Timestamp;
    use crate::ids::{EventId, EventType};

    fn event(position: u64, stream: &str, revision: u64, event_type: &str) -> EventRef {
        EventRef {
            position: Position(position),
            writer: WriterEpoch(position.cast_signed()),
            created: Timestamp(0),
            stream: StreamId::new(stream).expect("valid"),
            stream_row: RowId(1),
            revision: Revision(revision),
            id: EventId::random(),
            event_type: EventType::new(event_type).expect("valid"),
            type_row: RowId(1),
        }
    }

    #[test]
    fn a_page_holds_the_entries_of_each_stream_in_order() {
        let events = [
            event(5, "cart-1", 0, "added"),
            event(6, "$$cart-1", 0, "$metadata"),
            event(8, "cart-2", 4, "added"),
            event(9, "cart-1", 1, "paid"),
        ];
        let page = IndexPage::of(Position(4), &events).expect("a page");
        assert_eq!((page.after, page.through), (Position(4), Position(9)));
        assert_eq!(page.writer, WriterEpoch(9));
        let found: Vec<(&str, u64, Vec<u64>)> = page
            .entries
            .iter()
            .map(|new| {
                let positions = new.positions.iter().map(|position| position.0);
                (new.stream.as_str(), new.number, positions.collect())
            })
            .collect();
        assert_eq!(
            found,
            [
                ("$ce-cart", 20, vec![5, 8, 9]),
                ("$et-added", 21, vec![5, 8]),
                ("$et-paid", 37, vec![9]),
                ("$streams", 22, vec![5]),
            ]
        );
        assert_eq!(IndexPage::of(Position(4), &[]), None);
    }
}
