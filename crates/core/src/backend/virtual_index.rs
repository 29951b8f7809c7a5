//! What a database keeps so that there are virtual streams: their entries, and how far the log was looked at.
//!
//! Invariants: an entry that was written stays, with its revision; entries and the position up to which the log was
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

/// What the database says about its virtual streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexState {
    /// They were switched on: events are looked at, and the streams can be read.
    pub on: bool,
    /// Events up to here were looked at; 0 before the first.
    pub position: Position,
}

/// New entries of one virtual stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewEntries {
    /// The stream.
    pub stream: StreamId,
    /// Its number, if these are its first entries.
    pub number: u64,
    /// The positions of the events, in their order; not empty.
    pub positions: Vec<Position>,
}

/// A part of the log that was looked at: what is written in one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexPage {
    /// The position up to which the log had been looked at.
    pub after: Position,
    /// The last event that was looked at now.
    pub through: Position,
    /// The writer of that event. Only if the log has the event of this writer there, the page is about the history that
    /// the database has.
    pub writer: WriterEpoch,
    /// The entries.
    pub entries: Vec<NewEntries>,
}

impl IndexPage {
    /// The entries of these events, which follow the position `after`, in their order; `None` if there are no events.
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

/// What became of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexWrite {
    /// It is stored.
    Written,
    /// Nothing is stored: the log was looked at up to another position, is not the one that the page is about, or the
    /// virtual streams were switched off. Ask for the state, and begin anew.
    Missed,
}

/// A part of a virtual stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntrySlice {
    /// The stream.
    pub stream: StreamId,
    /// Lowest revision wanted, included.
    pub from: Revision,
    /// Highest revision wanted, included.
    pub to: Revision,
    /// Which way.
    pub direction: Direction,
    /// Most entries wanted.
    pub limit: usize,
}

/// One place of a virtual stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The number of the place.
    pub revision: Revision,
    /// The event that stands there. It may have been scavenged.
    pub position: Position,
}

/// Entries of a slice, in the direction asked for, without a gap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entries {
    /// The state, not newer than the entries.
    pub state: IndexState,
    /// The last revision of the stream, not newer than the entries; `None` if it has no entry.
    pub last: Option<Revision>,
    /// The entries, none of them above `last`.
    pub entries: Vec<Entry>,
}

/// The virtual streams of a store of one log.
#[async_trait]
pub trait VirtualIndex: Send + Sync {
    /// The state, from the primary.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn state(&self) -> Result<IndexState>;

    /// Switches virtual streams on or off. What was looked at and written before stays, so that switching them on again
    /// goes on from there.
    ///
    /// # Errors
    /// `Unavailable`; `Unsupported` without the rights.
    async fn switch(&self, on: bool) -> Result<IndexState>;

    /// Writes a page, whole or not at all.
    ///
    /// # Errors
    /// `Unavailable`: it may be stored, or be stored later. `Unsupported` without the rights.
    async fn write(&self, page: IndexPage) -> Result<IndexWrite>;

    /// Reads a part of a virtual stream, whether they are switched on or not.
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
