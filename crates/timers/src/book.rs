//! The timers that are pending: by key, and in the order in which they fire. Pure.
//!
//! Invariants: a key has one timer; a timer is due at one time, or is firing; what was replaced, cancelled or has fired
//! is gone, and the end of its firing changes nothing.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use gesta_core::{BackOff, EventId, Timestamp};

use crate::timer::Timer;

/// A timer of the book.
#[derive(Debug)]
struct Pending {
    timer: Timer,
    /// When it fires; `None` while it does.
    at: Option<Timestamp>,
    back_off: Option<BackOff>,
}

/// The timers that are pending.
#[derive(Debug, Default)]
pub(crate) struct Book {
    timers: HashMap<EventId, Pending>,
    keys: HashMap<String, EventId>,
    due: BTreeSet<(Timestamp, EventId)>,
    /// The number of timers whose handler has failed.
    failing: usize,
}

impl Book {
    /// Returns the number of pending timers, with those that are firing.
    pub(crate) fn len(&self) -> usize {
        self.timers.len()
    }

    /// Returns the number of timers whose handler has failed, and that fire again.
    pub(crate) fn failing(&self) -> usize {
        self.failing
    }

    pub(crate) fn contains(&self, id: EventId) -> bool {
        self.timers.contains_key(&id)
    }

    /// Sets a timer, in the place of one of the same key. One with an id that is pending is that very timer.
    pub(crate) fn set(&mut self, timer: Timer) {
        if self.timers.contains_key(&timer.id) {
            return;
        }
        self.cancel(&timer.key);
        self.keys.insert(timer.key.clone(), timer.id);
        self.due.insert((timer.due, timer.id));
        let pending = Pending {
            at: Some(timer.due),
            timer,
            back_off: None,
        };
        self.timers.insert(pending.timer.id, pending);
    }

    /// Cancels the timer of a key, if one is pending.
    pub(crate) fn cancel(&mut self, key: &str) {
        if let Some(id) = self.keys.get(key).copied() {
            self.remove(id);
        }
    }

    /// Removes a timer that has fired.
    pub(crate) fn remove(&mut self, id: EventId) {
        if let Some(pending) = self.timers.remove(&id) {
            self.keys.remove(&pending.timer.key);
            self.failing -= usize::from(pending.back_off.is_some());
            if let Some(at) = pending.at {
                self.due.remove(&(at, id));
            }
        }
    }

    /// Returns when the next timer fires.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes the next timer that is due. It fires now.
    pub(crate) fn take(&mut self, now: Timestamp) -> Option<Timer> {
        let (at, id) = *self.due.first()?;
        if at > now {
            return None;
        }
        self.due.remove(&(at, id));
        let pending = self.timers.get_mut(&id)?;
        pending.at = None;
        Some(pending.timer.clone())
    }

    /// Notes that a timer could not fire: it fires again after a pause, which is longer each time.
    pub(crate) fn failed(&mut self, id: EventId, now: Timestamp, pauses: (Duration, Duration)) {
        let Some(pending) = self.timers.get_mut(&id) else {
            return;
        };
        self.failing += usize::from(pending.back_off.is_none());
        let (first, longest) = pauses;
        let back_off = pending
            .back_off
            .get_or_insert_with(|| BackOff::new(first, longest));
        let pause = i64::try_from(back_off.pause().as_micros()).unwrap_or(i64::MAX);
        let at = Timestamp(now.0.saturating_add(pause));
        pending.at = Some(at);
        self.due.insert((at, id));
    }

    /// Returns all timers, the next one first.
    pub(crate) fn all(&self) -> Vec<&Timer> {
        let mut all: Vec<_> = self.timers.values().map(|pending| &pending.timer).collect();
        all.sort_by(|a, b| (a.due, &a.key).cmp(&(b.due, &b.key)));
        all
    }
}

#[cfg(test)]
mod tests {
    use gesta_core::EventId;

    use super::*;

    const PAUSES: (Duration, Duration) = (Duration::from_micros(10), Duration::from_micros(15));

    fn timer(key: &str, due: i64) -> Timer {
        Timer {
            key: key.to_owned(),
            due: Timestamp(due),
            data: serde_json::Value::Null,
            id: EventId::random(),
        }
    }

    fn taken(book: &mut Book, now: i64) -> Vec<String> {
        let mut taken = Vec::new();
        while let Some(timer) = book.take(Timestamp(now)) {
            taken.push(timer.key);
        }
        taken
    }

    /// Goal: timers fire in the order of their times, none before its time, and none that was replaced or cancelled.
    #[test]
    fn what_is_due_fires_in_order() {
        let mut book = Book::default();
        let timers = [("a", 30), ("b", 10), ("c", 20), ("d", 21)].map(|(key, due)| timer(key, due));
        timers.iter().for_each(|timer| book.set(timer.clone()));
        assert_eq!(book.next(), Some(Timestamp(10)));
        assert!(taken(&mut book, 9).is_empty());
        book.set(timer("b", 25));
        book.cancel("d");
        book.cancel("unknown");
        assert_eq!(taken(&mut book, 25), ["c", "b"]);
        assert_eq!(book.next(), Some(Timestamp(30)));
        // What fires is still pending, until it has fired.
        assert_eq!(book.len(), 3);
        book.remove(timers[2].id);
        book.remove(timers[1].id);
        assert_eq!(book.len(), 2, "the first b was replaced long ago");
        let all: Vec<&str> = book.all().iter().map(|timer| timer.key.as_str()).collect();
        assert_eq!(all, ["b", "a"]);
    }

    /// Goal: a timer that could not fire does again, after a pause that grows to its longest; not if it was replaced
    /// meanwhile. The same timer counts once.
    #[test]
    fn what_fails_fires_again() {
        let mut book = Book::default();
        let first = timer("a", 10);
        book.set(first.clone());
        assert_eq!(taken(&mut book, 10), ["a"]);
        book.set(first.clone());
        assert_eq!((book.len(), book.next()), (1, None), "it is the same timer");
        for (now, at) in [(10, 20), (20, 35), (35, 50)] {
            book.failed(first.id, Timestamp(now), PAUSES);
            assert_eq!((book.failing(), book.next()), (1, Some(Timestamp(at))));
            assert_eq!(taken(&mut book, at), ["a"]);
        }
        book.set(timer("a", 99));
        book.failed(first.id, Timestamp(50), PAUSES);
        assert_eq!((book.len(), book.next()), (1, Some(Timestamp(99))));
    }
}
