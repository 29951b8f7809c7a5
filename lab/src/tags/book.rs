//! What one reader got, against what it must get: each event once, in the order of the journal, and no other.

use std::collections::HashSet;

use super::plan::Wanted;

/// The book of one reader.
#[derive(Debug)]
pub(super) struct Book {
    wanted: Wanted,
    count: usize,
    got: HashSet<u64>,
    last: Option<u64>,
    doubled: Vec<u64>,
    disordered: Vec<u64>,
    foreign: Vec<u64>,
}

impl Book {
    /// An empty one.
    pub(super) fn new(wanted: Wanted) -> Self {
        Self {
            count: wanted.count(),
            wanted,
            got: HashSet::new(),
            last: None,
            doubled: Vec::new(),
            disordered: Vec::new(),
            foreign: Vec::new(),
        }
    }

    /// Enters an event that the reader got, by its number and its place in the journal.
    pub(super) fn enter(&mut self, number: u64, position: u64) {
        if self.last.is_some_and(|last| position <= last) {
            self.disordered.push(number);
        }
        self.last = self.last.max(Some(position));
        if !self.wanted.contains(number) {
            self.foreign.push(number);
        } else if !self.got.insert(number) {
            self.doubled.push(number);
        }
    }

    /// True if everything wanted is there.
    pub(super) fn has_all(&self) -> bool {
        self.got.len() == self.count
    }

    /// What is wrong, in words.
    pub(super) fn faults(&self) -> Option<String> {
        let missing: Vec<u64> = self
            .wanted
            .iter()
            .filter(|number| !self.got.contains(number))
            .collect();
        let kinds = [
            ("missed", &missing),
            ("got twice", &self.doubled),
            ("got out of order", &self.disordered),
            ("got without asking", &self.foreign),
        ];
        let told: Vec<String> = kinds
            .iter()
            .filter_map(|(name, numbers)| {
                let first = numbers.first()?;
                Some(format!(
                    "{name} {} (the first: event {first})",
                    numbers.len()
                ))
            })
            .collect();
        (!told.is_empty()).then(|| told.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{From, OTHERS, Plan};
    use super::*;

    /// A book that wants 1, 4, 7.
    fn book() -> Book {
        let plan = Plan {
            readers: 3,
            events: 9,
            older: 0,
            tagged: 0,
            everything: false,
        };
        Book::new(plan.wanted(1, From::Start))
    }

    fn with(entries: &[(u64, u64)]) -> Book {
        let mut book = book();
        for &(number, position) in entries {
            book.enter(number, position);
        }
        book
    }

    #[test]
    fn everything_once_in_order_is_right() {
        let book = with(&[(4, 10), (1, 11), (7, 20)]);
        assert!(book.has_all());
        assert_eq!(book.faults(), None);
    }

    #[test]
    fn missing_doubled_disordered_and_foreign_events_are_found() {
        for (entries, has_all, wanted) in [
            (
                &[(1, 10), (7, 20)][..],
                false,
                "missed 1 (the first: event 4)",
            ),
            (&[], false, "missed 3 (the first: event 1)"),
            (
                &[(1, 10), (4, 11), (4, 12), (7, 20)],
                true,
                "got twice 1 (the first: event 4)",
            ),
            (
                &[(1, 10), (7, 20), (4, 11)],
                true,
                "got out of order 1 (the first: event 4)",
            ),
            (
                &[(1, 10), (4, 11), (2, 12), (7, 20), (OTHERS, 21)],
                true,
                "got without asking 2 (the first: event 2)",
            ),
            (
                &[(1, 10), (1, 10)],
                false,
                "missed 2 (the first: event 4), got twice 1 (the first: event 1), got out of order 1 (the first: event 1)",
            ),
        ] {
            let book = with(entries);
            assert_eq!(book.has_all(), has_all, "{entries:?}");
            assert_eq!(book.faults().as_deref(), Some(wanted), "{entries:?}");
        }
    }
}
