//! The timers that are pending: by key, and in the order in which they fire. Pure.
//!
//! Invariants: a key has one timer; a timer is due at one time, or is firing; what was replaced, cancelled or has fired
//! is gone, and the end of its firing changes nothing. A request because of an event changes nothing after one because
//! of a later event, whether what that one has set is pending, has fired or was cancelled. A timer whose handler has
//! failed fires again after a pause, however the clock is set meanwhile. The book has room for a timer only if all that
//! are pending then stay within both bounds, in number and in bytes, whatever that timer carries.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use gesta_core::{BackOff, EventId, Moment, Timestamp};

use crate::timer::{Cause, DATA_BYTES_MAX, KEY_BYTES_MAX, Timer};

/// The greatest number of keys without a timer of which the book knows what was asked last.
const KEYS_WITHOUT_TIMER_MAX: usize = 100_000;
/// The most bytes that an allocation takes beside what is asked for.
const ALLOCATION_BYTES: usize = 16;
/// The most bytes that a timer takes in the book, beside two copies of its key and what it carries: an entry of each
/// of both maps and of the set that has it, and the allocations of the key, its copy, the data and the back-off.
const ENTRY_BYTES: usize = entry_bytes::<(EventId, Pending)>()
    + entry_bytes::<(String, KeyState)>()
    + 3 * size_of::<(Moment, EventId)>()
    + size_of::<BackOff>()
    + 4 * ALLOCATION_BYTES;
/// The most bytes that a timer takes in the book, whatever it carries.
pub(crate) const TIMER_BYTES_MAX: usize = ENTRY_BYTES + 2 * KEY_BYTES_MAX + DATA_BYTES_MAX;

/// Returns the most bytes that an entry takes in a map: one that has just grown has 16 places for 7 entries, and a byte
/// for each place.
const fn entry_bytes<T>() -> usize {
    (size_of::<T>() + 1) * 16 / 7 + 1
}

/// Returns how many bytes a timer takes in the book, at most.
fn bytes_of(timer: &Timer) -> usize {
    ENTRY_BYTES + 2 * timer.key.len() + timer.data.bytes()
}

/// How much the book may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The greatest number of timers.
    pub(crate) timers: usize,
    /// The most bytes of all of them together.
    pub(crate) bytes: usize,
}

/// A timer of the book.
#[derive(Debug)]
struct Pending {
    timer: Timer,
    fires: Fires,
    back_off: Option<Box<BackOff>>,
}

/// What is known of a key.
#[derive(Debug, Default)]
struct KeyState {
    /// The timer that is pending, if there is one.
    timer: Option<EventId>,
    /// The event because of which it was set or cancelled last, if there was one.
    cause: Option<Cause>,
}

/// When a timer fires.
#[derive(Debug, Clone, Copy)]
enum Fires {
    /// At its time.
    Due,
    /// Again, because its handler has failed.
    Again(Moment),
    /// It does.
    Now,
}

/// The timers that are pending.
#[derive(Debug)]
pub(crate) struct Book {
    bounds: Bounds,
    timers: HashMap<EventId, Pending>,
    /// The keys that have a timer, or a cause.
    keys: HashMap<String, KeyState>,
    due: BTreeSet<(Timestamp, EventId)>,
    again: BTreeSet<(Moment, EventId)>,
    /// The most bytes that the timers take together.
    bytes: usize,
    /// The number of timers whose handler has failed.
    failing: usize,
}

impl Book {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            timers: HashMap::new(),
            keys: HashMap::new(),
            due: BTreeSet::new(),
            again: BTreeSet::new(),
            bytes: 0,
            failing: 0,
        }
    }

    /// Returns the number of pending timers, with those that are firing.
    pub(crate) fn len(&self) -> usize {
        self.timers.len()
    }

    /// Returns how many bytes the pending timers take, at most.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether the book stays within its bounds if one more timer is set, whatever that carries.
    pub(crate) fn has_room(&self) -> bool {
        self.len() < self.bounds.timers
            && self.bytes.saturating_add(TIMER_BYTES_MAX) <= self.bounds.bytes
    }

    /// Says which bound leaves no room; `None` if there is some.
    pub(crate) fn full(&self) -> Option<String> {
        let (len, bytes, bounds) = (self.len(), self.bytes, self.bounds);
        let why = match (self.has_room(), len < bounds.timers) {
            (true, _) => return None,
            (false, false) => format!(
                "{len} timers are pending, and at most {} may be (pending_max)",
                bounds.timers
            ),
            (false, true) => format!(
                "{len} timers are pending with {bytes} bytes, and with one more they must have at most {} \
                 (pending_bytes_max)",
                bounds.bytes
            ),
        };
        Some(format!(
            "{why}: what was set or cancelled since is read once some have fired"
        ))
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
        let state = self.keys.entry(timer.key.clone()).or_default();
        (state.timer, state.cause) = (Some(timer.id), timer.because);
        self.due.insert((timer.due, timer.id));
        self.bytes += bytes_of(&timer);
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
        let of = self.keys.get(key).and_then(|state| state.cause);
        if let (Some(because), Some(of)) = (because, of)
            && because.is_before(of)
        {
            return false;
        }
        if because.is_some() && !self.keys.contains_key(key) {
            self.keys.insert(key.to_owned(), KeyState::default());
        }
        if let Some(state) = self.keys.get_mut(key) {
            state.cause = because;
            let timer = state.timer;
            match timer {
                Some(id) => self.remove(id),
                None if because.is_none() => drop(self.keys.remove(key)),
                None => self.bound_causes(),
            }
        }
        true
    }

    /// Forgets the causes of keys without a timer, as [`forget_causes`](Self::forget_causes) does, if there are too
    /// many of them.
    fn bound_causes(&mut self) {
        if self.keys.len() - self.timers.len() > KEYS_WITHOUT_TIMER_MAX {
            self.forget_causes();
        }
    }

    /// Removes all timers, but not what is known of their keys.
    pub(crate) fn remove_all(&mut self) {
        let ids: Vec<EventId> = self.timers.keys().copied().collect();
        ids.into_iter().for_each(|id| self.remove(id));
    }

    /// Forgets because of which events the keys were set and cancelled that have no timer. What is stored together says
    /// nothing of them, so a process that starts from it does not know it either.
    pub(crate) fn forget_causes(&mut self) {
        self.keys.retain(|_, state| state.timer.is_some());
        self.keys.shrink_to(2 * self.timers.len());
    }

    /// Removes a timer that has fired.
    pub(crate) fn remove(&mut self, id: EventId) {
        if let Some(pending) = self.timers.remove(&id) {
            let key = &pending.timer.key;
            self.bytes -= bytes_of(&pending.timer);
            if let Some(state) = self.keys.get_mut(key) {
                state.timer = None;
                let cause = state.cause;
                match cause {
                    Some(_) => self.bound_causes(),
                    None => drop(self.keys.remove(key)),
                }
            }
            self.failing -= usize::from(pending.back_off.is_some());
            match pending.fires {
                Fires::Due => self.due.remove(&(pending.timer.due, id)),
                Fires::Again(at) => self.again.remove(&(at, id)),
                Fires::Now => false,
            };
        }
    }

    /// Returns when the next timer fires whose handler has failed.
    pub(crate) fn next_again(&self) -> Option<Moment> {
        self.again.first().map(|(at, _)| *at)
    }

    /// Returns when the next timer fires of those whose handler has not failed.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Returns whether a timer fires now: by the clock, or after the pause of one whose handler has failed.
    pub(crate) fn is_due(&self, now: Timestamp, moment: Moment) -> bool {
        self.next().is_some_and(|at| at <= now) || self.next_again().is_some_and(|at| at <= moment)
    }

    /// Takes the next timer that fires now.
    pub(crate) fn take(&mut self, now: Timestamp, moment: Moment) -> Option<Timer> {
        let id = if self.next().is_some_and(|at| at <= now) {
            self.due.pop_first()?.1
        } else if self.next_again().is_some_and(|at| at <= moment) {
            self.again.pop_first()?.1
        } else {
            return None;
        };
        let pending = self.timers.get_mut(&id)?;
        pending.fires = Fires::Now;
        Some(pending.timer.clone())
    }

    /// Notes that a timer could not fire: it fires again after a pause, which is longer each time.
    pub(crate) fn failed(&mut self, id: EventId, pauses: (Duration, Duration), now: Moment) {
        let Some(pending) = self.timers.get_mut(&id) else {
            return;
        };
        self.failing += usize::from(pending.back_off.is_none());
        let (first, longest) = pauses;
        let back_off = pending
            .back_off
            .get_or_insert_with(|| Box::new(BackOff::new(first, longest)));
        let at = now + back_off.pause();
        self.due.remove(&(pending.timer.due, id));
        pending.fires = Fires::Again(at);
        self.again.insert((at, id));
    }

    /// Returns all timers, the next one first.
    pub(crate) fn all(&self) -> Vec<&Timer> {
        let mut all: Vec<_> = self.timers.values().map(|pending| &pending.timer).collect();
        all.sort_by(|a, b| (a.due, &a.key).cmp(&(b.due, &b.key)));
        all
    }

    /// Gives all timers away, the next one first.
    pub(crate) fn into_all(self) -> Vec<Timer> {
        let timers = self.timers.into_values().map(|pending| pending.timer);
        let mut all: Vec<_> = timers.collect();
        all.sort_by(|a, b| (a.due, &a.key).cmp(&(b.due, &b.key)));
        all
    }
}

#[cfg(test)]
mod tests {
    use gesta_core::EventId;

    use super::*;
    use crate::data::Data;

    const PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(15));
    const NO_BOUNDS: Bounds = Bounds {
        timers: usize::MAX,
        bytes: usize::MAX,
    };

    fn timer(key: &str, due: i64) -> Timer {
        Timer {
            key: key.to_owned(),
            due: Timestamp(due),
            data: Data::default(),
            id: EventId::random(),
            because: None,
        }
    }

    fn taken(book: &mut Book, now: i64) -> Vec<String> {
        taken_at(book, now, Moment::START)
    }

    fn taken_at(book: &mut Book, now: i64, moment: Moment) -> Vec<String> {
        let mut taken = Vec::new();
        while let Some(timer) = book.take(Timestamp(now), moment) {
            taken.push(timer.key);
        }
        taken
    }

    /// Goal: timers fire in the order of their times, none before its time, and none that was replaced or cancelled.
    #[test]
    fn what_is_due_fires_in_order() {
        let mut book = Book::new(NO_BOUNDS);
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
    #[test]
    fn what_fails_fires_again() {
        let (mut book, mut now) = (Book::new(NO_BOUNDS), Moment::START);
        let first = timer("a", 1_000_000);
        book.set(first.clone());
        assert_eq!(taken(&mut book, 1_000_000), ["a"]);
        book.set(first.clone());
        assert_eq!((book.len(), book.next()), (1, None), "it is the same timer");
        for seconds in [10, 15, 15] {
            let at = now + Duration::from_secs(seconds);
            book.failed(first.id, PAUSES, now);
            assert_eq!((book.failing(), book.next_again()), (1, Some(at)));
            now = at - Duration::from_secs(1);
            assert!(
                taken_at(&mut book, i64::MAX, now).is_empty(),
                "the pause is not over"
            );
            now = at;
            assert!(book.is_due(Timestamp(0), now));
            assert_eq!(taken_at(&mut book, 0, now), ["a"]);
        }
        book.set(timer("a", 99));
        book.failed(first.id, PAUSES, now);
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
            let mut book = Book::new(NO_BOUNDS);
            book.set(first.clone());
            book.set(second.clone());
            assert_eq!(book.contains(first.id), stays, "{of:?}, {then:?}");
            assert_eq!(book.contains(second.id), !stays, "{of:?}, {then:?}");
            let mut book = Book::new(NO_BOUNDS);
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
        let mut book = Book::new(NO_BOUNDS);
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

    /// Returns the bytes that the timers of a book take now: the places of its maps, and what lies outside of them.
    fn held(book: &Book) -> usize {
        let places = |capacity: usize| capacity * 8 / 7 + 1;
        let timers = places(book.timers.capacity()) * (size_of::<(EventId, Pending)>() + 1);
        let keys = places(book.keys.capacity()) * (size_of::<(String, KeyState)>() + 1);
        // A node of a set is at least half full but for the first.
        let sets = 2 * (book.due.len() + book.again.len()) * size_of::<(Moment, EventId)>();
        let of_timer = |pending: &Pending| {
            let timer = &pending.timer;
            let back_off = pending
                .back_off
                .as_ref()
                .map_or(0, |_| size_of::<BackOff>());
            timer.key.capacity() + timer.data.text().len() + back_off
        };
        let beside: usize = book.timers.values().map(of_timer).sum();
        let copies: usize = book.keys.keys().map(String::capacity).sum();
        timers + keys + sets + beside + copies
    }

    /// What happened: the data of a timer were kept as parsed JSON, so that a million timers within the bound of their
    /// number could take 800 GB. Goal: whatever the timers carry, those of a book take no more bytes than it says, and
    /// it says no more than its bound, at which it has no room and names the rule. What leaves gives its bytes back.
    #[test]
    fn the_book_is_bounded_in_bytes() {
        let zeros = format!("[{}0]", "0,".repeat(2_046));
        let objects = format!("{}{}", r#"{"":"#.repeat(63) + "1", "}".repeat(63));
        for data in [
            "",
            "1",
            &zeros,
            &objects,
            &format!("\"{}\"", "x".repeat(4_094)),
        ] {
            let bounds = Bounds {
                timers: usize::MAX,
                bytes: 2_000_000,
            };
            let mut book = Book::new(bounds);
            let mut timers = Vec::new();
            while book.has_room() {
                assert_eq!(book.full(), None);
                let key = format!("{:0>256}", timers.len());
                let mut timer = timer(&key, i64::try_from(timers.len()).unwrap());
                if !data.is_empty() {
                    timer.data = serde_json::from_str(data).unwrap();
                }
                timer.because = Some(Cause {
                    log: 0,
                    position: 1,
                    created: 1,
                    incarnation: None,
                });
                timers.push(timer.id);
                book.set(timer);
                assert!(book.bytes() <= bounds.bytes);
                // A map of few entries has more places for each.
                let (held, told) = (held(&book), book.bytes());
                assert!(timers.len() < 50 || held <= told, "{held} {told}");
            }
            assert!(book.bytes() + TIMER_BYTES_MAX > bounds.bytes);
            let told = book.full().unwrap();
            let bytes = format!(
                "{} timers are pending with {} bytes",
                timers.len(),
                book.bytes()
            );
            assert!(told.starts_with(&bytes), "{told}");
            assert!(
                told.contains("at most 2000000 (pending_bytes_max)"),
                "{told}"
            );
            // Those that fail take no more.
            for id in &timers {
                book.take(Timestamp(i64::MAX), Moment::START).unwrap();
                book.failed(*id, PAUSES, Moment::START);
            }
            assert!(held(&book) <= book.bytes());
            for id in timers {
                book.remove(id);
            }
            assert_eq!((book.len(), book.bytes()), (0, 0));
            assert!(book.has_room());
        }
    }

    /// Goal: at the bound in number the book says so as well.
    #[test]
    fn the_book_is_bounded_in_number() {
        let mut book = Book::new(Bounds {
            timers: 2,
            ..NO_BOUNDS
        });
        for key in ["a", "b"] {
            assert!(book.has_room() && book.full().is_none());
            book.set(timer(key, 1));
        }
        assert!(!book.has_room());
        let told = book.full().unwrap();
        let rule = "2 timers are pending, and at most 2 may be (pending_max)";
        assert!(told.starts_with(rule), "{told}");
    }

    /// What happened: of every key that was ever cancelled because of an event its last event was remembered, until all
    /// timers were stored together; a start that reads many requests took memory without a bound. Goal: of keys without
    /// a timer only so many are remembered.
    #[test]
    fn keys_without_a_timer_are_bounded() {
        let cause = Some(Cause {
            log: 0,
            position: 1,
            created: 1,
            incarnation: None,
        });
        let mut book = Book::new(NO_BOUNDS);
        book.set(Timer {
            because: cause,
            ..timer("pending", 1)
        });
        for number in 0..=2 * KEYS_WITHOUT_TIMER_MAX {
            assert!(book.cancel(&number.to_string(), cause));
            assert!(book.keys.len() <= KEYS_WITHOUT_TIMER_MAX + 1);
        }
        assert_eq!(book.keys["pending"].cause, cause);
        assert_eq!(book.len(), 1);
    }
}
