//! The timers that are pending: by key, and in the order in which they fire. Pure.
//!
//! Invariants: a key has one timer; a timer is due at one time, or is firing; what was replaced, cancelled or has fired
//! is gone, and the end of its firing changes nothing. A request because of an event changes nothing after one because
//! of a later event, whether what that one has set is pending, has fired or was cancelled. A timer whose handler has
//! failed fires again after a pause, however the clock is set meanwhile.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use gesta_core::{BackOff, EventId, Timestamp};
use tokio::time::Instant;

use crate::timer::{Cause, Timer};

/// A timer of the book.
#[derive(Debug)]
struct Pending {
    timer: Timer,
    fires: Fires,
    back_off: Option<BackOff>,
}

/// When a timer fires.
#[derive(Debug, Clone, Copy)]
enum Fires {
    /// At its time.
    Due,
    /// Again, because its handler has failed.
    Again(Instant),
    /// It does.
    Now,
}

/// The timers that are pending.
#[derive(Debug, Default)]
pub(crate) struct Book {
    timers: HashMap<EventId, Pending>,
    keys: HashMap<String, EventId>,
    due: BTreeSet<(Timestamp, EventId)>,
    again: BTreeSet<(Instant, EventId)>,
    /// Of each key the event because of which it was set or cancelled last, if there was one.
    causes: HashMap<String, Cause>,
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
        if self.timers.contains_key(&timer.id) || !self.cancel(&timer.key, timer.because) {
            return;
        }
        self.keys.insert(timer.key.clone(), timer.id);
        self.due.insert((timer.due, timer.id));
        let pending = Pending {
            fires: Fires::Due,
            timer,
            back_off: None,
        };
        self.timers.insert(pending.timer.id, pending);
    }

    /// Cancels the timer of a key, if one is pending. Returns false if nothing changes: the key was set or cancelled
    /// because of a later event.
    pub(crate) fn cancel(&mut self, key: &str, because: Option<Cause>) -> bool {
        if let (Some(because), Some(of)) = (because, self.causes.get(key))
            && because.is_before(*of)
        {
            return false;
        }
        match because {
            Some(because) => self.causes.insert(key.to_owned(), because),
            None => self.causes.remove(key),
        };
        if let Some(id) = self.keys.get(key).copied() {
            self.remove(id);
        }
        true
    }

    /// Removes all timers, but not what is known of their keys.
    pub(crate) fn remove_all(&mut self) {
        let ids: Vec<EventId> = self.timers.keys().copied().collect();
        ids.into_iter().for_each(|id| self.remove(id));
    }

    /// Forgets because of which events the keys were set and cancelled that have no timer. What is stored together says
    /// nothing of them, so a process that starts from it does not know it either.
    pub(crate) fn forget_causes(&mut self) {
        let keys = &self.keys;
        self.causes.retain(|key, _| keys.contains_key(key));
    }

    /// Removes a timer that has fired.
    pub(crate) fn remove(&mut self, id: EventId) {
        if let Some(pending) = self.timers.remove(&id) {
            self.keys.remove(&pending.timer.key);
            self.failing -= usize::from(pending.back_off.is_some());
            match pending.fires {
                Fires::Due => self.due.remove(&(pending.timer.due, id)),
                Fires::Again(at) => self.again.remove(&(at, id)),
                Fires::Now => false,
            };
        }
    }

    /// Returns when the next timer fires whose handler has failed.
    pub(crate) fn next_again(&self) -> Option<Instant> {
        self.again.first().map(|(at, _)| *at)
    }

    /// Returns when the next timer fires of those whose handler has not failed.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Returns whether a timer fires now: by the clock, or after the pause of one whose handler has failed.
    pub(crate) fn is_due(&self, now: Timestamp, instant: Instant) -> bool {
        self.next().is_some_and(|at| at <= now) || self.next_again().is_some_and(|at| at <= instant)
    }

    /// Takes the next timer that fires now.
    pub(crate) fn take(&mut self, now: Timestamp, instant: Instant) -> Option<Timer> {
        let id = if self.next().is_some_and(|at| at <= now) {
            self.due.pop_first()?.1
        } else if self.next_again().is_some_and(|at| at <= instant) {
            self.again.pop_first()?.1
        } else {
            return None;
        };
        let pending = self.timers.get_mut(&id)?;
        pending.fires = Fires::Now;
        Some(pending.timer.clone())
    }

    /// Notes that a timer could not fire: it fires again after a pause, which is longer each time.
    pub(crate) fn failed(&mut self, id: EventId, pauses: (Duration, Duration)) {
        let Some(pending) = self.timers.get_mut(&id) else {
            return;
        };
        self.failing += usize::from(pending.back_off.is_none());
        let (first, longest) = pauses;
        let back_off = pending
            .back_off
            .get_or_insert_with(|| BackOff::new(first, longest));
        let at = Instant::now() + back_off.pause();
        pending.fires = Fires::Again(at);
        self.again.insert((at, id));
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

    const PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(15));

    fn timer(key: &str, due: i64) -> Timer {
        Timer {
            key: key.to_owned(),
            due: Timestamp(due),
            data: serde_json::Value::Null,
            id: EventId::random(),
            because: None,
        }
    }

    fn taken(book: &mut Book, now: i64) -> Vec<String> {
        let mut taken = Vec::new();
        while let Some(timer) = book.take(Timestamp(now), Instant::now()) {
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
        assert!(book.cancel("d", None));
        assert!(book.cancel("unknown", None));
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

    /// Goal: a timer that could not fire does again, after a pause that grows to its longest, also if the clock is set
    /// back by years meanwhile; not if it was replaced. The same timer counts once.
    #[tokio::test(start_paused = true)]
    async fn what_fails_fires_again() {
        let mut book = Book::default();
        let first = timer("a", 1_000_000);
        book.set(first.clone());
        assert_eq!(taken(&mut book, 1_000_000), ["a"]);
        book.set(first.clone());
        assert_eq!((book.len(), book.next()), (1, None), "it is the same timer");
        for seconds in [10, 15, 15] {
            let at = Instant::now() + Duration::from_secs(seconds);
            book.failed(first.id, PAUSES);
            assert_eq!((book.failing(), book.next_again()), (1, Some(at)));
            tokio::time::advance(Duration::from_secs(seconds - 1)).await;
            assert!(
                taken(&mut book, i64::MAX).is_empty(),
                "the pause is not over"
            );
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(book.is_due(Timestamp(0), Instant::now()));
            assert_eq!(taken(&mut book, 0), ["a"]);
        }
        book.set(timer("a", 99));
        book.failed(first.id, PAUSES);
        assert_eq!((book.len(), book.next()), (1, Some(Timestamp(99))));
        assert_eq!((book.failing(), book.next_again()), (0, None));
    }

    /// Goal: what is asked for because of an event leaves what was set because of a later one, or of no event or one
    /// of another log, as the order of the requests says.
    #[test]
    fn an_earlier_event_does_not_undo_what_a_later_one_has_set() {
        let lives = [1, 2].map(|life| Some(uuid::Uuid::from_u128(life)));
        let cause = |log: u16, position: u64, created: i64, incarnation: Option<uuid::Uuid>| {
            Some(Cause {
                log,
                position,
                created,
                incarnation,
            })
        };
        let because = |log: u16, position: u64, created: i64| cause(log, position, created, None);
        let set = |because: Option<Cause>| Timer {
            because,
            ..timer("a", 10)
        };
        for (of, then, stays) in [
            (because(0, 5, 50), because(0, 4, 40), true),
            (because(0, 5, 50), because(0, 6, 60), false),
            (because(0, 5, 50), because(0, 5, 50), false),
            (because(0, 5, 50), because(1, 4, 40), false),
            // Positions that were lost are used again, by events that are stored later.
            (because(0, 5, 50), because(0, 4, 60), false),
            (because(0, 5, 50), None, false),
            (None, because(0, 5, 50), false),
            // In one life of the store positions alone decide: its clock may be set back.
            (cause(0, 5, 50, lives[0]), cause(0, 4, 60, lives[0]), true),
            (cause(0, 5, 60, lives[0]), cause(0, 6, 50, lives[0]), false),
            (cause(0, 5, 50, lives[1]), cause(0, 4, 60, lives[0]), false),
            (cause(0, 5, 50, lives[1]), cause(0, 4, 40, lives[0]), true),
            (cause(0, 5, 50, lives[1]), because(0, 4, 60), false),
        ] {
            let (first, second) = (set(of), set(then));
            let mut book = Book::default();
            book.set(first.clone());
            book.set(second.clone());
            assert_eq!(book.contains(first.id), stays, "{of:?}, {then:?}");
            assert_eq!(book.contains(second.id), !stays, "{of:?}, {then:?}");
            let mut book = Book::default();
            book.set(first.clone());
            assert_eq!(book.cancel("a", then), !stays, "{of:?}, {then:?}");
            assert_eq!(book.len(), usize::from(stays), "{of:?}, {then:?}");
            // So it is if the first one has fired, or was no timer but a cancellation.
            book.remove(first.id);
            book.cancel("a", of);
            book.set(second.clone());
            assert_eq!(book.contains(second.id), !stays, "{of:?}, {then:?}");
            book.remove_all();
            book.cancel("a", of);
            book.set(second.clone());
            assert_eq!(book.contains(second.id), !stays, "{of:?}, {then:?}");
        }
    }

    /// Goal: what is known of keys without a timer is forgotten when told, and nothing of those that have one.
    #[test]
    fn only_keys_without_a_timer_are_forgotten() {
        let cause = |position| {
            let (log, created, incarnation) = (0, 0, None);
            Some(Cause {
                log,
                position,
                created,
                incarnation,
            })
        };
        let mut book = Book::default();
        for key in ["pending", "fired", "cancelled"] {
            let because = cause(5);
            let timer = Timer {
                because,
                ..timer(key, 10)
            };
            let id = timer.id;
            book.set(timer);
            match key {
                "fired" => book.remove(id),
                "cancelled" => assert!(book.cancel(key, cause(6))),
                _ => {}
            }
        }
        for key in ["pending", "fired", "cancelled"] {
            assert!(!book.cancel(key, cause(4)), "{key}");
        }
        book.forget_causes();
        assert!(!book.cancel("pending", cause(4)));
        for key in ["fired", "cancelled"] {
            assert!(book.cancel(key, cause(4)), "{key}");
        }
    }
}
