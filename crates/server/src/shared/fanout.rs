//! Events as JSON lines, made once for all subscribers.
//!
//! Why: a thousand subscribers would encode the same event a thousand times, and a hundred that do not read would hold
//! a hundred copies of a large one. How: small lines are kept for a while and copied; large ones are shared by those
//! who have not sent them yet, and freed with the last of them. Invariants: a small entry keeps its event alive, so its
//! address cannot come to mean another event; the number of small entries and the size of each, with all that belongs
//! to the event, are bounded; a large line counts once for each caller against the bytes in flight.
//! Why large lines are shared by the subscriptions of one caller only: a line that all share would be counted for the
//! one who needed it first, and callers who do not read would hold what others are counted for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bytes::Bytes;
use gesta_core::shares::Holder;
use gesta_core::{EventId, LogId, Position, SharedEvent, Timestamp};
use gesta_wire::event::{Framing, bytes_max, write_event};

use crate::shared::body::{Budget, Reservation};
use crate::shared::problem::Result;

/// Number of small entries. They hold recent events, found by their position.
const EVENTS_MAX: usize = 1_024;
/// Distance between the first places of two logs. Logs that grow at the same rate have the same positions at the same
/// time, so each log begins at another place.
const LOG_STEP: usize = 67;
/// Bytes of memory, names and tags included, from which on an event is shared instead of copied.
const SMALL_BYTES_MAX: usize = 8 * 1_024;
/// Number of entries for large lines from which on the entries of freed lines are removed.
const SWEEP_AFTER: usize = 64;

/// The encoded form of recent live events and of large events.
pub(crate) struct EncodedEvents {
    slots: Box<[Mutex<Slot>]>,
    large: Mutex<HashMap<Identity, Weak<Large>>>,
}

type Slot = Option<(SharedEvent, Bytes)>;

/// What tells a stored event from every other event, also from one that took its position after a fail-over.
#[derive(PartialEq, Eq, Hash)]
struct Identity {
    holder: Holder,
    log: LogId,
    position: Position,
    id: EventId,
    created: Timestamp,
}

/// A large event as a line, which the first subscriber that needs it makes.
#[derive(Default)]
struct Large(OnceLock<Line>);

/// A line and its share of the bytes in flight.
struct Line {
    json: Vec<u8>,
    _held: Reservation,
}

/// A handle that keeps a large line alive.
struct Sharer(Arc<Large>);

impl AsRef<[u8]> for Sharer {
    fn as_ref(&self) -> &[u8] {
        self.0.0.get().map_or(&[], |line| &line.json)
    }
}

impl Default for EncodedEvents {
    fn default() -> Self {
        Self {
            slots: (0..EVENTS_MAX).map(|_| Mutex::new(None)).collect(),
            large: Mutex::default(),
        }
    }
}

impl EncodedEvents {
    /// Returns true if the line of the event is to be shared, not copied.
    pub(crate) fn is_large(event: &SharedEvent) -> bool {
        event.cost_bytes() > SMALL_BYTES_MAX
    }

    /// Appends an event as one line of JSON to `out`, without the line's end. The line of a small event is kept for
    /// others.
    pub(crate) fn append(&self, out: &mut Vec<u8>, event: &SharedEvent) {
        // An event read for one subscriber alone, while it catches up, is not shared.
        if Arc::strong_count(event) == 1 || Self::is_large(event) {
            return write_event(out, event, Framing::Line);
        }
        let position = usize::try_from(event.position.0).unwrap_or(0);
        let slot = position.wrapping_add(usize::from(event.log.0) * LOG_STEP) % EVENTS_MAX;
        let mut slot = locked(&self.slots[slot]);
        match &*slot {
            Some((known, line)) if Arc::ptr_eq(known, event) => out.extend_from_slice(line),
            _ => {
                let from = out.len();
                write_event(out, event, Framing::Line);
                *slot = Some((event.clone(), Bytes::copy_from_slice(&out[from..])));
            }
        }
    }

    /// Returns a large event as one line of JSON, without the line's end, which is shared by all subscriptions of this
    /// caller that hold it.
    ///
    /// # Errors
    /// Overloaded if the line is not made yet and `budget` has too little left for it.
    pub(crate) fn share(
        &self,
        event: &SharedEvent,
        budget: &Budget,
        holder: &Holder,
    ) -> Result<Bytes> {
        let large = self.place_of(event, holder);
        if large.0.get().is_none() {
            let mut held = budget.reservation_of_subscriptions(holder);
            held.set(bytes_max(event))?;
            // Whoever comes at the same time waits here for the first.
            large.0.get_or_init(|| {
                let mut json = Vec::with_capacity(bytes_max(event));
                write_event(&mut json, event, Framing::Line);
                json.shrink_to_fit();
                held.shrink_to(json.len());
                Line { json, _held: held }
            });
        }
        Ok(Bytes::from_owner(Sharer(large)))
    }

    fn place_of(&self, event: &SharedEvent, holder: &Holder) -> Arc<Large> {
        let identity = Identity {
            holder: holder.clone(),
            log: event.log,
            position: event.position,
            id: event.id,
            created: event.created,
        };
        let mut places = locked(&self.large);
        if let Some(large) = places.get(&identity).and_then(Weak::upgrade) {
            return large;
        }
        if places.len() >= SWEEP_AFTER {
            places.retain(|_, place| place.strong_count() > 0);
        }
        let large = Arc::new(Large::default());
        places.insert(identity, Arc::downgrade(&large));
        large
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use gesta_core::{ContentType, EventType, RecordedEvent, Revision, StreamId, Tag, Tags};

    use super::*;

    /// Makes an event with `tags` tags of 256 bytes and `data` bytes of data.
    fn event(position: u64, tags: usize, data: usize) -> SharedEvent {
        let tag = |number: usize| Tag::new(format!("{number:0>256}")).expect("valid");
        Arc::new(RecordedEvent {
            stream: StreamId::new("s").expect("valid"),
            revision: Revision(position),
            log: LogId(0),
            position: Position(position),
            id: EventId::random(),
            event_type: EventType::new("t").expect("valid"),
            content_type: ContentType::Binary,
            data: Bytes::from(vec![0; data]),
            metadata: Bytes::new(),
            created: Timestamp(0),
            tags: Tags::new((0..tags).map(tag).collect()).expect("valid"),
        })
    }

    fn held(encoded: &EncodedEvents) -> usize {
        let slots = encoded.slots.iter();
        slots.filter(|slot| locked(slot).is_some()).count()
    }

    /// What happened: only data and metadata counted, so an event of tags was small however large its line was, and a
    /// thousand such lines were kept that counted nowhere.
    #[test]
    fn an_event_of_tags_is_large_and_counts_against_the_bytes_in_flight() {
        let tagged = event(1, 32, 0);
        // Subscriptions have half of it: three such lines, as large as they may become.
        let (encoded, budget) = (
            EncodedEvents::default(),
            Budget::new(6 * bytes_max(&tagged)),
        );
        let [holder, another] = ["a", "b"].map(|name| Holder::User(name.into()));
        assert!(EncodedEvents::is_large(&tagged));
        let line = encoded.share(&tagged, &budget, &holder).expect("room");
        assert_eq!(budget.used(), line.len());
        assert!(line.len() > SMALL_BYTES_MAX);
        let again = encoded.share(&tagged, &budget, &holder).expect("shared");
        assert_eq!((again.as_ptr(), budget.used()), (line.as_ptr(), line.len()));
        // Subscribers take half of the bytes at most, and one caller half of that.
        let other = event(2, 32, 0);
        let refused = encoded
            .share(&other, &budget, &holder)
            .expect_err("no room");
        assert_eq!(refused.kind.name, "overloaded");
        let of_another = encoded.share(&tagged, &budget, &another).expect("room");
        assert_eq!(budget.used(), 2 * line.len());
        drop((line, again, of_another));
        assert_eq!(budget.used(), 0);
        encoded.share(&other, &budget, &holder).expect("room again");
        assert_eq!(held(&encoded), 0);
    }

    /// Goal: a small event that several hold is encoded once and kept; one that nobody else holds is not kept.
    #[test]
    fn small_events_that_are_shared_are_kept() {
        let encoded = EncodedEvents::default();
        let (alone, small) = (event(1, 1, 10), event(2, 1, 10));
        let _other = small.clone();
        for event in [&alone, &small, &small] {
            assert!(!EncodedEvents::is_large(event));
            let (mut line, mut expected) = (Vec::new(), Vec::new());
            encoded.append(&mut line, event);
            write_event(&mut expected, event, Framing::Line);
            assert_eq!(line, expected);
        }
        assert_eq!(held(&encoded), 1);
    }
}
