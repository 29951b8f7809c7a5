//! What a database of the tests stores for virtual streams.

use std::collections::BTreeMap;

use gesta_core::backend::*;
use gesta_core::*;

use super::Log;

/// The entries of virtual streams, and how far the log was looked at.
#[derive(Debug, Default)]
pub struct VirtualTables {
    state: IndexState,
    /// The numbers of the streams.
    numbers: BTreeMap<u64, StreamId>,
    streams: BTreeMap<StreamId, Vec<Position>>,
}

impl VirtualTables {
    /// Returns whether virtual streams are on, and how far the log was looked at.
    #[must_use]
    pub fn state(&self) -> IndexState {
        self.state
    }

    /// Switches virtual streams on or off. Returns the state then.
    pub fn switch(&mut self, on: bool) -> IndexState {
        self.state.on = on;
        self.state
    }

    /// Forgets what was written after the row at `end` was committed.
    pub fn lose_after(&mut self, end: Position) {
        self.state.position = self.state.position.min(end);
        for positions in self.streams.values_mut() {
            positions.retain(|position| *position <= end);
        }
        self.streams.retain(|_, positions| !positions.is_empty());
        let streams = &self.streams;
        self.numbers
            .retain(|_, stream| streams.contains_key(stream));
    }

    /// Writes a page of entries about this log.
    ///
    /// # Panics
    /// If the page breaks a constraint: a number that is taken, or entries out of order.
    pub fn write(&mut self, page: &IndexPage, log: &Log) -> IndexWrite {
        let is_there = log.at(page.through);
        let is_there = is_there.is_some_and(|stored| stored.writer == page.writer);
        if !self.state.on || self.state.position != page.after || !is_there {
            return IndexWrite::Missed;
        }
        self.state.position = page.through;
        assert!(page.entries.is_sorted_by(|a, b| a.stream < b.stream));
        for new in &page.entries {
            assert!(!new.positions.is_empty());
            if !self.streams.contains_key(&new.stream) {
                let other = self.numbers.insert(new.number, new.stream.clone());
                assert_eq!(other, None, "the number of {} is taken", new.stream);
            }
            let positions = self.streams.entry(new.stream.clone()).or_default();
            positions.extend(&new.positions);
            assert!(positions.is_sorted_by(|a, b| a < b), "{}", new.stream);
        }
        IndexWrite::Written
    }

    /// Reads a part of a virtual stream.
    #[must_use]
    pub fn read(&self, slice: &EntrySlice) -> Entries {
        let positions = self.streams.get(&slice.stream);
        let all = positions.into_iter().flatten();
        let all = (0..).map(Revision).zip(all);
        let mut entries: Vec<Entry> = all
            .map(|(revision, position)| Entry {
                revision,
                position: *position,
            })
            .collect();
        let last = entries.last().map(|entry| entry.revision);
        entries.retain(|entry| (slice.from..=slice.to).contains(&entry.revision));
        if slice.direction == Direction::Backwards {
            entries.reverse();
        }
        entries.truncate(slice.limit);
        Entries {
            state: self.state,
            last,
            entries,
        }
    }
}
