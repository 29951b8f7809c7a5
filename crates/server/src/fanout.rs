//! Events as JSON lines, made once for all subscribers.
//!
//! Why: a thousand subscribers would encode the same event a thousand times, and a hundred that do not read would hold
//! a hundred copies of a large one. How: small lines are kept for a while and copied; large ones are shared by those
//! who have not sent them yet, and freed with the last of them. Invariants: a small entry keeps its event alive, so its
//! address cannot come to mean another event; the number of small entries and the size of each are bounded; a large
//! line counts once against the bytes in flight.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bytes::Bytes;
use gesta_core::{EventId, LogId, Position, SharedEvent, Timestamp};
use gesta_wire::event::{Framing, bytes_max, write_event};

use crate::body::{Budget, Reservation};
use crate::problem::Result;

/// Small entries: recent events, found by their position.
const EVENTS_MAX: usize = 1_024;
/// Logs that grow at the same rate have the same positions at the same time: each begins elsewhere.
const LOG_STEP: usize = 67;
/// Larger events are shared instead of copied.
const SMALL_BYTES_MAX: usize = 8 * 1_024;
/// Forgotten large lines after which their places are swept.
const SWEEP_AFTER: usize = 64;

/// The encoded form of recent live events and of large events.
pub(crate) struct EncodedEvents {
    slots: Box<[Mutex<Slot>]>,
    large: Mutex<HashMap<Identity, Weak<Large>>>,
}

type Slot = Option<(SharedEvent, Bytes)>;

/// What tells a stored event from every other, also from one that took its position after a fail-over.
#[derive(PartialEq, Eq, Hash)]
struct Identity {
    log: LogId,
    position: Position,
    id: EventId,
    created: Timestamp,
}

/// A large event as a line, made by the first who needs it.
#[derive(Default)]
struct Large(OnceLock<Line>);

/// A line and its share of the bytes in flight.
struct Line {
    json: Vec<u8>,
    _held: Reservation,
}

/// Keeps a large line alive.
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
    /// True if the line of the event is to be shared, not copied.
    pub(crate) fn is_large(event: &SharedEvent) -> bool {
        event.payload_bytes() > SMALL_BYTES_MAX
    }

    /// Appends a small event as one line of JSON, without the line's end.
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

    /// A large event as one line of JSON, without the line's end, shared with whoever else holds it.
    ///
    /// # Errors
    /// Overloaded if the line is not there yet and `budget` has too little left for it.
    pub(crate) fn share(&self, event: &SharedEvent, budget: &Budget) -> Result<Bytes> {
        let large = self.place_of(event);
        if large.0.get().is_none() {
            let mut held = budget.reservation_of_subscriptions();
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

    fn place_of(&self, event: &SharedEvent) -> Arc<Large> {
        let identity = Identity {
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
