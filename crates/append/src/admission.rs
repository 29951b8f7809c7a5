//! The bound on everything that waits or is in flight: so many events, so many bytes, no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gesta_core::{ErrorKind, Result};

/// Room in the queue of one pipeline.
#[derive(Debug)]
pub(crate) struct Admission {
    events_max: usize,
    bytes_max: usize,
    events: AtomicUsize,
    bytes: AtomicUsize,
}

/// Room that one command takes; given back on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<Admission>,
    pub(crate) events: usize,
    pub(crate) bytes: usize,
}

impl Admission {
    pub(crate) fn new(events_max: usize, bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            events_max,
            bytes_max,
            events: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        })
    }

    /// Takes room, or refuses at once. A single append larger than a bound is let in when nothing else waits.
    pub(crate) fn enter(self: &Arc<Self>, events: usize, bytes: usize) -> Result<Permit> {
        let events_before = self.events.fetch_add(events, Ordering::AcqRel);
        let bytes_before = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        let permit = Permit {
            admission: Arc::clone(self),
            events,
            bytes,
        };
        if events_before == 0 {
            return Ok(permit);
        }
        if events_before + events > self.events_max {
            return Err(ErrorKind::Overloaded(format!(
                "{events_before} events are waiting to be stored"
            ))
            .into());
        }
        if bytes_before + bytes > self.bytes_max {
            return Err(ErrorKind::Overloaded(format!(
                "{bytes_before} bytes are waiting to be stored"
            ))
            .into());
        }
        Ok(permit)
    }

    /// Events that wait or are in flight.
    pub(crate) fn events(&self) -> usize {
        self.events.load(Ordering::Relaxed)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission
            .events
            .fetch_sub(self.events, Ordering::AcqRel);
        self.admission.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_beyond_the_bound_and_gives_room_back() {
        let admission = Admission::new(10, 100);
        let first = admission.enter(6, 10).expect("room");
        assert!(admission.enter(5, 10).is_err(), "too many events");
        assert!(admission.enter(1, 95).is_err(), "too many bytes");
        assert_eq!(admission.events(), 6);
        drop(first);
        let huge = admission
            .enter(1_000, 1_000)
            .expect("alone, a large append is let in");
        assert!(admission.enter(1, 1).is_err());
        drop(huge);
        assert_eq!(admission.events(), 0);
    }
}
