//! Admission: how many requests and subscriptions may be in flight at once.

use std::sync::Arc;

use gesta_core::capacity::{Capacity, Permit};

use crate::problem::{Problem, Result};

/// A counter with a maximum.
#[derive(Debug)]
pub(crate) struct Gate {
    capacity: Arc<Capacity>,
    max: usize,
    what: &'static str,
}

/// One inside; leaves on drop.
pub(crate) type Ticket = Permit;

impl Gate {
    pub(crate) fn new(what: &'static str, max: usize) -> Self {
        let capacity = Capacity::new([max]);
        Self {
            capacity,
            max,
            what,
        }
    }

    /// Lets one more in, or says that the place is full.
    pub(crate) fn enter(&self) -> Result<Ticket> {
        self.capacity.take([1]).map_err(|_| {
            Problem::overloaded(format!(
                "{} {} are in flight, no more are taken",
                self.max, self.what
            ))
        })
    }

    pub(crate) fn inside(&self) -> usize {
        self.capacity.taken()[0]
    }
}
