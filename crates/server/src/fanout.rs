//! Events as JSON lines, made once for all subscribers of a live event.
//!
//! Why: a thousand subscribers would encode the same event a thousand times.
//! Invariants: an entry keeps its event alive, so its address cannot come to mean another event;
//! the number of entries and the size of each are bounded.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use gesta_core::SharedEvent;

use crate::encode::{self, Framing};

/// Entries: recent events, found by their position.
const EVENTS_MAX: usize = 1_024;
/// Larger events are encoded each time.
const PAYLOAD_BYTES_MAX: usize = 8 * 1_024;

/// The encoded form of recent live events.
pub(crate) struct EncodedEvents {
    slots: Box<[Mutex<Slot>]>,
}

type Slot = Option<(SharedEvent, Bytes)>;

impl Default for EncodedEvents {
    fn default() -> Self {
        Self {
            slots: (0..EVENTS_MAX).map(|_| Mutex::new(None)).collect(),
        }
    }
}

impl EncodedEvents {
    /// Appends the event as one line of JSON, without the line's end.
    pub(crate) fn append(&self, out: &mut Vec<u8>, event: &SharedEvent) {
        // An event read for one subscriber alone, while it catches up, is not shared.
        if Arc::strong_count(event) == 1 || event.payload_bytes() > PAYLOAD_BYTES_MAX {
            return encode::event(out, event, Framing::Line);
        }
        let slot = usize::try_from(event.position.0).unwrap_or(0) % EVENTS_MAX;
        let mut slot = self.slots[slot]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match &*slot {
            Some((known, line)) if Arc::ptr_eq(known, event) => out.extend_from_slice(line),
            _ => {
                let from = out.len();
                encode::event(out, event, Framing::Line);
                *slot = Some((event.clone(), Bytes::copy_from_slice(&out[from..])));
            }
        }
    }
}
