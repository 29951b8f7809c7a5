//! What was ever stored: every copy of every event, with its place, its histories and the time at which it was stored.
//!
//! The model judges answers by it. What is judged as soon as it is stored, since it cannot be told afterwards, is
//! judged here: whether an event that is stored a second time was still there, and in the deduplication window.

use std::collections::HashMap;
use std::time::Duration;

use gesta_core::backend::{Row, WriterEpoch};
use gesta_core::{EventId, Position, Revision, StreamId, Tag, Tags};
use gesta_kit::database::Stored;

use crate::worlds::pipeline::clock::Clock;
use crate::worlds::pipeline::database::Database;

/// A copy of an event that was stored.
#[derive(Debug, Clone)]
pub struct StoredCopy {
    /// Id with which it is stored.
    pub id: EventId,
    /// Stream in which it is stored.
    pub stream: StreamId,
    /// Its revision.
    pub revision: Revision,
    /// Its position.
    pub position: Position,
    /// Moment of the database right before it was stored.
    pub stored: u64,
    /// First and last history in which it was there.
    pub histories: (u64, u64),
    /// Time that it is stored with, since the start: a statement that was executed late is as old as it looks.
    pub at: Duration,
    /// True once it was scavenged.
    pub is_removed: bool,
}

impl StoredCopy {
    /// Returns true if the copy was there in this history.
    #[must_use]
    pub fn was_in(&self, history: u64) -> bool {
        (self.histories.0..=self.histories.1).contains(&history)
    }
}

/// An event that was stored although a copy of it was there.
#[derive(Debug, Clone)]
pub struct Double {
    /// What a caller knows the event by.
    pub event: EventId,
    /// History in which it was stored again.
    pub history: u64,
    /// Moment of the database right before it was stored again.
    pub stored: u64,
    /// What was known of the former copies at that time.
    pub former: Former,
    /// Former copies that were scavenged, in the deduplication window, and that the process which has stored it again
    /// had seen stored.
    pub remembered: Vec<StoredCopy>,
}

impl Double {
    /// Returns true if the process which has stored the event again remembered a copy that was stored before the last
    /// delete of the stream.
    #[must_use]
    pub fn is_known_to_be_deleted(&self, database: &Database) -> bool {
        self.remembered.iter().any(|copy| {
            database.was_at(&copy.stream, self.stored, |truth| {
                truth.deleted_before > copy.revision
            })
        })
    }
}

/// What was known of the former copies of an event when it was stored again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Former {
    /// One of them was there, in the deduplication window.
    InWindow,
    /// All that were there had left the deduplication window.
    OutOfWindow,
    /// All of them were scavenged.
    Removed,
}

/// The deduplication window that callers may rely on.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Events that are not older than this are in the window.
    pub time: Duration,
    /// This number of newest positions is in the window.
    pub positions: u64,
    /// How far clocks were behind at most.
    pub behind: Duration,
}

impl Window {
    /// Returns true if a copy is in the window for certain.
    #[must_use]
    pub fn holds(self, copy: &StoredCopy, now: Duration, end: Position) -> bool {
        let is_young = now.saturating_sub(copy.at) <= self.time;
        is_young || end.0.saturating_sub(copy.position.0) < self.positions
    }
}

/// A row that was stored at a position.
#[derive(Debug)]
struct Place {
    stream: StreamId,
    tags: Tags,
    /// Moment of the database right before it was stored.
    stored: u64,
    /// Moment by which it was lost or scavenged; none if it is there.
    gone: Option<u64>,
    /// Last history in which it was there.
    history: u64,
}

/// Everything that was ever stored, in any history.
#[derive(Debug, Default)]
pub struct Archive {
    copies: HashMap<EventId, Vec<StoredCopy>>,
    /// By position: the rows that were ever stored there.
    places: HashMap<Position, Vec<Place>>,
    /// Events that were stored since the last look, each with the number of its copy.
    fresh: Vec<(EventId, usize)>,
    doubles: Vec<Double>,
    /// Number of rows of the present history that were seen.
    seen: usize,
    history: u64,
    /// Number of scavenges that were seen.
    scavenges: u64,
    /// Moment at which the database was last read.
    moment: Option<u64>,
}

impl Archive {
    /// Reads what is new in the database. `seen_after` returns the position after which the process with this writer
    /// epoch has seen everything stored, if it still runs.
    pub fn update(
        &mut self,
        database: &Database,
        now: Duration,
        window: Window,
        seen_after: impl Fn(WriterEpoch) -> Option<Position>,
    ) {
        let moment = Some(database.moment());
        if std::mem::replace(&mut self.moment, moment) == moment {
            return;
        }
        database.look(|rows, history, scavenges| {
            if history != self.history {
                // What is left of the former history is in this one, too.
                self.history = history;
                self.seen = 0;
                // What is left is seen again.
                let places = self.places.values_mut().flatten();
                places.for_each(|place| place.gone = place.gone.or(moment));
            }
            if scavenges != self.scavenges {
                self.scavenges = scavenges;
                for stored in &rows[..self.seen.min(rows.len())] {
                    self.note_removed(&stored.row, stored.durable.0, stored.is_removed);
                }
            }
            for stored in rows.iter().skip(self.seen) {
                self.see(stored, now, window, seen_after(stored.writer));
                self.note_removed(&stored.row, stored.durable.0, stored.is_removed);
            }
            self.seen = rows.len();
        });
    }

    fn note_removed(&mut self, row: &Row, stored: u64, is_removed: bool) {
        let copies = self.copies.get_mut(&name(row)).into_iter().flatten();
        for copy in copies.filter(|copy| copy.stored == stored) {
            copy.is_removed = is_removed;
        }
        let places = self.places.get_mut(&row.position).into_iter().flatten();
        for place in places.filter(|place| place.stored == stored) {
            place.gone = place.gone.or(self.moment).filter(|_| is_removed);
            place.history = self.history;
        }
    }

    fn see(
        &mut self,
        stored: &Stored,
        now: Duration,
        window: Window,
        seen_after: Option<Position>,
    ) {
        let (row, stored) = (&stored.row, stored.durable.0);
        let (event, history, end) = (name(row), self.history, row.position);
        let copies = self.copies.entry(event).or_default();
        if let Some(known) = copies.iter_mut().find(|copy| copy.stored == stored) {
            known.histories.1 = history;
            return;
        }
        // Copies of which the fail-over to this history has left nothing are not there any more, and those that it has
        // left stand before this one.
        let former: Vec<&StoredCopy> = copies.iter().filter(|copy| copy.was_in(history)).collect();
        if !former.is_empty() {
            let there: Vec<&&StoredCopy> = former.iter().filter(|copy| !copy.is_removed).collect();
            let is_in_window = |copy: &StoredCopy| window.holds(copy, now, end);
            let is_known = match there.is_empty() {
                true => Former::Removed,
                false if there.iter().any(|copy| is_in_window(copy)) => Former::InWindow,
                false => Former::OutOfWindow,
            };
            let is_remembered = |copy: &&&StoredCopy| {
                let was_seen = seen_after.is_some_and(|after| copy.position > after);
                copy.is_removed && was_seen && is_in_window(copy)
            };
            let remembered = former.iter().filter(is_remembered);
            let remembered = remembered.map(|copy| (*copy).clone()).collect();
            self.doubles.push(Double {
                event,
                history,
                stored,
                former: is_known,
                remembered,
            });
        }
        self.fresh.push((event, copies.len()));
        copies.push(StoredCopy {
            id: row.id,
            stream: row.stream.clone(),
            revision: row.revision,
            position: row.position,
            stored,
            histories: (history, history),
            at: now.min(Clock::time_of(row.created) + window.behind),
            is_removed: false,
        });
        self.places.entry(row.position).or_default().push(Place {
            stream: row.stream.clone(),
            tags: row.tags.clone(),
            stored,
            gone: None,
            history,
        });
    }

    /// Takes the events that were stored since the last time, each with its copy.
    pub fn take_fresh(&mut self) -> Vec<(EventId, StoredCopy)> {
        let fresh = std::mem::take(&mut self.fresh);
        let copy = |(event, number): (EventId, usize)| {
            let copy = self.copies.get(&event)?.get(number)?;
            Some((event, copy.clone()))
        };
        fresh.into_iter().filter_map(copy).collect()
    }

    /// Returns the events that were stored although a copy of them was there.
    #[must_use]
    pub fn doubles(&self) -> &[Double] {
        &self.doubles
    }

    /// Returns all copies of an event, in the order in which they were stored.
    #[must_use]
    pub fn copies(&self, event: EventId) -> &[StoredCopy] {
        self.copies.get(&event).map_or(&[], Vec::as_slice)
    }

    /// Returns all copies that were stored with this id, which the store may have given them.
    pub fn rows_with(&self, id: EventId) -> impl Iterator<Item = &StoredCopy> {
        self.copies
            .values()
            .flatten()
            .filter(move |copy| copy.id == id)
    }

    /// Returns true if a row of this stream was ever at this position.
    #[must_use]
    pub fn was_at(&self, position: Position, stream: &StreamId) -> bool {
        let places = self.places.get(&position);
        places.is_some_and(|places| places.iter().any(|place| place.stream == *stream))
    }

    /// Returns true if a row with this tag, of a stream that is not the system's, was at this position at some moment
    /// after `since`, neither scavenged nor lost, also not by the fail-over that began `history`.
    #[must_use]
    pub fn had_tag(&self, position: Position, tag: &Tag, since: u64, history: u64) -> bool {
        let places = self.places.get(&position);
        let mut places = places.into_iter().flatten();
        places.any(|place| {
            let was_there = place.gone.is_none_or(|gone| gone > since) && place.history >= history;
            was_there && !place.stream.is_system() && place.tags.contains(tag)
        })
    }

    /// Returns true if the stream of this event was deleted between two times at which the event was stored.
    #[must_use]
    pub fn was_deleted_between(&self, event: EventId, database: &Database) -> bool {
        let mut copies: Vec<&StoredCopy> = self.copies(event).iter().collect();
        copies.sort_by_key(|copy| copy.revision);
        copies.windows(2).any(|two| {
            let between = two[0].revision.next()..=two[1].revision;
            database.was_ever(&two[0].stream, 0, |truth| {
                between.contains(&truth.deleted_before)
            })
        })
    }
}

/// Returns what a caller knows an event by: the number in its data, which is its id if the caller has given one. A
/// delete or a change of metadata has only its id.
#[must_use]
pub fn name(row: &Row) -> EventId {
    let text = std::str::from_utf8(&row.data).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.map_or(row.id, |number| EventId(uuid::Uuid::from_u128(number)))
}
